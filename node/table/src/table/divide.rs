//! Which rows are for training, which to choose by, and which to judge by.

use super::Reading;
use crate::category::key;
use crate::date::{Moment, Order};
use crate::error::TableError;
use crate::kinds::{Doubt, Guesses};
use crate::number::{Notation, short};
use crate::options::{Kind, Options};
use crate::schema::is_gap;
use crate::split::{Part, Split};
use std::borrow::Cow;
use std::collections::HashSet;

/// The columns that divide the rows, if any do.
#[derive(Clone)]
pub(super) enum Divider {
    Number,
    Parts(usize),
    Group(usize),
    Time(usize, Clock),
}

/// How a column tells the time.
#[derive(Clone)]
pub(super) enum Clock {
    Numbers(Notation),
    Dates(Order),
}

impl Clock {
    pub fn read(&self, cell: &str) -> Option<f64> {
        match self {
            Self::Numbers(notation) => notation.read(cell),
            Self::Dates(order) => Moment::read(cell, *order).map(|moment| moment.days()),
        }
    }

    pub fn told(&self, time: f64) -> String {
        match self {
            Self::Numbers(_) => short(time),
            Self::Dates(_) => Moment::told(time),
        }
    }
}

impl Reading<'_> {
    /// The column that divides the rows, as the options or its cells say.
    pub(super) fn divider(&self, guesses: &Guesses) -> Result<Divider, TableError> {
        let Options {
            split_column,
            split_by,
            split_time,
            ..
        } = self.options;
        let given = [
            ("split_column", split_column),
            ("split_by", split_by),
            ("split_time", split_time),
        ];
        let mut given = given.iter().filter(|(_, name)| !name.is_empty());
        let first = given.next();
        if given.next().is_some() {
            return self
                .fail("can be divided in one way only: give one of split_column, split_by and split_time");
        }
        match first {
            Some((setting, name)) => {
                let column = self.named(setting, name)?;
                if *name == &self.options.target {
                    return self.fail(&format!(
                        "cannot be divided by {name}, which is to be predicted: the test would hold what training never saw. \
                         Name another column after {setting}"
                    ));
                }
                Ok(match *setting {
                    "split_column" => Divider::Parts(column),
                    "split_by" => Divider::Group(column),
                    _ => Divider::Time(column, self.clock(guesses, column)?),
                })
            }
            None => {
                let parts = (0..self.rows.header.len()).find(|column| {
                    self.rows.header[*column] != self.options.target && self.names_parts(*column)
                });
                Ok(parts.map_or(Divider::Number, Divider::Parts))
            }
        }
    }

    /// How the column of `split_time` tells the time.
    fn clock(&self, guesses: &Guesses, column: usize) -> Result<Clock, TableError> {
        let guess = guesses.input(column);
        let name = &self.rows.header[column];
        let given = self.options.columns.get(name).copied();
        if let Some(order) = given.and_then(Kind::order) {
            return Ok(Clock::Dates(order));
        }
        match guess.doubt {
            Some(Doubt { unread: false, .. }) if given == Some(Kind::Date) => {
                return Ok(Clock::Dates(guess.order.unwrap_or_default()));
            }
            Some(Doubt {
                disordered: true,
                told,
                ..
            }) if given != Some(Kind::Number) => {
                return self.fail(&format!(
                    "cannot be ordered by {name}: {told}. If they are numbers, write columns.{name}=number"
                ));
            }
            _ => {}
        }
        let cells = || (0..self.rows.len()).map(|row| self.rows.cell(row, column));
        let first = cells()
            .find(|cell| !self.is_missing(cell) && !is_gap(cell))
            .unwrap_or("");
        let orders = [Order::DayFirst, Order::MonthFirst, Order::YearFirst];
        match (guess.order, orders.into_iter().find_map(|order| Moment::read(first, order))) {
            (Some(order), Some(_)) if guess.kind == Kind::Date => Ok(Clock::Dates(order)),
            (None, Some(_)) => self.fail(&format!(
                "cannot be ordered by {name}: whether {first:?} begins with the day, the month or the year cannot be told. \
                 Write columns.{name}=day-first, month-first or year-first"
            )),
            _ if 2 * guess.fitting > self.rows.len() as u64 => Ok(Clock::Numbers(guess.notation)),
            _ => self.fail(&format!(
                "cannot be ordered by {name}: {first:?} is neither a number nor a date. Use numbers, or dates such as 2024-12-31, \
                 31.12.2024 or 12/31/2024"
            )),
        }
    }

    /// Whether a column holds the names of parts, and nothing else.
    fn names_parts(&self, column: usize) -> bool {
        let mut found = HashSet::new();
        let all = (0..self.rows.len()).all(|row| {
            let part = Part::named(self.rows.cell(row, column));
            part.is_some_and(|part| {
                found.insert(part as u8);
                true
            })
        });
        all && found.contains(&(Part::Train as u8)) && found.contains(&(Part::Test as u8))
    }

    /// Divides the good rows, and tells how.
    pub(super) fn divide(&self, divider: &Divider, good: &[usize], classes: &[usize]) -> (Split, String) {
        let cell = |row: &usize, column: usize| self.rows.cell(*row, column);
        let name = |column: &usize| &self.rows.header[*column];
        match divider {
            Divider::Number => (Split::by_row(classes), "split by row".into()),
            Divider::Parts(column) => {
                let part = |row: &usize| Part::named(cell(row, *column)).expect("other rows are left out");
                let parts = good.iter().map(part).collect();
                (
                    Split::given(parts, classes),
                    format!("split by the column {}", name(column)),
                )
            }
            Divider::Group(column) => {
                let groups: Vec<Cow<str>> = good.iter().map(|row| key(cell(row, *column))).collect();
                let groups: Vec<&str> = groups.iter().map(Cow::as_ref).collect();
                (
                    Split::by_group(&groups),
                    format!("split by {}, of which no value is in two parts", name(column)),
                )
            }
            Divider::Time(column, clock) => {
                let time = |row: &usize| clock.read(cell(row, *column)).expect("other rows are left out");
                let times: Vec<f64> = good.iter().map(time).collect();
                let mut order: Vec<usize> = (0..good.len()).collect();
                order.sort_by(|a, b| times[*a].total_cmp(&times[*b]));
                let split = Split::by_order(&order);
                let range = |(part, rows): (&str, &Vec<usize>)| {
                    let ends = rows.iter().map(|row| times[*row]);
                    let first = ends.clone().fold(f64::INFINITY, f64::min);
                    let last = ends.fold(f64::NEG_INFINITY, f64::max);
                    format!("{part} {} to {}", clock.told(first), clock.told(last))
                };
                let parts = [
                    ("train", &split.train),
                    ("validation", &split.validation),
                    ("test", &split.test),
                ];
                let told = format!("split by {} ({})", name(column), parts.map(range).join(", "));
                (split, told)
            }
        }
    }
}
