//! The conditions on all peers, at every moment and at the end.

pub(super) mod duties;
mod rounds;

use super::kind::Kind;
use super::ledger::Fate;
use super::node::Node;
use super::world::{World, tell};
use crate::base::id::Digest;
use crate::ledger::decision::Decided;
use crate::peer::{Change, Commit, Event, Exit, OutcastReason, Peer, Phase, Reason};

/// Most vectors that a peer may hold in queues and early pieces, besides its state: its own round, one that is
/// early, one to repair others, and a window for each of its followers.
const MOST_VECTORS: usize = 16;
/// Bytes that it may hold besides. The table in `wire/message.rs` allows 96 KiB for hashes of relayed frames, 110 KiB
/// for names and their standings, 40 KiB for followers and 30 KiB for contacts. Early pieces may take 128 KiB, and the
/// numbers of some twenty authors of relayed frames 4 KiB each.
const MOST_BOOKS: usize = 484 << 10;
/// Bytes with each of these vectors besides its elements: headers, which are larger if members keep parts.
const AROUND: [usize; 2] = [4 << 10, 5 << 10];
/// How long after the faults lineages may still not have met, because of dials that just failed, links not yet
/// known to be dead, or a slow peer's round. Peers that finish before that may finish apart.
const GRACE_US: u64 = 60_000_000;
/// How long after the faults a peer may take to become a member again, in addition to some rounds.
const PATIENCE_US: u64 = 150_000_000;

impl World {
    /// A peer has emitted an event.
    pub(super) fn on_event(&mut self, i: usize, event: Event) {
        if self.nodes[i].is_liar() {
            return match event {
                Event::Committed(commit) => self.on_liars_commit(i, &commit),
                Event::Outcast { .. } => self.nodes[i].stands = None,
                _ => {}
            };
        }
        if self.plan.liars.is_some() {
            self.on_blame(i, &event);
        }
        match event {
            Event::Committed(commit) => self.on_commit(i, *commit),
            Event::Outcast {
                reason: OutcastReason::Behind,
                ..
            } if !self.nodes[i].has_entered => {
                let name = &self.nodes[i].name;
                self.fail(format!("{name} lacks moments that it should keep"));
            }
            Event::Outcast { reason, .. } => {
                self.stats.outcasts += 1;
                self.lies.unfound.retain(|(by, _), _| *by != i);
                self.nodes[i].damage = None;
                self.nodes[i].stands = None;
                if reason == OutcastReason::Damaged {
                    self.note_whole(i);
                }
                let here = self.nodes[i].peer.as_ref().map(|peer| peer.head().chain);
                self.nodes[i].left.extend(here);
                self.nodes[i].came_from = here;
                self.ledger.is_gone(self.nodes[i].id);
                if self.plan.is_calm() && reason != OutcastReason::StandsAside {
                    self.fail(format!(
                        "{} is cast out though nothing went wrong: {reason}",
                        self.nodes[i].name
                    ));
                }
            }
            Event::Lost { samples } => self.check_lost(i, samples),
            Event::Entered => {
                self.nodes[i].came_from = None;
                self.nodes[i].heard.comes_in();
                // Others may have committed a round with it, after which it should keep parts that it does not
                // have.
                self.nodes[i].has_entered = true;
                self.note_whole(i);
                let node = &self.nodes[i];
                let again = |peer: &Peer| node.left.contains(&peer.head().chain);
                // Attempts that were decided are in no round any more.
                if node
                    .peer
                    .as_ref()
                    .is_some_and(|peer| again(peer) && !peer.head().finished(peer.manifest()))
                {
                    self.fail(format!("{} enters a round that it was excluded from", node.name));
                }
            }
            Event::WentBack { .. } => self.stats.backs += 1,
            Event::Shift(_) => self.stats.shifts += 1,
            Event::Aside(_) => self.stats.asides += 1,
            Event::Outlawed { peer, .. } if !self.is_liar(peer) => {
                let (me, it) = (&self.nodes[i].name, self.name(peer));
                self.fail(format!("{me} cuts {it} off, though nobody lies"));
            }
            Event::Member {
                peer,
                reason: reason @ (Reason::Header(_) | Reason::FalseCommit | Reason::FalseDecision),
                ..
            } if !self.is_liar(peer) => {
                let (me, it) = (&self.nodes[i].name, self.name(peer));
                self.fail(format!(
                    "{me} refuses what {it} said, though nobody lies: {reason}"
                ));
            }
            Event::Member {
                peer,
                change: Change::Failed | Change::Evicted,
                reason,
            } if self.plan.is_calm() => {
                let (me, it) = (&self.nodes[i].name, self.name(peer));
                self.fail(format!("{me} suspects {it} though nothing went wrong: {reason}"));
            }
            _ => {}
        }
    }

