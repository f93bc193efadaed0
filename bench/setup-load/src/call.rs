//! A call of the load: its parties, and what has happened to it.

use crate::Arguments;
use std::net::{Ipv4Addr, SocketAddrV4};

/// First and last RTP port of phones.
const PORTS: (u16, u16) = (6000, 31_998);

/// A side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    Caller,
    Callee,
}

impl Party {
    pub const BOTH: [Self; 2] = [Self::Caller, Self::Callee];

    /// The SSRC of what this party sends in a call.
    pub fn ssrc(self, call: u32) -> u32 {
        call << 1 | self as u32
    }

    /// The call and the sender of an SSRC.
    pub fn of_ssrc(ssrc: u32) -> (u32, Self) {
        (ssrc >> 1, if ssrc & 1 == 0 { Self::Caller } else { Self::Callee })
    }
}

/// Phones by the number of the call.
#[derive(Clone, Debug)]
pub struct Phones {
    first: [Ipv4Addr; 2],
    addresses: [u32; 2],
}

impl Phones {
    pub fn new(arguments: &Arguments) -> Self {
        Self {
            first: [arguments.caller, arguments.callee],
            addresses: [arguments.callers.max(1), arguments.callees.max(1)],
        }
    }

    /// Where a party of a call has its RTP.
    pub fn rtp(&self, party: Party, call: u32) -> SocketAddrV4 {
        let (first, addresses) = (self.first[party as usize], self.addresses[party as usize]);
        let pairs = u32::from(PORTS.1 - PORTS.0) / 2;
        // Neighbouring calls differ in address, and then in port.
        let (address, pair) = (call % addresses, call / addresses % pairs);
        let port = PORTS.0 + 2 * u16::try_from(pair).unwrap_or_default();
        SocketAddrV4::new(Ipv4Addr::from(u32::from(first) + address), port)
    }
}

/// What has happened to a call so far.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Where the callee, and the caller, send to, by [`Party`].
    pub relay: [Option<SocketAddrV4>; 2],
    /// Streams that the data plane has forwarded, by sender; RTP, then RTCP.
    pub offloaded: [[bool; 2]; 2],
}
