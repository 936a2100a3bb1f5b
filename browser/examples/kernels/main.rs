//! Every WGSL kernel in a browser, against its twin in plain Rust, and texts that a browser must refuse.
//!
//! `cargo xtask browser kernels` builds the page; the test `kernels_in_browser` of `node` opens it in a real Chromium. A
//! browser compiles WGSL with a compiler of its own, and what it computes is worth a look of its own too.

#[cfg(target_family = "wasm")]
#[path = "../../../shaders/tests/kernels/cases/mod.rs"]
mod cases;
#[cfg(target_family = "wasm")]
mod ops;
#[cfg(target_family = "wasm")]
mod planted;
#[cfg(target_family = "wasm")]
mod worker;

#[cfg(target_family = "wasm")]
fn main() {
    // It knows no task, but wants what a program of this crate begins with.
    annulus_browser::register(Vec::new());
}

#[cfg(not(target_family = "wasm"))]
fn main() -> std::process::ExitCode {
    eprintln!("this program is for a browser: `cargo xtask browser kernels` builds the page");
    std::process::ExitCode::FAILURE
}
