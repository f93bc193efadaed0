//! UDP datagrams in Ethernet frames: copies from the data plane to the agent, and packets to a switch's CPU port.

use crate::routes::NextHop;
use shunt_net::{Endpoint, FiveTuple, octets};
use std::net::{Ipv4Addr, Ipv6Addr};

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
/// Time to live, or hop limit.
const HOPS: u8 = 64;

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns source, destination and payload; `None` for anything else, including fragments and IP options.
#[must_use]
pub fn datagram(frame: &[u8]) -> Option<(FiveTuple, &[u8])> {
    let mut at = 12;
    while VLAN.contains(&word(frame, at)?) {
        at += 4;
    }
    let kind = word(frame, at)?;
    let packet = frame.get(at + 2..)?;
    let (src, dst, segment) = match kind {
        IPV4 if packet.first() == Some(&0x45) && packet.get(9) == Some(&UDP) && word(packet, 6)? & 0x3fff == 0 => {
            let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
            let length = usize::from(word(packet, 2)?);
            (address(12)?.into(), address(16)?.into(), packet.get(20..length.min(packet.len()))?)
        }
        IPV6 if packet.get(6) == Some(&UDP) => {
            let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
            let length = 40 + usize::from(word(packet, 4)?);
            (address(8)?.into(), address(24)?.into(), packet.get(40..length.min(packet.len()))?)
        }
        _ => return None,
    };
    let (from, to): (std::net::IpAddr, std::net::IpAddr) = (src, dst);
    let flow = FiveTuple::new(Endpoint::new(from, word(segment, 0)?), Endpoint::new(to, word(segment, 2)?));
    Some((flow, segment.get(8..)?))
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Does the same, but only for complete datagrams with valid checksums, as a socket would. Switches do not verify checksums.
#[must_use]
pub fn whole_datagram(frame: &[u8]) -> Option<(FiveTuple, &[u8])> {
    let (flow, payload) = datagram(frame)?;
    let length = u16::try_from(8 + payload.len()).ok()?;
    // The payload is a slice of the frame, after the headers.
    let from = payload.as_ptr().addr().checked_sub(frame.as_ptr().addr())?;
    let udp = frame.get(from.checked_sub(8)?..from + payload.len())?;
    if word(udp, 4)? != length {
        return None;
    }
    let (src, dst) = (octets(flow.src.addr), octets(flow.dst.addr));
    let pseudo = [length.to_be_bytes(), u16::from(UDP).to_be_bytes()].concat();
    let none = word(udp, 6)? == 0;
    let holds = if none {
        !flow.is_v6()
    } else {
        checksum(&[&src, &dst, &pseudo, udp]) == 0
    };
    let header = flow.is_v6() || checksum(&[frame.get(from.checked_sub(28)?..from - 8)?]) == 0;
    (holds && header).then_some((flow, payload))
}

/// Builds a frame with a datagram to a next hop; `None` if the payload is too long.
#[must_use]
pub fn build(flow: &FiveTuple, payload: &[u8], hop: &NextHop) -> Option<Vec<u8>> {
    let length = u16::try_from(8 + payload.len()).ok()?;
    let (src, dst) = (octets(flow.src.addr), octets(flow.dst.addr));
    let mut udp = Vec::with_capacity(usize::from(length));
    for word in [flow.src.port, flow.dst.port, length, 0] {
        udp.extend(word.to_be_bytes());
    }
    udp.extend(payload);
    // The pseudo header (RFC 768, RFC 8200 section 8.1) has the same sum in both versions.
    let pseudo = [length.to_be_bytes(), u16::from(UDP).to_be_bytes()].concat();
    let sum = match checksum(&[&src, &dst, &pseudo, &udp]) {
        0 => 0xffff,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [hop.dst_mac, hop.src_mac].concat();
    if let Some(vlan) = hop.vlan {
        frame.extend([VLAN[0].to_be_bytes(), vlan.to_be_bytes()].concat());
    }
    if flow.is_v6() {
        frame.extend(IPV6.to_be_bytes());
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([UDP, HOPS]);
    } else {
        frame.extend(IPV4.to_be_bytes());
        let total = length.checked_add(20)?.to_be_bytes();
        // Don't Fragment is set, so the identification field has no meaning (RFC 6864).
        let mut header = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, HOPS, UDP, 0, 0];
        let sum = checksum(&[&header, &src, &dst]).to_be_bytes();
        header[10..].copy_from_slice(&sum);
        frame.extend(header);
    }
    frame.extend(&*src);
    frame.extend(&*dst);
    frame.extend(udp);
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_what_is_read_of_it_and_its_checksums_hold() {
        for (src, dst) in [("10.0.0.1", "198.51.100.7"), ("2001:db8::1", "2001:db8::2")] {
            let end = |addr: &str, port| Endpoint::new(addr.parse::<std::net::IpAddr>().unwrap(), port);
            let flow = FiveTuple::new(end(src, 20_001), end(dst, 5_001));
            for (vlan, payload) in [(None, &b"even"[..]), (Some(7), b"odd length")] {
                let payload = &payload[..payload.len() - usize::from(vlan.is_some())];
                let hop = NextHop {
                    port: 1,
                    number: 1,
                    src_mac: [2, 0, 0, 0, 0, 1],
                    dst_mac: [2, 0, 0, 0, 0, 2],
                    vlan,
                };
                let frame = build(&flow, payload, &hop).unwrap();
                assert_eq!(datagram(&frame), Some((flow, payload)));
                assert_eq!(whole_datagram(&frame), Some((flow, payload)));
                assert_eq!(whole_datagram(&[&frame[..], &[0; 9]].concat()), Some((flow, payload)), "padding");
                for at in 14..frame.len() {
                    // No checksum covers the hop limit and the flow label.
                    let mut damaged = frame.clone();
                    damaged[at] ^= 0x10;
                    let same = whole_datagram(&damaged).is_some_and(|found| found == (flow, payload));
                    let free = flow.is_v6() && at < if vlan.is_some() { 18 + 8 } else { 14 + 8 } || vlan.is_some() && at < 16;
                    assert!(free || !same, "byte {at} of {frame:02x?}");
                }
                assert_eq!(whole_datagram(&frame[..frame.len() - 1]), None, "cut off");
                assert_eq!((&frame[..6], &frame[6..12]), (&hop.dst_mac[..], &hop.src_mac[..]));
                let packet = &frame[if vlan.is_some() { 18 } else { 14 }..];
                let (addresses, segment) = if flow.is_v6() {
                    (&packet[8..40], &packet[40..])
                } else {
                    assert_eq!(checksum(&[&packet[..20]]), 0);
                    (&packet[12..20], &packet[20..])
                };
                let pseudo = [&segment[4..6], &[0, UDP]].concat();
                assert_eq!(checksum(&[addresses, &pseudo, segment]), 0);
            }
        }
        let flow = FiveTuple::new(Endpoint::new(Ipv4Addr::LOCALHOST, 1), Endpoint::new(Ipv4Addr::LOCALHOST, 2));
        let hop = NextHop {
            port: 0,
            number: 0,
            src_mac: [0; 6],
            dst_mac: [0; 6],
            vlan: None,
        };
        assert_eq!(build(&flow, &[0; 65_508], &hop), None);
    }

    #[test]
    fn a_datagram_is_found_behind_vlan_tags_and_padding_is_cut() {
        let mut packet = vec![0x45, 0, 0, 30, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0x1f, 0x40, 0x4e, 0x20, 0, 10, 0, 0, 0x80, 0x60]);
        packet.extend([0; 16]);
        for tags in [vec![], vec![0x81, 0, 0, 5]] {
            let frame: Vec<u8> = [vec![0; 12], tags, vec![8, 0], packet.clone()].concat();
            let (flow, payload) = datagram(&frame).unwrap();
            assert_eq!(flow.to_string(), "10.0.0.1:8000 -> 10.0.0.2:20000");
            assert_eq!(payload, [0x80, 0x60]);
        }
        packet[6] = 0x20;
        assert_eq!(datagram(&[vec![0; 12], vec![8, 0], packet].concat()), None);
        assert_eq!(datagram(&[0; 13]), None);
    }
}
