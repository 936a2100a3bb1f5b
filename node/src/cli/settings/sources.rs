//! Where settings come from: `KEY=VALUE` words and TOML texts, as keys with values that nobody has checked.

use crate::cli::error::Error;
use crate::cli::keys;
use crate::net::ticket::Ticket;
use crate::store::run_dir::RunDir;
use crate::task_factory::TaskFactory;
use serde_json::{Map, Value};
use std::path::Path;

/// Keys and their values, in order.
pub(super) type Assignments = Vec<(String, Value)>;

/// The words as key and text.
pub(super) fn word_assignments(
    words: &[String],
    of_task: &Map<String, Value>,
    tasks: &[TaskFactory],
) -> Result<Assignments, Error> {
    // The name of a column may have the sign, but no kind of column has.
    let parts = |word: &str| match word.starts_with("columns.") {
        true => word.rfind('='),
        false => word.find('='),
    };
    let split = |(at, word): (usize, &String)| match parts(word) {
        Some(end) if end > 0 => Ok((word[..end].to_owned(), Value::String(word[end + 1..].to_owned()))),
        _ => Err(Error::usage(not_a_setting(
            word,
            words.get(at + 1),
            of_task,
            tasks,
        ))),
    };
    words.iter().enumerate().map(split).collect()
}

/// The advice for a word that is not a setting.
fn not_a_setting(
    word: &str,
    next: Option<&String>,
    of_task: &Map<String, Value>,
    tasks: &[TaskFactory],
) -> String {
    let key = keys::find(word).map(|key| (key.name, key.value));
    let key = key.or_else(|| of_task.contains_key(word).then_some((word, "VALUE")));
    if let Some((name, value)) = key {
        let value = next
            .filter(|next| !next.contains('='))
            .map_or(value, String::as_str);
        return format!("settings are KEY=VALUE: write {name}={value}");
    }
    if tasks.iter().any(|task| task.name == word) {
        return format!("`{word}` is a task: name it with --task {word}");
    }
    if word.parse::<Ticket>().is_ok() {
        return "that is a ticket: `annulus join TICKET` takes part in its run".into();
    }
    let path = Path::new(word);
    if RunDir::open(path).is_ok() {
        return format!("{word} is the folder of a run: `annulus resume {word}` goes on with it");
    }
    if path.exists() {
        return format!("{word} is not a setting. To train on it, write --data {word}");
    }
    format!("`{word}` is not a setting: write settings as KEY=VALUE, for example lr=1e-3")
}

/// The name of the task and the assignments in a TOML text.
pub(super) fn file_assignments(text: &str) -> Result<(Option<String>, Assignments), Error> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
        Error::failed(format!(
            "line {} of the configuration is not valid TOML: {}. Write settings as in lr = 1e-3, texts in quotes",
            before.lines().count().max(1),
            error.message()
        ))
    })?;
    let mut name = None;
    let mut assignments = Vec::new();
    for (key, value) in table {
        match (key.as_str(), value) {
            ("task", toml::Value::String(task)) => name = Some(task),
            ("task", toml::Value::Table(table)) => {
                for (key, value) in table {
                    match (key.as_str(), value) {
                        ("name", toml::Value::String(task)) => name = Some(task),
                        (_, value) => assignments.push((format!("task.{key}"), json(&key, value)?)),
                    }
                }
            }
            (_, value) => assignments.push((key.clone(), json(&key, value)?)),
        }
    }
    Ok((name, assignments))
}

/// A TOML value as JSON.
fn json(key: &str, value: toml::Value) -> Result<Value, Error> {
    serde_json::to_value(value)
        .map_err(|e| Error::usage(format!("the configuration's `{key}` cannot be used: {e}")))
}
