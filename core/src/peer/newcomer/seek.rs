//! How a newcomer finds a sponsor, handles refusals, and decides what to do when there is nobody.

use super::Newcomer;
use crate::access::invitation::Role;
use crate::base::id::{PeerId, Round};
use crate::base::planted::Bug;
use crate::ledger::tickets::Barred;
use crate::peer::interface::{Event, Exit};
use crate::peer::meeting::{Shown, Side, Stands, meet};
use crate::peer::next::Next;
use crate::peer::shared::{MAX_REMEMBERED, Shared, Stage};
use crate::peer::sponsor::Sponsor;
use crate::wire::{Message, Slow, Standing};
use std::collections::BTreeSet;
use std::time::Duration;

/// The state of a peer that stands aside is at most so old. A guess: it may have to take over, and each time it fetches the
/// state again.
const STALE: Duration = Duration::from_secs(300);

/// A run that tells the same round for so long stands still: it may lack a peer that rests.
const STILL: Duration = Duration::from_secs(5);

/// Where the sponsor tells of no round for [`STILL`], members of its last round that are further ahead than this have gone on
/// without it. A guess, in rounds: one or two are usual.
const AHEAD: Round = 8;

/// After this long without any other peer, a peer with a whole state continues alone, however many
/// [deadlines](crate::Waits::alone_deadlines) that are: others can make their answers seem slow, which says nothing when
/// nobody is there. A guess.
const LONELIEST: Duration = Duration::from_secs(120);

/// Where the run has no place for it a newcomer asks again after so long, and up to a quarter of a minute more. A guess: places
/// become free when somebody leaves, and to ask costs each member a check of its ticket.
const NO_PLACE: Duration = Duration::from_secs(30);

/// [`NO_PLACE`] where the newcomer's line is too slow, at first and as often doubled. A guess: to try costs its line half a
/// minute.
const TOO_SLOW: Duration = Duration::from_secs(60);
const MOST_DOUBLINGS: u32 = 6;

/// After this long at most a peer gives up that all in sight have barred. Where answers were slow once, their deadlines are long,
/// and it would wait for a quarter of an hour. A guess.
const BARRED: Duration = Duration::from_secs(300);

/// After this many answer deadlines with only peers that hold nothing either, a newcomer gives up.
const HOPELESS: u32 = 30;

impl Newcomer {
    /// Asks a peer to be the sponsor: the given one, else any that can be reached and has not refused.
    pub(super) fn seek(&mut self, via: Option<PeerId>, shared: &mut Shared) {
        let have = self.whole_standing(shared).filter(|_| !self.damaged);
        let next = via.filter(|v| shared.links.is_up(*v));
        let usable = |peer: &PeerId| !self.refused.contains_key(peer) && !self.full.contains(peer);
        let next = next.or_else(|| sponsors(shared).find(usable));
        let next = next.filter(|_| shared.now >= self.waits_until);
        let former = std::mem::replace(&mut self.sponsor, next).filter(|former| Some(*former) != next);
        self.following = false;
        self.catchup.forget_told();
        self.ready = None;
        self.past = 0;
        self.asked_at = shared.now;
        self.heard(shared);
        if let Some(former) = former {
            // Otherwise it would be admitted there, and waited for.
            shared.control(former, Message::Ready { ready: None });
        }
        if let Some(sponsor) = next {
            let contact = shared.settings.contact.clone();
            let admission = Box::new(shared.settings.admission.clone());
            let follow = Message::Follow {
                have,
                admission,
                contact,
            };
            shared.control(sponsor, follow);
        }
    }

    /// The sponsor's rounds do not continue its own first head. Begins again, with another sponsor if there is one,
    /// since the blocks may be false.
    pub(super) fn begin_elsewhere(&mut self, sponsor: PeerId, shared: &mut Shared) {
        self.refused.insert(sponsor, None);
        let other = sponsors(shared).find(|peer| !self.refused.contains_key(peer));
        self.seek(other.or(Some(sponsor)), shared);
    }

    /// Continues with another sponsor from the present state.
    pub(super) fn follow_elsewhere(&mut self, sponsor: PeerId, shared: &mut Shared) {
        self.note_whole(shared);
        self.seek(Some(sponsor), shared);
    }

