//! Each planted bug comes to light. The table beside this file keeps the seeds that find it with the least processor time,
//! and the example `sim` searches for others. A bug without a row is looked for in world after world.

use crate::sim::on_all_cores;
use annulus_core::Topology;
use annulus_core::planted::Bug;
use annulus_core::sim;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const TABLE: &str = include_str!("planted.txt");

/// A row's bug and topology.
type Row = (String, String);

fn row(bug: Bug, topology: Option<Topology>) -> Row {
    let topology = topology.map_or("any".to_owned(), |topology| topology.to_string());
    (format!("{bug:?}"), topology)
}

/// The table: each row's seeds.
fn kept() -> BTreeMap<Row, Vec<u64>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            let row = (words.next().unwrap(), words.next().unwrap());
            (row, words.map(|seed| seed.parse().unwrap()).collect())
        })
        .collect()
}

/// Worlds in which a bug is looked for of which no seed is kept.
const SEARCHED: u64 = 2000;

/// Whether a seed's world has this topology and breaks a promise because of this bug.
fn finds(bug: Bug, topology: Option<Topology>, seed: u64) -> bool {
    let is_of = topology.is_none() || topology == sim::topology(seed);
    is_of && sim::run(seed, sim::worlds_of(bug).0).failure.is_some()
}

/// Bugs that a story shows and worlds hardly ever do: a search of minutes found none since guests own no chunk. See
/// `one_ticket_does_not_keep_all_places_while_others_ask`.
const OF_STORIES: [Bug; 1] = [Bug::NoShares];

#[test]
fn every_planted_bug_is_found_by_a_kept_seed() {
    let (kept, next) = (kept(), AtomicUsize::new(0));
    let of_bug = |bug| sim::topologies_of(bug).into_iter().map(move |t| (bug, t));
    let bugs = Bug::all().filter(|bug| !OF_STORIES.contains(bug));
    let rows: Vec<(Bug, Option<Topology>)> = bugs.flat_map(of_bug).collect();
    let missed = Mutex::new(Vec::new());
    on_all_cores(|| {
        while let Some((bug, topology)) = rows.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let row = row(bug, topology);
            let is_found = match kept.get(&row) {
                Some(seeds) => seeds.iter().any(|seed| finds(bug, topology, *seed)),
                None => {
                    let from = sim::worlds_of(bug).2;
                    (from..from + SEARCHED).any(|seed| finds(bug, topology, seed))
                }
            };
            if !is_found {
                missed.lock().unwrap().push(row);
            }
        }
    });
    let missed = missed.into_inner().unwrap();
    let lines = missed.iter().map(|(bug, topology)| {
        format!(
            "no kept seed finds {bug} ({topology}). Search for others: \
             cargo xtask sim --bug {bug} --seeds 2000 --quickest, and replace the row in core/tests/protocol/planted.txt"
        )
    });
    assert!(missed.is_empty(), "{}", lines.collect::<Vec<_>>().join("\n"));
}
