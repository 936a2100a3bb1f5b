//! The ways in which a liar breaks the protocol: what it sends instead of its peer's messages, and what it sends
//! when its peer sends nothing. It knows the protocol, signs in its own name, and has the keys of its league.
//! `liars` decides when it lies, and to whom.

mod change;
mod invent;

use super::resign::resign;
use super::rng::Rng;
use super::twist::Twist;
use crate::access::signature::{Key, Signed};
use crate::base::id::{Digest, PeerId};
use crate::base::random::mix;
use crate::ledger::Header;
use crate::numeric::codec::Codec;
use crate::peer::{Peer, Phase};
use crate::wire::{Leg, Message, ViewKey};
use bytes::Bytes;
use std::fmt;

/// Kinds of lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lie {
    /// Some members get another header than others.
    Equivocate,
    /// All get the same false header: speed, time, loss, samples, state, resets, newcomers, goodbye.
    Claim,
    /// The device's values, samples or time are false.
    Contribution,
    /// Values that others add to are false.
    Partial,
    /// Finished values are not the sum, for all or for one.
    Finished,
    /// Some get another finished chunk than others, each with its signed hash.
    Sums,
    /// Statements of others are invented, or changed on the way.
    Forge,
    /// Members that are there are suspected, others with each message.
    Suspect,
    /// A commit or a decision is reported that did not happen, or before others can know it.
    Outcome,
    /// Equal headers are said to differ, and guilt to be proven that is not.
    Differ,
    /// One member gets nothing, or nobody gets values.
    Withhold,
    /// Nobody gets anything.
    Silent,
    /// Probes get false answers.
    Alive,
    /// Newcomers are invented, with keys of their own.
    Invent,
    /// A newcomer says that it is ready, and is not.
    Ready,
    /// Others' tickets are revoked by a key that may not, or all tickets of one's own by one's own key; others'
    /// revocations are repeated.
    Revoke,
    /// Peers that ask to be admitted are told that they may not.
    Bar,
    /// Newcomers get a false state.
    State,
    /// Earlier messages of any author are repeated.
    Replay,
    /// More is requested than could be answered.
    Flood,
    /// It announces that it leaves and stays, and gives false addresses of others.
    Leave,
    /// Any field of any message is changed.
    Twist,
    /// It claims a lineage with more samples than any other.
    Standing,
    /// The next keeper of a part gets a false sum.
    Pass,
    /// It claims to keep, learn or drop other parts than it does, or false digests of its parts.
    Keep,
    /// A learner of a part gets false moments.
    Moments,
    /// Activations and gradients are false, repeated, or of another place; or others are requested.
    Tensor,
    /// Its word comes before it holds its sums, or has false squares.
    Word,
    /// It says that it can commit before it can, or does not say so.
    Held,
    /// Names come by the ticket of a page: they never catch up, or never come, or the liar convicts itself.
    Visit,
    /// Its values are false whenever it computes, and its losses are likely.
    Work,
    /// It says goodbye whenever somebody has a trial, and comes back.
    ComeAndGo,
    /// The sums of the chunk that it owns are any numbers, the same for all.
    Own,
}

impl Lie {
    /// Lies that are drawn in every world.
    pub const DRAWN: [Self; 23] = [
        Self::Equivocate,
        Self::Claim,
        Self::Contribution,
        Self::Partial,
        Self::Finished,
        Self::Sums,
        Self::Forge,
        Self::Suspect,
        Self::Outcome,
        Self::Differ,
        Self::Withhold,
        Self::Silent,
        Self::Alive,
        Self::Invent,
        Self::Ready,
        Self::Revoke,
        Self::Bar,
        Self::State,
        Self::Replay,
        Self::Flood,
        Self::Leave,
        Self::Twist,
        Self::Standing,
    ];

    /// Lies that only keepers can tell.
    pub const OF_KEEPERS: [Self; 3] = [Self::Pass, Self::Keep, Self::Moments];

    /// Lies that only holders of spans can tell.
    pub const OF_SPANS: [Self; 3] = [Self::Tensor, Self::Word, Self::Held];

    /// Lies that are told where a page hands one ticket to many.
    pub const OF_PAGES: [Self; 4] = [Self::Visit, Self::Work, Self::ComeAndGo, Self::Own];
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A lie that is told for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    pub lie: Lie,
    /// In virtual time.
    pub until: u64,
    /// The victim, if not everybody is lied to.
    pub victim: PeerId,
    /// The fraction of fitting messages that it changes.
    pub share: f64,
    /// Whether it also sends messages that its peer has no reason to send.
    pub invents: bool,
    /// Makes it the same lie each time, where it has to be.
    pub salt: u64,
}

/// A liar about to send a message.
pub(super) struct Speaker<'a> {
    pub episode: Episode,
    pub twist: Twist<'a>,
    /// Its own state machine.
    pub peer: &'a Peer,
    /// Its own key, then those of its league.
    pub keys: &'a [Key],
    /// Messages that it has heard and sent.
    pub heard: &'a [Message],
}

