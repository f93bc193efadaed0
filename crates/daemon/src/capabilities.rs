//! What the process may do.

use caps::{CapSet, Capability, CapsHashSet};

/// Keep what binding low ports needs, what packet sockets need where there are to be any, and nothing else. To be called before threads are started:
/// capabilities are each thread's own.
pub fn keep_capabilities(packet_sockets: bool) {
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let needed = |held: &Capability| match held {
        Capability::CAP_NET_BIND_SERVICE => true,
        Capability::CAP_NET_RAW => packet_sockets,
        _ => false,
    };
    let kept: CapsHashSet = held.into_iter().filter(needed).collect();
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
