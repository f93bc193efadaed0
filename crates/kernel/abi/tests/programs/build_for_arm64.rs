//! The programs as they are compiled for arm64: with the loads in order, and the same in every other way.

use crate::plane::{Plane, Setup};
use crate::relaying::{check_vectors, v4, v6};
use shunt_abi::RELAY_OBJECT;
use std::path::Path;
use std::process::Command;

/// Whether an object has an instruction r = xchg(address, r) of 64 bits (RFC 9669 section 5.3).
fn exchanges(object: &[u8]) -> bool {
    object
        .chunks_exact(8)
        .any(|instruction| instruction[0] == 0xdb && instruction[4..] == [0xe1, 0, 0, 0])
}

#[test]
fn an_object_for_arm64_orders_its_loads_and_relays_the_same() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../softswitch/bpf");
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join("relay_arm64.bpf.o");
    let done = Command::new("clang")
        .args([
            "-target",
            "bpf",
            "-D__TARGET_ARCH_arm64",
            "-O2",
            "-g",
            "-Wall",
            "-Werror",
            "-mcpu=v3",
        ])
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
        .arg("-c")
        .arg(sources.join("relay.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status()
        .expect("clang runs");
    assert!(done.success());
    let bytes = std::fs::read(&object).expect("the object that clang has written").leak();
    assert!(exchanges(bytes));
    if cfg!(target_arch = "x86_64") {
        assert!(!exchanges(RELAY_OBJECT), "x86 needs no barrier");
    }
    let Some(mut plane) = Plane::load(Setup {
        object: bytes,
        ..Setup::default()
    }) else {
        return;
    };
    plane.insert(&v4());
    plane.insert(&v6());
    for other in [
        "10.1.0.2:4006 10.1.0.1:20006 [fd02::1]:20002 [fd02::2]:6000",
        "[fd01::2]:4004 [fd01::1]:20004 10.2.0.1:20002 10.2.0.2:6000",
    ] {
        let parts: Vec<_> = other.split(' ').collect();
        plane.insert(&crate::plane::Entry::new(parts[0], parts[1], parts[2], parts[3]));
    }
    check_vectors(&plane);
}
