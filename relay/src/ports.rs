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
        let first = if first % 2 == 0 { first } else { first.checked_add(1)? };
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
        if let Some(pool) = self.pools.get_mut(&ip) {
            if pool.used.remove(&port) {
                pool.resting.push_back((now + self.quarantine, port));
            }
        }
    }
}
