//! The load of an OpenSIPS with its phones: U, L and D (or offer, answer and delete by NG) over UDP, HEP copies of SIP, RTP and RTCP of both parties, by the clock.
//!
//! A call is begun when it is due, however late earlier calls are answered. Nothing is repeated: a command without a reply is lost, and a call
//! whose answer comes late asks nothing more. The outcome is one line of JSON on standard output.
#![forbid(unsafe_code)]

mod call;
mod load;
mod media;
mod outcome;
mod protocol;
mod sip;
mod sockets;

use clap::Parser;
use load::Load;
use protocol::Protocol;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use thiserror::Error;

/// Why there was no load.
#[derive(Debug, Error)]
pub enum Failure {
    #[error("{what}: {error}")]
    System { what: String, error: nix::Error },
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
    #[error("HEP: {0}")]
    Hep(#[from] shunt_hep::HepError),
}

/// The load of an OpenSIPS with its phones.
#[derive(Clone, Debug, Parser)]
pub struct Arguments {
    /// Control socket of the agent, or of the relay alone
    #[arg(long)]
    pub control: SocketAddrV4,
    /// What is spoken there
    #[arg(long, value_enum, default_value = "rtpproxy")]
    pub protocol: Protocol,
    /// Where HEP copies go; none are sent without it
    #[arg(long)]
    pub hep: Option<SocketAddrV4>,
    /// Network namespace of the callers, as a file
    #[arg(long)]
    pub caller_namespace: PathBuf,
    /// Network namespace of the callees, as a file
    #[arg(long)]
    pub callee_namespace: PathBuf,
    /// First address of the callers
    #[arg(long)]
    pub caller: Ipv4Addr,
    /// First address of the callees
    #[arg(long)]
    pub callee: Ipv4Addr,
    /// Neighbouring addresses of callers: each call takes the next one
    #[arg(long, default_value_t = 1)]
    pub callers: u32,
    /// Neighbouring addresses of callees
    #[arg(long, default_value_t = 1)]
    pub callees: u32,
    /// Calls a second
    #[arg(long)]
    pub rate: f64,
    /// Calls in all
    #[arg(long)]
    pub calls: u32,
    /// Part of the names of calls, for loads beside each other
    #[arg(long, default_value = "setup")]
    pub tag: String,
    /// RTP packets of each party, 20 ms apart
    #[arg(long, default_value_t = 20)]
    pub packets: u32,
    /// From the answer to the BYE in ms, at least; at most half as long again
    #[arg(long, default_value_t = 1000)]
    pub hold_ms: u64,
    /// Leave the calls as they are
    #[arg(long)]
    pub keep: bool,
}

impl Arguments {
    /// The shortest and the longest duration of a call.
    pub fn hold(&self) -> (Duration, Duration) {
        let least = Duration::from_millis(self.hold_ms);
        (least, least + least / 2)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match Load::new(&arguments).and_then(Load::run) {
        Ok(outcome) => match serde_json::to_string(&outcome) {
            Ok(text) => {
                println!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => failed(&error),
        },
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
