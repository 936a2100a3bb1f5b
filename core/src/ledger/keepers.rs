//! Which members keep which parts of the moments: what headers claim, what follows for the next round, and which
//! parts members should take or drop. All of it is a function of the records.
//!
//! A *keeper* of a part has its moments. A *learner* fetches them, and receives the part's sums meanwhile. Only
//! full members are either. Headers state facts; suggestions bind nobody, and two members that fill one gap only
//! cover it twice. Dropping a part or leaving is a request: it is granted once enough others keep the parts.
//!
//! A part without a keeper stops the run: no samples are allotted until a member comes back that kept the part
//! after its last step. If a member has waited long enough and says so, the part's moments are reset to zero
//! instead.

pub mod rest;
pub mod shift;
mod spans;
#[cfg(test)]
mod tests;

use self::spans::holders;
use crate::access::signature::Signed;
use crate::base::id::PeerId;
use crate::ledger::check::Fault;
use crate::ledger::keeps::{Keeper, Keeps};
use crate::ledger::spans::all_needed;
use crate::ledger::{Head, Header, Member, Record};
use crate::run::config::Manifest;
use crate::run::parts::{MOST_PARTS, PartSet, Parts};
use crate::run::room::Room;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The members that the sums of a part pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Positions of the members, in order.
    pub members: Vec<usize>,
    /// This many of them, the first ones, still learn the part.
    pub learners: usize,
}

impl Head {
    /// Whether a round of these members trains: they are enough, and each part has a keeper among them.
    pub fn trains(&self, manifest: &Manifest, members: &[PeerId]) -> bool {
        manifest.trains(members.len()) && self.covers(manifest, |peer| members.contains(&peer))
    }

    /// Whether a round of all its members trains.
    pub fn all_train(&self, manifest: &Manifest) -> bool {
        manifest.trains(self.members.len()) && self.covers(manifest, |_| true)
    }

    /// Whether each part has a keeper among some members and, in a split run, each span a member that holds all of
    /// it.
    fn covers(&self, manifest: &Manifest, takes_part: impl Fn(PeerId) -> bool) -> bool {
        self.uncovered(manifest, takes_part).is_empty()
    }

    /// The parts without a keeper among some members, and all parts of spans that none of them holds.
    pub(crate) fn uncovered(&self, manifest: &Manifest, takes_part: impl Fn(PeerId) -> bool) -> PartSet {
        let lacks = self.lacks(manifest, &takes_part);
        let (Some(split), Some(parts)) = (self.split(manifest), Parts::of(manifest)) else {
            return lacks;
        };
        let spans = split.needs(parts);
        let holds = |m: &Member, span| takes_part(m.peer) && m.keeper.holds(span, &spans);
        let is_open = |span: &usize| !self.members.iter().any(|m| holds(m, *span));
        let open = (0..spans.len()).filter(is_open);
        lacks.or(&all_needed(&spans, open))
    }

    /// Whether a record's round trains.
    pub fn trains_record(&self, manifest: &Manifest, record: &Record) -> bool {
        let takes_part = |peer| record.headers.iter().any(|h| h.peer == peer);
        manifest.trains(record.headers.len()) && self.covers(manifest, takes_part)
    }

    /// The parts without a keeper among some members.
    pub fn lacks(&self, manifest: &Manifest, takes_part: impl Fn(PeerId) -> bool) -> PartSet {
        let Some(parts) = Parts::of(manifest) else {
            return PartSet::default();
        };
        let keepers = self.members.iter().filter(|m| takes_part(m.peer));
        parts
            .all()
            .without(&keepers.fold(PartSet::default(), |all, m| all.or(&m.keeper.kept)))
    }

