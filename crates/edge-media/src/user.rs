//! Whom a connectivity check is for, by the name that it gives (RFC 8445 section 7.2.2).

use shunt_rtp::stun::{Class, Message};

const USERNAME: u16 = 0x0006;
const BINDING: u16 = 1;

/// The edge's part of the user name of a Binding request.
#[must_use]
pub fn local_user(packet: &[u8]) -> Option<&str> {
    let message = Message::parse(packet).ok()?;
    if message.class != Class::Request || message.method != BINDING {
        return None;
    }
    let (_, name) = message.attributes().find(|(kind, _)| *kind == USERNAME)?;
    let name = std::str::from_utf8(name).ok()?;
    name.split_once(':').map(|(local, _)| local)
}
