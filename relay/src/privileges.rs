//! What the process may do and open.

use crate::config::Relay;
use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Keep what binding low ports needs, and nothing else. To be called before threads are started: capabilities are each thread's own.
pub fn keep_capabilities() {
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let kept: CapsHashSet = held.into_iter().filter(|held| *held == Capability::CAP_NET_BIND_SERVICE).collect();
    for capability in caps::all() {
        if !kept.contains(&capability) && caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false) {
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
    }
    let none = CapsHashSet::new();
    for (set, kept) in [(CapSet::Inheritable, &none), (CapSet::Effective, &kept), (CapSet::Permitted, &kept)] {
        if let Err(error) = caps::set(None, set, kept) {
            tracing::warn!("capabilities are kept: {error}");
        }
    }
}

/// Raise the limit of open files as far as it goes: the usual 1024 is spent by 250 calls.
pub fn allow_descriptors(relay: &Relay) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    if soft < hard {
        if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            tracing::warn!("the limit of open files stays at {soft}: {error}");
        }
    }
    let ports = u64::from(relay.ports.last.saturating_sub(relay.ports.first)) + 1;
    let sessions = ports / 4 * relay.addresses.len() as u64;
    if hard < 4 * sessions + 100 {
        tracing::warn!("{hard} open files are enough for {} sessions, the ports for {sessions}", hard / 4);
    }
}
