//! How a demo is shown: as a picture that moves where somebody watches, as lines elsewhere.

use super::super::screen::{Screen, out};
use super::super::terminal::{self, Style};
use super::Play;
use std::time::Duration;

/// Between two frames of the picture, or two looks for news, in milliseconds.
const FRAME_MS: u64 = 80;
/// Between two times that progress is told in lines, in milliseconds.
const LINE_PAUSE_MS: u64 = 3000;

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
    /// As lines: how many of the news were written, and when progress is written next.
    Lines(usize, u64),
}

impl Stage {
    /// A picture where standard output can show one of this size and lines are not asked for.
    pub fn new(style: Style, smallest: (usize, usize), lines: bool) -> Self {
        let (width, height) = terminal::size();
        let fits = width >= smallest.0 && height >= smallest.1;
        let kind = match style.live && fits && !lines {
            true => Kind::Picture(Screen::enter(style)),
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
    pub fn show(&mut self, demo: &dyn Play, now_ms: u64) {
        if now_ms < self.due_ms {
            return;
        }
        self.due_ms = now_ms + FRAME_MS;
        let (style, size) = (self.style, terminal::size());
        match &mut self.kind {
            Kind::Picture(screen) => screen.show(&demo.draw(now_ms, size)),
            Kind::Lines(told, progress_ms) => {
                let tell =
                    |at_ms: u64, line: &str| out(&format!("{:>6.1} s  {line}\n", at_ms as f64 / 1000.0));
                for (at_ms, news) in &demo.news()[*told..] {
                    let text = format!("{} {}", news.sign, news.text);
                    tell(*at_ms, &style.paint(news.color, &text));
                }
                *told = demo.news().len();
                if now_ms >= *progress_ms {
                    let lines = demo.progress(now_ms, size.0.saturating_sub(10), style);
                    lines.iter().for_each(|line| tell(now_ms, line));
                    *progress_ms = now_ms + if lines.is_empty() { 0 } else { LINE_PAUSE_MS };
                }
            }
        }
    }

    /// Shows the end. The last picture stays in the terminal's history.
    pub fn leave(mut self, demo: &dyn Play, now_ms: u64) {
        match self.kind {
            Kind::Picture(screen) => {
                drop(screen);
                let size = (terminal::size().0, demo.smallest().1);
                let rows = demo.draw(now_ms, size).rows(self.style);
                out(&format!("{}\n\n", rows.join("\n").trim_end()));
            }
            Kind::Lines(..) => {
                self.due_ms = 0;
                self.show(demo, now_ms);
                out("\n");
            }
        }
    }
}
