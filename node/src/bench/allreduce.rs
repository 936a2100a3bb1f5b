//! Measures an all-reduce, from the moment when all members begin until the last one has its last piece.

use super::peer;
use super::plan::{PeerMessage, Plan, Role, RoundTiming, Spec};
use super::rates::Rates;
use super::swarm::{News, Swarm};
use super::{Error, median, process};
use serde::Serialize;
use std::num::NonZeroU32;
use tokio::sync::mpsc::UnboundedReceiver;

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct AllreduceReport {
    /// Always "allreduce".
    pub bench: &'static str,
    /// Members.
    pub peers: u16,
    /// Bytes of the vector as f32.
    pub vector_bytes: u64,
    /// Bytes of the vector as it travels.
    pub wire_bytes: u64,
    /// The codec.
    pub codec: String,
    /// The topology.
    pub topology: String,
    /// Elements in one piece.
    pub piece: NonZeroU32,
    /// Rounds that count.
    pub rounds: usize,
    /// Rounds that do not count, because not all members began at the same slot.
    pub left_out: usize,
    /// The median over the rounds of each round's slowest member.
    pub median_seconds: f64,
    /// The fastest round.
    pub min_seconds: f64,
    /// The slowest round.
    pub max_seconds: f64,
    /// Bytes of the f32 vector over the median.
    pub bytes_per_second: f64,
    /// Frame bytes that this (or the average) peer sent per round.
    pub sent_per_peer: f64,
    /// Processor seconds per round of this (or the average) peer, commit included.
    pub cpu_seconds_per_peer: f64,
    /// Seconds to apply, hash and begin the next round, which follow the all-reduce.
    pub commit_seconds: f64,
    /// The shortest possible time.
    pub bound: Option<Bound>,
    /// Cores of this machine.
    pub cores: usize,
    /// The machine's load average over a minute before and after, if known.
    pub load: [Option<f64>; 2],
}

/// The shortest time that an all-reduce can take.
#[derive(Clone, Debug, Serialize)]
pub struct Bound {
    /// Seconds.
    pub seconds: f64,
    /// Its share of the median; 1 means that the bound is reached.
    pub reached: f64,
    /// How it is computed.
    pub of: BoundOf,
}

/// Where a bound comes from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundOf {
    /// By each host's rate: 2(N-1)/N of the vector must leave it.
    Network {
        /// The rate of one host.
        bits_per_s: f64,
    },
    /// By this machine's cores, which do the work of all members.
    Processor {
        /// The speed of this machine.
        rates: Rates,
        /// Core seconds of all members to seal and open packets.
        seal_and_open_seconds: f64,
        /// Core seconds to hand datagrams to the kernel and to receive them.
        send_and_receive_seconds: f64,
        /// Core seconds to add, encode and decode.
        add_seconds: f64,
    },
}

/// Runs all members on this machine, each in its own process.
pub fn on_this_machine(plan: &Plan) -> Result<AllreduceReport, Error> {
    let load = process::load();
    let rates = Rates::measure(plan.codec, plan.piece.get() as usize)?;
    let mut swarm = Swarm::found(plan, 1)?;
    for _ in 1..plan.peers {
        swarm.join()?;
    }
    let mut log = Log::default();
    let mut others = Vec::new();
    loop {
        match swarm.news()? {
            News::Round { peer: 0, round } => log.rounds.push(*round),
            News::Round { round, .. } => others.push(*round),
            News::Entered { .. } => {}
            News::End => break,
        }
    }
    let mut report = log.report(plan, load)?;
    let all: Vec<&RoundTiming> = log
        .rounds
        .iter()
        .chain(&others)
        .filter(|r| r.period > 0.0)
        .collect();
    let mean = |of: fn(&RoundTiming) -> f64| all.iter().map(|r| of(r)).sum::<f64>() / all.len() as f64;
    report.sent_per_peer = mean(|r| r.sent as f64);
    report.cpu_seconds_per_peer = mean(|r| r.cpu);
    report.commit_seconds = mean(|r| r.commit);
    report.bound = Some(processor_bound(&report, rates));
    Ok(report)
}

/// Runs one member of several hosts in this process. `ready` gets the ticket with which others join.
pub async fn on_this_host(
    role: Role,
    listen: String,
    rate_bits_per_s: Option<f64>,
    leave: UnboundedReceiver<()>,
    mut ready: impl FnMut(&str),
) -> Result<AllreduceReport, Error> {
    let load = process::load();
    let spec = Spec {
        role,
        listen,
        every: 1,
    };
    let mut log = Log::default();
    let mut trouble = None;
    let plan = peer::run(spec, leave, |told| match told {
        PeerMessage::Ready { ticket, .. } => ready(&ticket),
        PeerMessage::Round(round) => log.rounds.push(*round),
        PeerMessage::Trouble(why) => trouble = trouble.take().or(Some(why)),
        PeerMessage::Entered { .. } | PeerMessage::Done { .. } => {}
    })
    .await?;
    if let Some(why) = trouble {
        return Err(Error::Disturbed(why));
    }
    let mut report = log.report(&plan, load)?;
    report.bound = rate_bits_per_s.map(|rate| network_bound(&report, rate));
    Ok(report)
}

/// One member's view of all rounds.
#[derive(Default)]
struct Log {
    rounds: Vec<RoundTiming>,
}

