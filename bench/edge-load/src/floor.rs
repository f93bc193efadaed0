//! What a packet costs in the kernel alone: it comes in by one socket and goes out by another, over loopback, and nothing is done with it.

use shunt_net::Endpoint;
use shunt_udp::{Address, Batch, MOST, Socket};
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(1);
const RECEIVE_BUFFER: usize = 4 << 20;

/// Processor time of this thread, nanoseconds.
fn used() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split(' ').next().and_then(|text| text.parse().ok());
    first.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Nanoseconds for each packet, sent and received, in frames of `burst`: those of one frame pass the kernel as one.
pub fn floor(size: usize, burst: usize) -> io::Result<u64> {
    let mut bound = (41_000..42_000).filter_map(|port| {
        let at = Endpoint::new(Ipv4Addr::LOCALHOST, port);
        Some((Socket::bind(at, RECEIVE_BUFFER).ok()?, Address::from(at)))
    });
    let mut next = || bound.next().ok_or(io::ErrorKind::AddrInUse);
    let (ends, packet) = ([next()?, next()?], vec![0; size]);
    let mut batch = Batch::default();
    let mut packets = 0;
    let (began, before) = (Instant::now(), used()?);
    while began.elapsed() < LONG {
        let frames = (0..MOST).map(|at| (packet.as_slice(), &ends[at / burst.max(1) % 2].1));
        ends[0].0.send_each(frames)?;
        for (socket, _) in &ends {
            loop {
                let got = socket.receive(&mut batch, MOST)?;
                packets += got as u64;
                if got < MOST {
                    break;
                }
            }
        }
    }
    Ok((used()? - before) / packets.max(1))
}
