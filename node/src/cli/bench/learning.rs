//! `annulus bench learning`.

use super::super::error::Error;
use super::super::{human, output, settings};
use super::print;
use super::tables::learning_table;
use crate::bench::learning;
use crate::participant::run_setup::Means;
use crate::task_factory::TaskFactory;
use std::path::PathBuf;

/// Arguments of `annulus bench learning`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to train.
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// Training data, a folder or a file.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Members, all equally fast.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub members: u16,
    /// Batches from one evaluation on held-out data to the next.
    #[arg(long, value_name = "BATCHES", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// End at this loss, and say after how many batches that was.
    #[arg(long, value_name = "LOSS")]
    pub until: Option<f32>,
    /// Write one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
    /// Settings of the run, as for `annulus train`.
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

impl Args {
    /// Trains as members would, in this process, and prints what was learnt.
    pub fn run(&self, tasks: &[TaskFactory]) -> Result<(), Error> {
        let settings = settings::read(None, &self.settings, (self.task.as_deref(), None), tasks)?;
        let options = learning::Options {
            members: self.members,
            run: settings.run,
            every: self.every,
            until: self.until,
        };
        let given = Means {
            data: self.data.as_deref(),
            device: &self.device,
            memory: None,
        };
        let tell = |point: learning::Point| {
            let (batches, rounds) = (
                human::plural(point.batches, "batch"),
                human::plural(point.rounds, "round"),
            );
            output::note(&format!("after {batches} in {rounds}: {:.4}", point.loss));
        };
        let report = learning::measure(&options, given, tasks, tell).map_err(Error::of)?;
        print(&report, learning_table, self.json)
    }
}
