//! The interface between a driver and a peer, as two enums: everything that can happen to a peer, and everything
//! that it asks for.

use crate::access::invitation::Revocation;
use crate::base::id::{Contact, Digest, PeerId, Round};
use crate::ledger::Record;
use crate::ledger::aside::Aside;
use crate::ledger::local::LocalRound;
use crate::ledger::pace::Turn;
use crate::ledger::saved::Saved;
use crate::ledger::shifts::Shift;
use crate::ledger::tickets::Barred;
use crate::peer::reason::{Change, OutcastReason, Reason};
use crate::reach::links::LinkOutput;
use crate::state::moments::Moments;
pub use crate::state::pass::{Pass, SpanDone, SpanWork};
pub use crate::wire::Lane;
use crate::wire::{Message, Slow, ViewKey};
use std::ops::Range;
use std::time::Duration;

/// Everything that can happen to a peer.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// A link to a peer is open, whichever end dialled.
    LinkUp {
        /// The other end.
        peer: PeerId,
        /// Where it can be dialled.
        contact: Contact,
        /// Its round-trip time; zero if unknown.
        rtt: Duration,
    },
    /// A link is down. Frames in both directions may be lost.
    LinkDown {
        /// The other end.
        peer: PeerId,
    },
    /// A dial that was asked for has failed.
    DialFailed {
        /// The peer that was dialled.
        peer: PeerId,
        /// Why that peer does not admit this one, if that is the reason.
        barred: Option<Barred>,
    },
    /// A message arrived.
    Message {
        /// The peer at the other end of the link.
        from: PeerId,
        /// The message.
        message: Message,
    },
    /// The contribution for [`Output::Compute`].
    Contribution {
        /// Its round.
        round: Round,
        /// Sum of gradients. If it is not finite, or `weight` is 0, none of its samples counts.
        gradient: Vec<f32>,
        /// Samples in the sum: the first ones of the share.
        weight: u32,
        /// Sum of their losses.
        loss: f32,
        /// The compute time.
        compute: Duration,
        /// Whether the weight is 0 because the data of the share did not come in time. Others get these samples.
        late: bool,
    },
    /// The result for [`Output::Span`].
    Span(Box<SpanDone>),
    /// In a split run, the parts on this peer's disk. [`Output::Restore`] may ask for them.
    Saved(Vec<Saved>),
    /// The result for [`Output::Restore`].
    Restored {
        /// The lineage in the request.
        stepped: Digest,
        /// The parts; `None` if they cannot be read.
        kept: Option<Box<Moments>>,
    },
    /// A trial has measured the device's speed.
    Warm {
        /// Samples per 1,000 seconds.
        speed: u64,
    },
    /// The measured rate of this machine's line.
    Line {
        /// Bytes per second.
        bytes_per_s: u64,
    },
    /// Revoke a ticket. A member announces that with its next header, another peer once it is a member.
    Revoke(Box<Revocation>),
    /// Whether the model gains nothing any more by this peer's evaluations, in a run that
    /// [stops early](crate::config::EarlyStop). The next header says so.
    Stalled(bool),
    /// Finish the round in work, tell the others, and exit.
    Leave,
}

/// Everything that a peer asks of its driver.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send a message over the link to a peer.
    Send {
        /// The other end.
        to: PeerId,
        /// The stream. Each keeps its order; control overtakes bulk.
        lane: Lane,
        /// The message.
        message: Message,
    },
    /// Open a link.
    Dial {
        /// The peer.
        peer: PeerId,
        /// Its addresses.
        contact: Contact,
    },
    /// Close the link to a peer, and every link that it opens again.
    HangUp {
        /// The other end.
        peer: PeerId,
    },
    /// Compute a contribution: replace the parameters in this buffer by the sum of gradients over the samples at
    /// these stream positions, and return it as [`Input::Contribution`]. The peer asks for one at a time; the next
    /// follows only after this one was returned.
    Compute {
        /// The round.
        round: Round,
        /// Positions in the stream of shuffled epochs, in the order in which samples count.
        positions: Vec<Range<u64>>,
        /// The parameters.
        buffer: Vec<f32>,
        /// The local steps to take, if the contribution is a parameter delta ([`way`](crate::ledger::local::way))
        /// instead of a sum of gradients.
        local: Option<LocalRound>,
    },
    /// Compute a microbatch of a span, in a split run. The peer asks for one at a time; the next follows only after
    /// this one was returned as [`Input::Span`].
    Span(Box<SpanWork>),
    /// Read the parts of this lineage, which [`Input::Saved`] has announced, and return them as
    /// [`Input::Restored`].
    Restore {
        /// The lineage after the round that stepped them last.
        stepped: Digest,
    },
    /// Something happened that users may want to know.
    Event(Event),
    /// This peer is done. No output follows. Close links once all frames have left.
    Exit(Exit),
}

