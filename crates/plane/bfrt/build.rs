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
    // By a relative path, which panics of the generated code name: packages say nothing of the machine that built them.
    let generated = PathBuf::from(env::var("OUT_DIR")?).join("bfrt_proto.rs");
    let sources = here.join("src");
    let above = sources.ancestors().take_while(|above| !generated.starts_with(above)).count();
    let common = sources.ancestors().nth(above).ok_or("no common folder")?;
    let path = PathBuf::from("../".repeat(above)).join(generated.strip_prefix(common)?);
    println!("cargo::rustc-env=BFRT_PROTO={}", path.display());
    Ok(())
}
