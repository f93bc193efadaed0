//! The compiled XDP programs, and the types of their maps as the compiler left them in BTF.
//!
//! Nothing of the layout is written down a second time: `build.rs` compiles `softswitch/bpf` and generates the types.

#[allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks)]
mod relay_skeleton {
    include!(concat!(env!("OUT_DIR"), "/relay.skel.rs"));
}

#[allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks)]
mod replicate_skeleton {
    include!(concat!(env!("OUT_DIR"), "/replicate.skel.rs"));
}

/// Types of the relay's maps.
pub use relay_skeleton::types as relay;
/// Types of the conference maps; those of the relay are in it again.
pub use replicate_skeleton::types as replicate;

/// The relay's programs (`relay.bpf.c`), as an ELF object.
pub static RELAY_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/relay.bpf.o"));

/// The relay together with conferences (`replicate.bpf.c`), as an ELF object.
pub static REPLICATE_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/replicate.bpf.o"));
