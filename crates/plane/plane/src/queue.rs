//! Waiting writes. Writes to one relay port stay in order, one at a time; all others share batches.

use shunt_calls::{Operation, WriteId};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// `None`: nothing waits for the result.
    pub(crate) id: Option<WriteId>,
    pub(crate) operation: Operation,
    /// When it was submitted, and when it must be sent.
    pub(crate) given: Instant,
    pub(crate) due: Instant,
}

impl Job {
    pub(crate) fn key(&self) -> FiveTuple {
        match self.operation {
            Operation::Insert(entry) | Operation::Modify(entry) => entry.key(),
            Operation::Delete(key) => key,
        }
    }
}

/// Waiting writes and writes under way.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    ready: VecDeque<Job>,
    /// Ports with a write that is ready or under way, and the writes that wait behind it.
    ports: HashMap<Endpoint, VecDeque<Job>>,
    waiting: usize,
    due: Option<Instant>,
}

impl Queue {
    pub(crate) fn push(&mut self, job: Job) {
        self.waiting += 1;
        match self.ports.get_mut(&job.key().dst) {
            Some(behind) => behind.push_back(job),
            None => {
                self.ports.insert(job.key().dst, VecDeque::new());
                self.make_ready(job);
            }
        }
    }

    fn make_ready(&mut self, job: Job) {
        self.due = Some(self.due.map_or(job.due, |due| due.min(job.due)));
        self.ready.push_back(job);
    }

    /// Returns when the first ready write must be sent.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the number of waiting writes, ready or not.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes up to `most` ready writes, at most one for each port.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Job> {
        let taken: Vec<Job> = self.ready.drain(..most.min(self.ready.len())).collect();
        self.waiting -= taken.len();
        // The writes that a full batch leaves behind have waited longest.
        self.due = self.ready.front().map(|job| job.due);
        taken
    }

    /// Ends a write, so that the next one of its port becomes ready.
    pub(crate) fn finished(&mut self, port: Endpoint) {
        let Some(behind) = self.ports.get_mut(&port) else { return };
        match behind.pop_front() {
            Some(next) => self.make_ready(next),
            None => {
                self.ports.remove(&port);
            }
        }
    }

    /// Takes all waiting writes; those under way stay.
    pub(crate) fn drain(&mut self) -> Vec<Job> {
        let mut taken: Vec<Job> = self.ready.drain(..).collect();
        for at in 0..taken.len() {
            let behind = taken.get(at).and_then(|job| self.ports.remove(&job.key().dst));
            taken.extend(behind.into_iter().flatten());
        }
        taken.extend(self.ports.values_mut().flat_map(std::mem::take));
        (self.waiting, self.due) = (0, None);
        taken
    }

    /// Returns the ports with waiting or running writes.
    pub(crate) fn busy_ports(&self) -> impl Iterator<Item = Endpoint> + '_ {
        self.ports.keys().copied()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn job(source: u16, port: u16, due: Instant) -> Job {
        let key = FiveTuple::new(Endpoint::new(Ipv4Addr::LOCALHOST, source), Endpoint::new(Ipv4Addr::LOCALHOST, port));
        Job {
            id: None,
            operation: Operation::Delete(key),
            given: due,
            due,
        }
    }

    proptest! {
        #[test]
        fn writes_to_a_port_keep_their_order_and_none_is_lost(steps in prop::collection::vec((0u16..4, 0usize..6), 0..60)) {
            let now = Instant::now();
            let (mut queue, mut under_way) = (Queue::default(), Vec::<Job>::new());
            let (mut given, mut done) = (Vec::new(), Vec::new());
            for (number, (port, take)) in steps.into_iter().enumerate() {
                let next = job(number as u16, port, now);
                given.push(next);
                queue.push(next);
                let taken = queue.take(take);
                for job in &taken {
                    prop_assert!(under_way.iter().all(|other| other.key().dst != job.key().dst), "two at one port");
                }
                under_way.extend(taken);
                if take % 2 == 0 {
                    for job in std::mem::take(&mut under_way) {
                        queue.finished(job.key().dst);
                        done.push(job);
                    }
                }
                prop_assert_eq!(given.len(), done.len() + under_way.len() + queue.waiting());
            }
            done.extend(under_way.iter().copied());
            let drained = queue.drain();
            prop_assert_eq!((queue.waiting(), queue.due()), (0, None));
            done.extend(drained);
            for port in 0..4 {
                let of = |jobs: &[Job]| jobs.iter().filter(|job| job.key().dst.port == port).copied().collect::<Vec<_>>();
                prop_assert_eq!(of(&given), of(&done));
            }
            for job in &under_way {
                queue.finished(job.key().dst);
            }
            prop_assert_eq!(queue.busy_ports().count(), 0);
        }
    }

    #[test]
    fn the_earliest_decides_when_they_go() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_millis(4);
        let mut queue = Queue::default();
        queue.push(job(1, 10, later));
        assert_eq!(queue.due(), Some(later));
        queue.push(job(2, 12, now));
        assert_eq!((queue.due(), queue.waiting()), (Some(now), 2));
        // A write behind another one is not due.
        queue.push(job(3, 10, now));
        assert_eq!(queue.take(10).len(), 2);
        assert_eq!(queue.due(), None);
        queue.finished(job(1, 10, now).key().dst);
        assert_eq!(queue.due(), Some(now));
    }
}
