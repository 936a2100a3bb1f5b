//! Who keeps which parts of the moments: what headers say of it, what follows for the next round, and who had better take or
//! drop what. All of it a function of records.
//!
//! A *keeper* of a part has its moments. Who is *learning* it fetches them, and hears its sums meanwhile. Only full members do
//! either. What a header says is a fact: suggestions bind nobody, and two that fill one gap cover it twice. Only to drop a part
//! or to leave is a wish, that is granted when enough others keep what is kept. A part without any keeper stops the run: no
//! samples are handed out until one comes back that kept it after the last step, or until somebody has waited long enough
//! and says so; then it begins anew with moments of zero.

use crate::check::Fault;
use crate::config::Manifest;
use crate::id::PeerId;
use crate::keeps::{Keeper, Keeps};
use crate::ledger::{Head, Header, Member, Record};
use crate::parts::{MOST_PARTS, PartSet, Parts};
use crate::signature::Signed;
use crate::split::Split;
use std::collections::{BTreeMap, BTreeSet};

impl Head {
    /// Whether a round of these members trains: they are enough, and each part has a keeper among them.
    pub fn trains(&self, manifest: &Manifest, members: &[PeerId]) -> bool {
        manifest.trains(members.len()) && self.covers(manifest, |peer| members.contains(&peer))
    }

    /// Whether a round of all its members trains.
    pub fn all_train(&self, manifest: &Manifest) -> bool {
        manifest.trains(self.members.len()) && self.covers(manifest, |_| true)
    }

    /// Whether each part has a keeper among some members, and each span of a model that is split somebody who holds all of it.
    fn covers(&self, manifest: &Manifest, takes_part: impl Fn(PeerId) -> bool) -> bool {
        self.uncovered(manifest, takes_part).is_empty()
    }

    /// The parts without a keeper among some members, and those of spans that none of them holds.
    pub(crate) fn uncovered(&self, manifest: &Manifest, takes_part: impl Fn(PeerId) -> bool) -> PartSet {
        let lacks = self.lacks(manifest, &takes_part);
        let (Some(split), Some(parts)) = (&manifest.split, Parts::of(manifest)) else {
            return lacks;
        };
        let spans = (0..split.spans.len()).map(|span| split.parts(parts, span));
        let holds =
            |m: &Member, needs: &PartSet| takes_part(m.peer) && needs.without(&m.keeper.kept).is_empty();
        let open = spans.filter(|needs| !self.members.iter().any(|m| holds(m, needs)));
        open.fold(lacks, |all, needs| all.or(&needs))
    }

    /// Whether a record is of a round that trains.
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

    /// Whom the sums of each part pass among these members, as their positions: first those that learn it, then those that keep
    /// it, both in ring order from a place that is another for each part, so that all have as much to do.
    ///
    /// # Panics
    /// If a part has no keeper among them.
    pub fn chains(&self, parts: Parts, members: &[PeerId]) -> Vec<Vec<usize>> {
        let n = members.len();
        let none = Keeper::default();
        let keeper = |peer: &PeerId| self.position(*peer).map_or(none, |at| self.members[at].keeper);
        let keepers: Vec<Keeper> = members.iter().map(keeper).collect();
        let chain = |part: u16| {
            let first = usize::from(part) * n / parts.count();
            let ring = (first..first + n).map(|at| at % n);
            let learn = ring.clone().filter(|at| keepers[*at].learns.contains(part));
            let keep = ring.filter(|at| keepers[*at].kept.contains(part));
            let chain: Vec<usize> = learn.chain(keep).collect();
            assert!(!chain.is_empty(), "part {part} has a keeper");
            chain
        };
        parts.iter().map(chain).collect()
    }

