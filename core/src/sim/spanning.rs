//! The conditions on split runs: a round is committed only if no member of it can be left behind, and parts are
//! lost only with the peers that had them.

use super::kept::needs_of_span;
use super::node::{Node, Spoil};
use super::steps;
use super::world::{What, World};
use crate::base::id::{Digest, PeerId};
use crate::ledger::Head;
use crate::peer::interface::SpanWork;
use crate::peer::{Commit, Exit, Input, Output, Peer, Phase};
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::run::room::Room;
use crate::run::shuffle;
use crate::wire::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// Whether a peer holds a span, and has room for it.
fn holds_span(peer: &Peer, manifest: &Manifest, span: usize) -> bool {
    let kept = peer.shared.lineage.state.kept.set();
    let cut = &peer.head().spans;
    super::kept::holds_span(&kept, peer.shared.settings.room(manifest), (manifest, cut), span)
}

impl World {
    /// A device gets one pass of a microbatch.
    pub(super) fn compute_span(&mut self, i: usize, mut work: SpanWork) {
        let split = self.plan.manifest.split.clone().expect("the model is split");
        let room = self.room(i);
        self.stats.inner += u64::from(room.inner);
        if !room.reads(work.span, split.spans.len()) {
            let why = format!("{} has no data, and is to compute an end", self.nodes[i].name);
            return self.fail(why);
        }
        if let Some(peer) = &self.nodes[i].peer {
            self.stats.recut += u64::from(peer.head().spans != split.spans);
            let needs = needs_of_span(&self.plan.manifest, &peer.head().spans, work.span);
            if needs.len() > room.parts.into() {
                let why = format!("{} has no room for span {}", self.nodes[i].name, work.span);
                return self.fail(why);
            }
        }
        let samples = shuffle::count(&work.pass.positions);
        let wobble = 1.0 + self.plan.jitter * (2.0 * self.work.unit() - 1.0);
        let node = &mut self.nodes[i];
        let of_all = work.steps.len() as f64 / split.steps.len() as f64;
        let share = if work.pass.back { 0.7 } else { 0.3 } * of_all;
        let took = 50 + (samples as f64 * share / node.speed * node.slow * wobble * 1e6) as u64;
        let start = node.busy_until.max(self.now);
        node.busy_until = start + took;
        let at = node.busy_until;
        if let Some(weights) = work.pass.weights.take() {
            node.weights.insert(work.span, weights);
        }
        if samples == 0 {
            self.stats.ahead += 1;
            let (life, done) = (node.life, Box::default());
            return self.schedule(at, What::Passed { node: i, life, done });
        }
        let Some(weights) = node.weights.get(&work.span) else {
            return self.fail(format!("{} computes without weights", self.nodes[i].name));
        };
        let mut done = steps::compute(&split, work.steps.clone(), &work.pass, weights);
        done.compute = Duration::from_micros(took);
        if node.spoil.take() == Some(Spoil::NotFinite) {
            let values = if done.output.is_empty() {
                &mut done.sum
            } else {
                &mut done.output
            };
            if let Some(value) = values.first_mut() {
                *value = f32::NAN;
            }
        }
        let life = node.life;
        self.say_passed(i, &mut done);
        let done = Box::new(done);
        self.schedule(at, What::Passed { node: i, life, done });
    }

