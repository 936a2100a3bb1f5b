//! Plays a run until its members are at rest: everybody has done what the ledger suggests.
//!
//! With this you can plan a run before it begins. Members follow the same rules as in a run, so the outcome is what a
//! run of the same machines comes to.

use crate::access::invitation::{Admission, Invitation};
use crate::access::signature::{Key, Signed};
use crate::base::id::{Contact, Digest, PeerId};
use crate::ledger::keeps::{Keeper, Keeps};
use crate::ledger::shifts::{ASKS, ROUNDS};
use crate::ledger::{Head, Header, Member, Record, Trials};
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::run::room::Room;

/// The play ends after this many rounds, even if something is still changing.
const MOST_ROUNDS: u64 = 2000;

/// A machine in a planned run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Samples of the whole model that it computes in 1,000 seconds, if it computes the forward pass once.
    pub speed: u64,
    /// Its room for spans, if the model is split.
    pub room: Room,
    /// Kilobytes per second of its line.
    pub line: u32,
}

impl Head {
    /// The head of a run of these machines at rest. The first one founds it, and each other one joins when those before
    /// it have settled. Members are in the order of the machines.
    ///
    /// # Panics
    /// If there are none, or more than 255.
    pub fn at_rest(manifest: &Manifest, machines: &[Machine]) -> Self {
        // Standing aside depends on the time of rounds, which is not played.
        let manifest = &Manifest {
            stand_aside: false,
            ..manifest.clone()
        };
        let root = manifest.root();
        let own = Invitation::of_run(Key::from_seed(&[0; 32]));
        let member = |at: usize| {
            let peer = PeerId([u8::try_from(at + 1).expect("at most 255 machines"); 32]);
            planned(peer, own.admit(peer, root.run), &machines[at])
        };
        let mut head = Self::genesis(manifest, member(0));
        let mut quiet = 0;
        for _ in 0..MOST_ROUNDS {
            let count = head.members.len();
            match quiet {
                0 => {}
                _ if count < machines.len() => {
                    head.members.push(member(count));
                    quiet = 0;
                }
                // Speeds matter once all machines are there and enough rounds have asked for the same change.
                _ if quiet > ROUNDS + u64::from(ASKS) + 1 => break,
                _ => {}
            }
            let speeds = head.speeds(manifest, machines);
            let done = head.next_as_suggested(manifest, &speeds, quiet > 1);
            // Nothing was computed, so all samples are still to be handed out.
            (head.samples, head.skipped, head.cursor) = (0, 0, 0);
            head.holes.clear();
            head.ahead.clear();
            quiet = if done && head.shifts.under_way.is_none() {
                quiet + 1
            } else {
                0
            };
        }
        head.members
            .iter_mut()
            .for_each(|member| member.trials = Trials::default());
        head
    }

    /// Members' speeds as headers would report them: if the model is split, in samples of a span of average cost. A
    /// holder of any span but the last computes forward passes twice, so it takes a third longer.
    fn speeds(&self, manifest: &Manifest, machines: &[Machine]) -> Vec<u64> {
        let (Some(split), Some(parts)) = (self.split(manifest), Parts::of(manifest)) else {
            return machines.iter().map(|machine| machine.speed).collect();
        };
        let (spans, needs) = (split.spans.len(), split.needs(parts));
        let speed = |(member, machine): (&Member, &Machine)| {
            let held = (0..spans).filter(|span| member.keeper.holds(*span, &needs));
            let (mut once, mut takes) = (0, 0);
            for span in held {
                let cost = u128::from(split.cost(split.span(span)));
                once += 3 * cost;
                takes += if span + 1 == spans { 3 * cost } else { 4 * cost };
            }
            let all = u128::from(machine.speed) * spans as u128;
            (all * once.max(3) / takes.max(4)) as u64
        };
        self.members.iter().zip(machines).map(speed).collect()
    }

    /// Plays a round without samples, in which members with these speeds do what is suggested. A part that a member
    /// fetches is there a round later. Returns whether nobody had anything to fetch or to drop; `idle` says that this
    /// is already known.
    pub(crate) fn next_as_suggested(&mut self, manifest: &Manifest, speeds: &[u64], idle: bool) -> bool {
        let lacks = self.lacks(manifest, |_| true);
        let mut is_done = true;
        let mut keeps = |member: &Member| {
            let keeper = member.keeper;
            let (learns, drops) = match idle {
                true => Default::default(),
                false => self.suggest(manifest, member.peer),
            };
            is_done &= keeper.learns.is_empty() && learns.is_empty() && drops.is_empty();
            let anew = learns.and(&lacks).and(&self.untrained);
            let kept: PartSet = keeper.kept.or(&keeper.learns.without(&lacks)).or(&anew);
            Keeps {
                digests: vec![0; kept.len()],
                learns: learns.or(&keeper.learns).without(&kept),
                drops: drops.and(&kept),
                kept,
                room: keeper.room,
                line: keeper.line,
                ..Keeps::default()
            }
        };
        let header = |(member, speed): (&Member, &u64)| Header {
            peer: member.peer,
            weight: 0,
            loss: 0.0,
            speed: *speed,
            compute_us: 1,
            exchange_us: 0,
            round_us: 0,
            digest: Digest([0; 32]),
            ahead: false,
            anew: false,
            ready: Vec::new(),
            revoked: Vec::new(),
            stalled: false,
            late: false,
            leaving: false,
            keeps: keeps(member),
        };
        let unsigned = |content| Signed {
            content,
            signature: [0; 64].into(),
        };
        let headers = self.members.iter().zip(speeds).map(header).map(unsigned);
        let record = Record {
            round: self.round + 1,
            attempt: 0,
            headers: headers.collect(),
        };
        self.apply(&record, manifest);
        is_done
    }
}

