//! Pictures that move in place on a terminal.

use super::canvas::Canvas;
use super::terminal::{self, Style};
use std::io::{self, Write};

/// The terminal's second screen, without a cursor and without wrapping; dropped, all is as before.
pub struct Screen(Style);

impl Screen {
    /// Shows it.
    pub fn enter(style: Style) -> Self {
        out("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J");
        Self(style)
    }

    /// Shows a picture, or what of it there is room for.
    pub fn show(&self, picture: &Canvas) {
        let mut rows = picture.rows(self.0);
        rows.truncate(terminal::size().1);
        // Synchronised output, where the terminal knows it, and no clearing: nothing flickers.
        let frame = rows.join("\x1b[K\r\n");
        out(&format!("\x1b[?2026h\x1b[H{frame}\x1b[J\x1b[?2026l"));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        out("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}

/// Writes to standard output. A closed output is ignored, so that the picture still ends as it should.
pub fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