    /// A peer cannot be followed.
    pub(super) fn on_refused(
        &mut self,
        from: PeerId,
        standing: Option<Standing>,
        shared: &mut Shared,
    ) -> Next {
        self.no_longer_late(from);
        if self.refused.len() < MAX_REMEMBERED || self.refused.contains_key(&from) {
            self.refused.insert(from, standing);
        }
        self.catchup.lost(from);
        if self.sponsor == Some(from) {
            self.seek(None, shared);
            return self.resume_if_last(shared);
        }
        self.fetch(shared);
        Next::Stay
    }

    /// A peer does not admit this one. It gives up if no other is left to ask, and if most full members that it
    /// last knew of say so, or all of them that it can reach and all other peers. One liar must not be able to send
    /// others away.
    pub(super) fn on_barred(&mut self, from: PeerId, why: Barred, shared: &mut Shared) -> Next {
        if self.barred_by.len() < MAX_REMEMBERED {
            self.barred_by.insert(from);
        }
        self.barred.get_or_insert((shared.now, why));
        self.refused.insert(from, None);
        self.catchup.lost(from);
        if self.sponsor == Some(from) {
            self.seek(None, shared);
        }
        let me = shared.me();
        let mut others: BTreeSet<PeerId> = shared.head().full_members().filter(|m| *m != me).collect();
        if let (Barred::InUse, true, Some(fork)) = (why, others.is_empty(), shared.head().forks.last()) {
            // It has gone on alone since: these know who else has its name.
            others.extend(&fork.lost);
        }
        let of_others = others.intersection(&self.barred_by).count();
        let most = of_others > 1 && 2 * of_others > others.len();
        let alone = self.whole && others.is_empty();
        let all = !alone && of_others == others.len() && self.is_barred_by_all(shared);
        let enough = most || all || self.is_barred(shared).is_some();
        match self.sponsor {
            Some(_) => Next::Stay,
            None if enough || shared.settings.planted(Bug::HeedWhoBars) => Next::Exit(Exit::Barred(why)),
            None => self.resume_if_last(shared),
        }
    }

    /// The run has no place for it, says its sponsor, or its line is too slow. That one may lie, so it asks all others
    /// before it waits; about its line, one other.
    pub(super) fn on_no_place(&mut self, from: PeerId, slow: Option<Slow>, shared: &mut Shared) {
        if self.full.len() < MAX_REMEMBERED {
            self.full.insert(from);
        }
        self.hope_at = shared.now;
        self.note_whole(shared);
        self.catchup.lost(from);
        self.sponsor = None;
        if slow.is_none() || self.full.len() < 2 {
            self.seek(None, shared);
        }
        if self.sponsor.is_some() {
            return;
        }
        // Those who wait do not all come back at once.
        let spread = Duration::from_secs(u64::from(shared.me().0[0] % 16));
        let wait = match slow {
            None => NO_PLACE,
            Some(_) => TOO_SLOW * (1 << self.too_slow.min(MOST_DOUBLINGS)),
        };
        self.waits_until = shared.now + wait + spread;
        self.seek(None, shared);
        shared.tell(match slow {
            None => Event::NoPlace { wait: wait + spread },
            Some(slow) => {
                self.too_slow += 1;
                let (peer, wait) = (shared.me(), Some(wait + spread));
                Event::TooSlow { peer, slow, wait }
            }
        });
    }

    /// While it stands aside it follows nobody for a while, and keeps its state. Not again if the run has not gone on since.
    pub(super) fn rest_aside(&mut self, shared: &mut Shared) -> bool {
        let (head, me) = (shared.head(), shared.me());
        let others: Vec<PeerId> = head
            .members
            .iter()
            .map(|m| m.peer)
            .filter(|peer| *peer != me)
            .collect();
        // An earlier head would have it wait for too long. And the time to wait passes only while the others train.
        let may_rest = head.round >= self.since && head.trains(&shared.manifest, &others);
        let goes_on = self.rested.is_none_or(|(_, round)| round < head.round);
        let Some(wait) = head.asides.waits(me).filter(|_| may_rest && goes_on) else {
            return false;
        };
        self.rested = Some((shared.now, head.round));
        self.note_whole(shared);
        self.waits_until = shared.now + wait.min(STALE);
        self.seek(None, shared);
        true
    }

