//! Which task reads a file or a folder, by its name.

use crate::task_factory::TaskFactory;
use std::path::{Path, PathBuf};

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
        let ending = path
            .extension()
            .map(|ending| ending.to_string_lossy().to_lowercase());
        ending.is_some_and(|ending| tasks.iter().any(|task| task.files.contains(&ending.as_str())))
    };
    let files = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    files.map(|file| file.path()).filter(is_read).min()
}
