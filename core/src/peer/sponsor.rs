//! How a member serves newcomers: it forwards each finished piece and each commit to its followers, hands out
//! blocks of its state, and names followers that have caught up in its next header.

mod expired;
mod follower;
mod pause;
mod room;

use self::expired::Expired;
use self::follower::Follower;
use self::room::has_place;
use crate::access::invitation::{Admission, Role};
use crate::access::signature::Signed;
use crate::base::id::{Contact, PeerId, Round};
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::collective::Assembly;
use crate::ledger::accounts::account;
use crate::ledger::admission::MAX_NAMED;
use crate::ledger::check::is_fresh;
use crate::ledger::tickets::Barred;
use crate::ledger::{Head, Newcomer, Ready};
use crate::peer::late;
use crate::peer::shared::Shared;
use crate::reach::detector::FLOOR;
use crate::run::config::MAX_PEERS;
use crate::state::{joined, root};
use crate::wire::rights::Kind;
use crate::wire::view::View;
use crate::wire::{Message, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Bytes of vectors that may be on their way to a follower before the sponsor stops forwarding pieces to it, if
/// that is more than [`LEAST_LAG`] rounds. The rounds of a small model may be shorter than the path to a newcomer,
/// or faster than it can follow. Once it is a member, the others wait for it, but it must be admitted first.
const LAG_BYTES: usize = 32 << 20;

/// [`LAG_BYTES`] for a follower that has not yet shown that its line carries a round promptly: so much fills a slow line for
/// seconds only, and the state comes soon.
const FIRST_LAG_BYTES: usize = 4 << 20;

/// Rounds that a newcomer may always be behind, however long their vectors are.
const LEAST_LAG: Round = 2;

/// Usual bytes of a head for a newcomer. A guess, for few contacts and short chains of tickets.
const HEAD_BYTES: usize = 16 << 10;

/// Most followers that only watch. They stay, and others must find a place too.
const WATCHERS: usize = MAX_PEERS / 2;

/// The state is hashed for newcomers at most once in this many answer deadlines.
const EXAMINE_TIMES: u32 = 4;

/// The part of the sponsor's attempt in work that its followers need.
#[derive(Clone, Copy)]
pub(crate) struct InWork<'a> {
    pub view: &'a View,
    pub finished: &'a Assembly,
}

/// The consequence of a request to a sponsor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// None.
    Well,
    /// The peer that asks is in the view in work, and is not a member any more.
    IsOut,
    /// The sponsor's state is damaged.
    Damaged,
}

/// The newcomers that follow this peer, at most as many as a view has members.
#[derive(Debug, Default)]
pub(crate) struct Sponsor {
    followers: BTreeMap<PeerId, Follower>,
    /// Number of the next one.
    next: u64,
    /// Newcomers that were told that there is no place: they ask again, and need to hear of no round before.
    waiting: BTreeSet<PeerId>,
    expired: Expired,
}

impl Sponsor {
    pub fn has(&self, peer: PeerId) -> bool {
        self.followers.contains_key(&peer)
    }

    /// Bytes that it holds on behalf of followers.
    pub fn bytes(&self) -> usize {
        let followers = self.followers.values();
        let bytes = |f: &Follower| size_of::<Follower>() + f.contact.bytes() + f.admission.chain.bytes();
        followers.map(bytes).sum::<usize>() + self.waiting.len() * size_of::<PeerId>()
    }

    pub fn forget(&mut self, peer: PeerId) -> bool {
        self.waiting.remove(&peer);
        self.followers.remove(&peer).is_some()
    }

    /// Tells all followers that this peer cannot be followed any more.
    pub fn dismiss(self, shared: &mut Shared) {
        for follower in self.followers.into_keys() {
            shared.control(follower, late::not_a_member());
        }
    }

    /// A new attempt begins.
    pub fn begin_attempt(&mut self, shared: &Shared) {
        self.followers
            .values_mut()
            .for_each(|f| f.begin_attempt(lag(f, shared)));
    }

