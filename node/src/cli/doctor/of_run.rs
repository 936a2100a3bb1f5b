//! The run of a ticket: whether a member answers, and whether this program can take part.

use super::{Finding, Verdict};
use crate::cli::human;
use crate::data::fetch::fetch_manifest;
use crate::net::identity::Identity;
use crate::net::ticket::Ticket;
use crate::task_factory::TaskFactory;
use annulus_core::Manifest;
use std::iter;

/// What the first member that answers says of the run.
pub(super) fn run_of(ticket: &Ticket, tasks: &[TaskFactory]) -> Finding {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let fetched = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let identity = Identity::generate();
        let fetched = runtime.block_on(fetch_manifest(ticket, iter::empty(), &identity));
        let (_, bytes) = fetched.map_err(|error| error.to_string())?;
        Manifest::decode(&bytes).map_err(|error| error.to_string())
    });
    match fetched {
        Ok(manifest) => {
            let parameters = human::grouped(manifest.layout.len as u64);
            computed(&manifest.task, &parameters, tasks)
        }
        Err(why) => Finding::new("run", Verdict::Bad, why),
    }
}

/// Whether this program can compute a task.
fn computed(task: &str, parameters: &str, tasks: &[TaskFactory]) -> Finding {
    let found = tasks.iter().find(|factory| factory.name == task);
    let (verdict, text) = match found.map(|factory| factory.elsewhere) {
        Some(None) => (
            Verdict::Good,
            format!("a member answers; it trains {task}, {parameters} parameters"),
        ),
        Some(Some(why)) => (Verdict::Bad, why.to_owned()),
        None => (
            Verdict::Bad,
            format!("this program does not know its task, {task}: take the program that founded it"),
        ),
    };
    Finding::new("run", verdict, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{digits::Digits, pytorch::PyTorch};

    #[test]
    fn a_run_that_only_pytorch_computes_is_told_as_such() {
        let tasks = [TaskFactory::of::<Digits>(), TaskFactory::of::<PyTorch>()];
        for (task, verdict, told) in [
            ("digits", Verdict::Good, "it trains digits, 7 parameters"),
            (
                "pytorch",
                Verdict::Bad,
                "annulus.member(model, dataset, ticket=...)",
            ),
            ("own", Verdict::Bad, "does not know its task, own"),
        ] {
            let found = computed(task, "7", &tasks);
            assert_eq!(found.verdict, verdict);
            assert!(found.text.contains(told), "{}", found.text);
        }
    }
}
