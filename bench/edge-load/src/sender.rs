//! Plain RTP to many targets at a steady rate.

use serde::Deserialize;
use shunt_net::Endpoint;
use shunt_udp::{Address, MOST, Socket};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where to, how much, how often.
#[derive(Clone, Deserialize)]
pub struct Load {
    /// The local address; port 0 is any.
    from: SocketAddr,
    #[serde(default)]
    to: Vec<SocketAddr>,
    payload_type: u8,
    /// Octets of payload.
    size: usize,
    /// Packets a second to each target.
    rate: f64,
    /// Packets of a frame: they leave one after the other.
    burst: u64,
    /// Timestamp units of a frame.
    step: u32,
    /// What the payload begins with.
    head: Vec<u8>,
}

impl Load {
    pub fn set_targets(&mut self, to: Vec<SocketAddr>) {
        self.to = to;
    }
}

pub struct Sender {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Where the time of sending is in a payload: after what the codec wants to see.
pub const TIME_AT: usize = 8;

impl Sender {
    pub fn start(load: Load, start: Instant) -> io::Result<Self> {
        let ports = if load.from.port() == 0 {
            41_000..42_000
        } else {
            load.from.port()..load.from.port() + 1
        };
        let bound = ports.map(|port| (port, Socket::bind(Endpoint::new(load.from.ip(), port), 100_000)));
        let (port, socket) = bound
            .into_iter()
            .find_map(|(port, socket)| Some((port, socket.ok()?)))
            .ok_or(io::ErrorKind::AddrInUse)?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let address = SocketAddr::new(load.from.ip(), port);
        let thread = std::thread::spawn(move || send(&load, &socket, start, &stopped, &count));
        Ok(Self {
            address,
            stop,
            sent,
            thread: Some(thread),
        })
    }

    pub fn stop(mut self) -> u64 {
        self.end();
        self.sent.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.end();
    }
}

/// Every millisecond what is due; targets are spread over the time between two packets of one.
fn send(load: &Load, socket: &Socket, start: Instant, stop: &AtomicBool, sent: &AtomicU64) {
    let to: Vec<Address> = load.to.iter().map(|to| Address::from(Endpoint::new(to.ip(), to.port()))).collect();
    let mut packets: Vec<Vec<u8>> = (0..MOST).map(|_| vec![0; 12 + load.size.max(TIME_AT + 8)]).collect();
    let burst = load.burst.max(1);
    let began = Instant::now();
    let mut next: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        // Rates of a bench fit.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let due = (began.elapsed().as_secs_f64() * load.rate * to.len() as f64) as u64;
        while next < due {
            // Whole frames.
            let wanted = (due - next).next_multiple_of(burst).min(MOST as u64 / burst * burst).max(1);
            let count = usize::try_from(wanted).unwrap_or(MOST).min(MOST);
            let mut batch = Vec::with_capacity(count);
            for (at, packet) in packets.iter_mut().enumerate().take(count) {
                let number = next + at as u64;
                // Less than the number of targets.
                #[allow(clippy::cast_possible_truncation)]
                let target = (number / burst % to.len() as u64) as usize;
                let frame = number / burst / to.len() as u64;
                // Numbers and timestamps wrap.
                #[allow(clippy::cast_possible_truncation)]
                let (sequence, timestamp) = ((frame * burst + number % burst) as u16, (frame as u32).wrapping_mul(load.step));
                let last = number % burst == burst - 1;
                packet[0] = 0x80;
                packet[1] = u8::from(last) << 7 | load.payload_type;
                packet[2..4].copy_from_slice(&sequence.to_be_bytes());
                packet[4..8].copy_from_slice(&timestamp.to_be_bytes());
                #[allow(clippy::cast_possible_truncation)]
                packet[8..12].copy_from_slice(&(0x5000 + target as u32).to_be_bytes());
                packet[12..12 + load.head.len()].copy_from_slice(&load.head);
                // Until 584 years after the start.
                #[allow(clippy::cast_possible_truncation)]
                let time = start.elapsed().as_nanos() as u64;
                packet[12 + TIME_AT..12 + TIME_AT + 8].copy_from_slice(&time.to_be_bytes());
                batch.push(target);
            }
            let borrowed = packets.iter().map(Vec::as_slice).zip(batch.iter().map(|target| &to[*target]));
            let taken = socket.send_each(borrowed).unwrap_or(0);
            sent.fetch_add(taken as u64, Ordering::Relaxed);
            next += count as u64;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
