//! What a packet costs in the kernel alone: it comes in by a socket of its own medium and goes out by one for all, at the pace and in the
//! frames of the bench, and nothing is done with it.

use crate::sender::{Load, Sender};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use shunt_net::Endpoint;
use shunt_udp::{Address, Batch, MOST, Socket};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(3);
const RECEIVE_BUFFER: usize = 4 << 20;
/// The browsers' threads look for packets so often when there was none.
const PAUSE: Duration = Duration::from_micros(100);

/// Processor time of this thread, nanoseconds.
fn used() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split(' ').next().and_then(|text| text.parse().ok());
    first.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sockets at free ports, and where they are.
fn bind(count: usize) -> io::Result<Vec<(Socket, SocketAddr)>> {
    let bound = (30_000..42_000).filter_map(|port| {
        let at = Endpoint::new(Ipv4Addr::LOCALHOST, port);
        Some((
            Socket::bind(at, RECEIVE_BUFFER).ok()?,
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        ))
    });
    let bound: Vec<_> = bound.take(count).collect();
    if bound.len() == count {
        Ok(bound)
    } else {
        Err(io::ErrorKind::AddrInUse.into())
    }
}

/// Nanoseconds for each packet, received and sent, with so many media for each of so many browsers. `load`: what comes to each medium.
pub fn floor(browsers: usize, streams: usize, mut load: Load, start: Instant) -> io::Result<u64> {
    let (browsers, streams) = (browsers.max(1), streams.max(1));
    let mut media = bind(browsers * streams)?;
    for (socket, _) in &mut media {
        socket.join_runs()?;
    }
    let ends = bind(browsers)?;
    let to: Vec<Address> = ends
        .iter()
        .map(|(_, at)| Address::from(Endpoint::new(at.ip(), at.port())))
        .collect();
    let out = bind(1)?.remove(0).0;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (at, (socket, _)) in media.iter().enumerate() {
        epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, at as u64))?;
    }
    load.set_targets(media.iter().map(|(_, at)| *at).collect());
    let (over, sender) = (AtomicBool::new(false), Sender::start(load, start)?);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = Batch::default();
            while !over.load(Ordering::Relaxed) {
                let got: usize = ends.iter().map(|(socket, _)| socket.receive(&mut batch, MOST).unwrap_or(0)).sum();
                if got == 0 {
                    std::thread::sleep(PAUSE);
                }
            }
        });
        let found = relay(&epoll, &media, &out, &to, streams);
        sender.stop();
        over.store(true, Ordering::Relaxed);
        found
    })
}

fn relay(epoll: &Epoll, media: &[(Socket, SocketAddr)], out: &Socket, to: &[Address], streams: usize) -> io::Result<u64> {
    let mut events = [EpollEvent::empty(); 256];
    let mut batches = Vec::new();
    let (mut packets, began, before) = (0, Instant::now(), used()?);
    while began.elapsed() < LONG {
        let count = epoll.wait(&mut events, EpollTimeout::from(100u16))?;
        batches.resize_with(batches.len().max(count), Batch::default);
        let mut got = Vec::with_capacity(count);
        for (event, batch) in events[..count].iter().zip(&mut batches) {
            // It was made of such a number.
            #[allow(clippy::cast_possible_truncation)]
            let at = event.data() as usize;
            got.push((at / streams, media[at].0.receive(batch, MOST)?));
        }
        let came = got.iter().zip(&batches);
        let runs = came.flat_map(|((browser, count), batch)| (0..*count).flat_map(|n| batch.run(n)).map(|packet| (packet, &to[*browser])));
        let mut runs = runs.peekable();
        while runs.peek().is_some() {
            packets += out.send_each(runs.by_ref().take(MOST))? as u64;
        }
    }
    Ok((used()? - before) / packets.max(1))
}
