//! The daemon's configuration: the output of `shunt check-config --json` for shunt.yaml.

use serde::Deserialize;
use shunt_admin::TilingWish;
use shunt_calls::{MediaRange, RelayKind};
use shunt_control::{Network, Patience};
use shunt_daemon::values::{seconds, text, texts};
use shunt_daemon::{Log, PortRange};
use shunt_journal::SharedSettings;
use shunt_latch::Policy;
use shunt_notify::Permit;
use shunt_rtpproxy::NotifyTarget;
use shunt_rtpproxy::framing::ControlAddress;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// The name of shunt-relay among the relays.
pub const BUILTIN: &str = "builtin";

/// The sections for the agent.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub control: Control,
    pub relays: Vec<RelayConfig>,
    pub builtin_relay: Option<Builtin>,
    pub data_plane: Option<DataPlane>,
    pub learning: Learning,
    pub hep: Option<Hep>,
    pub notify: Notify,
    pub journal: Option<Journal>,
    #[serde(default)]
    pub standby: Standby,
    pub conference: Option<Conference>,
    #[serde(default)]
    pub admin: Admin,
    #[serde(default)]
    pub log: Log,
}

/// Sockets for SIP servers.
#[derive(Clone, Debug, Deserialize)]
pub struct Control {
    #[serde(deserialize_with = "texts")]
    pub listen: Vec<ControlAddress>,
    /// Sockets for NG.
    #[serde(default, deserialize_with = "texts")]
    pub ng: Vec<ControlAddress>,
    #[serde(deserialize_with = "texts")]
    pub allow: Vec<Network>,
    #[serde(default = "group")]
    pub socket_group: String,
    /// Most legs of one Call-ID.
    #[serde(default = "legs")]
    pub legs_per_call: usize,
    /// Most new sessions of one source at once, and per second; 0: no limit.
    #[serde(default)]
    pub sessions_per_source: u32,
    /// Milliseconds that a SIP server waits for the answer to one try.
    #[serde(default = "sip_timeout_ms")]
    pub sip_timeout_ms: u64,
    /// Seconds that a stopping agent waits for its calls to end; 0: none.
    #[serde(default)]
    pub drain_on_stop_s: u64,
}

/// A relay.
#[derive(Clone, Debug, Deserialize)]
pub struct RelayConfig {
    pub name: String,
    #[serde(default, rename = "type")]
    pub relay_type: RelayType,
    #[serde(deserialize_with = "text")]
    pub socket: ControlAddress,
    pub media: Vec<Media>,
    /// Seconds.
    pub ttl: u64,
    #[serde(default)]
    pub setup_ttl: Option<u64>,
    pub symmetric: bool,
    #[serde(default)]
    pub tos: Option<u8>,
    /// The relay verifies sources itself.
    #[serde(skip)]
    pub verifies_sources: bool,
}

impl RelayConfig {
    /// The relay's TOS byte. Default of rtpproxy and shunt-relay: EF.
    #[must_use]
    pub fn mark(&self) -> u8 {
        const EXPEDITED: u8 = 46 << 2;
        self.tos.unwrap_or(match self.relay_type {
            RelayType::Rtpproxy => EXPEDITED,
            RelayType::Rtpengine => 0,
        })
    }
}

/// Protocol that controls a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RelayType {
    #[default]
    Rtpproxy,
    Rtpengine,
}

/// A relay address and its ports.
#[derive(Clone, Debug, Deserialize)]
pub struct Media {
    pub address: IpAddr,
    /// The address in the relay's replies instead.
    #[serde(default)]
    pub advertised: Option<IpAddr>,
    #[serde(deserialize_with = "text")]
    pub ports: PortRange,
}

/// shunt-relay as a relay of the agent.
#[derive(Clone, Debug, Deserialize)]
pub struct Builtin {
    #[serde(deserialize_with = "texts")]
    pub listen: Vec<ControlAddress>,
    pub addresses: Vec<IpAddr>,
    /// The addresses in the relay's replies, in the order of `addresses`; empty: `addresses`.
    #[serde(default)]
    pub advertised: Vec<IpAddr>,
    #[serde(deserialize_with = "text")]
    pub ports: PortRange,
    pub ttl: u64,
    pub setup_ttl: Option<u64>,
}

