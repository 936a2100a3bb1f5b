//! Tells what was found and guessed, for a person to check.

use crate::augment::Augment;
use crate::records::{Facts, Records};
use annulus_table::grouped;
use std::fmt::Write as _;

/// Classes that are listed; the rest are counted.
const SHOWN: usize = 20;

impl Records {
    /// Classes with their pictures, what was done to pictures, how they were divided, and what was left out.
    pub fn describe(&self, augment: Augment) -> String {
        let Facts {
            name,
            classes,
            size,
            channels,
            resized,
            divided,
            skipped,
            ..
        } = &self.facts;
        let (pictures, count) = (grouped(self.len() as u64), classes.len());
        let mut text = format!("{name}: {pictures} pictures in {count} classes");
        let mut counts = vec![0; count];
        (0..self.len()).for_each(|at| counts[self.label(at)] += 1);
        let width = classes
            .iter()
            .map(|class| class.chars().count())
            .max()
            .unwrap_or(0);
        for (class, count) in classes.iter().zip(&counts).take(SHOWN) {
            let _ = write!(text, "\n  {class:<width$} {:>9}", grouped(*count));
        }
        if let Some(more) = count.checked_sub(SHOWN + 1) {
            let _ = write!(text, "\n  and {} more classes", more + 1);
        }
        let colour = if *channels == 1 { "grey" } else { "in colour" };
        let _ = write!(text, "\n{resized}, {colour}");
        let reach = Augment::reach(*size);
        let varied = match augment.does(*channels) {
            (false, false) => "used as they are".to_owned(),
            (true, false) => "flipped left to right half of the time".into(),
            (false, true) => format!("shifted by up to {reach} pixels"),
            (true, true) => {
                format!("flipped left to right half of the time, and shifted by up to {reach} pixels")
            }
        };
        let _ = write!(
            text,
            "\ntraining pictures are {varied} (augment=off|flip|crop|flip,crop)"
        );
        let parts = [&self.split.train, &self.split.validation, &self.split.test];
        let [train, validation, test] = parts.map(|part| grouped(part.len() as u64));
        let _ = write!(
            text,
            "\n{divided}: {train} train, {validation} validation, {test} test"
        );
        let (left_out, first) = skipped;
        if *left_out > 0 {
            let _ = write!(text, "\nskipped {} files:", grouped(*left_out as u64));
            first.iter().for_each(|fault| {
                let _ = write!(text, "\n  {fault}");
            });
        }
        text
    }
}
