//! Guests compute no more than full members do, whatever they claim, and what they compute is checked.

use crate::story::*;
use annulus_core::codec::Codec;
use annulus_core::invitation::{Invitation, Role};
use annulus_core::ledger::Record;
use annulus_core::planted::Bug;
use annulus_core::signature::Key;
use annulus_core::wire::{Leg, Message};
use annulus_core::{Contact, Event, Exit, Layout, Manifest, Peer, PeerId, Topology};
use std::num::{NonZeroU16, NonZeroU32};

/// Full members that each compute 900 samples per second, and guests that claim to be far faster and return at once.
fn with_guests(full: u8, guests: u8, target: u64) -> (Story, Vec<PeerId>, Vec<PeerId>) {
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.batch = 600.try_into().unwrap();
        manifest.samples = 60_000.try_into().unwrap();
        manifest.target = target.try_into().unwrap();
    });
    let (members, guests) = gather(&mut story, full, guests);
    story.pace.extend(guests.iter().map(|who| (*who, 1e9)));
    (story, members, guests)
}

/// What a page hands out.
fn page(story: &Story) -> Invitation {
    let of_run = Invitation::of_run(Key::stand_in(story.manifest.key));
    let key = Key::stand_in(PeerId([99; 32]));
    of_run
        .narrow(story.manifest.root(), key, Role::Contribute, None, None)
        .unwrap()
}

/// Gathers full members, and guests of a page, with links between any two.
fn gather(story: &mut Story, full: u8, guests: u8) -> (Vec<PeerId>, Vec<PeerId>) {
    let name = |n: u8| PeerId([n; 32]);
    let (members, guests): (Vec<PeerId>, Vec<PeerId>) = (
        (1..=full).map(name).collect(),
        (50..50 + guests).map(name).collect(),
    );
    let (page, root) = (page(story), story.manifest.root());
    for who in &members {
        story.pace.insert(*who, 900.0);
    }
    for who in &guests {
        story.admissions.insert(*who, page.admit(*who, root.run));
        story.pace.insert(*who, 900.0);
    }
    let all: Vec<PeerId> = members.iter().chain(&guests).copied().collect();
    story.found(all[0], 100 * MILLI);
    for (i, who) in all.iter().enumerate().skip(1) {
        story.join(*who, all[0], 100 * MILLI);
        all[1..i].iter().for_each(|other| story.open(*who, *other));
    }
    (members, guests)
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

/// A guest asks for the result again and again. Members that are done leave all the same.
#[test]
fn a_guest_keeps_no_member_from_leaving_at_the_end() {
    let (mut story, members, _) = with_guests(2, 0, 6_000);
    let visitor = PeerId([77; 32]);
    let admission = page(&story).admit(visitor, story.manifest.root().run);
    for who in &members {
        story.open(visitor, *who);
    }
    let follow = || Message::Follow {
        have: None,
        admission: Box::new(admission.clone()),
        contact: Contact::default(),
    };
    let mut ended = None;
    for second in 0..400 {
        story.run(SECOND);
        let is_done = |who: &PeerId| story.exits.contains_key(who);
        if members.iter().all(is_done) {
            break;
        }
        let finished = |who: &PeerId| story.peers[who].head().finished(&story.manifest);
        if members.iter().all(finished) {
            let since = *ended.get_or_insert(second);
            assert!(second - since < 90, "a guest holds {:?}", story.exits);
            for who in &members {
                story.say(visitor, *who, follow());
                story.say(visitor, *who, Message::Fetch { block: 0 });
            }
        }
    }
    assert!(ended.is_some(), "the run has an end");
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

/// Three members and a guest learn by Adam without clipping, the guest's values are huge for two seconds, and all learn
/// on. Returns the largest distance of a weight from its optimum.
fn after_huge_values(huge: Option<f32>) -> f32 {
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.layout = Layout::flat(512);
        manifest.piece = NonZeroU32::new(64).unwrap();
        manifest.batch = 600.try_into().unwrap();
        manifest.target = 10_000_000.try_into().unwrap();
        (manifest.optimizer, manifest.lr) = ("adam".parse().unwrap(), 0.01);
    });
    story.optimum = Some(1.0);
    let (_, guests) = gather(&mut story, 3, 1);
    story.run(10 * SECOND);
    story.gradient.extend(huge.map(|huge| (guests[0], huge)));
    story.run(2 * SECOND);
    story.gradient.clear();
    story.run(10 * SECOND);
    assert!(story.exits.is_empty());
    story.farthest(ANN)
}