    /// A newcomer asks to follow.
    pub fn on_follow(
        &mut self,
        from: PeerId,
        (have, admission, contact): (Option<Standing>, Admission, Contact),
        work: Option<InWork<'_>>,
        shared: &mut Shared,
    ) -> Asked {
        // Only full members can be followed while the run goes on.
        if work.is_some() && shared.settings.role() != Role::Member {
            shared.control(from, late::not_a_member());
            return Asked::Well;
        }
        if !may_begin(from, work, Kind::Follow, shared) {
            return Asked::Well;
        }
        if !admission.is_of(from, shared.root, shared.scheme()) {
            shared.control(from, late::not_a_member());
            return Asked::Well;
        }
        let is_member = shared.head().position(from).is_some();
        let late = (!is_member && self.expired.has(&admission, shared.now)).then_some(Barred::Expired);
        if let Some(why) = late.or(shared.may_enter(from, &admission, !is_member).err()) {
            self.forget(from);
            shared.show_revocation(from, &admission);
            shared.control(from, Message::Barred { why });
            return Asked::Well;
        }
        if work.is_some() && !is_member && !has_place(&admission, shared) {
            self.keep_waiting(from, None, shared);
            return Asked::Well;
        }
        if !self.has(from) && !self.make_room(&admission, shared) {
            shared.control(from, late::not_a_member());
            return Asked::Well;
        }
        // If it begins again, its blocks perhaps did not fit together.
        if self.has(from) && !examine_state(work, shared) {
            return Asked::Damaged;
        }
        // A peer behind a wildcard address or NAT does not know all its addresses. The link that it opened shows
        // one.
        let contact = shared.links.known_contact(from, contact);
        let (head, last) = (shared.head(), shared.lineage.last.as_ref());
        let have = have.map(|have| have.chain);
        let missed = last.filter(|last| have == Some(last.before.chain));
        // A member that asks to follow is not a member any more, unless it has just become one without having
        // heard.
        let in_view = work.is_some_and(|work| work.view.contains(from));
        let fresh = last.is_some_and(|last| last.record.headers.iter().all(|h| h.peer != from));
        // If it had heard, it would hold the present head, and might have left the attempt in work already.
        let member = in_view && fresh && missed.is_some();
        let resumes = have == Some(head.chain) || missed.is_some();
        let following = Message::Following {
            head: Box::new(head.clone()),
            digest: shared.lineage.digest,
            resumes: have.filter(|_| resumes),
            member,
            claim: shared.lineage.claim(),
        };
        let (round, missed) = (head.round, missed.map(|last| last.message()));
        let applied = round - u64::from(missed.is_some());
        let follower = match self.followers.get(&from) {
            Some(before) => before.again(contact, (applied, round), shared.now),
            None => {
                let account = account(&admission, shared.root.run);
                let mut new = Follower::new(admission, contact, applied, round);
                (new.account, new.number) = (account, self.next);
                (new.came_at, new.progress_at) = (shared.now, shared.now);
                (new.begun_at, new.asked_at) = (shared.now, shared.now);
                new
            }
        };
        self.next += 1;
        self.waiting.remove(&from);
        self.followers.insert(from, follower);
        shared.bulk(from, following);
        if let Some(committed) = missed {
            shared.bulk(from, committed);
        }
        forward_so_far(from, work, shared);
        shared.tell_proofs(from);
        if in_view && !member {
            Asked::IsOut
        } else {
            Asked::Well
        }
    }

    /// The follower has fallen too far behind, and begins again from here.
    pub fn restart(&mut self, peer: PeerId, work: Option<InWork<'_>>, shared: &mut Shared) {
        if !self.has(peer) || !may_begin(peer, work, Kind::Repair, shared) {
            return;
        }
        let following = Message::Following {
            head: Box::new(shared.head().clone()),
            digest: shared.lineage.digest,
            resumes: None,
            member: false,
            claim: shared.lineage.claim(),
        };
        let round = shared.head().round;
        if let Some(f) = self.followers.get_mut(&peer) {
            *f = f.again(f.contact.clone(), (round, round), shared.now);
            shared.bulk(peer, following);
            forward_so_far(peer, work, shared);
        }
    }

    /// A piece is finished here: forwards it.
    pub fn forward_piece(&self, view: &View, piece: &Message, shared: &mut Shared) {
        let live = self.followers.iter().filter(|(_, f)| f.live);
        for (peer, _) in live.filter(|(peer, _)| !view.contains(**peer)) {
            shared.bulk(*peer, piece.clone());
        }
    }

    /// A round is committed here: tells the followers, and drops those that are members now.
    pub fn forward_commit(&mut self, shared: &mut Shared) {
        let here = shared.head().round;
        let Some(last) = &shared.lineage.last else { return };
        let (round, committed) = (last.view.round, last.message());
        for (peer, f) in &mut self.followers {
            if f.live {
                shared.bulk(*peer, committed.clone());
                f.sends(round, shared.now);
            } else {
                f.gap = true;
                f.ready = None;
            }
            f.ready.take_if(|ready| !is_fresh(ready.round, here));
            f.begin_attempt(lag(f, shared));
        }
        let head = shared.head();
        self.followers.retain(|peer, _| head.position(*peer).is_none());
        self.send_slow_away(shared);
        self.bar(shared);
    }

