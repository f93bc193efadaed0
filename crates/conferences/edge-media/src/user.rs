//! What a connectivity check says: whom it is for, by the name that it gives (RFC 8445 section 7.2.2), and whether it nominates.

use shunt_rtp::stun::{Class, Message};

const USERNAME: u16 = 0x0006;
const USE_CANDIDATE: u16 = 0x0025;
const BINDING: u16 = 1;

fn request(packet: &[u8]) -> Option<Message<'_>> {
    let message = Message::parse(packet).ok()?;
    (message.class == Class::Request && message.method == BINDING).then_some(message)
}

/// The transaction of a Binding request.
#[must_use]
pub fn binding(packet: &[u8]) -> Option<[u8; 12]> {
    request(packet).map(|message| message.transaction)
}

/// Whether a packet is a Binding request that nominates the pair that it came by (RFC 8445 section 7.1.2).
#[must_use]
pub fn nominates(packet: &[u8]) -> bool {
    request(packet).is_some_and(|message| message.attributes().any(|(kind, _)| kind == USE_CANDIDATE))
}

/// The edge's part of the user name of a Binding request.
#[must_use]
pub fn local_user(packet: &[u8]) -> Option<&str> {
    let message = request(packet)?;
    let (_, name) = message.attributes().find(|(kind, _)| *kind == USERNAME)?;
    let name = std::str::from_utf8(name).ok()?;
    name.split_once(':').map(|(local, _)| local)
}
