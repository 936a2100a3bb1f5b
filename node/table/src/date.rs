//! Dates in texts, in the usual forms: 2024-03-05, 5.3.2024, 03/05/2024, 20240305, 5 Mar 2024 and Mar 5, 2024; also with a time of
//! day and an offset.

mod coded;

use serde::{Deserialize, Serialize};
use time::{Date, Month};

/// Which comes first in a date that does not begin with the year.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// 5/3 is in March.
    #[default]
    DayFirst,
    /// 5/3 is in May.
    MonthFirst,
    /// 24-5-3 is in 2024.
    YearFirst,
    /// No date that was seen told: those that could be read in two ways are none.
    Untold,
    /// 1714918500 is in 2024: seconds since 1970, or as many thousandths, millionths or billionths.
    Unix,
    /// 45417 is in 2024: days of a spreadsheet.
    Excel,
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    date: Date,
    /// Of the day, where the clock stood that the text was written by; none without a time.
    seconds: Option<f64>,
    /// How far that clock was before Greenwich's.
    offset: f64,
}

/// The Julian day of 1970-01-01.
const EPOCH: i32 = 2_440_588;

/// Seconds of a day.
const DAY: f64 = 86_400.0;

/// Years that a date may have; others are typing errors or numbers.
const YEARS: std::ops::RangeInclusive<i32> = 1000..=2999;

/// Years of numbers that are dates only perhaps, such as 122024.
const LIKELY: std::ops::Range<i32> = 1900..2100;

/// Two digits from here on mean a year of the last century, as in POSIX.
const CENTURY: i32 = 69;

impl Moment {
    /// Reads a date.
    pub fn read(cell: &str, order: Order) -> Option<Self> {
        let counted = coded::counted(cell, order);
        if counted.is_some() {
            return counted;
        }
        // Most cells of a table are no dates; these are told apart quickly.
        let first = cell.bytes().next()?;
        if !(first.is_ascii_alphanumeric()
            && cell.len() >= 5
            && cell.bytes().any(|byte| byte.is_ascii_digit()))
        {
            return None;
        }
        let cell = without_weekday(whole(cell));
        let (date, rest) = match order {
            Order::Untold | Order::Unix | Order::Excel => untold(cell)?,
            order => date(cell, order)?,
        };
        let rest = rest
            .strip_prefix('T')
            .or_else(|| rest.strip_prefix(','))
            .unwrap_or(rest)
            .trim_start();
        let (seconds, offset) = match rest {
            "" => (None, 0.0),
            rest => clock(rest).map(|(seconds, offset)| (Some(seconds), offset))?,
        };
        Some(Self {
            date,
            seconds,
            offset,
        })
    }

    /// Days since 1970.
    pub fn days(&self) -> f64 {
        let day = f64::from(self.date.to_julian_day() - EPOCH);
        day + (self.seconds.unwrap_or(0.0) - self.offset) / DAY
    }

    /// Its year.
    pub fn year(&self) -> i32 {
        self.date.year()
    }

    /// From 1.
    pub fn month(&self) -> u8 {
        self.date.month().into()
    }

    /// From 1, which is Monday.
    pub fn weekday(&self) -> u8 {
        self.date.weekday().number_from_monday()
    }

    /// From 0; none without a time.
    pub fn hour(&self) -> Option<u8> {
        self.seconds.map(|seconds| (seconds / 3600.0) as u8)
    }

    /// Days since 1970 as a date.
    pub fn told(days: f64) -> String {
        let date = Date::from_julian_day(days.floor() as i32 + EPOCH);
        date.map_or_else(|_| days.to_string(), |date| date.to_string())
    }
}

/// Whole numbers of a column with gaps are often written as 20240305.0.
pub(crate) fn whole(cell: &str) -> &str {
    match cell.strip_suffix(".0") {
        Some(whole) if whole.len() >= 5 && whole.bytes().all(|byte| byte.is_ascii_digit()) => whole,
        _ => cell,
    }
}

/// A date that can be read in one way only.
fn untold(cell: &str) -> Option<(Date, &str)> {
    let all = [Order::DayFirst, Order::MonthFirst, Order::YearFirst].map(|order| date(cell, order));
    let mut found = all.into_iter().flatten();
    let first = found.next()?;
    found.all(|(other, _)| other == first.0).then_some(first)
}

