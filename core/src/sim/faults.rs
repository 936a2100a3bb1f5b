//! The faults: what each kind does, and when it is fair. The world draws when they happen, and to whom. The last
//! member with the state is never killed, and a bit flips only where a majority, or one of two by itself, can tell.

use super::kind::Kind;
use super::node::{Doom, Node, Spoil};
use super::plan::MOST_PEERS;
use super::world::{What, World, tell};

/// How much slower a slow peer becomes.
pub(super) const SLOW: f64 = 10.0;
/// How often the operator looks after peers that cannot help themselves.
pub(super) const OPERATOR_US: u64 = 5_000_000;

impl World {
    /// Injects a fault, if it is fair now. Returns whether it did.
    pub(super) fn inject(&mut self, kind: Kind) -> bool {
        let done = match kind {
            Kind::Crash => self.mortal().map(|i| {
                tell!(self, "FAULT {} crashes", self.nodes[i].name);
                self.crash(i);
            }),
            Kind::Restart => self.restart(),
            Kind::CrashMidway => self.mortal().map(|i| {
                let at_commit = self.chaos.chance(0.7);
                tell!(self, "FAULT {} will crash midway", self.nodes[i].name);
                self.nodes[i].doom = Some(if at_commit { Doom::AtCommit } else { Doom::AtSend });
            }),
            Kind::Freeze => self.freeze_one(),
            Kind::Cut => self.pair().map(|(a, b)| {
                tell!(
                    self,
                    "FAULT {} and {} are cut off from each other",
                    self.nodes[a].name,
                    self.nodes[b].name
                );
                self.cut_for_a_while(vec![(a, b), (b, a)]);
            }),
            Kind::CutOneWay => self.pair().map(|(a, b)| {
                tell!(
                    self,
                    "FAULT {} is not heard by {}",
                    self.nodes[a].name,
                    self.nodes[b].name
                );
                self.cut_for_a_while(vec![(a, b)]);
            }),
            Kind::Partition => self.partition(),
            Kind::Break => self.pair().map(|(a, b)| {
                tell!(
                    self,
                    "FAULT the link of {} and {} breaks",
                    self.nodes[a].name,
                    self.nodes[b].name
                );
                self.break_link(a, b);
            }),
            Kind::Slow => self.any(|n| n.slow == 1.0).map(|i| {
                tell!(self, "FAULT {} becomes {SLOW} times slower", self.nodes[i].name);
                self.nodes[i].slow = SLOW;
            }),
            Kind::Delay => self.pair().map(|(a, b)| {
                let extra = (self.chaos.octaves(0.05, 5.0) * 1e6) as u64;
                tell!(
                    self,
                    "FAULT {} to {} takes {extra} us longer",
                    self.nodes[a].name,
                    self.nodes[b].name
                );
                self.net.delay(a, b, extra);
                let until = self.now + self.while_us();
                self.schedule(until, What::EndDelay { from: a, to: b });
            }),
            Kind::Flip => self.flip(),
            Kind::Spoil => {
                let not_finite = self.chaos.chance(0.7);
                self.any(|n| n.is_member() && n.view_len() >= 2).map(|i| {
                    tell!(
                        self,
                        "FAULT the next contribution of {} is spoilt",
                        self.nodes[i].name
                    );
                    // Only in runs whose data is fetched while it is used.
                    let may_be_late = self.plan.manifest.chunk.get() > 1 && self.now.is_multiple_of(2);
                    self.nodes[i].spoil = Some(match not_finite {
                        true if may_be_late => Spoil::Late,
                        true => Spoil::NotFinite,
                        false => Spoil::Partial,
                    });
                })
            }
            Kind::Leave => self.mortal().map(|i| {
                tell!(self, "{} is asked to leave", self.nodes[i].name);
                self.ask_to_leave(i);
            }),
            Kind::Revoke => self.revoke(),
            // Two places are left for the operator.
            Kind::Join => (self.nodes.len() + 2 < MOST_PEERS)
                .then(|| self.newcomer())
                .flatten(),
        };
        done.is_some()
    }

