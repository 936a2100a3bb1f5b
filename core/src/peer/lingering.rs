//! The phase of a peer that is done. It stays for a while to answer others, which may lack a piece of the last
//! round, or fetch the result from it.

use crate::base::id::PeerId;
use crate::base::time::Time;
use crate::peer::interface::{Exit, Input};
use crate::peer::late;
use crate::peer::meeting::{Shown, Side, Stands, meet};
use crate::peer::next::{Next, Outcast};
use crate::peer::reason::OutcastReason;
use crate::peer::shared::{Shared, Stage};
use crate::peer::sponsor::{Sponsor, hand_out, hand_out_digests};
use crate::wire::{Doing, Message, ViewKey};
use std::collections::BTreeSet;

/// A peer that is done, until nobody can need it any more.
pub(crate) struct Lingering {
    pub exit: Exit,
    /// Whether it stands aside, and follows a member as soon as all have the last round.
    stands_aside: bool,
    until: Time,
    /// Since when it is done.
    since: Time,
    /// Peers that may still lack a piece of the last round.
    waits_for: BTreeSet<PeerId>,
    pub sponsor: Sponsor,
}

impl Lingering {
    /// Tells the others that this peer is done.
    pub fn new(exit: Exit, sponsor: Sponsor, shared: &mut Shared) -> Self {
        let mut waits_for = BTreeSet::new();
        if let Some(last) = &shared.lineage.last {
            waits_for.extend(last.record.headers.iter().map(|h| h.peer));
            waits_for.remove(&shared.me());
        }
        if exit == Exit::Finished {
            // Peers that did not reach the end fetch the result from here.
            waits_for.extend(shared.links.reachable());
        }
        let status = Message::Status {
            standing: shared.lineage.standing(),
            places: shared.lineage.places(),
            claim: shared.lineage.claim(),
            member: true,
            finished: true,
        };
        // A follower hears of the end with the last commit.
        for peer in waits_for.iter().filter(|p| !sponsor.has(**p)) {
            shared.control(*peer, status.clone());
        }
        waits_for.retain(|peer| !shared.ended.contains(peer));
        Self {
            exit,
            stands_aside: false,
            until: longer(shared),
            since: shared.now,
            waits_for,
            sponsor,
        }
    }

    /// One that stands aside: those that go on may still lack a piece of the last round.
    pub fn aside(shared: &Shared) -> Self {
        Self {
            exit: Exit::Left,
            stands_aside: true,
            until: longer(shared),
            since: shared.now,
            // Also those that reach it only through others.
            waits_for: shared.head().members.iter().map(|m| m.peer).collect(),
            sponsor: Sponsor::default(),
        }
    }

    /// When [`Input::Tick`] is due.
    pub fn wake_at(&self) -> Time {
        self.until
    }

    /// Exits as soon as nobody can need this peer any more.
    pub fn on_time(&self, shared: &Shared) -> Next {
        if self.waits_for.is_empty() || shared.now >= self.until {
            return match self.stands_aside {
                true => Next::Outcast(Outcast::new(OutcastReason::StandsAside, None)),
                false => Next::Exit(self.exit.clone()),
            };
        }
        Next::Stay
    }

    /// Takes an input.
    pub fn handle(&mut self, input: Input, shared: &mut Shared) -> Next {
        match input {
            Input::Message { from, message } => return self.on_message(from, message, shared),
            Input::LinkDown { peer } => {
                self.sponsor.forget(peer);
                self.waits_for.remove(&peer);
            }
            Input::Contribution { gradient, .. } => shared.device.take_back(gradient),
            Input::Span(_) => shared.device.asked = None,
            _ => {}
        }
        Next::Stay
    }