#[test]
fn huge_values_of_a_guest_do_not_hold_up_learning() {
    let honest = after_huge_values(None);
    for huge in [1e3, -1e3, 1e18, -1e30] {
        let off = after_huge_values(Some(huge));
        assert!(off < honest + 0.05, "{huge}: {off} instead of {honest}");
    }
}

/// Full members and guests learn 1,024 weights for a minute with clipping, after `change`. Returns the largest distance of
/// a weight from its optimum, which is a half at first.
fn after_a_minute(
    (full, guests): (u8, u8),
    topology: Topology,
    (optimizer, lr): (&str, f32),
    change: impl FnOnce(&mut Story),
) -> f32 {
    let mut story = Story::with(topology, |manifest| {
        manifest.layout = Layout::flat(1024);
        manifest.piece = NonZeroU32::new(64).unwrap();
        manifest.batch = 600.try_into().unwrap();
        manifest.target = 10_000_000.try_into().unwrap();
        (manifest.optimizer, manifest.lr) = (optimizer.parse().unwrap(), lr);
        manifest.clip = Some(1.0);
    });
    story.optimum = Some(1.0);
    change(&mut story);
    let (members, guests) = gather(&mut story, full, guests);
    story.run(60 * SECOND);
    assert!(story.exits.is_empty() && story.are_together(&[members, guests].concat()));
    story.farthest(ANN)
}

const OPTIMIZERS: [(&str, f32); 3] = [("adam", 0.01), ("sgd", 0.1), ("momentum", 0.03)];
const GUEST: PeerId = PeerId([50; 32]);

#[test]
fn learning_goes_on_while_a_guest_gives_any_sum_for_the_chunk_that_it_would_own() {
    for (topology, optimizer) in Topology::ALL.into_iter().flat_map(|t| OPTIMIZERS.map(|o| (t, o))) {
        let honest = after_a_minute((3, 1), topology, optimizer, |_| {});
        for sum in [0.0f32, 1e3, 1e30, -1e30] {
            let off = after_a_minute((3, 1), topology, optimizer, |story| {
                story.bugs.insert(GUEST, Bug::AnySum(sum.to_bits()));
            });
            println!("{topology} {optimizer:?} {sum}: {off} instead of {honest}");
            assert!(
                off < honest + 0.01 && off < 0.05,
                "{topology} {optimizer:?} {sum}: {off}"
            );
        }
    }
}

/// Six guests are honest towards full members only.
#[test]
fn learning_goes_on_while_guests_lie_to_each_other() {
    for optimizer in OPTIMIZERS {
        let off = [false, true].map(|lies| {
            after_a_minute((3, 6), Topology::Direct, optimizer, |story| {
                if lies {
                    story.liar = Some((GUEST, lie_to_guests));
                    story.accomplices.extend((51..56).map(|n| PeerId([n; 32])));
                }
            })
        });
        println!("{optimizer:?}: {off:?}");
        assert!(off[1] < off[0] + 0.01 && off[1] < 0.05, "{optimizer:?}: {off:?}");
    }
}

/// Guests get thirty times the opposite of what full members get.
fn lie_to_guests(liar: &Peer, to: PeerId, message: &mut Message) {
    if let Message::Piece {
        leg: Leg::Partial,
        data,
        ..
    } = message
        && !liar.head().is_full(to)
    {
        let mut values = vec![0.0; data.len() / 4];
        Codec::F32.decode(data, &mut values).unwrap();
        values.iter_mut().for_each(|value| *value *= -30.0);
        let mut lie = Vec::new();
        Codec::F32.encode(&values, &mut lie);
        *data = lie.into();
    }
}

/// Three members and a guest that are equally fast, with long vectors in which each sample counts.
fn with_one_guest(topology: Topology, copies: u16, codec: Codec) -> (Story, PeerId) {
    with_one_guest_and(topology, |manifest| {
        manifest.codec = codec;
        manifest.copies = NonZeroU16::new(copies);
    })
}

fn with_one_guest_and(topology: Topology, change: impl FnOnce(&mut Manifest)) -> (Story, PeerId) {
    let mut story = Story::with(topology, |manifest| {
        manifest.layout = Layout::flat(600);
        manifest.piece = NonZeroU32::new(64).unwrap();
        manifest.batch = 60.try_into().unwrap();
        manifest.target = 10_000_000.try_into().unwrap();
        manifest.optimizer = "momentum".parse().unwrap();
        change(manifest);
    });
    story.differ = true;
    let (_, guests) = gather(&mut story, 3, 1);
    (story, guests[0])
}

