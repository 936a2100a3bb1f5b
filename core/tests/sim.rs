//! The seeded worlds as a test: some hundreds of seeds hold, and each planted bug is found by some
//! of the first, in both topologies. More seeds: the example `sim`.

use annulus_core::Topology;
use annulus_core::planted::Bug;
use annulus_core::sim::{self, Lie, Setup};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

/// Runs seeds on all cores, those of one topology or all; the failures, the first failing seed surely among them if
/// `stop`.
fn run(seeds: Range<u64>, topology: Option<Topology>, setup: Setup, stop: bool) -> Vec<(u64, String)> {
    static QUIET: Once = Once::new();
    // A panic in a peer is a failure with its seed; its message is in there.
    QUIET.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() != Some("world") {
                hook(info);
            }
        }));
    });
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (next, stopped, failures) = (
        AtomicU64::new(seeds.start),
        AtomicBool::new(false),
        Mutex::new(Vec::new()),
    );
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let world = || {
                while !stopped.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    if topology.is_some() && topology != sim::topology(seed) {
                        continue;
                    }
                    if let Some(why) = sim::run(seed, setup).failure {
                        failures.lock().unwrap().push((seed, why));
                        stopped.fetch_or(stop, Ordering::Relaxed);
                    }
                }
            };
            std::thread::Builder::new()
                .name("world".into())
                .spawn_scoped(scope, world)
                .unwrap();
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    failures
}

/// Worlds that failed once: frames by a relay that was as new as the one they were for, twice; a result that nobody stayed
/// for whoever had to come over; two that knew each other through newcomers alone; a peer started again before the others
/// had missed it, which signed twice; two lineages that reached each other through newcomers alone; members that one
/// alone connected which they had excluded. What a seed means changes with the protocol: they failed without these changes.
#[test]
fn worlds_that_failed_once_hold() {
    let once = [20_000_148, 20_022_511, 30_002_166, 30_019_115, 40_027_918];
    let later = [40_036_516, 40_029_782];
    // The checker: a device that is still at work for the last round begins late.
    let of_the_checker = [40_031_741, 40_052_884];
    // The same: who has decided upon an attempt, is cast out, and comes back among those who are still at it.
    let cast_out = [100_020_661];
    // The same: where faults never end members are excluded until they wait for nine minutes; a newcomer behind a slow line
    // is waited for so long that frames seem to be lost; a lone peer notices at once that it was damaged, and goes on; the last
    // whole state is lost while somebody else is about to begin.
    let of_the_checker =
        of_the_checker
            .into_iter()
            .chain(cast_out)
            .chain([20_004_029, 20_519_532, 20_565_283, 620_168_596]);
    // The same: what a device began while it was ten times slower takes it minutes, also once all faults have ended.
    let of_the_checker = of_the_checker.chain([12_000_200_544]);
    // A keeper whose memory flipped went, came back with what the others had, and was still doubted many rounds later.
    // Newcomers were kept out for 64 rounds of half a minute. A lineage that waits told another once where it stands, which
    // took it for a member then.
    // A bit flips in a keeper between two updates of one part. One came in when the others had computed, thought them as quick as
    // the rest of that round, and found them too slow from there on.
    let last = [20_029_957, 20_020_788, 20_039_607, 10_312, 610_069_816];
    // Newcomers on lines slower than a lone member's rounds were named while rounds piled up before them, and taken for
    // silent.
    let slow = [2_000_037_621, 2_000_042_922];
    // Pieces of one chunk came over two ways after a broken link, the last of them without its owner's seal: that was taken for
    // a liar.
    let two_ways = [5_000_011_463];
    for seed in once
        .into_iter()
        .chain(later)
        .chain(last)
        .chain(slow)
        .chain(two_ways)
        .chain(of_the_checker)
    {
        assert_eq!(sim::run(seed, Setup::default()).failure, None, "seed {seed}");
    }
}

