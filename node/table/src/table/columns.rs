//! Which columns are read and how, and what the training rows say of them.

use super::divide::Divider;
use super::{AS_SAID, DIVIDES, Reading, WEIGHS, Weigher};
use crate::category::{Case, Places};
use crate::cells::Cells;
use crate::date::Moment;
use crate::error::TableError;
use crate::kinds::{Guess, Guesses};
use crate::measure;
use crate::number::{grouped, not_a_number};
use crate::options::{Kind, Log};
use crate::row::Row;
use crate::schema::{
    Column, ColumnKind, DatePart, Format, Ignored, Learnt, Numbers, Schema, Target, Trend, is_gap,
};
use crate::split::Split;
use crate::text::Words;

/// How to read a column.
#[derive(Clone)]
pub(super) struct Input {
    pub column: usize,
    pub kind: Kind,
    pub guess: Guess,
}

impl Input {
    /// Whether a cell can be used.
    pub fn fits(&self, cell: &str) -> bool {
        match self.kind {
            Kind::Number => self.guess.notation.read(cell).is_some() || is_gap(cell),
            Kind::Date => {
                let order = self.guess.order.unwrap_or_default();
                Moment::read(cell, order).is_some() || is_gap(cell)
            }
            _ => true,
        }
    }

    /// Why a cell does not fit.
    pub fn fault(&self, cell: &str) -> String {
        let why = match self.kind {
            Kind::Date => format!("{:?} is not a date", cell.chars().take(40).collect::<String>()),
            _ => not_a_number(cell),
        };
        if self.guess.fitting == 0 {
            return why;
        }
        match (self.kind, self.guess.notation.unit.as_str()) {
            (Kind::Number, unit) if !unit.is_empty() => {
                format!(
                    "{why} with {unit} ({} other values are)",
                    grouped(self.guess.fitting)
                )
            }
            _ => format!("{why} ({} other values are)", grouped(self.guess.fitting)),
        }
    }
}

