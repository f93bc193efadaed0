//! Which protocol a packet on a media port is of, by its first two bytes (RFC 7983 section 7, RFC 5761 section 4).

/// The protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    Stun,
    Zrtp,
    Dtls,
    TurnChannel,
    Rtp,
    Rtcp,
    /// None of them, or empty.
    Other,
}

/// Classify a packet; nothing behind the second byte is looked at.
#[must_use]
pub fn demux(packet: &[u8]) -> Packet {
    match packet {
        [0..=3, ..] => Packet::Stun,
        [16..=19, ..] => Packet::Zrtp,
        [20..=63, ..] => Packet::Dtls,
        [64..=79, ..] => Packet::TurnChannel,
        [128..=191, 192..=223, ..] => Packet::Rtcp,
        [128..=191, ..] => Packet::Rtp,
        _ => Packet::Other,
    }
}
