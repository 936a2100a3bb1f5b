//! The options of a participant as plain data: made by the command line or by a program of one's own.
//!
//! Names of optimizers, devices and the like are text here; the code that acts on the options parses and checks them. This
//! module must not know the command line, files or devices.

mod every;

pub use self::every::{Every, seconds};
use annulus_core::codec::Codec;
use annulus_core::invitation::Role;
use annulus_core::optim::{CLIP, LocalSteps, Moments, Optimizer, Schedule};
use annulus_core::{EarlyStop, Topology};
use serde_json::{Map, Value};
use std::fmt::{self, Display, Formatter};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Start a run, or go on with one that has stopped.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TrainOptions {
    /// Where the run comes from.
    pub start: Start,
    /// Options of this peer.
    pub local: Local,
}

/// Where a run comes from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Start {
    /// It is new.
    New(Box<NewRun>),
    /// A meeting place of its peers: the run is new if nobody has been there yet. The file holds their common secret, if the
    /// place itself keeps none.
    Meet(Box<NewRun>, Meet, Option<PathBuf>),
    /// Its last checkpoint, in the folder of an earlier run. The settings are those of then.
    Resume(PathBuf),
}

/// Where the peers of a run meet, told the same everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meet {
    /// A file that all of them see.
    File(PathBuf),
    /// A machine that each of them can reach, `NAME:PORT`.
    Host(String),
    /// All addresses of some names, each `NAME:PORT`.
    Names(Vec<String>),
}

impl FromStr for Meet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let with_port = |name: &str| {
            let (name, port) = name.rsplit_once(':')?;
            (!name.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(())
        };
        let (kind, place) = text.split_once(':').unwrap_or_default();
        let names: Vec<String> = place.split(',').map(str::to_owned).collect();
        match kind {
            "file" if !place.is_empty() => Ok(Self::File(place.into())),
            "host" if with_port(place).is_some() => Ok(Self::Host(place.into())),
            "dns" if names.iter().all(|name| with_port(name).is_some()) => Ok(Self::Names(names)),
            _ => Err("write file:PATH (a file that all machines see), host:NAME:PORT (a machine that all can reach) or \
                      dns:NAME:PORT (a name with the addresses of all)"
                .into()),
        }
    }
}

/// Take part in a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JoinOptions {
    /// The ticket that a member printed.
    pub ticket: String,
    /// Whether to take the first free folder of those with a number behind the name, if another process trains in this one.
    pub numbered: bool,
    /// Options of this peer.
    pub local: Local,
}

/// All that defines a new run, apart from the data. Equal on all peers from then on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NewRun {
    /// The title: a few words for people, of what is trained; empty: nothing is said.
    pub title: String,
    /// What for and by whom, likewise.
    pub about: String,
    /// Name of the task, such as `digits`.
    pub task: String,
    /// Keys of the task's configuration that differ from its defaults.
    pub task_config: Map<String, Value>,
    /// When it ends.
    pub length: Length,
    /// Whether the task may choose another end, as the user named none.
    pub any_length: bool,
    /// When it ends before that; none: never.
    pub early_stop: Option<EarlyStop>,
    /// Samples per step, over all peers.
    pub batch: NonZeroU32,
    /// Whether the task may choose another batch, as the user named none.
    pub any_batch: bool,
    /// Samples that a device works on at once; 0: its whole share of a round.
    pub micro_batch: u32,
    /// Seed of the initial parameters and of the samples' order.
    pub seed: u64,
    /// An optimizer as text: its name, then settings, as in `adamw weight_decay=0.1`.
    pub optimizer: String,
    /// Number format of its state between two steps.
    pub moments: Moments,
    /// Base learning rate.
    pub lr: f32,
    /// The learning rate over the batches. It is brought to the run's length.
    pub schedule: Schedule,
    /// Largest norm of the mean gradient. With local steps it bounds how far their mean may lead, too.
    pub clip: Option<f32>,
    /// Batches between two exchanges, in which members step on their own.
    pub local_steps: Steps,
    /// With local steps: outer learning rate, applied to the averaged parameter delta.
    pub outer_lr: f32,
    /// With local steps: Nesterov momentum of the outer step; 0: none.
    pub outer_momentum: f32,
    /// With local steps: whether members take the first steps of the next round while the sums of this one travel; none: they
    /// do.
    pub overlap: Option<bool>,
    /// Number format on the wire; none: f32, or with local steps the one with the fewest bits that fits.
    pub codec: Option<Codec>,
    /// Topology of the exchange; none: the one that the members measure to be faster.
    pub topology: Option<Topology>,
    /// With fewer members the run waits.
    pub min_peers: NonZeroU16,
    /// Whether members that would slow the run down stand aside.
    pub stand_aside: bool,
    /// Members that keep each shard of the optimizer's state; none: every member keeps all, or two if the model is split.
    pub copies: Option<NonZeroU16>,
    /// Whether the model is split over the members.
    pub split: SplitRun,
    /// Number format of activations between spans.
    pub boundary: Codec,
    /// With a split model: vectors in which a round's gradients are summed, each by one holder of a span, so that these holders
    /// share the work.
    pub lanes: NonZeroU16,
}

