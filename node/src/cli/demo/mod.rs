//! `annulus demo`: a run of three peers on this machine, in which one is killed and a new one joins.
//!
//! Nothing is staged: the peers are processes of this program, as `annulus train` and `annulus join` start them, and
//! all that is shown comes from their logs.

pub mod book;
pub mod canvas;
pub mod children;
pub mod picture;
mod story;
mod summary;

use super::error::Error;
use super::terminal::{self, Style};
use crate::task_factory::TaskFactory;
use book::{Book, Phase};
use children::{Children, Message};
use picture::Picture;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use story::{Next, Story};

/// Watch a run of three peers in which one is killed and a new one joins.
///
/// Starts three peers on this machine that train together; kills one of them without warning; lets a new one join;
/// and shows from their logs that no round was lost and that all hold the same bits. Needs no GPU, no network and no
/// download, and leaves nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Rounds of the run; without it as many as suit this machine.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(50..))]
    pub rounds: Option<u64>,
    /// Where the peers compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// Write lines instead of a picture, as when standard output is no terminal.
    #[arg(long)]
    pub plain: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus demo
  annulus demo --rounds 5000 --plain
";

/// Rounds for each of the machine's threads, and the most of all. Two threads of a busy 2.3 GHz Xeon commit 140 of
/// them per second: 20 seconds.
const ROUNDS_PER_THREAD: u64 = 1500;
const ROUNDS_MOST: u64 = 9000;
/// Between two frames of the picture.
const FRAME: Duration = Duration::from_millis(80);
/// The demo gives up when nothing has happened for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Does it.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let exe = std::env::current_exe().map_err(|e| {
        Error::failed(format!(
            "cannot find this program's own file to start peers from: {e}"
        ))
    })?;
    let task = tasks.first().map(|task| task.name.to_owned()).unwrap_or_default();
    let style = Style::of_stdout();
    let (width, height) = terminal::size();
    let fits = width >= picture::SMALLEST.0 && height >= picture::SMALLEST.1;
    let stage = if style.live && fits && !args.plain {
        Stage::picture(style)
    } else {
        Stage::lines(style)
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let rounds = args
        .rounds
        .unwrap_or((threads * ROUNDS_PER_THREAD).min(ROUNDS_MOST));
    // Dropped in the reverse order: first the children end, then their folder goes.
    let folder = Folder::new()?;
    let mut show = Show {
        start: Instant::now(),
        heard: Instant::now(),
        book: Book::default(),
        story: Story::default(),
        children: Children::new(exe)?,
        stage,
        folder: &folder,
        device: args.device,
        task,
        rounds,
    };
    let done = show.play();
    let Show {
        book,
        stage,
        children,
        ..
    } = show;
    drop(children);
    stage.leave(&book);
    done?;
    let (text, proven) = summary::tell(&book, style);
    out(&text);
    match proven {
        true => Ok(()),
        false => Err(Error::failed(
            "the run did not do what it promises, as told above: please report it with this output",
        )),
    }
}

/// The demo while it runs.
struct Show<'a> {
    start: Instant,
    heard: Instant,
    book: Book,
    story: Story,
    children: Children,
    stage: Stage,
    folder: &'a Folder,
    device: String,
    task: String,
    rounds: u64,
}

impl Show<'_> {
    /// Until the run has ended, or cannot go on.
    fn play(&mut self) -> Result<(), Error> {
        self.start_peer(None)?;
        loop {
            let wait = self.stage.wait();
            if let Some(message) = self.children.next(wait) {
                self.hear(message)?;
            }
            match self.story.next(&self.book) {
                Next::Wait => {}
                Next::Start => {
                    let ticket = self.book.peers.iter().rev().filter(|p| p.phase != Phase::Killed);
                    let ticket = ticket
                        .filter_map(|p| p.ready.as_ref())
                        .next_back()
                        .map(|r| r.ticket.clone());
                    self.start_peer(ticket)?;
                }
                Next::Kill(peer) => {
                    self.children.kill(peer);
                    self.book.kill(peer, self.now());
                }
                Next::End => return Ok(()),
            }
            if self.heard.elapsed() > PATIENCE {
                return Err(Error::failed(format!(
                    "nothing has happened for {} s; try `annulus doctor`, and see what peers say on their own with \
                     `annulus train`",
                    PATIENCE.as_secs()
                )));
            }
            let now = self.now();
            self.stage.show(&self.book, now);
        }
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn hear(&mut self, message: Message) -> Result<(), Error> {
        let now = self.now();
        self.heard = Instant::now();
        match message {
            Message::Line(peer, line) => self.book.take(peer, line.event, now),
            Message::Gone(peer) => {
                self.book.gone(peer, now);
                if self.book.peers[peer].phase == Phase::Broken {
                    let name = self.book.peers[peer].name;
                    let said = self.children.said(peer);
                    let said = if said.is_empty() {
                        "nothing".into()
                    } else {
                        format!("\u{201c}{said}\u{201d}")
                    };
                    return Err(Error::failed(format!(
                        "peer {name} has ended before the run did. Its last words: {said}. `annulus doctor` may know why"
                    )));
                }
            }
            Message::Interrupted => {
                return Err(Error::failed(
                    "interrupted; all peers of the demo have been ended",
                ));
            }
        }
        Ok(())
    }

    /// Starts the founder, or with a ticket one that joins.
    fn start_peer(&mut self, ticket: Option<String>) -> Result<(), Error> {
        let out = self.folder.0.join(self.book.peers.len().to_string());
        let mut args: Vec<String> = match ticket {
            Some(ticket) => vec!["join".into(), ticket],
            None => {
                let settings = [
                    "optimizer=adam".into(),
                    "lr=1e-3".into(),
                    "batch=96".into(),
                    "min_peers=2".into(),
                    format!("rounds={}", self.rounds),
                ];
                ["train".into(), "--task".into(), self.task.clone()]
                    .into_iter()
                    .chain(settings)
                    .collect()
            }
        };
        let out = out.to_string_lossy().into_owned();
        let common = [
            "--device",
            &self.device,
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--out",
            &out,
        ];
        args.extend(common.map(str::to_owned));
        args.push(format!("eval_every={}", (self.rounds / 12).max(1)));
        args.push("checkpoint_every=0".into());
        self.children.start(&args)?;
        self.book.start(self.now());
        self.heard = Instant::now();
        Ok(())
    }
}

