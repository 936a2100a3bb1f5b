//! Limits sponsors whose newcomers do not come: a function of the records alone, so that all members agree on it.
//!
//! A round waits for an admitted newcomer that is not there as long as for a member that died. So the holder of a
//! ticket could name invented newcomers in every round, and hardly a round would succeed. Therefore a sponsor whose
//! newcomer does not come may name nobody for some rounds. The pause doubles each time, up to a bound, and halves
//! for each newcomer that comes. If a sponsor has bad luck, its newcomers wait or go to another one, while the
//! rounds go on.

use crate::base::id::{PeerId, Round};
use crate::run::config::MAX_PEERS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most newcomers named in one header. A guess: one sponsor then fills a view of 64 in eight rounds.
pub const MAX_NAMED: usize = 8;

/// Most doublings of a sponsor's pause: 64 rounds.
const MAX_MISSED: u8 = 6;

/// The longest pause, in compute time of rounds, but at least two rounds. Waiting for a newcomer that does not come
/// takes a second or two. With rounds of half a minute, a pause of 64 rounds would keep newcomers out for half an
/// hour to save that.
const LONGEST_US: u64 = 60_000_000;

/// A member whose newcomers did not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Namer {
    peer: PeerId,
    /// Rounds in which one did not come, minus those in which all came.
    missed: u8,
    /// The first round in which it may name a newcomer again.
    barred_until: Round,
}

/// The newcomers that members have named, and whether they came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admissions {
    /// Newcomers that the last round admitted, each with the member that named it.
    fresh: Vec<(PeerId, PeerId)>,
    /// Members whose newcomers did not come, ordered by name.
    namers: Vec<Namer>,
}

impl Admissions {
    /// Whether a member may name newcomers in an attempt at a round, given all full members and the members that
    /// take part.
    pub(crate) fn may_name(
        &self,
        peer: PeerId,
        round: Round,
        full: impl Iterator<Item = PeerId>,
        takes_part: impl Fn(PeerId) -> bool,
    ) -> bool {
        let mut its_own = self.fresh.iter().filter(|(_, by)| *by == peer);
        !self.is_barred(peer, round, full) && its_own.all(|(newcomer, _)| takes_part(*newcomer))
    }

    /// Whether a member may not name newcomers in a round because earlier ones did not come. If all full members
    /// are barred, the one whose pause ends first may still name some; otherwise nobody could come in for long.
    pub(crate) fn is_barred(
        &self,
        peer: PeerId,
        round: Round,
        mut full: impl Iterator<Item = PeerId>,
    ) -> bool {
        let until = |peer| {
            let namer = self.namers.iter().find(|namer| namer.peer == peer);
            namer.map_or(0, |namer| namer.barred_until)
        };
        let own = until(peer);
        own > round && full.any(|other| (until(other), other) < (own, peer))
    }

    /// Whether the last round admitted a peer.
    pub(crate) fn is_fresh(&self, peer: PeerId) -> bool {
        self.fresh.iter().any(|(newcomer, _)| *newcomer == peer)
    }

    /// Applies a round with its compute time: the peers that took part, the next members, and who named the new
    /// ones.
    pub(crate) fn apply(
        &mut self,
        (round, compute_us): (Round, u64),
        took_part: impl Fn(PeerId) -> bool,
        next: &[PeerId],
        named_by: impl Fn(PeerId) -> Option<PeerId>,
    ) {
        // For each sponsor, whether all its newcomers came.
        let mut came: BTreeMap<PeerId, bool> = BTreeMap::new();
        for (newcomer, by) in self.fresh.drain(..) {
            *came.entry(by).or_insert(true) &= took_part(newcomer);
        }
        for (peer, came) in came {
            self.judge(peer, came, (round, compute_us));
        }
        self.namers
            .retain(|n| n.barred_until > round || (n.missed > 0 && next.contains(&n.peer)));
        let new = next.iter().copied().filter(|peer| !took_part(*peer));
        self.fresh = new.filter_map(|peer| Some((peer, named_by(peer)?))).collect();
    }

