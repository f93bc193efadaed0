//! The daemon's configuration: what `shunt check-config --json` made of shunt.yaml.

use serde::Deserialize;
use shunt_daemon::values::{seconds, text, texts};
use shunt_daemon::{Log, PortRange};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// The sections that concern the edge.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub edge: Edge,
    #[serde(default)]
    pub log: Log,
}

/// Addresses, and how much there may be of everything.
#[derive(Clone, Debug, Deserialize)]
pub struct Edge {
    /// Where browsers send to.
    #[serde(deserialize_with = "texts")]
    pub listen: Vec<SocketAddr>,
    /// Whether browsers may come over TCP too, at the same addresses.
    pub tcp: bool,
    /// The addresses that browsers are told, where they differ from `listen`: one for each, in the same order.
    #[serde(deserialize_with = "texts")]
    pub advertise: Vec<SocketAddr>,
    /// Where the data plane sends to.
    pub address: IpAddr,
    #[serde(deserialize_with = "text")]
    pub ports: PortRange,
    pub control: PathBuf,
    /// Group of the control socket's file.
    pub socket_group: String,
    pub limits: LimitsSection,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LimitsSection {
    pub sessions: usize,
    /// Media descriptions of one session.
    pub media: usize,
    /// Packets a second of one address that has shown no key.
    pub unknown_packets: u32,
    /// TCP connections of one address, and of all.
    pub connections_per_address: usize,
    pub connections: usize,
    /// bit/s that one browser is asked to send at most.
    pub send_bitrate: u64,
    /// bit/s that one browser is sent at most.
    pub receive_bitrate: u64,
    /// How long a browser may take to connect.
    #[serde(deserialize_with = "seconds")]
    pub connect: Duration,
    /// How long a browser that was connected may be silent (RFC 7675).
    #[serde(deserialize_with = "seconds")]
    pub consent: Duration,
}

/// Why a configuration cannot be served.
#[derive(Debug, Error)]
#[error("edge.{0}")]
pub struct ConfigError(String);

impl Config {
    /// # Errors
    /// A value cannot be served: the document may come from elsewhere than `check-config`.
    pub fn check(self) -> Result<Self, ConfigError> {
        let edge = &self.edge;
        let wrong = |text: String| Err(ConfigError(text));
        if edge.listen.is_empty() {
            return wrong("listen: no address".into());
        }
        if !edge.advertise.is_empty() && edge.advertise.len() != edge.listen.len() {
            return wrong(format!(
                "advertise: {} addresses for {} of listen",
                edge.advertise.len(),
                edge.listen.len()
            ));
        }
        for (key, addresses) in [("listen", edge.candidates()), ("advertise", &edge.advertise)] {
            if let Some(address) = addresses
                .iter()
                .find(|address| address.ip().is_unspecified() || address.port() == 0)
            {
                return wrong(format!("{key}: {address} is no address that a browser can send to"));
            }
        }
        if edge.address.is_unspecified() {
            return wrong(format!("address: {} is no address that the data plane can send to", edge.address));
        }
        if edge.ports.first == 0 || edge.ports.first > edge.ports.last {
            return wrong(format!("ports: {}-{} has no port", edge.ports.first, edge.ports.last));
        }
        if edge.limits.media == 0 || edge.limits.media > MOST_MEDIA {
            return wrong(format!("limits.media: {} is not in 1..={MOST_MEDIA}", edge.limits.media));
        }
        Ok(self)
    }
}

/// Media descriptions have a place of 16 bits in the events of their sockets.
const MOST_MEDIA: usize = 1024;

impl Edge {
    /// The addresses that browsers are told.
    #[must_use]
    pub fn candidates(&self) -> &[SocketAddr] {
        if self.advertise.is_empty() { &self.listen } else { &self.advertise }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"edge": {"listen": ["192.0.2.1:3478"], "tcp": true, "advertise": [], "address": "192.0.2.2", "ports": "30000-30099",
        "control": "/run/shunt-edge/control.sock", "socket_group": "shunt", "limits": {"sessions": 10, "media": 16, "unknown_packets": 50,
        "connections_per_address": 8, "connections": 100, "send_bitrate": 2500000, "receive_bitrate": 10000000, "connect": 30, "consent": 30}}}"#;

    fn read(text: &str) -> Result<Config, String> {
        let config: Config = shunt_daemon::parse_document(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())
    }

    #[test]
    fn what_can_be_served_is_taken() {
        let config = read(DOCUMENT).unwrap();
        assert_eq!(config.edge.candidates(), ["192.0.2.1:3478".parse().unwrap()]);
    }

    #[test]
    fn what_cannot_is_named() {
        for (from, to, said) in [
            ("192.0.2.1:3478", "0.0.0.0:3478", "listen"),
            (
                "\"advertise\": []",
                "\"advertise\": [\"192.0.2.1:1\", \"192.0.2.1:2\"]",
                "advertise",
            ),
            ("192.0.2.2", "0.0.0.0", "address"),
            ("30000-30099", "30099-30000", "ports"),
            ("\"media\": 16", "\"media\": 0", "limits.media"),
        ] {
            let error = read(&DOCUMENT.replace(from, to)).unwrap_err();
            assert!(error.contains(said), "{to}: {error}");
        }
        let behind = DOCUMENT.replace("192.0.2.1:3478", "0.0.0.0:3478");
        read(&behind.replace("\"advertise\": []", "\"advertise\": [\"198.51.100.1:3478\"]")).unwrap();
    }
}