    /// Lets go of those who may not come in any more, and of those for whom there is no place: what they would be sent round
    /// by round is of no use to them.
    fn bar(&mut self, shared: &mut Shared) {
        let barred = |(peer, f): (&PeerId, &Follower)| {
            let why = shared.may_enter(*peer, &f.admission, false).err()?;
            Some((*peer, why))
        };
        let barred: Vec<(PeerId, Barred)> = self.followers.iter().filter_map(barred).collect();
        for (peer, why) in barred {
            self.forget(peer);
            shared.control(peer, Message::Barred { why });
            shared.ousted.push(peer);
        }
        let head = shared.head();
        self.waiting.retain(|peer| head.position(*peer).is_none());
        if head.finished(&shared.manifest) {
            return;
        }
        let followers = self.followers.iter();
        let without = followers.filter(|(_, f)| !has_place(&f.admission, shared));
        for peer in without.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.keep_waiting(peer, None, shared);
        }
    }

    /// A follower has applied a round.
    pub fn on_followed(&mut self, from: PeerId, round: Round, work: Option<InWork<'_>>, shared: &mut Shared) {
        let Some(f) = self.followers.get_mut(&from) else {
            return;
        };
        f.applies(round, shared.now);
        if f.gap && f.applied >= f.sent {
            self.restart(from, work, shared);
        } else if !f.live {
            f.begin_attempt(lag(f, shared));
            if f.live {
                forward_so_far(from, work, shared);
            }
        }
    }

    /// A follower has caught up to a round, or (`None`) now follows another peer.
    pub fn on_ready(
        &mut self,
        from: PeerId,
        ready: Option<Signed<Ready>>,
        work: Option<InWork<'_>>,
        shared: &mut Shared,
    ) -> Asked {
        match (self.followers.get_mut(&from), ready) {
            (Some(f), Some(ready)) => {
                // All members check what a sponsor names, and would take the sponsor for the liar.
                let good = ready.peer == from
                    && ready.is_good(
                        shared.head().round,
                        &shared.manifest,
                        shared.root.run,
                        shared.scheme(),
                    );
                let good = good && f.admission.role() > Role::Watch;
                let good = good || shared.settings.planted(Bug::TrustSponsors);
                if good && ready.round >= f.since {
                    f.ready = Some(ready);
                    f.progress_at = shared.now;
                }
            }
            (Some(_), None) => {
                self.forget(from);
                // Its blocks perhaps did not fit together.
                if !examine_state(work, shared) {
                    return Asked::Damaged;
                }
            }
            _ => {}
        }
        Asked::Well
    }

    /// Whether a follower waits to become a member, and may.
    pub fn has_ready(&self, view: &View, shared: &Shared) -> bool {
        !self.named(view, shared).is_empty()
    }

    /// When a follower that has to wait may become a member of a run that waits itself.
    pub fn waits_until(&self, shared: &Shared) -> Option<Time> {
        let ready = self.followers.iter().filter(|(_, f)| f.live && f.ready.is_some());
        let until = ready.filter_map(|(peer, _)| shared.probation.until(*peer, false));
        until.filter(|until| *until > shared.now).min()
    }

    /// The followers to name in a header.
    pub fn ready(&self, view: &View, shared: &Shared) -> Vec<Newcomer> {
        let newcomer = |(ready, f): (&Signed<Ready>, &Follower)| Newcomer {
            ready: ready.clone(),
            admission: f.admission.clone(),
            contact: f.contact.clone(),
        };
        let named = self.named(view, shared).into_iter().take(MAX_NAMED);
        let mut newcomers: Vec<Newcomer> = named.map(newcomer).collect();
        newcomers.sort_by_key(Newcomer::peer);
        newcomers
    }

    /// Followers that may be named. They must receive this round, since a newcomer that does not hear of the round
    /// that admits it does not come, and they must be there soon. A member of the attempt may have said "ready"
    /// before it was one.
    ///
    /// A peer that fails again and again has to wait, though less long if the others cannot train without it. All
    /// have to wait if an earlier one did not come. Full members come first, then those who came first, of a ticket
    /// with strikes only one.
    fn named(&self, view: &View, shared: &Shared) -> Vec<(&Signed<Ready>, &Follower)> {
        let accounts = &shared.head().accounts;
        let trains = shared.head().trains(&shared.manifest, &view.members);
        let may_name = !trains || shared.head().may_name(shared.me(), |peer| view.contains(peer));
        let bound = prompt(shared);
        let may_enter = |peer: PeerId, f: &Follower| {
            let waits = |ticket| trains && !accounts.may_bring(ticket, shared.settings.bug());
            let is_prompt = !trains || f.is_prompt(bound, shared.now);
            let is_over = shared.probation.is_over(peer, trains, shared.now);
            let admits = !trains
                || shared.settings.planted(Bug::NameAside)
                || shared.head().admits(peer, &shared.manifest);
            let may_come = is_prompt && is_over && admits && !f.account.is_some_and(waits);
            let may_enter = !self.expired.has(&f.admission, shared.now)
                && shared.may_enter(peer, &f.admission, true).is_ok();
            may_come && may_enter
        };
        let live = self.followers.iter().filter(|(_, f)| may_name && f.live);
        let ready = live.filter_map(|(peer, f)| Some((*peer, f.ready.as_ref()?, f)));
        let named = ready.filter(|(peer, _, f)| !view.contains(*peer) && may_enter(*peer, f));
        let mut named: Vec<_> = named.map(|(_, ready, f)| (ready, f)).collect();
        named.sort_by_key(|(_, f)| (f.account.is_some(), f.number));
        let mut one_each = BTreeSet::new();
        let mut is_one = |ticket| !trains || !accounts.has_strikes(ticket) || one_each.insert(ticket);
        named.retain(|(_, f)| f.account.is_none_or(&mut is_one));
        named
    }
}

