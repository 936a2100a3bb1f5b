//! The terminal's abilities, and the few escape sequences that are used here.

use std::env;
use std::io::{self, IsTerminal};

/// How to write to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Someone watches: lines may be repainted in place.
    pub live: bool,
    /// Colours may be used.
    pub color: bool,
}

impl Style {
    /// What standard output can do.
    pub fn of_stdout() -> Self {
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let live = io::stdout().is_terminal() && !dumb && escapes_work();
        // https://no-color.org: set and not empty.
        let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            live,
            color: live && !no_color,
        }
    }

    /// The text in a colour, if colours may be used.
    pub fn paint(self, color: Color, text: &str) -> String {
        if self.color && color != Color::Plain {
            format!("\x1b[{}m{text}\x1b[0m", color.code())
        } else {
            text.to_owned()
        }
    }
}

/// The colours in use. All are from the terminal's own palette, so that they suit light and dark ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// As it is.
    #[default]
    Plain,
    /// Emphasis.
    Bold,
    /// Of minor interest.
    Dim,
    /// Good.
    Green,
    /// Bad.
    Red,
    /// Needs a look.
    Yellow,
    /// Moving.
    Cyan,
    /// A second series.
    Magenta,
    /// A third.
    Blue,
}

impl Color {
    /// The parameters of its escape sequence.
    pub fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Green => "32",
            Self::Red => "31",
            Self::Yellow => "33",
            Self::Cyan => "36",
            Self::Magenta => "35",
            Self::Blue => "34",
        }
    }
}

/// Columns and rows of the terminal on standard output or error; 80 by 24 where there is none.
pub fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size().or_else(|| terminal_size::terminal_size_of(io::stderr()));
    size.map_or((80, 24), |(columns, rows)| {
        (usize::from(columns.0).max(1), usize::from(rows.0).max(1))
    })
}

/// Older Windows consoles must be asked to understand escape sequences.
fn escapes_work() -> bool {
    anstyle_query::windows::enable_ansi_colors().unwrap_or(true)
}
