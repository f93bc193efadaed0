//! A packet: "HEP3", its total length (16 bits), and chunks.

use crate::chunk::{Chunks, HEADER, kind, put};
use crate::error::HepError;
use shunt_net::Endpoint;
use std::borrow::Cow;
use std::io::Read as _;
use std::net::{IpAddr, Ipv6Addr};

const MAGIC: &[u8; 4] = b"HEP3";
const MOST_INFLATED: u64 = 1 << 16;
/// Values of the family chunk: AF_INET and AF_INET6 of Linux.
const FAMILIES: [u8; 2] = [2, 10];

/// What the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// 1.
    Sip,
    /// 5: a report as JSON.
    Rtcp,
    Other(u8),
}

impl From<u8> for PayloadKind {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Sip,
            5 => Self::Rtcp,
            other => Self::Other(other),
        }
    }
}

impl From<PayloadKind> for u8 {
    fn from(kind: PayloadKind) -> Self {
        match kind {
            PayloadKind::Sip => 1,
            PayloadKind::Rtcp => 5,
            PayloadKind::Other(number) => number,
        }
    }
}

/// One captured message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// `None` if the packet does not have it.
    pub source: Option<Endpoint>,
    pub destination: Option<Endpoint>,
    pub kind: PayloadKind,
    /// Number of the IP protocol: 17 UDP, 6 TCP.
    pub protocol: u8,
    /// Unix time of the capture.
    pub seconds: u32,
    pub microseconds: u32,
    pub capture_id: u32,
    pub correlation_id: &'a [u8],
    pub payload: Cow<'a, [u8]>,
}

/// The first whole packet in a TCP stream's buffer and its number of bytes there; `None` if it is incomplete.
///
/// # Errors
/// No packet starts there. The length is lost too, so the start of the next packet is unknown and the connection is useless.
pub fn next_frame(buffer: &[u8]) -> Result<Option<(&[u8], usize)>, HepError> {
    check_start(buffer)?;
    if buffer.len() < HEADER {
        return Ok(None);
    }
    let length = announced(buffer)?;
    Ok(buffer.get(..length).map(|frame| (frame, length)))
}

/// As much of the magic as the buffer has.
fn check_start(data: &[u8]) -> Result<(), HepError> {
    let begun = data.len().min(MAGIC.len());
    match data {
        _ if data[..begun] == MAGIC[..begun] => Ok(()),
        [version @ (1 | 2), ..] => Err(HepError::Version(*version)),
        _ => Err(HepError::Magic),
    }
}