    /// A peer says how many of the samples that it had counted are lost. It may be wrong about one round, and it may say less:
    /// it counts from the last place that it remembers.
    fn check_lost(&mut self, i: usize, samples: u64) {
        let node = &mut self.nodes[i];
        let (from, peer) = (node.came_from.take(), node.peer.as_ref());
        let (Some(from), Some(peer), None) = (from, peer, &self.plan.liars) else {
            return;
        };
        let one_round = self.plan.manifest.most_samples();
        if let Some(lost) = self.ledger.counted_apart(from, peer.head().chain)
            && samples > lost + one_round
        {
            let name = &self.nodes[i].name;
            self.fail(format!(
                "{name} says that {samples} samples are lost, and {lost} are"
            ));
        }
    }

    /// Adds a commit to the ledger of all lineages. Returns the lineage after it.
    fn enter(&mut self, i: usize, commit: &Commit) -> Result<Digest, String> {
        let node = &self.nodes[i];
        let before = match (node.stands, &node.peer) {
            // A liar led it into a lineage, from which it continued at once: nobody can see what lies between.
            (Some((chain, _)), Some(peer)) if node.misled && peer.head().chain == chain => {
                return Ok(chain);
            }
            (Some((chain, _)), _) => chain,
            (None, Some(peer)) => match self.ledger.begin_with(peer, commit) {
                Err(_) if node.misled => {
                    self.ledger.begin_misled(node, peer);
                    return Ok(peer.head().chain);
                }
                before => before?,
            },
            (None, None) => return Err("it comes out of nowhere".into()),
        };
        let spoilt = self.lies.spoilt.contains(&commit.view);
        self.ledger.commit(before, node, commit, spoilt)
    }

    /// Others may follow a liar to where it stands, so a commit that its code makes is a lineage too.
    fn on_liars_commit(&mut self, i: usize, commit: &Commit) {
        let entered = self.enter(i, commit);
        if let Err(why) = &entered {
            tell!(self, "LIE {} commits: {why}", self.nodes[i].name);
        }
        let chain = entered.ok();
        self.nodes[i].stands = chain.map(|chain| (chain, commit.digest));
        self.nodes[i].last_commit_at = self.now;
    }

    fn on_commit(&mut self, i: usize, commit: Commit) {
        self.check_work(i, &commit);
        self.ledger.is_tainted |= self.nodes[i].peer.as_deref().is_some_and(has_taken);
        let sound = match self.plan.liars {
            Some(_) => self.check_lies(i, &commit),
            None => Ok(()),
        };
        match sound.and_then(|()| self.enter(i, &commit)) {
            Ok(chain) => self.nodes[i].stands = Some((chain, commit.digest)),
            Err(why) => {
                let name = &self.nodes[i].name;
                return self.fail(format!("{name} commits round {}: {why}", commit.record.round));
            }
        }
        self.check_damage(i, &commit);
        self.check_all_hold(i, &commit);
        let id = self.nodes[i].id;
        if let Err(why) = self.ledger.decide(id, commit.view, Fate::Committed) {
            return self.fail(format!("{} commits: {why}", self.nodes[i].name));
        }
        self.stats.retried += u64::from(commit.record.attempt > 0);
        self.check_pace(i, &commit);
        self.check_held_up(i, &commit);
        self.check_gain(i, &commit);
        self.check_revocations(i, &commit.record);
        self.nodes[i].commits += 1;
        self.nodes[i].has_entered = false;
        self.save(i, &commit);
        self.nodes[i].last_commit_at = self.now;
    }

