//! Where conferences are kept for the next agent: a file for each in one folder, or in the journal that the agents of a pair share.

use shunt_conference::book::{FORMAT, Kept};
use shunt_journal::Documents;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What the name of a conference in the journal begins with.
const DOCUMENT: &str = "conference:";

/// A place for conferences.
#[derive(Clone, Debug)]
pub enum Store {
    Folder(PathBuf),
    Shared(Documents),
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
