//! How many files the process may open.

use crate::config::Relay;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raise the limit of open files as far as it goes: the usual 1024 is spent by 250 calls.
pub fn allow_descriptors(relay: &Relay) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!("the limit of open files stays at {soft}: {error}");
    }
    let ports = u64::from(relay.ports.last.saturating_sub(relay.ports.first)) + 1;
    let sessions = ports / 4 * relay.addresses.len() as u64;
    if hard < 4 * sessions + 100 {
        tracing::warn!("{hard} open files are enough for {} sessions, the ports for {sessions}", hard / 4);
    }
}
