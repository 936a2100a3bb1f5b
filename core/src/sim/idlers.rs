//! Guests that compute nothing: they send false values with likely losses, and each full member that can find that out
//! must do so.

use super::device;
use super::lie::Lie;
use super::world::{What, World};
use crate::base::id::{PeerId, Round};
use crate::peer::Commit;
use crate::peer::device::Asked;
use crate::peer::spot;
use crate::run::config::Topology;
use crate::run::shuffle;
use std::collections::BTreeSet;
use std::ops::Range;

/// No member takes false values of a guest in more rounds.
const UNFOUND: u32 = 60;
/// Only rounds count in which the member could compute the guest's share within this many.
const SOON: u64 = 16;
/// Elements of a vector of which noise is unlike the true values wherever it is cut, among a dozen members. Of 40 elements
/// in a chunk, every fifth noise passes a check by chance.
const LONG: usize = 2_000;

impl World {
    /// Whether a liar's values are false now.
    pub(super) fn is_idler(&self, i: usize) -> bool {
        let lies = self.plan.liars.as_ref().map_or(&[][..], |liars| &liars.lies);
        let now = self.lies.since.is_some() && self.healed_at.is_none();
        now && self.nodes[i].is_liar() && lies.contains(&Lie::Work)
    }

    /// Replaces the values that an idler has computed.
    pub(super) fn idle(&mut self, i: usize, gradient: &mut [f32]) {
        let largest = gradient
            .iter()
            .fold(0.0, |most: f32, value| most.max(value.abs()));
        // Few elements of noise may be like the true ones.
        let ways = if gradient.len() >= LONG { 3 } else { 2 };
        let way = self.nodes[i].id.0[0] % ways;
        let Some(rng) = self.tongue_of(i) else { return };
        for value in gradient {
            *value = match way {
                0 => 0.0,
                1 => -*value,
                _ => largest * (2.0 * rng.unit() as f32 - 1.0),
            };
        }
    }

    /// Whether a peer's device is to check the work of a guest.
    pub(super) fn is_checking(&self, i: usize) -> bool {
        let asked = self.nodes[i]
            .peer
            .as_ref()
            .and_then(|peer| peer.shared.device.asked);
        matches!(asked, Some(Asked::Check { .. }))
    }

    /// A peer's device computes a part of a guest's share.
    pub(super) fn compute_check(
        &mut self,
        (i, doubtful): (usize, bool),
        round: Round,
        positions: &[Range<u64>],
        params: &[f32],
    ) {
        self.look_at(i);
        if let Err(why) = self
            .ledger
            .check_spot((&self.nodes[i], doubtful), positions, params)
        {
            self.fail(why);
        }
        let weight = shuffle::count(positions);
        let (gradient, loss) = device::contribution(&self.manifest.layout, params, positions, weight);
        let node = &mut self.nodes[i];
        let took = 200 + (weight as f64 / node.speed * node.slow * 1e6) as u64;
        node.busy_until = node.busy_until.max(self.now) + took;
        let (at, life) = (node.busy_until, node.life);
        let computed = What::Computed {
            node: i,
            life,
            round,
            gradient,
            weight: weight as u32,
            loss,
            took,
            late: false,
        };
        self.schedule(at, computed);
    }

    /// An honest peer commits: it finds each guest out that gives false values in many rounds.
    pub(super) fn check_work(&mut self, i: usize, commit: &Commit) {
        let (node, manifest) = (&self.nodes[i], &self.manifest);
        let headers = &commit.record.headers;
        let of_members: BTreeSet<PeerId> = headers.iter().map(|h| h.peer).collect();
        self.lies
            .unfound
            .retain(|(by, guest), _| *by != i || of_members.contains(guest));
        let is_plain = manifest.local.is_none() && manifest.split.is_none() && !manifest.feedback();
        let before = node.stands.and_then(|(chain, _)| self.ledger.topology(chain));
        let me = headers.iter().position(|h| h.peer == node.id);
        let (Some(topology), Some(me), true, false) = (before, me, is_plain, node.is_guest) else {
            return;
        };
        let is_guest = |peer: &PeerId| self.by_id.get(peer).is_some_and(|j| self.nodes[*j].is_guest);
        let (guests, full): (Vec<PeerId>, Vec<PeerId>) = headers.iter().map(|h| h.peer).partition(is_guest);
        let me_of_full = full.iter().position(|peer| *peer == node.id);
        for header in headers {
            let is_idler = self.by_id.get(&header.peer).is_some_and(|j| self.is_idler(*j));
            let number = guests.iter().position(|peer| *peer == header.peer);
            // In a shorter vector some chunks are empty.
            let comes = match topology {
                Topology::Direct => manifest.layout.len >= full.len() * manifest.moments.grain(),
                Topology::Ring => number.map(|number| number % full.len()) == me_of_full,
            };
            let soon = SOON * spot::part(headers[me].weight.into(), false);
            let can_check = (1..=soon).contains(&header.weight.into());
            if !(is_idler && comes && can_check) {
                continue;
            }
            let count = self.lies.unfound.entry((i, header.peer)).or_default();
            *count += 1;
            if *count > UNFOUND {
                let why = format!(
                    "{} does not find the work of {} false",
                    node.name,
                    self.name(header.peer)
                );
                return self.fail(why);
            }
        }
    }
}
