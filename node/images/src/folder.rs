//! Finds the pictures of a folder: one folder for each class, or `train`, `validation` and `test` above them.

use crate::options::BadFiles;
use crate::records::{Fault, ImageError, MOST_CLASSES};
use annulus_table::{Part, grouped};
use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

/// Faults that a message lists; the rest are counted.
pub(crate) const SHOWN: usize = 20;

/// Entries of a folder that are looked at to guess what it holds.
const GLANCE: usize = 1_000;

/// Endings of pictures.
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Files that systems put into folders by themselves.
const LITTER: [&str; 2] = ["Thumbs.db", "desktop.ini"];

/// A picture's file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its path in the folder, with `/` between names.
    pub name: String,
    pub path: PathBuf,
    /// Its class, by number.
    pub class: usize,
    /// The part that its folder names, if any.
    pub part: Option<Part>,
}

/// The pictures of a folder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// By class number.
    pub classes: Vec<String>,
    pub files: Vec<Entry>,
    pub faults: Vec<Fault>,
}

/// Whether a folder looks like one of pictures in folders: so that a person need not name the task.
pub fn is_of_pictures(folder: &Path) -> bool {
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.take(GLANCE).map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let has_picture = |folder: &Path| entries(folder).iter().any(|path| is_picture(path));
    let top = entries(folder);
    let inside = |path: &PathBuf| {
        path.is_dir()
            && (has_picture(path)
                || entries(path)
                    .iter()
                    .any(|inner| inner.is_dir() && has_picture(inner)))
    };
    top.iter().any(|path| is_picture(path) || inside(path))
}

fn is_picture(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.to_lowercase().as_str())) && !is_hidden(path)
}

fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') || LITTER.contains(&name.as_ref())
}

/// An error about some files of a folder.
pub(crate) fn refused(folder: &Path, faults: &[Fault], all: usize, remedy: &str) -> ImageError {
    let (bad, all) = (grouped(faults.len() as u64), grouped(all as u64));
    let mut text = format!("{}: {bad} of {all} files cannot be used:\n", folder.display());
    for fault in faults.iter().take(SHOWN) {
        text += &format!("  {fault}\n");
    }
    if let Some(more) = faults.len().checked_sub(SHOWN + 1) {
        text += &format!("  and {} more\n", grouped(more as u64 + 1));
    }
    ImageError(text + remedy)
}

/// What is in a folder, without what systems put there, by name: folders, and files.
fn list(folder: &Path) -> Result<(Vec<DirEntry>, Vec<DirEntry>), ImageError> {
    let failed = |error: std::io::Error| ImageError(format!("cannot read {}: {error}", folder.display()));
    let entries: Result<Vec<DirEntry>, _> = fs::read_dir(folder).map_err(failed)?.collect();
    let mut entries = entries.map_err(failed)?;
    entries.retain(|entry| !is_hidden(&entry.path()));
    entries.sort_by_key(DirEntry::file_name);
    // A link to a folder is no folder here.
    let is_folder = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries.into_iter().partition(is_folder))
}

fn name_of(entry: &DirEntry) -> Result<String, ImageError> {
    entry.file_name().into_string().map_err(|name| {
        let name = name.to_string_lossy();
        ImageError(format!("the name {name} is no UTF-8: rename it"))
    })
}

/// Fails if one of these is a link to a folder, or to nothing: a class would be missing without a word.
fn without_links(files: &[DirEntry]) -> Result<(), ImageError> {
    let is_link = |entry: &&DirEntry| entry.file_type().is_ok_and(|kind| kind.is_symlink());
    let mut links = files.iter().filter(is_link).map(DirEntry::path);
    match links.find(|path| !path.is_file()) {
        None => Ok(()),
        Some(path) => Err(ImageError(format!(
            "{} is a symbolic link; put the folder itself there",
            path.display()
        ))),
    }
}

/// Whether a folder has a picture, or folders in it have, down to this depth. Going by names; what cannot be read is told when
/// its pictures are taken.
fn has_pictures(folder: &Path, depth: usize) -> bool {
    list(folder).is_ok_and(|(folders, files)| {
        files.iter().any(|file| is_picture(&file.path()))
            || depth > 0 && folders.iter().any(|inner| has_pictures(&inner.path(), depth - 1))
    })
}

