//! Dates that are written as one number: 20241231, 31122024, 202412, 20241231134500, seconds since 1970, days of a spreadsheet.

use super::{DAY, LIKELY, Moment, Order, valid};
use crate::number::parse;
use time::{Date, Duration};

/// The Julian day of a spreadsheet's day 0, 1899-12-30.
const EXCEL: i32 = 2_415_019;

/// From here on a number counts smaller parts of seconds than thousands of the last border: 1e11 seconds are the year 5138.
const BORDER: f64 = 1e11;

/// A number that counts seconds or days, if that is what the column has.
pub(super) fn counted(cell: &str, order: Order) -> Option<Moment> {
    let (epoch, days) = match order {
        Order::Unix => {
            let mut seconds: f64 = cell.parse().ok().filter(|number: &f64| number.abs() < 1e19)?;
            let mut border = BORDER;
            let mut parts = 1.0;
            while seconds.abs() >= border && border < 1e20 {
                border *= 1000.0;
                parts *= 1000.0;
            }
            seconds /= parts;
            (super::EPOCH, seconds / DAY)
        }
        Order::Excel => (EXCEL, parse(cell)?),
        _ => return None,
    };
    let day = days.floor();
    let date = Date::from_julian_day(epoch.checked_add(day as i32)?).ok()?;
    // Rounded to what such numbers can tell: a thousandth of a second.
    let seconds = ((days - day) * DAY * 1000.0).round() / 1000.0;
    let (date, seconds) = match seconds < DAY {
        true => (date, seconds),
        false => (date.checked_add(Duration::DAY)?, 0.0),
    };
    Some(Moment {
        date,
        seconds: (order == Order::Unix || seconds > 0.0).then_some(seconds),
        offset: 0.0,
    })
}

/// The date that a cell's digits mean, and what follows.
pub(super) fn date(cell: &str, order: Order) -> Option<(Date, &str)> {
    let end = cell
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(cell.len());
    let (digits, rest) = cell.split_at(end);
    if !(5..=14).contains(&end) || !(rest.is_empty() || end == 8 && rest.starts_with([' ', 'T', 't'])) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    let whole = |year: u64, month: u64, day: u64| valid(year as i32, month as u32, day as u32);
    let likely = |date: Option<Date>| date.filter(|date| LIKELY.contains(&date.year()));
    let by_year = |number: u64| whole(number / 10_000, number / 100 % 100, number % 100);
    let date = match end {
        8 if let Some(date) = by_year(number) => date,
        7 | 8 => {
            let (first, second, year) = (number / 1_000_000, number / 10_000 % 100, number % 10_000);
            likely(match order {
                Order::DayFirst => whole(year, second, first),
                Order::MonthFirst => whole(year, first, second),
                _ => None,
            })?
        }
        5 | 6 => {
            let of = |year: u64, month: u64| likely(whole(year, month, 1));
            of(number / 100, number % 100).or_else(|| of(number % 10_000, number / 10_000))?
        }
        // With a time of day.
        12 | 14 => {
            let clock = if end == 12 { "HHMM" } else { "HHMMSS" }.len() as u32;
            let date = likely(by_year(number / 10u64.pow(clock)))?;
            return Some((date, &cell[8..]));
        }
        _ => return None,
    };
    Some((date, rest))
}
