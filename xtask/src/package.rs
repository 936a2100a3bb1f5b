//! What others install: a tarball, a Debian package and a Python wheel, all of the same program and files, and their sums.
//!
//! A Debian package is put together by `dpkg-deb`, a wheel is a zip, for which Python has a command; where one of them is
//! not there that package is left out with a word.

use crate::browser::target_dir;
use crate::command::{cargo, succeeds, title};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SUMMARY: &str = "Train one model on all the machines that you have, of any make, without a master";
const LICENCE: &str = "MIT OR Apache-2.0";

/// The wheel's name. On PyPI another project is called `annulus`.
const DISTRIBUTION: &str = "annulus-train";

/// Makes all that can be made here; says where.
pub fn run(root: &Path) -> Result<bool, String> {
    title("program");
    let mut build = cargo(root);
    build.args(["build", "--release", "--locked", "--bin", "annulus"]);
    // Plain builds do without, since it has Burn compiled with other features of crates beneath it.
    build.args(["--features", "parquet"]);
    if !succeeds(build) {
        return Ok(false);
    }
    let target = target_dir(root)?;
    let out = target.join("package");
    let _ = fs::remove_dir_all(&out);
    let files = Files::stage(root, &target, &out.join("files"))?;
    let host = host()?;
    let made = [
        files.tarball(&out, &host)?,
        files.debian(&out)?,
        files.wheel(root, &out)?,
    ];
    title("packages");
    let names: Vec<&str> = made.iter().flatten().map(String::as_str).collect();
    let sums = output(Command::new("sha256sum").args(&names).current_dir(&out))?;
    write(&out.join("SHA256SUMS"), &sums)?;
    for name in names {
        let size = fs::metadata(out.join(name))
            .map_err(|e| format!("{name}: {e}"))?
            .len();
        println!("{:>6.1} MB  {}", size as f64 / 1e6, out.join(name).display());
    }
    Ok(true)
}

/// The files of a package, laid out as under `/usr`.
struct Files(PathBuf);

