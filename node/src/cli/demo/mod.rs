//! `annulus demo`: a run of three peers on this machine, in which one is killed and a new one joins.
//!
//! Nothing is staged: the peers are processes of this program, as `annulus train` and `annulus join` start them, and
//! all that is shown comes from their logs.

pub(super) mod canvas;
mod children;
mod observed;
mod picture;
mod race;
mod slow_link;
pub(super) mod stage;
mod story;
mod summary;

use super::error::Error;
use super::terminal::Style;
use crate::net::line::Line;
use crate::task_factory::TaskFactory;
use children::{Children, Message};
use observed::{Observed, letter};
use stage::Stage;
use std::time::{Duration, Instant};
use story::Next;

/// Watch a run of three peers in which one is killed and a new one joins.
///
/// Starts three peers on this machine that train together; kills one of them without warning; lets a new one join;
/// and shows from their logs that no round was lost and that all hold the same bits. Needs no GPU, no network and no
/// download, and leaves nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Watch four peers behind slow lines train beside one alone, for a minute: what does it pay to train together?
    #[arg(long, conflicts_with = "rounds")]
    pub slow_link: bool,
    /// How many seconds to watch them for.
    #[arg(long, value_name = "N", requires = "slow_link", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// The line of each peer: its rate, and the round-trip time between any two.
    #[arg(
        long,
        value_name = "RATE/RTT",
        requires = "slow_link",
        default_value = "20mbit/50ms"
    )]
    pub line: Line,
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
  annulus demo --slow-link
  annulus demo --slow-link --line 100mbit/5ms --plain
";

/// Rounds for each of the machine's threads, and the most of all. Two threads of a busy 2.3 GHz Xeon commit 140 of
/// them per second: 20 seconds.
const ROUNDS_PER_THREAD: u64 = 1500;
const ROUNDS_MOST: u64 = 9000;
/// The demo gives up when nothing has happened for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plays the demo to its end. Fails if the run has not done what it promises.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let exe = std::env::current_exe().map_err(|e| {
        Error::failed(format!(
            "cannot find this program's own file to start peers from: {e}"
        ))
    })?;
    let task = tasks.first().map(|task| task.name.to_owned()).unwrap_or_default();
    let style = Style::of_stdout();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let rounds = (threads * ROUNDS_PER_THREAD).min(ROUNDS_MOST);
    let folder = std::env::temp_dir().join(format!("annulus-demo-{}", std::process::id()));
    let children = Children::new(exe, folder)?;
    if args.slow_link {
        return slow_link::run(
            children,
            slow_link::Options {
                device: args.device,
                line: args.line,
                seconds: args.seconds,
                plain: args.plain,
            },
        );
    }
    let mut show = Show {
        children,
        start: Instant::now(),
        heard: Instant::now(),
        observed: Observed::default(),
        stage: Stage::new(style, args.plain),
        rounds: args.rounds.unwrap_or(rounds),
        device: args.device,
        task,
    };
    let done = show.play();
    drop(show.children);
    show.stage.leave(&show.observed);
    done?;
    let (text, proven) = summary::summary(&show.observed, style);
    stage::out(&text);
    match proven {
        true => Ok(()),
        false => Err(Error::failed(
            "the run did not do what it promises, as told above: please report it with this output",
        )),
    }
}

/// The demo while it runs.
struct Show {
    children: Children,
    start: Instant,
    heard: Instant,
    observed: Observed,
    stage: Stage,
    rounds: u64,
    device: String,
    task: String,
}

impl Show {
    /// Until the run has ended, or cannot go on.
    fn play(&mut self) -> Result<(), Error> {
        loop {
            if let Some(message) = self.children.next(self.stage.wait(self.now_ms())) {
                self.hear(message)?;
            }
            match story::next(&self.observed) {
                Next::Wait => {}
                Next::Start => self.start_peer()?,
                Next::Kill(peer) => {
                    self.children.kill(peer);
                    self.observed.kill(peer, self.now_ms());
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
            self.stage.show(&self.observed, self.now_ms());
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn hear(&mut self, message: Message) -> Result<(), Error> {
        self.heard = Instant::now();
        match message {
            Message::Event(peer, event) => self.observed.take(peer, &event, self.now_ms()),
            Message::Ended(peer) => {
                self.observed.ended(peer, self.now_ms());
                if self.observed.broken.is_some() {
                    let name = letter(peer);
                    let words = match self.children.last_words(peer) {
                        words if words.is_empty() => "nothing".into(),
                        words => format!("\u{201c}{words}\u{201d}"),
                    };
                    return Err(Error::failed(format!(
                        "peer {name} has ended before the run did. Its last words: {words}. `annulus doctor` may know why"
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

    /// Starts the founder, or one that joins who is there.
    fn start_peer(&mut self) -> Result<(), Error> {
        let mut living = self.observed.logs.peers.iter().filter(|p| !p.killed);
        let mut args = match living.find_map(|p| p.view.ready.as_ref()) {
            // Not the ticket itself: others on this machine can read what a process was started with.
            Some(ready) => vec!["join".into(), format!("@{}", ready.ticket_file)],
            None => {
                let rounds = format!("rounds={}", self.rounds);
                let (train, settings) = (["train", "--task", &self.task], ["optimizer=adam", "lr=1e-3"]);
                // All three share one processor, of which a ring takes the least.
                let run = ["batch=96", "min_peers=2", "topology=ring", &rounds];
                let args = [&train[..], &settings, &run];
                args.concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
            }
        };
        let out = self
            .children
            .folder()
            .join(self.observed.logs.peers.len().to_string());
        let out = out.to_string_lossy();
        let eval_every = format!("eval_every={}", (self.rounds / 12).max(1));
        let common = [
            ["--device", &self.device],
            ["--listen", "127.0.0.1:0"],
            ["--log-format", "json"],
            ["--out", &out],
            [&eval_every, "checkpoint_every=0"],
        ];
        args.extend(common.as_flattened().iter().map(|arg| (*arg).to_owned()));
        self.children.start(&args)?;
        self.observed.start(self.now_ms());
        self.heard = Instant::now();
        Ok(())
    }
}