/// Whether a model is split over the members of a run, each of which holds some of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitRun {
    /// Each member holds all of it.
    Off,
    /// Into as few spans as fit the founder's memory.
    Auto,
    /// Into this number of spans.
    Spans(NonZeroU16),
    /// Into spans with these numbers of steps.
    Cut(Vec<NonZeroU16>),
}

impl Default for NewRun {
    fn default() -> Self {
        Self {
            title: String::new(),
            about: String::new(),
            task: "digits".into(),
            task_config: Map::new(),
            length: Length::Epochs(const { NonZeroU64::new(5).unwrap() }),
            any_length: true,
            early_stop: None,
            // The batch and the rate are those of the usual first MNIST example with Adam.
            batch: const { NonZeroU32::new(64).unwrap() },
            any_batch: true,
            micro_batch: 0,
            seed: 1,
            optimizer: "adam".into(),
            moments: Moments::F32,
            lr: 1e-3,
            schedule: Schedule::Constant,
            clip: Some(CLIP),
            local_steps: Steps::None,
            outer_lr: 1.0,
            outer_momentum: 0.0,
            overlap: None,
            codec: None,
            topology: None,
            min_peers: NonZeroU16::MIN,
            stand_aside: true,
            copies: None,
            split: SplitRun::Off,
            boundary: Codec::F32,
            lanes: const { NonZeroU16::new(2).unwrap() },
        }
    }
}

impl NewRun {
    /// Samples after which it ends, if the data set has `samples`.
    pub fn target(&self, samples: NonZeroU64) -> NonZeroU64 {
        match self.length {
            Length::Epochs(epochs) => epochs.saturating_mul(samples),
            Length::Rounds(rounds) => rounds.saturating_mul(self.batch.into()),
        }
    }

    /// Its local steps as the manifest has them; none if every batch is a round.
    pub fn local(&self) -> Option<LocalSteps> {
        let outer = match self.outer_momentum {
            0.0 => Optimizer::Sgd { weight_decay: 0.0 },
            momentum => Optimizer::Momentum {
                momentum,
                nesterov: true,
                weight_decay: 0.0,
            },
        };
        let steps = match self.local_steps {
            Steps::None => return None,
            Steps::Fixed(steps) => Some(steps),
            Steps::Auto => None,
        };
        Some(LocalSteps {
            steps,
            outer,
            outer_lr: self.outer_lr,
        })
    }

    /// Number format on the wire.
    pub fn codec(&self) -> Codec {
        // Of few local steps signs cost next to no learning, and with shorter exchanges few are needed; of many four bits cost
        // less.
        let usual = match self.local_steps {
            Steps::None => Codec::F32,
            Steps::Fixed(_) => Codec::Int4,
            Steps::Auto => Codec::Sign,
        };
        self.codec.unwrap_or(usual)
    }

