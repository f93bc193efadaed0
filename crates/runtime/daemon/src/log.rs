//! The log on standard error.

use serde::Deserialize;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt};

/// How the log is written.
#[derive(Clone, Debug, Deserialize)]
pub struct Log {
    /// `debug`, `info`, `warning` or `error`.
    pub level: String,
    /// `text` or `json`.
    pub format: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: "text".into(),
        }
    }
}

/// Standard error. The journal is told each line's priority (sd-daemon(3)), so that `journalctl -p err` finds errors.
struct Output {
    journal: bool,
}

struct Lines {
    priority: Option<u8>,
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        Lines { priority: None }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Lines {
        Lines {
            priority: self.journal.then(|| priority(*meta.level())),
        }
    }
}

impl Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut error = io::stderr().lock();
        match self.priority {
            None => error.write(text),
            Some(priority) => {
                error.write_all(&marked(priority, text))?;
                Ok(text.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// As in syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Each line of a text with its priority in front.
fn marked(priority: u8, text: &[u8]) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines
        .flat_map(|line| [format!("<{priority}>").into_bytes(), line.to_vec()])
        .flatten()
        .collect()
}

/// Whether standard error is the journal's: systemd names its device and inode (systemd.exec(5)), for a child may have another one.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let at = std::fs::metadata("/proc/self/fd/2");
    at.is_ok_and(|at| stream == format!("{}:{}", at.dev(), at.ino()))
}

/// What changes the filter of the log that runs, and the filter as it was given.
struct Reload {
    handle: Handle<Targets, Registry>,
    text: Mutex<String>,
}

static RELOAD: OnceLock<Reload> = OnceLock::new();

/// Write the log from now on; to be called once.
pub fn set_up_log(log: &Log) {
    let level = match log.level.as_str() {
        "warning" => "warn",
        // The libraries' own would be most of it: a line for each frame of a connection.
        "debug" => "debug,h2=info,hyper=info,hyper_util=info,tower=info,tonic=info",
        level => level,
    };
    let (filter, handle) = reload::Layer::new(level.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO)));
    let _ = RELOAD.set(Reload {
        handle,
        text: Mutex::new(level.to_owned()),
    });
    // A log that cannot be written must not end the process: the library would say so on standard error, and panic.
    let lines = fmt::layer()
        .with_writer(Output { journal: is_journal() })
        .log_internal_errors(false)
        .with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    if log.format == "json" {
        registry.with(lines.json()).init();
    } else {
        registry.with(lines.with_ansi(false)).init();
    }
}

/// The filter of the log that runs; empty before [`set_up_log`].
#[must_use]
pub fn log_filter() -> String {
    let text = RELOAD
        .get()
        .map(|reload| reload.text.lock().unwrap_or_else(PoisonError::into_inner).clone());
    text.unwrap_or_default()
}

/// Change it: levels, of all or of a module and what is in it, as `info,shunt_agent=debug`.
///
/// # Errors
/// A level cannot be read, or no log runs.
pub fn set_log_filter(text: &str) -> Result<(), String> {
    let filter: Targets = text.parse().map_err(|error| format!("{error}"))?;
    let reload = RELOAD.get().ok_or("no log runs")?;
    reload.handle.reload(filter).map_err(|error| error.to_string())?;
    text.clone_into(&mut reload.text.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_journal_is_told_the_priority_of_each_line() {
        assert_eq!(marked(priority(Level::WARN), b"one\ntwo\n"), b"<4>one\n<4>two\n");
        assert_eq!([Level::ERROR, Level::INFO, Level::DEBUG, Level::TRACE].map(priority), [3, 6, 7, 7]);
    }

    #[test]
    fn the_filter_is_changed_while_the_log_runs() {
        set_up_log(&Log {
            level: "warning".into(),
            format: "text".into(),
        });
        assert_eq!(log_filter(), "warn");
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        set_log_filter("debug").unwrap();
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(set_log_filter("=[").is_err());
        assert_eq!(log_filter(), "debug");
    }
}
