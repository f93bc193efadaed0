//! The topmost Via: where a request came from (RFC 3261 section 18.2.1, RFC 3581).

use super::headers::parameter_after;
use super::lines::{number, trim};
use shunt_net::Endpoint;
use std::net::IpAddr;

/// The topmost Via of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via<'a> {
    /// Host of sent-by: a name or an address, IPv6 in brackets.
    pub host: &'a [u8],
    pub port: Option<u16>,
    /// The source address that the receiving server saw.
    pub received: Option<IpAddr>,
    pub rport: Option<u16>,
}

impl<'a> Via<'a> {
    /// `None` if the value is not `SIP/2.0/TRANSPORT host[:port];…`.
    pub(crate) fn parse(value: &'a [u8]) -> Option<Self> {
        let blank = value.iter().position(|byte| byte.is_ascii_whitespace())?;
        let rest = trim(&value[blank..]);
        let end = rest.iter().position(|byte| matches!(byte, b';' | b',')).unwrap_or(rest.len());
        let (sent_by, params) = (trim(&rest[..end]), &rest[end..]);
        if sent_by.is_empty() {
            return None;
        }
        // A colon inside of brackets belongs to the address.
        let from = sent_by.iter().position(|&byte| byte == b']').unwrap_or(0);
        let colon = sent_by[from..].iter().position(|&byte| byte == b':').map(|at| from + at);
        let port = colon.and_then(|at| port(trim(&sent_by[at + 1..])));
        let host = trim(&sent_by[..colon.unwrap_or(sent_by.len())]);
        let own = params.split(|&byte| byte == b',').next().unwrap_or_default();
        let received = parameter_after(own, b"received").and_then(address);
        let rport = parameter_after(own, b"rport").and_then(self::port);
        Some(Self {
            host,
            port,
            received,
            rport,
        })
    }

    /// The message's source: `received` and `rport`, otherwise sent-by. `None` if only a name is given.
    #[must_use]
    pub fn source(&self) -> Option<Endpoint> {
        let host = self.received.or_else(|| address(self.host))?;
        Some(Endpoint::new(host, self.rport.or(self.port).unwrap_or(5060)))
    }
}

fn port(text: &[u8]) -> Option<u16> {
    number(text).and_then(|number| u16::try_from(number).ok())
}

/// An address, IPv6 with or without brackets.
pub(crate) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}
