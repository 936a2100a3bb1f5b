//! Builds the page: the participant as WASM, and the files around it, in the folder `browser` of the target folder.

use crate::command::{cargo, succeeds, title};
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
    // A program of its own, so that what it depends on does not change what the product is compiled with.
    let mut pack = cargo(root);
    pack.args([
        "run",
        "--release",
        "--quiet",
        "--manifest-path",
        "browser/pack/Cargo.toml",
        "--target-dir",
    ])
    .arg(target.join("pack"))
    .arg("--")
    .arg(built.join(format!("{name}.wasm")))
    .arg(&folder)
    .arg(root.join("browser/page"));
    // An example may have files of its own, which replace the product's of the same name.
    let own = root.join("browser/examples").join(name).join("page");
    if example.is_some() && own.is_dir() {
        pack.arg(own);
    }
    if succeeds(pack) {
        println!("the page is in {}; every node serves it", folder.display());
        Ok(folder)
    } else {
        Err("the page could not be put together".to_owned())
    }
}

/// Whether there is a compiler for it, or what to install.
pub fn can_build(root: &Path) -> Result<(), String> {
    compiler(root).map(drop)
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
    let sources = Path::new("/usr/lib/rustlib/src/rust/library/std").exists();
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
pub fn target_dir(root: &Path) -> Result<PathBuf, String> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => Ok(root.join(dir)),
        None => Ok(root.join("target")),
    }
}
