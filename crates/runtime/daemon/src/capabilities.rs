//! What the process may do.

use caps::{CapSet, CapsHashSet};

pub use caps::Capability;

/// Keep these capabilities of those that the process has, for it and for all that it starts, and no other. To be called before threads are started:
/// capabilities are each thread's own.
pub fn keep_capabilities(wanted: &[Capability]) {
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let kept: CapsHashSet = held.into_iter().filter(|held| wanted.contains(held)).collect();
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
