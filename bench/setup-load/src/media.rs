//! RTP and RTCP packets of phones, with their IP and UDP headers.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of G.711 in 20 ms.
const PAYLOAD: usize = 160;
const IP: usize = 20;
const UDP: usize = 8;
const TTL: u8 = 64;
/// What the lab lowers the TTL of the relay's own packets to (tests/lab/topology.py); the data plane's leave with the host's.
const RELAYED_TTL: u8 = 60;

/// What arrived at a phone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub ssrc: u32,
    pub rtcp: bool,
    /// It has lived through one hop since it left the other phone: a relay sends packets of its own.
    pub forwarded: bool,
}

/// An RTP packet (RFC 3550 section 5.1), G.711 u-law.
pub fn rtp(source: SocketAddrV4, destination: SocketAddrV4, ssrc: u32, number: u32) -> Vec<u8> {
    let mut body = vec![0x80, 0];
    body.extend_from_slice(&(number as u16).to_be_bytes());
    body.extend_from_slice(&(number * PAYLOAD as u32).to_be_bytes());
    body.extend_from_slice(&ssrc.to_be_bytes());
    body.resize(body.len() + PAYLOAD, 0xff);
    datagram(source, destination, &body)
}

/// A sender report without report blocks (RFC 3550 section 6.4.1).
pub fn sender_report(source: SocketAddrV4, destination: SocketAddrV4, ssrc: u32, packets: u32) -> Vec<u8> {
    let mut body = vec![0x80, 200, 0, 6];
    body.extend_from_slice(&ssrc.to_be_bytes());
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(&(packets * PAYLOAD as u32).to_be_bytes());
    body.extend_from_slice(&packets.to_be_bytes());
    body.extend_from_slice(&(packets * PAYLOAD as u32).to_be_bytes());
    datagram(source, destination, &body)
}

fn datagram(source: SocketAddrV4, destination: SocketAddrV4, body: &[u8]) -> Vec<u8> {
    let udp_length = (UDP + body.len()) as u16;
    let mut packet = Vec::with_capacity(IP + UDP + body.len());
    packet.extend_from_slice(&[0x45, 0]);
    packet.extend_from_slice(&(IP as u16 + udp_length).to_be_bytes());
    // The kernel fills in identification and checksum (raw(7)).
    packet.extend_from_slice(&[0, 0, 0x40, 0, TTL, 17, 0, 0]);
    packet.extend_from_slice(&source.ip().octets());
    packet.extend_from_slice(&destination.ip().octets());
    packet.extend_from_slice(&source.port().to_be_bytes());
    packet.extend_from_slice(&destination.port().to_be_bytes());
    packet.extend_from_slice(&udp_length.to_be_bytes());
    packet.extend_from_slice(&checksum(*source.ip(), *destination.ip(), source.port(), destination.port(), udp_length, body).to_be_bytes());
    packet.extend_from_slice(body);
    packet
}

/// The checksum of a UDP datagram (RFC 768).
fn checksum(source: Ipv4Addr, destination: Ipv4Addr, from: u16, to: u16, length: u16, body: &[u8]) -> u16 {
    let halves = |address: Ipv4Addr| (u32::from(address) >> 16) + (u32::from(address) & 0xffff);
    let mut sum = halves(source) + halves(destination) + 17 + 2 * u32::from(length) + u32::from(from) + u32::from(to);
    sum += body
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low)))
        .sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}

/// An IPv4 packet that arrived, if it is one of this load's.
pub fn arrived(packet: &[u8]) -> Option<Arrived> {
    let header = usize::from(packet.first()? & 15) * 4;
    if packet.first()? >> 4 != 4 || packet.get(9) != Some(&17) {
        return None;
    }
    let body = packet.get(header + UDP..)?;
    let rtcp = body.get(1)? & 0x7f >= 72;
    let at = if rtcp { 4 } else { 8 };
    let ssrc = u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?);
    Some(Arrived {
        ssrc,
        rtcp,
        forwarded: *packet.get(8)? > RELAYED_TTL,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (SocketAddrV4, SocketAddrV4) {
        (
            SocketAddrV4::new(Ipv4Addr::new(198, 18, 1, 2), 6000),
            SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 40_000),
        )
    }

    #[test]
    fn what_is_sent_is_recognized() {
        let (source, destination) = ends();
        let mut packet = rtp(source, destination, 77, 3);
        let found = |forwarded, rtcp| Some(Arrived { ssrc: 77, rtcp, forwarded });
        assert_eq!((packet.len(), arrived(&packet)), (IP + UDP + 12 + PAYLOAD, found(true, false)));
        packet[8] = RELAYED_TTL;
        assert_eq!(arrived(&packet), found(false, false));
        assert_eq!(arrived(&sender_report(source, destination, 77, 3)), found(true, true));
        assert_eq!((arrived(&[]), arrived(&packet[..30])), (None, None));
    }

    #[test]
    fn checksums_are_right() {
        let (source, destination) = ends();
        let packet = rtp(source, destination, 77, 3);
        // With its own checksum in it, the sum of a datagram and its pseudo-header is 0xffff (RFC 1071).
        let words = |bytes: &[u8]| {
            bytes
                .chunks(2)
                .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
                .sum::<u32>()
        };
        let mut sum = words(&packet[12..20]) + 17 + words(&packet[24..26]) + words(&packet[20..]);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!(sum, 0xffff);
    }
}
