//! The daemon's configuration: what `shunt check-config --json` made of shunt.yaml.

use serde::Deserialize;
use shunt_control::Network;
use shunt_daemon::values::{seconds, text, texts};
use shunt_daemon::{Log, PortRange};
use shunt_latch::Policy;
use shunt_notify::Permit;
use shunt_rtpproxy::NotifyTarget;
use shunt_rtpproxy::framing::ControlAddress;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;

const MOST_THREADS: usize = 64;

/// The sections that concern the relay.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub builtin_relay: Relay,
    pub learning: Learning,
    pub notify: Notify,
    #[serde(default)]
    pub log: Log,
}

/// Control sockets, addresses, ports and times.
#[derive(Clone, Debug, Deserialize)]
pub struct Relay {
    #[serde(deserialize_with = "texts")]
    pub listen: Vec<ControlAddress>,
    /// Networks from which commands are taken over udp and tcp.
    #[serde(deserialize_with = "texts")]
    pub allow: Vec<Network>,
    /// Group of the files of Unix sockets.
    pub socket_group: String,
    /// One, or two for bridging: the first is I (internal), the second E (external).
    pub addresses: Vec<IpAddr>,
    /// The addresses in replies, in the order of `addresses`, behind a 1:1 NAT; empty: those themselves.
    #[serde(default)]
    pub advertised: Vec<IpAddr>,
    #[serde(deserialize_with = "text")]
    pub ports: PortRange,
    /// Seconds without media after which a session ends.
    pub ttl: u64,
    /// The same until the answer came; `None`: as `ttl`.
    pub setup_ttl: Option<u64>,
    /// How long a port that was released is not given out again.
    #[serde(deserialize_with = "seconds")]
    pub quarantine: Duration,
    /// Packets per second of one stream; 0: no limit.
    pub packet_limit: u64,
    /// TOS byte of the packets that it sends.
    pub tos: u8,
    /// Threads that forward media.
    pub threads: usize,
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
}

/// Time-out notices.
#[derive(Clone, Debug, Deserialize)]
pub struct Notify {
    /// Sockets that a U may name; `None`: any on this host or on the commanding SIP server.
    pub allow: Option<Vec<String>>,
}

/// Why a configuration cannot be served.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("builtin_relay.{0}")]
    Relay(String),
    #[error("notify.allow: {0}")]
    Notify(#[from] shunt_rtpproxy::NotifyError),
}

impl Config {
    /// With addresses in their canonical form.
    ///
    /// # Errors
    /// A value cannot be served: the document may come from elsewhere than `check-config`.
    pub fn complete(mut self) -> Result<Self, ConfigError> {
        let relay = &mut self.builtin_relay;
        for address in relay.addresses.iter_mut().chain(&mut relay.advertised) {
            *address = address.to_canonical();
        }
        self.builtin_relay.check()?;
        Ok(self)
    }
}

impl Relay {
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Relay(text));
        if self.listen.is_empty() {
            return wrong("listen: no control socket".into());
        }
        if !(1..=2).contains(&self.addresses.len()) {
            return wrong(format!("addresses: {} of them, expected one or two", self.addresses.len()));
        }
        if !self.advertised.is_empty() && self.advertised.len() != self.addresses.len() {
            return wrong(format!(
                "advertised: {} of them for {} of addresses",
                self.advertised.len(),
                self.addresses.len()
            ));
        }
        if let Some(address) = self
            .addresses
            .iter()
            .chain(&self.advertised)
            .find(|address| address.is_unspecified() || address.is_multicast())
        {
            return wrong(format!("addresses: {address} is no address that a phone can send to"));
        }
        if self.ttl == 0 || self.setup_ttl == Some(0) {
            return wrong("ttl: 0 s".into());
        }
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return wrong(format!("threads: {} is not in 1..={MOST_THREADS}", self.threads));
        }
        Ok(())
    }
}

impl Learning {
    /// The thresholds of learning. A relay has nobody to leave a contested stream to.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            packets: self.packets,
            guard: Duration::from_millis(self.guard_ms),
            contest_hold: self.contest_hold_s,
            quarantine: self.quarantine_s,
            last_resort: true,
            ..Policy::default()
        }
    }
}

impl Notify {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let config: Config = shunt_daemon::parse_document(text).map_err(|error| error.to_string())?;
        config.complete().map_err(|error| error.to_string())
    }

    fn relay(change: &str, value: serde_json::Value) -> String {
        let mut config = serde_json::json!({
            "builtin_relay": {
                "listen": ["udp:127.0.0.1:22222", "unix:/run/r.sock"], "allow": ["127.0.0.0/8"], "socket_group": "shunt",
                "addresses": ["127.0.0.1", "::ffff:10.0.0.1"], "ports": "35000-65000", "ttl": 60, "setup_ttl": null, "quarantine": 0.5,
                "packet_limit": 0, "tos": 184, "threads": 1
            },
            "learning": {"packets": 7, "guard_ms": 80, "contest_hold_s": 10.0, "quarantine_s": 3, "first_packets": "named"},
            "notify": {"allow": null},
        });
        if let Some(place) = config.pointer_mut(change) {
            *place = value;
        }
        serde_json::json!({"valid": true, "errors": [], "config": config}).to_string()
    }

    #[test]
    fn a_checked_document_is_read() {
        let config = read(&relay("/nothing", serde_json::Value::Null)).unwrap();
        let read = &config.builtin_relay;
        assert_eq!(read.addresses[1], IpAddr::from([10, 0, 0, 1]));
        assert_eq!(
            (read.ports.first, read.ports.last, read.quarantine),
            (35000, 65000, Duration::from_millis(500))
        );
        let policy = config.learning.policy();
        assert_eq!(
            (policy.packets, policy.quarantine, policy.last_resort),
            (7, Duration::from_secs(3), true)
        );
        assert_eq!(config.log.level, "info");
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_its_key() {
        use serde_json::json;
        for (key, value, said) in [
            ("/builtin_relay/listen", json!(["carrier-pigeon:1"]), "not a control socket"),
            ("/builtin_relay/listen", json!([]), "listen"),
            ("/builtin_relay/addresses", json!([]), "addresses"),
            ("/builtin_relay/addresses", json!(["0.0.0.0"]), "0.0.0.0"),
            ("/builtin_relay/addresses", json!(["host.example"]), "IP address"),
            ("/builtin_relay/ports", json!("35000"), "35000"),
            ("/builtin_relay/ttl", json!(0), "ttl"),
            ("/builtin_relay/ttl", json!(-1), "-1"),
            ("/builtin_relay/quarantine", json!(-0.5), "negative"),
            ("/builtin_relay/threads", json!(0), "threads"),
            ("/builtin_relay/allow", json!(["10.0.0.0/33"]), "10.0.0.0/33"),
            ("/builtin_relay", json!(null), "builtin_relay"),
        ] {
            let error = read(&relay(key, value.clone())).map(|_| ()).unwrap_err();
            assert!(error.contains(said) || said == "builtin_relay", "{key} {value}: {error}");
        }
        assert!(read(r#"{"valid": false, "config": null}"#).is_err());
        assert!(read("{").is_err());
    }
}
