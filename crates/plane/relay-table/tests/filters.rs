//! Rows with a time to live on the kernel's maps. Needs root.
#![allow(clippy::unwrap_used)]

use shunt_abi::relay::slot;
use shunt_net::Endpoint;
use shunt_relay_table::Filters;
use shunt_xdp::{Load, monotonic_coarse_ns, monotonic_ns};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The packet programs compare with the coarse clock: a row that they still apply is not reported as over.
#[test]
fn a_row_is_in_force_as_long_as_for_the_packet_programs() {
    let loaded = Load {
        name: "relay",
        object: shunt_abi::RELAY_OBJECT,
        sizes: BTreeMap::from([
            (".data.slots", 256 * size_of::<slot>()),
            ("details", 256),
            ("wides", 256),
            ("overflow", 1),
        ]),
        without: &[],
        ..Load::default()
    }
    .load()
    .unwrap();
    let mut filters = Filters::new(&loaded).unwrap();
    let source = Endpoint::new(Ipv4Addr::new(192, 0, 2, 1), 0);
    for ttl_ms in 1_u32..20 {
        let least = monotonic_ns() + u64::from(ttl_ms) * 1_000_000;
        filters.allow(&source, ttl_ms).unwrap();
        while filters.allowlist.get(&source).unwrap().is_some() {}
        assert!(monotonic_coarse_ns() >= least);
        assert!(filters.allowlist.rows().unwrap().is_empty());
    }
}