/// What follows the name of a day of the week.
fn without_weekday(cell: &str) -> &str {
    const DAYS: [&str; 7] = [
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ];
    let end = cell
        .find(|letter: char| !letter.is_ascii_alphabetic())
        .unwrap_or(0);
    let (word, rest) = cell.split_at(end);
    let is_day = |day: &&str| {
        let day = day.get(..word.len());
        day.is_some_and(|day| day.eq_ignore_ascii_case(word))
    };
    match word.len() >= 3 && DAYS.iter().any(is_day) {
        true => rest.trim_start_matches(['.', ',', ' ']),
        false => cell,
    }
}

/// A month, a quarter or a week of a year, by its first day: Apr 2024, Apr-24, 04/2024, 04.2024, 2024Q2, Q2 2024, 2024-W17.
fn period(cell: &str) -> Option<Date> {
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let is_number = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let quarter = |year: &str, quarter: &str| {
        let quarter = number(quarter, 1..=1).filter(|quarter| (1..=4).contains(quarter))?;
        valid(number(year, 4..=4)? as i32, 3 * quarter - 2, 1)
    };
    let week = |year: &str, week: &str| {
        let (year, week) = (number(year, 4..=4)? as i32, number(week, 2..=2)?);
        let date = Date::from_iso_week_date(year, u8::try_from(week).ok()?, time::Weekday::Monday).ok()?;
        YEARS.contains(&year).then_some(date)
    };
    // Without a copy: all cells with a digit come by here.
    let halves = |marks: [char; 2]| {
        let (before, behind) = cell.split_once(marks)?;
        Some((before.trim_matches(['-', ' ']), behind.trim_matches(['-', ' '])))
    };
    if let Some((before, behind)) = halves(['Q', 'q']) {
        return quarter(before, behind).or_else(|| {
            behind
                .rsplit_once([' ', '-'])
                .and_then(|(q, year)| quarter(year, q.trim()))
        });
    }
    if let Some((year, of)) = halves(['W', 'w']) {
        return week(year, of);
    }
    // As spreadsheets show months.
    if let Some((name, of)) = cell.split_once('-')
        && let Some(of) = number(of, 2..=2)
        && let Some(month) = month(name)
    {
        return valid(year(of, 2)?, month, 1);
    }
    let (first, year) = cell.rsplit_once([' ', '-', '/', '.'])?;
    let year = number(year, 4..=4).filter(|year| LIKELY.contains(&(*year as i32)))? as i32;
    let first = first.trim_end_matches(['.', ',']);
    valid(year, number(first, 1..=2).or_else(|| month(first))?, 1)
}

/// A date at the beginning of a text, and what follows.
fn date(cell: &str, order: Order) -> Option<(Date, &str)> {
    if let Some(date) = period(cell) {
        return Some((date, ""));
    }
    if let Some(found) = coded::date(cell, order) {
        return Some(found);
    }
    let mut words = Words(cell);
    let (first, second) = (words.next()?, words.next());
    let mark = match second? {
        Word::Mark(mark @ ('-' | '/' | '.' | ' ')) => mark,
        // "Mar. 5" and "Mar 5".
        _ => return None,
    };
    let third = words.next()?;
    // In "Mar 5, 2024" and "5. Mar 2024" there is more than one mark.
    let named = matches!(first, Word::Name(_)) || matches!(third, Word::Name(_));
    let third = match third {
        Word::Mark(' ') if mark == '.' => words.next()?,
        third => third,
    };
    let named = named || matches!(third, Word::Name(_));
    match words.next() {
        Some(Word::Mark(again)) if again == mark || named && matches!(again, ',' | '.' | '-' | ' ') => {}
        // The first day of a month.
        rest => {
            return match (first, third, rest) {
                (Word::Number(year, 4), Word::Number(month, 1 | 2), None) if mark != ' ' => {
                    Some((valid(year as i32, month, 1)?, ""))
                }
                _ => None,
            };
        }
    }
    let mut last = words.next()?;
    while named && matches!(last, Word::Mark(' ')) {
        last = words.next()?;
    }
    let date = match (first, third, last) {
        (Word::Number(year, 4), Word::Number(month, _), Word::Number(day, 1 | 2)) => {
            valid(year as i32, month, day)?
        }
        (Word::Number(year, 4), Word::Name(month), Word::Number(day, 1 | 2)) => {
            valid(year as i32, month, day)?
        }
        (Word::Number(day, 1 | 2), Word::Name(month), Word::Number(of, digits)) => {
            valid(year(of, digits)?, month, day)?
        }
        (Word::Name(month), Word::Number(day, 1 | 2), Word::Number(of, digits)) => {
            valid(year(of, digits)?, month, day)?
        }
        (Word::Number(a, 1 | 2), Word::Number(b, 1 | 2), Word::Number(of, digits)) => match order {
            Order::DayFirst => valid(year(of, digits)?, b, a)?,
            Order::MonthFirst => valid(year(of, digits)?, a, b)?,
            Order::YearFirst if digits <= 2 => valid(year(a, 2)?, b, of)?,
            _ => return None,
        },
        _ => return None,
    };
    Some((date, words.0))
}

