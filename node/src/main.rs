//! The binary `annulus`: the stock tasks behind the command line.

use annulus::native::machine::Machine;
use annulus::recipe::Recipe;
use annulus::tasks::digits::Digits;
use annulus::tasks::gpt::Gpt;
use std::process::ExitCode;

fn main() -> ExitCode {
    annulus::cli::main(&Machine::new(vec![Recipe::of::<Digits>(), Recipe::of::<Gpt>()]))
}