    /// A peer that may go: another member would be left, and one that can be dialled.
    pub(super) fn mortal(&mut self) -> Option<usize> {
        if self.deaths >= self.plan.deaths {
            return None;
        }
        let fair: Vec<usize> = (0..self.nodes.len()).filter(|i| self.may_die(*i)).collect();
        let victim = self.chaos.pick(&fair)?;
        self.deaths += 1;
        Some(victim)
    }

    /// Whether the run survives without this peer.
    pub(super) fn may_die(&self, i: usize) -> bool {
        let node = &self.nodes[i];
        node.is_alive() && node.doom.is_none() && !node.leaving && self.outlives(i)
    }

    /// Whether a full member is left without this one that can be dialled and holds the right state.
    fn outlives(&self, i: usize) -> bool {
        let stays = |n: &Node| !n.leaving && !n.is_revoked;
        let lasts = |n: &Node| n.is_alive() && n.is_member() && n.doom.is_none() && stays(n);
        let mut others = self.nodes.iter().enumerate().filter(|(j, _)| *j != i);
        others.any(|(_, n)| {
            let holds = lasts(n) && n.damage.is_none();
            holds && !n.is_liar() && n.dialable && !n.is_guest
        })
    }

    /// A living peer that fits.
    fn any(&mut self, fits: impl Fn(&Node) -> bool) -> Option<usize> {
        let fair: Vec<usize> = (0..self.nodes.len())
            .filter(|i| self.nodes[*i].is_alive() && fits(&self.nodes[*i]))
            .collect();
        self.chaos.pick(&fair)
    }

    fn pair(&mut self) -> Option<(usize, usize)> {
        let a = self.any(|_| true)?;
        let fair: Vec<usize> = (0..self.nodes.len())
            .filter(|i| *i != a && self.nodes[*i].is_alive())
            .collect();
        Some((a, self.chaos.pick(&fair)?))
    }

    /// Duration of a fault: from much shorter than a round to longer than any patience.
    fn while_us(&mut self) -> u64 {
        self.chaos.octaves(20_000.0, self.plan.longest_us) as u64
    }

    fn cut_for_a_while(&mut self, pairs: Vec<(usize, usize)>) {
        let until = self.now + self.while_us();
        self.cut_until(pairs, until);
    }

    pub(super) fn cut_until(&mut self, pairs: Vec<(usize, usize)>, until: u64) {
        for (a, b) in &pairs {
            self.block(*a, *b);
        }
        self.schedule(until, What::EndCut { pairs });
    }

    fn partition(&mut self) -> Option<()> {
        let alive: Vec<usize> = (0..self.nodes.len())
            .filter(|i| self.nodes[*i].is_alive())
            .collect();
        if alive.len() < 2 {
            return None;
        }
        let here: Vec<bool> = alive.iter().map(|_| self.chaos.chance(0.5)).collect();
        let side = |here: bool, sides: &[bool]| -> Vec<usize> {
            alive
                .iter()
                .zip(sides)
                .filter(|(_, s)| **s == here)
                .map(|(i, _)| *i)
                .collect()
        };
        let (left, right) = (side(true, &here), side(false, &here));
        let pairs: Vec<_> = left
            .iter()
            .flat_map(|a| right.iter().flat_map(|b| [(*a, *b), (*b, *a)]))
            .collect();
        if pairs.is_empty() {
            return None;
        }
        tell!(
            self,
            "FAULT partition: {:?} | {:?}",
            self.names(&left),
            self.names(&right)
        );
        self.cut_for_a_while(pairs);
        Some(())
    }

    fn freeze_one(&mut self) -> Option<()> {
        let i = self.any(|n| !n.frozen)?;
        let until = self.now + self.while_us();
        tell!(
            self,
            "FAULT {} freezes until {:.3} s",
            self.nodes[i].name,
            until as f64 / 1e6
        );
        self.freeze(i, until);
        Some(())
    }

    fn restart(&mut self) -> Option<()> {
        let first = self.mortal()?;
        for i in [first].into_iter().chain(self.with_its_parts(first)) {
            if i != first && !self.may_die(i) {
                continue;
            }
            // Disks matter more in a split run, where they may hold all that is left.
            let often = if self.plan.manifest.split.is_some() {
                0.8
            } else {
                0.4
            };
            let (at, resumes) = (self.now + self.while_us(), self.chaos.chance(often));
            tell!(
                self,
                "FAULT {} crashes, to begin again at {:.3} s",
                self.nodes[i].name,
                at as f64 / 1e6
            );
            self.crash(i);
            self.starting += 1;
            self.schedule(at, What::Restart { node: i, resumes });
        }
        Some(())
    }

