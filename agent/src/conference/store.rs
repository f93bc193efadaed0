//! Where conferences are kept for the next agent: a file for each in one folder, or in the journal that the agents of a pair share.

use super::accounting::Account;
use serde::{Deserialize, Serialize};
use shunt_admin::TilingWish;
use shunt_calls::Counters;
use shunt_journal::Documents;
use shunt_net::{Endpoint, FiveTuple};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Of a conference; others are left alone.
pub const FORMAT: u32 = 2;
/// What the name of a conference in the journal begins with.
const DOCUMENT: &str = "conference:";

/// A place for conferences.
#[derive(Clone, Debug)]
pub enum Store {
    Folder(PathBuf),
    Shared(Documents),
}

/// A conference as it is kept.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub format: u32,
    pub conference: String,
    pub started_us: u64,
    pub participants: Vec<KeptParticipant>,
    /// (sender, receiver, quality).
    pub qualities: Vec<(String, String, String)>,
    /// (sender, receiver, medium, level).
    pub levels: Vec<(String, String, String, usize)>,
    /// Of relay entries that were another receiver's before.
    #[serde(default)]
    pub bases: Vec<KeptBase>,
    /// Where its audio is mixed.
    #[serde(default)]
    pub mixer: Option<KeptMixer>,
    #[serde(default)]
    pub announcements: bool,
    /// The tiled streams that are wanted, and where they are made.
    #[serde(default)]
    pub tiling: Option<KeptTiling>,
    #[serde(default)]
    pub tiler: Option<KeptMixer>,
    /// Where its columns are made, of two levels.
    #[serde(default)]
    pub columns: Vec<(u16, KeptMixer)>,
}

/// Tiled streams as they were.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptTiling {
    pub wish: TilingWish,
    pub streams: Vec<KeptStream>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeptStream {
    pub ssrc: u32,
    /// (place, participant, SSRC of its pictures).
    pub tiles: Vec<(u8, String, u32)>,
    /// (number, SSRC).
    #[serde(default)]
    pub columns: Vec<(u8, u32)>,
}

/// The mixer that a job of a conference is placed on.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptMixer {
    /// Its control socket.
    pub control: String,
    /// Where it takes the medium, and the port that copies come from.
    #[serde(rename = "audio")]
    pub at: Endpoint,
    pub port: u16,
    /// The SSRC of each participant's mix.
    pub ssrcs: Vec<(String, u32)>,
}

/// What a relay entry had counted when it became another receiver's.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptBase {
    source: Endpoint,
    destination: Endpoint,
    packets: u64,
    bytes: u64,
    lost: Option<u64>,
    reordered: Option<u64>,
    duplicates: Option<u64>,
}

impl KeptBase {
    #[must_use]
    pub fn new(flow: &FiveTuple, counters: &Counters) -> Self {
        Self {
            source: flow.src,
            destination: flow.dst,
            packets: counters.packets,
            bytes: counters.bytes,
            lost: counters.lost,
            reordered: counters.reordered,
            duplicates: counters.duplicates,
        }
    }

    #[must_use]
    pub fn counters(&self) -> (FiveTuple, Counters) {
        let counters = Counters {
            packets: self.packets,
            bytes: self.bytes,
            lost: self.lost,
            reordered: self.reordered,
            duplicates: self.duplicates,
            jitter_us: None,
            jitter_max_us: None,
        };
        (FiveTuple::new(self.source, self.destination), counters)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeptParticipant {
    pub participant: String,
    pub call: Option<String>,
    pub joined_us: u64,
    pub ice: Option<shunt_conference::ice::Credentials>,
    #[serde(default)]
    pub signalling: Option<serde_json::Value>,
    pub encrypted: bool,
    #[serde(default)]
    pub mixed: shunt_admin::Mixed,
    pub legs: Vec<KeptLeg>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeptLeg {
    pub medium: String,
    pub port: u16,
    pub transport: String,
    pub source: Option<Endpoint>,
    pub rtcp: Option<Endpoint>,
    pub ssrcs: Vec<u32>,
    pub repair: Vec<u32>,
    pub payload_type: Option<u8>,
    pub signalled: Vec<std::net::IpAddr>,
    pub sends: bool,
    pub receives: bool,
    pub muxed: bool,
    pub codecs: Vec<shunt_admin::Codec>,
    pub layers: Option<shunt_admin::Layers>,
    #[serde(default)]
    pub destination: Option<Endpoint>,
    #[serde(default)]
    pub sent: Account,
    #[serde(default)]
    pub received: Account,
}

impl Store {
    /// What the folder has. One that cannot be read is said and left alone.
    #[must_use]
    pub fn load(&self) -> Vec<Kept> {
        let Self::Folder(folder) = self else { return Vec::new() };
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::error!("conference.state {}: {error}", folder.display());
                }
                return Vec::new();
            }
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        let read = |path: &PathBuf| -> Result<Kept, String> { parse(&std::fs::read(path).map_err(|error| error.to_string())?) };
        let kept = paths.iter().filter_map(|path| {
            read(path)
                .inspect_err(|error| tracing::error!("conference {} cannot be carried on: {error}", path.display()))
                .ok()
        });
        kept.collect()
    }

    /// The conferences among what a journal keeps beside calls. One that cannot be read is said and left alone.
    #[must_use]
    pub fn read(documents: &[(String, Vec<u8>)]) -> Vec<Kept> {
        let conferences = documents
            .iter()
            .filter_map(|(name, text)| Some((name.strip_prefix(DOCUMENT)?, text)));
        let kept = conferences.filter_map(|(name, text)| {
            parse(text)
                .inspect_err(|error| tracing::error!("conference {name} cannot be carried on: {error}"))
                .ok()
        });
        kept.collect()
    }

    /// Keep a conference. What fails is said, and does not stop it.
    pub fn put(&self, kept: &Kept) {
        let folder = match self {
            Self::Folder(folder) => folder,
            Self::Shared(documents) => {
                match serde_json::to_vec(kept) {
                    Ok(text) => documents.put(&format!("{DOCUMENT}{}", kept.conference), text),
                    Err(error) => tracing::error!("conference {} is not kept: {error}", kept.conference),
                }
                return;
            }
        };
        let path = path(folder, &kept.conference);
        let write = || -> std::io::Result<()> {
            let text = serde_json::to_vec(kept)?;
            let fresh = path.with_extension("new");
            match std::fs::write(&fresh, &text) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    std::fs::create_dir_all(folder)?;
                    std::fs::write(&fresh, &text)?;
                }
                other => other?,
            }
            std::fs::rename(&fresh, &path)
        };
        if let Err(error) = write() {
            tracing::error!(
                "conference {} is not kept for a restart: {}: {error}",
                kept.conference,
                path.display()
            );
        }
    }

    /// A conference is over.
    pub fn remove(&self, name: &str) {
        let path = match self {
            Self::Folder(folder) => path(folder, name),
            Self::Shared(documents) => return documents.remove(&format!("{DOCUMENT}{name}")),
        };
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::error!("{}: {error}", path.display());
        }
    }
}

fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

fn parse(text: &[u8]) -> Result<Kept, String> {
    let kept: Kept = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if kept.format == FORMAT {
        Ok(kept)
    } else {
        Err(format!("format {}, this version reads {FORMAT}", kept.format))
    }
}
