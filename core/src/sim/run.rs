//! Runs a world from its first event to its last. `driver` handles events for peers, `transport` those for links,
//! and `faults` the faults.

use super::Outcome;
use super::node::Node;
use super::trace;
use super::world::{What, World, tell};
use crate::peer::{Exit, Input};
use std::time::Duration;

/// Most events of a seed: far above any healthy one, so that a livelock fails instead of hanging.
const MOST_EVENTS: u64 = 4_000_000;
/// A peer that is not a member this long after the first has finished is too late.
const LATE_US: u64 = 30_000_000;

impl World {
    /// Runs until all peers are done, or a check fails.
    pub fn run(mut self, seed: u64) -> Outcome {
        tell!(self, "seed {seed}: {}", trace::plan(&self.plan));
        while self.failure.is_none() && !self.is_over() {
            let Some(what) = self.next() else { break };
            self.happen(what);
            if self.stats.events > MOST_EVENTS {
                self.fail(format!(
                    "still busy after {MOST_EVENTS} events: {}",
                    self.situation()
                ));
            }
        }
        if self.failure.is_none() {
            self.check_end();
        }
        self.stats.virtual_us = self.now;
        self.stats.rounds = self.ledger.rounds();
        if let Some(failure) = &self.failure {
            tell!(self, "FAILED {failure}");
        }
        Outcome {
            failure: self.failure,
            stats: self.stats,
        }
    }

    /// Whether all peers are done, or the run has ended itself because nothing was finite.
    fn is_over(&self) -> bool {
        let gone = self.starting == 0 && self.honest().all(|n| !n.is_alive());
        // A newcomer may find that all have finished and gone.
        let late = self.first_finish.is_some_and(|first| self.now > first + LATE_US)
            && !self.honest().any(Node::is_member);
        gone || late || self.hopeless || self.honest().any(|n| n.exit == Some(Exit::NotFinite))
    }

    /// A device has been tried out; the rate of the line is known by now too.
    fn has_tried(&mut self, node: usize) {
        let speed = (self.nodes[node].speed * 1000.0) as u64;
        self.give(node, Input::Warm { speed: speed.max(1) });
        let bytes_per_s = self.plan.rate_bytes_per_s as u64;
        if self.plan.manifest.split.is_some() {
            self.give(node, Input::Line { bytes_per_s });
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Start { plan } => self.start(plan),
            What::Restart { node, resumes } => self.revive(node, resumes),
            What::Deliver {
                from,
                to,
                connection,
                message,
            } => self.deliver(from, to, connection, *message),
            What::Timer { node } => self.on_timer(node),
            What::Computed {
                node,
                life,
                round,
                gradient,
                weight,
                loss,
                took,
                late,
            } => {
                if self.nodes[node].life != life {
                    return;
                }
                let compute = Duration::from_micros(took);
                self.give(
                    node,
                    Input::Contribution {
                        round,
                        gradient,
                        weight,
                        loss,
                        compute,
                        late,
                    },
                );
            }
            What::Passed { node, life, done } => {
                if self.nodes[node].life == life {
                    self.give(node, Input::Span(done));
                }
            }
            What::Warm { node, life } => {
                if self.nodes[node].life == life {
                    self.has_tried(node);
                }
            }
            What::Saved { node, life } => {
                if self.nodes[node].life == life {
                    let saved = self.nodes[node].on_disk();
                    self.give(node, Input::Saved(saved));
                }
            }
            What::Restored { node, life, stepped } => {
                if self.nodes[node].life == life {
                    let kept = self.nodes[node].read(stepped);
                    self.give(node, Input::Restored { stepped, kept });
                }
            }
            What::Dialled { from, to, deadline } => self.dialled(from, to, deadline),
            What::DialFailed { from, peer } => {
                let barred = None;
                self.give(from, Input::DialFailed { peer, barred });
            }
            What::Down {
                end,
                other,
                connection,
            } => {
                if self.net.link(end, other).connection == connection {
                    self.take_down(end, other);
                }
            }
            What::Silent { a, b, version } => self.silent(a, b, version),
            What::FrozenTooLong { node, version } => self.frozen_too_long(node, version),
            What::Thaw { node, version } => {
                if self.nodes[node].freeze_version == version {
                    self.thaw(node);
                }
            }
            What::EndCut { pairs } => {
                if self.healed_at.is_none() {
                    tell!(
                        self,
                        "a cut ends: {:?}",
                        pairs
                            .iter()
                            .map(|(a, b)| self.names(&[*a, *b]))
                            .collect::<Vec<_>>()
                    );
                    pairs.into_iter().for_each(|(a, b)| self.unblock(a, b));
                }
            }
            What::Lie { node } => self.lie(node),
            What::EndDelay { from, to } => self.net.delay(from, to, 0),
            What::Fault => self.fault(),
            What::Heal => self.heal(),
            What::Operator => self.operate(),
        }
    }
}
