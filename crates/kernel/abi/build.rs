//! Compiles the XDP programs and generates Rust types for their maps from the objects' BTF.
use libbpf_cargo::SkeletonBuilder;
use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?)
        .join("../../../softswitch/bpf")
        .canonicalize()?;
    println!("cargo::rerun-if-changed={}", sources.display());
    let include = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    // The folder of the build is no part of the programs: neither where the sources are nor where the compiler runs.
    let folders = [(sources.clone(), "softswitch/bpf"), (env::current_dir()?, ".")];
    let folders = folders.map(|(folder, name)| format!("-ffile-prefix-map={}={name}", folder.display()));
    for name in ["relay", "replicate"] {
        SkeletonBuilder::new()
            .source(sources.join(format!("{name}.bpf.c")))
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args(["-O2", "-g", "-Wall", "-Werror", "-mcpu=v3", &include, &folders[0], &folders[1]])
            .reference_obj(true)
            .build_and_generate(out.join(format!("{name}.skel.rs")))?;
    }
    Ok(())
}
