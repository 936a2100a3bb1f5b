//! What the commands ask for, done on this machine: the seam between the command line and everything else.

use crate::bench::step;
use crate::cli::node::{Adapter, Failure, Node, Plan, Sink, TaskInfo};
use crate::cli::{bench, eval, replay, sample};
use crate::device::{self, DeviceChoice, DeviceError};
use crate::offline::recompute::{Progress, ReplayReport};
use crate::offline::sample::write;
use crate::options::{JoinOptions, TrainOptions};
use crate::participant::error;
use crate::participant::run_setup;
use crate::participant::start;
use crate::task::Eval;
use crate::task_factory::TaskFactory;
use annulus_shaders::check;

/// This machine, and the tasks that the program knows.
pub struct Machine {
    factories: Vec<TaskFactory>,
}

impl Machine {
    /// With these tasks; the first is the default.
    pub fn new(factories: Vec<TaskFactory>) -> Self {
        Self { factories }
    }

    /// Waits for a participant's end. One thread serves links and protocol: more of them would only hand
    /// frames to each other.
    fn block_on<F: Future<Output = Result<(), error::Error>>>(&self, participant: F) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(participant)?)
    }
}

impl Node for Machine {
    fn tasks(&self) -> Vec<TaskInfo> {
        let info = |factory: &TaskFactory| TaskInfo {
            name: factory.name.to_owned(),
            about: factory.about.to_owned(),
            run_settings: factory.run_settings,
            config: factory.settings(),
        };
        self.factories.iter().map(info).collect()
    }

    fn adapters(&self) -> Vec<Adapter> {
        let adapters = device::adapters().into_iter();
        adapters
            .map(|adapter| Adapter {
                device: format!("gpu:{}", adapter.number),
                software: adapter.is_software(),
                limits: adapter
                    .limits
                    .list()
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect(),
                name: adapter.name,
                backend: adapter.api,
            })
            .collect()
    }

    fn compile_kernels(&self) -> Result<Option<usize>, Failure> {
        match device::open(DeviceChoice::Gpu) {
            Err(DeviceError::NoAdapter) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(gpu) => Ok(Some(check::compile_needed(&gpu.device)?)),
        }
    }

    fn plan(&self, options: &TrainOptions) -> Result<Plan, Failure> {
        let (manifest, device) = run_setup::plan(options, &self.factories)?;
        Ok(Plan {
            device,
            parameters: manifest.layout.len as u64,
            tensors: manifest.layout.tensors.len() as u64,
            slots: manifest.optimizer.slots() as u64,
            samples: manifest.samples,
        })
    }

    fn train(&self, options: TrainOptions, sink: Sink<'_>) -> Result<(), Failure> {
        self.block_on(start::train(options, &self.factories, sink))
    }

    fn eval(&self, args: &eval::Args) -> Result<(u64, Eval), Failure> {
        Ok(run_setup::evaluate(
            &args.dir,
            args.data.as_deref(),
            &args.device,
            &self.factories,
        )?)
    }

    fn sample(&self, args: &sample::Args, emit: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        Ok(write(args, &self.factories, emit)?)
    }

    fn steps(&self, args: &bench::Steps) -> Result<(), Failure> {
        step::serve(
            &self.factories,
            &args.task,
            &args.config,
            &args.device,
            args.batch,
        )
    }

    fn replay(
        &self,
        args: &replay::Args,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<ReplayReport, Failure> {
        let data = args.data.as_deref();
        run_setup::replay(
            &args.dir,
            data,
            &args.device,
            args.tolerance,
            &self.factories,
            progress,
        )
    }

    fn join(&self, options: JoinOptions, sink: Sink<'_>) -> Result<(), Failure> {
        self.block_on(start::join(options, &self.factories, sink))
    }
}