    /// Whether it stands aside and follows nobody for a while.
    pub(crate) fn rests(&self, shared: &Shared) -> bool {
        self.rested.is_some() && self.sponsor.is_none() && shared.now < self.waits_until
    }

    /// While it stands aside, a member of another lineage shows itself. Whether this peer's own stands, whose members go on.
    pub(super) fn stays_aside(&mut self, from: PeerId, shown: &Shown<'_>, shared: &mut Shared) -> bool {
        let here: Vec<PeerId> = shared.head().members.iter().map(|m| m.peer).collect();
        let goes_on = here.iter().any(|peer| shared.links.is_up(*peer));
        if !self.rests(shared) || !goes_on || here.contains(&from) {
            return false;
        }
        let side = Side {
            members: &here,
            until: shared.head().round,
            lead: 0,
            is_own: true,
        };
        let stands = meet(&side, from, shown, shared);
        match stands {
            Stands::Forged => drop(shared.outlaw(from, None)),
            // Both go on, and may know each other only through this peer.
            Stands::Ours | Stands::Theirs(_) => self.acquaint(from, shared),
        }
        !matches!(stands, Stands::Theirs(_))
    }

    /// Why it is not admitted, if nobody else has been in sight for long.
    pub(super) fn is_barred(&self, shared: &Shared) -> Option<Barred> {
        let (since, why) = self.barred?;
        let long = shared.now - since > (HOPELESS * shared.detector.answer()).min(BARRED);
        (long && self.is_barred_by_all(shared)).then_some(why)
    }

    /// Whether every peer in sight has barred it.
    fn is_barred_by_all(&self, shared: &Shared) -> bool {
        sponsors(shared).all(|peer| self.barred_by.contains(&peer))
    }

    /// A member is there, and perhaps shows where its lineage stands.
    pub(super) fn on_candidate(&mut self, from: PeerId, shown: Option<Shown<'_>>, shared: &mut Shared) {
        if let Some(shown) = &shown {
            self.hope_at = shared.now;
            let goes_on = |(since, round)| shown.standing.round > round || shared.now - since < STILL;
            if self.sponsor.is_none() && !self.rested.is_none_or(goes_on) {
                // Members that lack others for a round tell where they stand, again and again.
                self.waits_until = shared.now;
            }
        }
        self.refused.remove(&from);
        // A sponsor tells its standing only to peers that do not follow it, so it has dropped this one.
        let dropped = self.follows(from);
        if self.sponsor.is_none() || dropped {
            return self.seek(Some(from), shared);
        }
        let Some(shown) = shown.filter(|_| self.following) else {
            return;
        };
        // Where pieces come, a long way or a narrow one may keep it behind.
        let is_still = shared.now - self.came_at.max(self.asked_at) > STILL;
        let until = match is_still {
            true => shared.head().round + AHEAD,
            false => Round::MAX,
        };
        // Lineages that take turns in leading should not make it go back and forth.
        let here: Vec<PeerId> = shared.head().members.iter().map(|m| m.peer).collect();
        let side = Side {
            members: &here,
            until,
            lead: 2 * shared.head().pace.round_samples(&shared.manifest),
            is_own: false,
        };
        match meet(&side, from, &shown, shared) {
            Stands::Ours if !here.contains(&from) => self.acquaint(from, shared),
            Stands::Ours => {}
            // It would be barred there.
            Stands::Theirs(_) if shared.is_revoked() => self.acquaint(from, shared),
            Stands::Theirs(via) => {
                self.acquaint(from, shared);
                self.follow_elsewhere(via, shared);
            }
            Stands::Forged => drop(shared.outlaw(from, None)),
        }
    }

    /// A member of another lineage and the sponsor may know each other only through this peer; then neither would
    /// yield. If they cannot reach each other at all, this peer sees what members have signed.
    fn acquaint(&mut self, from: PeerId, shared: &mut Shared) {
        shared.send_status(from, Stage::Follower);
        let is_there = |peer: &PeerId| *peer != from && shared.links.is_up(*peer);
        let of_own = || shared.head().full_members().find(is_there);
        let Some(sponsor) = self
            .sponsor
            .or_else(of_own)
            .filter(|sponsor| self.acquainted != Some((from, *sponsor)))
        else {
            return;
        };
        self.acquainted = Some((from, sponsor));
        for (to, other) in [(from, sponsor), (sponsor, from)] {
            let acquaintances = shared.links.acquaintance(other);
            shared.control(to, Message::Acquaintances { acquaintances });
        }
    }

