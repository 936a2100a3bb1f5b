//! Text that WGSL files share: the line `//#include "name"` stands for the shared file of that name.
//!
//! A text contains each shared file once, however often it is included. This module knows only texts, because the mutation
//! check of `cargo xtask` compiles it too, to see kernels as devices do.

use std::borrow::Cow;

/// The files that a text has so far, and whether their end is reached.
type Files = Vec<(String, bool)>;

/// The text with all that it includes, each file of which `shared` finds by its name.
///
/// # Errors
///
/// In words, if a file does not exist or includes itself, or a line is meant for us but not understood.
pub fn expand<'a>(text: &str, shared: &dyn Fn(&str) -> Option<Cow<'a, str>>) -> Result<String, String> {
    let mut whole = String::with_capacity(2 * text.len());
    append(text, shared, &mut Files::new(), &mut whole)?;
    Ok(whole)
}

fn append<'a>(
    text: &str,
    shared: &dyn Fn(&str) -> Option<Cow<'a, str>>,
    files: &mut Files,
    whole: &mut String,
) -> Result<(), String> {
    for line in text.lines() {
        let Some(name) = included(line)? else {
            whole.push_str(line);
            whole.push('\n');
            continue;
        };
        match files.iter().find(|(file, _)| file == name) {
            Some((_, true)) => continue,
            Some((_, false)) => return Err(format!("the shared file \"{name}\" includes itself")),
            None => {}
        }
        let file = shared(name).ok_or_else(|| format!("there is no shared file \"{name}\""))?;
        let place = files.len();
        files.push((name.to_owned(), false));
        append(&file, shared, files, whole)?;
        files[place].1 = true;
    }
    Ok(())
}

/// The name in a line that includes a file.
fn included(line: &str) -> Result<Option<&str>, String> {
    let Some(directive) = line.trim().strip_prefix("//#") else {
        return Ok(None);
    };
    let name = directive.strip_prefix("include \"");
    match name.and_then(|name| name.strip_suffix('"')) {
        Some(name) => Ok(Some(name)),
        None => Err(format!("{:?} includes nothing", line.trim())),
    }
}
