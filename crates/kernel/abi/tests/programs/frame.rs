//! Ethernet frames as a network would deliver them, with every field that a test changes.

use std::net::{IpAddr, SocketAddr};

pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const VLAN: u16 = 0x8100;
pub const SERVICE_VLAN: u16 = 0x88a8;
pub const ICMP: u8 = 1;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const AUTHENTICATION: u8 = 51;
pub const DESTINATION: u8 = 60;
pub const DONT_FRAGMENT: u16 = 0x4000;
pub const MORE_FRAGMENTS: u16 = 0x2000;

pub type Mac = [u8; 6];
pub const MAC_HOST: Mac = [2, 0, 0, 0, 0, 1];
pub const MAC_OWN: Mac = [2, 0, 0, 0, 0, 2];
pub const MAC_OUT: Mac = [2, 0, 0, 0, 0, 3];
pub const MAC_NEXT: Mac = [2, 0, 0, 0, 0, 4];

/// The sum of 16-bit words in ones' complement arithmetic.
pub fn ones_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

pub fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

/// Source, destination, length and protocol, as in the pseudo header of UDP and ICMPv6.
fn pseudo_header(src: IpAddr, dst: IpAddr, length: usize, protocol: u8) -> Vec<u8> {
    let mut header = [octets(src), octets(dst)].concat();
    header.extend((length as u32).to_be_bytes());
    header.extend(u32::from(protocol).to_be_bytes());
    header
}

/// The UDP checksum field.
#[derive(Clone, Copy)]
pub enum Check {
    Right,
    Zero,
    /// The right one plus an error, in ones' complement arithmetic.
    Off(u16),
    /// The sum of the pseudo header alone: what a sender leaves to the hardware.
    Pseudo,
}

/// An RTP packet of G.711: 12 bytes of header, `length` of payload.
pub fn rtp(seq: u16, length: usize) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend(seq.to_be_bytes());
    packet.extend((u32::from(seq) * 160).to_be_bytes());
    packet.extend(0xdead_beef_u32.to_be_bytes());
    packet.extend((0..length).map(|n| n as u8));
    packet
}

/// A UDP packet in a frame.
#[derive(Clone)]
pub struct Udp {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub macs: (Mac, Mac), // destination and source
    /// EtherType and tag control information of each tag, the outermost first.
    pub tags: Vec<(u16, u16)>,
    pub tos: u8,
    pub ttl: u8,
    /// The IPv4 flags and fragment offset.
    pub fragment: u16,
    pub options: Vec<u8>,
    /// IPv6 extension headers: type, and all after the type of the next one.
    pub extensions: Vec<(u8, Vec<u8>)>,
    pub check: Check,
    /// Instead of the right value: the UDP length.
    pub udp_length: Option<u16>,
    /// Instead of the right value: the IPv6 payload length.
    pub ip_length: Option<u16>,
    /// Where the IP packet ends, counted from the UDP header; what is behind is not sent.
    pub cut: Option<usize>,
    pub payload: Vec<u8>,
}

impl Udp {
    pub fn new(src: &str, dst: &str) -> Self {
        Self {
            src: src.parse().expect("an address and a port"),
            dst: dst.parse().expect("an address and a port"),
            macs: (MAC_OWN, MAC_HOST),
            tags: Vec::new(),
            tos: 0,
            ttl: 64,
            fragment: DONT_FRAGMENT,
            options: Vec::new(),
            extensions: Vec::new(),
            check: Check::Right,
            udp_length: None,
            ip_length: None,
            cut: None,
            payload: rtp(0x1234, 160),
        }
    }

