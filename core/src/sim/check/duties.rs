//! What an input obliges a peer to do at once.

use super::super::revoking::is_of_revoked;
use super::super::world::World;
use crate::base::id::PeerId;
use crate::peer::agreement::is_cut_off;
use crate::peer::{Event, Input, OutcastReason, Output, Peer, Phase};
use crate::wire::{Message, ViewKey};

/// What an input obliges a peer to do at once. The end result does not show a violation: other rules and deadlines
/// make up for it, only later.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) enum Duty {
    None,
    /// A member that it trusts has excluded it, so it is not a member any more.
    Yield,
    /// It suspects the sender, so it stays where it is.
    Distrust(ViewKey, PeerId),
    /// It is not a member, and a peer that may still wait for it asks.
    Answer(PeerId),
    /// It has seen a lie in this attempt, so it suspects the liar.
    Blame(ViewKey, PeerId),
    /// It is shown a lineage whose members have not signed for it, or may not come in, so it stays in its own.
    Doubt(PeerId),
}

impl Duty {
    pub fn of(peer: &Peer, input: &Input) -> Self {
        let Input::Message { from, message } = input else {
            return Self::None;
        };
        match (&peer.phase, message) {
            (Phase::Member(_), Message::Status { .. }) if is_of_revoked(peer, *from, message) => {
                Self::Doubt(*from)
            }
            // A member that can commit what it has stopped may do so by itself.
            (Phase::Member(w), Message::Decision { view, .. } | Message::Committed { view, .. })
                if *view == w.view.key && w.agreement.suspects(*from) && !w.reduce.has_said_held() =>
            {
                Self::Distrust(*view, *from)
            }
            (
                Phase::Member(w),
                Message::Flush { view, suspects, .. } | Message::Decision { view, suspects, .. },
            ) => {
                let excluded = *view == w.view.key && suspects.contains(&peer.me());
                let excluded = excluded && !is_cut_off(&w.view, suspects, &peer.shared);
                if excluded && w.view.contains(*from) && !w.agreement.suspects(*from) {
                    Self::Yield
                } else {
                    Self::None
                }
            }
            (Phase::Newcomer(_), Message::Probe { .. }) => Self::Answer(*from),
            _ => Self::None,
        }
    }
}

impl World {
    /// Checks that a peer has done its duty.
    pub(in crate::sim) fn check_duty(&mut self, i: usize, duty: Duty, outputs: &[Output]) {
        let name = &self.nodes[i].name;
        let wrong = match duty {
            Duty::Yield => self.nodes[i]
                .is_member()
                .then(|| format!("{name} was excluded and is a member still")),
            Duty::Distrust(view, by) => {
                // A peer that has waited for all of them in vain, and is not a full member, has decided by itself.
                let alone = |event: &Event| {
                    let reason = OutcastReason::NoMember;
                    matches!(event, Event::Outcast { reason: why, .. } if *why == reason)
                };
                let alone = outputs
                    .iter()
                    .any(|o| matches!(o, Output::Event(event) if alone(event)));
                let peer = self.nodes[i].peer.as_ref().filter(|_| !alone);
                let believes = peer.is_some_and(|p| believes(p, view, by));
                believes.then(|| format!("{name} believed a peer that it suspects"))
            }
            Duty::Answer(asker) => {
                let answers = outputs
                    .iter()
                    .any(|o| matches!(o, Output::Send { to, .. } if *to == asker));
                (!answers).then(|| format!("{name} is no member and does not tell {}", self.name(asker)))
            }
            Duty::Blame(view, liar) => {
                let blames = self.blames(i, view, liar, outputs);
                (!blames).then(|| format!("{name} does not see that {} lies", self.name(liar)))
            }
            Duty::Doubt(liar) => outputs.iter().any(is_drawn).then(|| {
                let liar = self.name(liar);
                format!("{name} follows {liar} into a lineage that members have not signed for")
            }),
            Duty::None => None,
        };
        if let (Duty::Blame(view, liar), None) = (duty, &wrong) {
            self.lies.seen.entry((i, view, liar)).or_insert(self.now);
        }
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }
}

/// Whether a member has left its lineage for another.
fn is_drawn(output: &Output) -> bool {
    let reason = OutcastReason::OtherLineage;
    matches!(output, Output::Event(Event::Outcast { reason: why, .. }) if *why == reason)
}

/// Whether a peer has accepted a statement about an attempt, rather than ignoring it or excluding its author.
fn believes(peer: &Peer, view: ViewKey, by: PeerId) -> bool {
    let told = match &peer.phase {
        Phase::Member(w) if w.view.key == view => {
            return w.agreement.told().is_some_and(|told| told.by == by);
        }
        Phase::Member(w) => w.agreement.decided(),
        _ => &[],
    };
    let last = peer.shared.lineage.last.as_ref();
    // A lone peer may have committed several rounds since, and remembers only its decisions on the way to the last.
    let forgotten = last.is_some_and(|last| last.view.round > view.round);
    let last = last.map_or(&[][..], |last| &last.decided);
    let own = last
        .iter()
        .chain(told)
        .any(|d| d.view == view && d.suspects.contains(&by));
    !own && !forgotten
}
