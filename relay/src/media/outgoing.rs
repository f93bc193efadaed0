//! Packets for a party whose source is being learned: they wait until it is known where the party is.
//!
//! Behind a NAT the signalled port is not the party's, and a party at an address that several share is latched by its fifth packet only. What
//! the other party sends meanwhile would be lost.

use super::counters::Counter;
use shunt_latch::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// More than arrive while a source is learned.
const PACKETS: usize = 8;
/// What has waited so long goes where it would have gone at once.
const AGE: Duration = Duration::from_millis(500);
/// Bytes that one thread holds back for all of its ports.
const MOST_BYTES: u64 = 16 << 20;

/// The packets that wait at the port that they leave by.
#[derive(Debug, Default)]
pub struct Outgoing {
    since: Option<Time>,
    packets: VecDeque<Box<[u8]>>,
}

impl Outgoing {
    /// A source has sent that is not latched yet. Later ones of the same learning extend nothing.
    pub fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Whether packets for the party are to wait.
    pub fn waits(&self, now: Time) -> bool {
        self.since.is_some_and(|since| now.since(since) < AGE)
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Have a packet wait; what has no room any more comes back and is to be sent now. `total`: bytes of all ports.
    pub fn hold(&mut self, packet: &[u8], total: &Counter) -> Option<Box<[u8]>> {
        if total.get() + packet.len() as u64 > MOST_BYTES {
            return Some(packet.into());
        }
        total.add(packet.len() as u64);
        self.packets.push_back(packet.into());
        let oldest = (self.packets.len() > PACKETS).then(|| self.packets.pop_front()).flatten();
        if let Some(oldest) = &oldest {
            total.set(total.get() - oldest.len() as u64);
        }
        oldest
    }

    /// The packets, oldest first.
    pub fn take(&mut self, total: &Counter) -> VecDeque<Box<[u8]>> {
        let bytes: u64 = self.packets.iter().map(|packet| packet.len() as u64).sum();
        total.set(total.get() - bytes);
        std::mem::take(&mut self.packets)
    }

    /// Learning is over, or begins anew.
    pub fn end(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_half_a_second_at_most_and_none_is_lost() {
        let (mut outgoing, total) = (Outgoing::default(), Counter::default());
        let at = |ms: u64| Time::from(Duration::from_millis(ms));
        assert!(!outgoing.waits(at(0)));
        outgoing.begin(at(0));
        outgoing.begin(at(400));
        assert!(outgoing.waits(at(499)) && !outgoing.waits(at(500)));
        let early: Vec<_> = (0..10u8)
            .filter_map(|n| outgoing.hold(&[n; 10], &total))
            .map(|packet| packet[0])
            .collect();
        assert_eq!((early, total.get()), (vec![0, 1], 80));
        let rest: Vec<_> = outgoing.take(&total).iter().map(|packet| packet[0]).collect();
        assert_eq!((rest, total.get()), ((2..10).collect(), 0));
        outgoing.end();
        assert!(!outgoing.waits(at(1)) && outgoing.is_empty());
        total.set(MOST_BYTES);
        assert!(outgoing.hold(&[1], &total).is_some() && outgoing.is_empty());
    }
}