impl Reading<'_> {
    /// How to read the column to predict.
    pub(super) fn target(&self, guesses: &Guesses, column: usize) -> Input {
        let guess = guesses.target(column);
        let given = self.options.columns.get(&self.rows.header[column]);
        Input {
            column,
            kind: given.copied().unwrap_or(guess.kind),
            guess,
        }
    }

    /// The columns to read and how, and those to ignore.
    pub(super) fn inputs(
        &self,
        guesses: &Guesses,
        target: usize,
        (divider, weights): (&Divider, Option<&Weigher>),
    ) -> Result<(Vec<Input>, Vec<Ignored>), TableError> {
        let (mut inputs, mut ignored) = (Vec::new(), Vec::new());
        for (column, name) in self.rows.header.iter().enumerate() {
            if column == target {
                continue;
            }
            let given = self.options.columns.get(name).copied();
            let mut guess = guesses.input(column);
            let divides = match divider {
                Divider::Number => false,
                Divider::Parts(by) | Divider::Group(by) => *by == column,
                // When something happens is known before it does.
                Divider::Time(by, _) => *by == column && guess.kind != Kind::Date,
            };
            let (kind, why) = match given {
                Some(Kind::Ignore) => (Kind::Ignore, AS_SAID.to_owned()),
                Some(Kind::Date) if let Some(doubt) = guess.doubt.as_ref().filter(|doubt| doubt.unread) => {
                    return self.fail(&format!("cannot have dates in {name}: {}", doubt.told));
                }
                Some(Kind::Date) if guess.order.is_none() => {
                    return self.fail(&format!(
                        "has dates in {name} whose day, month and year cannot be told apart: write \
                         columns.{name}=day-first, month-first or year-first"
                    ));
                }
                Some(kind) => {
                    guess.order = kind.order().or(guess.order);
                    (
                        if kind.order().is_some() { Kind::Date } else { kind },
                        String::new(),
                    )
                }
                None if divides => (Kind::Ignore, DIVIDES.to_owned()),
                None if weights.is_some_and(|by| by.column == column) => (Kind::Ignore, WEIGHS.to_owned()),
                None => (guess.kind, guess.why.clone()),
            };
            match kind {
                Kind::Ignore => ignored.push(Ignored {
                    name: name.clone(),
                    why: match guess.spoilt.as_str() {
                        "" => why,
                        spoilt => spoilt.to_owned(),
                    },
                }),
                kind => {
                    if given.is_some() {
                        guess.spoilt.clear();
                    }
                    inputs.push(Input { column, kind, guess });
                }
            }
        }
        Ok((inputs, ignored))
    }

    /// A column with its statistics over the training rows; of dates, each part that can be told from the others.
    pub(super) fn measured(&self, input: &Input, good: &[usize], split: &Split) -> Vec<Column> {
        let cells = split
            .train
            .iter()
            .map(|row| self.rows.cell(good[*row], input.column));
        let there = cells.filter(|cell| !self.is_missing(cell));
        let rows = split.train.len();
        let column = |format: Format, kind: ColumnKind, there: usize| Column {
            name: self.rows.header[input.column].clone(),
            format,
            kind,
            missing: (rows - there) as u64,
        };
        match input.kind {
            Kind::Number => {
                let notation = &input.guess.notation;
                let values: Vec<f64> = there.filter_map(|cell| notation.read(cell)).collect();
                let format = match notation.is_plain() {
                    true => Format::Plain,
                    false => Format::Numbers(notation.clone()),
                };
                let count = values.len();
                vec![column(format, ColumnKind::Number(numbers(values)), count)]
            }
            Kind::Text => vec![column(
                Format::Plain,
                ColumnKind::Text(Words::of(there.clone())),
                there.count(),
            )],
            Kind::Date => {
                let order = input.guess.order.unwrap_or_default();
                let moments: Vec<Moment> = there.filter_map(|cell| Moment::read(cell, order)).collect();
                let parts = DatePart::ALL.into_iter().filter(|part| part.tells(&moments));
                let of = |part: DatePart| {
                    let values: Vec<f64> = moments.iter().filter_map(|moment| part.of(moment)).collect();
                    let count = values.len();
                    let kind = match part.is_number() {
                        true => ColumnKind::Number(numbers(values)),
                        false => {
                            let texts: Vec<String> = values.iter().map(f64::to_string).collect();
                            ColumnKind::Category(measure::categories(
                                texts.iter().map(String::as_str),
                                Case::Matters,
                            ))
                        }
                    };
                    column(Format::Dates(order, part), kind, count)
                };
                parts.map(of).collect()
            }
            kind => {
                let (format, case) = match kind {
                    Kind::AnyCase => (Format::AnyCase, Case::Any),
                    _ => (Format::Plain, Case::Matters),
                };
                let categories = measure::categories(there.clone(), case);
                vec![column(format, ColumnKind::Category(categories), there.count())]
            }
        }
    }

    /// Fills in a target's statistics over the training rows, given the rows' cells.
    pub(super) fn measure_target(
        &self,
        schema: &mut Schema,
        (targets, cells): (&[f64], &Cells),
        split: &Split,
    ) -> Result<(), TableError> {
        let train: Vec<f64> = split.train.iter().map(|row| targets[*row]).collect();
        match &mut schema.target {
            Target::Number {
                name,
                mean,
                deviation,
                learnt,
                ..
            } => {
                let (of_all, spread) = measure::mean_and_deviation(&train);
                (*mean, *deviation) = (of_all as f32, measure::width(spread));
                let positive = targets.iter().all(|value| *value > 0.0);
                let logarithms: Vec<f64> = train.iter().map(|value| libm::log(*value)).collect();
                let skewed = || {
                    let skewness = measure::skewness(&train);
                    skewness > SKEWED && measure::skewness(&logarithms).abs() < skewness / 3.0
                };
                let log = match self.options.log {
                    Log::On if !positive => {
                        return self.fail(&format!(
                            "has values of {name} of 0 or less, which have no logarithm: leave log=on out"
                        ));
                    }
                    Log::On => true,
                    Log::Auto => positive && skewed(),
                    Log::Off => false,
                };
                let values = if log { logarithms } else { train };
                let row = |at: usize| cells.row(split.train[at], schema.columns.len());
                let trend = trend(&schema.columns, &values, row);
                if !log && trend.is_none() {
                    return Ok(());
                }
                let mut all = Learnt {
                    log,
                    trend,
                    mean: 0.0,
                    deviation: 1.0,
                };
                let rest: Vec<f64> = (0..values.len())
                    .map(|at| values[at] - all.base(row(at)))
                    .collect();
                let (mean, spread) = measure::mean_and_deviation(&rest);
                (all.mean, all.deviation) = (mean as f32, measure::width(spread));
                *learnt = Some(all);
            }
            Target::Class {
                classes,
                any_case,
                counts,
                positive,
                ..
            } => {
                train.iter().for_each(|class| counts[*class as usize] += 1);
                let wanted = self.options.positive.as_str();
                *positive = match Places::of(classes, Case::any(*any_case)).of_cell(wanted) {
                    Some(class) if !wanted.is_empty() => class,
                    _ if wanted.is_empty() => measure::positive(classes, counts),
                    _ => {
                        let classes = classes.join(", ");
                        return Err(TableError::Other(format!(
                            "positive={wanted} is not a class: choose one of {classes}"
                        )));
                    }
                };
            }
        }
        Ok(())
    }
}

