//! Errors as the terminal shows them: one paragraph on stderr that says what is wrong and what to do.

use super::exit::Exit;
use crate::participant::error::Error as ParticipantError;
use annulus_net::printable::printable;
use std::fmt;

/// Why something could not be done, in words that say what to do.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a command failed with.
#[derive(Debug)]
pub struct Error {
    text: String,
    exit: Exit,
}

impl Error {
    /// The command line itself is wrong.
    pub fn usage(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            exit: Exit::Usage,
        }
    }

    /// The command was understood and could not be done.
    pub fn failed(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            exit: Exit::Failed,
        }
    }

    /// Nobody was there.
    pub fn unreachable(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            exit: Exit::Unreachable,
        }
    }

    /// Something that failed in the crate's own words.
    pub fn of(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::from(Box::new(error) as Failure)
    }

    /// How the process ends for it.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// The paragraph, wrapped to a width. A list, whose items are indented, keeps its lines.
    pub fn render(&self, width: usize) -> String {
        let text = format!("error: {}", printable(&self.text));
        match text.contains("\n  ") {
            true => text,
            false => wrap(&text, width),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<Box<dyn std::error::Error + Send + Sync>> for Error {
    /// The error, then each of its causes that it does not tell itself.
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        let of_participant = error.downcast_ref::<ParticipantError>();
        let exit = of_participant.map_or(Exit::Failed, Exit::of_error);
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let told = error.to_string();
            if !text.contains(&told) {
                text = format!("{text}: {told}");
            }
            cause = error.source();
        }
        Self { text, exit }
    }
}

/// Breaks a text at blanks into lines of at most `width` characters. A longer word gets a line of its own, whole, so
/// that it can be copied.
pub fn wrap(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_lines() {
        let text = "t.csv: 2 of 9 rows cannot be used:\n  line 3: x\n  line 5: y\nFix them";
        assert_eq!(Error::failed(text).render(20), format!("error: {text}"));
    }

    #[test]
    fn a_paragraph_fits_its_width() {
        let error =
            Error::failed("the ticket has expired; ask a member of the run for a new one and try again");
        let text = error.render(30);
        assert!(text.starts_with("error: the ticket has expired;\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 30), "{text}");
        assert_eq!(
            text.split_whitespace().count(),
            error.render(1000).split_whitespace().count()
        );
        assert_eq!(wrap("a verylongword b", 4), "a\nverylongword\nb");
    }

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug)]
        struct Outer(Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot read the checkpoint")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(Outer(Error::failed("no such file")));
        let error = Error::from(boxed);
        assert_eq!(error.to_string(), "cannot read the checkpoint: no such file");
        assert_eq!(error.exit(), Exit::Failed);
    }
}