    /// For each part, the positions of the members that its sum passes: first the learners, then the keepers. The
    /// first member receives all contributions and adds them up; the last sends the update to all.
    ///
    /// So the last is the keeper that has been first more often than last for earlier parts, compared in fours; on
    /// a tie, the keeper to which the others have passed least, so that sums use all links alike. Of the other
    /// keepers, the one that has been first least often comes first. The rest follow in ring order, from a
    /// different start for each part.
    ///
    /// # Panics
    /// If a part has no keeper among them.
    pub fn chains(&self, parts: Parts, members: &[PeerId]) -> Vec<Chain> {
        let n = members.len();
        let none = Keeper::default();
        let keeper = |peer: &PeerId| self.position(*peer).map_or(none, |at| self.members[at].keeper);
        let keepers: Vec<Keeper> = members.iter().map(keeper).collect();
        let (mut firsts, mut lasts) = (vec![0i32; n], vec![0i32; n]);
        let mut passes = vec![vec![0u32; n]; n];
        let mut chain = |part: u16| {
            let start = usize::from(part) * n / parts.count();
            let ring = (start..start + n).map(|at| at % n);
            let learn = ring.clone().filter(|at| keepers[*at].learns.contains(part));
            let mut members: Vec<usize> = learn.collect();
            let learners = members.len();
            members.extend(ring.filter(|at| keepers[*at].kept.contains(part)));
            let kept = &mut members[learners..];
            let to_last = |at: &usize| {
                let last = kept[*at];
                let passed = kept.iter().map(|from| passes[*from][last]).sum::<u32>();
                (Reverse((firsts[last] - lasts[last]).div_euclid(4)), passed)
            };
            let last = (0..kept.len()).rev().min_by_key(to_last);
            let last = last.unwrap_or_else(|| panic!("part {part} has a keeper"));
            kept[last..].rotate_left(1);
            if let Some(first) = (0..kept.len() - 1).min_by_key(|at| firsts[kept[*at]]) {
                kept[..=first].rotate_right(1);
            }
            for pair in members.windows(2) {
                passes[pair[0]][pair[1]] += 1;
            }
            firsts[members[0]] += 1;
            lasts[members[members.len() - 1]] += 1;
            Chain { members, learners }
        };
        parts.iter().map(&mut chain).collect()
    }

    /// Checks the parts that a header claims: only parts that its author has kept or learned, or that nobody keeps.
    pub(crate) fn check_keeps(&self, header: &Header, manifest: &Manifest) -> Result<(), Fault> {
        let keeps = &header.keeps;
        let Some(parts) = Parts::of(manifest) else {
            return (*keeps == Keeps::default()).then_some(()).ok_or(Fault::Keeps);
        };
        let of_nobody = self.lacks(manifest, |_| true);
        let keeper = self.position(header.peer).map(|at| self.members[at].keeper);
        let may = keeper.unwrap_or_default();
        let may = may.kept.or(&may.learns).or(&of_nobody);
        let none = PartSet::default();
        let sound = keeps.kept.without(&may) == none
            && keeps.kept.or(&keeps.learns).without(&parts.all()) == none
            && keeps.kept.and(&keeps.learns) == none
            && keeps.drops.without(&keeps.kept) == none
            && keeps.digests.len() == keeps.kept.len()
            && (self.is_full(header.peer) || *keeps == Keeps::default())
            && match &manifest.split {
                Some(split) => keeps.room == keeps.room.within(split.spans.len()),
                None => keeps.room == Room::default() && !keeps.refuses && keeps.line == 0,
            };
        sound.then_some(()).ok_or(Fault::Keeps)
    }

    /// A keeper whose moments of some part differ from those of most keepers; on a tie, the first in ring order is
    /// right.
    pub(crate) fn differing_keeper(&self, record: &Record) -> Option<PeerId> {
        let mut digests: BTreeMap<u16, Vec<(u64, PeerId)>> = BTreeMap::new();
        for header in &record.headers {
            let keeps = &header.keeps;
            for (part, digest) in keeps.kept.iter().zip(&keeps.digests) {
                digests.entry(part).or_default().push((*digest, header.peer));
            }
        }
        digests.values().find_map(|said| {
            let digest = most(said.iter().map(|(digest, _)| *digest))?;
            said.iter()
                .find(|(other, _)| *other != digest)
                .map(|(_, peer)| *peer)
        })
    }

