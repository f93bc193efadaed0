//! STUN on media ports (RFC 8489) as an ICE-lite agent handles it (RFC 8445): it answers connectivity checks and sends none.
//!
//! Packets other than checks with valid credentials get no answer, because media ports are open to any host, and an answer to a spoofed
//! source would hit a victim.

use ring::hmac;
use serde::{Deserialize, Serialize};
use shunt_net::{Endpoint, octets};
use shunt_rtp::stun::{Class, Message};

const MAGIC: [u8; 4] = [0x21, 0x12, 0xA4, 0x42];
const HEADER: usize = 20;
const BINDING: u16 = 1;
const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const USE_CANDIDATE: u16 = 0x0025;
const FINGERPRINT: u16 = 0x8028;
const INTEGRITY_SIZE: usize = 20;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Credentials of the agent's side for one participant (RFC 8839 section 5.4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub ufrag: String,
    pub password: String,
}

impl Credentials {
    /// Makes credentials from random bytes: 48 and 144 bits.
    #[must_use]
    pub fn of(bytes: [u8; 32]) -> Self {
        let text: String = bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 63)])).collect();
        let (ufrag, password) = text.split_at(8);
        Self {
            ufrag: ufrag.to_owned(),
            password: password.to_owned(),
        }
    }
}

/// A valid connectivity check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub answer: Vec<u8>,
    /// The peer has nominated this pair of addresses.
    pub nominated: bool,
}

/// Validates a packet; `None` if it is not a binding request with these credentials.
#[must_use]
pub fn check(packet: &[u8], source: Endpoint, mine: &Credentials) -> Option<Check> {
    let message = Message::parse(packet).ok()?;
    if message.class != Class::Request || message.method != BINDING {
        return None;
    }
    let (mut named, mut nominated, mut at) = (false, false, HEADER);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, mine.password.as_bytes());
    for (kind, value) in message.attributes() {
        match kind {
            USERNAME => {
                let ours = value.get(..mine.ufrag.len()) == Some(mine.ufrag.as_bytes());
                named = ours && value.get(mine.ufrag.len()) == Some(&b':');
            }
            USE_CANDIDATE => nominated = true,
            MESSAGE_INTEGRITY => {
                // The signature covers the message up to this point, with a length field that includes this attribute.
                let mut signed = packet.get(..at)?.to_vec();
                set_length(&mut signed, 4 + INTEGRITY_SIZE);
                hmac::verify(&key, &signed, value).ok()?;
                return named.then(|| Check {
                    answer: answer(&message, source, &key),
                    nominated,
                });
            }
            _ => {}
        }
        at += 4 + value.len().next_multiple_of(4);
    }
    None
}

/// Returns the length of a message after `more` octets are added.
fn set_length(message: &mut [u8], more: usize) {
    let length = u16::try_from(message.len() - HEADER + more).unwrap_or(u16::MAX);
    if let Some(place) = message.get_mut(2..4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(kind.to_be_bytes());
    message.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
    message.extend(value);
}

fn answer(request: &Message, source: Endpoint, key: &hmac::Key) -> Vec<u8> {
    let mut message = vec![1, 1, 0, 0];
    message.extend(MAGIC);
    message.extend(request.transaction);
    let mask: Vec<u8> = MAGIC.into_iter().chain(request.transaction).collect();
    let addr = octets(source.addr);
    let mut mapped = vec![0, if addr.len() == 4 { 1 } else { 2 }];
    mapped.extend(source.port.to_be_bytes().iter().zip(&mask).map(|(byte, mask)| byte ^ mask));
    mapped.extend(addr.iter().zip(&mask).map(|(byte, mask)| byte ^ mask));
    attribute(&mut message, XOR_MAPPED_ADDRESS, &mapped);
    set_length(&mut message, 4 + INTEGRITY_SIZE);
    let tag = hmac::sign(key, &message);
    attribute(&mut message, MESSAGE_INTEGRITY, tag.as_ref());
    set_length(&mut message, 8);
    let fingerprint = crc32fast::hash(&message) ^ 0x5354_554e;
    attribute(&mut message, FINGERPRINT, &fingerprint.to_be_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn request(mine: &Credentials, nominated: bool) -> Vec<u8> {
        let mut message = vec![0, 1, 0, 0];
        message.extend(MAGIC);
        message.extend([7; 12]);
        attribute(&mut message, USERNAME, format!("{}:xyz", mine.ufrag).as_bytes());
        if nominated {
            attribute(&mut message, USE_CANDIDATE, &[]);
        }
        set_length(&mut message, 4 + INTEGRITY_SIZE);
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, mine.password.as_bytes());
        let tag = hmac::sign(&key, &message);
        attribute(&mut message, MESSAGE_INTEGRITY, tag.as_ref());
        message
    }

    #[test]
    fn a_check_with_our_credentials_is_answered_and_no_other() {
        let (mine, other) = (Credentials::of([7; 32]), Credentials::of([8; 32]));
        let source = Endpoint::new(Ipv4Addr::new(192, 0, 2, 1), 32853);
        for nominated in [false, true] {
            let found = check(&request(&mine, nominated), source, &mine).unwrap();
            assert_eq!(found.nominated, nominated);
            let answer = Message::parse(&found.answer).unwrap();
            assert_eq!((answer.class, answer.transaction), (Class::Success, [7; 12]));
            // RFC 5769 section 2.2: this address and port, masked.
            let mapped = answer.attributes().find(|(kind, _)| *kind == XOR_MAPPED_ADDRESS).unwrap().1;
            assert_eq!(mapped, [0, 1, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43]);
        }
        assert_eq!(check(&request(&other, true), source, &mine), None);
        let mut forged = request(&mine, true);
        let last = forged.len() - 1;
        forged[last] ^= 1;
        assert_eq!(check(&forged, source, &mine), None);
        assert_eq!(check(&forged[..12], source, &mine), None);
    }

    /// RFC 5769 section 2.1, with its user name and password.
    const SAMPLE: &str = "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74002400046e0001ff80290008932ff9b151263b36\
        000600096576746a3a68367659202020000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf";

    #[test]
    fn the_rfcs_example_is_answered_and_not_what_differs_from_it() {
        let octet = |at: usize| u8::from_str_radix(&SAMPLE[2 * at..2 * at + 2], 16).unwrap();
        let sample: Vec<u8> = (0..SAMPLE.len() / 2).map(octet).collect();
        let mine = Credentials {
            ufrag: "evtj".to_owned(),
            password: "VOkJxbRl1RmTxUk/WvJxBt".to_owned(),
        };
        let v6 = Endpoint::new(std::net::Ipv6Addr::LOCALHOST, 4000);
        let found = check(&sample, v6, &mine).unwrap();
        assert!(!found.nominated);
        let answer = Message::parse(&found.answer).unwrap();
        let mapped = answer.attributes().find(|(kind, _)| *kind == XOR_MAPPED_ADDRESS).unwrap().1;
        assert_eq!((mapped.len(), mapped[1]), (20, 2), "an IPv6 address");
        // Changing any bit that the integrity covers, which is all but the fingerprint, must fail.
        for at in 0..sample.len() - 8 {
            let mut other = sample.clone();
            other[at] ^= 1;
            assert_eq!(check(&other, v6, &mine), None, "octet {at}");
        }
        for end in 0..sample.len() {
            assert_eq!(check(&sample[..end], v6, &mine), None, "cut to {end}");
        }
    }
}