/// A year of four digits, or of two in the hundred years around 2000.
fn year(number: u32, digits: usize) -> Option<i32> {
    match digits {
        4 => Some(number as i32),
        2 if (number as i32) < CENTURY => Some(2000 + number as i32),
        2 => Some(1900 + number as i32),
        _ => None,
    }
}

fn valid(year: i32, month: u32, day: u32) -> Option<Date> {
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(year, month, u8::try_from(day).ok()?).ok()?;
    YEARS.contains(&year).then_some(date)
}

/// Zones that have one name in one place, and their hours before Greenwich's.
const ZONES: [(&str, f64); 14] = [
    ("CET", 1.0),
    ("CEST", 2.0),
    ("EET", 2.0),
    ("EEST", 3.0),
    ("MSK", 3.0),
    ("JST", 9.0),
    ("EST", -5.0),
    ("EDT", -4.0),
    ("CDT", -5.0),
    ("MST", -7.0),
    ("MDT", -6.0),
    ("PST", -8.0),
    ("PDT", -7.0),
    ("BST", 1.0),
];

/// A time of day such as 13:45, 1:45:30.5 pm or 13:45:00+01:00: its seconds, and those of the offset.
fn clock(text: &str) -> Option<(f64, f64)> {
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || letter == ':' || letter == '.'));
    let (time, rest) = text.split_at(end.unwrap_or(text.len()));
    // 1345 and 134500 as well.
    let is_compact = matches!(time.len(), 4 | 6) && time.bytes().all(|byte| byte.is_ascii_digit());
    let spelled = if is_compact {
        [&time[..2], &time[2..4], time[4..].get(..2).unwrap_or("0")].join(":")
    } else {
        time.to_owned()
    };
    let mut parts = spelled.split(':');
    let whole = |part: &str, most: u32| part.parse().ok().filter(|number: &u32| *number <= most);
    let (hour, minute) = (whole(parts.next()?, 23)?, whole(parts.next()?, 59)?);
    let second = match parts.next() {
        Some(second) => second.parse().ok().filter(|second: &f64| *second < 61.0)?,
        None => 0.0,
    };
    if parts.next().is_some() {
        return None;
    }
    let rest = rest.trim_start();
    let (hour, rest) = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("am") if (1..=12).contains(&hour) => (hour % 12, &rest[2..]),
        Some("pm") if (1..=12).contains(&hour) => (hour % 12 + 12, &rest[2..]),
        _ => (hour, rest),
    };
    let offset = match rest.trim() {
        "" | "Z" | "UTC" | "GMT" => 0.0,
        zone if let Some((_, hours)) = ZONES.iter().find(|(name, _)| *name == zone) => 3600.0 * hours,
        zone => {
            let (sign, digits) = match zone.split_at_checked(1)? {
                ("+", digits) => (1.0, digits),
                ("-", digits) => (-1.0, digits),
                _ => return None,
            };
            let digits = digits.replace(':', "");
            let (hours, minutes) = digits.split_at_checked(2)?;
            let minutes = if minutes.is_empty() {
                0
            } else {
                whole(minutes, 59)?
            };
            sign * f64::from(whole(hours, 14)? * 3600 + minutes * 60)
        }
    };
    Some((f64::from(hour * 3600 + minute * 60) + second, offset))
}

/// A part of a date.
enum Word {
    /// A number and how many digits it has.
    Number(u32, usize),
    /// The month with this name.
    Name(u32),
    /// A character between.
    Mark(char),
}

