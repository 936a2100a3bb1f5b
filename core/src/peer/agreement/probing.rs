//! Probes: what a member asks the others when nothing has come for long, and how it finds from the answers who is
//! silent, slow or mute, and whether frames were lost.

use super::{Agreement, Verdict, Work, ask_for_commit};
use crate::base::id::{PeerId, Round};
use crate::base::time::Time;
use crate::ledger::allot::Allotment;
use crate::peer::reason::Reason;
use crate::peer::shared::Shared;
use crate::reach::detector::FLOOR;
use crate::reach::laggard::{Transfer, Ways};
use crate::wire::view::View;
use crate::wire::{Doing, Message};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// This many probes that find nobody at work mean that frames were lost: the attempt is repeated. The number
/// doubles with each repetition (RFC 6298, rule 5.5); otherwise a round whose pieces take longer than that would
/// never end.
const IDLE_PROBES: u32 = 3;

/// Most doublings.
const DOUBLINGS: usize = 6;

/// This many probes of an attempt may find that others receive more, which is no sign of lost frames: a minute or
/// so.
const MOST_WAITS: u32 = 60;

/// A member that owes pieces and from which none has come for this long is mute. Longer than the slowest piece on
/// any link that people train over, a guess; and never less than four times the usual wait.
const MUTE: Duration = Duration::from_secs(10);

/// How long to wait for just admitted members that say that earlier rounds are still on their way to them: as long
/// as a large model's rounds take on a slow link.
const SYNCING: Duration = Duration::from_secs(20);

/// A probe of all members.
#[derive(Debug)]
pub(super) struct Probing {
    nonce: u32,
    /// Whether pieces come meanwhile: then the probe looks for laggards, not for silent members.
    pub paces: bool,
    pub until: Time,
    answers: BTreeMap<PeerId, (Round, Doing)>,
}

impl Agreement {
    /// Nothing has come for long: asks all members what they are doing.
    pub(super) fn probe_all(&mut self, view: &View, shared: &mut Shared) {
        self.quiet_at = None;
        self.ask_all(view, self.answer(view, shared), false, shared);
    }

    /// Asks all members what they are doing, and waits this long for answers.
    pub(super) fn ask_all(&mut self, view: &View, wait: Duration, paces: bool, shared: &mut Shared) {
        let nonce = shared.probed.map_or(1, |(nonce, _)| nonce.wrapping_add(1));
        shared.probed = Some((nonce, shared.now));
        self.probing = Some(Probing {
            nonce,
            paces,
            until: shared.now + wait,
            answers: BTreeMap::new(),
        });
        let view_key = view.key;
        for peer in view.others() {
            shared.control(
                peer,
                Message::Probe {
                    view: view_key,
                    nonce,
                },
            );
        }
    }

    /// A link to a member is open again. The probe or its answer may have been lost with the old one.
    pub fn probe_again(&mut self, view: &View, peer: PeerId, shared: &mut Shared) {
        let until = shared.now + self.answer(view, shared);
        let Some(probing) = self.probing.as_mut().filter(|p| !p.answers.contains_key(&peer)) else {
            return;
        };
        let nonce = probing.nonce;
        probing.until = until;
        shared.probed = Some((nonce, shared.now));
        shared.control(
            peer,
            Message::Probe {
                view: view.key,
                nonce,
            },
        );
    }

    /// A peer answers a probe.
    pub fn on_alive(
        &mut self,
        work: Work<'_>,
        from: PeerId,
        (nonce, round, doing): (u32, Round, Doing),
        shared: &mut Shared,
    ) -> Verdict {
        if let Some((_, sent)) = shared.probed.filter(|(number, _)| *number == nonce) {
            // Late answers count too; otherwise only short paths would ever be measured.
            shared.detector.saw_answer(from, shared.now - sent);
        }
        let Some(probing) = self.probing.as_mut().filter(|p| p.nonce == nonce) else {
            return Verdict::Wait;
        };
        if work.view.contains(from) {
            probing.answers.insert(from, (round, doing));
        }
        if work.view.others().all(|peer| probing.answers.contains_key(&peer)) {
            return self.judge_answers(work, shared);
        }
        Verdict::Wait
    }

