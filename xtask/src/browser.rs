//! Builds the page: the participant as WASM, and the files around it, in the folder `browser` of the target folder.

use crate::steps::{cargo, succeeds, title};
use flate2::{Compression, write::GzEncoder};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TARGET: &str = "wasm32-unknown-unknown";

/// Builds the page for the stock tasks, or for the example of this name. Says where it is.
pub fn build(root: &Path, example: Option<&str>) -> Result<PathBuf, String> {
    title("page");
    let target = target_dir(root)?;
    let compiler = compiler(root)?;
    let mut command = compiler.cargo(root);
    command.args([
        "build",
        "--profile",
        "wasm",
        "--target",
        TARGET,
        "--package",
        "annulus-browser",
    ]);
    let (name, built) = match example {
        None => {
            command.args(["--bin", "annulus-browser"]);
            ("annulus-browser", target.join(TARGET).join("wasm"))
        }
        Some(example) => {
            command.args(["--example", example]);
            (example, target.join(TARGET).join("wasm/examples"))
        }
    };
    if !succeeds(command) {
        return Err("the browser's part does not compile".to_owned());
    }
    let folder = match example {
        None => target.join("browser"),
        Some(example) => target.join(format!("browser-{example}")),
    };
    assemble(root, &built.join(format!("{name}.wasm")), &folder)?;
    Ok(folder)
}

/// Puts the page together from compiled WASM.
fn assemble(root: &Path, wasm: &Path, folder: &Path) -> Result<(), String> {
    let fail = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    // Beside the old one, so that a node never serves half a page.
    let fresh = folder.with_extension("new");
    let _ = std::fs::remove_dir_all(&fresh);
    wasm_bindgen_cli_support::Bindgen::new()
        .input_path(wasm)
        .out_name("annulus")
        .web(true)
        .and_then(|bindgen| {
            bindgen
                .typescript(false)
                .remove_name_section(true)
                .remove_producers_section(true)
                .generate(&fresh)
        })
        .map_err(|error| fail("wasm-bindgen", &error))?;
    optimize(&fresh.join("annulus_bg.wasm"))?;
    let page = root.join("browser/page");
    for entry in std::fs::read_dir(&page).map_err(|error| fail("browser/page", &error))? {
        let entry = entry.map_err(|error| fail("browser/page", &error))?;
        std::fs::copy(entry.path(), fresh.join(entry.file_name()))
            .map_err(|error| fail("the page's files", &error))?;
    }
    let mut total = (0, 0);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&fresh)
        .and_then(|files| files.map(|file| file.map(|file| file.path())).collect())
        .map_err(|error| fail("the page's folder", &error))?;
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        let bytes = std::fs::read(file).map_err(|error| fail("the page's folder", &error))?;
        let packed = gzip(&bytes).map_err(|error| fail("gzip", &error))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("{:>10} {:>10} gzipped  {name}", bytes.len(), packed.len());
        total = (total.0 + bytes.len(), total.1 + packed.len());
        std::fs::write(fresh.join(format!("{name}.gz")), packed)
            .map_err(|error| fail("the page's folder", &error))?;
    }
    println!("{:>10} {:>10} gzipped  in all", total.0, total.1);
    let _ = std::fs::remove_dir_all(folder);
    std::fs::rename(&fresh, folder).map_err(|error| fail("the page's folder", &error))?;
    println!("the page is in {}; every node serves it", folder.display());
    Ok(())
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes)?;
    packer.finish()
}

/// Makes it smaller by Binaryen's optimizer, where it is installed.
fn optimize(wasm: &Path) -> Result<(), String> {
    let mut probe = Command::new("wasm-opt");
    probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        println!(
            "skipped: wasm-opt (Debian: binaryen) is not installed; it would make the WASM a tenth smaller"
        );
        return Ok(());
    }
    let small = wasm.with_extension("small");
    let mut command = Command::new("wasm-opt");
    let features = [
        "simd",
        "bulk-memory",
        "sign-ext",
        "mutable-globals",
        "nontrapping-float-to-int",
        "reference-types",
        "multivalue",
    ];
    command.args(features.map(|feature| format!("--enable-{feature}")));
    command.arg("-Os").arg(wasm).arg("-o").arg(&small);
    if succeeds(command) {
        return std::fs::rename(&small, wasm).map_err(|error| error.to_string());
    }
    println!("wasm-opt does not take this WASM; it is left as it is");
    Ok(())
}

/// A compiler that has the standard library for WASM, or can build it.
enum Compiler {
    /// The one that runs this program, with rustup's target.
    Rustup,
    /// The distribution's, with the sources of its standard library (Debian: rustc-web, cargo-web, rust-web-src).
    Distribution { linker: PathBuf },
}

fn compiler(root: &Path) -> Result<Compiler, String> {
    let has_target = || {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .current_dir(root)
            .args(["--print", "target-libdir", "--target", TARGET])
            .output();
        output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
    };
    if has_target() {
        return Ok(Compiler::Rustup);
    }
    let mut rustup = Command::new("rustup");
    rustup
        .args(["target", "add", TARGET])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if rustup.status().is_ok_and(|status| status.success()) && has_target() {
        return Ok(Compiler::Rustup);
    }
    let linker = ["wasm-ld", "wasm-ld-19", "wasm-ld-20", "wasm-ld-18"]
        .map(|name| Path::new("/usr/bin").join(name))
        .into_iter()
        .find(|linker| linker.exists());
    let sources =
        Path::new("/usr/lib/rustlib/src/rust/library/std").exists() || Path::new("/usr/src").exists();
    match linker {
        Some(linker) if Path::new("/usr/bin/cargo").exists() && sources => {
            Ok(Compiler::Distribution { linker })
        }
        _ => Err(format!(
            "no compiler for {TARGET}: `rustup target add {TARGET}`, or on Debian `apt-get install rustc-web cargo-web \
             rust-web-src lld-19`"
        )),
    }
}

impl Compiler {
    fn cargo(&self, root: &Path) -> Command {
        match self {
            Self::Rustup => cargo(root),
            Self::Distribution { linker } => {
                let mut command = Command::new("/usr/bin/cargo");
                command
                    .current_dir(root)
                    .env(
                        "PATH",
                        format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default()),
                    )
                    .env("RUSTC", "/usr/bin/rustc")
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker)
                    // These replace those of .cargo/config.toml.
                    .env("RUSTFLAGS", "-Clinker-flavor=wasm-ld -Ctarget-feature=+simd128")
                    .env_remove("RUSTUP_TOOLCHAIN")
                    .arg("-Zbuild-std=std,panic_abort");
                command
            }
        }
    }
}

/// Where cargo puts what it builds.
fn target_dir(root: &Path) -> Result<PathBuf, String> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => Ok(root.join(dir)),
        None => Ok(root.join("target")),
    }
}
