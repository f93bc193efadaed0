//! What goes to browsers, kept until a round is over and sent together.

use crate::model::Drops;
use shunt_net::Endpoint;
use shunt_udp::{Address, MOST, Socket};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use str0m::net::Protocol;

/// Packets that are kept at most.
const KEPT: usize = 256;

/// The way to a browser.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub peer: SocketAddr,
    pub tcp: bool,
    /// Which of the browsers' sockets.
    socket: usize,
    to: Address,
}

/// Packets of one socket, one after the other.
#[derive(Default)]
struct Kept {
    octets: Vec<u8>,
    packets: Vec<(Range<usize>, Address)>,
}

/// Packets to browsers by UDP, for each socket, and by TCP.
pub struct Outgoing {
    /// What browsers are told of each socket.
    candidates: Vec<SocketAddr>,
    udp: Vec<Kept>,
    pub tcp: Vec<(SocketAddr, Vec<u8>)>,
    pub sent: u64,
}

impl Outgoing {
    #[must_use]
    pub fn new(candidates: Vec<SocketAddr>) -> Self {
        Self {
            udp: candidates.iter().map(|_| Kept::default()).collect(),
            candidates,
            tcp: Vec::new(),
            sent: 0,
        }
    }

    /// The way from one of the browsers' addresses to a browser.
    #[must_use]
    pub fn path(&self, from: SocketAddr, peer: SocketAddr, protocol: Protocol) -> Path {
        let at = self.candidates.iter().position(|candidate| *candidate == from);
        Path {
            peer,
            tcp: protocol != Protocol::Udp,
            socket: at.unwrap_or_default(),
            to: Address::from(Endpoint::new(peer.ip(), peer.port())),
        }
    }

    pub fn push(&mut self, path: &Path, packet: &[u8]) {
        self.write(path, |buffer| {
            buffer.extend_from_slice(packet);
            Some(())
        });
    }

    /// Append a packet, which `fill` writes at the end of a buffer; its length, or `None` if it writes none.
    pub fn write(&mut self, path: &Path, fill: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Option<usize> {
        let length = if path.tcp {
            let mut packet = Vec::new();
            fill(&mut packet)?;
            let length = packet.len();
            self.tcp.push((path.peer, packet));
            length
        } else {
            let kept = self.udp.get_mut(path.socket)?;
            let start = kept.octets.len();
            if fill(&mut kept.octets).is_none() {
                kept.octets.truncate(start);
                return None;
            }
            let end = kept.octets.len();
            kept.packets.push((start..end, path.to));
            end - start
        };
        self.sent += 1;
        Some(length)
    }

    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tcp.len() >= KEPT || self.udp.iter().any(|kept| kept.packets.len() >= KEPT)
    }

    /// Send all that goes by UDP.
    pub fn flush(&mut self, sockets: &[Socket], drops: &mut Drops) {
        for (kept, socket) in self.udp.iter_mut().zip(sockets) {
            let mut rest = kept.packets.as_slice();
            while !rest.is_empty() {
                let batch = &rest[..rest.len().min(MOST)];
                let packets = batch.iter().map(|(range, to)| (&kept.octets[range.clone()], to));
                let taken = match socket.send_each(packets) {
                    Ok(taken) => taken.max(1),
                    // One that cannot be sent to must not keep the others; alone, it passes where an interface takes no segments.
                    Err(error) => {
                        let (range, to) = &batch[0];
                        if error.kind() == io::ErrorKind::WouldBlock || socket.send_one(&kept.octets[range.clone()], to).is_err() {
                            drops.send_failed += 1;
                            tracing::debug!("a packet to {to:?} is not taken: {error}");
                        }
                        1
                    }
                };
                rest = &rest[taken.min(rest.len())..];
            }
            kept.octets.clear();
            kept.packets.clear();
        }
    }
}
