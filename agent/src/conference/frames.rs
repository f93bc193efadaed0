//! The UDP datagram in an Ethernet frame that the data plane has copied to the agent.

use shunt_net::{Endpoint, FiveTuple};
use std::net::{Ipv4Addr, Ipv6Addr};

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Source, destination and payload; `None` for anything else, fragments and IP options included.
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

#[cfg(test)]
mod tests {
    use super::*;

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