    /// A member that commits a round of a split run knows that all others in it hold the sums of their parts.
    /// Members that have restarted since do not count.
    pub(super) fn check_all_hold(&mut self, i: usize, commit: &Commit) {
        let manifest = &self.plan.manifest;
        // A member that needs the norm of all sums may lack a part of it when it is cut off.
        let counts = commit.record.weight() > 0 && manifest.split.is_some();
        // A member that a liar tells of a commit cannot know.
        let is_misled = self.plan.liars.is_some() && self.nodes[i].is_told;
        if !counts || is_misled {
            return;
        }
        let knows_all = manifest.clip.is_none();
        let me = &self.nodes[i];
        let stepped = self.nodes[i].peer.as_ref().map(|peer| peer.head().stepped);
        // A member that is not suspected has said that it can commit, or was told of the commit by another. If this
        // peer reaches nobody, nobody hears of its latest suspects.
        let reaches = |id| me.peer.as_ref().is_some_and(|peer| peer.shared.links.is_up(id));
        let trusted = |node: &Node| !me.is_told && !me.suspects.contains(&node.id) && reaches(node.id);
        let holds = |node: &Node, peer: &Peer| {
            let mut pending = peer.shared.keeping.pending.iter();
            let waits = pending.any(|round| Some(round.stepped) == stepped);
            // A peer that left the attempt was excluded by others that have given it up, for example in a
            // partition.
            let is_in = match &peer.phase {
                Phase::Member(member) if member.view.key == commit.view => {
                    let holds = member.reduce.holds_sums() || !knows_all;
                    holds && (member.reduce.has_said_held() || !trusted(node))
                }
                _ => true,
            };
            waits || is_in || peer.shared.lineage.state.kept.set().is_empty()
        };
        let lacks = |node: &&Node| {
            let is_other =
                node.is_liar() || node.life > 1 || node.id == self.nodes[i].id || node.exit.is_some();
            !is_other && node.peer.as_ref().is_some_and(|peer| !holds(node, peer))
        };
        let of = |node: &&Node| commit.record.headers.iter().any(|h| h.peer == node.id);
        let behind = self
            .nodes
            .iter()
            .filter(of)
            .find(lacks)
            .map(|node| node.name.clone());
        if let Some(behind) = behind {
            let name = &self.nodes[i].name;
            self.fail(format!(
                "{name} commits round {}, of which {behind} does not hold its sums, or has not said so",
                commit.record.round
            ));
        }
    }

    /// In a split run, a peer's suspects and reports before an input.
    pub(super) fn note_stop(&mut self, i: usize, input: &Input) {
        if self.plan.manifest.split.is_none() {
            return;
        }
        let Some(Phase::Member(member)) = self.nodes[i].peer.as_ref().map(|peer| &peer.phase) else {
            return;
        };
        let flush = member.agreement.flush();
        let suspects = flush.map(|flush| flush.suspects.clone()).unwrap_or_default();
        let is_commit = |message: &Message| matches!(message, Message::Committed { .. });
        let tells = |message: &Message| match message {
            Message::Relay { frame, .. } => {
                Message::decode(frame.clone()).is_ok_and(|passed| is_commit(&passed))
            }
            message => is_commit(message),
        };
        let tells = matches!(input, Input::Message { message, .. } if tells(message));
        // Once it has stopped, nobody that it cannot reach hears of further suspects.
        let is_told = tells || member.agreement.told().is_some() || member.agreement.flush().is_some();
        (self.nodes[i].suspects, self.nodes[i].is_told) = (suspects, is_told);
    }

    /// Its suspects since then.
    pub(super) fn note_flushes(&mut self, i: usize, outputs: &[Output]) {
        for output in outputs {
            if let Output::Send { message, .. } = output
                && let Message::Flush { suspects, .. } = message
            {
                self.nodes[i].suspects.extend(suspects);
            }
        }
    }

    /// Whether no peer has the trained values of some span any more.
    pub(super) fn are_spans_gone(&mut self) -> bool {
        let Some(parts) = Parts::of(&self.plan.manifest).filter(|_| self.plan.manifest.split.is_some())
        else {
            return false;
        };
        // A liar need not come back with parts that only it has: it may believe its own lie.
        let is_away = |n: &Node| n.is_liar() && (!n.is_member() || self.is_outlaw(n.id));
        let alive = self.nodes.iter().filter(|n| !is_away(n));
        let alive: Vec<&Peer> = alive.filter_map(|n| n.peer.as_deref()).collect();
        if self.starting > 0 || alive.is_empty() {
            return false;
        }
        let kept_at = |stepped, peer: &Peer| {
            let mut pending = peer.shared.keeping.pending.iter();
            let waits = pending.any(|round| round.stepped == stepped);
            // A member that can commit a round is about to.
            let is_about = matches!(&peer.phase, Phase::Member(member) if member.reduce.has_said_held());
            let kept = &peer.shared.lineage.state.kept;
            match kept.stepped == stepped || waits || is_about {
                true => kept.set(),
                false => PartSet::default(),
            }
        };
        let whole = |head: &Head| {
            let all = alive.iter().map(|peer| kept_at(head.stepped, peer));
            let all = all.fold(head.untrained, |all, kept| all.or(&kept));
            parts.all().without(&all).is_empty()
        };
        let on_disks = |head: &Head| {
            head.points.iter().any(|point| {
                let all = alive.iter().flat_map(|peer| &peer.shared.saved);
                let all = all.filter(|saved| saved.stepped == point.stepped);
                let all = all.fold(PartSet::default(), |all, saved| all.or(&saved.parts));
                parts.all().without(&all).is_empty()
            })
        };
        if alive
            .iter()
            .any(|peer| whole(peer.head()) || on_disks(peer.head()))
        {
            return false;
        }
        let died = self.nodes.iter().any(|n| n.life > 1 || n.peer.is_none());
        if !died && self.plan.liars.is_none() && !self.ledger.has_forks() && self.plan.manifest.clip.is_none()
        {
            let why = format!("spans are lost though nobody was: {}", self.situation());
            self.fail(why);
        }
        true
    }