/// Samples of a peer that were counted, and rounds in which some were.
fn work_of(story: &Story, who: PeerId) -> (u64, usize) {
    let weights = story.records(ANN).map(|record| of(record, &[who]).0);
    let weights: Vec<u64> = weights.filter(|weight| *weight > 0).collect();
    (weights.iter().sum(), weights.len())
}

fn is_found(story: &Story, guest: PeerId) -> bool {
    let found = |event: &Event| matches!(event, Event::FalseWork { peer } if *peer == guest);
    story.events.iter().any(|(_, _, event)| found(event))
}

#[test]
fn a_guest_that_computes_nothing_is_put_out_and_its_samples_go_to_others() {
    let zeros: Alter = |values, _| values.fill(0.0);
    let negated: Alter = |values, _| values.iter_mut().for_each(|value| *value = -*value);
    let random: Alter = |values, round| {
        let place = (1..).map(|i| round << 20 | i);
        values
            .iter_mut()
            .zip(place)
            .for_each(|(value, at)| *value = 3.0 * noise(at));
    };
    let huge: Alter = |values, _| values.iter_mut().for_each(|value| *value *= 1000.0);
    for (topology, copies) in [(Topology::Ring, 0), (Topology::Direct, 0), (Topology::Direct, 2)] {
        for change in [zeros, negated, random, huge] {
            let (mut story, guest) = with_one_guest(topology, copies, Codec::F32);
            story.changes.insert(guest, change);
            story.run(60 * SECOND);
            assert!(is_found(&story, guest), "{topology:?}");
            let (_, rounds) = work_of(&story, guest);
            assert!((1..40).contains(&rounds), "{rounds} rounds have false values");
            let last = story.records(ANN).last().unwrap();
            assert_eq!((of(last, &[guest]).0, last.weight()), (0, 60));
        }
    }
}

#[test]
fn members_with_one_sample_each_check_too() {
    for topology in [Topology::Ring, Topology::Direct] {
        let (mut story, guest) =
            with_one_guest_and(topology, |manifest| manifest.batch = 4.try_into().unwrap());
        story.gradient.insert(guest, 0.0);
        let since = story.events.len();
        story.run(60 * SECOND);
        assert!(is_found(&story, guest), "{topology:?}");
        let of_guest = |told: &String| told.contains(&format!("{guest:?}"));
        let troubles = troubles(&story, since);
        assert!(troubles.iter().all(of_guest), "{troubles:?}");
    }
}

#[test]
fn a_lone_member_puts_out_all_guests_that_compute_nothing() {
    let (mut story, _, guests) = with_guests(1, 2, 10_000_000);
    story.gradient.extend(guests.iter().map(|who| (*who, 0.0)));
    story.run(120 * SECOND);
    for guest in guests {
        assert!(is_found(&story, guest));
    }
    let last = story.records(ANN).last().unwrap();
    assert_eq!((last.headers.len(), last.weight()), (1, 600));
}

#[test]
fn a_guest_on_another_kind_of_device_stays_with_every_codec() {
    let differs: Alter = |values, round| {
        let place = (1..).map(|i| round << 20 | i);
        values
            .iter_mut()
            .zip(place)
            .for_each(|(value, at)| *value *= 1.0 + 1e-3 * noise(at));
    };
    for topology in [Topology::Ring, Topology::Direct] {
        for codec in Codec::ALL {
            let (mut story, guest) = with_one_guest(topology, 0, codec);
            story.changes.insert(guest, differs);
            story.run(10 * SECOND);
            let since = story.events.len();
            story.run(120 * SECOND);
            assert_eq!(troubles(&story, since), Vec::<String>::new());
            let rounds = story.records(ANN).count();
            assert!(rounds > 1500, "{rounds} rounds");
            let (samples, with_guest) = work_of(&story, guest);
            assert!(with_guest > 1400, "{with_guest} rounds");
            // Each member that gets values of its own has checked some of the guest's shares, and not many.
            let own = |who| work_of(&story, who).0;
            let checked = [ANN, BEN, CAT].map(|who| story.computed[&who].saturating_sub(own(who)));
            let most = samples / 50;
            let some = checked.into_iter().filter(|samples| *samples > 60).count();
            let expected = match (topology, codec.has_feedback(false)) {
                (_, true) => 0,
                (Topology::Ring, _) => 1,
                (Topology::Direct, _) => 3,
            };
            assert_eq!(some, expected, "{topology:?} {codec}: {checked:?}");
            assert!(
                checked.into_iter().all(|samples| samples < most),
                "{checked:?} of {samples}"
            );
        }
    }
}
