//! All that can happen to a peer and all that it asks for: what a driver and a peer say to each other, as two enums.

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
use crate::wire::{Message, ViewKey};
use std::ops::Range;
use std::time::Duration;

/// All that can happen to a peer.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// A link to a peer is open, whoever dialled.
    LinkUp {
        /// The other end.
        peer: PeerId,
        /// Where it can be dialled.
        contact: Contact,
        /// Its round-trip time, zero if nobody has measured it.
        rtt: Duration,
    },
    /// The link is gone, and with it perhaps frames in both directions.
    LinkDown {
        /// The other end.
        peer: PeerId,
    },
    /// A dial that was asked for failed.
    DialFailed {
        /// Who was dialled.
        peer: PeerId,
        /// Why it lets this peer in no more, if that is why.
        barred: Option<Barred>,
    },
    /// A message arrived.
    Message {
        /// Over whose link.
        from: PeerId,
        /// What it says.
        message: Message,
    },
    /// The contribution that [`Output::Compute`] asked for.
    Contribution {
        /// The round it is for.
        round: Round,
        /// Sum of gradients. If it is not finite, or `weight` is 0, none of its samples counts.
        gradient: Vec<f32>,
        /// Samples in the sum, from the front of the share.
        weight: u32,
        /// Sum of their losses.
        loss: f32,
        /// How long it took.
        compute: Duration,
    },
    /// What [`Output::Span`] asked for.
    Span(Box<SpanDone>),
    /// This is what this peer has on its disk, where a model is split over the members: it can be asked for by
    /// [`Output::Restore`].
    Saved(Vec<Saved>),
    /// What [`Output::Restore`] has asked for; nothing if it cannot be read.
    Restored {
        /// What it was asked for by.
        stepped: Digest,
        /// The parts.
        kept: Option<Box<Moments>>,
    },
    /// The device has been tried out: this many samples per 1,000 seconds.
    Warm {
        /// Speed.
        speed: u64,
    },
    /// What this machine's line carries, as far as that has shown.
    Line {
        /// Bytes per second.
        bytes_per_s: u64,
    },
    /// A ticket is taken back: said with the next header of this peer, if it is a member or as soon as it is one.
    Revoke(Box<Revocation>),
    /// Finish the round in work, tell the others, and exit.
    Leave,
}

/// All that a peer asks of its driver.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send a message over the link to a peer.
    Send {
        /// The other end.
        to: PeerId,
        /// Which stream: each keeps its order, control overtakes bulk.
        lane: Lane,
        /// What to send.
        message: Message,
    },
    /// Open a link.
    Dial {
        /// To whom.
        peer: PeerId,
        /// Where.
        contact: Contact,
    },
    /// Close the link to a peer, and each that it opens again.
    HangUp {
        /// The other end.
        peer: PeerId,
    },
    /// Make a contribution: replace the parameters in this buffer by the sum of gradients over the
    /// samples at these stream positions and give it back as [`Input::Contribution`]. One is asked for at a
    /// time, the next only after this one has been given.
    Compute {
        /// The round.
        round: Round,
        /// Positions in the stream of shuffled epochs, in the order in which they count.
        positions: Vec<Range<u64>>,
        /// The parameters.
        buffer: Vec<f32>,
        /// How to go about it, where the contribution is to be the way that local steps have led
        /// ([`way`](crate::ledger::local::way)), not a sum of gradients.
        local: Option<LocalRound>,
    },
    /// Compute a microbatch of a span, where the model is split over the members. One is asked for at a time, the next only
    /// after this one has been given back as [`Input::Span`].
    Span(Box<SpanWork>),
    /// Read what [`Input::Saved`] has told of, of this lineage, and give it back as [`Input::Restored`].
    Restore {
        /// The lineage after the round that has stepped it last.
        stepped: Digest,
    },
    /// Something happened that the world may want to know.
    Event(Event),
    /// This peer is done. No output follows; close links once what was sent has left.
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

/// What the world may want to know. The state, head and digest of the peer are those after the event.
#[derive(Clone, Debug)]
pub enum Event {
    /// A round was committed by this member, or by the one that it watches.
    Committed(Box<Commit>),
    /// Someone became or ceased to be a member.
    Member {
        /// Who.
        peer: PeerId,
        /// What changed.
        change: Change,
        /// Why.
        reason: Reason,
    },
    /// Somebody is cut off for good: it has said two things at once, or said something in another's name.
    Outlawed {
        /// Who.
        peer: PeerId,
        /// Whether there is a proof for others.
        proven: bool,
    },
    /// A keeper has let out an update that the sum does not give which this peer has passed on to it: the weights are what it
    /// has made of them, for all.
    FalseUpdate {
        /// Who.
        peer: PeerId,
        /// Of which part.
        part: u16,
    },
    /// The state is on its way.
    Syncing {
        /// Bytes held.
        bytes: u64,
        /// Bytes of the whole state.
        total: u64,
        /// The sponsor's round.
        round: Round,
    },
    /// This peer holds the state of the head, and from here on is a member, or one that watches.
    Entered,
    /// Nobody that can be reached is a member: this peer goes on alone from the state that it holds.
    Continued {
        /// The lineage that it goes on from: its own, or that of members whom it followed and has lost.
        from: Digest,
    },
    /// This peer ceased to be a member and joins again.
    Outcast {
        /// Why.
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
    /// This peer's contribution to a round was refused.
    NotFinite {
        /// The round.
        round: Round,
    },
    /// The run goes on in another way.
    Pace(Turn),
    /// The run is slower with a member, which stands aside from here on.
    Aside(Aside),
    /// Where the model is split: a member goes from one span to another, or spans have other steps from some round on.
    Shift(Shift),
    /// The run waits for members that keep these parts of the moments: after so long they begin anew with moments of zero.
    Lacking {
        /// Numbers of the parts.
        parts: Vec<u16>,
        /// From when they were first missed on.
        wait: Duration,
    },
    /// What was trained of some parts was with nobody, and the run goes on from an older round of which all parts are there.
    WentBack {
        /// The last round ...
        from: Round,
        /// ... and that from which it goes on.
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
    /// In two rounds running no member had a finite contribution.
    NotFinite,
    /// Those that can be reached do not let it in.
    Barred(Barred),
    /// No full member was there for long, and this peer may not go on alone.
    NoMember,
    /// Nobody that can be reached holds the run's state, nor waits to get it from somebody who does. What is left of it is in
    /// checkpoints.
    Lost,
}