    /// Whether members take the first local steps of the next round while the sums of this one travel.
    pub fn overlap(&self) -> bool {
        self.overlap.unwrap_or(self.local_steps != Steps::None)
    }

    /// Batches until its end.
    pub fn batches(&self, samples: NonZeroU64) -> u64 {
        self.target(samples).get().div_ceil(u64::from(self.batch.get()))
    }
}

/// How many local steps members take between two exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Steps {
    /// None: every batch is a round.
    None,
    /// A round is this number of batches.
    Fixed(NonZeroU32),
    /// As many as hide the exchange behind the computing.
    Auto,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Length {
    /// After this number of passes over the data.
    Epochs(NonZeroU64),
    /// After the samples of this number of full rounds.
    Rounds(NonZeroU64),
}

/// The page that a peer serves to browsers, on the TCP port of the same number as the UDP port it listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Folder of its files; none: where they are built to.
    pub dir: Option<PathBuf>,
    /// Certificate chain and private key, as PEM; none: made by the peer itself.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Names under which it may be visited, beside the peer's addresses and localhost.
    pub hosts: Vec<String>,
    /// Address of a copy of its files on another host; none: the link for others leads to this peer.
    pub copy: Option<String>,
}

/// A pretended speed of a faster device.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ActedSpeed {
    /// Slower than it is at best by this factor, at least 1.
    Times(f64),
    /// It takes this long for a sample, or longer if it needs longer: the same on any machine.
    Sample(Duration),
}

/// Options of one peer; others may have chosen otherwise.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Local {
    /// Folder or file of the training data; none: the task generates it, or another peer sends it.
    pub data: Option<PathBuf>,
    /// Whether to keep the data from peers that lack it.
    pub keep_data: bool,
    /// Folder for checkpoints and the ledger.
    pub out: PathBuf,
    /// The device as text: `auto`, `cpu`, `gpu` or `gpu:N`.
    pub device: String,
    /// How it calls itself, for people.
    pub name: Option<String>,
    /// `HOST:PORT` to listen on, or a port alone for all of this machine's addresses; port 0: any free one.
    pub listen: String,
    /// The slow line to emulate, if any, as text: `20mbit/50ms`.
    pub line: Option<String>,
    /// The device's pretended speed, if slower than it is.
    pub slower: Option<ActedSpeed>,
    /// Whether the process at the other end of standard input, a Unix socket, computes in the device's place.
    pub external: bool,
    /// Time of a sample on a pretended device that computes nothing, if there is to be one.
    pub sample_takes: Option<Duration>,
    /// Addresses to tell others, beside those that are found; behind NAT, for example.
    pub advertise: Vec<String>,
    /// Whether to ask a router to forward a port.
    pub map_port: bool,
    /// What peers may do that join on this network with the code of this peer; none: the run is not announced.
    pub announce: Option<Role>,
    /// The page for browsers, if it is to be served.
    pub page: Option<Page>,
    /// When the state is saved, besides at the end.
    pub checkpoint_every: Every,
    /// Checkpoints to keep.
    pub keep: NonZeroU32,
    /// Whether to keep the best checkpoint too: the one with the lowest loss when it was evaluated. Each evaluated state is
    /// saved for that.
    pub keep_best: bool,
    /// Bytes at which the ledger restarts at a checkpoint; none: it keeps every round.
    pub keep_ledger: Option<u64>,
    /// Rounds from one evaluation to the next; 0: only at the end.
    pub eval_every: u64,
    /// Fraction of time that the device may compute.
    pub power: f64,
    /// Bytes of memory that it may take; none: as many as the machine allows.
    pub memory: Option<u64>,
    /// Bytes of disk that all fetched data may take; none: 64 GiB.
    pub cache: Option<u64>,
    /// Most spans of a split model that it holds; none: as many as fit.
    pub spans: Option<NonZeroU16>,
    /// Bytes of GPU memory that it may reserve; none: as many as it needs.
    pub gpu_memory: Option<u64>,
    /// Most cores to use; none: all that the process may use.
    pub cores: Option<NonZeroUsize>,
    /// How long leaving may take.
    pub leave_within: Duration,
    /// When it may compute.
    pub when: When,
    /// Niceness of the computing threads, as on Unix: from 0 (not nice) to 19.
    pub nice: u8,
    /// Folder in which it counts what this user's peers have given to runs; none: it does not count.
    pub tally: Option<PathBuf>,
    /// These options as words of the command line, for its folder to keep; none: the folder keeps what it has.
    pub kept: Option<Vec<String>>,
}

