//! Measures the resident memory of peers: over many rounds, with a large vector, and of a sponsor while a newcomer
//! joins.

use super::plan::{Pace, Plan, RoundTiming, WARM_UP};
use super::swarm::{News, Swarm};
use super::{Error, process};
use annulus_core::codec::Codec;
use annulus_core::optim::Moments;
use annulus_core::{Manifest, Topology};
use serde::Serialize;
use std::num::NonZeroU16;

/// Options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members.
    pub members: u16,
    /// Elements of the large vector.
    pub elements: usize,
    /// How Adam's two vectors are kept.
    pub moments: Moments,
    /// How many members keep each part of them; none: all keep all.
    pub copies: Option<NonZeroU16>,
    /// The topology of the exchange.
    pub topology: Topology,
    /// Rounds with a vector of [`SMALL`] elements.
    pub small_rounds: u64,
    /// Rounds with the large vector before a newcomer joins, and after.
    pub large_rounds: u64,
}

/// Elements of the small vector.
pub const SMALL: usize = 1024;

/// A peer may use eight times its parameters (three with Adam's state), and this much besides.
const ALLOWANCE: u64 = 300_000_000;

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// Always "memory".
    pub bench: &'static str,
    /// One per process.
    pub peers: Vec<Usage>,
    /// Whether all are within the limit.
    pub within: bool,
    /// The machine's load average over a minute before and after, if known.
    pub load: [Option<f64>; 2],
}

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    /// Its role.
    pub role: &'static str,
    /// Bytes of the parameters.
    pub parameter_bytes: u64,
    /// Rounds that it took part in.
    pub rounds: u64,
    /// Resident after a tenth of its rounds.
    pub early_bytes: u64,
    /// Resident after its last round.
    pub late_bytes: u64,
    /// The most that was resident.
    pub peak_bytes: u64,
    /// The parts of the optimizer's vectors that it has at the end, and how many there are; 1 of 1 if members keep all.
    pub kept: [usize; 2],
    /// Bytes of frames with the state of others: weights and moments.
    pub fetched_bytes: u64,
    /// Median seconds of a round of all members before anybody joins, from commit to commit; 0 if there were none.
    pub round_s: f64,
    /// The limit: 8 times the parameters and 300 MB.
    pub allowed_bytes: u64,
}

/// Measures it.
pub fn measure(options: &Options) -> Result<MemoryReport, Error> {
    let load = process::load();
    let small = Plan {
        peers: options.members,
        elements: SMALL,
        codec: Codec::F32,
        topology: options.topology,
        copies: options.copies,
        piece: Manifest::PIECE,
        adam: Some(options.moments),
        pace: Pace::AtOnce,
        rounds: None,
    };
    let large = Plan {
        elements: options.elements,
        ..small.clone()
    };
    let mut peers = watch(&small, options.small_rounds, false)?;
    peers.extend(watch(&large, options.large_rounds, true)?);
    Ok(MemoryReport {
        bench: "memory",
        within: peers.iter().all(|p| p.peak_bytes <= p.allowed_bytes),
        peers,
        load: [load, process::load()],
    })
}

/// Runs this many rounds, and as many again with a newcomer.
fn watch(plan: &Plan, rounds: u64, newcomer: bool) -> Result<Vec<Usage>, Error> {
    let every = (rounds / 20).max(1);
    let mut swarm = Swarm::found(plan, every)?;
    for _ in 1..plan.peers {
        swarm.join()?;
    }
    let mut seen: Vec<Vec<RoundTiming>> = vec![Vec::new(); swarm.len()];
    let mut end = (!newcomer).then_some(rounds);
    loop {
        match swarm.news()? {
            News::Entered { .. } => {}
            News::Round { peer, round } => {
                if end.is_none() && swarm.len() == usize::from(plan.peers) && round.step >= rounds {
                    swarm.join()?;
                    seen.push(Vec::new());
                }
                if end.is_none() && round.members.len() > usize::from(plan.peers) {
                    end = Some(round.step + rounds);
                }
                let step = round.step;
                seen[peer].push(*round);
                if end.is_some_and(|end| step >= end) {
                    break;
                }
            }
            News::End => return Err(Error::Disturbed("the run ended".into())),
        }
    }
    let last = swarm.leave()?;
    let parameter_bytes = 4 * plan.elements as u64;
    let peers = seen.iter().zip(last).enumerate();
    Ok(peers
        .map(|(peer, (seen, last))| Usage {
            role: match peer {
                _ if !newcomer => "member, many rounds",
                0 => "member, sponsors the newcomer",
                _ if peer < usize::from(plan.peers) => "member",
                _ => "newcomer",
            },
            parameter_bytes,
            rounds: seen.len() as u64 * every,
            early_bytes: seen.get(seen.len() / 10).map_or(0, |r| r.memory.resident),
            late_bytes: seen.last().map_or(0, |r| r.memory.resident),
            kept: seen.last().map_or([0, 1], |r| r.kept),
            round_s: median(seen.iter().filter(|r| is_usual(r, plan))),
            fetched_bytes: seen.last().map_or(0, |r| r.fetched),
            peak_bytes: last.peak,
            allowed_bytes: 8 * parameter_bytes + ALLOWANCE,
        })
        .collect())
}

/// Whether all members took part, nobody else, and each began in time.
fn is_usual(round: &RoundTiming, plan: &Plan) -> bool {
    round.undisturbed && round.members.len() == usize::from(plan.peers) && round.step > WARM_UP
}

fn median<'a>(rounds: impl Iterator<Item = &'a RoundTiming>) -> f64 {
    let mut seconds: Vec<f64> = rounds.map(|round| round.total).collect();
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}