impl Files {
    fn stage(root: &Path, target: &Path, to: &Path) -> Result<Self, String> {
        let program = to.join("bin/annulus");
        copy(&target.join("release/annulus"), &program)?;
        let doc = to.join("share/doc/annulus");
        for name in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            copy(&root.join(name), &doc.join(name))?;
        }
        let copyright = format!(
            "{SUMMARY}\n\nLicence: {LICENCE}, as in LICENSE-MIT and LICENSE-APACHE beside this file.\n"
        );
        write(&doc.join("copyright"), &copyright)?;
        let man = to.join("share/man/man1");
        fs::create_dir_all(&man).map_err(|e| e.to_string())?;
        output(Command::new(&program).arg("man").arg(&man))?;
        for (shell, path) in [
            ("bash", "share/bash-completion/completions/annulus"),
            ("zsh", "share/zsh/vendor-completions/_annulus"),
            ("fish", "share/fish/vendor_completions.d/annulus.fish"),
        ] {
            let script = output(Command::new(&program).args(["completions", shell]))?;
            write(&to.join(path), &script)?;
        }
        let page = target.join("browser");
        match page.join("index.html").is_file() {
            true => copy_all(&page, &to.join("share/annulus/browser"))?,
            false => println!("without the page for browsers: `cargo xtask browser` builds it"),
        }
        Ok(Self(to.to_path_buf()))
    }

    fn tarball(&self, out: &Path, host: &str) -> Result<Option<String>, String> {
        let name = format!("annulus-{VERSION}-{host}.tar.gz");
        let folder = format!("annulus-{VERSION}");
        let mut tar = Command::new("tar");
        tar.current_dir(&self.0)
            .args([
                "--create",
                "--gzip",
                "--sort=name",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
            ])
            .arg(format!("--transform=s,^\\.,{folder},"))
            .arg("--file")
            .arg(out.join(&name))
            .arg(".");
        Ok(succeeds(tar).then_some(name))
    }

    fn debian(&self, out: &Path) -> Result<Option<String>, String> {
        let Ok(arch) = output(Command::new("dpkg").arg("--print-architecture")) else {
            println!("skipped: the Debian package: dpkg is not here");
            return Ok(None);
        };
        let (arch, tree) = (arch.trim(), out.join("debian"));
        copy_all(&self.0, &tree.join("usr"))?;
        let kilobytes = output(&mut command("du", &[Path::new("-sk"), &tree]))?;
        let kilobytes = kilobytes.split_whitespace().next().unwrap_or("0").to_owned();
        let libc = self
            .libc()?
            .map_or(String::new(), |(major, minor)| format!(" (>= {major}.{minor})"));
        let control = format!(
            "Package: annulus\nVersion: {VERSION}\nArchitecture: {arch}\nMaintainer: The Annulus project <annulus@localhost>\n\
             Installed-Size: {kilobytes}\nDepends: libc6{libc}, libgcc-s1\nRecommends: libvulkan1, mesa-vulkan-drivers\n\
             Section: science\nPriority: optional\nDescription: {SUMMARY}\n \
             Peers with a GPU of any vendor or none, and browser tabs, train one model\n \
             together and hold the same bits after every round.\n"
        );
        write(&tree.join("DEBIAN/control"), &control)?;
        let name = format!("annulus_{VERSION}_{arch}.deb");
        let mut build = Command::new("dpkg-deb");
        build
            .args(["--root-owner-group", "--build"])
            .arg(&tree)
            .arg(out.join(&name));
        Ok(succeeds(build).then_some(name))
    }

    /// A wheel that carries the program and the Python package, as PEP 427 has it.
    fn wheel(&self, root: &Path, out: &Path) -> Result<Option<String>, String> {
        let python = output(Command::new("python3").arg("--version")).is_ok();
        let (Some((major, minor)), true) = (self.libc()?, python) else {
            println!("skipped: the wheel: it takes Python, and a program for glibc");
            return Ok(None);
        };
        let tag = format!("py3-none-manylinux_{major}_{minor}_{}", std::env::consts::ARCH);
        let stem = format!("{}-{VERSION}", DISTRIBUTION.replace('-', "_"));
        let (name, tree) = (format!("{stem}-{tag}.whl"), out.join("wheel"));
        let data = tree.join(format!("{stem}.data"));
        let info = tree.join(format!("{stem}.dist-info"));
        let modules = tree.join("annulus");
        python_files(&root.join("python/annulus"), &modules)?;
        copy(&self.0.join("bin/annulus"), &data.join("scripts/annulus"))?;
        copy_all(&self.0.join("share"), &data.join("data/share"))?;
        write(
            &info.join("WHEEL"),
            &format!(
                "Wheel-Version: 1.0\nGenerator: cargo xtask package\nRoot-Is-Purelib: false\nTag: {tag}\n"
            ),
        )?;
        let readme =
            fs::read_to_string(self.0.join("share/doc/annulus/README.md")).map_err(|e| e.to_string())?;
        write(
            &info.join("METADATA"),
            &format!(
                "Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {VERSION}\nSummary: {SUMMARY}\nLicense: {LICENCE}\n\
                 Requires-Python: >=3.10\nRequires-Dist: numpy\nRequires-Dist: safetensors\n\
                 Provides-Extra: torch\nRequires-Dist: torch>=2.15; extra == \"torch\"\n\
                 Description-Content-Type: text/markdown\n\n{readme}"
            ),
        )?;
        self.record(&tree, &info.join("RECORD"))?;
        let mut zip = Command::new("python3");
        zip.current_dir(&tree)
            .args(["-m", "zipfile", "--create"])
            .arg(out.join(&name));
        zip.args([&modules, &data, &info].map(|folder| folder.file_name().expect("it has a name")));
        Ok(succeeds(zip).then_some(name))
    }

    /// The list of a wheel's files, each with its hash.
    fn record(&self, tree: &Path, record: &Path) -> Result<(), String> {
        let mut paths = Vec::new();
        files_in(tree, &mut paths)?;
        paths.sort();
        let mut text = String::new();
        for path in paths {
            let sum = output(&mut command("sha256sum", &[&path]))?;
            let size = fs::metadata(&path).map_err(|e| e.to_string())?.len();
            let name = path
                .strip_prefix(tree)
                .expect("it lies there")
                .display()
                .to_string();
            text += &format!("{name},sha256={},{size}\n", base64(&bytes(&sum)));
        }
        let own = record.strip_prefix(tree).expect("it lies there").display();
        write(record, &format!("{text}{own},,\n"))
    }

    /// The version of glibc that the program asks for, if it does.
    fn libc(&self) -> Result<Option<(u32, u32)>, String> {
        let program = fs::read(self.0.join("bin/annulus")).map_err(|e| e.to_string())?;
        Ok(newest_glibc(&program))
    }
}

