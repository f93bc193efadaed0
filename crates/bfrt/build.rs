//! Generates the messages of BF Runtime from the protocol's definition.
use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let folder = here.join("proto");
    let proto = folder.join("bfruntime.proto");
    println!("cargo::rerun-if-changed={}", proto.display());
    tonic_prost_build::configure()
        .bytes(".")
        // Batches keep their updates and entities undecoded: see envelope.rs.
        .extern_path(".bfrt_proto.WriteRequest", "crate::envelope::WriteRequest")
        .extern_path(".bfrt_proto.ReadRequest", "crate::envelope::ReadRequest")
        .extern_path(".bfrt_proto.ReadResponse", "crate::envelope::ReadResponse")
        .compile_protos(&[proto], &[folder])?;
    Ok(())
}
