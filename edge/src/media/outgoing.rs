//! What goes to browsers, kept until a round is over and sent together.

use crate::model::Drops;
use shunt_net::Endpoint;
use shunt_udp::{Address, MOST, Socket};
use std::io;
use std::net::SocketAddr;
use str0m::net::{DatagramSend, Protocol, Transmit};

/// Packets that are kept at most.
const KEPT: usize = 256;

/// Packets to browsers by UDP, for each socket, and by TCP.
pub struct Outgoing {
    /// What browsers are told of each socket.
    candidates: Vec<SocketAddr>,
    udp: Vec<Vec<(DatagramSend, Address)>>,
    pub tcp: Vec<(SocketAddr, DatagramSend)>,
    pub sent: u64,
}

impl Outgoing {
    #[must_use]
    pub fn new(candidates: Vec<SocketAddr>) -> Self {
        Self {
            udp: candidates.iter().map(|_| Vec::with_capacity(KEPT)).collect(),
            candidates,
            tcp: Vec::new(),
            sent: 0,
        }
    }

    pub fn push(&mut self, transmit: Transmit) {
        self.sent += 1;
        if transmit.proto != Protocol::Udp {
            self.tcp.push((transmit.destination, transmit.contents));
            return;
        }
        let at = self.candidates.iter().position(|candidate| *candidate == transmit.source);
        if let Some(packets) = self.udp.get_mut(at.unwrap_or_default()) {
            let to = Endpoint::new(transmit.destination.ip(), transmit.destination.port());
            packets.push((transmit.contents, Address::from(to)));
        }
    }

    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tcp.len() >= KEPT || self.udp.iter().any(|packets| packets.len() >= KEPT)
    }

    /// Send all that goes by UDP.
    pub fn flush(&mut self, sockets: &[Socket], drops: &mut Drops) {
        for (packets, socket) in self.udp.iter_mut().zip(sockets) {
            let mut rest = packets.as_slice();
            while !rest.is_empty() {
                let batch = &rest[..rest.len().min(MOST)];
                let taken = match socket.send_each(batch.iter().map(|(packet, to)| (&packet[..], to))) {
                    Ok(taken) => taken.max(1),
                    // One that cannot be sent to must not keep the others; alone, it passes where an interface takes no segments.
                    Err(error) => {
                        let (packet, to) = &batch[0];
                        if error.kind() == io::ErrorKind::WouldBlock || socket.send_one(packet, to).is_err() {
                            drops.send_failed += 1;
                            tracing::debug!("a packet to {to:?} is not taken: {error}");
                        }
                        1
                    }
                };
                rest = &rest[taken.min(rest.len())..];
            }
            packets.clear();
        }
    }
}
