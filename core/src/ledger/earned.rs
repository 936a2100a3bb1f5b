//! How many samples each member gets in a round: by the speed that each claims, and guests within bounds.
//!
//! A claim is free, and nobody recomputes what a guest sends. So all guests together get at most half of a round, one
//! guest at most as much as the fastest full member, and none gets any of the samples that end the run. Half as much
//! each time a guest's losses are unlike the full members'.

use crate::base::id::Round;
use crate::base::planted::{self, Bug};
use crate::base::quotas::{Limit, quotas};
use crate::ledger::Member;

/// Splits a round's samples among its members. `ends` says that no others are left.
pub(crate) fn shares(total: u64, members: &[Member], round: Round, ends: bool) -> Vec<u64> {
    let of_full: Vec<&Member> = members.iter().filter(|m| m.is_full()).collect();
    let is_mixed = !of_full.is_empty() && of_full.len() < members.len();
    if !is_mixed || planted::here(Bug::TrustGuests) {
        return quotas(total, &limits(&members.iter().collect::<Vec<_>>(), round));
    }
    let full = limits(&of_full, round);
    let fastest = of_full.iter().map(|m| m.speed).max().unwrap_or(0);
    let guests: Vec<Limit> = members
        .iter()
        .filter(|m| !m.is_full())
        .map(|guest| Limit {
            speed: (guest.speed.min(fastest) >> guest.trials.doubt).max(1),
            most: match guest.trials.delivered {
                _ if guest.trials.rests_until > round => 0,
                false => 1,
                true => u64::MAX,
            },
        })
        .collect();
    let all: Vec<Limit> = guests.iter().chain(&full).copied().collect();
    let by_speed: u64 = quotas(total, &all)[..guests.len()].iter().sum();
    let given = match ends && !planted::here(Bug::GuestsEnd) {
        true => 0,
        false => by_speed.min(total / 2),
    };
    let of_members = quotas(total - given, &full);
    let most = of_members.iter().max().copied().unwrap_or(0);
    let of_guests: Vec<u64> = quotas(given, &guests).into_iter().map(|n| n.min(most)).collect();
    // Full members compute all that guests may not.
    let of_members = quotas(total - of_guests.iter().sum::<u64>(), &full);
    let (mut of_members, mut of_guests) = (of_members.into_iter(), of_guests.into_iter());
    let next = |member: &Member| match member.is_full() {
        true => of_members.next(),
        false => of_guests.next(),
    };
    members.iter().map(next).map(Option::unwrap_or_default).collect()
}

/// The limit of each member. A member that has not delivered yet gets one sample, to prove its claimed speed. A
/// member that has refused shares rests. Both apply only while other members are there.
fn limits(members: &[&Member], round: Round) -> Vec<Limit> {
    let rests = |member: &Member| member.trials.rests_until > round;
    let proven = members.iter().any(|m| m.trials.delivered && !rests(m));
    let awake = members.iter().any(|m| !rests(m));
    let most = |member: &Member| match member.trials.delivered {
        _ if rests(member) && awake => 0,
        false if proven => 1,
        _ => u64::MAX,
    };
    let limit = |member: &&Member| Limit {
        speed: member.speed.max(1),
        most: most(member),
    };
    members.iter().map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::invitation::{Invitation, Role};
    use crate::access::signature::Key;
    use crate::base::id::{Contact, PeerId};
    use crate::ledger::Trials;
    use crate::run::config::{Layout, Manifest, Settings};
    use proptest::prelude::*;

    fn member(name: u8, role: Role, speed: u64) -> Member {
        let manifest = Manifest::new(Layout::flat(3));
        let (peer, root) = (PeerId([name; 32]), manifest.root());
        let of_run = Invitation::of_run(Key::stand_in(root.key));
        let ticket = of_run
            .narrow(root, Key::stand_in(peer), role, None, None)
            .unwrap();
        let settings = Settings::stand_in(peer, Contact::default(), &manifest);
        Member {
            admission: ticket.admit(peer, root.run),
            speed,
            trials: Trials {
                delivered: true,
                ..Trials::default()
            },
            ..Member::new(&settings, None)
        }
    }

    fn of(total: u64, members: &[Member], ends: bool) -> Vec<u64> {
        shares(total, members, 1, ends)
    }

    #[test]
    fn a_guest_that_claims_to_be_fast_gets_no_more_than_the_fastest_full_member() {
        let (full, guest) = (
            |n| member(n, Role::Member, 1000),
            |n| member(n, Role::Contribute, 1 << 40),
        );
        assert_eq!(
            of(100, &[guest(9), full(1), full(2), full(3)], false),
            [25, 25, 25, 25]
        );
        assert_eq!(of(100, &[full(1), guest(9)], false), [50, 50]);
        assert_eq!(of(1, &[guest(9), full(1)], false), [0, 1]);
        // Many guests share half.
        let many: Vec<Member> = (10..18).map(guest).chain([full(1), full(2)]).collect();
        let shares = of(160, &many, false);
        assert_eq!(
            (shares[..8].iter().sum::<u64>(), &shares[8..]),
            (80, &[40, 40][..])
        );
        // None of those that end the run.
        assert_eq!(of(100, &[full(1), guest(9), full(2)], true), [50, 0, 50]);
    }

    #[test]
    fn a_guest_in_doubt_gets_half_as_much_each_time() {
        let mut guest = member(9, Role::Contribute, 1000);
        let mut share = |doubt| {
            guest.trials.doubt = doubt;
            of(120, &[member(1, Role::Member, 1000), guest.clone()], false)[1]
        };
        assert_eq!([0, 1, 2, 6].map(&mut share), [60, 40, 24, 1]);
    }

    proptest! {
        #[test]
        fn all_is_given_out_and_guests_keep_within_their_bounds(
            total in 0u64..500,
            who in prop::collection::vec((any::<bool>(), 1u64..1_000_000, any::<bool>(), 0u64..3, 0u8..4), 0..9),
            ends: bool,
        ) {
            let role = |full| if full { Role::Member } else { Role::Contribute };
            let mut members = vec![member(0, Role::Member, 777)];
            members.extend((1..).zip(who).map(|(n, (full, speed, delivered, rests_until, doubt))| Member {
                trials: Trials { delivered, rests_until, doubt, ..Trials::default() },
                ..member(n, role(full), speed)
            }));
            let shares = of(total, &members, ends);
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            let by = |full| members.iter().zip(&shares).filter(move |(m, _)| m.is_full() == full).map(|(_, n)| *n);
            prop_assert!(2 * by(false).sum::<u64>() <= total);
            prop_assert!(by(false).max() <= by(true).max());
            prop_assert!(!ends || by(false).sum::<u64>() == 0);
        }
    }
}