/// The total length in the first bytes.
fn announced(data: &[u8]) -> Result<usize, HepError> {
    check_start(data)?;
    let Some(&[high, low]) = data.get(MAGIC.len()..HEADER) else {
        return Err(HepError::Short(data.len()));
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length < HEADER {
        Err(HepError::Length(length))
    } else {
        Ok(length)
    }
}

impl<'a> Packet<'a> {
    /// Reads one packet and ignores bytes after its announced end.
    ///
    /// # Errors
    /// The bytes are not a HEPv3 packet with a payload.
    pub fn decode(data: &'a [u8]) -> Result<Self, HepError> {
        let length = announced(data)?;
        let whole = data.get(..length).ok_or(HepError::Cut {
            announced: length,
            held: data.len(),
        })?;
        let chunks = Chunks::read(whole)?;
        let payload = match (chunks.get(kind::PAYLOAD), chunks.get(kind::COMPRESSED)) {
            (Some(payload), _) => Cow::Borrowed(payload),
            (None, Some(compressed)) => Cow::Owned(inflate(compressed)?),
            (None, None) => return Err(HepError::NoPayload),
        };
        // These chunks hold one byte.
        let byte = |chunk| chunks.get(chunk).and_then(<[u8]>::first).copied().unwrap_or_default();
        Ok(Self {
            source: endpoint(&chunks, kind::SOURCE_4, kind::SOURCE_6, kind::SOURCE_PORT),
            destination: endpoint(&chunks, kind::DESTINATION_4, kind::DESTINATION_6, kind::DESTINATION_PORT),
            kind: byte(kind::PAYLOAD_KIND).into(),
            protocol: byte(kind::PROTOCOL),
            seconds: chunks.number(kind::SECONDS),
            microseconds: chunks.number(kind::MICROSECONDS),
            capture_id: chunks.number(kind::CAPTURE_ID),
            correlation_id: chunks.get(kind::CORRELATION).unwrap_or_default(),
            payload,
        })
    }

    /// The packet's bytes, with an unchanged payload.
    ///
    /// # Errors
    /// More than 65,535 bytes, or addresses of two IP versions.
    pub fn encode(&self) -> Result<Vec<u8>, HepError> {
        let addresses = [self.source, self.destination];
        let is_v6 = |endpoint: &Endpoint| endpoint.addr.is_ipv6();
        let v6 = addresses.iter().flatten().any(is_v6);
        if addresses.iter().flatten().any(|endpoint| is_v6(endpoint) != v6) {
            return Err(HepError::Families);
        }
        let mut out = Vec::with_capacity(128 + self.payload.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0, 0]);
        put(&mut out, kind::FAMILY, &[FAMILIES[usize::from(v6)]]);
        put(&mut out, kind::PROTOCOL, &[self.protocol]);
        put_endpoint(&mut out, self.source, [kind::SOURCE_4, kind::SOURCE_6, kind::SOURCE_PORT]);
        put_endpoint(
            &mut out,
            self.destination,
            [kind::DESTINATION_4, kind::DESTINATION_6, kind::DESTINATION_PORT],
        );
        put(&mut out, kind::SECONDS, &self.seconds.to_be_bytes());
        put(&mut out, kind::MICROSECONDS, &self.microseconds.to_be_bytes());
        put(&mut out, kind::PAYLOAD_KIND, &[self.kind.into()]);
        put(&mut out, kind::CAPTURE_ID, &self.capture_id.to_be_bytes());
        if !self.correlation_id.is_empty() {
            put(&mut out, kind::CORRELATION, self.correlation_id);
        }
        put(&mut out, kind::PAYLOAD, &self.payload);
        let length = u16::try_from(out.len()).map_err(|_| HepError::Large(out.len()))?;
        out[4..6].copy_from_slice(&length.to_be_bytes());
        Ok(out)
    }
}

/// The addresses decide, not the family chunk, because AF_ numbers differ between senders.
fn endpoint(chunks: &Chunks, v4: u16, v6: u16, port: u16) -> Option<Endpoint> {
    let four = chunks.get(v4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(IpAddr::from);
    let six = || {
        chunks
            .get(v6)
            .and_then(|bytes| <[u8; 16]>::try_from(bytes).ok())
            .map(|bytes| Ipv6Addr::from(bytes).to_canonical())
    };
    let address = four.or_else(six)?;
    // The chunk holds two bytes.
    let port = u16::try_from(chunks.number(port)).unwrap_or_default();
    Some(Endpoint::new(address, port))
}

fn put_endpoint(out: &mut Vec<u8>, endpoint: Option<Endpoint>, [v4, v6, port]: [u16; 3]) {
    let Some(endpoint) = endpoint else { return };
    match endpoint.addr {
        IpAddr::V4(address) => put(out, v4, &address.octets()),
        IpAddr::V6(address) => put(out, v6, &address.octets()),
    }
    put(out, port, &endpoint.port.to_be_bytes());
}

/// A payload in gzip's or zlib's format.
fn inflate(compressed: &[u8]) -> Result<Vec<u8>, HepError> {
    let mut payload = Vec::new();
    let limit = MOST_INFLATED + 1;
    let read = if compressed.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(compressed).take(limit).read_to_end(&mut payload)
    } else {
        flate2::read::ZlibDecoder::new(compressed).take(limit).read_to_end(&mut payload)
    };
    let size = read.map_err(|_| HepError::Deflate)?;
    if size as u64 > MOST_INFLATED {
        Err(HepError::Inflated)
    } else {
        Ok(payload)
    }
}
