//! The segment files of the event log: one writer, and what readers may see of them.

use super::line::Head;
use super::segment::{Scan, first_of, name, scan};
use super::{LogError, LogSettings};
use nix::fcntl::{Flock, FlockArg};
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// However small they are.
const MOST_FILES: usize = 1_000;

/// A segment as readers see it.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) first: u64,
    pub(super) path: PathBuf,
    /// Bytes that readers may read.
    pub(super) length: u64,
    /// This process wrote all of it: its lines need no check.
    pub(super) own: bool,
}

/// What the epoch before has left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Former {
    pub(super) last: Option<u64>,
    pub(super) epoch: u64,
    pub(super) clean: bool,
}

/// The files, for their one writer.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    segment_bytes: u64,
    total_bytes: u64,
    /// Held as long as this process writes here.
    _lock: Flock<File>,
    current: Option<File>,
    pub(super) segments: VecDeque<Segment>,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> LogError + '_ {
    |error| LogError::Io(path.to_owned(), error)
}

impl Store {
    /// Open the directory, lock it, and cut off damage at its end.
    pub(super) fn open(settings: &LogSettings) -> Result<(Self, Former), LogError> {
        let directory = settings.directory.clone();
        DirBuilder::new()
            .mode(0o750)
            .recursive(true)
            .create(&directory)
            .map_err(failed(&directory))?;
        let path = directory.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o640)
            .open(&path)
            .map_err(failed(&path))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| LogError::Locked(directory.clone()))?;
        let mut store = Self {
            segments: present(&directory)?,
            directory,
            segment_bytes: settings.segment_bytes.max(4_096),
            total_bytes: settings
                .segment_bytes
                .max(4_096)
                .saturating_mul(u64::from(settings.segments.max(2))),
            _lock: lock,
            current: None,
        };
        let former = store.recover()?;
        Ok((store, former))
    }

    /// Find the last event that is kept, and cut off what comes after it.
    fn recover(&mut self) -> Result<Former, LogError> {
        while let Some(segment) = self.segments.back_mut() {
            let bytes = std::fs::read(&segment.path).map_err(failed(&segment.path))?;
            let Scan { whole, last, damaged } = scan(segment.first, &bytes);
            if damaged > 0 {
                tracing::warn!(
                    "event log: {} has {damaged} damaged lines, which readers see as a gap",
                    segment.path.display()
                );
            }
            if whole < bytes.len() {
                tracing::warn!(
                    "event log: {} bytes at the end of {} are damaged and cut off",
                    bytes.len() - whole,
                    segment.path.display()
                );
                let file = OpenOptions::new().write(true).open(&segment.path).map_err(failed(&segment.path))?;
                file.set_len(whole as u64).map_err(failed(&segment.path))?;
                segment.length = whole as u64;
            }
            if let Some((last, line)) = last {
                let head = bytes.get(line).and_then(Head::read).unwrap_or_default();
                return Ok(Former {
                    last: Some(last),
                    epoch: head.epoch,
                    clean: head.is_stopped(),
                });
            }
            std::fs::remove_file(&segment.path).map_err(failed(&segment.path))?;
            self.segments.pop_back();
        }
        Ok(Former::default())
    }

    /// Append whole lines, of which the first has the number `first`. What cannot be written in whole is cut off again.
    pub(super) fn append(&mut self, first: u64, lines: &[u8]) -> Result<(), LogError> {
        let full = self.segments.back().is_none_or(|segment| segment.length >= self.segment_bytes);
        let mut file = match self.current.take() {
            Some(file) if !full => file,
            _ => self.begin(first)?,
        };
        let Some(segment) = self.segments.back_mut() else {
            return Ok(());
        };
        if let Err(error) = file.write_all(lines) {
            // Without the cut, the next segment begins after a torn line.
            if file.set_len(segment.length).is_ok() {
                self.current = Some(file);
            }
            return Err(LogError::Io(segment.path.clone(), error));
        }
        segment.length += lines.len() as u64;
        self.current = Some(file);
        Ok(())
    }

    fn begin(&mut self, first: u64) -> Result<File, LogError> {
        self.make_room()?;
        let path = self.directory.join(name(first));
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o640)
            .open(&path)
            .map_err(failed(&path))?;
        self.segments.push_back(Segment {
            first,
            path,
            length: 0,
            own: true,
        });
        Ok(file)
    }

    /// Remove the oldest segments until one more fits.
    fn make_room(&mut self) -> Result<(), LogError> {
        let mut bytes: u64 = self.segments.iter().map(|segment| segment.length).sum();
        while bytes.saturating_add(self.segment_bytes) > self.total_bytes || self.segments.len() >= MOST_FILES {
            let Some(oldest) = self.segments.front() else { break };
            match std::fs::remove_file(&oldest.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(LogError::Io(oldest.path.clone(), error)),
                _ => bytes -= oldest.length,
            }
            self.segments.pop_front();
        }
        Ok(())
    }
}

/// The segments in a directory, the oldest first.
fn present(directory: &Path) -> Result<VecDeque<Segment>, LogError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed(directory))? {
        let entry = entry.map_err(failed(directory))?;
        let path = entry.path();
        let Some(first) = entry.file_name().to_str().and_then(first_of) else {
            continue;
        };
        let data = entry.metadata().map_err(failed(&path))?;
        if data.is_file() {
            found.push(Segment {
                first,
                path,
                length: data.len(),
                own: false,
            });
        }
    }
    found.sort_by_key(|segment| segment.first);
    Ok(found.into())
}
