//! Measures a training step: ours, and that of the same model made of Burn's own layers.
//!
//! Each contestant is a separate process that takes one step for each line of input, so that they alternate on the same
//! machine. Each begins cold, since Burn's fusion and tuning apply to a whole program: the graphics driver's cache of
//! compiled shaders is an empty folder. Our step is a peer's: parameters to the device, gradients from it, and the
//! protocol's optimizer. Burn's is its own loop with its own optimizer on the device.

use super::{Error, median};
use crate::task_factory::TaskFactory;
use crate::trainer::{LocalStep, TrainerOptions, Worker};
use crate::{device, task::TaskError};
use annulus_core::optim::Optimizer;
use burn::tensor::read_sync;
use serde::Serialize;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The programs; the first is ours.
    pub contestants: Vec<Contestant>,
    /// Samples in a step.
    pub batch: usize,
    /// Tokens in a sample; 1 if there are none.
    pub tokens: usize,
    /// Steps before those that are measured.
    pub warm_up: usize,
    /// Measured steps.
    pub steps: usize,
}

/// A program that takes steps.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// Its name.
    pub name: String,
    /// Its file.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Always "step".
    pub bench: &'static str,
    /// Samples in a step.
    pub batch: usize,
    /// Tokens in a sample.
    pub tokens: usize,
    /// One per contestant; the first is ours.
    pub contestants: Vec<Steps>,
    /// The machine's load average over a minute before and after, if known.
    pub load: [Option<f64>; 2],
}

/// One contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Steps {
    /// Its name.
    pub name: String,
    /// From the start of the process to the end of the first step, with nothing compiled before.
    pub first_seconds: f64,
    /// The median step.
    pub seconds: f64,
    /// The fastest.
    pub fastest_seconds: f64,
    /// Mean time that all its threads ran, which other load does not affect; Linux only.
    pub cpu_seconds: Option<f64>,
    /// Samples times tokens, over the median.
    pub per_second: f64,
    /// Kernel launches per step; none on the CPU backend.
    pub launches: usize,
    /// The most memory that was resident, which includes the device's for a software adapter; Linux only.
    pub peak_bytes: Option<u64>,
    /// Loss of the last step.
    pub loss: f64,
}

/// Takes a step for each line on standard input, and answers with loss and seconds. Local steps are those between two
/// exchanges, which a GPU takes itself: it gets parameters only before the first.
///
/// # Errors
///
/// If there is no such task or device, a step fails, or the device takes no local steps.
pub fn serve(
    factories: &[TaskFactory],
    task: &str,
    config: &str,
    device: &str,
    (batch, local): (usize, bool),
) -> Result<(), TaskError> {
    let factory = factories.iter().find(|factory| factory.name == task);
    let factory = factory.ok_or_else(|| format!("there is no task {task:?}"))?;
    let loaded = (factory.load)(config, None)?;
    let device = device::open(device.parse::<device::DeviceRequest>()?)?;
    let worker = loaded.worker_factory(device, TrainerOptions::default())()?;
    let mut steps = Stepping {
        params: worker.init(),
        slots: Vec::new(),
        optimizer: Optimizer::parse("adamw")?,
        worker,
    };
    if local {
        steps.worker.load(steps.params.clone())?;
    }
    let mut random = 1u64;
    let mut sample = || {
        // Knuth's MMIX generator.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % loaded.samples
    };
    let mut out = io::stdout();
    for (line, number) in io::stdin().lock().lines().zip(1..) {
        line?;
        let start = Instant::now();
        let samples: Vec<u64> = (0..batch).map(|_| sample()).collect();
        let loss = match local {
            true => steps.local(number, &samples)?,
            false => steps.step(number, &samples)?,
        };
        writeln!(out, "{loss} {}", start.elapsed().as_secs_f64())?;
        out.flush()?;
    }
    Ok(())
}

/// A worker and its progress.
struct Stepping {
    worker: Box<dyn Worker>,
    params: Vec<f32>,
    slots: Vec<Vec<f32>>,
    optimizer: Optimizer,
}

impl Stepping {
    const RATE: f32 = 1e-3;

    /// A step of a round: gradients from the device, then the protocol's optimizer. Returns the mean loss.
    fn step(&mut self, number: u64, samples: &[u64]) -> Result<f32, TaskError> {
        let made = self.worker.contribute(self.params.clone(), samples)?;
        let step = self.optimizer.step(Self::RATE, number, 1.0 / made.samples as f32);
        let zeros = || vec![0.0; self.params.len()];
        self.slots.resize_with(self.optimizer.slots(), zeros);
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        self.optimizer
            .apply(&step, &mut self.params, &mut slots, &made.gradient, true);
        Ok(made.loss_sum / made.samples as f32)
    }

    /// A step between two exchanges.
    fn local(&mut self, number: u64, samples: &[u64]) -> Result<f32, TaskError> {
        self.worker.accumulate(samples)?;
        let stepper = self.worker.stepper(&self.optimizer);
        let stepper = stepper.ok_or("the device takes no steps itself")?;
        let rate = Self::RATE;
        let clip = None;
        let loss = read_sync(stepper.step(&LocalStep { number, rate, clip }))?;
        Ok(loss / samples.len() as f32)
    }
}

