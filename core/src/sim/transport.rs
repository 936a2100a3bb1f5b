//! The transport: what happens to messages and dials on the links of `net`.

use super::plan::Shelter;
use super::trace;
use super::world::{What, World};
use crate::base::id::{Contact, PeerId};
use crate::peer::{Input, Lane};
use crate::wire::Message;
use std::time::Duration;

/// A dial gives up after this long.
const DIAL_US: u64 = 4_000_000;

impl World {
    pub(super) fn send(&mut self, from: usize, to: PeerId, lane: Lane, message: Message) {
        if self.lies.invented.contains(&to) {
            return;
        }
        let Some(&to) = self.by_id.get(&to) else {
            return self.fail(format!(
                "{} sends to a peer that never was",
                self.nodes[from].name
            ));
        };
        if to == from {
            return self.fail(format!("{} sends to itself", self.nodes[from].name));
        }
        self.note_said(from, &message);
        // Without a connection the transport drops messages; the peer has been told or will be.
        if !self.net.is_up(from, to) {
            return;
        }
        let message = if self.plan.frames {
            self.through_bytes(message)
        } else {
            message
        };
        self.put_on_link(from, to, lane, message);
    }

    pub(super) fn put_on_link(&mut self, from: usize, to: usize, lane: Lane, message: Message) {
        if self.net.way(from, to).blocked > 0 {
            self.net.way(from, to).held.push((lane, message));
            return;
        }
        let at = self
            .net
            .arrival(self.now, from, to, lane, &message, &mut self.delays);
        let connection = self.net.link(from, to).connection;
        self.schedule(
            at,
            What::Deliver {
                from,
                to,
                connection,
                message: Box::new(message),
            },
        );
    }

    pub(super) fn through_bytes(&mut self, message: Message) -> Message {
        let frame = message.to_frame();
        match Message::decode(frame.clone()) {
            Ok(read) if read.to_frame() == frame => read,
            Ok(_) => {
                self.fail("a message changed on its way through bytes".into());
                message
            }
            Err(error) => {
                self.fail(format!(
                    "an own frame cannot be read: {error}: {}",
                    trace::message(self, &message)
                ));
                message
            }
        }
    }

    pub(super) fn deliver(&mut self, from: usize, to: usize, connection: u32, message: Message) {
        if self.net.link(from, to).connection != connection || !self.net.is_up(to, from) {
            return;
        }
        self.stats.messages += 1;
        self.hear(to, &message);
        let from = self.nodes[from].id;
        self.give(to, Input::Message { from, message });
    }

    pub(super) fn dial(&mut self, from: usize, peer: PeerId, contact: &Contact) {
        let number = contact
            .0
            .first()
            .and_then(|a| a.strip_prefix("sim:"))
            .and_then(|n| n.parse::<usize>().ok());
        let target = number.filter(|to| self.nodes.get(*to).is_some_and(|n| n.id == peer));
        let Some(to) = target.filter(|to| *to != from) else {
            return self.schedule(self.now + 100, What::DialFailed { from, peer });
        };
        self.dials.insert((from, to));
        let at = self.now + self.net.round_trip_us(from, to) * 3 / 2;
        self.schedule(
            at,
            What::Dialled {
                from,
                to,
                deadline: self.now + DIAL_US,
            },
        );
    }

    pub(super) fn dialled(&mut self, from: usize, to: usize, deadline: u64) {
        if !self.nodes[from].is_alive() {
            self.dials.remove(&(from, to));
            return;
        }
        let peer = self.nodes[to].id;
        let open = self.net.is_open(from, to) && self.gets_in(from, to);
        let answers = open && self.nodes[to].is_alive() && !self.nodes[to].frozen;
        if !answers {
            // A dead process refuses at once or not at all, depending on its system.
            let refused = !self.nodes[to].is_alive() && open && self.delays.chance(0.5);
            if refused || self.now >= deadline {
                self.dials.remove(&(from, to));
                return self.give(from, Input::DialFailed { peer, barred: None });
            }
            let again = (self.now + 500_000).min(deadline);
            return self.schedule(again, What::Dialled { from, to, deadline });
        }
        let punched = !self.nodes[to].dialable;
        self.dials.remove(&(from, to));
        if self.net.is_up(from, to) && self.net.is_up(to, from) {
            return;
        }
        self.stats.punched += u64::from(punched);
        // An end that has not noticed the end of the old connection notices now.
        self.take_down(from, to);
        self.take_down(to, from);
        self.net.connect(from, to);
        for (end, other) in [(to, from), (from, to)] {
            let contact = self.contact(other);
            let peer = self.nodes[other].id;
            let rtt = Duration::from_micros(self.net.round_trip_us(end, other));
            self.give(end, Input::LinkUp { peer, contact, rtt });
        }
    }

