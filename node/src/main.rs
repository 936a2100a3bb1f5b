//! The binary `annulus`: the stock tasks behind the command line.

use annulus::cli::machine::Machine;
use annulus::task_factory::TaskFactory;
use annulus::tasks::digits::Digits;
use annulus::tasks::gpt::Gpt;
use std::process::ExitCode;

fn main() -> ExitCode {
    annulus::cli::main(&Machine::new(vec![
        TaskFactory::of::<Digits>(),
        TaskFactory::of::<Gpt>(),
    ]))
}
