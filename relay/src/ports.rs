//! Pairs of UDP ports (RTP even, RTCP the odd one above, RFC 3550 section 11), taken at random and rested after use.

use shunt_latch::Time;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;

/// How long a pair that another process holds is left alone before it is tried again.
const TAKEN_REST: Duration = Duration::from_secs(1);

/// Why there is no pair.
#[derive(Debug, Error)]
pub enum NoPort {
    #[error("{ip}: all {pairs} port pairs are taken ({used} in use, {resting} resting, {taken} held by other processes)")]
    Exhausted {
        ip: IpAddr,
        pairs: usize,
        used: usize,
        resting: usize,
        taken: usize,
    },
    #[error("{ip}: no socket to be had: {error}")]
    Socket { ip: IpAddr, error: io::Error },
}

/// The pairs of one address: free, in use, resting after use, or held by somebody else.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<u16>,
    used: HashSet<u16>,
    resting: VecDeque<(Time, u16)>,
    taken: VecDeque<(Time, u16)>,
}

impl Pool {
    fn wake(&mut self, now: Time) {
        for queue in [&mut self.resting, &mut self.taken] {
            while queue.front().is_some_and(|(until, _)| *until <= now) {
                self.free.extend(queue.pop_front().map(|(_, port)| port));
            }
        }
    }
}

/// Hands out even ports of one range, on as many addresses as are asked for.
///
/// A pair is chosen at random among all free ones, so that the next port cannot be guessed. A pair that was released rests (late packets of
/// the old call must not reach a new one), and one whose sockets another process holds is passed over.
#[derive(Debug)]
pub struct Ports {
    first: u16,
    last: u16,
    quarantine: Duration,
    pools: HashMap<IpAddr, Pool>,
}

impl Ports {
    /// Even ports of `first..=last` with the next one inside of it. `None` if there is no such pair.
    #[must_use]
    pub fn new(first: u16, last: u16, quarantine: Duration) -> Option<Self> {
        let first = if first.is_multiple_of(2) { first } else { first.checked_add(1)? };
        (first > 0 && first < last).then(|| Self {
            first,
            last,
            quarantine,
            pools: HashMap::new(),
        })
    }

    fn pairs(&self) -> impl Iterator<Item = u16> + use<> {
        (self.first..self.last).step_by(2)
    }

    /// A free pair on an address: its even port and what `bind` made of it.
    ///
    /// # Errors
    /// All pairs are taken, or no socket can be had at all.
    pub fn open<T>(
        &mut self,
        now: Time,
        ip: IpAddr,
        random: impl Fn(usize) -> usize,
        bind: impl Fn(u16) -> io::Result<T>,
    ) -> Result<(u16, T), NoPort> {
        let pairs = self.pairs();
        let pool = self.pools.entry(ip).or_insert_with(|| Pool {
            free: pairs.collect(),
            ..Pool::default()
        });
        pool.wake(now);
        while !pool.free.is_empty() {
            let port = pool.free.swap_remove(random(pool.free.len()) % pool.free.len());
            match bind(port) {
                Ok(opened) => {
                    pool.used.insert(port);
                    return Ok((port, opened));
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
                    pool.taken.push_back((now + TAKEN_REST, port));
                }
                Err(error) => {
                    pool.free.push(port);
                    return Err(NoPort::Socket { ip, error });
                }
            }
        }
        let (used, resting, taken) = (pool.used.len(), pool.resting.len(), pool.taken.len());
        Err(NoPort::Exhausted {
            ip,
            pairs: self.pairs().count(),
            used,
            resting,
            taken,
        })
    }