/// The rest of a text, word by word.
struct Words<'a>(&'a str);

impl Words<'_> {
    fn next(&mut self) -> Option<Word> {
        let first = self.0.chars().next()?;
        let is_same: fn(char) -> bool = match first {
            _ if first.is_ascii_digit() => |letter| letter.is_ascii_digit(),
            _ if first.is_alphabetic() => char::is_alphabetic,
            _ => {
                self.0 = &self.0[first.len_utf8()..];
                return Some(Word::Mark(first));
            }
        };
        let end = self.0.find(|letter| !is_same(letter)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        if !first.is_ascii_digit() && word.eq_ignore_ascii_case("t") {
            self.0 = &self.0[1..];
            return Some(Word::Mark('T'));
        }
        self.0 = rest;
        // 24th, and the like.
        if first.is_ascii_digit() && end <= 2 {
            let ending = self
                .0
                .get(..2)
                .filter(|ending| matches!(*ending, "st" | "nd" | "rd" | "th"));
            self.0 = &self.0[ending.map_or(0, str::len)..];
        }
        match first.is_ascii_digit() {
            true => Some(Word::Number(word.parse().ok()?, end)),
            false => Some(Word::Name(month(word)?)),
        }
    }
}

/// Letters with which the names of each month begin, in English, French and German.
const MONTHS: [&[&str]; 12] = [
    &["jan"],
    &["feb", "fév", "fev"],
    &["mar", "mär", "mrz"],
    &["apr", "avr"],
    &["may", "mai"],
    &["jun", "juin"],
    &["jul", "juil"],
    &["aug", "août", "aou"],
    &["sep"],
    &["oct", "okt"],
    &["nov"],
    &["dec", "déc", "dez"],
];

/// The names that a word must be the beginning of.
const NAMES: [&str; 36] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "sept",
    "october",
    "november",
    "december",
    "janvier",
    "février",
    "fevrier",
    "mars",
    "avril",
    "mai",
    "juin",
    "juillet",
    "août",
    "aout",
    "septembre",
    "octobre",
    "novembre",
    "décembre",
    "decembre",
    "januar",
    "februar",
    "märz",
    "juni",
    "juli",
    "mrz",
    "oktober",
    "dezember",
];