/// The line by which a target rises with one of the dates, if that explains enough of it.
fn trend<'a>(columns: &[Column], values: &[f64], row: impl Fn(usize) -> Row<'a>) -> Option<Trend> {
    let is_days = |(_, column): &(usize, &Column)| column.format.is_part(DatePart::Days);
    let of = |(column, _): (usize, &Column)| {
        let rows = (0..values.len()).map(|at| (row(at).values[column], values[at]));
        let (middle, slope, explained) = measure::line(rows.filter(|(days, _)| !days.is_nan()))?;
        let (middle, slope) = (middle as f32, slope as f32);
        Some((
            explained,
            Trend {
                column,
                middle,
                slope,
            },
        ))
    };
    let found = columns.iter().enumerate().filter(is_days).filter_map(of);
    let best = found.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(explained, _)| *explained >= TREND)
        .map(|(_, trend)| trend)
}

/// A line must explain this share of a target's variance, or it is none of the target's; a guess.
const TREND: f64 = 0.1;

/// A target whose skewness is above this, and far smaller for its logarithm, is learnt as a logarithm. Of exponentially distributed
/// values it is 2, and of prices of houses and diamonds 1.7; a guess.
const SKEWED: f64 = 3.0;

/// Days over which dates must spread before months are told from a trend, and before weekdays and hours are; guesses.
const TWO_YEARS: f64 = 730.0;
const FOUR_WEEKS: f64 = 28.0;

impl DatePart {
    /// Whether a model can learn from this part of these dates: a season shows only where it comes again.
    fn tells(self, moments: &[Moment]) -> bool {
        let days = moments.iter().map(Moment::days);
        let spread = days.clone().fold(f64::NEG_INFINITY, f64::max) - days.fold(f64::INFINITY, f64::min);
        let least = match self {
            Self::Days => return true,
            Self::Year | Self::Month => TWO_YEARS,
            Self::Weekday | Self::Hour => FOUR_WEEKS,
        };
        let mut values = moments.iter().filter_map(|moment| self.of(moment));
        let first = values.next();
        spread >= least && values.any(|value| Some(value) != first)
    }
}

/// Statistics of numbers, if there are any.
fn numbers(values: Vec<f64>) -> Numbers {
    match values.is_empty() {
        true => Numbers {
            mean: 0.0,
            deviation: 0.0,
            octiles: [0.0; 9],
        },
        false => measure::numbers(values),
    }
}