/// The others would wait for a newcomer that lags by more than this as for one that is gone.
fn prompt(shared: &Shared) -> Duration {
    FLOOR.max(shared.detector.quiet())
}

/// Rounds that a follower may be behind before pieces are no longer forwarded to it. Once it is admitted, the
/// others wait until it has caught up, so it must not be much.
fn lag(f: &Follower, shared: &Shared) -> Round {
    let bytes = if f.is_quick(prompt(shared)) {
        LAG_BYTES
    } else {
        FIRST_LAG_BYTES
    };
    ((bytes / vector(shared)) as Round).clamp(LEAST_LAG, shared.settings.lag)
}

/// About the bytes of a round.
fn vector(shared: &Shared) -> usize {
    shared
        .manifest
        .codec
        .encoded_len(shared.manifest.layout.len)
        .max(1)
}

/// A newcomer fetches a block of the state.
pub(crate) fn hand_out(to: PeerId, block: u32, shared: &mut Shared) {
    let bytes = shared.lineage.state.block_len(block);
    if bytes.is_none_or(|bytes| !shared.allow(to, bytes, Kind::Fetch)) {
        return;
    }
    let Some(data) = shared.lineage.state.read_block(block) else {
        return;
    };
    let Head { round, chain, .. } = *shared.head();
    let data = data.into();
    let message = Message::Block {
        block,
        round,
        chain,
        data,
    };
    shared.bulk(to, message);
}

/// A newcomer's state is wrong. It gets the digests of all blocks, to find the wrong ones.
pub(crate) fn hand_out_digests(to: PeerId, shared: &mut Shared) {
    let data = joined(&shared.lineage.blocks);
    if shared.allow(to, data.len(), Kind::Doubt) {
        let (chain, data) = (shared.head().chain, data.into());
        // After the forwarded pieces of the round that led here, and before those of the next.
        shared.bulk(to, Message::Digests { chain, data });
    }
}

/// Verifies the state against its digest. Whether this peer may stay a member: if the state is damaged it may not,
/// unless it is alone and has nothing else to continue from.
fn examine_state(work: Option<InWork<'_>>, shared: &mut Shared) -> bool {
    let pause = EXAMINE_TIMES * shared.detector.answer();
    if shared.examined_at.is_some_and(|at| shared.now - at < pause) {
        return true;
    }
    shared.examined_at = Some(shared.now);
    let blocks = shared.lineage.state.block_digests();
    let actual = root(&blocks);
    let Some(work) = work.filter(|_| actual != shared.lineage.digest) else {
        return true;
    };
    if work.view.members.len() > 1 {
        return false;
    }
    shared.lineage.hashed(blocks);
    true
}

/// Whether a peer may get, for this request, the start of a follower: a head, and the finished pieces of the
/// attempt.
fn may_begin(peer: PeerId, work: Option<InWork<'_>>, question: Kind, shared: &mut Shared) -> bool {
    let so_far = work.map_or(0, |work| work.finished.bytes());
    shared.allow(peer, so_far + HEAD_BYTES, question)
}

/// Forwards the finished pieces of the attempt in work to a follower that comes in its middle. Otherwise it would
/// have to request them, and rounds may be faster than its requests: at worst it would be admitted while it lacks
/// one.
fn forward_so_far(peer: PeerId, work: Option<InWork<'_>>, shared: &mut Shared) {
    // A member gets them as the plan has it, and from nobody else.
    let Some(work) = work.filter(|work| !work.view.contains(peer)) else {
        return;
    };
    for piece in work.finished.messages(work.view.key) {
        shared.bulk(peer, piece);
    }
}