/// The newest version of glibc whose symbols a program names.
fn newest_glibc(program: &[u8]) -> Option<(u32, u32)> {
    let begin = b"GLIBC_";
    let places = program
        .windows(begin.len())
        .enumerate()
        .filter(|(_, bytes)| bytes == begin);
    let versions = places.filter_map(|(at, _)| {
        let rest = &program[at + begin.len()..];
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
        let text = std::str::from_utf8(&rest[..end]).ok()?;
        let mut parts = text.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    });
    versions.max()
}

/// The triple of the platform that the compiler builds for.
fn host() -> Result<String, String> {
    let told = output(Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("-vV"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or("rustc does not say what it builds for".into())
}

/// Bytes out of a text that begins with their hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .map_while(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    digits
        .chunks_exact(2)
        .map(|pair| 16 * pair[0] + pair[1])
        .collect()
}

/// Base 64 for names of files, without filling.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .fold(0u32, |bits, byte| (bits << 8) | u32::from(*byte))
            << (8 * (3 - group.len()));
        for at in 0..=group.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * at)) as usize & 63]));
        }
    }
    text
}

fn files_in(folder: &Path, into: &mut Vec<PathBuf>) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        match path.is_dir() {
            true => files_in(&path, into)?,
            false => into.push(path),
        }
    }
    Ok(())
}

/// Copies a package of pure Python, without what an interpreter has compiled.
fn python_files(from: &Path, to: &Path) -> Result<(), String> {
    let mut paths = Vec::new();
    files_in(from, &mut paths)?;
    paths.retain(|path| {
        path.extension().is_some_and(|e| e == "py") || path.file_name().is_some_and(|name| name == "py.typed")
    });
    let mut each = paths.iter();
    each.try_for_each(|path| copy(path, &to.join(path.strip_prefix(from).expect("it lies there"))))
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    let mut paths = Vec::new();
    files_in(from, &mut paths)?;
    let mut each = paths.iter();
    each.try_for_each(|path| copy(path, &to.join(path.strip_prefix(from).expect("it lies there"))))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let parent = to.parent().expect("a file has a folder");
    let copied = fs::create_dir_all(parent).and_then(|()| fs::copy(from, to));
    copied
        .map(drop)
        .map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let parent = path.parent().expect("a file has a folder");
    let written = fs::create_dir_all(parent).and_then(|()| fs::write(path, text));
    written.map_err(|e| format!("{}: {e}", path.display()))
}

fn command(program: &str, args: &[&Path]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// What a program writes to standard output.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_gets_the_python_package_and_nothing_that_was_compiled() {
        let scratch = std::env::temp_dir().join(format!("annulus-wheel-{}", std::process::id()));
        let (from, to) = (scratch.join("from"), scratch.join("to"));
        for name in ["a.py", "py.typed", "deep/b.py", "__pycache__/a.cpython-311.pyc"] {
            write(&from.join(name), "").unwrap();
        }
        python_files(&from, &to).unwrap();
        let mut found = Vec::new();
        files_in(&to, &mut found).unwrap();
        found.sort();
        let names = ["a.py", "deep/b.py", "py.typed"].map(|name| to.join(name));
        fs::remove_dir_all(&scratch).unwrap();
        assert_eq!(found, names);
    }

    #[test]
    fn hashes_are_written_as_wheels_have_them() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg");
        assert_eq!(base64(b"fo"), "Zm8");
        assert_eq!(base64(b"foo"), "Zm9v");
        assert_eq!(base64(&[0xfb, 0xff]), "-_8");
        assert_eq!(bytes("00ff10  a file"), [0, 255, 16]);
    }

    #[test]
    fn the_newest_glibc_is_found() {
        assert_eq!(
            newest_glibc(b"xGLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0"),
            Some((2, 34))
        );
        assert_eq!(newest_glibc(b"nothing"), None);
    }
}
