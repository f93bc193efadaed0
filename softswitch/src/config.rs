//! The daemon's configuration: the output of `shunt check-config --json` for shunt.yaml.

use crate::plane::Holders;
use serde::Deserialize;
use shunt_daemon::Log;
use shunt_xdp::Mode;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The sections for the softswitch.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub softswitch: Softswitch,
    #[serde(default)]
    pub log: Log,
}

/// The data plane and its server.
#[derive(Clone, Debug, Deserialize)]
pub struct Softswitch {
    pub interfaces: Vec<String>,
    pub listen: Vec<Listen>,
    /// Names of the served programs, one for each client. The first one has the conferences.
    #[serde(default = "programs")]
    pub programs: Vec<String>,
    pub owners: Vec<Owner>,
    pub socket_group: String,
    pub capacity: usize,
    pub mode: XdpMode,
    pub tls: Option<Tls>,
    pub source_mismatch: SourceMismatch,
    /// Packets per second of one entry; 0: no limit.
    pub packet_limit: u32,
    /// Rewrites of conference packets; 0: no conferences.
    pub conference_copies: usize,
    pub pin_dir: PathBuf,
    /// Bytes of the largest request.
    pub request_limit: usize,
}

impl Config {
    /// Checks that it can be served as configured.
    ///
    /// # Errors
    /// Other hosts reach it at an address without TLS client certificates; or names of programs are missing, too many or equal.
    pub fn complete(self) -> Result<Self, String> {
        let wrong = self.softswitch.exposed().or_else(|| self.softswitch.wrong_programs());
        wrong.map_or(Ok(self), Err)
    }
}

fn programs() -> Vec<String> {
    vec!["relay".into()]
}

impl Softswitch {
    /// Returns who may use the tables at one of the addresses, as text. `unix`: whether the address is a Unix socket.
    pub fn who_may(&self, unix: bool) -> String {
        let mutual = self.tls.as_ref().is_some_and(|tls| tls.ca_file.is_some());
        let mut who: Vec<String> = Vec::new();
        for owner in &self.owners {
            match owner {
                Owner::Unix if unix => who.push(format!("the group {}", self.socket_group)),
                Owner::Tcp if !unix && !mutual => who.push("EVERY LOCAL USER (softswitch.owners: tcp)".into()),
                Owner::Tls if !unix && mutual => who.push("every client with a certificate".into()),
                Owner::User(name) if unix || !mutual => who.push(format!("the user {name}")),
                Owner::Certificate(name) if !unix && mutual => who.push(format!("the certificate of {name}")),
                _ => {}
            }
        }
        if who.is_empty() { "nobody".into() } else { who.join(", ") }
    }

    /// Returns what is wrong with the names of programs.
    fn wrong_programs(&self) -> Option<String> {
        let (names, most) = (&self.programs, Holders::PROGRAMS);
        if names.is_empty() || names.len() > most {
            return Some(format!("programs: {} names; it is to be 1 to {most}", names.len()));
        }
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        twice.map(|(_, name)| format!("programs: {name} is named twice"))
    }

    /// Returns the address that other hosts reach without TLS client certificates.
    fn exposed(&self) -> Option<String> {
        let mutual = self.tls.as_ref().is_some_and(|tls| tls.ca_file.is_some());
        let exposed = self
            .listen
            .iter()
            .find(|listen| matches!(listen, Listen::Tcp(address) if !address.ip().is_loopback()));
        exposed
            .filter(|_| !mutual)
            .map(|listen| format!("listen: {listen} is reachable from elsewhere, and tls with ca_file is not given"))
    }
}

/// The mode in which XDP programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Native if every interface can run the program and transmit redirected frames, otherwise generic.
    Auto,
    Native,
    Generic,
}

impl XdpMode {
    /// Returns whether a program attached in this mode may stay.
    #[must_use]
    pub fn allows(self, mode: Mode) -> bool {
        matches!(
            (self, mode),
            (Self::Auto, _) | (Self::Native, Mode::Native) | (Self::Generic, Mode::Generic)
        )
    }
}

/// Action for a packet whose source does not match the entry, or is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceMismatch {
    Drop,
    Pass,
}

/// PEM files.
#[derive(Clone, Debug, Deserialize)]
pub struct Tls {
    pub ca_file: Option<PathBuf>,
    pub certificate_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

/// Sockets of the BF Runtime server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        text.parse()
            .map(Self::Tcp)
            .map_err(|_| format!("{text} is neither unix:PATH nor ADDRESS:PORT"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Clients that may use the tables: read and write them, bind to the program, and take over the entries of a previous owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Any client of a Unix socket.
    Unix,
    /// Any client of a TCP address without TLS.
    Tcp,
    /// Any client with a verified TLS certificate.
    Tls,
    /// A client on this host, of a Unix socket or of TCP on loopback, that runs as this user.
    User(String),
    /// A client with a TLS certificate for this DNS name.
    Certificate(String),
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "unix" => Ok(Self::Unix),
            None if text == "tcp" => Ok(Self::Tcp),
            None if text == "tls" => Ok(Self::Tls),
            Some(("user", name)) if !name.is_empty() => Ok(Self::User(name.into())),
            Some(("certificate", name)) if !name.is_empty() => Ok(Self::Certificate(name.into())),
            _ => Err(format!("{text} is none of unix, tcp, tls, user:NAME, certificate:NAME")),
        }
    }
}

macro_rules! from_text {
    ($($type:ty),*) => { $(impl<'de> Deserialize<'de> for $type {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        }
    })* };
}
from_text!(Listen, Owner);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_owners_read_back() {
        assert_eq!("unix:/run/shunt/s.sock".parse(), Ok(Listen::Unix("/run/shunt/s.sock".into())));
        assert_eq!(
            "[::1]:50052".parse::<Listen>().map(|listen| listen.to_string()),
            Ok("[::1]:50052".into())
        );
        assert!("localhost".parse::<Listen>().is_err());
        assert_eq!("user:shunt".parse(), Ok(Owner::User("shunt".into())));
        assert!("user:".parse::<Owner>().is_err());
    }
}
