//! What tests need of the system: a software GPU, a validator of kernels and a browser.

use crate::command::{succeeds, title};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Installs what some tests need and a bare system lacks, where that is possible without asking.
pub fn install() {
    if !cfg!(target_os = "linux") {
        return;
    }
    if !has_vulkan() {
        install_packages(
            "software GPU",
            &["mesa-vulkan-drivers", "libvulkan1"],
            "GPU tests",
        );
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |names: &[&str]| {
        std::env::split_paths(&path).any(|dir| names.iter().any(|name| dir.join(name).is_file()))
    };
    if !has(&["spirv-val"]) {
        install_packages("validator of kernels", &["spirv-tools"], "a test of kernels");
    }
    if !has(&["g++"]) {
        install_packages("C++ compiler", &["g++"], "a test of kernels");
    }
    let browsers = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    if !has(&browsers) && std::env::var_os("ANNULUS_CHROMIUM").is_none() {
        install_packages("browser", &["chromium"], "tests in a browser");
    }
}

fn install_packages(what: &str, packages: &[&str], tests: &str) {
    title(what);
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null());
        succeeds(command)
    };
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    let may = root && Path::new("/usr/bin/apt-get").exists();
    let names = packages.join(" ");
    if may && (apt(&install) || (apt(&["update"]) && apt(&install))) {
        println!("installed {names}");
    } else {
        println!("not installed (Debian: {names}): {tests} will be skipped");
    }
}

fn has_vulkan() -> bool {
    let driver = [
        "/usr/share/vulkan/icd.d",
        "/etc/vulkan/icd.d",
        "/usr/local/share/vulkan/icd.d",
    ];
    let driver = driver
        .iter()
        .any(|dir| std::fs::read_dir(dir).is_ok_and(|mut files| files.next().is_some()));
    let library = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"].map(PathBuf::from);
    let library = library.iter().any(|dir| {
        let nested = std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        std::iter::once(dir.clone())
            .chain(nested)
            .any(|dir| dir.join("libvulkan.so.1").exists())
    });
    driver && library
}