impl Log {
    /// The time of a round is that of its slowest member, which the next round reports.
    fn report(&self, plan: &Plan, load: Option<f64>) -> Result<AllreduceReport, Error> {
        let mut seconds = Vec::new();
        let mut left_out = 0;
        for pair in self.rounds.windows(2) {
            let [round, after] = pair else { continue };
            if round.period == 0.0 || after.step != round.step + 1 {
                continue;
            }
            let slowest = after.took_before.iter().copied().fold(0.0, f64::max);
            // A member that began a slot earlier has waited for a whole period.
            if slowest < round.period && round.undisturbed {
                seconds.push(slowest);
            } else {
                left_out += 1;
            }
        }
        if seconds.is_empty() {
            return Err(Error::Disturbed(format!("{left_out} rounds, none of use")));
        }
        let slotted: Vec<&RoundTiming> = self.rounds.iter().filter(|r| r.period > 0.0).collect();
        let mean =
            |of: fn(&RoundTiming) -> f64| slotted.iter().map(|r| of(r)).sum::<f64>() / slotted.len() as f64;
        let vector_bytes = 4 * plan.elements as u64;
        let median = median(&seconds);
        let piece = plan.piece.get() as usize;
        let pieces = (plan.elements / piece) as u64;
        let rest = plan.codec.encoded_len(plan.elements % piece) as u64;
        Ok(AllreduceReport {
            bench: "allreduce",
            peers: plan.peers,
            vector_bytes,
            wire_bytes: pieces * plan.codec.encoded_len(piece) as u64 + rest,
            codec: plan.codec.to_string(),
            topology: plan.topology.to_string(),
            piece: plan.piece,
            rounds: seconds.len(),
            left_out,
            median_seconds: median,
            min_seconds: seconds.iter().copied().fold(f64::INFINITY, f64::min),
            max_seconds: seconds.iter().copied().fold(0.0, f64::max),
            bytes_per_second: vector_bytes as f64 / median,
            sent_per_peer: mean(|r| r.sent as f64),
            cpu_seconds_per_peer: mean(|r| r.cpu),
            commit_seconds: mean(|r| r.commit),
            bound: None,
            cores: process::cores(),
            load: [load, process::load()],
        })
    }
}

/// The bytes that must leave each host, at its rate.
fn network_bound(report: &AllreduceReport, bits_per_s: f64) -> Bound {
    let n = f64::from(report.peers);
    let seconds = 2.0 * (n - 1.0) / n * report.wire_bytes as f64 * 8.0 / bits_per_s;
    Bound {
        seconds,
        reached: seconds / report.median_seconds,
        of: BoundOf::Network { bits_per_s },
    }
}

/// The time of all members' work on this machine's cores, with no other work and no waiting.
fn processor_bound(report: &AllreduceReport, rates: Rates) -> Bound {
    let hops = f64::from(report.peers) - 1.0;
    let (vector, wire) = (report.vector_bytes as f64, report.wire_bytes as f64);
    let seal_and_open_seconds = 2.0 * hops * wire / rates.seal_and_open;
    let send_and_receive_seconds = 2.0 * hops * wire / rates.send_and_receive;
    let add_seconds = hops * vector / rates.hop + vector / rates.encode;
    let work = seal_and_open_seconds + send_and_receive_seconds + add_seconds;
    let seconds = work / (report.cores.min(usize::from(report.peers)) as f64);
    Bound {
        seconds,
        reached: seconds / report.median_seconds,
        of: BoundOf::Processor {
            rates,
            seal_and_open_seconds,
            send_and_receive_seconds,
            add_seconds,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Pace;
    use super::*;
    use annulus_core::Topology;
    use annulus_core::codec::Codec;

    fn told(step: u64, period: f64, took_before: &[f64]) -> RoundTiming {
        RoundTiming {
            step,
            undisturbed: true,
            members: vec![String::new(); took_before.len()],
            period,
            took: 0.0,
            took_before: took_before.to_vec(),
            total: 0.0,
            commit: 0.0,
            cpu: 0.0,
            sent: 0,
            received: 0,
            memory: Default::default(),
            fetched: 0,
            kept: [1, 1],
        }
    }

    #[test]
    fn a_round_is_as_slow_as_its_slowest_member_and_warm_up_does_not_count() {
        let rounds = vec![
            told(4, 0.0, &[9.0, 9.0]),
            told(5, 2.0, &[8.0, 8.0]),
            told(6, 2.0, &[0.5, 1.0]),
            told(7, 2.0, &[0.5, 2.5]),
            told(8, 2.0, &[0.7, 0.5]),
        ];
        let plan = Plan {
            peers: 2,
            elements: 250,
            codec: Codec::F16,
            topology: Topology::Ring,
            piece: 100.try_into().unwrap(),
            adam: None,
            copies: None,
            pace: Pace::Slots,
            rounds: None,
        };
        let report = Log { rounds }.report(&plan, None).unwrap();
        assert_eq!((report.rounds, report.left_out), (2, 1));
        assert_eq!((report.min_seconds, report.max_seconds), (0.7, 1.0));
        assert_eq!(report.bytes_per_second, 1000.0 / 0.85);
        assert_eq!(report.wire_bytes, 3 * 2 + 500);
        // 506 bytes of 2 peers: each sends all of it once.
        let bound = network_bound(&report, 506.0 * 8.0);
        assert_eq!(bound.seconds, 1.0);
        assert!((bound.reached - 1.0 / 0.85).abs() < 1e-9);
    }
}