    /// All have answered, or their time is over.
    pub(super) fn judge_answers(&mut self, work: Work<'_>, shared: &mut Shared) -> Verdict {
        let view = work.view;
        let Some(probing) = self.probing.take() else {
            return Verdict::Wait;
        };
        let silent: BTreeSet<PeerId> = view
            .others()
            .filter(|p| !probing.answers.contains_key(p))
            .collect();
        if !silent.is_empty() {
            return self.suspect(view, silent, Reason::Silent, shared);
        }
        let here = |(_, (round, _)): &(_, &(Round, Doing))| *round == view.key.round;
        let (mut slow, mut mute, mut ways) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        let head = shared.head();
        let syncs = |(peer, (_, doing)): (&PeerId, &(Round, Doing))| {
            *doing == Doing::Syncing && head.admissions.is_fresh(*peer)
        };
        let is_early = shared.now - self.began < SYNCING;
        let syncs = is_early && probing.answers.iter().any(syncs);
        let (mut at_work, mut got) = (work.at_work || syncs, 0);
        for (peer, (_, doing)) in probing.answers.iter().filter(here) {
            match doing {
                Doing::Computing { elapsed_us } if shared.manifest.split.is_some() => {
                    // A member that waits for others between two microbatches is not slow, but only it can tell.
                    at_work = true;
                    if Duration::from_micros(*elapsed_us) > pass_deadline(*peer, &work, shared) {
                        slow.insert(*peer);
                    }
                }
                Doing::Computing { elapsed_us } => {
                    at_work = true;
                    // All begin a round within the time of an answer, whatever a member claims.
                    let here = (shared.now - self.began).saturating_sub(shared.detector.answer());
                    let elapsed = Duration::from_micros(*elapsed_us).max(here);
                    if elapsed > compute_deadline(*peer, work.allotment, shared) {
                        slow.insert(*peer);
                    }
                }
                Doing::Pausing => {
                    at_work = true;
                    if !may_pause(*peer, shared) {
                        slow.insert(*peer);
                    }
                }
                Doing::Waiting {
                    sent,
                    came,
                    of_all,
                    beside,
                } => {
                    got += u64::from(*of_all) + u64::from(*beside);
                    ways.extend(ways_of(work, *peer, *sent, (*came, *of_all)));
                    if self.is_mute(work, *peer, *sent, shared) {
                        mute.insert(*peer);
                    }
                }
                _ => {}
            }
        }
        if let Some((_, long)) = self.pace_at.filter(|(at, _)| *at <= shared.now) {
            self.pace_at = Some((shared.now + FLOOR, long));
            if !at_work {
                slow.extend(self.laggards.judge(&ways, shared.now, long));
                // A member from which nothing comes at all is mute.
                slow.retain(|peer| {
                    self.owed_since
                        .get(peer)
                        .is_none_or(|since| shared.now - *since < long)
                });
            }
        }
        if probing.paces && slow.is_empty() && mute.is_empty() {
            return Verdict::Wait;
        }
        let is_ahead = |(_, (round, _)): &(_, &(Round, Doing))| *round > view.key.round;
        let ahead = probing.answers.iter().rfind(is_ahead).map(|(peer, _)| *peer);
        self.quiet_at = Some(shared.now + shared.detector.quiet());
        let goes_on = shared.manifest.copies.is_some() && self.goes_on(got);
        self.idle_probes = if at_work || goes_on {
            0
        } else {
            self.idle_probes + 1
        };
        let repeated = self.decided.iter().filter(|d| d.suspects.is_empty()).count();
        let idle = self.idle_probes >= IDLE_PROBES << repeated.min(DOUBLINGS);
        if !slow.is_empty() {
            self.suspect(view, slow, Reason::TooSlow, shared)
        } else if !mute.is_empty() {
            self.suspect(view, mute, Reason::Mute, shared)
        } else if let Some(peer) = ahead.filter(|_| !idle) {
            ask_for_commit(peer, view.key, shared);
            Verdict::Wait
        } else if idle {
            // Frames were lost.
            self.stop(view, shared)
        } else {
            Verdict::Wait
        }
    }

    /// Whether others receive more and more. If members keep parts, some exchange sums, tensors or learned parts
    /// for long while nothing comes here: nothing is due to this member, or it waits behind the rest. The others'
    /// own counts show that, so it is a reason to wait only a bounded number of times.
    fn goes_on(&mut self, got: u64) -> bool {
        let more = got > self.others_got && self.waited_for_others < MOST_WAITS;
        self.others_got = got.max(self.others_got);
        self.waited_for_others += u32::from(more);
        more
    }

    /// Whether a waiting member, which claims to have sent this many pieces here, has owed some of them for too
    /// long.
    fn is_mute(&mut self, work: Work<'_>, peer: PeerId, sent: u32, shared: &Shared) -> bool {
        let owes = |place| work.reduce.came_from(place) < work.reduce.due_from(place, sent);
        if !work.view.position(peer).is_some_and(owes) {
            self.owed_since.remove(&peer);
            return false;
        }
        let patience = MUTE.max(4 * shared.detector.quiet());
        let since = *self.owed_since.entry(peer).or_insert(shared.now);
        shared.now - since > patience
    }
}

/// Whether a member may go on holding its contribution back for a newcomer.
fn may_pause(peer: PeerId, shared: &mut Shared) -> bool {
    let late = 2 * shared.detector.answer();
    let is_full = shared.head().is_full(peer);
    is_full && shared.pauses.allows(peer, &shared.manifest, late, shared.now)
}

/// The transfers of a waiting member: it claims to have sent `sent` pieces here, and to have received pieces from
/// here and from all.
pub(super) fn ways_of(
    work: Work<'_>,
    peer: PeerId,
    sent: u32,
    (came, of_all): (u32, u32),
) -> Option<(PeerId, Ways)> {
    let place = work.view.position(peer)?;
    let of = work.reduce.sent_to(place);
    let others = work.view.members.len() as u32 - 1;
    let ways = Ways {
        to: Transfer { came, of },
        from: Transfer {
            came: work.reduce.came_from(place),
            of: work.reduce.due_from(place, sent),
        },
        to_all: Transfer {
            came: of_all,
            of: of.saturating_mul(others),
        },
    };
    Some((peer, ways))
}

/// The speed that a member claims.
pub(super) fn speed_of(peer: PeerId, shared: &Shared) -> u64 {
    let head = shared.head();
    head.position(peer).map_or(1, |place| head.members[place].speed)
}

/// How long a member may take for one pass, in a split run: all its work in the round.
fn pass_deadline(peer: PeerId, work: &Work<'_>, shared: &Shared) -> Duration {
    let place = work.view.position(peer).unwrap_or(0);
    let batch = &work.allotment.batch;
    let all = shared.head().work_of(&shared.manifest, batch, &work.view.members);
    shared.detector.compute(peer, all[place], speed_of(peer, shared))
}

/// How long a member may take for its share.
pub(super) fn compute_deadline(peer: PeerId, allotment: &Allotment, shared: &Shared) -> Duration {
    let head = shared.head();
    let place = head.position(peer);
    let (share, speed) = place.map_or((0, 1), |i| (allotment.len(i), head.members[i].speed));
    shared.detector.compute(peer, share as f64, speed)
}
