//! The model card: what a model predicts, from what, and how well, as Markdown with the front matter of Hugging Face.

use crate::date::Moment;
use crate::metrics::Metric;
use crate::number::{grouped, listed, short};
use crate::predict::{Importance, Judged, percent};
use crate::schema::{ColumnKind, DatePart, Format, Schema, Target};
use std::fmt::Write;

/// The card of a model for the table in the file `name`, judged on its test rows.
pub fn card(name: &str, schema: &Schema, test: &Judged, importance: &[Importance]) -> String {
    let target = &schema.target;
    let (tag, kind) = match target {
        Target::Number { .. } => ("tabular-regression", "a number".to_owned()),
        Target::Class { classes, .. } => {
            let classes: Vec<String> = classes.iter().map(|class| plain(class)).collect();
            ("tabular-classification", format!("one of {}", listed(&classes)))
        }
    };
    let (predicted, name) = (plain(target.name()), plain(name));
    let mut text = format!(
        "---\nlibrary_name: annulus\ntags:\n- {tag}\n---\n# {predicted} from {name}\n\nThis model predicts the column {predicted}: {kind}. \
         Use it with `annulus predict model.safetensors ROWS.csv`.\n\n## Inputs\n\n| column | read as | missing in training \
         |\n|---|---|---|\n"
    );
    for column in &schema.columns {
        let kind = match &column.kind {
            ColumnKind::Number(days) if column.format.is_part(DatePart::Days) => {
                let [first, .., last] = days.octiles.map(|day| Moment::told(day.into()));
                format!("a date, {first} to {last}")
            }
            _ if matches!(column.format, Format::Dates(..)) => continue,
            ColumnKind::Number(numbers) => {
                let [least, .., most] = numbers.octiles.map(f64::from);
                format!("a number, {} to {}", short(least), short(most))
            }
            ColumnKind::Category(categories) => format!("one of {} categories", categories.values.len()),
            ColumnKind::Text(words) => {
                format!(
                    "a text, by {} words and pairs of words",
                    grouped(words.terms.len() as u64)
                )
            }
        };
        let (name, missing) = (plain(&column.name), grouped(column.missing));
        let _ = writeln!(text, "| {name} | {kind} | {missing} |");
    }
    if !importance.is_empty() {
        text += "\n## Importance\n\nHow much the loss on the validation rows grows when the cells of a column are exchanged between \
                 rows.\n\n| column | loss grows by |\n|---|---|\n";
    }
    for one in importance {
        let _ = writeln!(text, "| {} | {} |", plain(&one.column), percent(one.share));
    }
    text + &tested(test, "rows")
}

/// A name from the data as Markdown: one line of text, and nothing that Markdown, HTML or a terminal would obey.
pub fn plain(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '\t' | '\n' | '\r' => text.push(' '),
            // Some turn the direction of the text behind them.
            c if c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                text.push('\u{fffd}');
            }
            '\\' | '`' | '*' | '[' | ']' | '<' | '>' | '|' | '&' | '~' | '!' | '#' | '$' => {
                text.extend(['\\', c])
            }
            c => text.push(c),
        }
    }
    text
}

/// The part of a card that tells how a model did on `what` of its test part, such as rows.
pub fn tested(test: &Judged, what: &str) -> String {
    let count = grouped(test.rows);
    let mut text = format!(
        "\n## Test\n\nJudged once on {count} {what} that training never saw. Intervals are 95 %.\n\n| metric | this model | \
         always the same answer |"
    );
    let linear = !test.linear.is_empty();
    text += if linear {
        " linear model |\n|---|---|---|---|\n"
    } else {
        "\n|---|---|---|\n"
    };
    for metric in &test.metrics {
        let of = |metrics: &[Metric]| {
            let found = metrics.iter().find(|other| other.name == metric.name);
            found.map_or("-".into(), |found| short(found.value))
        };
        let interval = match metric.interval {
            Some((low, high)) => format!(" ({} to {})", short(low), short(high)),
            None => String::new(),
        };
        let (name, value, constant) = (plain(&metric.name), short(metric.value), of(&test.constant));
        let _ = write!(text, "| {name} | {value}{interval} | {constant} |");
        text += &if linear {
            format!(" {} |\n", of(&test.linear))
        } else {
            "\n".into()
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_wherever_they_come_from() {
        assert_eq!(plain("median_income (2026)"), "median_income (2026)");
        let bad = "<img onerror=x>\u{1b}]0;P\u{7}|a\nb\r`c` [d](e) \u{202e}*f* &lt; \\";
        assert_eq!(
            plain(bad),
            "\\<img onerror=x\\>\u{fffd}]0;P\u{fffd}\\|a b \\`c\\` \\[d\\](e) \u{fffd}\\*f\\* \\&lt; \\\\"
                .replace("]0", "\\]0")
        );
    }
}