    /// In a split run, in half of the cases: all other peers that keep some of a peer's parts.
    fn with_its_parts(&mut self, i: usize) -> Vec<usize> {
        if self.plan.manifest.split.is_none() || !self.chaos.chance(0.5) {
            return Vec::new();
        }
        let kept = |n: &Node| {
            let peer = n.peer.as_ref().map(|peer| peer.state().kept.set());
            peer.unwrap_or_default()
        };
        let own = kept(&self.nodes[i]);
        let also = (0..self.nodes.len()).filter(|j| *j != i);
        also.filter(|j| !kept(&self.nodes[*j]).and(&own).is_empty())
            .collect()
    }

    fn flip(&mut self) -> Option<()> {
        let fair = |n: &Node| n.is_member() && (n.view_len() >= 3 || n.full_members() == 2);
        let i = self.any(fair).filter(|i| self.outlives(*i))?;
        let len = self.plan.manifest.layout.len;
        // The low bits of the significand: a wrong number, not a wild one.
        let (at, bit) = (self.chaos.index(len), self.chaos.below(20) as u32);
        if !self.nodes[i].flip(at, bit) {
            return None;
        }
        tell!(
            self,
            "FAULT bit {bit} of element {at} flips at {}",
            self.nodes[i].name
        );
        // In a split run, the peer that finds it leaves, or its digests tell the others.
        self.ledger.is_tainted |= self.plan.manifest.copies.is_some() && self.plan.manifest.split.is_none();
        Some(())
    }

    /// A peer is gone without notice.
    pub(super) fn crash(&mut self, i: usize) {
        self.nodes[i].peer = None;
        self.nodes[i].inbox.clear();
        let quick = self.chaos.chance(0.5);
        let loses = self.chaos.chance(0.5);
        for other in (0..self.nodes.len()).filter(|j| *j != i) {
            self.net.set_up(i, other, false);
            if !self.net.is_up(other, i) {
                continue;
            }
            if loses {
                // A new number, so that frames under way are lost.
                self.net.link(i, other).connection += 1;
            }
            let wait = if quick {
                self.net.round_trip_us(i, other)
            } else {
                self.plan.idle_us
            };
            self.down_at(self.now + wait, other, i);
        }
    }

    pub(super) fn freeze(&mut self, i: usize, until: u64) {
        let node = &mut self.nodes[i];
        node.frozen = true;
        node.freeze_version += 1;
        let version = node.freeze_version;
        self.schedule(until, What::Thaw { node: i, version });
        if self.chaos.chance(0.8) {
            let patience = self.now + self.plan.idle_us;
            self.schedule(patience, What::FrozenTooLong { node: i, version });
        }
    }

    pub(super) fn frozen_too_long(&mut self, i: usize, version: u32) {
        if !self.nodes[i].frozen || self.nodes[i].freeze_version != version || !self.nodes[i].is_alive() {
            return;
        }
        for other in (0..self.nodes.len()).filter(|j| *j != i) {
            if self.net.is_up(other, i) {
                self.take_down(other, i);
                self.take_down(i, other);
            }
        }
    }

    pub(super) fn thaw(&mut self, i: usize) {
        if !std::mem::replace(&mut self.nodes[i].frozen, false) {
            return;
        }
        tell!(self, "{} thaws", self.nodes[i].name);
        while let Some(input) = self.nodes[i].inbox.pop_front() {
            self.feed(i, input);
        }
        self.nodes[i].timer_at = None;
        self.on_timer(i);
    }

    /// The faults end before the run does.
    pub(super) fn heal_in_time(&mut self, i: usize) {
        if self.nodes[i].is_liar() {
            return;
        }
        let counted = self.nodes[i].peer.as_ref().map_or(0, |p| p.head().samples);
        self.most_counted = self.most_counted.max(counted);
        let share = self.most_counted as f64 / self.manifest.target.get() as f64;
        if self.healed_at.is_none() && share >= self.plan.heal_at_share {
            // Not at once: this peer's outputs are still being carried out.
            self.healed_at = Some(self.now);
            self.schedule(self.now, What::Heal);
        }
    }

