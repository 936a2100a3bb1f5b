//! Keeps what a peer takes of its GPU's memory below a limit: by working on fewer samples at a time.
//!
//! How much a batch needs is tried out before the peer takes part, since nothing tells it: WebGPU says neither how much memory
//! a GPU has nor how much of it is free. Counted are the buffers that this process's allocator has reserved, which drivers take
//! something on top of.

use crate::device::{DeviceKind, OpenDevice};
use crate::participant::error::Error;
use crate::task_factory::WorkerFactory;
use crate::trainer::{Worker, WorkerError};
use annulus_core::Manifest;
use annulus_shaders::memory::{give_back, reserved};
use burn::tensor::Device;

/// Most batches that are tried out, after one sample alone.
const TRIALS: usize = 10;

/// Of one trial to the next there are at most so many times as many samples: what few take says little of what many do.
const GROWTH: usize = 8;

/// A limit of what this process reserves on its GPU.
#[derive(Clone, Debug)]
pub struct Limit {
    device: Device,
    bytes: u64,
}

impl Limit {
    /// Has a run's worker keep within so many bytes, together with another one that evaluates at the same time. Nothing if
    /// they do not compute on a GPU. Computes a few batches, and says in the device's note what has come of it.
    ///
    /// # Errors
    ///
    /// If one sample at a time takes more, or the device fails.
    pub fn of(
        bytes: u64,
        device: &mut OpenDevice,
        worker: &mut dyn Worker,
        worker_factory: &WorkerFactory,
        manifest: &Manifest,
    ) -> Result<Option<Self>, Error> {
        if device.kind == DeviceKind::Cpu {
            add(&mut device.note, "--gpu-memory changes nothing on the CPU".into());
            return Ok(None);
        }
        let limit = Self {
            device: device.device.clone(),
            bytes,
        };
        let params = worker.init();
        let evaluation = {
            let mut other = worker_factory()?;
            limit.held_after(|| other.score(params.clone()).map(drop))?
        };
        let most = match manifest.micro_batch {
            0 => manifest.batch.get(),
            size => size.min(manifest.batch.get()),
        } as usize;
        worker.work_on_at_most(0);
        if manifest.local.is_some() {
            // What it keeps there between local steps counts too.
            let _ = worker.stepper(&manifest.optimizer);
        }
        let need = |samples: usize| {
            let samples: Vec<u64> = (0..samples as u64).map(|n| n % manifest.samples).collect();
            let held = limit.held_after(|| worker.contribute(params.clone(), &samples).map(drop))?;
            Ok::<_, WorkerError>(held + evaluation)
        };
        let found = fitting(bytes, most, need)?;
        give_back(&limit.device);
        match found {
            Ok(samples) if samples == most => worker.work_on_at_most(manifest.micro_batch as usize),
            Ok(samples) => {
                worker.work_on_at_most(samples);
                let note =
                    format!("{samples} of at most {most} samples at a time: what --gpu-memory has room for");
                add(&mut device.note, note);
            }
            Err(need) => return Err(Error::GpuMemory { need, limit: bytes }),
        }
        Ok(Some(limit))
    }

    /// Has the allocator give back what is not in use, if it holds more: shares of other sizes leave buffers of other sizes.
    pub fn keep(&self) {
        if reserved(&self.device).is_some_and(|held| held > self.bytes) {
            give_back(&self.device);
        }
    }

    /// Bytes that are reserved after something was computed: numbers that are not finite take no less room.
    fn held_after(&self, compute: impl FnOnce() -> Result<(), WorkerError>) -> Result<u64, WorkerError> {
        give_back(&self.device);
        match compute() {
            Ok(()) | Err(WorkerError::LossNotFinite | WorkerError::GradientNotFinite { .. }) => {
                Ok(reserved(&self.device).unwrap_or(0))
            }
            Err(error) => Err(error),
        }
    }
}

fn add(note: &mut Option<String>, more: String) {
    *note = Some(match note.take() {
        Some(first) => format!("{first}; {more}"),
        None => more,
    });
}

/// How many samples fit at a time, at most so many, where `need` tries out what a number of them takes: at first one, then
/// two, and then as many as follows from those, so that trials hardly take more than the limit. Else what one takes.
fn fitting<E>(
    limit: u64,
    most: usize,
    mut need: impl FnMut(usize) -> Result<u64, E>,
) -> Result<Result<usize, u64>, E> {
    let (mut fits, mut takes) = (1, need(1)?);
    if takes > limit {
        return Ok(Err(takes));
    }
    let (mut too_many, mut next) = (most + 1, 2);
    for _ in 0..TRIALS {
        if next >= too_many || next <= fits {
            break;
        }
        let tried = need(next)?;
        let each = tried.saturating_sub(takes) / (next - fits) as u64;
        match tried > limit {
            true => too_many = next,
            false => (fits, takes) = (next, tried),
        }
        // An allocator reserves in steps: where it took no more, there may be room for some, and may not for many.
        let room = (limit - takes).checked_div(each).unwrap_or(u64::MAX);
        let most_more = (GROWTH - 1) * fits;
        let more = usize::try_from(room).map_or(most_more, |room| room.min(most_more));
        next = (fits + more).min(too_many - 1);
    }
    Ok(Ok(fits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found for a need, and the largest that was tried.
    fn found(limit: u64, most: usize, need: impl Fn(usize) -> u64) -> (Result<usize, u64>, usize) {
        let mut largest = 0;
        let fitting = fitting(limit, most, |samples| {
            largest = largest.max(samples);
            Ok::<_, ()>(need(samples))
        });
        (fitting.unwrap(), largest)
    }

    #[test]
    fn as_many_samples_as_fit_are_found_without_trying_many_more() {
        let linear = |samples: usize| 1000 + 10 * samples as u64;
        assert_eq!(found(1500, 64, linear), (Ok(50), 50));
        assert_eq!(found(9000, 64, linear), (Ok(64), 64));
        assert_eq!(found(1010, 64, linear), (Ok(1), 2));
        assert_eq!(found(1009, 64, linear), (Err(1010), 1));
        assert_eq!(found(9000, 1, linear), (Ok(1), 1));
        // An allocator reserves in steps.
        let steps = |samples: usize| 1000 + 10 * samples.next_power_of_two() as u64;
        let (fits, largest) = found(1500, 1000, steps);
        assert_eq!(fits, Ok(32));
        assert!(largest < 100, "{largest}");
        // What the first two take says nothing of the third.
        let late = |samples: usize| 100 + samples.saturating_sub(8) as u64 * 50;
        let (fits, _) = found(310, 1 << 20, late);
        assert!(fits.is_ok_and(|fits| late(fits) <= 310), "{fits:?}");
        let none = |_: usize| 7;
        assert_eq!(found(7, 500, none).0, Ok(500));
    }
}