    fn on_message(&mut self, from: PeerId, message: Message, shared: &mut Shared) -> Next {
        match message {
            Message::Probe { view, nonce } => self.on_probe(from, view, nonce, shared),
            Message::Flush { view, suspects, .. } => answer_late(from, view, Some(suspects), shared),
            Message::Repair { view, missing } => self.on_repair(from, view, &missing, shared),
            Message::Status {
                standing,
                places,
                claim,
                member,
                finished,
            } => {
                if finished || standing.round >= shared.head().round {
                    self.waits_for.remove(&from);
                }
                if member {
                    // A member follows nobody.
                    self.sponsor.forget(from);
                    let shown = Shown {
                        standing,
                        places: &places,
                        claim: claim.as_deref(),
                    };
                    return self.on_status(from, &shown, finished, shared);
                }
            }
            Message::Follow {
                have,
                admission,
                contact,
            } => {
                if shared.head().finished(&shared.manifest) {
                    self.sponsor
                        .on_follow(from, (have, *admission, contact), None, shared);
                    self.stay_for(from, shared);
                } else {
                    shared.control(from, late::not_a_member());
                }
            }
            Message::Followed { round } => self.sponsor.on_followed(from, round, None, shared),
            Message::Ready { ready } => {
                let leaves = ready.is_none() && self.sponsor.has(from);
                self.sponsor.on_ready(from, ready, None, shared);
                if leaves && self.exit == Exit::Finished {
                    // It left before the last commit reached it, and would train on alone.
                    self.stay_for(from, shared);
                    shared.send_status(from, Stage::Finished);
                }
            }
            Message::Seals { view, seals } => drop(shared.compare_seals(from, view, &seals)),
            Message::Convicted(proof) => drop(shared.convict(*proof)),
            Message::Headers { view, headers } => {
                if let Some(proof) = late::contradiction(view, &headers, shared) {
                    shared.convict(proof);
                }
            }
            Message::Fetch { block } => {
                self.stay_for(from, shared);
                hand_out(from, block, shared);
            }
            Message::Doubt => {
                self.stay_for(from, shared);
                hand_out_digests(from, shared);
            }
            _ => {}
        }
        Next::Stay
    }

    /// Compares lineages. The lineage that has finished may be the one that yields; then its result is not the
    /// run's.
    fn on_status(&mut self, from: PeerId, shown: &Shown<'_>, finished: bool, shared: &mut Shared) -> Next {
        let here: Vec<PeerId> = shared.head().members.iter().map(|m| m.peer).collect();
        let side = Side {
            members: &here,
            until: shared.head().round,
            lead: 0,
            is_own: true,
        };
        let differs = shown.standing.chain != shared.head().chain;
        // A peer that has left has no result, and would only mislead others.
        if !differs || !shared.head().finished(&shared.manifest) {
            return Next::Stay;
        }
        match meet(&side, from, shown, shared) {
            Stands::Theirs(via) => {
                return Next::Outcast(Outcast::new(OutcastReason::OtherLineage, Some(via)));
            }
            Stands::Forged => drop(shared.outlaw(from, None)),
            Stands::Ours if !finished => {
                // The other may have been told where this lineage ends before it could compare. If it comes over,
                // it asks for the result.
                self.stay_for(from, shared);
                shared.send_status(from, Stage::Finished);
            }
            Stands::Ours => {}
        }
        Next::Stay
    }

    /// A peer still needs something. Full members are known by the head, or by the ticket that they came with.
    fn stay_for(&mut self, from: PeerId, shared: &Shared) {
        let is_full = shared.head().is_full(from) || self.sponsor.has_full(from);
        if is_full || shared.now - self.since < shared.settings.waits.guests {
            self.until = longer(shared);
            self.waits_for.insert(from);
        }
    }

    /// A peer lacks pieces of the last round, or has not heard that it is committed.
    fn on_repair(&mut self, from: PeerId, view: ViewKey, missing: &[(u16, u32)], shared: &mut Shared) {
        self.stay_for(from, shared);
        let follows = self.sponsor.has(from);
        if late::repair(from, follows, view, missing, shared) {
            return;
        }
        if follows {
            return self.sponsor.restart(from, None, shared);
        }
        answer_late(from, view, None, shared);
    }

    /// A peer probes this one.
    fn on_probe(&self, from: PeerId, view: ViewKey, nonce: u32, shared: &mut Shared) {
        let head = shared.head().round;
        let is_last = shared.lineage.last.as_ref().is_some_and(|last| last.view == view);
        if view.round <= head && !is_last && !self.sponsor.has(from) {
            return late::tell_stranger(from, view, None, Stage::Finished, shared);
        }
        let alive = Message::Alive {
            nonce,
            round: head + 1,
            doing: Doing::Waiting {
                sent: 0,
                came: 0,
                of_all: 0,
                beside: 0,
            },
        };
        shared.control(from, alive);
    }
}

fn answer_late(from: PeerId, view: ViewKey, flush: Option<Vec<PeerId>>, shared: &mut Shared) {
    late::answer(from, view, flush, None, Stage::Finished, shared);
}

/// Until when to stay for a peer that still needs something.
fn longer(shared: &Shared) -> Time {
    shared.now + 2 * shared.detector.answer()
}