    /// After every input: checks that the peer stands where it should, within its bounds.
    pub(super) fn look_at(&mut self, i: usize) {
        let node = &self.nodes[i];
        let Some(peer) = &node.peer else { return };
        let around = AROUND[usize::from(self.plan.manifest.copies.is_some())];
        let vector = 4 * self.plan.manifest.layout.len + around;
        self.ledger.is_tainted |= has_taken(peer);
        if node.is_liar() {
            if stands(peer).is_some() {
                let _ = self.ledger.stand(node, peer);
            }
            self.nodes[i].stands = stands(peer);
            return;
        }
        // Others have to go on without it, or are trying somebody else out, or it stands aside until it is tried again.
        let is_aside = matches!(&peer.phase, Phase::Newcomer(newcomer) if newcomer.rests(&peer.shared));
        let waits_at = match is_aside || peer.follows() && !peer.head().admits(node.id, peer.manifest()) {
            true => self.now,
            false => node.waits_at,
        };
        let buffered = peer.buffered_bytes();
        if buffered > MOST_VECTORS * vector + MOST_BOOKS {
            return self.fail(format!("{} has buffered {buffered} bytes", node.name));
        }
        let here = match &peer.phase {
            Phase::Member(w) => w.agreement.decided(),
            _ => &[],
        };
        let last = peer
            .shared
            .lineage
            .last
            .as_ref()
            .map_or(&[][..], |last| &last.decided);
        // A member that names different suspects to different members can make two parts decide differently.
        let honest = |decided: &&Decided| !decided.members.iter().any(|m| self.ledger.liars.contains(m));
        let decided: Vec<Decided> = last.iter().chain(here).filter(honest).cloned().collect();
        for decided in &decided {
            let fate = Fate::Aborted(decided.suspects.clone());
            if let Err(why) = self.ledger.decide(node.id, decided.view, fate) {
                return self.fail(format!("{} aborts: {why}", node.name));
            }
        }
        let stands = stands(peer);
        let member = stands.is_some();
        // The state that a liar gave it turned out to be right.
        let sound = member && node.misled && self.ledger.holds(peer);
        if member
            && (node.stands != stands || node.last_commit_at == self.now)
            && let Err(why) = self.ledger.stand(node, peer)
        {
            return self.fail(format!("{} after round {}: {why}", node.name, peer.head().round));
        }
        self.nodes[i].waits_at = waits_at;
        self.nodes[i].stands = stands;
        self.nodes[i].was_member |= member;
        self.nodes[i].misled &= !sound;
    }

    /// A peer says that it is done.
    pub(super) fn check_exit(&mut self, i: usize) {
        let node = &self.nodes[i];
        let (Some(peer), Some(exit), false) = (&node.peer, &node.exit, node.is_liar()) else {
            return;
        };
        let head = peer.head();
        let wrong = match exit {
            Exit::Finished => {
                if let Err(why) = self.ledger.stand(node, peer) {
                    return self.fail(format!("{} finished: {why}", node.name));
                }
                let done = self.ledger.is_finished(head.chain);
                (!done).then_some("finished, but not every sample is counted or given up")
            }
            Exit::Left => (!node.leaving).then_some("left without being asked"),
            Exit::NotFinite => {
                // Values that can be summed but are far from what any device computes ruin any model.
                let is_split = self.plan.manifest.split.is_some();
                let ruined = !self.lies.spoilt.is_empty() || is_split && self.ledger.is_unkept;
                let spoilt = self.plan.faults.iter().any(|(k, _)| *k == Kind::Spoil);
                (!ruined && !spoilt).then_some("saw nothing finite")
            }
            Exit::Barred(_) => {
                (!node.is_revoked && !self.knows_liars(node, peer)).then_some("was not let in any more")
            }
            Exit::Lost | Exit::NoMember => {
                let long_healed = self.healed_at.is_some_and(|at| self.now > at + GRACE_US);
                let any = |n: &Node| n.is_member() && !n.is_guest;
                (long_healed && self.is_fair() && self.nodes.iter().any(any))
                    .then_some("gave up though others hold the state")
            }
        };
        let stands = (head.chain, peer.digest());
        // The last whole state may have left or been damaged long before all faults end.
        let hopeless = *exit == Exit::Lost && (self.is_state_gone() || self.is_state_with_outlaws(peer));
        if let Some(wrong) = wrong {
            return self.fail(format!("{} {wrong}", node.name));
        }
        self.hopeless |= hopeless;
        self.was_lost |= *exit == Exit::Lost && self.is_nobody_whole();
        if self.nodes[i].exit == Some(Exit::Finished) && self.first_finish.is_none() {
            self.first_finish = Some(self.now);
        }
        self.nodes[i].stands = Some(stands);
    }

    /// Longest round of this world, in microseconds: that of the slowest peer alone.
    pub(super) fn longest_round_us(&self) -> f64 {
        let rate = self.plan.rate_bytes_per_s / self.plan.slow_line;
        let n = self.plan.peers.len() as f64;
        let vector = 4.0 * self.plan.manifest.layout.len as f64 + 4000.0;
        let hop_us = 4.7 * self.plan.latency_us + vector / (0.5 * rate) * 1e6;
        3.0 * n * self.plan.round_us + 24.0 * hop_us + 2e6
    }

