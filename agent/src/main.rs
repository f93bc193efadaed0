//! The agent: between SIP servers and relays, it puts streams into the data plane, until SIGTERM or SIGINT.
#![forbid(unsafe_code)]

mod admin;
mod clock;
mod commands;
mod conference;
mod config;
mod core;
mod data_plane;
mod events;
mod facts;
mod hashes;
mod hep;
mod listings;
mod metrics;
mod ng;
mod ports;
mod relays;
mod restore;
mod standby;
mod start;
mod stats;
mod tasks;
mod turns;
mod view;

use clap::Parser;
use config::Config;
use shunt_daemon::{Failure, read_document, set_up_log};
use std::process::ExitCode;

/// The control plane of Shunt.
#[derive(Parser)]
#[command(version = shunt_daemon::VERSION)]
struct Arguments {
    /// The checked configuration: JSON as `shunt check-config --json` writes it; `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    config: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = read_config(&arguments.config).and_then(|config| {
        set_up_log(&config.log);
        start::run(&config)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("agent"),
    }
}

fn read_config(path: &str) -> Result<Config, Failure> {
    let config: Config = read_document(path).map_err(|error| Failure::document(path, &error))?;
    config.complete().map_err(|error| Failure::Config(format!("{path}: {error}")))
}