    pub(super) fn next_fault_us(&mut self) -> u64 {
        self.now + self.chaos.wait(self.plan.fault_every_us) as u64 + 1
    }

    pub(super) fn fault(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        let total: f64 = self.plan.faults.iter().map(|(_, weight)| weight).sum();
        let mut at = self.chaos.unit() * total;
        let chosen = self.plan.faults.iter().find(|(_, weight)| {
            at -= weight;
            at < 0.0
        });
        let kind = chosen.map_or(Kind::Break, |(kind, _)| *kind);
        if self.inject(kind) {
            *self.stats.faults.entry(kind).or_default() += 1;
        }
        let next = self.next_fault_us();
        self.schedule(next, What::Fault);
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        if std::mem::replace(&mut self.healed, true) {
            return;
        }
        self.healed_at = self.healed_at.or(Some(self.now));
        self.rested_at = self.nodes.iter().map(|node| node.busy_until).max().unwrap_or(0);
        self.apart = !self.is_connected();
        self.end_lies();
        tell!(self, "HEAL all faults end: {}", self.situation());
        for a in 0..self.nodes.len() {
            self.nodes[a].doom = None;
            self.nodes[a].spoil = None;
            self.nodes[a].slow = 1.0;
            for b in (0..self.nodes.len()).filter(|b| *b != a) {
                self.net.way(a, b).blocked = self.net.way(a, b).blocked.min(1);
                self.unblock(a, b);
                self.net.delay(a, b, 0);
            }
        }
        (0..self.nodes.len()).for_each(|i| self.thaw(i));
    }

    /// Whether the living peers can find each other at all: all are connected by known addresses.
    pub(super) fn is_connected(&self) -> bool {
        let alive: Vec<usize> = (0..self.nodes.len())
            .filter(|i| self.nodes[*i].is_alive() && !self.nodes[*i].is_liar())
            .collect();
        let knows = |a: usize, b: usize| {
            let id = self.nodes[b].id;
            let may_dial = self.nodes[b].dialable;
            may_dial
                && self.nodes[a]
                    .peer
                    .as_ref()
                    .is_some_and(|p| p.shared.links.may_dial(id))
        };
        let mut met: Vec<usize> = alive.first().copied().into_iter().collect();
        let mut next = 0;
        while let Some(&a) = met.get(next) {
            next += 1;
            for &b in &alive {
                if !met.contains(&b) && (knows(a, b) || knows(b, a) || self.net.is_linked(a, b)) {
                    met.push(b);
                }
            }
        }
        met.len() == alive.len()
    }

    /// What a person would do: restart a peer whose ticket names a dead peer, and start as many as the run asks
    /// for.
    pub(super) fn operate(&mut self) {
        for i in 0..self.nodes.len() {
            let node = &self.nodes[i];
            let lost =
                !node.is_liar() && node.is_alive() && !node.was_member && !node.is_member() && !node.frozen;
            if lost && node.sponsor.is_some_and(|s| !self.nodes[s].is_alive()) && self.sponsor().is_some() {
                tell!(
                    self,
                    "{} is stopped by its operator: its ticket names a dead peer",
                    self.nodes[i].name
                );
                self.crash(i);
                self.newcomer();
            }
        }
        let alive = self.honest().filter(|n| n.is_alive() && !n.leaving).count();
        if self.healed_at.is_some() && alive < usize::from(self.manifest.min_peers.get()) && alive > 0 {
            // A peer that comes by a liar enters a run of the liar's own.
            let honest = self
                .sponsor()
                .is_some_and(|sponsor| !self.nodes[sponsor].is_liar());
            self.hopeless |= !honest || self.newcomer().is_none();
        }
        if self.healed_at.is_some() && alive > 0 && self.starting == 0 && !self.have_room() {
            self.hopeless |= self.newcomer().is_none();
        }
        self.check_progress();
        self.check_visitors();
        self.schedule(self.now + OPERATOR_US, What::Operator);
    }
}
