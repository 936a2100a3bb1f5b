//! The conditions on a round as its member commits it.

use crate::base::id::PeerId;
use crate::peer::interface::Commit;
use crate::sim::world::{Stay, World};

impl World {
    /// One of two full members never steps a state that has changed by itself, since nobody else could tell.
    pub(super) fn check_damage(&mut self, i: usize, commit: &Commit) {
        let record = &commit.record;
        let changed = record.weight() > 0;
        let node = &self.nodes[i];
        let mut own = record.headers.iter().filter(|h| h.peer == node.id);
        // A lone member may have accepted the changed state since then.
        let is_hidden = own.any(|h| changed && Some(h.digest) == node.damage);
        let before = node
            .stands
            .and_then(|(chain, _)| self.ledger.full_members_before(chain));
        if is_hidden && before == Some(2) {
            let name = &self.nodes[i].name;
            self.fail(format!(
                "{name} steps a state that it could have known to be damaged"
            ));
        }
    }

    /// Without faults every round succeeds at once, and nobody waits for a newcomer.
    pub(super) fn check_pace(&mut self, i: usize, commit: &Commit) {
        if !self.plan.is_calm() {
            return;
        }
        let (name, round) = (&self.nodes[i].name, commit.record.round);
        // Over a slow line, a newcomer takes a while to hear of the previous round, and may be taken for lost.
        let is_first = |peer| {
            let author = self.nodes.iter().find(|node| node.id == peer);
            author.is_some_and(|node| node.commits == 0)
        };
        let enters = commit.record.headers.iter().any(|h| is_first(h.peer));
        if commit.record.attempt > 0 && !enters {
            return self.fail(format!(
                "round {round} took a second attempt though nothing went wrong"
            ));
        }
        // In a split run, a round without samples waits for a member with something to announce.
        let split = self.plan.manifest.split.is_some();
        let trains =
            self.plan.manifest.trains(commit.record.headers.len()) && !(split && commit.record.weight() == 0);
        if self.nodes[i].commits == 0 || !trains {
            return;
        }
        let n = commit.record.headers.len() as f64;
        let vector = 4.0 * self.plan.manifest.layout.len as f64 + 4000.0;
        // The slowest path that can be drawn, there and back for each hop.
        let hop_us = 3.75 * 1.25 * self.plan.latency_us
            + vector * self.plan.slow_line / (0.5 * self.plan.rate_bytes_per_s) * 1e6;
        // A device that is too slow for its share begins the next one late.
        let last_at = self.nodes[i].last_commit_at;
        let late_us = |peer| {
            let author = self.nodes.iter().find(|node| node.id == peer);
            let asked_at = author.and_then(|node| node.asked_at.get(&round));
            asked_at.map_or(0, |at| at.saturating_sub(last_at))
        };
        let headers = commit.record.headers.iter();
        let done_us = headers.map(|h| late_us(h.peer) + h.compute_us);
        let compute_us = done_us.max().unwrap_or(0);
        let most_us = match &self.plan.manifest.split {
            None => compute_us as f64 + 4.0 * n * hop_us + 100_000.0,
            // At worst one after the other, with a round trip between any two spans for each microbatch.
            Some(split) => {
                let all: u64 = commit.record.headers.iter().map(|h| h.compute_us).sum();
                let batch = f64::from(self.plan.manifest.batch.get());
                let ways = 2.0 * batch * split.spans.len() as f64 + 4.0 * n;
                all as f64 + ways * hop_us + 100_000.0
            }
        };
        let took_us = (self.now - last_at) as f64;
        if took_us > most_us {
            let (took, most) = (took_us / 1e6, most_us / 1e6);
            self.fail(format!(
                "{name} waited {took:.3} s for round {round}, which needs at most {most:.3} s"
            ));
        }
    }

    /// Without faults, a member that joins costs at most a tenth of the samples a second, without its trials. This
    /// compares what the founder sees of rounds with the same members with those before somebody came.
    pub(super) fn check_gain(&mut self, i: usize, commit: &Commit) {
        let manifest = &self.plan.manifest;
        if i != 0 || !self.plan.is_calm() || !manifest.tries_newcomers() {
            return;
        }
        let members: Vec<PeerId> = commit.record.headers.iter().map(|h| h.peer).collect();
        let now = self.now;
        if self.stays.last().is_none_or(|stay| stay.members != members) {
            let (samples, rounds) = (0, 0);
            self.stays.push(Stay {
                members,
                since: now,
                until: now,
                samples,
                rounds,
            });
            return;
        }
        let stay = self.stays.last_mut().expect("there is one");
        (stay.until, stay.rounds) = (now, stay.rounds + 1);
        stay.samples += commit.record.weight();
        let [.., before, here] = &self.stays[..] else {
            return;
        };
        let joined = before.members.iter().all(|m| here.members.contains(m));
        // Devices' times differ by up to a third from one round to the next.
        let is_slower = here.rate() < 0.7 * before.rate();
        if joined && before.rounds >= TELLING && here.rounds == LONG && is_slower {
            let rates = format!("{:.1} samples a second, {:.1} before", here.rate(), before.rate());
            self.fail(format!("a member is kept with which the run is slower: {rates}"));
        }
    }
}

/// Rounds that say how fast the run is, and such as no trial has.
const TELLING: u32 = 6;
const LONG: u32 = 25;
