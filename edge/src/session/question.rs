//! A connectivity check of the edge's own, to an address that the browser may have now. A NAT that rebinds gives a browser another address, and the
//! browser's own next check may take seconds. The answer has the session's key, as a triggered check's has (RFC 8445 section 7.3.1.4).

use std::net::SocketAddr;
use std::sync::Arc;
use str0m::config::CryptoProvider;
use str0m::ice::{StunMessage, TransId};
use str0m::net::Protocol;

/// Of a peer-reflexive candidate (RFC 8445 section 5.1.2.1).
const PRIORITY: u32 = (110 << 24) | (65_535 << 8) | 255;
/// No check is longer: both user names have at most 256 octets.
const LONGEST: usize = 1024;

/// A pair of addresses: the browser's, the edge's.
pub type Pair = (SocketAddr, SocketAddr, Protocol);

fn hmac(crypto: &Arc<CryptoProvider>) -> impl Fn(&[u8], &[&[u8]]) -> [u8; 20] + '_ {
    |key, parts| crypto.sha1_hmac_provider.sha1_hmac(key, parts)
}

fn value<'a>(description: &'a str, name: &str) -> Option<&'a str> {
    description.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns a new check. `offer` has the browser's credentials, `user` is the edge's name.
pub fn check(crypto: &Arc<CryptoProvider>, offer: &str, user: &str) -> Option<Vec<u8>> {
    let name = format!("{}:{user}", value(offer, "a=ice-ufrag:")?);
    let password = value(offer, "a=ice-pwd:")?;
    let message = StunMessage::binding_request(&name, TransId::new(), false, 0, PRIORITY, false);
    let mut octets = vec![0; LONGEST];
    let length = message.to_bytes(Some(password.as_bytes()), &mut octets, hmac(crypto)).ok()?;
    octets.truncate(length);
    Some(octets)
}

/// Returns whether a packet is the success of a check, with the key of the browser that made `offer`.
pub fn is_success(crypto: &Arc<CryptoProvider>, offer: &str, packet: &[u8]) -> bool {
    let message = StunMessage::parse(packet).ok();
    message
        .zip(value(offer, "a=ice-pwd:"))
        .is_some_and(|(message, password)| message.is_successful_binding_response() && message.verify(password.as_bytes(), hmac(crypto)))
}
