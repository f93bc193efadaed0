//! A connectivity check of the edge's own, to an address that has shown no key. A NAT that rebinds gives a browser another address, and the browser's
//! own next check may take seconds. The answer has the session's key, as a triggered check's has (RFC 8445 section 7.3.1.4).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use str0m::config::CryptoProvider;
use str0m::ice::{StunMessage, TransId};
use str0m::net::Protocol;

/// One is sent so often at most, and answered within so long.
const AGAIN: Duration = Duration::from_millis(100);
const LASTS: Duration = Duration::from_secs(3);
/// Of a peer-reflexive candidate (RFC 8445 section 5.1.2.1).
const PRIORITY: u32 = (110 << 24) | (65_535 << 8) | 255;
/// No check is longer: both user names have at most 256 octets.
const LONGEST: usize = 1024;

/// A pair of addresses: the browser's, the edge's.
pub type Pair = (SocketAddr, SocketAddr, Protocol);

/// The last check that was sent.
pub struct Question {
    transaction: TransId,
    pair: Pair,
    at: Instant,
    password: String,
}

fn hmac(crypto: &Arc<CryptoProvider>) -> impl Fn(&[u8], &[&[u8]]) -> [u8; 20] + '_ {
    |key, parts| crypto.sha1_hmac_provider.sha1_hmac(key, parts)
}

fn value<'a>(description: &'a str, name: &str) -> Option<&'a str> {
    description.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

impl Question {
    /// Returns a check for `pair`, and its octets. `offer` has the browser's credentials, `user` is the edge's name. `None`: one is under way.
    pub fn ask(
        before: Option<&Self>,
        crypto: &Arc<CryptoProvider>,
        offer: &str,
        user: &str,
        pair: Pair,
        now: Instant,
    ) -> Option<(Self, Vec<u8>)> {
        if before.is_some_and(|before| now.duration_since(before.at) < AGAIN) {
            return None;
        }
        let name = format!("{}:{user}", value(offer, "a=ice-ufrag:")?);
        let password = value(offer, "a=ice-pwd:")?.to_owned();
        let transaction = TransId::new();
        let message = StunMessage::binding_request(&name, transaction, false, 0, PRIORITY, false);
        let mut octets = vec![0; LONGEST];
        let length = message.to_bytes(Some(password.as_bytes()), &mut octets, hmac(crypto)).ok()?;
        octets.truncate(length);
        let question = Self {
            transaction,
            pair,
            at: now,
            password,
        };
        Some((question, octets))
    }

    /// Whether a packet that came by `pair` is the answer, with the browser's key.
    pub fn is_answered_by(&self, crypto: &Arc<CryptoProvider>, packet: &[u8], pair: Pair, now: Instant) -> bool {
        let Ok(message) = StunMessage::parse(packet) else {
            return false;
        };
        message.is_successful_binding_response()
            && message.trans_id() == self.transaction
            && pair == self.pair
            && now.duration_since(self.at) < LASTS
            && message.verify(self.password.as_bytes(), hmac(crypto))
    }
}
