//! Traces what a peer does, to find out why a run is stuck. It is translated from the peer's inputs and outputs, so the
//! protocol itself needs no logging.
//!
//! At `debug`: a line for each attempt, commit and link, and for each message of an agreement. At `trace`: every
//! message, with its size. Each line is in spans that name this peer and its view.
//!
//! Tracing changes nothing, and costs nothing if nobody listens.

use crate::net::link::{LinkEvent, SendError};
use annulus_core::peer::{Commit, Event};
use annulus_core::shuffle;
use annulus_core::wire::{Message, ViewKey, WireError};
use annulus_core::{Output, PeerId};
use std::fmt::{self, Display, Formatter};
use tracing::{Level, Span, debug, debug_span, enabled, trace};

/// A peer's trace.
#[derive(Debug)]
pub struct Trace {
    peer: Span,
    /// The peer's view, and its span.
    view: Option<(ViewKey, Span)>,
}

impl Trace {
    /// For a peer of this name.
    pub fn new(me: PeerId) -> Self {
        Self {
            peer: debug_span!("peer", %me),
            view: None,
        }
    }

    /// The peer is in this view now; in none if it is not a member.
    pub fn enter(&mut self, view: Option<(ViewKey, &[PeerId])>) {
        let known = self.view.as_ref().map(|(key, _)| *key);
        if !enabled!(Level::DEBUG) || view.map(|(key, _)| key) == known {
            return;
        }
        self.view = view.map(|(key, members)| {
            let ViewKey { round, attempt, id } = key;
            let span = debug_span!(parent: &self.peer, "view", round, attempt, id = format!("{id:016x}"));
            span.in_scope(|| debug!(?members, "attempt begins"));
            (key, span)
        });
    }

    /// Traces an event of the link, except frames.
    pub fn link(&self, event: &LinkEvent) {
        self.within(|| match event {
            LinkEvent::Up {
                peer,
                addresses,
                dialled_by_us,
                way,
                rtt,
            } => debug!(%peer, dialled_by_us, ?way, ?rtt, ?addresses, "link up"),
            LinkEvent::Down { peer, reason } => debug!(%peer, %reason, "link down"),
            LinkEvent::DialFailed { peer, reason } => debug!(%peer, %reason, "dial failed"),
            LinkEvent::Frame { .. } => {}
        });
    }

    /// Traces a received message, and the size of its frame.
    pub fn received(&self, from: PeerId, message: &Message, bytes: usize) {
        self.within(|| {
            let told = Told(message);
            if told.is_frequent() {
                trace!(%from, bytes, "received {told}");
            } else {
                debug!(%from, bytes, "received {told}");
            }
        });
    }

    /// Traces a frame that is not a message: its sender's link is closed.
    pub fn refused(&self, from: PeerId, error: WireError) {
        self.within(|| debug!(%from, %error, "hanging up"));
    }

    /// Traces a message that was sent, or could not be, and the size of its frame.
    pub fn sent(&self, to: PeerId, message: &Message, bytes: usize, sent: Result<(), SendError>) {
        self.within(|| {
            let told = Told(message);
            match sent {
                Err(error) => debug!(%to, %error, "cannot send {told}"),
                Ok(()) if told.is_frequent() => trace!(%to, bytes, "sends {told}"),
                Ok(()) => debug!(%to, bytes, "sends {told}"),
            }
        });
    }

    /// Traces other outputs of the peer.
    pub fn output(&self, output: &Output) {
        self.within(|| match output {
            Output::Send { .. } => {}
            Output::HangUp { peer } => debug!(%peer, "hangs up"),
            Output::Dial { peer, contact } => debug!(%peer, addresses = ?contact.0, "dials"),
            Output::Compute { round, positions, .. } => {
                let samples = shuffle::count(positions);
                debug!(round, samples, "computes");
            }
            Output::Span(work) => debug!(work.round, work.span, work.pass.back, "computes"),
            Output::Restore { stepped } => debug!(%stepped, "restores"),
            Output::Event(Event::Committed(commit)) => committed(commit),
            Output::Event(event @ Event::Syncing { .. }) => trace!("{event:?}"),
            Output::Event(event) => debug!("{event:?}"),
            Output::Exit(exit) => debug!("exits: {exit:?}"),
        });
    }

    fn within(&self, tell: impl FnOnce()) {
        if enabled!(Level::DEBUG) {
            let span = self.view.as_ref().map_or(&self.peer, |(_, span)| span);
            span.in_scope(tell);
        }
    }
}

fn committed(commit: &Commit) {
    let members = commit.record.headers.len();
    let seconds = commit.total.as_secs_f32();
    let (weight, digest) = (commit.record.weight(), commit.digest);
    debug!(members, weight, %digest, seconds, "committed {}", Named(&commit.view));
}

/// A message as the trace prints it: its kind, and the fields that matter when an agreement is stuck.
struct Told<'a>(&'a Message);

