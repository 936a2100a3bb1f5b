//! The events of a run: the one source of log lines, JSON, pages and the demo.
//!
//! An [`Event`] is plain data. In JSON (`--log-format json`) each is one line, an object with the fields of
//! `docs/events.md`: first `time`, then `event` with the variant's name in lower case, then the variant's own fields.
//! Numbers that are not finite are written as `null`, as is what does not exist (a page's address).
//! Readers should ignore fields that they do not know: later versions may add some, and take none away.
//!
//! This module must not know the code that makes events or reads them, or the time.

use crate::net::link::LinkKind;
use crate::task::Metrics;
use serde::{Deserialize, Deserializer, Serialize};

/// Takes events as they happen.
pub type Sink<'a> = &'a mut (dyn FnMut(Event) + Send);

/// Something that happened to a run, as one peer saw it.
///
/// ```
/// use annulus::Event;
/// use annulus::events::LogLine;
///
/// let event = Event::Warning { message: "the disk is nearly full".into() };
/// let line = LogLine::new(0, event).to_json();
/// assert_eq!(
///     line,
///     r#"{"time":"1970-01-01T00:00:00.000Z","event":"warning","message":"the disk is nearly full"}"#
/// );
/// let Event::Warning { message } = LogLine::from_json(&line)?.event else {
///     unreachable!("it was a warning")
/// };
/// assert_eq!(message, "the disk is nearly full");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Event {
    /// This peer is up: it knows the run's manifest, its device works, and others can dial it.
    Ready(Ready),
    /// Progress of a founder that packs a folder of data into the file that the run learns from.
    Pack {
        /// Steps done: each file is looked at, and then read.
        done: u64,
        /// All steps.
        total: u64,
    },
    /// Progress of a newcomer that fetches the run's data.
    Fetch {
        /// Bytes here.
        bytes: u64,
        /// Bytes needed.
        total: u64,
    },
    /// Progress of a newcomer that fetches the state it needs to take part.
    Sync {
        /// Bytes received.
        bytes: u64,
        /// Bytes needed.
        total: u64,
        /// The committed round that it is catching up with.
        round: u64,
    },
    /// This peer's part of a round takes long: how far it is. Now and then until it is done.
    Computing {
        /// The round.
        round: u64,
        /// Samples of this peer's part; 0 where it holds some steps of a model that is split.
        samples: u64,
        /// How many of them are done, if that can be told.
        done: Option<u64>,
        /// For how long it has computed.
        seconds: f64,
    },
    /// A round was committed.
    Round(Round),
    /// A peer became a member of the ring, or stopped being one.
    Member {
        /// The peer.
        peer: String,
        /// What happened to it.
        change: Change,
        /// The last committed round when it happened.
        round: u64,
        /// The reason in words; empty if there is nothing to explain.
        reason: String,
    },
    /// How a peer calls itself. Nobody checks that: it is a claim. Told before what happens to that peer.
    Named {
        /// The peer.
        peer: String,
        /// Its name, printable and on one line.
        name: String,
    },
    /// A text by the model as it stands, at most once a minute, from a peer that serves a page.
    Sample {
        /// The committed round whose parameters wrote it.
        round: u64,
        /// The text.
        text: String,
    },
    /// The members change how they exchange, as they measured another way to be faster.
    Pace(Pace),
    /// In a split model, a member changes from one span to another, which makes rounds shorter.
    Shift {
        /// The member.
        peer: String,
        /// The last round before that.
        round: u64,
        /// The span that it gives up, from 1.
        from: u64,
        /// The span that it takes.
        to: u64,
        /// Why, in words.
        why: String,
    },
    /// In a split model, the spans will have other steps, which makes rounds shorter. The change takes effect once their holders have
    /// the weights for it.
    Cut {
        /// The last round before this decision.
        round: u64,
        /// Steps of each span after it.
        steps: Vec<u64>,
        /// Steps of each span before it.
        before: Vec<u64>,
        /// Why, in words.
        why: String,
    },
    /// The model was evaluated on held-out data.
    Eval {
        /// The committed round whose parameters were evaluated.
        round: u64,
        /// Mean loss per sample.
        #[serde(deserialize_with = "null_is_nan")]
        loss: f32,
        /// Named measures, such as accuracy.
        metrics: Metrics,
    },
    /// This peer left the ring until it may compute on its machine again; then it is ready again.
    Waiting {
        /// The obstacle, in words.
        why: String,
    },
    /// From where others can reach this peer, as far as it can tell; again when that changes.
    Reach {
        /// Where they are told to dial it, `host:port`.
        addresses: Vec<String>,
        /// From where, and the obstacle elsewhere, in words.
        why: String,
    },
    /// Peers on this network can find the run and join with a code. Told again when somebody tries, or the code changes.
    Nearby {
        /// The code, if it may be told; none also if nobody can find the run.
        code: Option<String>,
        /// The news, or the obstacle, in words.
        why: String,
    },
    /// A link to another peer came up or went down. Other members relay frames for a member without a link.
    Link {
        /// The other end.
        peer: String,
        /// How it was made; none: it is down.
        way: Option<LinkKind>,
        /// Its round-trip time when it came up, 0 if nobody has measured it.
        rtt_ms: f64,
    },
    /// What the task of a new run made of its data, before training begins.
    Data {
        /// In lines, for a person to check.
        description: String,
    },
    /// The run has ended, and this peer has written its model as one file.
    Model {
        /// The file.
        file: String,
        /// The judgement in the file's metadata, by key: metrics on test rows, and more.
        judged: serde_json::Map<String, serde_json::Value>,
    },
    /// Something that a person should know, and that the run survives.
    Warning {
        /// The problem, and what to do about it.
        message: String,
    },
    /// This peer's part is over: the run has reached its end, or the peer has left it.
    Done(Done),
}