/// Measures the contestants, and reports progress.
///
/// # Errors
///
/// If a contestant cannot be started or fails.
pub fn measure(options: &Options, mut tell: impl FnMut(&str)) -> Result<StepReport, Error> {
    let load = super::process::load();
    let mut running = Vec::new();
    for contestant in &options.contestants {
        tell(&format!("{}: the first step, cold", contestant.name));
        running.push(Running::start(contestant)?);
    }
    for round in 0..options.warm_up {
        tell(&format!("warming up, {} of {}", round + 1, options.warm_up));
        for contestant in &mut running {
            contestant.step()?;
        }
    }
    let mut taken: Vec<Vec<Taken>> = running.iter().map(|_| Vec::new()).collect();
    for round in 0..options.steps {
        tell(&format!("step {} of {}", round + 1, options.steps));
        for (contestant, taken) in running.iter_mut().zip(&mut taken) {
            taken.push(contestant.step()?);
        }
    }
    let mut contestants = Vec::new();
    for ((contestant, running), taken) in options.contestants.iter().zip(running).zip(taken) {
        let seconds: Vec<f64> = taken.iter().map(|t| t.seconds).collect();
        let cpu: Option<Vec<f64>> = taken.iter().map(|t| t.cpu_seconds).collect();
        let middle = median(&seconds);
        tell(&format!("{}: counting launches", contestant.name));
        contestants.push(Steps {
            name: contestant.name.clone(),
            first_seconds: running.first_seconds,
            seconds: middle,
            fastest_seconds: seconds.iter().copied().fold(f64::INFINITY, f64::min),
            cpu_seconds: cpu.map(|cpu| cpu.iter().sum::<f64>() / cpu.len() as f64),
            per_second: (options.batch * options.tokens) as f64 / middle,
            launches: running.launches(contestant)?,
            peak_bytes: running.peak_bytes(),
            loss: taken.last().map_or(f64::NAN, |t| t.loss),
        });
    }
    Ok(StepReport {
        bench: "step",
        batch: options.batch,
        tokens: options.tokens,
        contestants,
        load: [load, super::process::load()],
    })
}

/// A step that was taken.
struct Taken {
    loss: f64,
    seconds: f64,
    cpu_seconds: Option<f64>,
}

/// A contestant's process.
struct Running {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    first_seconds: f64,
    /// The folder for everything that it compiles; removed at the end.
    cache: PathBuf,
}

impl Running {
    /// Starts it with nothing compiled, and waits for its first step.
    fn start(contestant: &Contestant) -> Result<Self, Error> {
        Self::start_with(contestant, |_, _| {})
    }

    fn start_with(contestant: &Contestant, change: impl FnOnce(&mut Command, &Path)) -> Result<Self, Error> {
        let cache = std::env::temp_dir().join(format!(
            "annulus-bench-step-{}-{:x}",
            std::process::id(),
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |time| time.as_nanos())
        ));
        fs::create_dir_all(&cache)?;
        let mut command = Command::new(&contestant.program);
        command
            .args(&contestant.arguments)
            .env("MESA_SHADER_CACHE_DIR", &cache)
            .env("XDG_CACHE_HOME", &cache)
            .current_dir(&cache)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command, &cache);
        let start = Instant::now();
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            unreachable!("both were asked for");
        };
        let mut running = Self {
            name: contestant.name.clone(),
            child,
            input,
            output: BufReader::new(output),
            first_seconds: 0.0,
            cache,
        };
        running.step()?;
        running.first_seconds = start.elapsed().as_secs_f64();
        Ok(running)
    }

    fn step(&mut self) -> Result<Taken, Error> {
        let before = self.cpu_seconds();
        let mut line = String::new();
        let asked = writeln!(self.input).and_then(|()| self.input.flush());
        let answered = asked.and_then(|()| self.output.read_line(&mut line));
        let mut numbers = line.split_whitespace().map(str::parse::<f64>);
        match (answered, numbers.next(), numbers.next()) {
            (Ok(_), Some(Ok(loss)), Some(Ok(seconds))) => Ok(Taken {
                loss,
                seconds,
                cpu_seconds: self
                    .cpu_seconds()
                    .zip(before)
                    .map(|(after, before)| after - before),
            }),
            _ => Err(Error::Contestant(self.name.clone())),
        }
    }

    fn cpu_seconds(&self) -> Option<f64> {
        super::process::cpu_seconds_of(self.child.id())
    }

    fn peak_bytes(&self) -> Option<u64> {
        super::process::memory_of(self.child.id()).map(|memory| memory.peak)
    }

    /// Launches of a warm step, from the log that Burn's runtime can write.
    fn launches(&self, contestant: &Contestant) -> Result<usize, Error> {
        let mut log = PathBuf::new();
        let mut watched = Self::start_with(contestant, |command, cache| {
            log = cache.join("launches.log");
            command
                .env("CUBECL_DEBUG_LOG", &log)
                .env("CUBECL_DEBUG_OPTION", "profile");
        })?;
        watched.step()?;
        let before = launches_in(&log);
        watched.step()?;
        Ok(launches_in(&log) - before)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.cache);
    }
}

/// Lines such as `| 19.883µs   | name`.
fn launches_in(log: &Path) -> usize {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let timed = |line: &&str| {
        let mut columns = line.strip_prefix("| ")?.split(" | ");
        let time = columns.next()?.trim();
        columns.next()?;
        (time.ends_with('s') && time.starts_with(|c: char| c.is_ascii_digit())).then_some(())
    };
    text.lines().filter(|line| timed(line).is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_counted_in_the_runtimes_log() {
        let log = std::env::temp_dir().join(format!("annulus-launches-{}", std::process::id()));
        let text = "[START_KERNEL_COMPILATION]\n| 19.883µs   | A\n| 1.2ms | B<C | D>\n| name | value |\nE\n";
        fs::write(&log, text).unwrap();
        assert_eq!(launches_in(&log), 2);
        fs::remove_file(&log).unwrap();
        assert_eq!(launches_in(&log), 0);
    }
}
