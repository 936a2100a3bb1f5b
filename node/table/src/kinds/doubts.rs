//! Numbers that may be something else: times, dates, or amounts in different units.

use super::{CODED, Cells, Seen, Tally};
use crate::date::{Moment, Order, whole};
use crate::number::{grouped, is_currency};
use std::collections::HashSet;

/// What the numbers of a column may be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Doubt {
    /// In words, with what to do.
    pub told: String,
    /// Whether by size they would be in another order than in time.
    pub disordered: bool,
    /// Whether they cannot be read as dates.
    pub unread: bool,
}

/// Seconds since 1970 at the beginning of 1990 and of 2040, and the same days in a spreadsheet: between them are most times in tables.
const SECONDS: std::ops::Range<f64> = 631_152_000.0..2_208_988_800.0;
const DAYS: std::ops::Range<f64> = 32_874.0..51_136.0;

/// What counts times since 1970.
const PARTS: [(&str, f64); 4] = [
    ("seconds", 1.0),
    ("milliseconds", 1e3),
    ("microseconds", 1e6),
    ("nanoseconds", 1e9),
];

/// Most units that a message lists; with more of them the texts are none of numbers.
const MOST_UNITS: usize = 6;

impl Seen {
    /// Whether the numbers of a column, which are all dates, are many and different enough to be nothing else.
    pub(super) fn are_certainly_dates(&self, cells: Cells) -> bool {
        if !self.perhaps {
            return true;
        }
        let order = self.order().unwrap_or_default();
        let moments = || cells.there().filter_map(|cell| Moment::read(cell, order));
        let months: HashSet<u8> = moments().map(|moment| moment.month()).collect();
        let years: HashSet<i32> = moments().map(|moment| moment.year()).collect();
        // Twelve numbers in a row may be 202401 to 202412.
        let by_year = cells.there().all(begins_with_year);
        cells.distinct(CODED) >= CODED && months.len() >= 3 && (years.len() >= 2 || !by_year)
    }

    /// Whether some dates are such as 2020.1, which may be in January, or in October if a program dropped the zero.
    pub(super) fn has_doubtful_months(&self) -> bool {
        let [short, tenths, zeros] = self.months;
        short && (!tenths || zeros)
    }

    /// What the numbers may be; `named`: whether the column is one of times by its name or by a setting.
    pub(super) fn doubt(&self, cells: Cells, name: &str, named: bool) -> Option<Doubt> {
        let all_dates = self.numbers > 0 && self.fitting_dates() == self.filled as u64 - self.marks;
        let are_many = || cells.distinct(CODED) >= CODED;
        let unread = |what: &str, disordered: bool| {
            let told = format!("{what}, so they are read as numbers: write them as 2024-12-31 or 2024-12");
            Some(Doubt {
                told,
                disordered,
                unread: true,
            })
        };
        if all_dates && self.has_doubtful_months() && are_many() {
            return unread(
                "its numbers may be months, but 2020.1 could be January or October",
                true,
            );
        }
        if all_dates && self.perhaps && (named || self.dates[0] != self.dates[1]) {
            return Some(Doubt {
                told: format!("its numbers may be dates: if they are, write columns.{name}=date"),
                disordered: !cells.there().all(begins_with_year),
                unread: false,
            });
        }
        let first = cells.there().next()?;
        if first.parse::<f64>().is_err() {
            return None;
        }
        let zeros = || {
            cells
                .there()
                .any(|cell| whole(cell).len() == 6 && cell.starts_with('0'))
        };
        if let Some(by_year) = short_dates(cells).filter(|_| (named || zeros()) && are_many()) {
            return unread("its numbers may be dates with a year of two digits", !by_year);
        }
        let numbers = || cells.there().map(|cell| cell.parse().unwrap_or(f64::NAN));
        let range = |order: Order| {
            let days = cells
                .there()
                .filter_map(|cell| Some(Moment::read(cell, order)?.days()));
            let (first, last) = days.fold((f64::INFINITY, f64::NEG_INFINITY), |(first, last), day| {
                (first.min(day), last.max(day))
            });
            format!("{} to {}", Moment::told(first), Moment::told(last))
        };
        let certain = |told: String| {
            Some(Doubt {
                told,
                disordered: false,
                unread: false,
            })
        };
        for (unit, parts) in PARTS {
            let fits = numbers().all(|number: f64| SECONDS.contains(&(number / parts)));
            let are_whole = || numbers().all(|number: f64| number.trunc() == number);
            if fits && (named || are_whole() && are_many()) {
                let range = range(Order::Unix);
                return certain(format!(
                    "its numbers may be {unit} since 1970, {range}: if they are, write columns.{name}=unix"
                ));
            }
        }
        if named && numbers().all(|number: f64| DAYS.contains(&number)) {
            let range = range(Order::Excel);
            return certain(format!(
                "its numbers may be dates of a spreadsheet, {range}: if they are, write columns.{name}=excel"
            ));
        }
        None
    }
}