    /// Give a pair back (its sockets are closed by now); it rests before it is used again.
    pub fn release(&mut self, now: Time, ip: IpAddr, port: u16) {
        if let Some(pool) = self.pools.get_mut(&ip)
            && pool.used.remove(&port)
        {
            pool.resting.push_back((now + self.quarantine, port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const B: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    fn at(ms: u64) -> Time {
        Duration::from_millis(ms).into()
    }

    fn ports(first: u16, last: u16, quarantine: u64) -> Option<Ports> {
        Ports::new(first, last, Duration::from_millis(quarantine))
    }

    fn open(ports: &mut Ports, now: u64, ip: IpAddr) -> Option<u16> {
        ports.open(at(now), ip, |_| 0, |_| Ok(())).ok().map(|(port, ())| port)
    }

    #[test]
    fn ranges_without_a_pair() {
        for (first, last) in [(0, 0), (0, 10), (200, 100), (101, 102), (100, 100), (65535, 65535)] {
            assert!(ports(first, last, 0).is_none(), "{first}-{last}");
        }
        let mut one = ports(43001, 43004, 0).unwrap();
        assert_eq!(
            (open(&mut one, 0, A), open(&mut one, 0, A), open(&mut one, 0, B)),
            (Some(43002), None, Some(43002))
        );
        assert_eq!(open(&mut ports(65534, 65535, 0).unwrap(), 0, A), Some(65534));
    }

    #[test]
    fn exhaustion_is_told_and_ends_with_the_rest_after_use() {
        let mut ports = ports(43200, 43205, 5000).unwrap();
        let got: Vec<_> = (0..3).filter_map(|_| open(&mut ports, 0, A)).collect();
        assert_eq!(got.len(), 3);
        ports.release(at(0), A, 43202);
        ports.release(at(1), A, 43202);
        let error = ports.open(at(4999), A, |_| 0, |_| Ok(())).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("all 3 port pairs are taken (2 in use, 1 resting, 0 held by other processes)"),
            "{error}"
        );
        assert_eq!((open(&mut ports, 5000, A), open(&mut ports, 9000, A)), (Some(43202), None));
    }

    #[test]
    fn what_another_process_holds_is_passed_over_and_tried_again() {
        let mut ports = ports(43100, 43103, 0).unwrap();
        let taken = |port| {
            if port == 43100 {
                Err(io::ErrorKind::AddrInUse.into())
            } else {
                Ok(())
            }
        };
        assert_eq!(ports.open(at(0), A, |_| 0, taken).unwrap().0, 43102);
        assert!(matches!(
            ports.open(at(999), A, |_| 0, taken),
            Err(NoPort::Exhausted { taken: 1, .. })
        ));
        assert_eq!(open(&mut ports, 1000, A), Some(43100));
        ports.release(at(1000), A, 43100);
        let no_descriptors = |_| Err::<(), _>(io::Error::other("too many open files"));
        assert!(matches!(ports.open(at(1000), A, |_| 0, no_descriptors), Err(NoPort::Socket { .. })));
        assert_eq!(open(&mut ports, 1000, A), Some(43100), "none is lost by that");
    }

    proptest! {
        #[test]
        fn no_pair_is_given_out_twice_or_while_it_rests(steps in prop::collection::vec((0..3u8, any::<usize>(), 0..50u64), 0..200)) {
            let mut ports = ports(100, 119, 100).unwrap();
            let (mut now, mut used, rests) = (0, Vec::new(), RefCell::new(HashMap::new()));
            for (kind, number, pause) in steps {
                now += pause;
                if kind < 2 {
                    match ports.open(at(now), A, |_| number, |_| Ok(())) {
                        Ok((port, ())) => {
                            prop_assert!(port % 2 == 0 && (100..119).contains(&port) && !used.contains(&port));
                            prop_assert!(rests.borrow().get(&port).is_none_or(|until| *until <= now));
                            used.push(port);
                        }
                        Err(_) => {
                            let resting = rests.borrow().iter().filter(|(port, until)| **until > now && !used.contains(port)).count();
                            prop_assert_eq!(used.len() + resting, 10);
                        }
                    }
                } else if !used.is_empty() {
                    let port = used.swap_remove(number % used.len());
                    rests.borrow_mut().insert(port, now + 100);
                    ports.release(at(now), A, port);
                }
            }
        }
    }
}
