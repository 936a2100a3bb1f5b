//! Which task reads a file or a folder, by its name.

use crate::task_factory::TaskFactory;
use std::path::{Path, PathBuf};

/// The ending of a file's name, in small letters: of a gzip file together with the one before, such as `csv.gz`.
pub(super) fn ending(path: &Path) -> Option<String> {
    let last = |path: &Path| Some(path.extension()?.to_string_lossy().to_lowercase());
    match last(path)? {
        gz if gz == "gz" => match path.file_stem().and_then(|stem| last(Path::new(stem))) {
            Some(inner) => Some(format!("{inner}.{gz}")),
            None => Some(gz),
        },
        ending => Some(ending),
    }
}

/// What to do with a file of which nothing tells the task.
pub(super) fn unknown_ending(file: &Path, ending: Option<&str>, tasks: &[TaskFactory]) -> String {
    let of = |task: &TaskFactory| match task.files.len() {
        0 => None,
        _ => Some(format!("{} reads .{}", task.name, task.files.join(", ."))),
    };
    let known: Vec<String> = tasks.iter().filter_map(of).collect();
    let why = match ending {
        Some(ending) => format!("the ending .{ending} tells no task"),
        None => "its name has no ending that tells the task".into(),
    };
    format!(
        "{}: {why}. {}. Convert the file, or name the task that reads it as it is: --task NAME, such as --task table for CSV",
        file.display(),
        known.join("; ")
    )
}

/// The first file in a folder that some task reads alone, such as a table.
pub(super) fn a_table_in(folder: &Path, tasks: &[TaskFactory]) -> Option<PathBuf> {
    let is_read = |path: &PathBuf| {
        let ending = ending(path);
        ending.is_some_and(|ending| tasks.iter().any(|task| task.files.contains(&ending.as_str())))
    };
    let files = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    files.map(|file| file.path()).filter(is_read).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gzip_file_has_the_ending_of_what_is_in_it() {
        for (name, wanted) in [
            ("a.CSV", Some("csv")),
            ("a.b.csv.gz", Some("csv.gz")),
            ("t10k-images-idx3-ubyte.gz", Some("gz")),
            ("README", None),
        ] {
            assert_eq!(ending(Path::new(name)).as_deref(), wanted, "{name}");
        }
    }
}