    /// Whether packets of a dialling peer reach the other, whose router admits only peers that it has sent some to.
    fn gets_in(&self, from: usize, to: usize) -> bool {
        if self.nodes[to].dialable {
            return true;
        }
        let is_steady = |i: usize| self.nodes[i].dialable || self.plan.shelter(i) == Shelter::Router;
        self.dials.contains(&(to, from)) && is_steady(from) && is_steady(to)
    }

    /// Whether enough honest peers for a round can link to each other, one of them to all: behind routers of all
    /// sorts they may know each other only through a liar.
    pub(super) fn meet_honestly(&self) -> bool {
        let alive = |i: &usize| self.nodes[*i].is_alive() && !self.nodes[*i].is_liar();
        let honest: Vec<usize> = (0..self.nodes.len()).filter(alive).collect();
        let open = |i: usize| self.nodes[i].dialable;
        let steady = |i: usize| open(i) || self.plan.shelter(i) == Shelter::Router;
        let meet = |a: usize, b: usize| a == b || open(a) || open(b) || (steady(a) && steady(b));
        let around = |hub: &usize| honest.iter().filter(|other| meet(*hub, **other)).count();
        let enough = usize::from(self.plan.manifest.min_peers.get());
        honest.iter().any(|hub| around(hub) >= enough)
    }

    pub(super) fn contact(&self, i: usize) -> Contact {
        let seen = self.nodes[i].dialable || self.plan.shelter(i) != Shelter::Tab;
        Contact(if seen {
            vec![format!("sim:{i}")]
        } else {
            Vec::new()
        })
    }

    /// An end learns that its connection is gone.
    pub(super) fn take_down(&mut self, end: usize, other: usize) {
        if self.net.set_up(end, other, false) {
            self.net.way(end, other).held.clear();
            let peer = self.nodes[other].id;
            self.give(end, Input::LinkDown { peer });
        }
    }

    pub(super) fn down_at(&mut self, at: u64, end: usize, other: usize) {
        let connection = self.net.link(end, other).connection;
        self.schedule(
            at,
            What::Down {
                end,
                other,
                connection,
            },
        );
    }

    pub(super) fn break_link(&mut self, a: usize, b: usize) {
        for (end, other) in [(a, b), (b, a)] {
            let wait = self.delays.below(1 + 2 * self.net.round_trip_us(a, b));
            self.down_at(self.now + wait, end, other);
        }
    }

    pub(super) fn block(&mut self, from: usize, to: usize) {
        self.net.way(from, to).blocked += 1;
        let link = self.net.link(from, to);
        link.version += 1;
        let version = link.version;
        self.schedule(
            self.now + self.plan.idle_us,
            What::Silent {
                a: from,
                b: to,
                version,
            },
        );
    }

    pub(super) fn unblock(&mut self, from: usize, to: usize) {
        let way = self.net.way(from, to);
        way.blocked = way.blocked.saturating_sub(1);
        if way.blocked > 0 {
            return;
        }
        let held = std::mem::take(&mut way.held);
        let link = self.net.link(from, to);
        if link.ways.iter().all(|w| w.blocked == 0) {
            link.version += 1;
        }
        if self.net.is_up(from, to) {
            held.into_iter()
                .for_each(|(lane, message)| self.put_on_link(from, to, lane, message));
        }
    }

    /// A link has been silent for too long, so each end gives it up.
    pub(super) fn silent(&mut self, a: usize, b: usize, version: u32) {
        if self.net.link(a, b).version != version || self.net.is_open(a, b) {
            return;
        }
        for (end, other) in [(a, b), (b, a)] {
            let wait = self.delays.below(1_000_000);
            self.down_at(self.now + wait, end, other);
        }
    }
}