#[test]
fn all_promises_hold_in_every_world() {
    // `cargo xtask test` runs those before.
    let failures = run(200..500, None, Setup::default(), false);
    let lines = failures
        .iter()
        .map(|(seed, why)| format!("cargo xtask sim --seeds 1 --from {seed}  # {why}"));
    assert!(failures.is_empty(), "{}", lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn seeds_that_once_failed_hold() {
    let of_storms = [25_802, 1_045_217, 1_059_497, 1_074_770, 1_090_679];
    // Lineages passed each other by.
    let of_meetings = [602_082, 618_604, 629_967, 603_474, 616_365, 2_002_426, 5_029_328];
    // Who had left led others on, newcomers stayed with a sponsor that might name nobody, and no other was there.
    let of_waiting = [5_009_192, 5_031_066, 5_061_108, 8_004_366];
    for seed in of_storms.into_iter().chain(of_meetings).chain(of_waiting) {
        assert_eq!(sim::run(seed, Setup::default()).failure, None, "seed {seed}");
    }
}

#[test]
fn seeds_of_liars_that_once_failed_hold() {
    // A liar tells of a commit in which it says something else of itself, and is believed by who has just convicted it.
    let believed = 643;
    // A liar leads a member back into a round that it was excluded from, and it signs there twice.
    let led_back = 5097;
    // A liar revokes a lone member's ticket, which goes on alone, yields and is barred again for ever.
    let to_and_fro = 7_100_417;
    // A peer that is being dialled already is due to be dialled, and wakes the one that dials it again and again.
    let woken = 7_400_737;
    // A liar that has the only share of two rounds says that nothing is finite.
    let ended = 7_300_775;
    // A sponsor hands out another head than the members have.
    let misled = 7_201_779;
    // A liar's goodbye tells of all members where they are not.
    let astray = 7_327_087;
    // A liar spoils the sums, one holds the run alone, a device does its share twice, newcomers know nobody but a liar, and a
    // liar hands out a lineage of its own.
    let of_the_checker = [8993, 19_519, 10_528, 1078, 7_022_389];
    // A lone peer commits several rounds at once: it takes back more than one can say, or has just become lone. A bit flips in a
    // world with liars. A liar that holds the run alone bars all others.
    let of_rounds_at_once = [7_200_238, 7_201_866, 7_311_317];
    let of_the_checker = of_the_checker
        .into_iter()
        .chain([7_200_590, 7_321_845, 7_325_808, 7_600_995, 7_625_609, 7_621_997]);
    // Members tell of a commit one after the other, sooner than the one before has sent what was missing.
    let passed_on = 973;
    // A liar seals other updates than all others make of the sums, so that nobody can commit, and nobody is to blame.
    let of_its_own = 13_300_005_150;
    // Whom a liar has introduced by an address of any length became a newcomer that no header may name.
    let by_any_length = 14_200_042_740;
    // A liar lets out an update of a part of a split model, where nobody makes any, and whoever heard of it panicked.
    let let_out = 15_500_013_211;
    // What nobody keeps any more is to begin anew with who is let in each round and is out again before it has begun.
    let never_in = 51_000_904;
    // The word of a keeper is another for some, so that updates do not follow from the sums there; a bit flips in who looks.
    // A liar tells a keeper another norm than the rest: what that lets out is false, though it does not lie.
    let another_norm = 40_004_047;
    // Who left with the very round after which some parts began anew went with these as they had been.
    let as_they_were = 14_200_010_659;
    // Who left with the very round that went back went with what it had kept since.
    let since = 20_500_032_102;
    let of_keepers = [
        never_in,
        110_003_337,
        64_000_693,
        another_norm,
        as_they_were,
        since,
    ];
    // The checker: one is led into a lineage by a liar and commits alone at once; the state is with a convicted liar alone;
    // whoever was not asked to leave is barred by a liar.
    let of_liars_alone = [700_011_517, 700_013_652, 800_006_486];
    // The same: behind their routers the honest have links to the liar alone, and are cut off from each other without it.
    let of_no_way = [2_100_001_943];
    // The same: a device that lies makes no numbers two rounds running, where all others compute from what it gives.
    let of_nothing = [1_000_001_350];
    // While a split run waited, a liar that one member alone had cut off was let in again at once, round by round, and
    // nobody took over its span.
    let let_in = [1_800_002_309];
    // A forged header in what a liar showed of its lineage was not looked at where its author did not count.
    let forged = [2_200_000_720];
    // A keeper that a liar had given another sum differed from that one alone, and nobody else saw what it had signed.
    let unseen = [2_400_022_700];
    // The checker: all hold what is committed in the attempt in which one lies about its end.
    let held = [2_400_013_896];
    // The same: who follows a liar into a lineage that only its commit made commits alone in there at once.
    let alone_at_once = [4_600_054_598];
    // A sponsor never says where it stands, and goes on sending what it finishes.
    let unanswered = [5_200_003_631];
    // The checker: honest members wait for a span that a liar holds, and whoever comes later knows that one alone.
    let apart = [6_200_007_179];
    // The same: a member that a liar has told of a commit tells another over a relay.
    let told_over_a_relay = [6_200_026_793];
    // An attempt is stopped as it begins, since a liar is in it, and what a device had computed for the one before was sent to
    // members of that.
    let stopped_at_once = [6_200_074_538];
    // A liar led members back to where they had been long before, and they took no notice of those whom they had left.
    let led_far_back = [6_200_078_832];
    // A liar that follows asked for what it lacked of a round again and again, and was given a head for each question.
    let asked_for_more = [6_200_056_975];
    // Answers had seemed to take a minute, and whoever was left alone then waited eight of those for somebody.
    let left_alone = [6_200_047_880];
    // A liar's head is of the true lineage, and of a round far ahead; whom it led there took that for its own when the next
    // sponsor said that it went on from the same.
    let far_ahead = [10_400_002_326];
    let of_liars = [
        believed,
        led_back,
        to_and_fro,
        woken,
        ended,
        misled,
        astray,
        passed_on,
        of_its_own,
        by_any_length,
        let_out,
    ];
    for seed in of_liars
        .into_iter()
        .chain(of_the_checker)
        .chain(of_rounds_at_once)
        .chain(of_keepers)
        .chain(of_liars_alone)
        .chain(of_no_way)
        .chain(of_nothing)
        .chain(let_in)
        .chain(forged)
        .chain(unseen)
        .chain(held)
        .chain(alone_at_once)
        .chain(unanswered)
        .chain(apart)
        .chain(told_over_a_relay)
        .chain(stopped_at_once)
        .chain(led_far_back)
        .chain(asked_for_more)
        .chain(left_alone)
        .chain(far_ahead)
    {
        assert_eq!(sim::run(seed, liars(None)).failure, None, "seed {seed}");
    }
}

fn liars(bug: Option<Bug>) -> Setup {
    Setup {
        bug,
        liars: true,
        ..Setup::default()
    }
}

#[test]
fn all_promises_to_the_honest_hold_among_liars() {
    let failures = run(0..250, None, liars(None), false);
    let lines = failures
        .iter()
        .map(|(seed, why)| format!("cargo xtask sim --seeds 1 --from {seed} --liars  # {why}"));
    assert!(failures.is_empty(), "{}", lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_planted_bug_that_liars_make_use_of_is_found() {
    for bug in Bug::OF_LIARS {
        // What the others tell in every world is found by one of the first 60 without that; what makes use of these is drawn in
        // fewer: the example `sim` finds each within 1,000.
        let lie = match bug {
            Bug::HeedWhoBars => Some(Lie::Bar),
            Bug::TrustRevocations => Some(Lie::Revoke),
            Bug::ComeBackTooSoon => Some(Lie::State),
            Bug::TakeAgain => Some(Lie::Replay),
            Bug::CompareNoSeals => Some(Lie::Sums),
            Bug::CountAboveShare => Some(Lie::Claim),
            _ => None,
        };
        let setup = Setup {
            lie,
            ..liars(Some(bug))
        };
        let found = run(0..300, None, setup, true);
        assert!(!found.is_empty(), "{bug:?} is not found");
    }
}

#[test]
fn a_seed_always_tells_the_same_story() {
    for seed in [3, 7, 21] {
        let (first, second) = (sim::run(seed, Setup::default()), sim::run(seed, Setup::default()));
        assert_eq!(first.stats, second.stats, "seed {seed}");
        assert_eq!(first.failure, second.failure, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found_in_both_topologies() {
    // Moments are shared under the direct plan alone.
    let of_both = Bug::OF_FAULTS
        .into_iter()
        .filter(|bug| !Bug::OF_KEEPERS.contains(bug));
    for (bug, topology) in of_both.flat_map(|bug| Topology::ALL.map(|t| (bug, t))) {
        // Of a ring's sums at most one comes in.
        if bug == Bug::SumAsTheyCome && topology == Topology::Ring {
            continue;
        }
        let setup = Setup {
            bug: Some(bug),
            ..Setup::default()
        };
        let found = run(0..2000, Some(topology), setup, true);
        assert!(!found.is_empty(), "{bug:?} is not found, {topology}");
    }
}

#[test]
fn every_planted_bug_of_keepers_is_found_soon() {
    for bug in Bug::OF_KEEPERS {
        let setup = Setup {
            bug: Some(bug),
            ..Setup::default()
        };
        let found = run(0..300, None, setup, true);
        assert!(!found.is_empty(), "{bug:?} is not found");
    }
}

/// The first worlds in which a model is split over the members, so many of them.
fn worlds_with_spans(count: usize) -> impl Iterator<Item = u64> {
    (0..).filter(|seed| sim::is_split(*seed, false)).take(count)
}

/// The first worlds of liars in which a model is split over the members.
fn worlds_of_lying_holders(count: usize) -> impl Iterator<Item = u64> {
    let seeds = 1_000_000_000..;
    seeds.filter(|seed| sim::is_split(*seed, true)).take(count)
}

#[test]
fn all_promises_to_the_honest_hold_among_liars_that_hold_spans() {
    for seed in worlds_of_lying_holders(50) {
        let failures = run(seed..seed + 1, None, liars(None), false);
        assert_eq!(failures, [], "cargo xtask sim --seeds 1 --from {seed} --liars");
    }
}

#[test]
fn every_planted_bug_that_lying_holders_make_use_of_is_found_soon() {
    for bug in Bug::OF_LYING_HOLDERS {
        let setup = Setup {
            lie: Some(Lie::Tensor),
            ..liars(Some(bug))
        };
        let found =
            worlds_of_lying_holders(300).any(|seed| !run(seed..seed + 1, None, setup, true).is_empty());
        assert!(found, "{bug:?} is not found");
    }
}

#[test]
fn every_planted_bug_of_spans_is_found_soon() {
    for bug in Bug::OF_SPANS {
        let setup = Setup {
            bug: Some(bug),
            ..Setup::default()
        };
        let found = worlds_with_spans(300).any(|seed| !run(seed..seed + 1, None, setup, true).is_empty());
        assert!(found, "{bug:?} is not found");
    }
}

/// Worlds from where sums travel as signs too, and models that are split have many rounds, so many of them that are split, or not.
fn later_worlds(split: bool, count: usize) -> impl Iterator<Item = u64> {
    let seeds = 10_000_000_000..;
    seeds
        .filter(move |seed| sim::is_split(*seed, false) == split)
        .take(count)
}

#[test]
fn all_promises_hold_in_later_worlds() {
    // In the first one a member kept rounding errors through a round that changed nothing, in which it had said that it drops them.
    let once = [10_000_003_995];
    let seeds = once
        .into_iter()
        .chain(later_worlds(true, 60))
        .chain(later_worlds(false, 120));
    let failed = seeds.filter_map(|seed| Some((seed, sim::run(seed, Setup::default()).failure?)));
    assert_eq!(failed.collect::<Vec<_>>(), []);
}

#[test]
fn members_go_to_the_span_whose_holders_are_slow() {
    let shifts = |seed| sim::run(seed, Setup::default()).stats.shifts;
    assert!(later_worlds(true, 200).map(shifts).sum::<u64>() > 5);
}

#[test]
fn spans_are_cut_anew_where_those_who_hold_one_are_slow() {
    let recut = |seed| sim::run(seed, Setup::default()).stats.recut;
    let worlds = later_worlds(true, 200).filter(|seed| recut(*seed) > 20);
    assert!(worlds.count() > 3);
}

#[test]
fn who_takes_no_ends_computes_what_lies_between_them() {
    let inner = |seed| sim::run(seed, Setup::default()).stats.inner;
    assert!(worlds_with_spans(60).map(inner).sum::<u64>() > 100);
}

#[test]
fn weights_are_with_the_device_before_the_first_microbatch_comes() {
    let ahead = |seed| sim::run(seed, Setup::default()).stats.ahead;
    assert!(worlds_with_spans(60).map(ahead).sum::<u64>() > 100);
}

/// Worlds with spans that failed once: somebody's word that what it has given is no number was gone with it, and what it had
/// given was not; who was told of a commit could not see that what it was sent is sealed; who was stopped held all sums of
/// its own parts but not the others' words, and forgot them; who had the last whole copy of a span left while each of its
/// parts was with somebody. Memory flips in both that keep a part; whom nothing is due to while others exchange sums over
/// slow links for seconds took that for lost frames; a pass was done in an attempt without samples, of other members than it
/// was begun in; who had gone since its memory had changed came back with that, by a round that was committed meanwhile, and
/// the healthy one was cast out; who had nothing to do but wait was never told that the other had gone on without it; who gave
/// an attempt up that the other committed forgot the sums that it held. Memory flips in both that keep a part, in a round that
/// is committed without them. And of the checker: whom a member suspects that it cannot reach nobody hears of; headers of members that keep
/// parts are longer. A part that was never trained had changed in memory and went on as it had become: whoever began it as it
/// should be was cast out for that, 4,500 times. And of the checker once more: who is cast out for what has changed still has it, and
/// goes on with it if the other is gone by then. Who had just come in and was to take a span was gone before it had said so, and
/// waited for without end. Of the checker: who can commit does so by itself, at the very moment when one that it suspects tells
/// it to. Two holders differed, and the one that went let go of all that it had, though some of that nobody else had. Who alone had
/// stepped the model yielded to others and let go of what it had, while these went over to where it came from. And of the
/// checker: numbers of relayed frames took more memory than it has for them. Who lets nobody in was left alone while the run
/// waited, never asked whether the other was there, and turned away whoever came.
#[test]
fn worlds_with_spans_that_failed_once_hold() {
    let once = [880, 9634, 1473, 20_641_443, 345, 769];
    let later = [515_024, 100_002_098, 1_011_345, 1_009_676, 2_004_614];
    let last = [
        102_027_474,
        3_069_722,
        3_021_590,
        610_002_826,
        610_051_604,
        610_067_299,
        610_072_479,
        4_800_020_702,
        23_000_056_289,
        22_000_080_201,
        25_200_133_592,
    ];
    for seed in once.into_iter().chain(later).chain(last) {
        assert_eq!(sim::run(seed, Setup::default()).failure, None, "seed {seed}");
    }
}

/// Worlds with keepers that failed once: somebody who was away came back with moments that had begun anew meanwhile, twice,
/// the second time out of another lineage; who was alone with a damaged state went on from it and was cast out, for ever; what had
/// been learnt of a keeper that was gone was neither kept nor begun anew.
#[test]
fn worlds_with_keepers_that_failed_once_hold() {
    for seed in [984, 1101, 614, 1523] {
        assert_eq!(sim::run(seed, Setup::default()).failure, None, "seed {seed}");
    }
}

#[test]
fn hostile_frames_neither_stop_a_peer_nor_fill_its_memory() {
    for seed in 0..100 {
        let fuzzed = sim::fuzz::fuzz(seed, sim::fuzz::FRAMES);
        assert!(fuzzed.is_ok(), "seed {seed}: {fuzzed:?}");
    }
}

#[test]
fn peers_behind_routers_find_to_each_other() {
    let punched = |seed| sim::run(seed, Setup::default()).stats.punched;
    assert!((0..60).map(punched).sum::<u64>() > 10);
}