    fn judge(&mut self, peer: PeerId, came: bool, (round, compute_us): (Round, u64)) {
        let place = self.namers.binary_search_by_key(&peer, |namer| namer.peer);
        match place {
            Ok(place) if came => self.namers[place].missed = self.namers[place].missed.saturating_sub(1),
            Err(_) if came || self.namers.len() >= MAX_PEERS => {}
            Ok(place) | Err(place) => {
                if place == self.namers.len() || self.namers[place].peer != peer {
                    let namer = Namer {
                        peer,
                        missed: 0,
                        barred_until: 0,
                    };
                    self.namers.insert(place, namer);
                }
                let namer = &mut self.namers[place];
                namer.missed = (namer.missed + 1).min(MAX_MISSED);
                let longest = (LONGEST_US / compute_us.max(1)).max(2);
                namer.barred_until = round + 1 + (1 << namer.missed).min(longest);
            }
        }
    }

    /// Whether records can lead to it.
    pub(crate) fn is_sound(&self, is_member: impl Fn(PeerId) -> bool) -> bool {
        self.fresh.len() <= MAX_PEERS
            && self.fresh.iter().all(|(newcomer, _)| is_member(*newcomer))
            && self.namers.len() <= MAX_PEERS
            && self.namers.is_sorted_by(|a, b| a.peer < b.peer)
            && self.namers.iter().all(|namer| namer.missed <= MAX_MISSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::invitation::Admission;
    use crate::access::signature::{Key, Scheme};
    use crate::base::id::{Contact, Digest};
    use crate::ledger::check::RecordError;
    use crate::ledger::{Head, Header, Member, Newcomer, Ready, Record};
    use crate::run::config::{Layout, Manifest, Settings};
    use crate::run::room::Room;

    fn member(name: u8) -> Member {
        let settings = Settings::stand_in(PeerId([name; 32]), Contact::default(), &manifest());
        Member::new(&settings, Some(1000))
    }

    fn manifest() -> Manifest {
        Manifest {
            samples: 100.try_into().unwrap(),
            target: 10_000.try_into().unwrap(),
            batch: 1.try_into().unwrap(),
            ..Manifest::new(Layout::flat(3))
        }
    }

    /// A head of two members, and the record in which the first names a newcomer.
    fn head() -> (Head, Manifest) {
        let manifest = manifest();
        let mut head = Head::genesis(&manifest, member(1));
        head.members.push(member(2));
        (head, manifest)
    }

    fn newcomer(name: u8, round: Round) -> Newcomer {
        let (peer, speed) = (PeerId([name; 32]), 1000);
        let ready = Ready {
            peer,
            speed,
            round,
            room: Room::default(),
        };
        Newcomer {
            ready: Key::stand_in(peer).signed(&manifest().run_id(), ready),
            admission: Admission::stand_in(peer, manifest().root()),
            contact: Contact::default(),
        }
    }

    /// The next round among these, in which the first names somebody.
    fn next(head: &Head, who: &[u8], named: Option<u8>) -> Record {
        let header = |name: &u8| Header {
            speed: 1000,
            digest: Digest([7; 32]),
            ready: named
                .filter(|_| *name == 1)
                .map(|name| newcomer(name, head.round))
                .into_iter()
                .collect(),
            ..Header::stand_in(PeerId([*name; 32]))
        };
        let mut record = Record::signed_by_stand_ins(head, who.iter().map(header).collect());
        record.attempt = u32::from(who.len() < head.members.len());
        record.sign_by_stand_ins(head);
        record
    }

    fn check(head: &Head, record: &Record, manifest: &Manifest) -> Result<(), RecordError> {
        head.check(record, manifest, Scheme::StandIn)
    }

    /// The number of rounds without a newcomer until the first member may name one.
    fn barred_for(head: &mut Head, manifest: &Manifest) -> u32 {
        for rounds in 0.. {
            let naming = next(head, &[1, 2], Some(9));
            if check(head, &naming, manifest).is_ok() {
                return rounds;
            }
            let plain = next(head, &[1, 2], None);
            assert_eq!(check(head, &plain, manifest), Ok(()));
            head.apply(&plain, manifest);
        }
        unreachable!("it is barred for ever");
    }

    #[test]
    fn who_names_such_as_do_not_come_names_nobody_for_longer_and_longer() {
        let (mut head, manifest) = head();
        for rounds in [2, 4, 8, 16, 32, 64, 64] {
            head.apply(&next(&head, &[1, 2], Some(9)), &manifest);
            assert_eq!(head.members.len(), 3);
            // It does not come; its sponsor names no other in the attempt that goes on without it.
            let again = next(&head, &[1, 2], Some(8));
            assert!(check(&head, &again, &manifest).is_err());
            head.apply(&next(&head, &[1, 2], None), &manifest);
            assert!(head.admissions.is_sound(|peer| head.position(peer).is_some()));
            assert_eq!(barred_for(&mut head, &manifest), rounds);
        }
    }

    #[test]
    fn nobody_is_kept_out_for_much_longer_than_a_wait_for_newcomers_takes() {
        let [one, two, nine] = [1, 2, 9].map(|name| PeerId([name; 32]));
        for (seconds, most) in [(0, 64), (1, 60), (10, 6), (30, 2), (1000, 2)] {
            let (mut admissions, mut round) = (Admissions::default(), 0);
            for times in 1..8 {
                // It is named, and does not come.
                let compute_us = seconds * 1_000_000;
                let took_part = |peer| peer != nine;
                admissions.apply((round + 1, compute_us), took_part, &[one, two, nine], |_| {
                    Some(one)
                });
                admissions.apply((round + 2, compute_us), took_part, &[one, two], |_| None);
                round += 3;
                let begin = round;
                while admissions.is_barred(one, round, [one, two].into_iter()) {
                    admissions.apply((round, compute_us), took_part, &[one, two], |_| None);
                    round += 1;
                }
                assert_eq!(round - begin, most.min(1 << times), "{seconds} s");
            }
        }
    }

    #[test]
    fn where_all_are_barred_the_one_whose_time_is_over_first_names_newcomers() {
        let (mut head, manifest) = head();
        for _ in 0..3 {
            head.apply(&next(&head, &[1, 2], Some(9)), &manifest);
            head.apply(&next(&head, &[1, 2], None), &manifest);
        }
        assert!(check(&head, &next(&head, &[1, 2], Some(9)), &manifest).is_err());
        // The other leaves.
        let mut goodbye = next(&head, &[1, 2], None);
        goodbye.headers[1].content.leaving = true;
        goodbye.sign_by_stand_ins(&head);
        head.apply(&goodbye, &manifest);
        assert_eq!(check(&head, &next(&head, &[1], Some(9)), &manifest), Ok(()));
    }

    #[test]
    fn who_names_such_as_come_may_name_others_at_once() {
        let (mut head, manifest) = head();
        head.apply(&next(&head, &[1, 2], Some(9)), &manifest);
        let three = next(&head, &[1, 2, 9], Some(8));
        assert_eq!(check(&head, &three, &manifest), Ok(()));
        head.apply(&three, &manifest);
        assert_eq!(head.members.len(), 4);
        assert_eq!(
            check(&head, &next(&head, &[1, 2, 9, 8], Some(7)), &manifest),
            Ok(())
        );
    }

    #[test]
    fn a_run_that_waits_for_members_takes_any() {
        let (mut head, mut manifest) = head();
        manifest.min_peers = 3.try_into().unwrap();
        let run = manifest.run_id();
        for _ in 0..5 {
            let mut naming = next(&head, &[1, 2], Some(9));
            let named = &mut naming.headers[0].content.ready[0];
            named.admission = Admission::stand_in(named.peer(), manifest.root());
            let newcomer = &mut named.ready;
            newcomer.signature = Key::stand_in(newcomer.peer).sign(&run, &newcomer.content);
            naming.sign_by_stand_ins(&head);
            assert_eq!(check(&head, &naming, &manifest), Ok(()));
            head.apply(&naming, &manifest);
        }
    }
}
