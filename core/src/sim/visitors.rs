//! Names that liars invent, and worlds in which a page hands one ticket to many: liars come by it and invent names,
//! and honest visitors must come in all the same.

use super::faults::OPERATOR_US;
use super::liars::INVENTED;
use super::lie::{Episode, Lie, invented_key};
use super::node::Node;
use super::rng::Rng;
use super::world::{World, tell};
use crate::access::invitation::{Admission, Invitation, Role};
use crate::access::signature::{Attempt, Key};
use crate::base::id::{Contact, PeerId};
use crate::base::planted::Bug;
use crate::ledger::conviction::Conviction;
use crate::ledger::{Header, Ready};
use crate::peer::{Commit, Input, Peer};
use crate::run::config::MAX_PEERS;
use crate::run::room::Room;
use crate::wire::Message;
use std::time::Duration;

/// The number of the page's key among the invented ones.
const PAGE: u64 = 0x7061_6765;
/// An honest peer by a ticket of its own comes in within this time, in addition to some rounds.
const JOIN_US: u64 = 20_000_000;
/// So does one by the page's ticket: there may be some names before it.
const VISIT_US: u64 = 100_000_000;
/// Rounds in which a peer can catch up.
const CATCH_UP: f64 = 12.0;
/// Rounds of which the founder computes all or nearly all.
const ALONE: u64 = 3;
/// No ticket is closed for longer.
const CLOSED_US: u64 = 20_000_000;
/// In each minute, guests of one ticket hold up no more rounds.
const HELD_UP: usize = 12;
const MINUTE_US: u64 = 60_000_000;

impl World {
    /// The admission of a peer that comes by the page.
    pub(super) fn by_page(&self, who: PeerId) -> Admission {
        let (root, of_run) = (self.manifest.root(), Invitation::of_run(self.run_key.clone()));
        let key = invented_key(self.scheme, PAGE);
        let ticket = of_run.narrow(root, key, Role::Contribute, None, None);
        ticket.expect("the run's key grants all").admit(who, root.run)
    }

    pub(super) fn tongue_of(&mut self, i: usize) -> Option<&mut Rng> {
        self.nodes[i].liar.as_mut().map(|liar| &mut liar.rng)
    }

    /// The members that newcomers may follow.
    fn sponsors(&self) -> Vec<usize> {
        let can =
            |i: &usize| self.nodes[*i].is_member() && !self.nodes[*i].frozen && !self.nodes[*i].is_guest;
        (0..self.nodes.len()).filter(can).collect()
    }

    /// Invented newcomers come to a peer, and are ready at once.
    pub(super) fn invent_newcomers(&mut self, i: usize) {
        let fair = self.sponsors();
        let Some(rng) = self.tongue_of(i) else { return };
        let Some(to) = rng.pick(&fair) else { return };
        let (count, root) = (rng.between(1, INVENTED), self.manifest.root());
        for _ in 0..count {
            let Some(key) = self.invent_key(i) else { return };
            let admission = Admission::stand_in(key.peer(), root);
            self.come(i, to, &key, admission);
            self.be_ready(i, to, &key);
        }
    }

    /// Names come by the page, in one of the ways in which guests can disturb others; those before make room.
    pub(super) fn send_visitors(&mut self, i: usize, episode: Episode) {
        self.forget_invented(i);
        let fair = self.sponsors();
        let Some(rng) = self.tongue_of(i) else { return };
        let (to, few) = (rng.pick(&fair), rng.between(1, 2 * INVENTED));
        let Some(to) = to else { return };
        let (places, count, ready) = match episode.salt % 5 {
            0 => return self.convict_itself(i),
            // They never catch up.
            1 | 2 => (fair, MAX_PEERS as u64 + 4, false),
            // They say that they are ready, and never come.
            _ => (vec![to], few, true),
        };
        for to in places {
            for _ in 0..count {
                let Some(key) = self.invent_key(i) else { return };
                let admission = self.by_page(key.peer());
                self.come(i, to, &key, admission);
                if ready {
                    self.be_ready(i, to, &key);
                }
            }
        }
    }

    /// A guest leaves while somebody has a trial.
    pub(super) fn say_goodbye(&mut self, i: usize) {
        let nobody = PeerId([0; 32]);
        let tries = |peer: &Peer| !peer.head().admits(nobody, peer.manifest());
        if self.nodes[i].is_member() && self.nodes[i].peer.as_deref().is_some_and(tries) {
            tell!(self, "LIE {} says goodbye", self.nodes[i].name);
            self.ask_to_leave(i);
        }
    }

    /// A liar that has said goodbye comes back, as long as there are lies.
    pub(super) fn come_back(&mut self, i: usize) {
        if self.nodes[i].leaving && !self.nodes[i].is_alive() && self.healed_at.is_none() {
            (self.nodes[i].leaving, self.nodes[i].exit) = (false, None);
            self.starting += 1;
            self.revive(i, false);
        }
    }

    /// The sums of a liar that owns a chunk.
    pub(super) fn any_sum(&self, i: usize) -> Option<Bug> {
        let liars = self.plan.liars.as_ref()?;
        let sum = [0.0f32, 1e3, -1e30][i % 3];
        let lies = self.nodes[i].is_liar() && liars.lies.contains(&Lie::Own);
        lies.then_some(Bug::AnySum(sum.to_bits()))
    }

