//! What a run writes to standard output: JSON lines for programs, or a progress line for people.

use super::error::{Error, Failure};
use super::exit::Exit;
use super::messages::{self, Role};
use super::progress;
use super::tensorboard;
use super::terminal::{self, Style};
use crate::ending::end_process;
use crate::events::{Event, LogLine, Sink};
use crate::view::RunView;
use annulus_net::printable::printable;
use clap::ValueEnum;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How a run tells what happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people: a line of progress, and events above it.
    #[default]
    Text,
    /// For programs: one JSON object per line, as in docs/events.md, and nothing else.
    Json,
}

/// What a run writes to standard output.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// How.
    pub format: LogFormat,
    /// Whether the ticket is in it where programs read.
    pub tickets: bool,
    /// The folder for an event file that TensorBoard reads.
    pub tensorboard: Option<PathBuf>,
}

/// Does some work and writes its events to standard output. If the reader goes away or the disk is full, the work goes on.
pub fn tell<T>(log: &Log, role: Role, work: impl FnOnce(Sink<'_>) -> Result<T, Failure>) -> Result<T, Error> {
    let board = log.tensorboard.as_deref();
    let board = board.map(|dir| tensorboard::start(dir, unix_ms, note));
    let mut board = board.transpose().map_err(Error::of)?;
    let mut draw = |event: &Event| {
        if let Some(board) = &mut board {
            board(event);
        }
    };
    let out = Written::start()?;
    let done = match log.format {
        LogFormat::Json => work(&mut |event| {
            draw(&event);
            // Logs are kept, and read by others than those whom the ticket is for.
            let event = if log.tickets {
                event
            } else {
                event.without_ticket()
            };
            out.write(LogLine::new(unix_ms(), event).to_json() + "\n");
        }),
        LogFormat::Text => {
            let style = Style::of_stdout();
            let mut screen = Screen::new(style, role);
            let done = work(&mut |event| {
                draw(&event);
                out.write(screen.show(&event));
            });
            out.write(screen.close());
            done
        }
    };
    out.finish();
    Ok(done?)
}

/// Bytes that may wait for a slow reader. Beyond that, events are dropped.
const WAITING: usize = 16 << 20;

/// Time that the end waits for a reader that reads nothing.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Writes on its own thread, so that a slow reader delays nobody.
struct Written {
    texts: mpsc::Sender<String>,
    waiting: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Written {
    fn start() -> Result<Self, Failure> {
        let mut out = standard_output()?;
        let (texts, queue) = mpsc::channel::<String>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        let body = move || {
            let mut failed = false;
            for text in queue {
                // End the line that was cut off before.
                let line = if failed { format!("\n{text}") } else { text.clone() };
                let written = out.write_all(line.as_bytes());
                if let Err(error) = &written
                    && !failed
                {
                    note(&format!(
                        "warning: standard output takes no more ({error}): the run goes on without it"
                    ));
                }
                failed = written.is_err();
                left.fetch_sub(text.len(), Ordering::AcqRel);
            }
        };
        let thread = thread::Builder::new().name("annulus-output".into()).spawn(body)?;
        Ok(Self {
            texts,
            waiting,
            thread,
        })
    }

    fn write(&self, text: String) {
        if text.is_empty() || self.waiting.load(Ordering::Acquire) > WAITING {
            return;
        }
        self.waiting.fetch_add(text.len(), Ordering::AcqRel);
        let _ = self.texts.send(text);
    }

    /// Waits until everything is written, as long as somebody reads.
    fn finish(self) {
        drop(self.texts);
        let (mut left, mut since) = (usize::MAX, Instant::now());
        while !self.thread.is_finished() && since.elapsed() < LAST_WORDS {
            let now = self.waiting.load(Ordering::Acquire);
            if now != left {
                (left, since) = (now, Instant::now());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Standard output without Rust's lock, which a blocked thread would keep.
fn standard_output() -> io::Result<File> {
    #[cfg(unix)]
    let own = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned();
    #[cfg(windows)]
    let own = std::os::windows::io::AsHandle::as_handle(&io::stdout()).try_clone_to_owned();
    own.map(File::from)
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

/// Says if a model is in memory in runs of steps, one after the other, since it has no room as a whole.
pub fn note_runs(runs: usize, when: &str) {
    if runs > 1 {
        note(&format!(
            "note: memory has no room for the whole model, so its steps are computed in {runs} runs, one after the other{when}"
        ));
    }
}

/// Writes to standard output at once, without escape codes. If nobody reads any more, the process ends quietly, as `head`
/// expects.
pub fn print(text: &str) {
    paint(&printable(text));
}

/// The same, with the escape codes that are in it: for what this program has painted itself.
pub fn paint(text: &str) {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => end_process(Exit::Done as u8),
        Err(error) => {
            note(&format!("error: cannot write to standard output: {error}"));
            end_process(Exit::Failed as u8)
        }
    }
}

/// Writes a line to standard error, without escape codes, if anybody reads it.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Shortest time between two paintings of the line, in milliseconds: faster than the eye is waste.
const REPAINT_MS: u64 = 100;
/// Time between two lines where nothing can be repainted, in milliseconds.
const REPEAT_MS: u64 = 5000;

/// Progress and scrolling messages as text for a stream.
struct Screen {
    view: RunView,
    role: Role,
    style: Style,
    start: Instant,
    shown_ms: Option<u64>,
    painted: bool,
}

impl Screen {
    fn new(style: Style, role: Role) -> Self {
        Self {
            view: RunView::default(),
            role,
            style,
            start: Instant::now(),
            shown_ms: None,
            painted: false,
        }
    }

    fn show(&mut self, event: &Event) -> String {
        let now_ms = self.start.elapsed().as_millis() as u64;
        self.view.take(event, now_ms);
        let messages = messages::lines(event, &self.view, self.role, self.style);
        let mut text = String::new();
        if !messages.is_empty() {
            text.push_str(self.clear());
            messages.iter().for_each(|message| text.extend([message, "\n"]));
        }
        let pause = if self.style.live { REPAINT_MS } else { REPEAT_MS };
        if let Event::Done(_) = event {
            return text;
        }
        let due = self.shown_ms.is_none_or(|shown| now_ms >= shown + pause)
            || (self.style.live && !messages.is_empty());
        if due && let Some(line) = progress::line(&self.view, now_ms, terminal::size().0 - 1, self.style) {
            self.shown_ms = Some(now_ms);
            text.push_str(self.clear());
            text.push_str(&line);
            if self.style.live {
                self.painted = true;
            } else {
                text.push('\n');
            }
        }
        text
    }

    fn clear(&mut self) -> &'static str {
        if std::mem::take(&mut self.painted) {
            "\r\x1b[2K"
        } else {
            ""
        }
    }

    /// Leaves the last line as it is and the cursor below it.
    fn close(&mut self) -> String {
        if std::mem::take(&mut self.painted) {
            "\n".into()
        } else {
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Change;
    use crate::view::testing::{committed, done, member};

    fn screen(live: bool) -> Screen {
        Screen::new(Style { live, color: false }, Role::Founder)
    }

    fn round() -> Event {
        committed(1, &[(1, 64)], 0.5)
    }

    fn joined() -> Event {
        member(0xab, Change::Joined, 1, "")
    }

    #[test]
    fn a_message_takes_the_place_of_the_line_and_the_line_comes_back() {
        let mut screen = screen(true);
        let first = screen.show(&round());
        assert!(
            first.starts_with("round 1/") && !first.contains('\n'),
            "{first:?}"
        );
        let second = screen.show(&joined());
        assert!(
            second.starts_with("\r\x1b[2K+ abababab joined after round 1\n"),
            "{second:?}"
        );
        assert!(
            second.contains("\nround 1/") && !second.ends_with('\n'),
            "{second:?}"
        );
        let last = screen.show(&done(1));
        assert!(
            last.starts_with("\r\x1b[2Kdone after round 1") && last.ends_with("someone\n"),
            "{last:?}"
        );
        assert_eq!(screen.close(), "");
    }

    #[test]
    fn where_nothing_can_be_repainted_there_are_whole_lines_and_few() {
        let mut screen = screen(false);
        let first = screen.show(&round());
        assert!(first.ends_with('\n') && !first.contains('\x1b'), "{first:?}");
        assert_eq!(screen.show(&round()), "", "the next line comes after a while");
        assert_eq!(screen.show(&joined()).lines().count(), 1);
        assert_eq!(screen.close(), "");
    }
}