    /// In a split run, a peer that has found changed parts drops them, unless nobody else may have them.
    pub(super) fn note_whole(&mut self, i: usize) {
        if self.plan.manifest.split.is_none() {
            return;
        }
        let node = &mut self.nodes[i];
        let kept = node.peer.as_ref().map(|peer| &peer.shared.lineage.state.kept);
        node.flipped &= kept.is_some_and(|kept| !kept.damaged(&kept.set()).is_empty());
    }

    /// Whether some peer has cut another off as a liar.
    fn is_outlaw(&self, peer: PeerId) -> bool {
        let mut honest = self.honest().filter_map(|n| n.peer.as_ref());
        self.is_liar(peer) && honest.any(|p| p.shared.outlaws.contains(peer))
    }

    /// In a split run, whether the honest peers alone hold all of it, and have room for it. A liar that holds some
    /// can let them wait.
    pub(super) fn hold_all_honestly(&self) -> bool {
        let manifest = &self.plan.manifest;
        let Some(split) = &manifest.split else { return true };
        let honest: Vec<&Peer> = self.honest().filter_map(|n| n.peer.as_deref()).collect();
        (0..split.spans.len()).all(|span| honest.iter().any(|peer| holds_span(peer, manifest, span)))
    }

    /// In a split run, whether the honest peers of one lineage hold all of it, and have room for it. In another
    /// lineage a liar may hold the rest, with peers that it alone has admitted.
    pub(super) fn hold_all_in_one_lineage(&self) -> bool {
        let manifest = &self.plan.manifest;
        let Some(split) = &manifest.split else { return true };
        let honest: Vec<&Peer> = self.honest().filter_map(|n| n.peer.as_deref()).collect();
        let in_all = |chain: Digest| {
            let here = || honest.iter().filter(|peer| peer.head().chain == chain);
            (0..split.spans.len()).all(|span| here().any(|peer| holds_span(peer, manifest, span)))
        };
        honest.iter().any(|peer| in_all(peer.head().chain))
    }

    /// Checks the parts of honest members at the end: equal at all, and as announced.
    pub(super) fn check_parts_at_end(&mut self) {
        let mut kept: BTreeMap<u16, (u64, &str)> = BTreeMap::new();
        let finished = self.nodes.iter().filter(|n| n.exit == Some(Exit::Finished));
        for node in finished.filter(|n| !n.is_liar() && !n.flipped && !n.is_late) {
            for (part, digest) in &node.kept {
                let first = *kept.entry(*part).or_insert((*digest, &node.name));
                if first.0 != *digest {
                    let why = format!("{} and {} end with another part {part}", first.1, node.name);
                    return self.fail(why);
                }
            }
        }
    }

    /// Notes the parts of a peer that is done, if it has announced that it keeps them.
    pub(super) fn note_kept(&mut self, i: usize) {
        let Some(peer) = self.nodes[i].peer.as_ref() else {
            return;
        };
        let kept = &peer.state().kept;
        let said = kept.set().without(&peer.shared.keeping.unproven);
        self.nodes[i].kept = said.iter().zip(kept.digests(&said)).collect();
    }

    /// Whether the living peers have room for all spans, and for both ends.
    pub(super) fn have_room(&self) -> bool {
        let Some(split) = &self.plan.manifest.split else {
            return true;
        };
        let alive = (0..self.nodes.len()).filter(|i| {
            let node = &self.nodes[*i];
            node.is_alive() && !node.is_guest && !node.leaving && !self.is_outlaw(node.id)
        });
        let rooms: Vec<Room> = alive.map(|i| self.room(i)).collect();
        let most = split.spans.len();
        let room = |room: &Room| usize::from(room.spans).min(if room.inner { most - 2 } else { most });
        let at_ends = rooms.iter().filter(|room| !room.inner);
        let at_ends: usize = at_ends.map(|room| usize::from(room.spans).min(2)).sum();
        rooms.iter().map(room).sum::<usize>() >= most && at_ends >= most.min(2)
    }
}
