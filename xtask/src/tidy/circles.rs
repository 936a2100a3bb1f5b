//! Files of a crate that import each other in a circle: none of them can be understood, moved or tested alone.
//!
//! An import counts as an arrow to the module that defines the name, so a `mod.rs` that only re-exports is not involved.
//! Imports of a module's own files from the module above them do not count: they are its inside. The check does not see
//! uses of values through methods and fields.

use super::modules::{Crate, Import, Module};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// One file's need of another, and the line and path of the first import.
pub struct Need {
    pub from: usize,
    pub to: usize,
    pub what: String,
}

/// Files in a circle, and the imports among them.
#[derive(Debug)]
pub struct Circle {
    pub files: Vec<PathBuf>,
    /// File, and line with path.
    pub imports: Vec<(PathBuf, String)>,
}

impl Circle {
    /// The files, and line by line why each is in the circle; `name` says how a file is called.
    pub fn display(&self, name: impl Fn(&Path) -> String) -> String {
        let files: Vec<String> = self.files.iter().map(|file| name(file)).collect();
        let imports = self
            .imports
            .iter()
            .map(|(file, what)| format!("\n    {}:{what}", name(file)));
        format!(
            "imports in a circle: {}{}",
            files.join(", "),
            imports.collect::<String>()
        )
    }
}

/// All circles among the files of a crate.
pub fn circles(all: &Crate) -> Vec<Circle> {
    let needs = needs(all);
    let reached: Vec<BTreeSet<usize>> = (0..all.files.len()).map(|file| reach(&needs, file)).collect();
    let mut circles = Vec::new();
    for file in 0..all.files.len() {
        let together = |other: &usize| reached[file].contains(other) && reached[*other].contains(&file);
        let members: BTreeSet<usize> = (0..all.files.len()).filter(together).collect();
        if members.first() == Some(&file) {
            let inside = needs
                .iter()
                .filter(|need| members.contains(&need.from) && members.contains(&need.to));
            circles.push(Circle {
                files: members.iter().map(|member| all.files[*member].clone()).collect(),
                imports: inside
                    .map(|need| (all.files[need.from].clone(), need.what.clone()))
                    .collect(),
            });
        }
    }
    circles
}

/// All that can be reached from `file`; itself only by a circle.
fn reach(needs: &[Need], file: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(from) = open.pop() {
        let next = needs.iter().filter(|need| need.from == from).map(|need| need.to);
        open.extend(next.filter(|to| reached.insert(*to)));
    }
    reached
}

/// Each pair of different files once.
pub fn needs(all: &Crate) -> Vec<Need> {
    let mut first: BTreeMap<(usize, usize), Need> = BTreeMap::new();
    for (at, module) in all.modules.iter().enumerate() {
        for (path, line, is_glob) in asked_for(module) {
            let to = match find(all, at, path, 0) {
                Some(Target::Item(file)) => file,
                Some(Target::Module(whole)) if is_glob => all.modules[whole].file,
                // A module as such is only a name.
                _ => continue,
            };
            let from = module.file;
            if to != from && to != all.modules[module.parent].file {
                let what = format!("{line}: {}", path.join("::"));
                first.entry((from, to)).or_insert(Need { from, to, what });
            }
        }
    }
    first.into_values().collect()
}

/// The paths that a module asks others for, with their lines and whether all of a module is meant. Names that it
/// only re-exports are left out.
fn asked_for(module: &Module) -> impl Iterator<Item = (&[String], usize, bool)> {
    let used = |import: &&Import| !import.is_public || module.words.contains(&import.name);
    let imports = module.imports.iter().filter(used);
    let imports = imports.map(|import| (import.path.as_slice(), import.line, import.name == "*"));
    let paths = module
        .paths
        .iter()
        .map(|(path, line)| (path.as_slice(), *line, false));
    imports.chain(paths)
}

/// What a path leads to within the crate.
#[derive(Clone, Copy)]
enum Target {
    /// A module, by its number.
    Module(usize),
    /// Something that this file defines.
    Item(usize),
}

/// Follows `path` from the module `at`; nothing if it leads to another crate.
fn find(all: &Crate, at: usize, path: &[String], depth: usize) -> Option<Target> {
    let (first, rest) = path.split_first()?;
    let start = match first.as_str() {
        "crate" => Target::Module(0),
        "self" => Target::Module(at),
        "super" => Target::Module(all.modules[at].parent),
        // A path may begin with a child, or with what an import has brought.
        name => named(all, at, name, depth)?,
    };
    rest.iter().try_fold(start, |target, name| match target {
        Target::Module(inner) if name == "super" => Some(Target::Module(all.modules[inner].parent)),
        Target::Module(inner) => named(all, inner, name, depth).or_else(|| {
            let module = &all.modules[inner];
            let is_handed_on = module.imports.iter().any(|import| import.name == *name);
            // A module may hand on names of another crate. Any other name that nothing is known of, made by a macro, is taken
            // for the module's own.
            (!is_handed_on).then_some(Target::Item(module.file))
        }),
        item => Some(item),
    })
}

/// What `name` means in the module `at`. Imports may name each other in a circle, so `depth` has a bound.
fn named(all: &Crate, at: usize, name: &str, depth: usize) -> Option<Target> {
    if depth > 16 {
        return None;
    }
    let module = &all.modules[at];
    if let Some(child) = module.children.get(name) {
        return Some(Target::Module(*child));
    }
    if module.items.contains(name) {
        return Some(Target::Item(module.file));
    }
    let by_name = module.imports.iter().filter(|import| import.name == name);
    // `use wgpu;` names itself and leads out of the crate.
    let by_name = by_name.filter(|import| import.path[0] != name);
    let found = by_name
        .filter_map(|import| find(all, at, &import.path, depth + 1))
        .next();
    found.or_else(|| {
        let globs = module.imports.iter().filter(|import| import.name == "*");
        let modules = globs.filter_map(|glob| match find(all, at, &glob.path, depth + 1)? {
            Target::Module(inner) if inner != at => Some(inner),
            _ => None,
        });
        modules
            .filter_map(|inner| named(all, inner, name, depth + 1))
            .next()
    })
}

#[cfg(test)]
mod tests;
