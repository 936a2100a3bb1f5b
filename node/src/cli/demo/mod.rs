//! `annulus demo`: a run of three peers on this machine, in which one is killed and a new one joins; or, by `--slow-link`, four
//! peers behind slow lines beside one alone.
//!
//! Nothing is staged: the peers are processes of this program, as `annulus train` and `annulus join` start them, and
//! all that is shown comes from their logs.

mod observed;
mod picture;
mod race;
mod slow_link;
mod stage;
mod story;
mod summary;

use super::canvas::Canvas;
use super::children::{Children, Message};
use super::error::Error;
use super::messages::Headline;
use super::screen::out;
use super::terminal::Style;
use crate::events::Event;
use crate::net::line::Line;
use crate::task_factory::TaskFactory;
use observed::Observed;
use stage::Stage;
use std::time::{Duration, Instant};

/// Watch a run of three peers in which one is killed and a new one joins.
///
/// Starts three peers on this machine that train together, kills one of them without warning, and lets a new one join. Their logs
/// then show that no round was lost and that all hold the same bits. It needs no GPU, no network and no download, and leaves
/// nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Watch four peers behind slow lines race one alone, for a minute.
    #[arg(long, conflicts_with = "rounds")]
    pub slow_link: bool,
    /// Seconds that the race lasts.
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
    /// Rounds of the run (default: as many as suit this machine).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(50..))]
    pub rounds: Option<u64>,
    /// Where the peers compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// Write lines instead of a picture, as if standard output were not a terminal.
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

/// The demo gives up when nothing happens for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The plot of a demo, and how it looks. Pure: events of its peers and times (milliseconds since its start) go in, and the next
/// thing to do comes out.
trait Play {
    /// The next thing to do. Call it again until it is [`Next::Wait`].
    fn next(&self, now_ms: u64) -> Next;
    /// Another peer starts. Returns its arguments beside those of all.
    fn start(&mut self, now_ms: u64) -> Vec<String>;
    /// A peer was killed as [`next`](Self::next) asked.
    fn killed(&mut self, peer: usize, now_ms: u64);
    /// A peer's event.
    fn take(&mut self, peer: usize, event: &Event, now_ms: u64);
    /// A peer's process has ended, and all its events were taken. Returns whether that is a fault.
    fn ended(&mut self, peer: usize, now_ms: u64) -> bool;
    /// The smallest terminal for its picture.
    fn smallest(&self) -> (usize, usize);
    /// The picture for a terminal of that size.
    fn draw(&self, now_ms: u64, size: (usize, usize)) -> Canvas;
    /// The news with their times, the latest last.
    fn news(&self) -> &[(u64, Headline)];
    /// Its progress, in lines of at most `width` columns.
    fn progress(&self, now_ms: u64, width: usize, style: Style) -> Vec<String>;
    /// The result, and whether it is as it should be.
    fn summary(&self, style: Style) -> (String, bool);
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    /// Nothing yet.
    Wait,
    /// Start a peer.
    Start,
    /// Kill this one.
    Kill(usize),
    /// The demo is over.
    End,
}

/// Plays the demo to its end. Fails if the run has not done what it promises.
pub fn run(args: Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let mut demo: Box<dyn Play> = match args.slow_link {
        true => Box::new(slow_link::race(&args.line, args.seconds)),
        false => {
            let task = tasks.first().map_or("", |task| task.name);
            Box::new(Observed::new(task, args.rounds.unwrap_or_else(story::rounds)))
        }
    };
    let (style, start) = (Style::of_stdout(), Instant::now());
    let mut children = Children::new()?;
    let mut stage = Stage::new(style, demo.smallest(), args.plain);
    let done = play(&mut *demo, &mut children, &mut stage, &args.device, start);
    drop(children);
    stage.leave(&*demo, start.elapsed().as_millis() as u64);
    done?;
    let (text, proven) = demo.summary(style);
    out(&text);
    match proven {
        true => Ok(()),
        false => Err(Error::failed(
            "the run did not do what it promises, as told above: please report it with this output",
        )),
    }
}

/// Until the demo is over, or cannot go on.
fn play(
    demo: &mut dyn Play,
    children: &mut Children,
    stage: &mut Stage,
    device: &str,
    start: Instant,
) -> Result<(), Error> {
    let now_ms = || start.elapsed().as_millis() as u64;
    let mut heard = start;
    loop {
        if let Some(message) = children.next(stage.wait(now_ms())) {
            heard = Instant::now();
            match message {
                Message::Event(peer, event) => demo.take(peer, &event, now_ms()),
                Message::Ended(peer) if demo.ended(peer, now_ms()) => return Err(children.failure(peer)),
                Message::Ended(_) => {}
                Message::Interrupted => {
                    return Err(Error::failed(
                        "interrupted; all peers of the demo have been ended",
                    ));
                }
            }
        }
        match demo.next(now_ms()) {
            Next::Wait => {}
            Next::Start => {
                children.start(demo.start(now_ms()), device)?;
                heard = Instant::now();
            }
            Next::Kill(peer) => {
                children.kill(peer);
                demo.killed(peer, now_ms());
            }
            Next::End => return Ok(()),
        }
        if heard.elapsed() > PATIENCE {
            return Err(Error::failed(format!(
                "nothing has happened for {} s; try `annulus doctor`, and see what peers say on their own with \
                 `annulus train`",
                PATIENCE.as_secs()
            )));
        }
        stage.show(demo, now_ms());
    }
}
