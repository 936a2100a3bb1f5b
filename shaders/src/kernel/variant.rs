//! Other texts of one file: behind a line stands what it is in them.
//!
//! `const WIDE = 4u; //#scalar: const WIDE = 1u;` is the first statement in the file's own text, and the second one in
//! its variant `scalar`. Several variants that have a line in common are named with commas between; a line may have
//! several such remarks. So a file is valid as it stands, and says itself in what its variants differ.

/// Separates a line from its form in other variants.
const MARK: &str = "//#";

/// The lines of a variant, or those of the file's own text.
///
/// # Errors
///
/// In words, if no line names the variant, or a remark names none.
pub fn pick(text: &str, variant: Option<&str>) -> Result<String, String> {
    let mut picked = String::with_capacity(text.len());
    let mut found = variant.is_none();
    for line in text.lines() {
        let (own, others) = remarks(line)?;
        let other = others
            .into_iter()
            .find(|(names, _)| names.iter().any(|name| Some(*name) == variant));
        if let Some((_, other)) = other {
            found = true;
            picked.push_str(&own[..own.len() - own.trim_start().len()]);
            picked.push_str(other);
        } else {
            picked.push_str(own);
        }
        picked.push('\n');
    }
    match (found, variant) {
        (false, Some(variant)) => Err(format!("no line says what it is for {variant:?}")),
        _ => Ok(picked),
    }
}

/// All variants that the lines of a text name, sorted.
///
/// # Errors
///
/// In words, if a remark names none.
pub fn named(text: &str) -> Result<Vec<&str>, String> {
    let mut all = Vec::new();
    for line in text.lines() {
        let (_, others) = remarks(line)?;
        all.extend(others.into_iter().flat_map(|(names, _)| names));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// A line of a variant: who has it, and what it is.
type Other<'a> = (Vec<&'a str>, &'a str);

/// A line as the file's own text has it, and what it is in others.
fn remarks(line: &str) -> Result<(&str, Vec<Other<'_>>), String> {
    let mut parts = line.split(MARK);
    let own = parts.next().unwrap_or_default().trim_end();
    let others = parts.map(|part| {
        let (names, other) = part
            .split_once(": ")
            .ok_or_else(|| format!("{:?} names no variant", line.trim()))?;
        Ok((names.split(", ").collect(), other.trim()))
    });
    Ok((own, others.collect::<Result<_, String>>()?))
}