    /// A liar shows that it has contradicted itself.
    fn convict_itself(&mut self, i: usize) {
        let node = &self.nodes[i];
        let here = node
            .peer
            .as_ref()
            .and_then(|peer| Some((peer.head().chain, peer.view()?.0)));
        let Some((chain, view)) = here else { return };
        let attempt = Attempt { chain, view };
        let header = |compute_us| {
            let header = Header {
                compute_us,
                ..Header::stand_in(node.id)
            };
            node.key.signed(&attempt, header)
        };
        let proof = Box::new(Conviction::new(attempt, [header(1), header(2)]));
        for to in self.sponsors() {
            let (from, message) = (self.nodes[i].id, Message::Convicted(proof.clone()));
            self.give(to, Input::Message { from, message });
        }
    }

    fn invent_key(&mut self, i: usize) -> Option<Key> {
        let number = self.tongue_of(i)?.next();
        Some(invented_key(self.scheme, number))
    }

    /// An invented name comes to a peer and follows it.
    fn come(&mut self, i: usize, to: usize, key: &Key, admission: Admission) {
        let (peer, contact) = (key.peer(), Contact::default());
        if let Some(liar) = self.nodes[i].liar.as_mut() {
            liar.invented.push((peer, to));
        }
        self.lies.invented.insert(peer);
        let rtt = Duration::ZERO;
        let link = Input::LinkUp {
            peer,
            contact: contact.clone(),
            rtt,
        };
        self.give(to, link);
        let message = Message::Follow {
            have: None,
            admission: Box::new(admission),
            contact,
        };
        let from = peer;
        self.give(to, Input::Message { from, message });
    }

    fn be_ready(&mut self, i: usize, to: usize, key: &Key) {
        let round = self.nodes[to].peer.as_ref().map(|p| p.head().round);
        let speed = self.tongue_of(i).map(|rng| rng.below(1 << 30));
        let (Some(round), Some(speed)) = (round, speed) else {
            return;
        };
        let (from, room) = (key.peer(), Room::default());
        let ready = Ready {
            peer: from,
            speed,
            round,
            room,
        };
        let ready = key.signed(&self.manifest.run_id(), ready);
        let message = Message::Ready { ready: Some(ready) };
        self.give(to, Input::Message { from, message });
    }

    pub(super) fn forget_invented(&mut self, i: usize) {
        let liar = self.nodes[i].liar.as_mut().expect("it is one");
        for (peer, to) in std::mem::take(&mut liar.invented) {
            self.give(to, Input::LinkDown { peer });
        }
    }

    /// Where a page is the only cause of trouble: all honest peers come in soon, and no ticket is closed for long.
    pub(super) fn check_visitors(&mut self) {
        // The founder computes its first round alone, the second too if it overlaps, and nearly all of the next, since
        // newcomers begin with a sample. Each may take as long as all peers' work for many.
        if !self.plan.has_page || self.hopeless || self.nodes[0].commits < ALONE {
            return;
        }
        // A member has a sample at least, and a sponsor sends all values of a round to each that follows it.
        let sample_us = self.nodes.iter().map(|node| 1e6 * node.slow / node.speed);
        let round_us = sample_us.fold(self.plan.round_us, f64::max);
        let sent = (4 * self.plan.manifest.layout.len * self.nodes.len()) as f64;
        let sent_us = 1e6 * sent / self.plan.rate_bytes_per_s;
        let path_us = round_us + sent_us + 10.0 * self.plan.latency_us;
        for i in 0..self.nodes.len() {
            if self.manifest.tries_newcomers() && !self.is_mostly_in(i) {
                let (name, situation) = (&self.nodes[i].name, self.situation());
                return self.fail(format!("{name} is kept out again and again: {situation}"));
            }
            let node = &self.nodes[i];
            let is_in = |node: &Node| {
                let peer = node.peer.as_ref();
                peer.is_none_or(|peer| peer.is_member() || peer.head().finished(peer.manifest()))
            };
            if node.is_liar() || is_in(node) {
                self.lies.outside.remove(&i);
                continue;
            }
            let since = *self.lies.outside.entry(i).or_insert(self.now);
            let soon = if node.is_guest { VISIT_US } else { JOIN_US };
            if self.now > since + soon + (CATCH_UP * path_us) as u64 {
                let why = format!("{} does not come in: {}", node.name, self.situation());
                return self.fail(why);
            }
        }
        let members = self.honest().filter(|node| node.is_member());
        let heads = members.filter_map(|node| Some(node.peer.as_ref()?.head()));
        let closed_us = heads.map(|head| head.accounts.longest_wait_us(self.bug)).max();
        if let Some(us) = closed_us.filter(|us| *us > CLOSED_US) {
            self.fail(format!("a ticket of many is closed for {} s", us / 1_000_000));
        }
    }

    /// Whether an honest full member is one for most of the time, but for the time that it takes to come in.
    fn is_mostly_in(&mut self, i: usize) -> bool {
        let node = &self.nodes[i];
        if node.is_liar() || node.is_guest || !node.is_alive() {
            return true;
        }
        let away_us = if node.is_member() { 0 } else { OPERATOR_US };
        let (came, away) = self.lies.away.entry(i).or_insert((self.now, 0));
        *away += away_us;
        *away <= JOIN_US + (self.now - *came) / 5
    }

    /// The founder commits: guests of a page hold up few rounds.
    pub(super) fn check_held_up(&mut self, i: usize, commit: &Commit) {
        if !self.plan.has_page || i > 0 {
            return;
        }
        if commit.record.attempt > 0 {
            self.lies.held_up.push_back(self.now);
        }
        let since = self.now.saturating_sub(MINUTE_US);
        while self.lies.held_up.front().is_some_and(|at| *at < since) {
            self.lies.held_up.pop_front();
        }
        if self.lies.held_up.len() > HELD_UP {
            let count = self.lies.held_up.len();
            self.fail(format!("guests of one ticket hold up {count} rounds in a minute"));
        }
    }
}
