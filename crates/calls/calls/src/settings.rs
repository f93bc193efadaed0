//! What is configured: relays, media ranges, time-outs, limits.

use shunt_net::Endpoint;
use shunt_rtpproxy::capability::KeepAlive;
use std::net::IpAddr;
use std::time::Duration;

/// A relay address and the ports (inclusive) on which media arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MediaRange {
    pub addr: IpAddr,
    pub first_port: u16,
    pub last_port: u16,
}

impl MediaRange {
    #[must_use]
    pub fn contains(&self, end: Endpoint) -> bool {
        end.addr == self.addr && (self.first_port..=self.last_port).contains(&end.port)
    }
}

/// Which protocol a relay is controlled with, and with it who keeps its sessions alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayKind {
    /// rtpproxy's: the agent raises a session's time-out while its media is offloaded, and ends silent calls itself.
    #[default]
    Rtpproxy,
    /// NG: rtpengine has no command that keeps a call, so it is shown a packet of each stream in less than its time-out, and ends silent calls
    /// itself.
    Rtpengine,
}

/// A relay.
#[derive(Clone, Debug)]
pub struct Relay {
    pub name: String,
    pub kind: RelayKind,
    /// Its media addresses, in the order of preference: they stand in for a wildcard address, or none, in a reply.
    pub addresses: Vec<IpAddr>,
    /// Addresses in its replies that are not its own (rtpproxy `-A`), each with the address at which that media arrives.
    pub advertised: Vec<(IpAddr, IpAddr)>,
    /// Its session time-out (rtpproxy `-T`, rtpengine `timeout`).
    pub ttl: Duration,
    /// The same until a session has its answer (rtpproxy `-W`, rtpengine `offer-timeout`).
    pub setup_ttl: Duration,
    /// Whether it latches also on bridged legs (letters E and I) without modifier S (rtpproxy `--bridge_symmetric`).
    pub symmetric_bridging: bool,
    /// Whether it verifies sources itself (shunt-relay): its ports need no source filter.
    pub verifies_sources: bool,
    pub keepalive: KeepAlive,
    /// Whether it can be asked for a session: with Q where that is safe ([`shunt_rtpproxy::capability::may_query`]), with `query` by NG.
    pub may_query: bool,
}

impl Relay {
    /// Returns the relay's own address behind an address of its replies.
    #[must_use]
    pub fn arrival(&self, told: IpAddr) -> IpAddr {
        let found = self.advertised.iter().find(|(advertised, _)| *advertised == told);
        found.map_or(told, |(_, own)| *own)
    }
}

/// A rate of new sessions: so many at once, then so many a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub burst: u32,
    pub per_second: u32,
}

/// Limits on what a SIP server's clients can make the agent keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Legs of one Call-ID; a media line has two.
    pub legs_per_call: usize,
    /// New sessions of one source, the address that U names; `None`: no limit.
    pub sessions_per_source: Option<Rate>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            legs_per_call: 128,
            sessions_per_source: None,
        }
    }
}

/// What the book decides by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A data plane is configured.
    pub enabled: bool,
    /// Where the data plane raises learn notices; empty: everywhere.
    pub media: Vec<MediaRange>,
    /// A stream whose receiver is silent goes to the signalled address after this time.
    pub one_way_after: Duration,
    /// After this time without a packet the data plane reports an entry idle.
    pub entry_idle: Duration,
    /// How long a port is open to everybody whose party no signalling names yet.
    pub filter_grace: Duration,
    /// Addresses that a source filter has room for.
    pub filter_addresses: usize,
    /// A BYE that the relay's delete does not follow was rejected or forged: the media is learned again.
    pub bye_grace: Duration,
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            media: Vec::new(),
            one_way_after: Duration::from_secs(1),
            entry_idle: Duration::from_secs(30),
            filter_grace: Duration::from_millis(100),
            filter_addresses: 4,
            bye_grace: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

impl Settings {
    pub(crate) fn listens_at(&self, port: Endpoint) -> bool {
        self.media.is_empty() || self.media.iter().any(|range| range.contains(port))
    }
}
