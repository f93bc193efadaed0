//! The local address of a datagram, from which the reply is sent: SIP servers connect their sockets.

use nix::sys::socket::{ControlMessage, ControlMessageOwned};

/// Ancillary data of recvmsg(2) for a datagram at a wildcard address.
#[derive(Clone, Copy)]
pub enum PacketInfo {
    V4(nix::libc::in_pktinfo),
    V6(nix::libc::in6_pktinfo),
}

impl PacketInfo {
    /// Converts the data for a reply: routing selects the interface, except for a link-local address.
    #[must_use]
    pub fn read(message: ControlMessageOwned) -> Option<Self> {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(mut info) => {
                info.ipi_ifindex = 0;
                Some(Self::V4(info))
            }
            ControlMessageOwned::Ipv6PacketInfo(mut info) => {
                if !std::net::Ipv6Addr::from(info.ipi6_addr.s6_addr).is_unicast_link_local() {
                    info.ipi6_ifindex = 0;
                }
                Some(Self::V6(info))
            }
            _ => None,
        }
    }

    #[must_use]
    pub fn message(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}