/// The BF Runtime server.
#[derive(Clone, Debug, Deserialize)]
pub struct DataPlane {
    pub target: String,
    pub device_id: u32,
    pub program: String,
    pub tls: Option<Tls>,
    pub idle_ms: u64,
    pub hash: String,
    /// Interface of the switch's CPU port, if conferences use the switch's address.
    #[serde(default)]
    pub cpu_interface: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Tls {
    pub ca_file: Option<PathBuf>,
    pub certificate_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

/// When a source is latched.
#[derive(Clone, Debug, Deserialize)]
pub struct Learning {
    pub packets: u32,
    pub guard_ms: u64,
    #[serde(deserialize_with = "seconds")]
    pub contest_hold_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub quarantine_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub one_way_after_s: Duration,
    /// `any` or `named`.
    pub first_packets: String,
}

/// Copies of SIP.
#[derive(Clone, Debug, Deserialize)]
pub struct Hep {
    pub listen: String,
    #[serde(deserialize_with = "texts")]
    pub allow: Vec<Network>,
}

/// Time-out notices.
#[derive(Clone, Debug, Deserialize)]
pub struct Notify {
    pub allow: Option<Vec<String>>,
}

/// Where calls are stored.
#[derive(Clone, Debug, Deserialize)]
pub struct Journal {
    pub path: PathBuf,
    pub redis: Option<String>,
    /// A file whose first line is the password of Redis.
    #[serde(default)]
    pub redis_password_file: Option<PathBuf>,
    /// Agents of one group share calls and data plane.
    #[serde(default = "group")]
    pub group: String,
}

/// How agents of one group take over from each other.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct Standby {
    /// Name in the other agent's log; `None`: the host's.
    pub name: Option<String>,
    /// Where the other agent reaches this one's control socket; `None`: the first of them.
    pub control: Option<String>,
    /// The same for NG.
    #[serde(default)]
    pub ng: Option<String>,
    /// Milliseconds.
    pub lease_ms: u64,
}

impl Default for Standby {
    fn default() -> Self {
        Self {
            name: None,
            control: None,
            ng: None,
            lease_ms: 1000,
        }
    }
}

impl Control {
    #[must_use]
    pub fn patience(&self) -> Patience {
        Patience(Duration::from_millis(self.sip_timeout_ms))
    }
}

impl Journal {
    /// Returns the journal that agents share; `None`: the journal is a file.
    ///
    /// # Errors
    /// The address is invalid, or the password cannot be read.
    pub fn shared(&self) -> Result<Option<SharedSettings>, ConfigError> {
        let Some(url) = &self.redis else { return Ok(None) };
        let password = self.redis_password_file.as_ref().map(|path| {
            let read = std::fs::read_to_string(path);
            let read = read.map_err(|error| ConfigError::Redis(format!("journal.redis_password_file {}: {error}", path.display())));
            read.map(|text| text.lines().next().unwrap_or_default().trim().to_owned())
        });
        let password = password.transpose()?;
        let settings = SharedSettings::new(url, &self.group, password.as_deref());
        settings
            .map(Some)
            .map_err(|error| ConfigError::Redis(format!("journal.redis: {error}")))
    }
}

/// Conferences. SIP, records and the selector of layers belong to the operator daemon.
#[derive(Clone, Debug, Deserialize)]
pub struct Conference {
    pub address: IpAddr,
    #[serde(deserialize_with = "text")]
    pub ports: PortRange,
    /// The folder of stored conferences.
    pub state: PathBuf,
    /// Seconds.
    pub timeout: u64,
    /// Control sockets of mixers.
    #[serde(default, deserialize_with = "texts")]
    pub mixer: Vec<ControlAddress>,
    /// Tiled streams of each new conference.
    #[serde(default)]
    pub tiling: Option<TilingWish>,
    /// Announcements in each new conference.
    #[serde(default)]
    pub announcements: bool,
}

/// The admin API.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct Admin {
    pub socket: PathBuf,
    pub socket_group: String,
    /// The folder of the event log.
    pub events: PathBuf,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            socket: "/run/shunt/admin.sock".into(),
            socket_group: group(),
            events: "/var/lib/shunt/events".into(),
        }
    }
}

fn group() -> String {
    "shunt".into()
}

fn sip_timeout_ms() -> u64 {
    200
}

fn legs() -> usize {
    shunt_calls::Limits::default().legs_per_call
}

/// Reason why a configuration cannot be served.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("neither a relay nor conferences: give relays, builtin_relay or conference")]
    NoRelay,
    #[error("conference: needs a data_plane: nothing else carries conferences")]
    Conference,
    #[error("hep.listen: {0} is not udp:ADDRESS:PORT or tcp:ADDRESS:PORT")]
    Hep(String),
    #[error("{0}")]
    Redis(String),
    #[error("notify.allow: {0}")]
    Notify(#[from] shunt_rtpproxy::NotifyError),
}

