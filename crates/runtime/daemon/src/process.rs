//! How a daemon begins, says that it is ready, shows that it lives, and is told to end.

use crate::document::read_document;
use crate::failure::Failure;
use sd_notify::NotifyState;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The arguments that all daemons have.
#[derive(clap::Args)]
pub struct CommonArguments {
    /// The checked configuration: JSON as `shunt check-config --json` writes it; `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    pub config: String,
}

/// Read the configuration and run with it; the exit code says how that ended. `complete`: what is checked of the configuration before.
pub fn run<C: DeserializeOwned, E: Display>(
    daemon: &str,
    arguments: &CommonArguments,
    complete: impl FnOnce(C) -> Result<C, E>,
    run: impl FnOnce(&C) -> Result<(), Failure>,
) -> ExitCode {
    let path = &arguments.config;
    let config = read_document(path).map_err(|error| Failure::document(path, &error));
    let config = config.and_then(|config| complete(config).map_err(|error| Failure::Config(format!("{path}: {error}"))));
    match config.and_then(|config| run(&config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(daemon),
    }
}

/// SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Take them from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// No handler can be had.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Wait for one of them.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {},
            _ = self.interrupt.recv() => {},
        }
    }
}

/// Say on standard output and to systemd that the daemon serves, and what.
pub fn say_ready(line: &str) {
    // Nobody has to read it.
    let _ = writeln!(io::stdout(), "READY {line}");
    let _ = sd_notify::notify(false, &[NotifyState::Ready, NotifyState::Status(line)]);
}

/// Say to systemd that the daemon ends.
pub fn say_stopping() {
    let _ = sd_notify::notify(false, &[NotifyState::Stopping]);
}

/// Say to systemd that the daemon is about to end and what it waits for, and that it has to be given so much longer.
pub fn say_draining(status: &str, longer: Duration) {
    let microseconds = u32::try_from(longer.as_micros()).unwrap_or(u32::MAX);
    let _ = sd_notify::notify(
        false,
        &[
            NotifyState::Stopping,
            NotifyState::Status(status),
            NotifyState::ExtendTimeoutUsec(microseconds),
        ],
    );
}

/// A period in which a daemon looks after itself, and shows systemd that it lives where that watches.
pub struct Pulse {
    interval: Interval,
    watched: bool,
}

impl Pulse {
    /// `period`: the longest; a watchdog of systemd's may want it shorter. Needs a tokio runtime.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        let mut watchdog = 0;
        let watched = sd_notify::watchdog_enabled(false, &mut watchdog);
        let period = if watched {
            period.min(Duration::from_micros(watchdog / 3))
        } else {
            period
        };
        let mut interval = interval(period.max(Duration::from_millis(1)));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { interval, watched }
    }

    #[must_use]
    pub fn period(&self) -> Duration {
        self.interval.period()
    }

    /// Wait until it is time to look.
    pub async fn due(&mut self) {
        self.interval.tick().await;
    }

    /// All is well.
    pub fn show(&self) {
        if self.watched {
            let _ = sd_notify::notify(false, &[NotifyState::Watchdog]);
        }
    }
}
