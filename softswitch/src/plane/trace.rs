//! Where a packet would go: the program's answer to a packet of a 5-tuple.

use super::Plane;
use shunt_net::{Endpoint, FiveTuple, octets};
use shunt_relay_table::{Fault, reason_name};
use shunt_xdp::test_run;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const REDIRECT: u32 = 4;
const VERDICTS: [&str; 5] = ["aborted", "drop", "pass", "tx", "redirect"];
const PAYLOAD: [u8; 12] = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const ETHERNET: usize = 14;

/// The answer; the last three are empty unless the packet is redirected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub verdict: String,
    pub reason: String,
    pub out_src: String,
    pub out_dst: String,
    pub out_interface: String,
}

impl Plane {
    /// Runs the program on a packet of this 5-tuple, without counting.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn trace(&self, key: &FiveTuple) -> Result<Trace, Fault> {
        if key.src.addr.is_ipv6() != key.dst.addr.is_ipv6() {
            return Ok(Trace {
                verdict: "invalid".into(),
                reason: "addresses of two IP versions".into(),
                ..Trace::default()
            });
        }
        let run = test_run(self.program("relay_trace")?, &sample_packet(key), None, 1)?;
        let (verdict, reason, hop) = (run.verdict & 0xff, run.verdict >> 8 & 0xff, (run.verdict >> 16) as u16);
        let mut answer = Trace {
            verdict: VERDICTS
                .get(verdict as usize)
                .map_or_else(|| verdict.to_string(), |name| (*name).to_owned()),
            reason: reason_name(reason),
            ..Trace::default()
        };
        if verdict == REDIRECT
            && let Some((src, dst)) = read_packet(&run.packet)
        {
            answer.out_src = src.to_string();
            answer.out_dst = dst.to_string();
            let ifindex = self.hops.0.describe(hop).map_or(0, |hop| hop.ifindex);
            answer.out_interface = self
                .hops
                .0
                .link(ifindex)
                .map_or_else(|| ifindex.to_string(), |link| link.name.clone());
        }
        Ok(answer)
    }
}

fn ones_sum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Makes an Ethernet frame with an RTP-like UDP packet of this 5-tuple and correct checksums.
fn sample_packet(key: &FiveTuple) -> Vec<u8> {
    let length = (8 + PAYLOAD.len()) as u16;
    let (src, dst) = (octets(key.src.addr), octets(key.dst.addr));
    let mut udp: Vec<u8> = [key.src.port, key.dst.port, length, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    udp.extend(PAYLOAD);
    let pseudo = u32::from(ones_sum(&src, 0)) + u32::from(ones_sum(&dst, 0)) + 17 + u32::from(length);
    let check = match !ones_sum(&udp, pseudo) {
        0 => 0xffff,
        check => check,
    };
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
    if key.is_v6() {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([17, 64]);
        frame.extend(src.iter());
        frame.extend(dst.iter());
    } else {
        frame.extend([0x08, 0x00]);
        let mut header = vec![0x45, 0];
        header.extend((20 + length).to_be_bytes());
        header.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        header.extend(src.iter());
        header.extend(dst.iter());
        let check = !ones_sum(&header, 0);
        header[10..12].copy_from_slice(&check.to_be_bytes());
        frame.extend(header);
    }
    frame.extend(udp);
    frame
}

/// Returns source and destination of a frame that the program has rewritten.
fn read_packet(frame: &[u8]) -> Option<(Endpoint, Endpoint)> {
    let mut at = ETHERNET;
    let mut kind = frame.get(12..14)?;
    if kind == [0x81, 0] {
        kind = frame.get(16..18)?;
        at += 4;
    }
    let v4 = |at: usize| Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?)));
    let v6 = |at: usize| Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?)));
    let port = |at: usize| Some(u16::from_be_bytes(<[u8; 2]>::try_from(frame.get(at..at + 2)?).ok()?));
    let (src, dst, udp) = if kind == [0x08, 0] {
        (v4(at + 12)?, v4(at + 16)?, at + 20)
    } else {
        (v6(at + 8)?, v6(at + 24)?, at + 40)
    };
    Some((Endpoint::new(src, port(udp)?), Endpoint::new(dst, port(udp + 2)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_packet_reads_back_and_its_checksums_verify() {
        for (src, dst) in [
            ("192.0.2.1:4000", "198.51.100.2:20000"),
            ("[2001:db8::1]:4000", "[2001:db8::2]:20000"),
        ] {
            let end = |text: &str| {
                let socket: std::net::SocketAddr = text.parse().unwrap_or_else(|error| panic!("{error}"));
                Endpoint::new(socket.ip(), socket.port())
            };
            let key = FiveTuple::new(end(src), end(dst));
            let frame = sample_packet(&key);
            assert_eq!(read_packet(&frame), Some((key.src, key.dst)));
            let udp = frame.len() - 20;
            let pseudo = u32::from(ones_sum(&octets(key.src.addr), 0)) + u32::from(ones_sum(&octets(key.dst.addr), 0)) + 17 + 20;
            assert_eq!(ones_sum(&frame[udp..], pseudo), 0xffff);
            if !key.is_v6() {
                assert_eq!(ones_sum(&frame[14..34], 0), 0xffff);
            }
        }
    }
}