/// The pictures of a folder of classes. A class without any is refused, or passed over with a fault that says so.
pub(crate) fn scan(folder: &Path, bad_files: BadFiles) -> Result<Found, ImageError> {
    let fail = |why: &str| {
        Err(ImageError(format!(
            "{}: {why}. Make one folder for each class, such as {0}/rose/1.jpg and {0}/tulip/2.jpg",
            folder.display()
        )))
    };
    let (mut folders, files) = list(folder)?;
    without_links(&files)?;
    let mut found = Found::default();
    let mut is_kept = |place: &Path, depth: usize| {
        let is_kept = bad_files == BadFiles::Fail || has_pictures(place, depth);
        if !is_kept {
            found.faults.push(Fault {
                file: within(folder, place),
                why: "it is a folder without pictures".into(),
            });
        }
        is_kept
    };
    folders.retain(|entry| is_kept(&entry.path(), 1));
    let mut names = folders.iter().map(name_of).collect::<Result<Vec<_>, _>>()?;
    if let Some(file) = files.iter().find(|entry| is_picture(&entry.path())) {
        let name = file.file_name();
        return fail(&format!("{} is in no folder of a class", name.display()));
    }
    if folders.is_empty() {
        return fail("it has no folders, so no classes");
    }
    let parts: Option<Vec<Part>> = names.iter().map(|name| Part::named(name)).collect();
    let mut of_class = BTreeMap::<String, Vec<(Option<Part>, PathBuf)>>::new();
    match parts.filter(|parts| parts.contains(&Part::Train)) {
        None => {
            for (name, entry) in names.iter().zip(&folders) {
                of_class
                    .entry(name.clone())
                    .or_default()
                    .push((None, entry.path()));
            }
        }
        Some(parts) => {
            for (part, entry) in parts.iter().zip(&folders) {
                let (classes, files) = list(&entry.path())?;
                without_links(&files)?;
                if let Some(file) = files.iter().find(|file| is_picture(&file.path())) {
                    return fail(&format!("{} is in no folder of a class", file.path().display()));
                }
                for class in classes {
                    let places = of_class.entry(name_of(&class)?).or_default();
                    places.push((Some(*part), class.path()));
                }
            }
        }
    }
    of_class.retain(|_, places| {
        places.retain(|(_, place)| is_kept(place, 0));
        !places.is_empty() || bad_files == BadFiles::Fail
    });
    names = annulus_table::classes(of_class.keys().map(String::as_str));
    match names.len() {
        0 => return fail("it has no classes"),
        1 => {
            return fail(&format!(
                "it has one class, {}, and at least two are needed",
                names[0]
            ));
        }
        count if count > MOST_CLASSES => {
            return fail(&format!(
                "it has {} classes, and {MOST_CLASSES} are the most",
                grouped(count as u64)
            ));
        }
        _ => {}
    }
    for (class, name) in names.iter().enumerate() {
        let before = found.files.len() + found.faults.len();
        for (part, place) in &of_class[name] {
            found.take(folder, place, class, *part)?;
        }
        if found.files.len() + found.faults.len() == before {
            return fail(&format!(
                "the class {name} has no pictures (bad_files=skip passes over such folders)"
            ));
        }
    }
    found.classes = names;
    Ok(found)
}

impl Found {
    /// Takes the files of a class's folder.
    fn take(&mut self, top: &Path, place: &Path, class: usize, part: Option<Part>) -> Result<(), ImageError> {
        let (folders, files) = list(place)?;
        for inner in folders {
            self.faults.push(Fault {
                file: within(top, &inner.path()),
                why: "it is a folder inside a class; only pictures belong there".into(),
            });
        }
        for file in files {
            let (path, name) = (file.path(), within(top, &file.path()));
            match is_picture(&path) {
                true => self.files.push(Entry {
                    name,
                    path,
                    class,
                    part,
                }),
                false => self.faults.push(Fault {
                    file: name,
                    why: "its name ends neither in .png nor in .jpg or .jpeg".into(),
                }),
            }
        }
        Ok(())
    }
}

/// A path in a folder, with `/` between names.
fn within(top: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(top).unwrap_or(path);
    let names: Vec<_> = inside.iter().map(|name| name.to_string_lossy()).collect();
    names.join("/")
}

/// Pictures by their names in a folder, and what is no picture.
type All = (Vec<(String, PathBuf)>, Vec<Fault>);

/// All pictures in a folder and its folders, by name; other files are passed over.
pub(crate) fn all(folder: &Path) -> Result<All, ImageError> {
    let (mut pictures, mut left) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(place) = left.pop() {
        let (folders, files) = list(&place)?;
        left.extend(folders.iter().map(DirEntry::path));
        let files = files.iter().map(DirEntry::path).filter(|path| is_picture(path));
        pictures.extend(files.map(|path| (within(folder, &path), path)));
    }
    pictures.sort();
    match pictures.is_empty() {
        true => Err(ImageError(format!(
            "{} has no .png, .jpg or .jpeg files",
            folder.display()
        ))),
        false => Ok((pictures, Vec::new())),
    }
}