    /// Applies what the headers of a record say of parts: who keeps what from here on, and who leaves. `next` are
    /// the next members, as if all who leave may go, and newcomers; `can_stay` tells which leavers could stay
    /// members.
    pub(crate) fn settle(&mut self, record: &Record, next: &mut Vec<Member>, manifest: &Manifest, bug: bool) {
        let (Some(parts), Some(copies)) = (Parts::of(manifest), manifest.copies) else {
            return;
        };
        let lacked = self.lacks(manifest, |_| true);
        let full = |peer| self.is_full(peer);
        let rest: Vec<&Signed<Header>> = record
            .headers
            .iter()
            .filter(|h| !h.leaving && full(h.peer))
            .collect();
        let others = next
            .iter()
            .filter(|m| m.is_full() && rest.iter().all(|h| h.peer != m.peer));
        let others = others.map(|m| m.keeper.room);
        let rooms = rest.iter().map(|h| h.keeps.room).chain(others);
        let spans = self.split(manifest).map(|split| split.needs(parts));
        let mut left = Left::new(spans, copies.get().into(), rooms);
        rest.iter().for_each(|h| left.add(&h.keeps.keeper()));
        // A member that may not leave yet stays at its place.
        for header in record.headers.iter().filter(|h| h.leaving) {
            let covered = bug || left.are_enough_without(&header.keeps.keeper());
            let Some(place) = self
                .position(header.peer)
                .filter(|_| !covered && !header.keeps.insists)
            else {
                continue;
            };
            let is_before = |m: &&Member| self.position(m.peer).is_some_and(|at| at < place);
            let at = next.iter().take_while(is_before).count();
            next.insert(at, self.members[place].clone());
        }
        let said = |peer| record.headers.iter().find(|h| h.peer == peer);
        for member in next.iter_mut() {
            let Some(header) = said(member.peer) else {
                continue;
            };
            let mut keeper = header.keeps.keeper();
            for part in header.keeps.drops.iter().filter(|_| !header.leaving) {
                if bug || left.may_drop(&keeper, part) {
                    keeper.kept.remove(part);
                }
            }
            member.keeper = Keeper {
                learns: header.keeps.learns,
                leaves: header.leaving,
                ..keeper
            };
        }
        let kept = next
            .iter()
            .fold(PartSet::default(), |all, m| all.or(&m.keeper.kept));
        let lost = parts.all().without(&kept).and(&lacked);
        let may_begin_anew = manifest.split.is_none();
        if may_begin_anew && record.headers.iter().any(|h| h.keeps.insists && full(h.peer)) {
            self.untrained = self.untrained.or(&lost);
        }
    }

    /// The parts that a member should learn and drop, so that each part has as many keepers as the run wants, or as
    /// there are members, and all keep about the same number.
    pub fn suggest(&self, manifest: &Manifest, me: PeerId) -> (PartSet, PartSet) {
        let (Some(parts), Some(copies)) = (Parts::of(manifest), manifest.copies) else {
            return Default::default();
        };
        let able: Vec<&Member> = self
            .members
            .iter()
            .filter(|m| m.is_full() && !m.keeper.leaves)
            .collect();
        let Some(own) = able.iter().position(|m| m.peer == me) else {
            return Default::default();
        };
        let needed = usize::from(copies.get()).min(able.len());
        if let Some(split) = self.split(manifest) {
            let goes_on = self.all_train(manifest);
            return self.suggest_spans((&split, parts), &able, own, (copies.get().into(), goes_on));
        }
        let mut balance = Balance {
            holds: able.iter().map(|m| m.keeper.kept.or(&m.keeper.learns)).collect(),
            parts,
        };
        let mut drops = PartSet::default();
        for part in parts.iter() {
            // A learner is not done yet, so its copy is no reason to drop the part.
            let keep = |at: &usize| able[*at].keeper.kept.contains(part);
            let mut keepers = (0..able.len()).filter(keep).count();
            while balance.holders(part) > needed {
                let Some(at) = balance.fullest((0..able.len()).filter(keep), part) else {
                    break;
                };
                balance.holds[at].remove(part);
                if at == own && keepers > needed {
                    drops.insert(part);
                }
                keepers = keepers.saturating_sub(1);
            }
        }
        let before = balance.holds[own];
        // A reset part must not wait for a member that may never come.
        let anew = self.lacks(manifest, |_| true).and(&self.untrained);
        let settled: Vec<usize> = (0..able.len())
            .filter(|at| !able[*at].keeper.kept.is_empty())
            .collect();
        balance.fill(needed);
        balance.level();
        anew.iter()
            .for_each(|part| balance.fill_part(part, needed, &settled));
        (balance.holds[own].without(&before).without(&drops), drops)
    }
}

/// Counts the copies of members that stay, to decide whether another may leave or drop a part.
struct Left {
    /// The keepers of each part ...
    keepers: [usize; MOST_PARTS],
    /// ... and, in a split run, the holders of each span.
    holders: Vec<usize>,
    /// The parts that each span needs.
    spans: Vec<PartSet>,
    /// The wanted number of keepers.
    needed: usize,
}

impl Left {
    /// No members yet. `spans` are the parts of each span of a split model, `rooms` the room of each member.
    fn new(spans: Option<Vec<PartSet>>, copies: usize, rooms: impl Iterator<Item = Room>) -> Self {
        let needed = match &spans {
            Some(spans) => holders(copies, spans.len(), rooms),
            None => copies.min(rooms.count()),
        };
        let spans = spans.unwrap_or_default();
        Self {
            keepers: [0; MOST_PARTS],
            holders: vec![0; spans.len()],
            spans,
            needed,
        }
    }