impl Event {
    /// The event without its tickets, which would let its reader take part.
    pub fn without_ticket(self) -> Self {
        let bare = |url: String| url.split('#').next().unwrap_or_default().to_owned();
        match self {
            Self::Ready(ready) => Self::Ready(Ready {
                code: None,
                ticket: None,
                url: ready.url.map(bare),
                share_url: ready.share_url.map(bare),
                ..ready
            }),
            Self::Nearby { why, .. } => Self::Nearby { code: None, why },
            other => other,
        }
    }
}

/// See [`Event::Ready`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// This peer's name, 64 hexadecimal digits.
    pub peer: String,
    /// The run's name, 64 hexadecimal digits.
    pub run: String,
    /// The code that lets peers on this network in, if they are to find the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What another peer needs to join (`annulus join TICKET`), where it may be told.
    pub ticket: Option<String>,
    /// The file that holds it, for its owner's eyes; empty of a peer that has no files.
    pub ticket_file: String,
    /// Address of the page on which a browser on this machine can take part, if one is served; with the ticket behind `#`
    /// where that may be told.
    pub url: Option<String>,
    /// Address of that page for browsers on other machines, if they can reach it.
    pub share_url: Option<String>,
    /// Whether browsers can take part there. If not, the page only shows the run.
    #[serde(default)]
    pub takes_tabs: bool,
    /// What is trained, in words of the founder; empty: it did not say.
    #[serde(default)]
    pub title: String,
    /// What for and by whom, likewise.
    #[serde(default)]
    pub about: String,
    /// Name of the task.
    pub task: String,
    /// The device that computes, in words.
    pub device: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Samples after which the run ends.
    pub target: u64,
}

/// See [`Event::Pace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pace {
    /// The last round of the former way.
    pub round: u64,
    /// `ring` or `direct`.
    pub topology: String,
    /// Batches in a round.
    pub batches: u64,
    /// Why, in words.
    pub why: String,
}