impl Speaker<'_> {
    pub(super) fn rng(&mut self) -> &mut Rng {
        self.twist.rng
    }

    /// A random choice that is the same each time for the same `about`.
    pub(super) fn choice(&self, about: u64) -> Rng {
        Rng::new(mix(self.episode.salt ^ about))
    }

    fn is_league(&self, peer: PeerId) -> bool {
        self.keys.iter().any(|key| key.peer() == peer)
    }

    /// The lineage that an attempt continues.
    pub(super) fn chain(&self, view: ViewKey) -> Digest {
        let last = self.peer.shared.lineage.last.as_ref();
        match last.filter(|last| view.round <= last.view.round) {
            Some(last) => last.before.chain,
            None => self.peer.head().chain,
        }
    }

    /// Signs the league's statements in a message again.
    fn sign(&self, message: &mut Message) {
        let view = match message {
            Message::Piece { view, .. }
            | Message::Headers { view, .. }
            | Message::Committed { view, .. }
            | Message::Flush { view, .. }
            | Message::Decision { view, .. } => Some(*view),
            _ => None,
        };
        let chain = view.map_or(self.peer.head().chain, |view| self.chain(view));
        for key in self.keys {
            resign(message, key, chain, self.twist.root.run);
        }
    }

    /// The messages that go to a peer instead of this one.
    pub fn instead(&mut self, to: PeerId, message: Message) -> Vec<Message> {
        let Episode { share, victim, .. } = self.episode;
        if !self.rng().chance(share) {
            return vec![message];
        }
        let one = to == victim;
        let mut said = message;
        match self.episode.lie {
            Lie::Equivocate if self.choice(u64::from(to.0[0])).chance(0.5) => {
                self.headers(&mut said, |_, header| header.compute_us ^= 1);
            }
            Lie::Claim => self.headers(&mut said, Self::claim),
            Lie::Partial => self.values(&mut said, Leg::Partial),
            Lie::Finished if one || self.choice(1).chance(0.5) => self.values(&mut said, Leg::Finished),
            Lie::Sums if one || self.choice(u64::from(to.0[0])).chance(0.3) => self.sums(to, &mut said),
            Lie::Forge => self.forge(&mut said),
            Lie::Suspect => self.suspect(&mut said),
            Lie::Outcome => {
                if let Message::Piece { view, .. } = said {
                    let told = self.outcome(view);
                    return std::iter::once(said).chain(told).collect();
                }
            }
            Lie::Differ => {
                if let Message::Piece { all, .. } = &mut said {
                    *all = Some(Digest([self.rng().next() as u8; 32]));
                }
            }
            Lie::Withhold if self.choice(2).chance(0.5) => {
                return if one { Vec::new() } else { vec![said] };
            }
            Lie::Withhold if matches!(said, Message::Piece { .. }) => return Vec::new(),
            Lie::Silent => return Vec::new(),
            Lie::Alive => self.alive(&mut said),
            Lie::State => self.state(to, &mut said),
            Lie::Revoke => self.headers(&mut said, Self::revoke),
            Lie::Bar => self.bar(&mut said),
            Lie::Pass | Lie::Keep | Lie::Moments => self.keep(&mut said),
            Lie::Tensor | Lie::Word | Lie::Held => return self.span(said),
            Lie::Replay => {
                let again = self.again(to);
                return std::iter::once(said).chain(again).collect();
            }
            Lie::Leave => {
                if let Message::Status { finished, .. } = &mut said {
                    *finished = true;
                }
            }
            Lie::Twist => {
                self.twist.message(&mut said);
                self.sign(&mut said);
            }
            Lie::Standing => {
                if let Message::Status {
                    standing,
                    claim,
                    member,
                    ..
                } = &mut said
                {
                    *member = true;
                    (*standing, *claim) = self.invented_lineage(*standing, claim.take());
                }
            }
            _ => {}
        }
        vec![said]
    }
}

/// The headers that a peer knows of an attempt, in ring order.
pub(super) fn headers_of(peer: &Peer, view: ViewKey) -> Vec<Signed<Header>> {
    let last = peer.shared.lineage.last.as_ref();
    match &peer.phase {
        Phase::Member(member) if member.view.key == view => member.reduce.known_headers(),
        _ => last
            .filter(|last| last.view == view)
            .map_or(Vec::new(), |last| last.record.headers.clone()),
    }
}

/// The number of encoded values.
fn elements(codec: Codec, data: &Bytes) -> usize {
    let mut most = (1..=data.len()).rev();
    most.find(|n| codec.encoded_len(*n) == data.len()).unwrap_or(0)
}

/// The key of an invented name.
pub(super) fn invented_key(scheme: crate::access::signature::Scheme, number: u64) -> Key {
    let mut bytes = [0xee; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    match scheme {
        crate::access::signature::Scheme::Ed25519 => Key::from_seed(&bytes),
        crate::access::signature::Scheme::StandIn => Key::stand_in(PeerId(bytes)),
    }
}