/// The number of a month by its name, or at least three letters of it.
fn month(word: &str) -> Option<u32> {
    let word = word.to_lowercase();
    let is_name = word.chars().count() >= 3 && NAMES.iter().any(|name| name.starts_with(&word));
    let begins = |names: &[&str]| names.iter().any(|name| word.starts_with(name));
    let place = MONTHS.iter().position(|names| is_name && begins(names));
    place.map(|place| place as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cell: &str, order: Order) -> Option<String> {
        Moment::read(cell, order).map(|moment| Moment::told(moment.days()))
    }

    #[test]
    fn dates_are_read_in_the_usual_forms() {
        for cell in [
            "2024-03-05",
            "2024/3/5",
            "2024.03.05",
            "20240305",
            "05.03.2024",
            "5.3.2024",
            "5.3.24",
            "05/03/2024",
            "5-3-2024",
            "5 Mar 2024",
            "05-Mar-2024",
            "05-Mar-24",
            "5. March 2024",
            "Mar 5, 2024",
            "March 5 2024",
            "2024-Mar-05",
            "2024-03-05T13:45:00Z",
            "2024-03-05 13:45",
            "20240305T1:45",
            "5.3.2024 13:45:10.5",
            "05/03/2024, 1:45 pm",
            "2024-03-05 00:30:00+00:00",
            "20240305.0",
            "Tue, 5 Mar 2024",
            "Tuesday, March 5th, 2024",
            "Tue, 05 Mar 2024 13:45:00 GMT",
            "2024-03-05 12:00:00 CET",
            "05032024",
            "5032024",
            "5032024.0",
            "202403051345",
            "20240305134510",
            "5. März 2024",
            "5 mars 2024",
        ] {
            assert_eq!(
                told(cell, Order::DayFirst).as_deref(),
                Some("2024-03-05"),
                "{cell}"
            );
        }
        for (cell, date) in [
            ("03/05/2024", "2024-03-05"),
            ("12/31/99", "1999-12-31"),
            ("2024-03", "2024-03-01"),
            ("Apr 2020", "2020-04-01"),
            ("April 2020", "2020-04-01"),
            ("Apr-20", "2020-04-01"),
            ("04/2020", "2020-04-01"),
            ("2020Q2", "2020-04-01"),
            ("2020-Q2", "2020-04-01"),
            ("Q2 2020", "2020-04-01"),
            ("2020-W17", "2020-04-20"),
            ("3052024", "2024-03-05"),
            ("202404", "2024-04-01"),
            ("042024", "2024-04-01"),
            ("42024", "2024-04-01"),
            ("4.2024", "2024-04-01"),
            ("2024.4", "2024-04-01"),
            ("2024.10", "2024-10-01"),
            ("1. Oktober 2024", "2024-10-01"),
            ("1 déc. 2024", "2024-12-01"),
            ("1 juil. 2024", "2024-07-01"),
        ] {
            assert_eq!(told(cell, Order::MonthFirst).as_deref(), Some(date), "{cell}");
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for cell in [
            "",
            "5",
            "2024",
            "13/13/2024",
            "2024-02-30",
            "30.02.2024",
            "1.234.567",
            "192.168.1.1",
            "12:30",
            "2024-03-05x",
            "2024-03-05 25:00",
            "ab-cd-efgh",
            "5 kg 2024",
            "1-2-3",
            "0001-01-01",
            "12345678",
            "555-1234",
            "132024",
            "12345",
            "2024.13",
            "May",
            "5-May",
            "May 20",
            "10/10",
            "3.5.7.2024",
            "Maria 5, 2024",
        ] {
            assert_eq!(told(cell, Order::DayFirst), None, "{cell}");
        }
        assert_eq!(told("31/12/2024", Order::MonthFirst), None);
        assert_eq!(told("20-04-24", Order::YearFirst).as_deref(), Some("2020-04-24"));
        assert_eq!(told("99/12/31", Order::YearFirst).as_deref(), Some("1999-12-31"));
        assert_eq!(
            told("2024-04-20", Order::YearFirst).as_deref(),
            Some("2024-04-20")
        );
        // Where no date of training told.
        assert_eq!(told("2024-05-03", Order::Untold).as_deref(), Some("2024-05-03"));
        assert_eq!(told("05/05/2024", Order::Untold).as_deref(), Some("2024-05-05"));
        for cell in ["03/05/2024", "20-04-24", "05.03.2024"] {
            assert_eq!(told(cell, Order::Untold), None, "{cell}");
        }
    }

    #[test]
    fn counted_times_are_those_of_the_clock_and_of_spreadsheets() {
        for (cell, order, date) in [
            ("1709646330", Order::Unix, "2024-03-05"),
            ("1709646330000", Order::Unix, "2024-03-05"),
            ("1.709646330e15", Order::Unix, "2024-03-05"),
            ("1709646330000000000", Order::Unix, "2024-03-05"),
            ("-86400", Order::Unix, "1969-12-31"),
            ("2024-03-05", Order::Unix, "2024-03-05"),
            ("45356", Order::Excel, "2024-03-05"),
            ("45356.5", Order::Excel, "2024-03-05"),
        ] {
            assert_eq!(told(cell, order).as_deref(), Some(date), "{cell}");
        }
        let hour = |cell, order| Moment::read(cell, order).unwrap().hour();
        assert_eq!(hour("1709646330", Order::Unix), Some(13));
        assert_eq!(
            (hour("45356.75", Order::Excel), hour("45356", Order::Excel)),
            (Some(18), None)
        );
        assert_eq!(told("1e300", Order::Unix), None);
    }

    #[test]
    fn parts_of_a_moment_are_those_of_the_calendar() {
        let of = |cell| Moment::read(cell, Order::DayFirst).unwrap();
        let leap = of("2024-02-29 12:00");
        assert_eq!(
            (leap.year(), leap.month(), leap.weekday(), leap.hour()),
            (2024, 2, 4, Some(12))
        );
        assert_eq!(
            (leap.days(), of("1970-01-01").days(), of("1969-12-31").days()),
            (19_782.5, 0.0, -1.0)
        );
        assert_eq!(of("1970-01-01 01:00+01:00").days(), 0.0);
        assert_eq!(of("1.1.1970 12:30 am").hour(), Some(0));
        assert_eq!(of("1970-01-01").hour(), None);
    }
}
