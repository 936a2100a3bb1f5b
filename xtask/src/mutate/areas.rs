//! The areas that mutants are drawn from: their files, and the commands that test them.

use super::change::{Change, named};
use super::exchanges::Mutant;
use super::{kernels, rust};
use std::fs;
use std::path::Path;

/// A part of the project with tests of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    Protocol,
    Node,
    Kernels,
}

/// The mistakes that the simulation must find are no product code.
const PLANTED: &str = "core/src/base/planted.rs";

impl Area {
    pub const ALL: [Self; 3] = [Self::Protocol, Self::Node, Self::Kernels];

    pub fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Node => "node",
            Self::Kernels => "kernels",
        }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|area| area.name() == name)
    }

    /// The area's files, from the project's folder on.
    pub fn files(self, root: &Path) -> Vec<String> {
        let roots: &[&str] = match self {
            Self::Protocol => &["core/src/lib.rs"],
            Self::Node => &[
                "node/src/lib.rs",
                "node/src/main.rs",
                "node/net/src/lib.rs",
                "node/table/src/lib.rs",
                "node/images/src/lib.rs",
            ],
            Self::Kernels => {
                let all = kernels::all(root).into_iter();
                return all
                    .map(|kernel| format!("{}/{kernel}.wgsl", kernels::FOLDER))
                    .collect();
            }
        };
        let files = roots.iter().flat_map(|file| rust::files(&root.join(file)));
        let names = files.filter_map(|file| {
            let name = file.strip_prefix(root).ok()?.display().to_string();
            Some(name.replace('\\', "/"))
        });
        names.filter(|name| name != PLANTED).collect()
    }
}

/// The text that mutants of a file are made of, and these; none of a file that is not there.
pub fn mutants(root: &Path, file: &str) -> (String, Vec<(Change, Mutant)>) {
    let kernel = file
        .strip_suffix(".wgsl")
        .and_then(|path| path.rsplit('/').next());
    match kernel {
        Some(kernel) => {
            let text = kernels::whole_text(&root.join(kernels::FOLDER), kernel).unwrap_or_default();
            let mut named = named(file, &text, kernels::mutants(&text));
            named.retain(|(change, _)| kernels::why_equivalent(kernel, &change.line, &change.what).is_none());
            (text, named)
        }
        None => {
            let text = fs::read_to_string(root.join(file)).unwrap_or_default();
            let named = named(file, &text, rust::mutants(&text));
            (text, named)
        }
    }
}

/// The commands that test a Rust file, from the quickest to the slowest: what cargo is told.
pub fn commands(root: &Path, file: &str) -> Vec<Vec<String>> {
    let (units, folder): (&str, &str) = match file {
        _ if file.starts_with("core/") => ("test --release --package annulus-core --lib", "core/tests"),
        _ if file.starts_with("node/net/") => ("test --package annulus-net --lib", "node/tests"),
        _ if file.starts_with("node/table/") => {
            ("test --release --package annulus-table --lib", "node/tests")
        }
        _ if file.starts_with("node/images/") => {
            ("test --release --package annulus-images --lib", "node/tests")
        }
        _ => ("test --release --workspace --lib", "node/tests"),
    };
    let programs = programs(&root.join(folder));
    let programs: String = programs.iter().map(|name| format!(" --test {name}")).collect();
    let mut all = vec![units.to_string()];
    if folder == "core/tests" {
        all.push(format!("test --release --package annulus-core{programs}"));
    } else {
        // The peers' tests start these, and cargo does not build them for tests that are named.
        all.push("build --release --workspace --example faulty_task --example liar_task".to_string());
        all.push(format!("test --release --workspace{programs}"));
    }
    let words = |command: String| command.split(' ').map(str::to_owned).collect();
    all.into_iter().map(words).collect()
}

/// The test programs in a folder, as cargo finds them: files, and folders with a `main.rs`.
fn programs(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut programs: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists()
        })
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    programs.sort();
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn each_area_has_product_files_alone_and_all_have_mutants() {
        for area in Area::ALL {
            let files = area.files(root());
            let count: usize = files.iter().map(|file| mutants(root(), file).1.len()).sum();
            assert!(count > 1000, "{}: {count}", area.name());
            let is_wrong =
                |file: &&String| file.contains("tests") || file.contains("/sim/") || *file == PLANTED;
            assert_eq!(files.iter().find(is_wrong), None);
            assert!(files.iter().all(|file| root().join(file).exists()));
            assert_eq!(Area::by_name(area.name()), Some(area));
        }
    }

    #[test]
    fn quick_tests_come_first_and_programs_are_found_in_both_layouts() {
        let tests = std::env::temp_dir().join(format!("annulus-mutants-areas-{}", std::process::id()));
        for file in ["core/tests/a.rs", "core/tests/b/main.rs", "core/tests/c/mod.rs"] {
            let path = tests.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = commands(&tests, "core/src/peer/member.rs");
        fs::remove_dir_all(&tests).unwrap();
        assert_eq!(found[0].join(" "), "test --release --package annulus-core --lib");
        assert_eq!(
            found[1].join(" "),
            "test --release --package annulus-core --test a --test b"
        );
        let quick = |file| commands(root(), file)[0].join(" ");
        assert_eq!(quick("node/net/src/lib.rs"), "test --package annulus-net --lib");
        assert_eq!(quick("node/src/lib.rs"), "test --release --workspace --lib");
    }
}
