//! Measures how a newcomer slows down the members: the longest round while it joins, compared with the usual one.

use super::plan::{Pace, Plan, RoundTiming};
use super::swarm::{News, Swarm};
use super::{Error, median, process};
use annulus_core::codec::Codec;
use annulus_core::optim::Moments;
use annulus_core::{Manifest, Topology};
use serde::Serialize;
use std::num::NonZeroU16;
use std::time::Instant;

/// Options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members before the newcomer.
    pub members: u16,
    /// Elements of the vector, besides Adam's two vectors.
    pub elements: usize,
    /// How Adam's vectors are kept.
    pub moments: Moments,
    /// How many members keep each part of them; none: all keep all.
    pub copies: Option<NonZeroU16>,
    /// How long a contribution takes, in milliseconds.
    pub compute_ms: u64,
    /// Rounds before the newcomer starts, and rounds after it is a member.
    pub rounds: usize,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct JoinReport {
    /// Always "join".
    pub bench: &'static str,
    /// Members before the newcomer.
    pub members: u16,
    /// Bytes that the newcomer must fetch.
    pub state_bytes: u64,
    /// How long a contribution takes.
    pub compute_ms: u64,
    /// Rounds before it started.
    pub rounds_before: usize,
    /// Their median, in seconds.
    pub median_before_seconds: f64,
    /// The longest of them.
    pub max_before_seconds: f64,
    /// Rounds from its start to the first one that it contributed to.
    pub rounds_during: usize,
    /// Their median, in seconds.
    pub median_during_seconds: f64,
    /// The longest of them.
    pub max_during_seconds: f64,
    /// Longest during over median before.
    pub ratio: f64,
    /// Rounds as a member.
    pub rounds_after: usize,
    /// Their median, in seconds.
    pub median_after_seconds: f64,
    /// From the start of its process to the end of the first round that it contributed to.
    pub join_seconds: f64,
    /// Frame bytes that the newcomer received until it was a member.
    pub received_bytes: u64,
    /// The machine's load average over a minute before and after, if known.
    pub load: [Option<f64>; 2],
}

/// Measures it.
pub fn measure(options: &Options) -> Result<JoinReport, Error> {
    let load = process::load();
    let plan = Plan {
        peers: options.members,
        elements: options.elements,
        codec: Codec::F32,
        topology: options.copies.map_or(Topology::Ring, |_| Topology::Direct),
        copies: options.copies,
        piece: Manifest::PIECE,
        adam: Some(options.moments),
        pace: Pace::After(options.compute_ms),
        rounds: None,
    };
    let mut swarm = Swarm::found(&plan, 1)?;
    for _ in 1..options.members {
        swarm.join()?;
    }
    let (mut before, mut during, mut after) = (Vec::new(), Vec::new(), Vec::new());
    let mut started: Option<Instant> = None;
    let (mut join_seconds, mut received_bytes) = (0.0, 0);
    while after.len() < options.rounds {
        match swarm.news()? {
            News::Entered { peer, received } if peer >= usize::from(options.members) => {
                received_bytes = received;
            }
            News::Entered { .. } => {}
            News::Round { peer: 0, round } => match started {
                // The first round has waited for the members.
                None if round.step <= 2 => {}
                None => {
                    before.push(seconds(&round)?);
                    if before.len() == options.rounds {
                        started = Some(Instant::now());
                        swarm.join()?;
                    }
                }
                Some(started) if join_seconds == 0.0 => {
                    during.push(seconds(&round)?);
                    if round.members.len() > usize::from(options.members) {
                        join_seconds = started.elapsed().as_secs_f64();
                    }
                }
                Some(_) => after.push(seconds(&round)?),
            },
            News::Round { .. } => {}
            News::End => return Err(Error::Disturbed("the run ended".into())),
        }
    }
    swarm.leave()?;
    let max = |seconds: &[f64]| seconds.iter().copied().fold(0.0, f64::max);
    let median_before_seconds = median(&before);
    Ok(JoinReport {
        bench: "join",
        members: options.members,
        state_bytes: plan.manifest().state_bytes(),
        compute_ms: options.compute_ms,
        rounds_before: before.len(),
        median_before_seconds,
        max_before_seconds: max(&before),
        rounds_during: during.len(),
        median_during_seconds: median(&during),
        max_during_seconds: max(&during),
        ratio: max(&during) / median_before_seconds,
        rounds_after: after.len(),
        median_after_seconds: median(&after),
        join_seconds,
        received_bytes,
        load: [load, process::load()],
    })
}

fn seconds(round: &RoundTiming) -> Result<f64, Error> {
    if round.undisturbed {
        Ok(round.total)
    } else {
        Err(Error::Disturbed(format!(
            "round {} needed a second attempt",
            round.step
        )))
    }
}
