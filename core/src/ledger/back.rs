//! Going back to a saved round, when no member of a split run has the trained values of some part any more, but all
//! parts can be restored as they were some rounds before.
//!
//! Nothing is removed from the ledger. A new record goes back: its headers say that the members have waited long
//! enough for the missing ones, and what each has on its disk. Samples, steps and state are then what they were
//! after an older round, and the training since is repeated. Rounds go on counting, and so do the samples by which
//! lineages are compared.
//!
//! One member cannot make the others go back. A round is remembered only after members have announced, in the round
//! after it, that they save their parts; what it was like follows from the ledger alone. And nobody goes back while
//! each part has a keeper, or before all keepers have waited.

use crate::base::id::Digest;
use crate::ledger::check::Fault;
use crate::ledger::saved::{Offer, POINTS, Point};
use crate::ledger::{Head, Header, Member, Record};
use crate::run::config::{MAX_PEERS, Manifest};
use crate::run::parts::{PartSet, Parts};

impl Head {
    /// Samples counted, without those of rounds that were undone.
    pub fn counted(&self) -> u64 {
        self.samples - self.undone
    }

    /// Trained parts that no member keeps, in a split run.
    pub(crate) fn lost(&self, manifest: &Manifest) -> PartSet {
        match manifest.split {
            Some(_) => self.lacks(manifest, |_| true).without(&self.untrained),
            None => PartSet::default(),
        }
    }

    /// Remembers the state before a record, if some of its members save it and it was trained.
    pub(crate) fn remember(&mut self, record: &Record) {
        let full = |peer| self.is_full(peer);
        let members = record.headers.iter().filter(|h| full(h.peer)).count();
        let says = |h: &&Header| full(h.peer) && h.keeps.saves;
        let says = record.headers.iter().map(|h| &h.content).filter(says).count();
        let is_known = self.points.iter().any(|point| point.stepped == self.stepped);
        if says == 0 || self.steps == 0 || is_known {
            return;
        }
        self.points.push(Point {
            stepped: self.stepped,
            round: self.round,
            steps: self.steps,
            counted: self.counted(),
            skipped: self.skipped,
            cursor: self.cursor,
            holes: self.holes.clone(),
            is_weak: 2 * says < members,
        });
        if self.points.len() > POINTS {
            let weak = self.points.iter().position(|point| point.is_weak);
            self.points.remove(weak.unwrap_or(0));
        }
    }

    /// Takes what a record's headers tell of disks, once its members are those of the next round. Goes back if that
    /// follows.
    pub(crate) fn take_offers(&mut self, record: &Record, manifest: &Manifest) {
        self.offers.clear();
        if self.lost(manifest).is_empty() {
            return;
        }
        let says = |h: &&Header| self.is_full(h.peer) && (h.keeps.waits || !h.keeps.saved.is_empty());
        let offer = |header: &Header| Offer {
            peer: header.peer,
            waits: header.keeps.waits,
            saved: header.keeps.saved.clone(),
        };
        let headers = record.headers.iter().map(|h| &h.content);
        self.offers = headers.filter(says).map(offer).collect();
        if let Some(at) = self.back_to(manifest) {
            self.go_back(at);
        }
    }

    /// The newest remembered round whose parts are all on disks, if all keepers have waited for others.
    fn back_to(&self, manifest: &Manifest) -> Option<usize> {
        let waits = |m: &&Member| {
            self.offers
                .iter()
                .any(|offer| offer.peer == m.peer && offer.waits)
        };
        let full = || self.members.iter().filter(|m| m.is_full());
        let keep = || full().filter(|m| !m.keeper.kept.is_empty());
        // A member without parts has nothing to lose, unless all are like that.
        let have_waited = match keep().count() {
            0 => full().all(|m| waits(&m)),
            _ => keep().all(|m| waits(&m)),
        };
        let parts = Parts::of(manifest).filter(|_| have_waited)?.all();
        let saved = |point: &Point| {
            let saved = self.offers.iter().flat_map(|offer| &offer.saved);
            let saved = saved.filter(|saved| saved.stepped == point.stepped);
            saved.fold(PartSet::default(), |all, saved| all.or(&saved.parts))
        };
        let is_whole = |point: &Point| parts.without(&saved(point)).is_empty();
        // The head's own state needs no going back.
        let older = |point: &Point| point.stepped != self.stepped;
        self.points
            .iter()
            .rposition(|point| older(point) && is_whole(point))
    }

    /// Restores the head after a remembered round. Members that have the parts of then on their disks bring them.
    fn go_back(&mut self, at: usize) {
        self.points.truncate(at + 1);
        let point = &self.points[at];
        self.undone = self.samples - point.counted;
        (self.steps, self.skipped) = (point.steps, point.skipped);
        (self.cursor, self.holes) = (point.cursor, point.holes.clone());
        self.stepped = point.stepped;
        self.offers.clear();
        for member in &mut self.members {
            (member.keeper.kept, member.keeper.learns) = Default::default();
        }
    }

    /// The round that the last record went back to, if it did. `stepped` is the lineage of the state before it.
    pub fn went_back(&self, stepped: Digest) -> Option<&Point> {
        let back = self.stepped != stepped && self.stepped != self.chain;
        self.points.last().filter(|_| back)
    }

    /// Checks what a header claims of its author's disk.
    pub(crate) fn check_saved(&self, header: &Header, manifest: &Manifest) -> Result<(), Fault> {
        let keeps = &header.keeps;
        let all = Parts::of(manifest).map(|parts| parts.all()).unwrap_or_default();
        let says = keeps.waits || !keeps.saved.is_empty();
        let remembers = |stepped| self.points.iter().any(|point| point.stepped == stepped);
        let sound = (manifest.split.is_some() || !keeps.saves)
            && (!says || !self.lost(manifest).is_empty())
            && keeps.saved.is_sorted_by(|a, b| a.stepped.0 < b.stepped.0)
            && keeps.saved.iter().all(|saved| {
                let parts = !saved.parts.is_empty() && saved.parts.without(&all).is_empty();
                parts && remembers(saved.stepped)
            });
        sound.then_some(()).ok_or(Fault::Keeps)
    }

    /// Whether its saved rounds and offers are possible.
    pub(crate) fn has_sound_points(&self, manifest: &Manifest) -> bool {
        let most = |point: &Point| {
            let open = point.holes.iter().try_fold(0u64, |all, hole| {
                all.checked_add(hole.end.checked_sub(hole.start)?)
            })?;
            point.counted.checked_add(point.skipped)?.checked_add(open)
        };
        let sound = |point: &Point| {
            most(point) == Some(point.cursor)
                && point.counted <= self.samples
                && point.steps <= point.round
                && point.round <= self.round
                && point.cursor <= manifest.target.get()
        };
        let is_empty = self.points.is_empty() && self.offers.is_empty() && self.undone == 0;
        let few = self.points.len() <= POINTS
            && self.offers.len() <= MAX_PEERS
            && self.offers.iter().all(|offer| offer.saved.len() <= POINTS);
        (manifest.split.is_some() || is_empty)
            && few
            && self.undone <= self.samples
            && self.points.iter().all(sound)
    }
}

#[cfg(test)]
mod tests;