impl Config {
    /// Adds shunt-relay to the relays.
    ///
    /// # Errors
    /// A value cannot be served.
    pub fn complete(mut self) -> Result<Self, ConfigError> {
        self.relays.extend(self.builtin_relay.as_ref().and_then(Builtin::as_relay));
        if self.relays.is_empty() && self.conference.is_none() {
            return Err(ConfigError::NoRelay);
        }
        if self.conference.is_some() && self.data_plane.is_none() {
            return Err(ConfigError::Conference);
        }
        if let Some(hep) = &self.hep {
            hep.address()?;
        }
        if let Some(journal) = &self.journal {
            journal.shared()?;
        }
        Ok(self)
    }

    /// Returns the media addresses and ports of all relays.
    #[must_use]
    pub fn media(&self) -> Vec<MediaRange> {
        self.relays.iter().flat_map(|relay| relay.media.iter().map(Media::range)).collect()
    }
}

impl Conference {
    /// Returns the conference address and ports: also RTCP, one port above the last.
    #[must_use]
    pub fn range(&self) -> MediaRange {
        MediaRange {
            addr: self.address.to_canonical(),
            first_port: self.ports.first,
            last_port: self.ports.last | 1,
        }
    }
}

impl Builtin {
    /// Returns the relay that listens at a socket, if any.
    fn as_relay(&self) -> Option<RelayConfig> {
        let media = self.addresses.iter().enumerate().map(|(n, address)| Media {
            address: *address,
            advertised: self.advertised.get(n).copied(),
            ports: self.ports,
        });
        Some(RelayConfig {
            name: BUILTIN.into(),
            relay_type: RelayType::Rtpproxy,
            socket: self.listen.first()?.clone(),
            media: media.collect(),
            ttl: self.ttl,
            setup_ttl: self.setup_ttl,
            symmetric: true,
            tos: None,
            verifies_sources: true,
        })
    }
}

impl Media {
    /// Returns the advertised address with the address itself.
    fn told(&self) -> Option<(IpAddr, IpAddr)> {
        Some((self.advertised?.to_canonical(), self.address.to_canonical()))
    }

    #[must_use]
    pub fn range(&self) -> MediaRange {
        MediaRange {
            addr: self.address.to_canonical(),
            first_port: self.ports.first,
            last_port: self.ports.last,
        }
    }
}

impl RelayConfig {
    #[must_use]
    pub fn kind(&self) -> RelayKind {
        match self.relay_type {
            RelayType::Rtpproxy => RelayKind::Rtpproxy,
            RelayType::Rtpengine => RelayKind::Rtpengine,
        }
    }

    /// Returns the relay as the call state describes it.
    #[must_use]
    pub fn relay(&self) -> shunt_calls::Relay {
        let ttl = Duration::from_secs(self.ttl);
        shunt_calls::Relay {
            name: self.name.clone(),
            kind: self.kind(),
            addresses: self.media.iter().map(|media| media.address.to_canonical()).collect(),
            advertised: self.media.iter().filter_map(Media::told).collect(),
            ttl,
            setup_ttl: self.setup_ttl.map_or(ttl, Duration::from_secs),
            symmetric_bridging: self.symmetric,
            verifies_sources: self.verifies_sources,
            // Until its handshake has shown more.
            keepalive: shunt_rtpproxy::capability::KeepAlive::Lookup,
            may_query: self.kind() == RelayKind::Rtpengine,
        }
    }
}

impl Learning {
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            packets: self.packets,
            guard: Duration::from_millis(self.guard_ms),
            contest_hold: self.contest_hold_s,
            quarantine: self.quarantine_s,
            ..Policy::default()
        }
    }
}

impl Hep {
    /// Parses a HEP address. Returns whether it is for TCP, and the address.
    ///
    /// # Errors
    /// It is no such address.
    pub fn address(&self) -> Result<(bool, SocketAddr), ConfigError> {
        let wrong = || ConfigError::Hep(self.listen.clone());
        let (scheme, rest) = self.listen.split_once(':').ok_or_else(wrong)?;
        let address = rest.parse().map_err(|_| wrong())?;
        match scheme {
            "udp" => Ok((false, address)),
            "tcp" => Ok((true, address)),
            _ => Err(wrong()),
        }
    }
}

impl Notify {
    /// Parses the notify sockets.
    ///
    /// # Errors
    /// A text is no notify socket.
    pub fn permit(&self) -> Result<Permit, ConfigError> {
        let allow = self.allow.as_ref().map(|sockets| {
            let parsed = sockets.iter().map(|socket| NotifyTarget::parse(socket.as_bytes(), None));
            parsed.collect::<Result<Vec<_>, _>>()
        });
        Ok(Permit::new(allow.transpose()?))
    }
}