/// See [`Event::Round`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Round {
    /// Its number, from 1.
    pub round: u64,
    /// Identifies the view (members and attempt) that committed it, 16 hexadecimal digits.
    pub view: String,
    /// Its contributors, in ring order.
    pub members: Vec<Share>,
    /// Mean loss per sample of the round.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f32,
    /// Digest of parameters and optimizer state after it, 64 hexadecimal digits; equal on all members. Of a split model that of
    /// the parts that this peer holds; empty if it holds none, and then not in JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Samples in the round's sum.
    pub samples: u64,
    /// Samples that the run has counted so far.
    pub counted: u64,
    /// How long this peer computed.
    #[serde(deserialize_with = "null_is_nan")]
    pub compute_seconds: f64,
    /// From this peer's contribution to the commit: exchanging, and waiting for others.
    #[serde(deserialize_with = "null_is_nan")]
    pub reduce_seconds: f64,
    /// From the previous commit to this one, at this peer.
    #[serde(deserialize_with = "null_is_nan")]
    pub seconds: f64,
    /// Bytes that this peer sent for it.
    pub bytes_sent: u64,
    /// Bytes that this peer received for it.
    pub bytes_received: u64,
    /// Bytes that it passed on meanwhile, for others that have no link to each other. They are among those sent.
    pub bytes_relayed: u64,
}

/// One contributor of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Share {
    /// Its name, 64 hexadecimal digits.
    pub peer: String,
    /// Samples in its contribution.
    pub weight: u64,
}

/// How a peer's membership changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Change {
    /// It is a member from the next round on.
    Joined,
    /// The run would be slower with it: it holds the state, and is tried again.
    Aside,
    /// It said goodbye.
    Left,
    /// Its links closed or it missed its deadline.
    Failed,
    /// The others went on without it although it is alive: this very peer, or one whose state differed.
    Evicted,
}

/// See [`Event::Done`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Done {
    /// The last round that this peer committed.
    pub round: u64,
    /// Whether the run is finished.
    pub finished: bool,
    /// Whether it is because most members saw no gain any more.
    #[serde(default)]
    pub stopped_early: bool,
    /// Whether the run's time budget was used up by then, as this peer's clock says.
    #[serde(default)]
    pub out_of_time: bool,
    /// Whether its model is split over the members.
    pub split: bool,
    /// Digest of parameters and optimizer state after that round, 64 hexadecimal digits; of a split model that of the parts that
    /// this peer holds. None of a peer that left before it held any of it.
    pub digest: Option<String>,
    /// Mean loss per sample of the last evaluation, or of the last round where there was none.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f32,
    /// Whether that loss is of held-out data: of an evaluation after that round.
    #[serde(default)]
    pub held_out: bool,
    /// Named measures of the last evaluation, such as accuracy.
    pub metrics: Metrics,
    /// The folder that holds the final checkpoint, if there is one.
    pub dir: Option<String>,
    /// The best checkpoint there by its loss when it was evaluated, if this peer keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

/// An evaluated checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Best {
    /// The round after which it was saved.
    pub round: u64,
    /// Its mean loss per sample on held-out data.
    pub loss: f32,
}

/// An event and when it happened: one line of a JSON log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// RFC 3339, UTC, with milliseconds.
    pub time: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl LogLine {
    /// An event at a time, given as milliseconds since 1970-01-01 UTC.
    pub fn new(unix_ms: u64, event: Event) -> Self {
        Self {
            time: rfc3339(unix_ms),
            event,
        }
    }

    /// The line, without its end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("events are plain data with text keys")
    }

    /// Reads a line back.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// A time as RFC 3339 in UTC with milliseconds, such as `2026-11-20T13:20:00.250Z`.
pub fn rfc3339(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of a day counted from 1970-01-01 (proleptic Gregorian). Years are taken to begin in March,
/// so that the leap day is the last of its year and 153 days make five months.
fn civil(days: u64) -> (u64, u64, u64) {
    let since = days + 719_468; // from 0000-03-01
    let (era, day_of_era) = (since / 146_097, since % 146_097); // 400 years each
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // 0 is March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (400 * era + year_of_era + carry, month, day)
}

/// JSON has no word for numbers that are not finite: they are written as `null` and read as not-a-number.
fn null_is_nan<'de, D: Deserializer<'de>, N: Deserialize<'de> + From<f32>>(input: D) -> Result<N, D::Error> {
    Ok(Option::<N>::deserialize(input)?.unwrap_or_else(|| N::from(f32::NAN)))
}

#[cfg(test)]
mod tests;
