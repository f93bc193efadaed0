//! The relay's sessions as rtpproxy keys them: Call-ID and the tag of the first U. Pure state.

use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtpproxy::NotifyTarget;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Index of the leg whose port the callee sends to: the port in the reply to U.
pub const TO_CALLEE: usize = 0;
/// Index of the leg whose port the caller sends to: the port in the reply to L.
pub const TO_CALLER: usize = 1;

/// One party's side of a session: the relay's port towards it, and what signalling said of it.
#[derive(Clone, Debug)]
pub struct Leg {
    /// The relay's address.
    pub address: IpAddr,
    /// RTP; RTCP is the next one. 0: none yet.
    pub port: u16,
    /// From the party's own U or L: packets go there until its real address is learned.
    pub signalled: Option<Endpoint>,
    /// Modifier A: nothing is learned.
    pub asymmetric: bool,
    /// The flag that D must clear with w.
    pub weak: bool,
}

impl Leg {
    #[must_use]
    pub fn new(address: IpAddr, weak: bool) -> Self {
        Self {
            address,
            port: 0,
            signalled: None,
            asymmetric: false,
            weak,
        }
    }
}

/// Numbers sessions in the order of their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Where the time-out notice goes: the socket, and the tag still URL-encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub target: NotifyTarget,
    pub tag: Vec<u8>,
}

/// One media line of a call.
#[derive(Clone, Debug)]
pub struct Session {
    pub id: SessionId,
    pub call_id: Arc<[u8]>,
    /// The creator's tag with its media index.
    pub tag: Vec<u8>,
    /// The other tag of the last command that had one.
    pub other_tag: Option<Vec<u8>>,
    pub legs: [Leg; 2],
    pub ttl: Duration,
    /// The time-out until the answer (L) came.
    pub setup_ttl: Duration,
    pub born: Time,
    pub touched: Time,
    /// The flag that D clears without w.
    pub strong: bool,
    /// The answer came.
    pub complete: bool,
    pub notice: Option<Notice>,
}

impl Session {
    /// How long the session may live without activity.
    #[must_use]
    pub fn limit(&self) -> Duration {
        if self.complete { self.ttl } else { self.setup_ttl }
    }

    /// A new time-out for this session, counted from now.
    pub fn set_ttl(&mut self, ttl: Duration, now: Time) {
        (self.ttl, self.setup_ttl) = (ttl, ttl);
        self.touched = now;
    }

    /// When the session times out, if nothing happens until then; `last_packet`: when media came last.
    #[must_use]
    pub fn due(&self, last_packet: Time) -> Time {
        self.touched.max(last_packet) + self.limit()
    }

    /// Whether a strong or weak flag still keeps the session.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.strong || self.legs.iter().any(|leg| leg.weak)
    }
}

/// How a tag of a command fits a session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Same,
    /// The session's tag is the given one with a media index behind it: all media of a call.
    AllMedia,
}

/// How `given` fits the tag of a session.
#[must_use]
pub fn fit(session: &[u8], given: &[u8]) -> Option<Fit> {
    let rest = session.strip_prefix(given)?;
    match rest.first() {
        None => Some(Fit::Same),
        Some(b';') => Some(Fit::AllMedia),
        Some(_) => None,
    }
}

/// The media index of a tag with its `;`; empty without one.
#[must_use]
pub fn media_of(tag: &[u8]) -> &[u8] {
    let at = tag.iter().rposition(|&byte| byte == b';').unwrap_or(tag.len());
    &tag[at..]
}
