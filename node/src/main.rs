//! The binary `annulus`: the stock tasks behind the command line.

use annulus::task_factory::TaskFactory;
use annulus::tasks::digits::Digits;
use annulus::tasks::gpt::Gpt;
use annulus::tasks::graph::ModelFile;
use annulus::tasks::images::Images;
use annulus::tasks::pytorch::PyTorch;
use annulus::tasks::table::TableTask;
use std::process::ExitCode;

fn main() -> ExitCode {
    annulus::cli::main(&[
        TaskFactory::of::<Digits>(),
        TaskFactory::of::<Gpt>(),
        TaskFactory::of::<ModelFile>(),
        TaskFactory::of::<TableTask>(),
        TaskFactory::of::<Images>(),
        TaskFactory::of::<PyTorch>(),
    ])
}
