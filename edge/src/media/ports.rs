//! Ports of the plain side, taken at random and given back when their lease is dropped.

use crate::model::Refusal;
use shunt_daemon::PortRange;
use shunt_net::Endpoint;
use shunt_udp::Socket;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes asked for as the receive buffer of a plain socket: a tenth of a second of 40 Mbit/s video.
const RECEIVE_BUFFER: usize = 512 * 1024;
/// A port that was given back rests, so that late packets of the old session reach nobody.
const REST: Duration = Duration::from_secs(5);

struct Pool {
    address: IpAddr,
    free: Vec<u16>,
    resting: VecDeque<(Instant, u16)>,
    used: usize,
}

/// The ports of one address.
#[derive(Clone)]
pub struct Ports {
    pool: Rc<RefCell<Pool>>,
    pub range: PortRange,
}

/// A plain socket.
pub struct PortLease {
    pub socket: Socket,
    port: u16,
    pool: Rc<RefCell<Pool>>,
}

impl Ports {
    #[must_use]
    pub fn new(address: IpAddr, range: PortRange) -> Self {
        let pool = Pool {
            address,
            free: (range.first..=range.last).collect(),
            resting: VecDeque::new(),
            used: 0,
        };
        Self {
            pool: Rc::new(RefCell::new(pool)),
            range,
        }
    }

    #[must_use]
    pub fn used(&self) -> usize {
        self.pool.borrow().used
    }

    /// Open a socket at a free port; those that other processes hold are passed over.
    ///
    /// # Errors
    /// There is none, or no socket can be had.
    pub fn open(&self, now: Instant) -> Result<PortLease, Refusal> {
        let mut pool = self.pool.borrow_mut();
        while pool.resting.front().is_some_and(|(until, _)| *until <= now) {
            let port = pool.resting.pop_front().map(|(_, port)| port);
            pool.free.extend(port);
        }
        while !pool.free.is_empty() {
            // A port that can be guessed works too.
            let random = getrandom::u64().unwrap_or_default() % pool.free.len() as u64;
            let at = usize::try_from(random).unwrap_or_default();
            let port = pool.free.swap_remove(at);
            let bound = Socket::bind(Endpoint::new(pool.address, port), RECEIVE_BUFFER);
            let joining = bound.and_then(|mut socket| socket.join_runs().map(|()| socket));
            match joining {
                Ok(socket) => {
                    pool.used += 1;
                    return Ok(PortLease {
                        socket,
                        port,
                        pool: Rc::clone(&self.pool),
                    });
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
                    pool.resting.push_back((now + REST, port));
                }
                Err(error) => {
                    pool.free.push(port);
                    return Err(Refusal::Unavailable(format!("no socket at {} to be had: {error}", pool.address)));
                }
            }
        }
        let PortRange { first, last } = self.range;
        Err(Refusal::Limit(format!(
            "ports: all of {first}-{last} are taken ({} in use)",
            pool.used
        )))
    }
}

impl PortLease {
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.pool.borrow().address, self.port)
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        let mut pool = self.pool.borrow_mut();
        pool.used -= 1;
        pool.resting.push_back((Instant::now() + REST, self.port));
    }
}