impl From<LinkOutput> for Output {
    fn from(output: LinkOutput) -> Self {
        match output {
            LinkOutput::Send { to, lane, message } => Self::Send { to, lane, message },
            LinkOutput::Dial { peer, contact } => Self::Dial { peer, contact },
        }
    }
}

/// An event that users may want to know. When it is emitted, the peer's state, head and digest are those after it.
#[derive(Clone, Debug)]
pub enum Event {
    /// This member, or the one that it watches, has committed a round.
    Committed(Box<Commit>),
    /// A peer became or ceased to be a member.
    Member {
        /// The peer.
        peer: PeerId,
        /// The change.
        change: Change,
        /// The reason.
        reason: Reason,
    },
    /// A peer is cut off for good, because it contradicted itself or forged another's statement.
    Outlawed {
        /// The peer.
        peer: PeerId,
        /// Whether there is a proof for others.
        proven: bool,
    },
    /// A keeper has published an update that does not follow from the sum that this peer has passed to it. All
    /// members have applied the update.
    FalseUpdate {
        /// The keeper.
        peer: PeerId,
        /// The part.
        part: u16,
    },
    /// A guest has sent values that are not the gradients of its samples, as this peer's own device has found twice.
    FalseWork {
        /// The guest.
        peer: PeerId,
    },
    /// The state is being fetched.
    Syncing {
        /// Bytes fetched.
        bytes: u64,
        /// Bytes of the whole state.
        total: u64,
        /// The sponsor's round.
        round: Round,
    },
    /// This peer holds the state of the head and is a member from here on, or watches one.
    Entered,
    /// No reachable peer is a member, so this peer continues alone from its own state.
    Continued {
        /// The lineage that it continues: its own, or that of members that it followed and has lost.
        from: Digest,
    },
    /// This peer ceased to be a member, and joins again.
    Outcast {
        /// The reason.
        reason: OutcastReason,
    },
    /// The lineage that this peer takes for its own from here on does not count what its former one has counted since the two
    /// parted.
    Lost {
        /// The samples that are computed again.
        samples: u64,
    },
    /// The run has no place for this peer now.
    NoPlace {
        /// It asks again after so long.
        wait: Duration,
    },
    /// A newcomer cannot keep up with the rounds: this peer, or one that follows it.
    TooSlow {
        /// The newcomer.
        peer: PeerId,
        /// What its line carries, and what it would have to.
        slow: Slow,
        /// If it is this peer: it tries again after so long.
        wait: Option<Duration>,
    },
    /// This peer's contribution to a round was refused.
    NotFinite {
        /// The round.
        round: Round,
    },
    /// The run changes how often or by which topology members exchange.
    Pace(Turn),
    /// The run is slower with a member, which stands aside from here on.
    Aside(Aside),
    /// In a split run: a member goes from one span to another, or spans get other steps from some round on.
    Shift(Shift),
    /// The run waits for members that keep these parts of the moments.
    Lacking {
        /// Numbers of the parts.
        parts: Vec<u16>,
        /// How long the run waits, from when they were first missed, before it resets them to zero.
        wait: Duration,
    },
    /// No member had the trained values of some parts, so the run continues from an older round of which all parts
    /// exist.
    WentBack {
        /// The last round ...
        from: Round,
        /// ... and the round from which it continues.
        to: Round,
        /// Samples that are computed again.
        samples: u64,
    },
    /// The run waits until there are `min_peers` members.
    Waiting {
        /// Members now.
        members: usize,
    },
}

impl Event {
    pub(crate) fn member(peer: PeerId, reason: Reason) -> Self {
        let change = reason.change();
        Self::Member { peer, change, reason }
    }
}

/// A committed round, seen from one member.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Its record.
    pub record: Record,
    /// The attempt that succeeded.
    pub view: ViewKey,
    /// The state after it.
    pub digest: Digest,
    /// Samples counted in the whole run.
    pub samples: u64,
    /// From the beginning of the round to the end of this peer's contribution.
    pub compute: Duration,
    /// From there to the last piece.
    pub reduce: Duration,
    /// From the last commit to this one.
    pub total: Duration,
}

/// Why a peer is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every sample was counted.
    Finished,
    /// It was asked to leave.
    Left,
    /// No member had a finite contribution in two rounds in a row.
    NotFinite,
    /// No reachable peer admits it.
    Barred(Barred),
    /// No full member was there for long, and this peer may not continue alone.
    NoMember,
    /// No reachable peer holds the run's state, or waits to get it from one that does. Only checkpoints are left of
    /// it.
    Lost,
}
