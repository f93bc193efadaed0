//! What the plane is told once.

use shunt_bfrt_client::Target;
use shunt_calls::MediaRange;
use shunt_standby::Fence;
use std::time::Duration;

/// How a target stores 5-tuples, if it does not say so itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredHash {
    /// What a target's own context.json says; one that says nothing and is no softswitch may be any build.
    #[default]
    Auto,
    /// As they are.
    None,
    /// CRC-32.
    Hash32,
    /// The low 48 bits of the CRC that the compiler makes of relay.p4's polynomial.
    Hash48,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: Target,
    pub stored_hash: StoredHash,
    /// Where relays get media: there the data plane raises learn notices. Entries at other addresses are somebody else's.
    pub media: Vec<MediaRange>,
    /// Those of the media ranges whose relay verifies sources itself: unknown sources reach it at once.
    pub verified: Vec<MediaRange>,
    /// The TOS byte with which relays send from these ranges; its DSCP is written into packets that leave from there. Elsewhere it stays as it is.
    pub marks: Vec<(MediaRange, u8)>,
    /// An entry that meets no packet for this time is reported idle; 1 s to 1 h.
    pub entry_idle: Duration,
    /// How long a scanner is blocked.
    pub block_for: Duration,
    /// The pause between two audits, at least; a large table is read less often.
    pub audit_every: Duration,
    /// Closed while another agent may be in charge of the data plane: then nobody connects, and nothing is written.
    pub fence: Fence,
}

impl Settings {
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            stored_hash: StoredHash::Auto,
            media: Vec::new(),
            verified: Vec::new(),
            marks: Vec::new(),
            entry_idle: Duration::from_secs(30),
            block_for: Duration::from_secs(30),
            audit_every: Duration::from_secs(60),
            fence: Fence::alone(),
        }
    }
}