    /// The spans that a member holds.
    fn held(&self, keeper: &Keeper) -> Vec<usize> {
        let all = 0..self.spans.len();
        all.filter(|span| keeper.holds(*span, &self.spans)).collect()
    }

    /// Adds a member that stays.
    fn add(&mut self, keeper: &Keeper) {
        for part in keeper.kept.iter() {
            self.keepers[usize::from(part)] += 1;
        }
        for span in self.held(keeper) {
            self.holders[span] += 1;
        }
    }

    /// Whether enough others keep and hold everything that a member does.
    fn are_enough_without(&self, keeper: &Keeper) -> bool {
        let is_held = |span: &usize| self.holders[*span] >= self.needed;
        let is_kept = |part: u16| self.keepers[usize::from(part)] >= self.needed;
        keeper.kept.iter().all(is_kept) && self.held(keeper).iter().all(is_held)
    }

    /// Lets a member drop a part, if enough others keep it and hold the spans that need it.
    fn may_drop(&mut self, keeper: &Keeper, part: u16) -> bool {
        let mut ended = self.held(keeper);
        ended.retain(|span| self.spans[*span].contains(part));
        let is_held = |span: &usize| self.holders[*span] > self.needed;
        let may = self.keepers[usize::from(part)] > self.needed && ended.iter().all(is_held);
        if may {
            self.keepers[usize::from(part)] -= 1;
            ended.iter().for_each(|span| self.holders[*span] -= 1);
        }
        may
    }
}

/// The parts that members hold or will hold, by position among the full members.
struct Balance {
    holds: Vec<PartSet>,
    parts: Parts,
}

impl Balance {
    fn holders(&self, part: u16) -> usize {
        self.holds.iter().filter(|holds| holds.contains(part)).count()
    }

    /// Of some members that hold a part, the one that holds most; on a tie the first.
    fn fullest(&self, of: impl Iterator<Item = usize>, part: u16) -> Option<usize> {
        let holding = of.filter(|at| self.holds[*at].contains(part));
        holding.min_by_key(|at| (Reverse(self.holds[*at].len()), *at))
    }

    /// Gives parts with too few holders to the members that hold least.
    fn fill(&mut self, needed: usize) {
        let all: Vec<usize> = (0..self.holds.len()).collect();
        for part in self.parts.iter() {
            self.fill_part(part, needed, &all);
        }
    }

    /// Gives a part to those of some members that hold least, until `needed` hold it.
    fn fill_part(&mut self, part: u16, needed: usize, of: &[usize]) {
        for _ in of.iter().filter(|at| self.holds[**at].contains(part)).count()..needed {
            let lacking = of.iter().filter(|at| !self.holds[**at].contains(part));
            let Some(at) = lacking.min_by_key(|at| (self.holds[**at].len(), **at)) else {
                return;
            };
            self.holds[*at].insert(part);
        }
    }

    /// Moves parts from the members that hold most to those that hold least, until nobody has more than a
    /// thirty-second above the least. It prefers parts whose other holders share least with the receiver, so that
    /// all members pass sums to all others.
    fn level(&mut self) {
        for _ in 0..MOST_PARTS * self.holds.len() {
            let len = |at: &usize| self.holds[*at].len();
            let all = 0..self.holds.len();
            let least = all.clone().min_by_key(|at| (len(at), *at)).unwrap_or(0);
            let most = all.min_by_key(|at| (Reverse(len(at)), *at)).unwrap_or(0);
            if len(&most) <= len(&least) + 1 + len(&least) / 32 {
                return;
            }
            let moves = self.holds[most].without(&self.holds[least]);
            let shares = |holds: &PartSet| holds.and(&self.holds[least]).len();
            let shared: Vec<usize> = self.holds.iter().map(shares).collect();
            let with_others = |part: &u16| {
                let others = (0..shared.len()).filter(|at| *at != most && self.holds[*at].contains(*part));
                others.map(|at| shared[at]).max()
            };
            let Some(part) = moves.iter().min_by_key(with_others) else {
                return;
            };
            self.holds[most].remove(part);
            self.holds[least].insert(part);
        }
    }
}

/// The most frequent value; on a tie, the one that came first.
pub(crate) fn most(said: impl Iterator<Item = u64> + Clone) -> Option<u64> {
    let votes = |digest: u64| said.clone().filter(|other| *other == digest).count();
    said.clone()
        .reduce(|best, other| if votes(other) > votes(best) { other } else { best })
}
