//! Puts a page together: WASM that rustc made and the page's files become a folder that a node can serve.
//!
//! usage: `annulus-pack WASM FOLDER PAGE...`; files of a later PAGE replace those of the same name. `cargo xtask browser`
//! calls it. It is not a member of the workspace, so that its dependencies do not change how the product is compiled.

use libdeflater::{CompressionLvl, Compressor};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [wasm, folder, pages @ ..] = args.as_slice() else {
        eprintln!("usage: annulus-pack WASM FOLDER PAGE...");
        return ExitCode::from(2);
    };
    match assemble(wasm, pages, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Puts the page together from compiled WASM.
fn assemble(wasm: &Path, pages: &[PathBuf], folder: &Path) -> Result<(), String> {
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
    for page in pages {
        let unread = |error| fail(&page.display().to_string(), &error);
        for entry in std::fs::read_dir(page).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            std::fs::copy(entry.path(), fresh.join(entry.file_name()))
                .map_err(|error| fail("the page's files", &error))?;
        }
    }
    let mut total = (0, 0);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&fresh)
        .and_then(|files| files.map(|file| file.map(|file| file.path())).collect())
        .map_err(|error| fail("the page's folder", &error))?;
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        let bytes = std::fs::read(file).map_err(|error| fail("the page's folder", &error))?;
        let packed = gzip(&bytes);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("{:>10} {:>10} gzipped  {name}", bytes.len(), packed.len());
        total = (total.0 + bytes.len(), total.1 + packed.len());
        std::fs::write(fresh.join(format!("{name}.gz")), packed)
            .map_err(|error| fail("the page's folder", &error))?;
    }
    println!("{:>10} {:>10} gzipped  in all", total.0, total.1);
    let _ = std::fs::remove_dir_all(folder);
    std::fs::rename(&fresh, folder).map_err(|error| fail("the page's folder", &error))?;
    Ok(())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = Compressor::new(CompressionLvl::best());
    let mut packed = vec![0; packer.gzip_compress_bound(bytes.len())];
    let length = packer.gzip_compress(bytes, &mut packed).expect("there is room for it");
    packed.truncate(length);
    packed
}