/// How the demo is shown.
enum Stage {
    /// Drawn in place.
    Picture {
        style: Style,
        picture: Picture,
        drawn: Option<Instant>,
        _screen: Screen,
    },
    /// Told as lines.
    Lines {
        style: Style,
        told: usize,
        progress: Option<Instant>,
    },
}

/// Between two lines of progress.
const LINE_PAUSE: Duration = Duration::from_secs(3);

impl Stage {
    fn picture(style: Style) -> Self {
        Self::Picture {
            style,
            picture: Picture::default(),
            drawn: None,
            _screen: Screen::enter(),
        }
    }

    fn lines(style: Style) -> Self {
        Self::Lines {
            style,
            told: 0,
            progress: None,
        }
    }

    /// How long nothing needs to be shown.
    fn wait(&self) -> Duration {
        match self {
            Self::Picture {
                drawn: Some(drawn), ..
            } => FRAME.saturating_sub(drawn.elapsed()),
            Self::Picture { drawn: None, .. } => Duration::ZERO,
            Self::Lines { .. } => FRAME,
        }
    }

    fn show(&mut self, book: &Book, now: f64) {
        match self {
            Self::Picture {
                style,
                picture,
                drawn,
                ..
            } => {
                if drawn.is_some_and(|drawn| drawn.elapsed() < FRAME) {
                    return;
                }
                *drawn = Some(Instant::now());
                // Synchronised output, where the terminal knows it, and no clearing: nothing flickers.
                let mut frame = String::from("\x1b[?2026h\x1b[H");
                let size = terminal::size();
                let mut rows = picture.draw(book, now, size).rows(*style);
                rows.truncate(size.1);
                frame += &rows.join("\x1b[K\r\n");
                frame += "\x1b[J\x1b[?2026l";
                out(&frame);
            }
            Self::Lines {
                style,
                told,
                progress,
            } => {
                for news in &book.news[*told..] {
                    out(&format!(
                        "{:>6.1} s  {}\n",
                        news.at,
                        style.paint(news.color, &news.text)
                    ));
                }
                *told = book.news.len();
                if book.round() > 0 && progress.is_none_or(|last| last.elapsed() >= LINE_PAUSE) {
                    *progress = Some(Instant::now());
                    out(&format!("{now:>6.1} s  {}\n", summary::progress(book)));
                }
            }
        }
    }

    /// The last picture stays in the terminal's history.
    fn leave(self, book: &Book) {
        if let Self::Picture {
            style,
            mut picture,
            _screen,
            ..
        } = self
        {
            drop(_screen);
            let last = book.news.last().map_or(0.0, |news| news.at).max(book.seconds());
            let canvas = picture.draw(book, last, (terminal::size().0, picture::SMALLEST.1));
            out(&(canvas.rows(style).join("\n").trim_end().to_owned() + "\n\n"));
        }
    }
}

fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    // Nobody to show it to: the demo still ends its peers and tidies up.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// The terminal's second screen, without a cursor and without wrapping; dropped, all is as before.
struct Screen;

impl Screen {
    fn enter() -> Self {
        out("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J");
        Self
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        out("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Error> {
        let dir = std::env::temp_dir().join(format!("annulus-demo-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|e| {
            Error::failed(format!(
                "cannot make the folder {}: {e}. Set TMPDIR to a folder that can be written",
                dir.display()
            ))
        })?;
        Ok(Self(dir))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