    /// If no reachable peer is a member, the best whole state continues.
    pub(super) fn resume_if_last(&mut self, shared: &mut Shared) -> Next {
        if !self.whole || self.sponsor.is_some() || shared.settings.role() != Role::Member {
            return Next::Stay;
        }
        let in_use = matches!(self.barred, Some((_, Barred::InUse)));
        let nobody = sponsors(shared).next().is_none();
        if in_use || !nobody && shared.now < self.waits_until {
            return Next::Stay;
        }
        let mine = shared.lineage.standing();
        let patience = shared.detector.answer();
        let waited = shared.now - self.lonely_since;
        let lonely = shared.settings.waits.alone_deadlines * patience;
        if !nobody && self.barred.is_some() && self.is_barred_by_all(shared) {
            // Alone it would meet their lineage again, yield to it, and be barred again, for ever. It gives up
            // unless another peer comes into sight in time, or all of them go.
            return Next::Stay;
        }
        let all_refused = sponsors(shared).all(|p| self.refused.contains_key(&p));
        let mut reachable = self.refused.iter().filter(|(p, _)| shared.links.is_up(**p));
        // Of peers that hold the same state, one continues.
        let yields = |peer: PeerId, s: Standing| s.beats(&mine) || (s == mine && peer < shared.me());
        let best = reachable.all(|(peer, standing)| standing.is_none_or(|s| !yields(*peer, s)));
        let alone = nobody && waited > lonely.min(LONELIEST);
        // A peer that claims to hold more and does not continue is not waited for much longer.
        let best = best || waited > lonely;
        let last = !nobody && all_refused && best && waited > 2 * patience;
        if let (true, Some((_, why))) = (last, self.barred)
            && !shared.may_come_back()
        {
            // Those in sight who do not bar it may be barred as it is: they would take turns in going on alone.
            return Next::Exit(Exit::Barred(why));
        }
        if alone || last {
            let from = mine.chain;
            shared.go_on_alone();
            shared.tell(Event::Continued { from });
            return Next::Round(Sponsor::default());
        }
        Next::Stay
    }

    /// Whether all reachable peers hold as little as this one, and have for long.
    pub(super) fn is_hopeless(&mut self, shared: &Shared) -> bool {
        let waits = shared.now < self.waits_until;
        if self.whole || self.following || waits || shared.links.reachable().next().is_none() {
            // Nobody in sight is no reason to give up: a peer with the state may be cut off for a while.
            self.hope_at = shared.now;
        }
        shared.now - self.hope_at > HOPELESS * shared.detector.answer()
    }

    /// A member that may name newcomers, if the sponsor may not for some rounds.
    pub(super) fn who_may_name(&self, shared: &Shared) -> Option<PeerId> {
        let head = shared.head();
        let barred = |peer| head.bars_namer(peer);
        let waits = shared.settings.role() > Role::Watch && self.sponsor.is_some_and(barred);
        if !waits || !head.all_train(&shared.manifest) {
            return None;
        }
        let usable = |peer: &PeerId| shared.links.is_up(*peer) && !self.refused.contains_key(peer);
        head.full_members().find(|peer| usable(peer) && !barred(*peer))
    }

    /// The link to a peer is down, and requests to it are lost.
    pub(super) fn on_lost(&mut self, peer: PeerId, shared: &mut Shared) {
        self.catchup.lost(peer);
        if self.sponsor != Some(peer) {
            return self.fetch(shared);
        }
        self.sponsor = None;
        let next = shared.links.reachable().next();
        self.note_whole(shared);
        self.seek(next, shared);
    }
}

/// Reachable peers that may be followed. A contributor sponsors nobody, so it is not asked, and its answer is not
/// waited for.
fn sponsors(shared: &Shared) -> impl Iterator<Item = PeerId> {
    let head = shared.head();
    let is_guest = |peer: &PeerId| head.position(*peer).is_some() && !head.is_full(*peer);
    shared.links.reachable().filter(move |peer| !is_guest(peer))
}