    /// The same packet after a change.
    pub fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    fn datagram(&self) -> Vec<u8> {
        let length = 8 + self.payload.len();
        let pseudo = pseudo_header(self.src.ip(), self.dst.ip(), length, UDP);
        let mut datagram = [self.src.port().to_be_bytes(), self.dst.port().to_be_bytes()].concat();
        datagram.extend(self.udp_length.unwrap_or(length as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(&self.payload);
        let right = match !ones_sum(&[&pseudo, &datagram]) {
            0 => 0xffff,
            check => check,
        };
        let check = match self.check {
            Check::Right => right,
            Check::Zero => 0,
            Check::Off(error) => ones_sum(&[&right.to_be_bytes(), &error.to_be_bytes()]),
            Check::Pseudo => ones_sum(&[&pseudo]),
        };
        datagram[6..8].copy_from_slice(&check.to_be_bytes());
        datagram.truncate(self.cut.unwrap_or(datagram.len()));
        datagram
    }

    /// The IP packet.
    pub fn packet(&self) -> Vec<u8> {
        let mut upper = self.datagram();
        if self.src.is_ipv4() {
            return ipv4(
                self.src.ip(),
                self.dst.ip(),
                UDP,
                self.tos,
                self.ttl,
                self.fragment,
                &self.options,
                &upper,
            );
        }
        let mut next = UDP;
        for (kind, body) in self.extensions.iter().rev() {
            upper = [&[next], body.as_slice(), &upper].concat();
            next = *kind;
        }
        let mut packet = ipv6(self.src.ip(), self.dst.ip(), next, self.tos, self.ttl, &upper);
        if let Some(length) = self.ip_length {
            packet[4..6].copy_from_slice(&length.to_be_bytes());
        }
        packet
    }

    pub fn frame(&self) -> Vec<u8> {
        ethernet(self.macs, &self.tags, &self.packet())
    }
}

#[allow(clippy::too_many_arguments)]
pub fn ipv4(src: IpAddr, dst: IpAddr, protocol: u8, tos: u8, ttl: u8, fragment: u16, options: &[u8], upper: &[u8]) -> Vec<u8> {
    let header_length = 20 + options.len();
    let mut header = vec![0x40 | (header_length / 4) as u8, tos];
    header.extend(((header_length + upper.len()) as u16).to_be_bytes());
    header.extend(7u16.to_be_bytes());
    header.extend(fragment.to_be_bytes());
    header.extend([ttl, protocol, 0, 0]);
    header.extend(octets(src));
    header.extend(octets(dst));
    header.extend(options);
    let check = !ones_sum(&[&header]);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    [&header, upper].concat()
}

pub fn ipv6(src: IpAddr, dst: IpAddr, next: u8, class: u8, hop_limit: u8, upper: &[u8]) -> Vec<u8> {
    let mut header = (0x6000_0000 | u32::from(class) << 20).to_be_bytes().to_vec();
    header.extend((upper.len() as u16).to_be_bytes());
    header.extend([next, hop_limit]);
    header.extend(octets(src));
    header.extend(octets(dst));
    [&header, upper].concat()
}

/// macs: destination and source. The EtherType is that of the packet's IP version.
pub fn ethernet(macs: (Mac, Mac), tags: &[(u16, u16)], packet: &[u8]) -> Vec<u8> {
    let mut frame = [macs.0, macs.1].concat();
    for (kind, control) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(control.to_be_bytes());
    }
    let kind = if packet[0] >> 4 == 6 { IPV6 } else { IPV4 };
    frame.extend(kind.to_be_bytes());
    frame.extend(packet);
    frame
}

/// An IPv6 fragment header, without the type of the next header. offset: in bytes.
pub fn fragment6(offset: u16, more: bool) -> (u8, Vec<u8>) {
    let field = offset & 0xfff8 | u16::from(more);
    (FRAGMENT, [&[0], &field.to_be_bytes()[..], &[0, 0, 0, 9]].concat())
}

/// An extension header of padding with this many units of eight bytes.
pub fn padding6(kind: u8, units: u8) -> (u8, Vec<u8>) {
    let length = usize::from(units) * 8 - 4;
    let mut body = vec![units - 1, 1, length as u8];
    body.resize(3 + length, 0);
    (kind, body)
}

/// An ICMP error "fragmentation needed", or "packet too big", about a packet.
#[derive(Clone)]
pub struct TooBig {
    /// The router that sends it.
    pub src: IpAddr,
    pub dst: IpAddr,
    pub kind: u8,
    pub code: u8,
    pub mtu: u32,
    pub quoted: Vec<u8>,
    pub fragment: u16,
    pub options: Vec<u8>,
    /// Added to the right ICMP checksum.
    pub error: u16,
}

impl TooBig {
    /// About a packet that leaves with this source; quoted as far as RFC 792 demands, or RFC 4443 allows.
    pub fn about(packet: &Udp, router: &str, mtu: u32) -> Self {
        let whole = packet.packet();
        let v6 = packet.src.is_ipv6();
        let quoted = if v6 { whole.len().min(1232) } else { 28 };
        Self {
            src: router.parse().expect("an address"),
            dst: packet.src.ip(),
            kind: if v6 { 2 } else { 3 },
            code: if v6 { 0 } else { 4 },
            mtu,
            quoted: whole[..quoted].to_vec(),
            fragment: 0,
            options: Vec::new(),
            error: 0,
        }
    }

    pub fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    pub fn frame(&self) -> Vec<u8> {
        let v6 = self.dst.is_ipv6();
        let protocol = if v6 { ICMPV6 } else { ICMP };
        let mut message = vec![self.kind, self.code, 0, 0];
        message.extend(self.mtu.to_be_bytes());
        message.extend(&self.quoted);
        let pseudo = if v6 {
            pseudo_header(self.src, self.dst, message.len(), protocol)
        } else {
            Vec::new()
        };
        let check = ones_sum(&[&(!ones_sum(&[&pseudo, &message])).to_be_bytes(), &self.error.to_be_bytes()]);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let packet = if v6 {
            ipv6(self.src, self.dst, protocol, 0, 60, &message)
        } else {
            ipv4(self.src, self.dst, protocol, 0, 60, self.fragment, &self.options, &message)
        };
        ethernet((MAC_OWN, MAC_HOST), &[], &packet)
    }
}

/// The sum over an untagged frame's UDP datagram and pseudo header: 0xffff when the checksum is right.
pub fn udp_sum(frame: &[u8]) -> u16 {
    let v6 = frame[14] >> 4 == 6;
    let (addresses, at) = if v6 { (22..54, 54) } else { (26..34, 34) };
    let length = u16::from_be_bytes([frame[at + 4], frame[at + 5]]);
    let rest = [&u32::from(length).to_be_bytes()[..], &u32::from(UDP).to_be_bytes()].concat();
    ones_sum(&[&frame[addresses], &rest, &frame[at..at + usize::from(length)]])
}