impl Default for Local {
    /// A peer that computes on the best device, says nothing to its network, and serves no page.
    fn default() -> Self {
        Self {
            data: None,
            keep_data: false,
            out: "runs".into(),
            device: "auto".into(),
            name: None,
            listen: "0".into(),
            line: None,
            slower: None,
            external: false,
            sample_takes: None,
            advertise: Vec::new(),
            map_port: false,
            announce: None,
            page: None,
            checkpoint_every: Every::default(),
            keep: const { NonZeroU32::new(3).unwrap() },
            keep_best: false,
            keep_ledger: None,
            eval_every: 0,
            power: 1.0,
            memory: None,
            cache: None,
            spans: None,
            gpu_memory: None,
            cores: None,
            leave_within: Duration::from_secs(25),
            when: When::default(),
            nice: 0,
            tally: None,
            kept: None,
        }
    }
}

/// When a peer may compute on its machine; by default always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct When {
    /// Only at these hours.
    pub hours: Option<Hours>,
    /// Only while the machine is plugged in.
    pub plugged_in: bool,
    /// Only while it has no other work.
    pub idle: bool,
}

/// From one time of the day to another, perhaps over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    /// Minutes since midnight.
    from: u16,
    until: u16,
}

impl Hours {
    /// Whether a time is within them, in minutes since midnight.
    pub fn contains(self, minute: u16) -> bool {
        match self.from < self.until {
            true => (self.from..self.until).contains(&minute),
            false => minute >= self.from || minute < self.until,
        }
    }
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let minute = |text: &str| {
            let (hours, minutes) = text.split_once(':').unwrap_or((text, "0"));
            let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60 || (hours, minutes) == (24, 0)).then_some(60 * hours + minutes)
        };
        let hours = text
            .split_once('-')
            .and_then(|(from, until)| Some((minute(from)?, minute(until)?)));
        match hours {
            Some((from, until)) if from != until => Ok(Self { from, until }),
            _ => Err("write hours as 22-7 or 22:30-6:15".into()),
        }
    }
}

impl Display for Hours {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { from, until } = self;
        write!(
            f,
            "{}:{:02}-{}:{:02}",
            from / 60,
            from % 60,
            until / 60,
            until % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_may_go_over_midnight() {
        let hours = |text: &str| text.parse::<Hours>();
        let at = |text: &str, hour: u16, minute: u16| hours(text).unwrap().contains(60 * hour + minute);
        assert!(at("22-7", 22, 0) && at("22-7", 6, 59) && !at("22-7", 7, 0) && !at("22-7", 21, 59));
        assert!(at("9:30-17", 9, 30) && !at("9:30-17", 9, 29) && !at("9:30-17", 17, 0));
        assert!(at("0-24", 23, 59) && at("0-24", 0, 0));
        assert_eq!(hours("22:30-6:05").unwrap().to_string(), "22:30-6:05");
        for bad in ["", "22", "22-", "25-7", "22-7:60", "7-7", "24:01-3", "a-b"] {
            assert!(hours(bad).is_err(), "{bad}");
        }
    }
}
