//! The agent between SIP servers and relays, which offloads streams to the data plane until SIGTERM or SIGINT.
#![forbid(unsafe_code)]

mod admin;
mod captures;
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
use shunt_daemon::set_up_log;
use std::process::ExitCode;

/// The control plane of Shunt.
#[derive(Parser)]
#[command(version = shunt_daemon::VERSION)]
struct Arguments {
    #[command(flatten)]
    common: shunt_daemon::CommonArguments,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    shunt_daemon::run("agent", &arguments.common, Config::complete, |config| {
        set_up_log(&config.log);
        start::run(config)
    })
}