fn planned(peer: PeerId, admission: Admission, machine: &Machine) -> Member {
    Member {
        peer,
        admission,
        speed: machine.speed,
        contact: Contact::default(),
        trials: Trials::default(),
        keeper: Keeper {
            room: machine.room,
            line: machine.line,
            ..Keeper::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::stand_ins::spans::{cut, head, held, manifest, settle};

    fn machine(speed: u64, spans: u16) -> Machine {
        Machine {
            speed,
            room: Room::of(spans),
            line: 10_000,
        }
    }

    #[test]
    fn at_rest_each_span_has_its_holders_and_nobody_has_anything_to_do() {
        for (copies, rooms, expected) in [
            (2, &[1u16, 1, 1, 1][..], &[1usize, 1, 1, 1][..]),
            (2, &[1, 1, 1, 1, 1, 1, 1, 1], &[2, 2, 2, 2]),
            (2, &[4, 2, 2], &[2, 2, 2, 2]),
            (1, &[4, 4], &[1, 1, 1, 1]),
        ] {
            let manifest = manifest(copies, 4);
            let machines: Vec<Machine> = rooms.iter().map(|spans| machine(1000, *spans)).collect();
            let head = Head::at_rest(&manifest, &machines);
            assert_eq!(head.members.len(), machines.len());
            assert!(head.all_train(&manifest), "{rooms:?}");
            let held = held(&head, &manifest);
            let holders = |span: usize| held.iter().filter(|spans| spans.contains(&span)).count();
            // The parts of two other spans may include all parts of a third, which its holder then holds as well.
            let enough = (0..4).zip(expected).all(|(span, least)| holders(span) >= *least);
            assert!(enough, "{rooms:?}: {held:?}");
            for (member, (spans, room)) in head.members.iter().zip(held.iter().zip(rooms)) {
                let (learns, drops) = head.suggest(&manifest, member.peer);
                assert!(learns.is_empty() && drops.is_empty() && spans.len() <= usize::from(*room));
            }
        }
    }

    #[test]
    fn who_is_slow_comes_to_have_fewer_steps_and_who_has_no_room_is_left_without() {
        let mut manifest = manifest(1, 4);
        cut(&mut manifest, &[4, 4]);
        let steps = |speeds: [u64; 2]| {
            let head = Head::at_rest(&manifest, &speeds.map(|speed| machine(speed, 1)));
            head.spans.iter().map(|steps| steps.get()).collect::<Vec<_>>()
        };
        assert_eq!(steps([1000, 1000]), [4, 4]);
        // The second computes its forward passes once, so it has 40 % of the speed of the first.
        assert_eq!(steps([4000, 1200]), [6, 2]);
        let none = Machine {
            room: Room {
                parts: 0,
                ..Room::of(1)
            },
            ..machine(1000, 1)
        };
        let head = Head::at_rest(&manifest, &[machine(1000, 1), none, machine(1000, 1)]);
        assert_eq!(held(&head, &manifest), [vec![0], vec![], vec![1]]);
    }

    /// The parts of the last span include those that a member has for another, so it has room for the last one too.
    #[test]
    fn a_span_that_needs_parts_of_others_takes_their_room() {
        let mut manifest = manifest(1, 1);
        let parts = Parts::of(&manifest).expect("it has parts");
        let all_but_1: Vec<u16> = parts.iter().filter(|part| *part != 1).collect();
        let needed = [&[0][..], &[0, 1], &[1, 2], &[2], &all_but_1];
        let split = manifest.split.as_mut().expect("it is split");
        split.spans = vec![std::num::NonZeroU16::MIN; needed.len()];
        split.steps.truncate(needed.len());
        for (step, (needed, at)) in split.steps.iter_mut().zip(needed.iter().zip(0..)) {
            let one = |part: &u16| parts.range(*part).expect("it is one of them").start + at;
            step.ranges = needed.iter().map(one).map(|at| at..at + 1).collect();
        }
        let mut head = head(&manifest, &[&[0, 1, 2, 3], &[0, 1]]);
        head.untrained = parts.all();
        head.members[0].keeper.room = Room::of(2);
        head.members[1].keeper.room = Room::inner(3);
        assert!(!head.all_train(&manifest), "nobody has the last one");
        settle(&mut head, &manifest);
        assert!(head.all_train(&manifest), "{:?}", held(&head, &manifest));
    }

    #[test]
    fn of_whole_models_members_share_the_optimizers_vectors_alone() {
        let whole = Manifest {
            split: None,
            ..manifest(2, 1)
        };
        let head = Head::at_rest(&whole, &[machine(1000, 0); 4]);
        let kept: Vec<usize> = head.members.iter().map(|m| m.keeper.kept.len()).collect();
        let parts = Parts::of(&whole).unwrap().count();
        assert_eq!(kept.iter().sum::<usize>(), 2 * parts);
        assert!(kept.iter().all(|kept| *kept <= parts / 2 + 1), "{kept:?}");
        let replicas = Manifest {
            copies: None,
            ..whole
        };
        assert!(Head::at_rest(&replicas, &[machine(1, 0); 2]).all_train(&replicas));
    }
}
