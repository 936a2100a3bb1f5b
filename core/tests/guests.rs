//! Guests compute no more than full members do, whatever they claim.

mod story;

use annulus_core::invitation::{Invitation, Role};
use annulus_core::ledger::Record;
use annulus_core::signature::Key;
use annulus_core::{Exit, PeerId, Topology};
use story::*;

/// Full members that each compute 900 samples per second, and guests that claim to be far faster and return at once.
fn with_guests(full: u8, guests: u8, target: u64) -> (Story, Vec<PeerId>, Vec<PeerId>) {
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.batch = 600.try_into().unwrap();
        manifest.samples = 60_000.try_into().unwrap();
        manifest.target = target.try_into().unwrap();
    });
    let name = |n: u8| PeerId([n; 32]);
    let (members, liars): (Vec<PeerId>, Vec<PeerId>) = (
        (1..=full).map(name).collect(),
        (50..50 + guests).map(name).collect(),
    );
    let of_run = Invitation::of_run(Key::stand_in(story.manifest.key));
    let root = story.manifest.root();
    let page = of_run
        .narrow(root, Key::stand_in(name(99)), Role::Contribute, None, None)
        .unwrap();
    for who in &members {
        story.pace.insert(*who, 900.0);
    }
    for who in &liars {
        story.admissions.insert(*who, page.admit(*who, root.run));
        story.pace.insert(*who, 1e9);
        // It returns zeros.
        story.gradient.insert(*who, 0.0);
    }
    let all: Vec<PeerId> = members.iter().chain(&liars).copied().collect();
    story.found(all[0], 100 * MILLI);
    for (i, who) in all.iter().enumerate().skip(1) {
        story.join(*who, all[0], 100 * MILLI);
        all[1..i].iter().for_each(|other| story.open(*who, *other));
    }
    (story, members, liars)
}

/// The samples of these peers in a record, and the most that one of them has.
fn of(record: &Record, who: &[PeerId]) -> (u64, u64) {
    let weights = record.headers.iter().filter(|h| who.contains(&h.peer));
    let weights = weights.map(|h| u64::from(h.weight));
    weights.fold((0, 0), |(sum, most), weight| (sum + weight, most.max(weight)))
}

#[test]
fn a_guest_that_claims_a_high_speed_gets_no_more_than_the_fastest_full_member() {
    for (full, guests) in [(3, 1), (8, 1), (1, 1), (2, 6)] {
        let (mut story, members, liars) = with_guests(full, guests, 10_000_000);
        story.run(60 * SECOND);
        assert!(story.are_together(&[&members[..], &liars].concat()));
        let (mut of_guests, mut of_all) = (0, 0);
        for record in story.records(ANN).skip(40) {
            let ((guests, most), (rest, fastest)) = (of(record, &liars), of(record, &members));
            assert!(guests <= rest && most <= fastest, "{guests} of {}", guests + rest);
            (of_guests, of_all) = (of_guests + guests, of_all + guests + rest);
        }
        // With three full members a quarter instead of 98.8 of a hundred.
        let fair = of_all / u64::from(full + 1) + of_all / 100;
        assert!(of_guests <= fair || guests > 1, "{of_guests} of {of_all}");
        assert!(of_guests > 0 && 2 * of_guests <= of_all);
    }
}

#[test]
fn a_run_with_guests_ends_by_the_samples_of_full_members() {
    let (mut story, members, liars) = with_guests(3, 2, 30_000);
    story.run(60 * SECOND);
    for who in members.iter().chain(&liars) {
        assert_eq!(story.exits.get(who), Some(&Exit::Finished));
    }
    let records: Vec<&Record> = story.records(ANN).collect();
    let worked = records.iter().filter(|record| of(record, &liars).0 > 0).count();
    assert!(worked > 10, "guests take part before");
    assert_eq!(of(records.last().unwrap(), &liars).0, 0);
    let honest: u64 = records.iter().map(|record| of(record, &members).0).sum();
    assert!(2 * honest >= 30_000);
}

#[test]
fn a_guest_whose_losses_are_unlike_the_others_gets_less_and_less() {
    let (mut story, members, liars) = with_guests(3, 1, 10_000_000);
    // It says that its samples have none.
    story.losses.insert(liars[0], 0.0);
    story.run(60 * SECOND);
    assert!(story.are_together(&[&members[..], &liars].concat()));
    let last = story.records(ANN).last().unwrap();
    assert!(of(last, &liars).0 <= 1, "{:?}", of(last, &liars));
}