/// How a number is written that may be a date, too.
pub(super) enum Written<'a> {
    /// With a year of four digits, a month and a day, as 20240305.
    Certain,
    /// As 2024.3, with these digits of the month.
    Month(&'a str),
    /// As 202403, 032024, 3.2024 and 5032024, which are numbers more often.
    Perhaps,
}

impl<'a> Written<'a> {
    pub fn of(cell: &'a str) -> Option<Self> {
        let cell = whole(cell);
        let (before, after) = cell.split_once('.').unwrap_or((cell, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_year = |text: &str| text.len() == 4 && (text.starts_with("19") || text.starts_with("20"));
        if !digits(before) || !digits(after) {
            return None;
        }
        match (before.len(), after.len()) {
            (8 | 12 | 14, 0) if is_year(&before[..4]) => Some(Self::Certain),
            (5..=8, 0) => Some(Self::Perhaps),
            (4, 1 | 2) if is_year(before) => Some(Self::Month(after)),
            (1 | 2, 4) if is_year(after) => Some(Self::Perhaps),
            _ => None,
        }
    }
}

/// Whether a date that is a number begins with its year.
fn begins_with_year(cell: &str) -> bool {
    let cell = whole(cell);
    let year = cell.get(..4).and_then(|year| year.parse::<i32>().ok());
    let month = cell
        .get(4..6)
        .and_then(|month| month.trim_start_matches('.').parse::<u8>().ok());
    year.is_some_and(|year| (1900..2100).contains(&year))
        && month.is_some_and(|month| (1..=12).contains(&month))
}

/// Whether all cells are dates with a year of two digits, without marks: whether the year certainly comes first.
fn short_dates(cells: Cells) -> Option<bool> {
    let all = |order: Order| {
        cells.there().all(|cell| {
            let cell = whole(cell);
            let is_short = matches!(cell.len(), 5 | 6) && cell.bytes().all(|byte| byte.is_ascii_digit());
            is_short && {
                let cell = format!("{cell:0>6}");
                Moment::read(&[&cell[..2], &cell[2..4], &cell[4..]].join("-"), order).is_some()
            }
        })
    };
    let [day, month, year] = [Order::DayFirst, Order::MonthFirst, Order::YearFirst].map(all);
    (day || month || year).then_some(!day && !month)
}

/// Whether a name says that its column has times.
pub(super) fn names_time(name: &str) -> bool {
    const PARTS: [&str; 11] = [
        "time", "date", "datum", "stamp", "epoch", "created", "updated", "zeit", "fecha", "month", "period",
    ];
    const WORDS: [&str; 7] = ["ts", "at", "day", "when", "monat", "mois", "unix"];
    let name = name.to_lowercase();
    PARTS.iter().any(|part| name.contains(part))
        || name
            .split(|letter: char| !letter.is_alphanumeric())
            .any(|word| WORDS.contains(&word))
}

impl Tally<'_> {
    /// Tells of the units of a column, whether or not it is read as numbers.
    pub(super) fn units_told(&self, cells: Cells, is_number: bool) -> Option<String> {
        let filled = cells.there().count() as u64;
        let bare = self.numbers - self.units.values().sum::<u64>();
        let unit = self.unit();
        if is_number {
            return (bare > 0 && !unit.is_empty() && !is_currency(unit)).then(|| {
                format!("{} of its numbers have no unit and are read as {unit}: if they are others, write the unit", grouped(bare))
            });
        }
        let least = *self.units.values().min()?;
        let kinds = self.units.len() + usize::from(bare > 0);
        let are =
            10 * self.numbers >= 9 * filled && (2..=MOST_UNITS).contains(&kinds) && 50 * least >= filled;
        are.then(|| {
            let mut each: Vec<String> =
                self.units.iter().map(|(unit, count)| format!("{} {unit}", grouped(*count))).collect();
            if bare > 0 {
                each.push(format!("{} without", grouped(bare)));
            }
            format!("its numbers have different units ({}), so they are not read as numbers: if they are amounts, write all with the same unit", each.join(", "))
        })
    }
}
