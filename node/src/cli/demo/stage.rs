//! How the demo is shown: as a picture that moves where somebody watches, as lines elsewhere.

use super::super::human;
use super::super::progress;
use super::super::terminal::{self, Style};
use super::observed::Observed;
use super::picture;
use std::io::{self, Write};
use std::time::Duration;

/// Between two frames of the picture, or two looks for news, in milliseconds.
pub const FRAME_MS: u64 = 80;
/// Between two lines of progress, in milliseconds.
pub const LINE_PAUSE_MS: u64 = 3000;

/// Where it is shown.
pub struct Stage {
    style: Style,
    kind: Kind,
    /// When the next frame is due.
    due_ms: u64,
}

enum Kind {
    /// Drawn in place.
    Picture(Screen),
    /// Told as lines: so many of the news were, and the next line of progress comes at this time.
    Lines(usize, u64),
}

impl Stage {
    /// A picture where standard output can show one and lines are not asked for.
    pub fn new(style: Style, lines: bool) -> Self {
        let (width, height) = terminal::size();
        let fits = width >= picture::SMALLEST.0 && height >= picture::SMALLEST.1;
        let kind = match style.live && fits && !lines {
            true => Kind::Picture(Screen::enter()),
            false => Kind::Lines(0, 0),
        };
        let due_ms = 0;
        Self { style, kind, due_ms }
    }

    /// How long nothing needs to be shown.
    pub fn wait(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.due_ms.saturating_sub(now_ms))
    }

    /// Shows what is to be shown by now.
    pub fn show(&mut self, demo: &Observed, now_ms: u64) {
        if now_ms < self.due_ms {
            return;
        }
        self.due_ms = now_ms + FRAME_MS;
        let (style, size) = (self.style, terminal::size());
        match &mut self.kind {
            Kind::Picture(_) => {
                let mut rows = picture::draw(demo, now_ms, size).rows(style);
                rows.truncate(size.1);
                // Synchronised output, where the terminal knows it, and no clearing: nothing flickers.
                let frame = rows.join("\x1b[K\r\n");
                out(&format!("\x1b[?2026h\x1b[H{frame}\x1b[J\x1b[?2026l"));
            }
            Kind::Lines(told, progress_ms) => {
                let tell =
                    |at_ms: u64, line: &str| out(&format!("{:>6.1} s  {line}\n", at_ms as f64 / 1000.0));
                for (at_ms, news) in &demo.news[*told..] {
                    let text = format!("{} {}", news.sign, news.text);
                    tell(*at_ms, &style.paint(news.color, &text));
                }
                *told = demo.news.len();
                let width = size.0.saturating_sub(21);
                let line = progress::line(&demo.logs.run, now_ms, width, style);
                if let Some(line) = line.filter(|_| now_ms >= *progress_ms) {
                    *progress_ms = now_ms + LINE_PAUSE_MS;
                    let peers = human::plural(demo.ring().len() as u64, "peer");
                    tell(now_ms, &format!("  {peers}  {line}"));
                }
            }
        }
    }

    /// Shows the end. The last picture stays in the terminal's history.
    pub fn leave(mut self, demo: &Observed) {
        let (_, last_ms) = demo.span_ms.unwrap_or_default();
        match self.kind {
            Kind::Picture(screen) => {
                drop(screen);
                let size = (terminal::size().0, picture::SMALLEST.1);
                let rows = picture::draw(demo, last_ms, size).rows(self.style);
                out(&format!("{}\n\n", rows.join("\n").trim_end()));
            }
            Kind::Lines(..) => {
                self.due_ms = 0;
                self.show(demo, last_ms);
                out("\n");
            }
        }
    }
}

/// Writes to standard output.
pub fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    // Nobody to show it to: the demo still ends its peers and tidies up.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// The terminal's second screen, without a cursor and without wrapping; dropped, all is as before.
pub struct Screen;

impl Screen {
    /// Shows it.
    pub fn enter() -> Self {
        out("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J");
        Self
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        out("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}
