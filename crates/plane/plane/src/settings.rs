//! Settings of the plane.

use shunt_bfrt_client::Target;
use shunt_calls::MediaRange;
use shunt_standby::Fence;
use std::time::Duration;

/// How a target stores 5-tuples that sends no context.json.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredHash {
    /// A softswitch: whole. Any other: unknown, and the target is rejected.
    #[default]
    Auto,
    /// Whole.
    None,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: Target,
    pub stored_hash: StoredHash,
    /// Relay addresses and ports, where the data plane raises learn notices. Entries at other addresses are not the agent's.
    pub media: Vec<MediaRange>,
    /// The media ranges whose relay verifies sources itself. Unknown sources reach such a relay at once.
    pub verified: Vec<MediaRange>,
    /// TOS byte of each range's relay. Its DSCP is written into packets that leave from there; elsewhere the DSCP stays.
    pub marks: Vec<(MediaRange, u8)>,
    /// Time without a packet after which an entry is reported idle; 1 s to 1 h.
    pub entry_idle: Duration,
    /// How long a scanner is blocked.
    pub block_for: Duration,
    /// Minimum pause between two audits; a large table is read less often.
    pub audit_every: Duration,
    /// How long audits must find a former media range empty before it is removed. A re-INVITE takes a call's entries out meanwhile.
    pub former_after: Duration,
    /// Closed while another agent may own the data plane: then the plane does not connect or write.
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
            former_after: Duration::from_secs(60),
            fence: Fence::alone(),
        }
    }
}
