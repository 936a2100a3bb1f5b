//! A peer's driver: passes inputs to the peer at the peer's own time, and carries out its outputs. It has no
//! protocol logic.

use super::check::duties::Duty;
use super::device;
use super::node::{Doom, Node, Spoil};
use super::plan::{MOST_PEERS, PeerPlan};
use super::splits;
use super::stalling::last_commit;
use super::trace;
use super::world::{What, World, tell};
use crate::access::invitation::{Admission, Invitation, Role};
use crate::access::signature::{Key, Scheme};
use crate::base::id::{PeerId, Round};
use crate::base::random::mix;
use crate::base::time::Time;
use crate::ledger::local::LocalRound;
use crate::ledger::{Head, Member};
use crate::peer::{Exit, Input, Output, Peer};
use crate::run::config::{Manifest, Settings};
use crate::run::initial::Initial;
use crate::run::room::Room;
use crate::run::shuffle;
use crate::state::State;
use std::ops::Range;
use std::sync::Arc;

/// Most outputs of one input.
const MOST_OUTPUTS: usize = 2_000;

impl World {
    pub(super) fn start(&mut self, plan: PeerPlan) {
        let i = self.nodes.len();
        let mut bytes = [0u8; 32];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&self.work.next().to_le_bytes());
        }
        let key = match self.scheme {
            Scheme::Ed25519 => Key::from_seed(&bytes),
            Scheme::StandIn => Key::stand_in(PeerId(bytes)),
        };
        let id = key.peer();
        self.by_id.insert(id, i);
        self.nodes
            .push(Node::new(key, i, &plan, (&self.plan.manifest, self.now)));
        self.corrupt(i);
        if i > 0 {
            return self.revive(i, false);
        }
        self.starting -= 1;
        let (manifest, settings, now) = self.birth(i);
        let params = device::initial(manifest.layout.len, manifest.seed);
        let whole = State::new(params, &manifest);
        let founder = Member::founder(&settings, &manifest);
        self.ledger.found(&Head::genesis(&manifest, founder), &whole);
        // In a split run nobody has the whole state.
        let state = match manifest.split {
            None => whole,
            Some(_) => State::new(Vec::new(), &manifest),
        };
        let peer = Peer::found(manifest, settings, state, now);
        tell!(self, "p0 ({id}) founds the run, {}", trace::peer_plan(&plan));
        self.begin(i, peer);
    }

    /// A peer starts, or restarts under its old name: from its checkpoint if it may and has one, else by joining.
    /// If there is nothing to join, it does not start.
    pub(super) fn revive(&mut self, i: usize, resumes: bool) {
        self.starting -= 1;
        self.nodes[i].disk.retain(|_| resumes);
        let saved = self.nodes[i].saved.clone().filter(|_| resumes);
        let sponsor = self.sponsor().filter(|_| saved.is_none());
        let (manifest, settings, now) = self.birth(i);
        let name = &self.nodes[i].name;
        let peer = match (saved, sponsor) {
            (Some((state, head, acquaintances)), _) => {
                tell!(self, "{name} begins again at round {}", head.round);
                let mut peer = Peer::resume(manifest, settings, state, head, now);
                for (other, contact) in &acquaintances {
                    peer.know(*other, contact);
                }
                peer
            }
            (None, Some(s)) => {
                self.stats.joins += 1;
                let (id, by) = (self.nodes[i].id, &self.nodes[s].name);
                tell!(self, "{name} ({id}) joins by {by}");
                let contact = self.contact(s);
                Peer::join(manifest, settings, self.nodes[s].id, &contact, now)
            }
            (None, None) => return,
        };
        self.nodes[i].sponsor = sponsor;
        self.nodes[i].is_late = self.is_late(sponsor);
        self.begin(i, peer);
    }

    /// The settings of a new peer. Its clock starts anywhere.
    fn birth(&mut self, i: usize) -> (Arc<Manifest>, Settings, Time) {
        self.nodes[i].clock = self.work.below(1 << 40);
        let settings = Settings {
            // Worlds differ in whether newcomers are ever told to begin again.
            lag: if self.manifest.seed.is_multiple_of(2) {
                2
            } else {
                Settings::LAG
            },
            bug: self.any_sum(i).or(self.bug),
            room: self.room(i),
            initial: self.initial(),
            saves_every: self.saves_every(),
            started: self.now,
            ..Settings::new(self.nodes[i].key.clone(), self.admission(i), self.contact(i))
        };
        (
            self.manifest.clone(),
            settings,
            Time(self.now + self.nodes[i].clock),
        )
    }

    /// A peer's room, in a split run. Drawn separately.
    pub(super) fn room(&self, i: usize) -> Room {
        let spans = self
            .manifest
            .split
            .as_ref()
            .map_or(1, |split| split.spans.len() as u64);
        let draw = mix(self.manifest.seed ^ 0x726f_6f6d ^ (i as u64) << 32);
        let room = if draw.is_multiple_of(2) {
            spans
        } else {
            1 + (draw >> 8) % spans
        };
        Room {
            inner: self.takes_no_ends(i),
            parts: splits::room_of_one(&self.manifest, draw >> 32),
            ..Room::of(room as u16)
        }
    }

    /// In half of the worlds, some later peers have room only for spans between the ends of a model.
    fn takes_no_ends(&self, i: usize) -> bool {
        let has_middle = self
            .manifest
            .split
            .as_ref()
            .is_some_and(|split| split.spans.len() > 2);
        let world = mix(self.manifest.seed ^ 0x656e_6473);
        has_middle && i > 0 && world.is_multiple_of(2) && mix(world ^ i as u64).is_multiple_of(3)
    }

    /// The first weights of a split model.
    fn initial(&self) -> Option<Initial> {
        self.manifest.split.as_ref()?;
        let values = device::initial(self.manifest.layout.len, self.manifest.seed);
        let of = move |range: &Range<usize>| values[range.clone()].to_vec();
        Some(Initial::new(move |ranges| ranges.iter().map(&of).collect()))
    }

    /// A peer's admission: by the page if it is a guest of one, else by a ticket of its own that the run's key has made.
    pub(super) fn admission(&self, i: usize) -> Admission {
        let node = &self.nodes[i];
        if node.is_guest && self.plan.has_page {
            return self.by_page(node.id);
        }
        let of_guest = node.is_guest.then_some(Role::Contribute);
        let role = of_guest.unwrap_or(Role::Member);
        let (root, of_run) = (self.manifest.root(), Invitation::of_run(self.run_key.clone()));
        let ticket = of_run.narrow(root, node.key.clone(), role, None, None);
        ticket.expect("the run's key grants all").admit(node.id, root.run)
    }

    fn begin(&mut self, i: usize, peer: Peer) {
        self.lies.unfound.retain(|(by, _), _| *by != i);
        let node = &mut self.nodes[i];
        node.peer = Some(Box::new(peer));
        node.life += 1;
        node.frozen = false;
        node.damage = None;
        node.heard = Default::default();
        node.flipped = false;
        node.misled = false;
        node.stands = None;
        node.was_member = false;
        node.left.clear();
        node.commits = 0;
        node.last_commit_at = self.now;
        node.timer_at = None;
        node.busy_until = 0;
        let life = node.life;
        let warm = self.now + self.work.between(1_000, 500_000);
        self.schedule(warm, What::Warm { node: i, life });
        if !self.nodes[i].disk.is_empty() {
            self.schedule(self.now, What::Saved { node: i, life });
        }
        self.drain(i, Duty::None);
    }

    /// A member for a newcomer's ticket: an honest one if possible, since a peer that begins with only a liar may
    /// meet nobody else.
    pub(super) fn sponsor(&mut self) -> Option<usize> {
        let fits = |n: &Node| {
            let stays = !n.frozen && n.doom.is_none() && !n.leaving;
            n.is_alive() && n.dialable && n.is_member() && stays && !n.is_guest
        };
        let any = |n: &Node| n.is_alive() && n.dialable && !n.is_guest;
        let which = |fits: &dyn Fn(&Node) -> bool| -> Vec<usize> {
            (0..self.nodes.len()).filter(|i| fits(&self.nodes[*i])).collect()
        };
        let fair = which(&|n| fits(n) && !n.is_liar());
        let poor = which(&|n| any(n) && !n.is_liar());
        let last = which(&any);
        let picked = self.work.pick(&fair).or_else(|| self.work.pick(&poor));
        picked.or_else(|| self.work.pick(&last))
    }

    /// One more peer joins now, if there is room for it.
    pub(super) fn newcomer(&mut self) -> Option<()> {
        if self.nodes.len() + self.starting >= MOST_PEERS {
            return None;
        }
        let plan = self.plan.newcomer(&mut self.chaos);
        self.starting += 1;
        self.start(plan);
        Some(())
    }

    pub(super) fn ask_to_leave(&mut self, i: usize) {
        self.nodes[i].leaving = true;
        self.give(i, Input::Leave);
    }

    pub(super) fn on_timer(&mut self, i: usize) {
        if self.nodes[i].timer_at.is_some_and(|at| at > self.now) {
            // It was set again since; another event stands for it.
            return;
        }
        self.nodes[i].timer_at = None;
        let clock = self.nodes[i].clock;
        let now = Time(self.now + clock);
        let Some(peer) = &self.nodes[i].peer else { return };
        if self.nodes[i].frozen {
            return;
        }
        if peer.wake_at().is_some_and(|at| at <= now) {
            self.feed(i, Input::Tick);
        } else {
            self.set_timer(i);
        }
    }

    pub(super) fn set_timer(&mut self, i: usize) {
        let node = &self.nodes[i];
        let Some(at) = node.peer.as_ref().and_then(|p| p.wake_at()) else {
            return;
        };
        // Timers of a real machine are never early and often late.
        let at = at.0.saturating_sub(node.clock).max(self.now + 1) + self.delays.below(500);
        if node.timer_at.is_none_or(|t| at < t) {
            self.nodes[i].timer_at = Some(at);
            self.schedule(at, What::Timer { node: i });
        }
    }

    /// Passes an input to a peer. A frozen peer gets it later.
    pub(super) fn give(&mut self, i: usize, input: Input) {
        if !self.nodes[i].is_alive() {
            return;
        }
        if self.nodes[i].frozen {
            self.nodes[i].inbox.push_back(input);
        } else {
            self.feed(i, input);
        }
    }

    pub(super) fn feed(&mut self, i: usize, input: Input) {
        if self.failure.is_some() {
            return;
        }
        if self.tracing {
            trace::input(self, i, &input);
        }
        let now = Time(self.now + self.nodes[i].clock);
        let tick = matches!(input, Input::Tick);
        let Some(peer) = &self.nodes[i].peer else {
            return;
        };
        let duty = match &self.nodes[i].liar {
            Some(_) => Duty::None,
            None => self.duty(peer, now, &input),
        };
        self.note_stop(i, &input);
        let Some(peer) = &mut self.nodes[i].peer else {
            return;
        };
        peer.handle(input, now);
        // A peer that wants to be woken at once, again and again, burns the processor.
        let again = tick && peer.wake_at().is_some_and(|at| at <= now);
        self.nodes[i].stuck = if again { self.nodes[i].stuck + 1 } else { 0 };
        if self.nodes[i].stuck > 100 {
            self.fail(format!(
                "{} asks to be woken at once again and again: {}",
                self.nodes[i].name,
                self.situation()
            ));
        }
        self.drain(i, duty);
    }

    /// Carries out a peer's outputs.
    pub(super) fn drain(&mut self, i: usize, duty: Duty) {
        let mut batch = Vec::new();
        if let Some(peer) = &mut self.nodes[i].peer {
            while let Some(output) = peer.poll() {
                batch.push(output);
            }
        }
        if batch.len() > MOST_OUTPUTS {
            self.fail(format!(
                "{} gave {} outputs at once",
                self.nodes[i].name,
                batch.len()
            ));
        }
        self.note_flushes(i, &batch);
        self.check_duty(i, duty, &batch);
        let cut = self.fatal_cut(i, &batch);
        let (mut work, doubtful, committed) = (None, self.nodes[i].is_doubtful(), last_commit(&batch));
        for (k, output) in batch.into_iter().enumerate() {
            if self.tracing {
                trace::output(self, i, &output, cut.is_some_and(|cut| k >= cut));
            }
            match output {
                // Events of a dying peer are seen, but messages after its death are not sent.
                Output::Event(event) => self.on_event(i, event),
                _ if cut.is_some_and(|cut| k >= cut) => {}
                Output::Send { to, lane, message } => self.say(i, to, lane, message),
                Output::Dial { peer, contact } => self.dial(i, peer, &contact),
                Output::HangUp { peer } => {
                    if let Some(&other) = self.by_id.get(&peer) {
                        // Not at once: this peer's outputs are still being carried out.
                        self.down_at(self.now, i, other);
                        self.down_at(self.now, other, i);
                    }
                }
                Output::Compute {
                    round,
                    positions,
                    buffer,
                    local,
                } => work = Some(((round, local), positions, buffer)),
                Output::Span(work) => self.compute_span(i, *work),
                Output::Restore { stepped } => {
                    let (at, life) = (self.now + 1 + self.delays.below(200_000), self.nodes[i].life);
                    self.schedule(
                        at,
                        What::Restored {
                            node: i,
                            life,
                            stepped,
                        },
                    );
                }
                Output::Exit(exit) => self.on_exit(i, exit),
            }
        }
        // A round may have been committed after the device got its task, so the task is checked with all that is
        // known then.
        if let Some((round, positions, buffer)) = work {
            self.compute((i, doubtful), round, positions, buffer);
        }
        if cut.is_some() {
            tell!(self, "FAULT {} crashes midway", self.nodes[i].name);
            self.crash(i);
        } else {
            self.look_at(i);
            self.set_timer(i);
            self.evaluate(i, committed);
        }
        self.heal_in_time(i);
    }

    /// The number of outputs after which a doomed peer dies, if it dies now.
    pub(super) fn fatal_cut(&mut self, i: usize, batch: &[Output]) -> Option<usize> {
        let doom = self.nodes[i].doom?;
        let sends = batch.iter().filter(|o| matches!(o, Output::Send { .. })).count();
        let commits = last_commit(batch).is_some();
        let now = match doom {
            Doom::AtCommit => commits,
            Doom::AtSend => sends >= 2,
        };
        if !now {
            return None;
        }
        self.nodes[i].doom = None;
        if self.healed_at.is_some() || !self.may_die(i) {
            return None;
        }
        Some(self.chaos.index(batch.len() + 1))
    }

    pub(super) fn compute(
        &mut self,
        (i, doubtful): (usize, bool),
        (round, local): (Round, Option<LocalRound>),
        positions: Vec<Range<u64>>,
        params: Vec<f32>,
    ) {
        if self.is_checking(i) {
            return self.compute_check((i, doubtful), round, &positions, &params);
        }
        let share = shuffle::count(&positions);
        let counted = |there: u64| match &local {
            None => there,
            Some(round) => round.counted(there as usize).into(),
        };
        let taken = match &local {
            None => share,
            Some(round) => round
                .steps(share as usize)
                .map(|(_, samples)| samples.len() as u64)
                .sum(),
        };
        let node = &mut self.nodes[i];
        node.asked_at.insert(round, self.now);
        let spoil = node.spoil.take();
        let weight = if spoil == Some(Spoil::Partial) {
            counted(self.chaos.below(share + 1))
        } else {
            counted(share)
        };
        let wobble = 1.0 + self.plan.jitter * (2.0 * self.work.unit() - 1.0);
        let seconds = taken as f64 / node.speed * node.slow * wobble;
        let took = 200 + (seconds * 1e6) as u64;
        // The device does one thing after the other.
        let start = node.busy_until.max(self.now);
        node.busy_until = start + took;
        let done = node.busy_until;
        let (mut gradient, loss) = match &local {
            None => device::contribution(&self.plan.manifest.layout, &params, &positions, weight),
            Some(round) => {
                let round = (&self.plan.manifest, round);
                device::local_contribution(&params, &positions, weight, round, &mut node.moments)
            }
        };
        let made = u64::from(!matches!(spoil, Some(Spoil::NotFinite | Spoil::Late))) * weight;
        self.look_at(i);
        let mut said = (weight, loss, took);
        if self.nodes[i].is_liar() {
            self.say_made(i, &mut gradient, &mut said);
            let made = (&self.nodes[i], round, local);
            self.ledger.give(made, said.0.min(share), None, &gradient);
        } else if let Err(why) = self.ledger.contribute(
            (&self.nodes[i], round, doubtful),
            local,
            &positions,
            &params,
            made,
            &gradient,
        ) {
            self.fail(why);
        }
        if spoil == Some(Spoil::NotFinite) {
            let at = self.chaos.index(gradient.len());
            gradient[at] = f32::NAN;
        }
        let (weight, loss, took) = said;
        self.schedule(
            done,
            What::Computed {
                life: self.nodes[i].life,
                node: i,
                round,
                gradient,
                weight: weight as u32,
                loss,
                took,
                late: spoil == Some(Spoil::Late),
            },
        );
    }

    pub(super) fn on_exit(&mut self, i: usize, exit: Exit) {
        self.nodes[i].exit = Some(exit);
        self.check_exit(i);
        self.note_kept(i);
        self.nodes[i].peer = None;
        for other in (0..self.nodes.len()).filter(|j| *j != i) {
            if self.net.is_up(other, i) {
                let drained = self
                    .net
                    .drained_at(i, other)
                    .max(self.now + self.net.round_trip_us(i, other) / 2);
                self.down_at(drained + 1, other, i);
            }
        }
    }
}
