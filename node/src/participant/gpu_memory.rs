//! Keeps a peer's use of GPU memory below a limit, by processing fewer samples at a time.
//!
//! It measures the memory of batches before the peer takes part, since WebGPU reports neither the memory of a GPU nor
//! how much of it is free. It counts the buffers that this process's allocator has reserved; drivers need some more.

use crate::device::{DeviceKind, OpenDevice};
use crate::participant::error::Error;
use crate::task_factory::WorkerFactory;
use crate::trainer::{Worker, WorkerError};
use annulus_core::Manifest;
use annulus_shaders::memory::{give_back, reserved};
use burn::tensor::Device;

/// Most batches that are tried, after one single sample.
const TRIALS: usize = 10;

/// From one try to the next the samples grow at most by this factor, since small batches predict large ones badly.
const GROWTH: usize = 8;

/// A limit on what this process reserves on its GPU.
#[derive(Clone, Debug)]
pub struct Limit {
    device: Device,
    bytes: u64,
}

impl Limit {
    /// Limits a run's worker to this many bytes, together with another one that evaluates at the same time. None if
    /// they do not use a GPU. Computes a few batches, and notes the result on the device.
    ///
    /// # Errors
    ///
    /// If one sample at a time needs more, or the device fails.
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
            // Memory that stays there between local steps counts too.
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

    /// Makes the allocator release unused memory if it holds more than the limit. Shares of another size leave buffers
    /// of another size behind.
    pub fn keep(&self) {
        if reserved(&self.device).is_some_and(|held| held > self.bytes) {
            give_back(&self.device);
        }
    }

    /// Bytes reserved after a computation. Values that are not finite take as much memory as others.
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

/// How many samples fit at a time, at most `most`. `need` tries a number of samples: first one, then two, and then as
/// many as these predict, so that tries hardly exceed the limit. On an error, the memory of one sample.
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
        // An allocator reserves in steps: where it reserved no more, there may be room for a few more samples but not
        // for many.
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

    /// The result for a need, and the largest number that was tried.
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
        // The first two tries say nothing about the third.
        let late = |samples: usize| 100 + samples.saturating_sub(8) as u64 * 50;
        let (fits, _) = found(310, 1 << 20, late);
        assert!(fits.is_ok_and(|fits| late(fits) <= 310), "{fits:?}");
        let none = |_: usize| 7;
        assert_eq!(found(7, 500, none).0, Ok(500));
    }
}
