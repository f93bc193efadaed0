//! Says what the daemons are built from and by, for `--version`.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Only a package names its commit: elsewhere every commit would build all daemons anew.
    println!("cargo::rerun-if-env-changed=SHUNT_COMMIT");
    let of = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let unknown = || "unknown".to_owned();
    let compiler = of("RUSTC").and_then(|rustc| Command::new(rustc).arg("--version").output().ok());
    let compiler = compiler.and_then(|output| String::from_utf8(output.stdout).ok());
    // As in `rustc 1.85.0 (4d91de4e4 2025-02-17)`.
    let compiler = compiler
        .as_deref()
        .and_then(|line| line.split_whitespace().nth(1))
        .map_or_else(unknown, str::to_owned);
    println!(
        "cargo::rustc-env=SHUNT_VERSION={} (commit {}, rustc {compiler}, {}, {})",
        of("CARGO_PKG_VERSION").unwrap_or_else(unknown),
        of("SHUNT_COMMIT").unwrap_or_else(unknown),
        of("TARGET").unwrap_or_else(unknown),
        of("PROFILE").unwrap_or_else(unknown),
    );
}
