//! The daemon's configuration: what `shunt check-config --json` made of shunt.yaml.

use crate::sounds::{Sound, Source};
use serde::Deserialize;
use shunt_control::Network;
use shunt_daemon::Log;
use shunt_daemon::values::{text, texts};
use shunt_rtpproxy::framing::ControlAddress;
use std::net::IpAddr;
use thiserror::Error;

/// The sections that concern the mixer.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub mixer: Mixer,
    #[serde(default)]
    pub log: Log,
}

/// The control socket, the address of media, and limits.
#[derive(Clone, Debug, Deserialize)]
pub struct Mixer {
    #[serde(deserialize_with = "text")]
    pub listen: ControlAddress,
    /// Networks from which commands are taken over TCP.
    #[serde(deserialize_with = "texts")]
    pub allow: Vec<Network>,
    /// Group of the Unix socket's file.
    pub socket_group: String,
    pub address: IpAddr,
    /// Of audio; video has two ports from the second after it.
    pub port: u16,
    /// Receivers that mixes are made for.
    pub receivers: usize,
    /// The share of a core from which on no conference is taken.
    pub load: f64,
    /// The program that decodes a picture of each source once, by name or path; `None`: none does.
    #[serde(default)]
    pub decoder: Option<String>,
    /// What conferences that want announcements hear.
    #[serde(default)]
    pub announcements: Option<Announcements>,
}

/// Sounds of who joins and who leaves; `None`: nothing is heard.
#[derive(Clone, Debug, Deserialize)]
pub struct Announcements {
    pub joined: Option<Source>,
    pub left: Option<Source>,
}

/// The same, ready to be played.
#[derive(Clone, Debug, Default)]
pub struct Sounds {
    pub joined: Option<Sound>,
    pub left: Option<Sound>,
}

impl Announcements {
    /// # Errors
    /// One cannot be played, and why.
    pub fn load(&self) -> Result<Sounds, ConfigError> {
        let load = |name: &str, source: &Option<Source>| {
            let sound = source.as_ref().map(Source::load).transpose();
            sound.map_err(|error| ConfigError(format!("announcements.{name}: {error}")))
        };
        Ok(Sounds {
            joined: load("joined", &self.joined)?,
            left: load("left", &self.left)?,
        })
    }
}

/// Why a configuration cannot be served.
#[derive(Debug, Error)]
#[error("mixer.{0}")]
pub struct ConfigError(String);

impl Config {
    /// With the address in its canonical form.
    ///
    /// # Errors
    /// A value cannot be served: the document may come from elsewhere than `check-config`.
    pub fn complete(mut self) -> Result<Self, ConfigError> {
        let mixer = &mut self.mixer;
        mixer.address = mixer.address.to_canonical();
        let wrong = |text: String| Err(ConfigError(text));
        if mixer.address.is_unspecified() || mixer.address.is_multicast() {
            return wrong(format!("address: {} is no address that copies can go to", mixer.address));
        }
        if mixer.port == 0 || mixer.port > u16::MAX - 3 {
            return wrong(format!("port: {} is none, or leaves no room for those of video", mixer.port));
        }
        if !(mixer.load > 0.0 && mixer.load <= 1.0) {
            return wrong(format!("load: {} is not a share of a core", mixer.load));
        }
        if !matches!(mixer.listen, ControlAddress::Unix(_) | ControlAddress::Tcp(_)) {
            return wrong("listen: the control API is served over unix and tcp".into());
        }
        Ok(self)
    }
}