    /// Whether all had the time to meet before the first finished.
    fn is_fair(&self) -> bool {
        if self.apart || self.hopeless {
            return false;
        }
        // Devices still work on what they began while they were slow.
        let healed_at = self.healed_at.map_or(u64::MAX, |at| at.max(self.rested_at));
        self.plan.is_calm()
            || self
                .first_finish
                .is_none_or(|first| first >= healed_at.saturating_add(GRACE_US))
    }

    /// Once the faults have ended, the run must come to its end, with everybody on board.
    pub(super) fn check_progress(&mut self) {
        self.check_pace_among_liars();
        let Some(healed_at) = self.healed_at.map(|at| at.max(self.rested_at)) else {
            return;
        };
        // The last peer with a whole state may have left while the others were on their way back.
        self.hopeless |= self.is_state_gone() || self.are_spans_gone();
        let round_us = self.longest_round_us();
        let rounds = self.plan.rounds() + 10.0;
        let bound = healed_at + (rounds * round_us) as u64 + 2 * PATIENCE_US;
        if self.now > bound {
            let is_with_liars = self.plan.liars.is_some() && !self.hold_all_in_one_lineage();
            if !self.is_fair() || is_with_liars {
                self.hopeless = true;
                return;
            }
            return self.fail(format!(
                "not finished so long after the faults: {}",
                self.situation()
            ));
        }
        if !self.is_fair() {
            return;
        }
        let patience = PATIENCE_US + (10.0 * round_us) as u64;
        for node in self.nodes.iter().filter(|n| !n.is_liar()) {
            let joins = node.peer.as_ref().is_some_and(|p| stands(p).is_none());
            let since = healed_at
                .max(node.last_commit_at)
                .max(node.waits_at)
                .max(self.probation_until(node));
            // Two that were put out may wait for each other.
            if joins && !node.is_revoked && self.now > since + patience {
                return self.fail(format!("{} is still no member: {}", node.name, self.situation()));
            }
        }
    }

    /// Until when others let a peer wait that they have excluded repeatedly while there were faults.
    fn probation_until(&self, node: &Node) -> u64 {
        let others = self.honest().filter_map(|other| other.peer.as_ref());
        let until = others.filter_map(|other| other.shared.probation.until(node.id, true));
        until.map(|until| until.0).max().unwrap_or(0)
    }

    /// All peers are done: checks that they finished together.
    pub(super) fn check_end(&mut self) {
        if self.honest().any(|n| n.exit == Some(Exit::NotFinite)) {
            return;
        }
        let honest = self.nodes.iter().filter(|n| !n.is_liar());
        let finished: Vec<&Node> = honest.filter(|n| n.exit == Some(Exit::Finished)).collect();
        if self.hopeless {
            return;
        }
        let Some(first) = finished.first() else {
            if self.was_lost {
                // A peer was about to begin then, but without the state.
                return;
            }
            // A liar need not admit anybody, and can bar all peers that know nobody else. A peer that crashed for
            // good or was asked to leave does not finish.
            let is_out = |n: &Node| matches!(n.exit, None | Some(Exit::Barred(_) | Exit::Left));
            let is_in = |n: &Node| n.was_member && !is_out(n);
            if self.plan.liars.is_some() && !self.honest().any(is_in) {
                return;
            }
            // The last full member's ticket was taken back, and guests do not go on alone.
            let is_revoked = self.honest().any(|n| n.is_revoked);
            if is_revoked && self.honest().all(|n| n.is_guest || n.is_revoked || is_out(n)) {
                return;
            }
            return self.fail(format!("nobody finished: {}", self.situation()));
        };
        if !self.is_fair() {
            return;
        }
        self.stats.judged += 1;
        let mut others = finished.iter().filter(|n| !n.is_late && !first.is_late);
        if let Some(other) = others.find(|n| n.stands != first.stands) {
            let why = format!(
                "{} and {} finished apart: {:?} {:?}",
                first.name, other.name, first.stands, other.stands
            );
            self.fail(why);
        }
        self.check_parts_at_end();
    }
}

/// Whether a peer has accepted parts that changed in its memory, because nobody else has them.
fn has_taken(peer: &Peer) -> bool {
    peer.manifest().split.is_some() && peer.state().kept.has_taken()
}

/// Lineage and digest of a peer with the whole state of its lineage: a member, or one that is done.
pub(super) fn stands(peer: &Peer) -> Option<(Digest, Digest)> {
    let whole = matches!(peer.phase, Phase::Member(_) | Phase::Lingering(_));
    whole.then(|| (peer.head().chain, peer.digest()))
}
