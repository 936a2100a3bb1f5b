//! `annulus replay`: recompute a run from its ledger, in one process.

use super::amounts;
use super::error::Error;
use super::human;
use super::output;
use super::terminal::Style;
use crate::offline::recompute;
use crate::offline::report::{Progress, Verdict};
use crate::participant::run_setup::Means;
use crate::task_factory::TaskFactory;
use serde_json::json;
use std::path::PathBuf;

/// Recompute a run from its ledger, alone, and compare digests.
///
/// Every contribution is made again on the device given here. Where all contributors used a device that computes the
/// same bits, all digests must be equal; otherwise the difference is measured at every checkpoint.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder.
    pub dir: PathBuf,
    /// The run's data, if it has moved since the run was started.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where to compute: auto, cpu, gpu or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// Largest difference of a parameter, as a share of the largest, that is put down to rounding.
    #[arg(long, value_name = "X", default_value_t = 1e-2)]
    pub tolerance: f32,
    /// Where the model was split over the run's members: the most memory to take, such as 3GB or 400MB. Steps of the model that have
    /// no room together are computed one after the other.
    #[arg(long, value_name = "SIZE", value_parser = amounts::bytes)]
    pub memory: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  annulus replay runs/digits
  annulus replay runs/digits --data mnist/ --device cpu --json
";

/// Computes the run once more and prints what came of it. Fails if the run differs by more than the tolerance.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let style = Style::of_stdout();
    let live = style.live && !args.json;
    let given = Means {
        data: args.data.as_deref(),
        device: &args.device,
        memory: args.memory,
    };
    let tell = &mut |progress: &Progress| {
        if live && progress.round.is_multiple_of(20) {
            let same = if progress.differs { "other" } else { "equal" };
            output::paint(&format!(
                "\rround {}: {same} digest",
                human::grouped(progress.round)
            ));
        }
    };
    let report = recompute::replay(&args.dir, given, args.tolerance, tasks, tell)?;
    if live {
        output::paint("\r\x1b[2K");
    }
    let verdict = report.verdict();
    if args.json {
        let difference = report.compared.iter().map(|c| c.difference).reduce(f32::max);
        let object = json!({
                "base": report.base,
                "rounds": report.rounds,
                "exact": report.exact,
                "first_difference": report.first_difference,
                "difference": difference,
                "tolerance": report.tolerance,
                "verdict": match verdict {
                    Verdict::Exact => "exact",
                    Verdict::Within(_) => "within",
                    Verdict::Differs(_) => "differs",
                    Verdict::Unknown => "unknown",
                },
        });
        output::print(&format!("{object}\n"));
    } else {
        output::print(&format!("{report}\n"));
    }
    match verdict {
        Verdict::Differs(_) if report.draws => Err(Error::failed(
            "the replay differs by more than rounding explains: a member computed with PyTorch, which has random numbers of its own \
             for dropout, or the data, the program or a contributor was another one",
        )),
        Verdict::Differs(_) => Err(Error::failed(
            "the replay differs by more than rounding explains: the data, the program or a contributor was another one",
        )),
        _ => Ok(()),
    }
}
