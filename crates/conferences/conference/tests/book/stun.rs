//! Connectivity checks of a participant (RFC 8445 section 7.2).

use ring::hmac;
use shunt_conference::ice::Credentials;

const HEADER: usize = 20;

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(kind.to_be_bytes());
    message.extend((value.len() as u16).to_be_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Returns a binding request with a nomination, signed with these credentials.
pub fn check(credentials: &Credentials) -> Vec<u8> {
    let mut message = vec![0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42];
    message.extend([7; 12]);
    attribute(&mut message, 0x0006, format!("{}:them", credentials.ufrag).as_bytes());
    attribute(&mut message, 0x0025, &[]);
    let length = message.len() - HEADER + 24;
    message[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, credentials.password.as_bytes());
    let tag = hmac::sign(&key, &message);
    attribute(&mut message, 0x0008, tag.as_ref());
    message
}
