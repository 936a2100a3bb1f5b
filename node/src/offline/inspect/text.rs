//! A summary as text.

use super::{Saved, Summary, Total};
use crate::task::in_words;
use annulus_net::printable::printable_line;
use std::fmt;

/// Rounds printed at most; JSON has all of them.
const ROWS: usize = 20;

/// Joins items with a separator.
fn listed(items: &[impl fmt::Display], between: &str) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(between)
}

impl Summary {
    /// What its founder said of the run, each on a line.
    fn said(&self) -> String {
        let said = [&self.title, &self.about]
            .into_iter()
            .filter(|text| !text.is_empty());
        said.map(|text| format!("\n{}", printable_line(text, usize::MAX)))
            .collect()
    }

    /// What each peer did.
    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n  peer      rounds     samples   computed")?;
        for Total {
            peer,
            rounds,
            samples,
            compute_seconds,
        } in &self.totals
        {
            writeln!(
                f,
                "  {}  {rounds:>6}  {samples:>10}  {compute_seconds:>7.1} s  {}",
                short(peer),
                self.names.get(peer).map_or("", String::as_str)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.finished, self.stopped_early) {
            (true, true) => "stopped early",
            (true, false) => "finished",
            (false, _) => "not finished",
        };
        writeln!(
            f,
            "run {} ({}), {state}{}",
            short(&self.run),
            self.task,
            self.said()
        )?;
        writeln!(f, "rounds {}, optimizer steps {}", self.rounds, self.steps)?;
        let (samples, target) = (self.samples, self.target);
        let (skipped, returned) = (self.skipped, self.returned);
        writeln!(
            f,
            "samples {samples} of {target} counted, {skipped} skipped, {returned} to be handed out again"
        )?;
        if self.base > 0 {
            writeln!(f, "this peer's ledger begins after round {}", self.base)?;
        }
        writeln!(f, "\nmembers")?;
        for change in &self.changes {
            let how = format!("{:?}", change.how).to_lowercase();
            writeln!(
                f,
                "  after round {:>8}  {}  {how}{}{}",
                change.round,
                short(&change.peer),
                if change.why.is_empty() { "" } else { ": " },
                change.why
            )?;
        }
        match self.cut[..] {
            _ if self.keeps.is_empty() => {}
            [] => writeln!(f, "\n  peer      parts of the optimizer's vectors")?,
            _ => writeln!(
                f,
                "\n  peer      parts of the model, cut into {} steps",
                listed(&self.cut, "+")
            )?,
        }
        for keeps in &self.keeps {
            let (peer, parts, learns, of) = (short(&keeps.peer), keeps.parts, keeps.learns, keeps.of);
            write!(f, "  {peer}  keeps {parts} of {of}, fetches {learns}")?;
            match keeps.spans[..] {
                [] => writeln!(f)?,
                [span] => writeln!(f, ", holds span {span}")?,
                _ => writeln!(f, ", holds spans {}", listed(&keeps.spans, ", "))?,
            }
        }
        self.totals(f)?;
        writeln!(
            f,
            "\n  round     attempt  samples  loss      digest    contributors"
        )?;
        let hidden = self.table.len().saturating_sub(ROWS);
        if hidden > 0 {
            writeln!(f, "  ({hidden} earlier rounds)")?;
        }
        for row in &self.table[hidden..] {
            let loss = row.loss.map_or("-".into(), |loss| format!("{loss:.4}"));
            let (round, attempt, samples) = (row.round, row.attempt, row.samples);
            let digest = row.digest.as_deref().map_or("-", short);
            write!(
                f,
                "  {round:<8}  {attempt:>7}  {samples:>7}  {loss:<8}  {digest:<8} "
            )?;
            row.contributors
                .iter()
                .try_for_each(|c| write!(f, " {}:{}", short(&c.peer), c.weight))?;
            writeln!(f)?;
        }
        if !self.evals.is_empty() {
            writeln!(f, "\nevaluations")?;
        }
        for eval in &self.evals[self.evals.len().saturating_sub(ROWS)..] {
            let (round, loss, metrics) = (eval.round, eval.loss, in_words(&eval.metrics));
            writeln!(f, "  round {round:<8}  loss {loss:.4}{metrics}")?;
        }
        writeln!(f, "\ncheckpoints")?;
        for Saved { round, bytes, digest } in &self.checkpoints {
            let digest = digest.as_deref().map_or("damaged", short);
            writeln!(f, "  round {round:<8}  {:>8.1} MB  {digest}", *bytes as f64 / 1e6)?;
        }
        self.warnings
            .iter()
            .try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

fn short(hex: &str) -> &str {
    hex.get(..8).unwrap_or(hex)
}
