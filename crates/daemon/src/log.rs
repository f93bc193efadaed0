//! The log on standard error.

use serde::Deserialize;
use tracing_subscriber::EnvFilter;

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

/// Write the log from now on; to be called once.
pub fn set_up_log(log: &Log) {
    let level = if log.level == "warning" { "warn" } else { &log.level };
    // A log that cannot be written must not end the process: the library would say so on standard error, and panic.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_target(false);
    if log.format == "json" {
        builder.json().init();
    } else {
        builder.with_ansi(false).init();
    }
}