    /// Whether what a header says of its author's parts can be: it keeps no others than it has kept or learnt or than nobody
    /// keeps.
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
                Some(split) => usize::from(keeps.spans) <= split.spans.len(),
                None => keeps.spans == 0 && !keeps.refuses,
            };
        sound.then_some(()).ok_or(Fault::Keeps)
    }

    /// Whose moments of some part are not those of most that keep it; among equals those of the first in the ring count.
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

    /// Takes what the headers of a record say of parts: whose members keep what from here on, and who leaves.
    /// `next` are those that go on, as if all goodbyes were granted, and newcomers; `can_stay` says who is none of them for
    /// its goodbye alone.
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
        let needed = usize::from(copies.get()).min(rest.len() + others.count());
        let mut keepers = [0usize; MOST_PARTS];
        for part in rest.iter().flat_map(|h| h.keeps.kept.iter()) {
            keepers[usize::from(part)] += 1;
        }
        let enough = |keepers: usize| keepers >= needed || bug;
        // Who may not leave yet stays at its place.
        for header in record.headers.iter().filter(|h| h.leaving) {
            let covered = header
                .keeps
                .kept
                .iter()
                .all(|part| enough(keepers[usize::from(part)]));
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
            let mut kept = header.keeps.kept;
            for part in header.keeps.drops.iter().filter(|_| !header.leaving) {
                if enough(keepers[usize::from(part)] - 1) {
                    keepers[usize::from(part)] -= 1;
                    kept.remove(part);
                }
            }
            member.keeper = Keeper {
                kept,
                learns: header.keeps.learns,
                leaves: header.leaving,
                spans: header.keeps.spans,
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

    /// What a member had better learn and drop: each part is to have as many keepers as the run wants, or as there are, and all
    /// members about as much to keep.
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
        if let Some(split) = &manifest.split {
            return self.suggest_spans((split, parts), &able, own, needed);
        }
        let mut balance = Balance {
            holds: able.iter().map(|m| m.keeper.kept.or(&m.keeper.learns)).collect(),
            parts,
        };
        let mut drops = PartSet::default();
        for part in parts.iter() {
            // Who learns it is not done yet, and is no reason to let go of it.
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
        // What begins anew must not wait for somebody who may never have come in.
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

/// Where the model is split over the members.
impl Head {
    /// The same of spans. Who has none takes the one that fewest have; who has room for more takes what lacks copies; and of
    /// one that more have than the run wants the last lets go: one that has another, or anyone where another lacks copies.
    fn suggest_spans(
        &self,
        (split, parts): (&Split, Parts),
        able: &[&Member],
        own: usize,
        needed: usize,
    ) -> (PartSet, PartSet) {
        let spans: Vec<PartSet> = (0..split.spans.len())
            .map(|span| split.parts(parts, span))
            .collect();
        // Of what nobody keeps any more there is nobody to learn it from.
        let kept = able
            .iter()
            .fold(PartSet::default(), |all, m| all.or(&m.keeper.kept));
        let lost = parts.all().without(&kept).without(&self.untrained);
        let open: Vec<usize> = (0..spans.len())
            .filter(|span| spans[*span].and(&lost).is_empty())
            .collect();
        let of = |m: &&Member| {
            let has = m.keeper.kept.or(&m.keeper.learns);
            let holds = |span: &usize| spans[*span].without(&has).is_empty();
            (0..spans.len()).filter(holds).collect::<BTreeSet<usize>>()
        };
        let mut holds: Vec<BTreeSet<usize>> = able.iter().map(of).collect();
        let before = holds[own].clone();
        let count =
            |holds: &[BTreeSet<usize>], span: usize| holds.iter().filter(|h| h.contains(&span)).count();
        for at in 0..able.len() {
            let least = open.iter().min_by_key(|span| (count(&holds, **span), **span));
            if let Some(span) = least.filter(|_| holds[at].is_empty()) {
                holds[at].insert(*span);
            }
        }
        for span in &open {
            while count(&holds, *span) < needed {
                let room = |at: &usize| holds[*at].len() < usize::from(able[*at].keeper.spans);
                let lacking = (0..able.len()).filter(|at| room(at) && !holds[*at].contains(span));
                let Some(at) = lacking.min_by_key(|at| (holds[*at].len(), *at)) else {
                    break;
                };
                holds[at].insert(*span);
            }
        }
        let least = open.iter().map(|span| count(&holds, *span)).min().unwrap_or(0);
        let mut lets_go = BTreeSet::new();
        for span in 0..spans.len() {
            let holders: Vec<usize> = (0..able.len()).filter(|at| holds[*at].contains(&span)).collect();
            let several = |at: &&usize| holds[**at].len() > 1;
            // Less than the run wants is never let go of.
            let goes = match holders.iter().rev().find(several) {
                _ if holders.len() <= needed => None,
                Some(at) => Some(*at),
                None if least < needed => holders.last().copied(),
                None => None,
            };
            if goes == Some(own) && before.contains(&span) && lets_go.is_empty() {
                lets_go.insert(span);
            }
        }
        let union = |of: &mut dyn Iterator<Item = &usize>| {
            of.fold(PartSet::default(), |all, span| all.or(&spans[*span]))
        };
        let has = able[own].keeper.kept.or(&able[own].keeper.learns);
        let stays = union(&mut holds[own].difference(&lets_go));
        let drops = union(&mut lets_go.iter()).without(&stays);
        (stays.without(&has), drops.and(&able[own].keeper.kept))
    }
}

/// What members hold or will hold, by their places among those that can.
struct Balance {
    holds: Vec<PartSet>,
    parts: Parts,
}

impl Balance {
    fn holders(&self, part: u16) -> usize {
        self.holds.iter().filter(|holds| holds.contains(part)).count()
    }

    /// Who of some holds most, if it holds a part; among equals the first.
    fn fullest(&self, of: impl Iterator<Item = usize>, part: u16) -> Option<usize> {
        let holding = of.filter(|at| self.holds[*at].contains(part));
        holding.min_by_key(|at| (std::cmp::Reverse(self.holds[*at].len()), *at))
    }

    /// Has those that hold least take what lacks holders.
    fn fill(&mut self, needed: usize) {
        let all: Vec<usize> = (0..self.holds.len()).collect();
        for part in self.parts.iter() {
            self.fill_part(part, needed, &all);
        }
    }

    /// Has those of some that hold least take a part until so many of them hold it.
    fn fill_part(&mut self, part: u16, needed: usize, of: &[usize]) {
        for _ in of.iter().filter(|at| self.holds[**at].contains(part)).count()..needed {
            let lacking = of.iter().filter(|at| !self.holds[**at].contains(part));
            let Some(at) = lacking.min_by_key(|at| (self.holds[**at].len(), **at)) else {
                return;
            };
            self.holds[*at].insert(part);
        }
    }

    /// Has those that hold least take parts of those that hold most, until an eighth more is the most that anybody has.
    fn level(&mut self) {
        for _ in 0..MOST_PARTS * self.holds.len() {
            let len = |at: &usize| self.holds[*at].len();
            let all = 0..self.holds.len();
            let least = all.clone().min_by_key(|at| (len(at), *at)).unwrap_or(0);
            let most = all
                .min_by_key(|at| (std::cmp::Reverse(len(at)), *at))
                .unwrap_or(0);
            if len(&most) <= len(&least) + 1 + len(&least) / 8 {
                return;
            }
            let moves = self.holds[most].without(&self.holds[least]);
            let Some(part) = moves.iter().next() else { return };
            self.holds[most].remove(part);
            self.holds[least].insert(part);
        }
    }
}

/// What most say; among equals what was said first.
pub(crate) fn most(said: impl Iterator<Item = u64> + Clone) -> Option<u64> {
    let votes = |digest: u64| said.clone().filter(|other| *other == digest).count();
    said.clone()
        .reduce(|best, other| if votes(other) > votes(best) { other } else { best })
}
