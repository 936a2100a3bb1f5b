//! A member's own values for a round: the device makes them, and they are kept for every attempt.

use crate::check::MAX_SPEED;
use crate::device::Device;
use crate::id::Round;
use crate::interface::{Event, Output};
use crate::ledger::Allotment;
use crate::shared::Shared;
use crate::time::Time;
use std::time::Duration;

/// How long a contribution is held back for a slow newcomer, if that is more than half of the time that it took: well
/// below what the other members take for a failure.
const HOLD: Duration = Duration::from_millis(300);

/// What the device gave, with its weight.
#[derive(Debug)]
pub(crate) struct Made {
    pub gradient: Vec<f32>,
    /// Samples in it, from the front of the share.
    pub weight: u32,
    /// Sum of their losses.
    pub loss: f32,
    pub compute: Duration,
}

#[derive(Debug)]
enum Values {
    /// The device is at work.
    Computing,
    /// There, but not handed in yet.
    Held { made: Made, since: Time, until: Time },
    /// They wait for a reduce, or are in one; kept for another attempt.
    Ready(Made),
}

/// One round's values of this member.
#[derive(Debug)]
pub(crate) struct Contribution {
    round: Round,
    /// When the round began.
    pub began: Time,
    /// When they were handed in.
    pub made_at: Option<Time>,
    values: Values,
}

impl Contribution {
    pub fn new(round: Round, began: Time) -> Self {
        Self {
            round,
            began,
            made_at: None,
            values: Values::Computing,
        }
    }

    /// The values, once they are handed in.
    pub fn made(&self) -> Option<&Made> {
        match &self.values {
            Values::Ready(made) => Some(made),
            _ => None,
        }
    }

    /// Until when they are held back, if they are.
    pub fn held_until(&self) -> Option<Time> {
        match &self.values {
            Values::Held { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Asks the device for the values, unless it is still at older ones.
    pub fn ask(&self, allotment: &Allotment, shared: &mut Shared) {
        let Some(place) = shared.head().position(shared.me()) else {
            return;
        };
        let positions = allotment.ranges(place);
        let wanted = matches!(self.values, Values::Computing) && shared.device.asked.is_none();
        if !wanted || positions.is_empty() || !shared.manifest.trains(shared.head().members.len()) {
            return;
        }
        shared.device.asked = Some((shared.head().chain, shared.lineage.digest));
        let mut buffer = std::mem::take(&mut shared.device.spare);
        buffer.clear();
        buffer.extend_from_slice(&shared.lineage.state.params);
        shared.out.push_back(Output::Compute {
            round: self.round,
            positions,
            buffer,
        });
    }

    /// A member without a share adds nothing.
    pub fn make_empty(&mut self, shared: &Shared) {
        let made = Made {
            gradient: vec![0.0; shared.manifest.layout.len],
            weight: 0,
            loss: 0.0,
            compute: Duration::ZERO,
        };
        self.hand_in(made, shared.now);
    }

    fn hand_in(&mut self, made: Made, now: Time) {
        self.values = Values::Ready(made);
        self.made_at = Some(now);
    }

    /// The device has finished. Gives back what may be handed in: nothing if it was for a round since given up.
    pub fn take(
        &self,
        round: Round,
        given: Made,
        allotment: &Allotment,
        shared: &mut Shared,
    ) -> Option<Made> {
        let asked = shared.device.asked.take();
        let current = asked == Some((shared.head().chain, shared.lineage.digest)) && self.round == round;
        if !current || !matches!(self.values, Values::Computing) {
            shared.device.give_back(given.gradient);
            self.ask(allotment, shared);
            return None;
        }
        let elements = shared.manifest.layout.len;
        let finite = given.weight > 0 && given.loss.is_finite() && all_finite(&given.gradient);
        if !finite || given.gradient.len() != elements {
            shared.tell(Event::NotFinite { round });
            let mut gradient = given.gradient;
            gradient.clear();
            gradient.resize(elements, 0.0);
            return Some(Made {
                gradient,
                weight: 0,
                loss: 0.0,
                ..given
            });
        }
        // The share is that of the place in the head, not in the attempt's view.
        let place = shared.head().position(shared.me());
        let share = place.map_or(0, |place| allotment.len(place));
        let weight = given.weight.min(share.min(u64::from(u32::MAX)) as u32);
        measure_speed(&mut shared.speed, weight, given.compute);
        Some(Made { weight, ..given })
    }

    /// Puts what was taken in, or holds it back for a slow newcomer. To others a member that holds its values back is
    /// still computing.
    pub fn put(&mut self, made: Made, hold: bool, now: Time) {
        if hold {
            let until = now + HOLD.max(made.compute / 2);
            let since = now;
            self.values = Values::Held { made, since, until };
        } else {
            self.hand_in(made, now);
        }
    }

    /// Hands in what was held back. How long it was.
    pub fn release(&mut self, now: Time) -> Option<Duration> {
        match std::mem::replace(&mut self.values, Values::Computing) {
            Values::Held { made, since, .. } => {
                self.hand_in(made, now);
                Some(now - since)
            }
            other => {
                self.values = other;
                None
            }
        }
    }

    /// The round is over: its buffer may serve again.
    pub fn end(&mut self, device: &mut Device) {
        if let Values::Ready(made) = std::mem::replace(&mut self.values, Values::Computing) {
            device.give_back(made.gradient);
        }
    }
}

fn measure_speed(speed: &mut Option<u64>, samples: u32, took: Duration) {
    let seconds = took.as_secs_f64().max(1e-6);
    let now = (f64::from(samples) * 1000.0 / seconds).min(MAX_SPEED as f64);
    // A quarter of each new measurement: shares follow a change within a few rounds but not each hiccup.
    let smooth = speed.map_or(now, |old| 0.75 * old as f64 + 0.25 * now);
    *speed = Some((smooth as u64).max(1));
}

/// Whether every element is finite. Without a branch per element, so that it goes as fast as memory does.
fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let block = |values: &[f32]| {
        values
            .iter()
            .fold(false, |bad, x| bad | (x.to_bits() & EXPONENT == EXPONENT))
    };
    !values.chunks(4096).any(block)
}