impl Told<'_> {
    /// Whether a round may have many of them.
    fn is_frequent(&self) -> bool {
        use Message::*;
        matches!(
            self.0,
            Piece { .. }
                | Committed { .. }
                | Status { .. }
                | Followed { .. }
                | Fetch { .. }
                | Block { .. }
                | Want { .. }
                | Tensor { .. }
                | Held { .. }
                | Relay { .. }
        )
    }
}

impl Display for Told<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Message::Piece {
                view,
                leg,
                chunk,
                piece,
                ..
            } => write!(f, "{leg:?} piece {piece} of chunk {chunk} of {}", Named(view)),
            Message::Probe { view, nonce } => write!(f, "probe {nonce} for {}", Named(view)),
            Message::Alive { nonce, round, doing } => {
                write!(f, "answer to probe {nonce}: in round {round}, {doing:?}")
            }
            Message::Flush { view, suspects, .. } => {
                write!(f, "flush of {}, suspects {suspects:?}", Named(view))
            }
            Message::Decision { view, suspects, .. } => {
                write!(f, "decision: {} again without {suspects:?}", Named(view))
            }
            Message::Committed { view, digest, .. } => write!(f, "commit of {}, state {digest}", Named(view)),
            Message::Headers { view, .. } => write!(f, "headers of {}, which differ", Named(view)),
            Message::Seals { view, .. } => write!(f, "what was signed of the sums of {}", Named(view)),
            Message::Revoked(_) => f.write_str("a revocation of what a member came by"),
            Message::Convicted(proof) => {
                let (author, view) = (proof.author(), Named(&proof.attempt.view));
                write!(f, "proof against {author}, of {view}")
            }
            Message::Repair { view, missing } => {
                write!(f, "wish for {} missing pieces of {}", missing.len(), Named(view))
            }
            Message::Out { view } => write!(f, "\"I am out of {}\"", Named(view)),
            Message::Status {
                standing,
                claim,
                member,
                finished,
                ..
            } => write!(
                f,
                "standing: {} samples in {} rounds, lineage {}, shown by {} headers, member: {member}, finished: {finished}",
                standing.samples,
                standing.round,
                standing.chain,
                claim.as_ref().map_or(0, |claim| claim.record.headers.len())
            ),
            Message::Learn { part } => write!(f, "wish for the moments of part {part}"),
            Message::Moments { part, piece, .. } => write!(f, "piece {piece} of the moments of part {part}"),
            Message::Want { span, lane, back, .. } => {
                write!(
                    f,
                    "wish for what comes to span {span} in lane {lane}, back: {back}"
                )
            }
            Message::Tensor {
                span,
                back,
                microbatch,
                ..
            } => write!(
                f,
                "what span {span} gives of microbatch {microbatch}, back: {back}"
            ),
            Message::Held { view } => write!(f, "\"I can commit {}\"", Named(view)),
            Message::Introduce { to } => write!(f, "wish to meet {to}"),
            Message::Introduced {
                peer,
                contact,
                rtt_us,
            } => {
                write!(
                    f,
                    "word that {peer} dials now, from {contact:?}, {rtt_us} us away"
                )
            }
            Message::Follow { have, .. } => write!(f, "wish to follow, with {have:?}"),
            Message::Following { head, member, .. } => {
                write!(f, "\"you follow from round {}\", member: {member}", head.round)
            }
            Message::Barred { why } => write!(f, "\"I do not let you in\": {why}"),
            Message::NoPlace { slow: None } => f.write_str("\"I have no place for you\""),
            Message::NoPlace { slow: Some(_) } => f.write_str("\"your line is too slow\""),
            Message::NotMember { .. } => f.write_str("\"I am no member\""),
            Message::Acquaintances { acquaintances } => {
                write!(f, "acquaintances: {} contacts", acquaintances.len())
            }
            Message::Followed { round } => write!(f, "\"I have applied round {round}\""),
            Message::Ready { ready: Some(ready) } => {
                write!(f, "\"ready after round {}\", speed {}", ready.round, ready.speed)
            }
            Message::Ready { ready: None } => f.write_str("\"I follow somebody else\""),
            Message::Fetch { block } => write!(f, "wish for block {block}"),
            Message::Block { block, round, .. } => write!(f, "block {block} as after round {round}"),
            Message::Doubt => f.write_str("\"what I hold has another digest\""),
            Message::Digests { data, .. } => write!(f, "digests of {} blocks", data.len() / 32),
            Message::Relay { envelope, .. } => {
                write!(f, "frame to relay from {} to {}", envelope.from, envelope.to)
            }
            Message::Unreachable { envelope, .. } => write!(f, "\"I cannot reach {}\"", envelope.to),
        }
    }
}

/// A view in words.
struct Named<'a>(&'a ViewKey);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ViewKey { round, attempt, id } = self.0;
        write!(f, "round {round} attempt {attempt} view {id:016x}")
    }
}
