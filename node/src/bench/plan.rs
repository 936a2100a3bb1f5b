//! The plan of a run of synthetic peers, and the messages of each: plain data between processes.

use super::process::Memory;
use annulus_core::codec::Codec;
use annulus_core::optim::{Moments, Optimizer};
use annulus_core::{Layout, Manifest, Round, Topology};
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::time::Duration;

/// The task in a benchmark's manifest.
pub(super) const TASK: &str = "bench";

/// Samples of each peer's share of a round, only for bookkeeping.
pub(super) const SHARE: u32 = 16;

/// Rounds before the first slot, in which connections find their packet size and rate, and buffers are allocated.
pub const WARM_UP: Round = 4;

/// A synthetic peer, as its process gets it on standard input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// How it becomes a member.
    pub role: Role,
    /// The address on which it listens.
    pub listen: String,
    /// It reports every this many rounds.
    pub every: u64,
}

/// How a peer becomes a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Role {
    /// It founds the run.
    Found(Plan),
    /// It joins with a ticket.
    Join(String),
}

/// The plan of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Rounds begin when this many peers are there.
    pub peers: u16,
    /// Length of the vector.
    pub elements: usize,
    /// The codec.
    pub codec: Codec,
    /// The topology.
    pub topology: Topology,
    /// Elements in one piece.
    pub piece: NonZeroU32,
    /// How Adam's two vectors are kept; none: the run has none.
    pub adam: Option<Moments>,
    /// How many members keep each part of them; none: all keep all.
    pub copies: Option<NonZeroU16>,
    /// When contributions are made.
    pub pace: Pace,
    /// Rounds until the run ends; none: it continues until its peers are told to leave.
    pub rounds: Option<Round>,
}

/// When a peer makes its contribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// At once.
    AtOnce,
    /// After this many milliseconds without using the processor, like a device that computes.
    After(u64),
    /// When the clock that all peers share next shows a multiple of a period, so that all begin together. Before that
    /// there are [`WARM_UP`] rounds without a pause, from which the period is computed.
    Slots,
}

/// A peer's messages, one line of JSON each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerMessage {
    /// It listens.
    Ready {
        /// Its name.
        peer: String,
        /// The ticket with which others join.
        ticket: String,
    },
    /// It has the whole state and is a member.
    Entered {
        /// Seconds since it began to join.
        seconds: f64,
        /// Bytes of frames received until then.
        received: u64,
    },
    /// It has committed a round.
    Round(Box<RoundTiming>),
    /// Something that does not happen in a healthy run.
    Trouble(String),
    /// It is done.
    Done {
        /// Its memory at the end.
        memory: Memory,
    },
}

/// A committed round, as one peer saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoundTiming {
    /// Its number among the rounds with a vector, from 1.
    pub step: u64,
    /// Whether it was the first attempt.
    pub undisturbed: bool,
    /// Contributors.
    pub members: Vec<String>,
    /// Seconds from slot to slot; 0 if it did not begin at one.
    pub period: f64,
    /// From the slot, or the own contribution, to the last piece, in seconds.
    pub took: f64,
    /// What the members needed for the round before, in seconds.
    pub took_before: Vec<f64>,
    /// From the last commit to this one, in seconds.
    pub total: f64,
    /// Seconds to apply, hash and begin the next round.
    pub commit: f64,
    /// Processor time from the contribution until after the commit, in seconds; 0 if unknown.
    pub cpu: f64,
    /// Frame bytes sent since the last commit.
    pub sent: u64,
    /// Frame bytes received since the last commit.
    pub received: u64,
    /// Resident memory, if known.
    pub memory: Memory,
    /// Frame bytes received so far with the state of others.
    pub fetched: u64,
    /// The parts of the optimizer's vectors that it has, and how many there are; 1 of 1 if members keep all.
    pub kept: [usize; 2],
}

impl Plan {
    /// Its manifest.
    pub(super) fn manifest(&self) -> Manifest {
        let some = "a plan has peers and rounds";
        let batch = SHARE * u32::from(self.peers);
        let target = self
            .rounds
            .map_or(u64::MAX / 4, |rounds| rounds.saturating_mul(batch.into()));
        let optimizer = self.adam.map_or("sgd", |_| "adam");
        Manifest {
            task: TASK.into(),
            task_config: serde_json::to_string(self).expect("a plan is plain data"),
            samples: NonZeroU64::new(batch.into()).expect(some),
            target: NonZeroU64::new(target).expect(some),
            batch: NonZeroU32::new(batch).expect(some),
            optimizer: Optimizer::parse(optimizer).expect("a name that is known"),
            moments: self.adam.unwrap_or_default(),
            copies: self.copies,
            lr: 0.0,
            codec: self.codec,
            topology: Some(self.topology),
            piece: self.piece,
            min_peers: NonZeroU16::new(self.peers).expect(some),
            ..Manifest::new(Layout::flat(self.elements))
        }
    }

    /// The nominal time of a share. It is not the real one, so that members get equal shares however noisy the machine
    /// is.
    pub(super) fn nominal(&self) -> Duration {
        match self.pace {
            Pace::AtOnce => Duration::from_millis(10),
            Pace::After(ms) => Duration::from_millis(ms.max(1)),
            Pace::Slots => Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_makes_a_manifest_that_tells_the_plan() {
        let plan = Plan {
            peers: 3,
            elements: 1000,
            codec: Codec::F16,
            topology: Topology::Direct,
            piece: 256.try_into().unwrap(),
            adam: Some(Moments::EightBit),
            copies: None,
            pace: Pace::After(5),
            rounds: Some(7),
        };
        let manifest = Manifest::decode(&plan.manifest().encode()).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&manifest.task_config).unwrap(), plan);
        assert_eq!(manifest.target.get(), 7 * u64::from(manifest.batch.get()));
        assert_eq!(manifest.shared_optimizer().0.slots(), 2);
    }
}
