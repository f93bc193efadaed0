//! Configuration: relays, media ranges, time-outs, limits.

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

/// The protocol that controls a relay. It decides how sessions are kept alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayKind {
    /// rtpproxy's protocol: the agent raises a session's time-out while its media is offloaded, and ends silent calls itself.
    #[default]
    Rtpproxy,
    /// NG: rtpengine has no command that keeps a call alive, so the agent passes it a packet of each stream within its time-out. rtpengine
    /// ends silent calls itself.
    Rtpengine,
}

/// A relay.
#[derive(Clone, Debug)]
pub struct Relay {
    pub name: String,
    pub kind: RelayKind,
    /// Its media addresses, preferred ones first: they replace a wildcard or missing address in a reply.
    pub addresses: Vec<IpAddr>,
    /// Addresses in its replies that are not its own (rtpproxy `-A`), each with the address at which media for it arrives.
    pub advertised: Vec<(IpAddr, IpAddr)>,
    /// Its session time-out (rtpproxy `-T`, rtpengine `timeout`).
    pub ttl: Duration,
    /// Session time-out until the answer (rtpproxy `-W`, rtpengine `offer-timeout`).
    pub setup_ttl: Duration,
    /// Whether it also latches on bridged legs (letters E and I) without modifier S (rtpproxy `--bridge_symmetric`).
    pub symmetric_bridging: bool,
    /// Whether it verifies sources itself (shunt-relay), so that its ports need no source filter.
    pub verifies_sources: bool,
    pub keepalive: KeepAlive,
    /// Whether the agent can query a session: with Q where that is safe ([`shunt_rtpproxy::capability::may_query`]), or with `query` over
    /// NG.
    pub may_query: bool,
}

impl Relay {
    /// Returns the relay's own address for an address in its replies.
    #[must_use]
    pub fn arrival(&self, told: IpAddr) -> IpAddr {
        let found = self.advertised.iter().find(|(advertised, _)| *advertised == told);
        found.map_or(told, |(_, own)| *own)
    }
}

/// A limit on new sessions: a burst, then a rate per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub burst: u32,
    pub per_second: u32,
}

/// Limits on the state that clients of a SIP server can create in the agent.
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

/// Settings of the book.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether a data plane is configured.
    pub enabled: bool,
    /// Ranges for which the data plane raises learn notices; empty: all.
    pub media: Vec<MediaRange>,
    /// Time after which a stream whose receiver is silent goes to the signalled address.
    pub one_way_after: Duration,
    /// Time without a packet after which the data plane reports an entry idle.
    pub entry_idle: Duration,
    /// How long the port of a party that signalling has not named yet is open to all sources.
    pub filter_grace: Duration,
    /// Capacity of a source filter, in addresses.
    pub filter_addresses: usize,
    /// How long to wait for the relay's delete after a BYE. Without a delete, the BYE was rejected or forged, and the media is learned
    /// again.
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
