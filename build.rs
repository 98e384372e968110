//! Compiles the programs of `bpf/` for the `xdp` feature. Needs clang; everything else is in the crates.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "xdp")]
    xdp::compile();
}

#[cfg(feature = "xdp")]
mod xdp {
    use std::path::{Path, PathBuf};

    const PROGRAMS: [&str; 2] = ["steer", "copies"];

    pub fn compile() {
        for name in PROGRAMS {
            let source = format!("bpf/{name}.bpf.c");
            println!("cargo::rerun-if-changed={source}");
            let object = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(format!("{name}.bpf.o"));
            let compiled = libbpf_cargo::SkeletonBuilder::new().source(&source).clang_args(clang_arguments()).obj(&object).build();
            if let Err(error) = compiled {
                panic!("compiling {source}: {error:#}\nThe feature `xdp` needs clang; install it, or build with --no-default-features.");
            }
        }
    }

    /// Debian and Ubuntu keep `asm/types.h` in a directory per architecture that clang does not search for the BPF target.
    fn clang_arguments() -> Vec<String> {
        let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
        let path = format!("/usr/include/{arch}-linux-gnu");
        if Path::new(&path).is_dir() { vec![format!("-I{path}")] } else { Vec::new() }
    }
}
