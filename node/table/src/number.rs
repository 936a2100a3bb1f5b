//! Numbers in texts: read as the table means them, written for people.

use serde::{Deserialize, Serialize};

/// The greatest number that a cell may be, with room for squares in f32; the rest are typing errors.
pub(crate) const MOST: f64 = 1e15;

/// A cell as a number; none if it is none or too large. Takes what Rust's `f64` takes, which rounds correctly everywhere.
pub(crate) fn parse(cell: &str) -> Option<f64> {
    cell.parse().ok().filter(|value: &f64| value.abs() <= MOST)
}

/// How a column writes its numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notation {
    /// Whether a comma stands before the decimals, as in `25.066,65`.
    pub comma: bool,
    /// Whether some have a comma, or a point, between thousands. If none has, `1,234` may be either and is no number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub groups: bool,
    /// What stands beside each number, such as `%` or `EUR`; empty: nothing.
    pub unit: String,
}

/// What may stand before a number, or behind it: percent, currencies by sign, and by their codes (ISO 4217).
const UNITS: [&str; 40] = [
    "Rs.", "Rs", "US$", "A$", "C$", "R$", "%", "$", "\u{20AC}", "\u{A3}", "\u{A5}", "\u{20B9}", "\u{20BD}",
    "\u{20A9}", "\u{20BA}", "\u{20B4}", "\u{20AA}", "\u{E3F}", "\u{20AB}", "\u{20B1}", "USD", "EUR", "GBP",
    "JPY", "CNY", "INR", "CHF", "CAD", "AUD", "NZD", "BRL", "MXN", "RUB", "KRW", "TRY", "SEK", "NOK", "DKK",
    "PLN", "ZAR",
];

/// Units that change what a number is.
const FACTORS: [&str; 14] = [
    "%", "k", "K", "M", "B", "Tsd", "Mio", "Mrd", "mn", "bn", "percent", "thousand", "million", "billion",
];

/// Whether a unit is percent or a currency.
pub(crate) fn is_currency(unit: &str) -> bool {
    UNITS.contains(&unit)
}

/// Letters of the longest unit behind a number, such as `l/100 km`; a guess.
const MOST_LETTERS: usize = 12;

/// Between thousands, beside the comma or the point: blanks and the Swiss apostrophes.
const BETWEEN: [char; 6] = [' ', '\u{A0}', '\u{2009}', '\u{202F}', '\'', '\u{2019}'];

impl Notation {
    pub(crate) fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// A cell as a number: also with thousands in groups, a unit, parentheses around what is negative, or the apostrophe by which
    /// spreadsheets mark texts. None if it is none, is too large, or has another unit than the column.
    pub fn read(&self, cell: &str) -> Option<f64> {
        if !self.groups && is_ambiguous(cell, if self.comma { '.' } else { ',' }) {
            return None;
        }
        let (value, unit) = measured(cell, self.comma)?;
        // A bare number may stand among amounts of a currency, but 0.25 is not 0.25 %, and 500 not 500 k.
        let fits = unit == self.unit || unit.is_empty() && (!FACTORS.contains(&&*self.unit) || value == 0.0);
        fits.then_some(value)
    }
}

/// Whether what stands before the last three digits, and nowhere else, may separate thousands or decimals.
pub(crate) fn is_ambiguous(cell: &str, mark: char) -> bool {
    let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).count();
    let Some((whole, rest)) = cell.split_once(mark) else {
        return false;
    };
    let whole = whole.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(rest.len());
    (1..=3).contains(&digits(whole))
        && !whole.starts_with('0')
        && end == 3
        && digits(rest) == 3
        && !rest[end..].contains([',', '.'])
}

/// A number and its unit, which is empty if there is none.
pub(crate) fn measured(cell: &str, comma: bool) -> Option<(f64, &str)> {
    // Most numbers of a table are plain, and words have no digits or many letters; these are told apart quickly.
    let is_whole = || cell.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if (!comma || is_whole())
        && let Some(value) = parse(cell)
    {
        return Some((value, ""));
    }
    let count = |is: fn(&u8) -> bool| cell.as_bytes().iter().filter(|byte| is(byte)).count();
    if count(u8::is_ascii_digit) == 0 || count(u8::is_ascii_alphabetic) > MOST_LETTERS {
        return None;
    }
    // Spreadsheets write ="1" for what must stay a text.
    let body = cell
        .strip_prefix("=\"")
        .and_then(|body| body.strip_suffix('"'))
        .unwrap_or(cell);
    let body = body.strip_prefix('\'').unwrap_or(body);
    let inner = body.strip_prefix('(').and_then(|body| body.strip_suffix(')'));
    let (body, mut negative) = (inner.unwrap_or(body).trim(), inner.is_some());
    let mut signed = |body: &'_ str| -> Option<usize> {
        let sign = body
            .chars()
            .next()
            .filter(|sign| matches!(sign, '-' | '+' | '\u{2212}'))?;
        negative |= sign != '+';
        Some(sign.len_utf8())
    };
    let sign = signed(body);
    let body = &body[sign.unwrap_or(0)..];
    // Some programs write the sign behind the number.
    let (body, is_behind) = match body.strip_suffix('-') {
        Some(body) if sign.is_none() => (body, true),
        _ => (body, false),
    };
    let beside = |unit: &&'static str| body.starts_with(*unit) || body.ends_with(*unit);
    let known = UNITS.into_iter().find(|unit| beside(unit)).unwrap_or("");
    let body = body.strip_prefix(known).unwrap_or(body);
    let body = body.strip_suffix(known).unwrap_or(body).trim();
    if known.is_empty()
        && let Some(digits) = plain(body, comma)
    {
        let value = parse(&digits)?;
        return Some((if negative || is_behind { -value } else { value }, ""));
    }
    let (body, unit) = match known {
        "" => behind(body)?,
        known => (body, known),
    };
    // The sign, and what means it, may also follow the currency.
    let inner = body.strip_prefix('(').and_then(|body| body.strip_suffix(')'));
    let (body, is_behind) = inner.map_or((body, is_behind), |inner| (inner.trim(), true));
    let body = &body[signed(body).unwrap_or(0)..];
    let value = parse(&plain(body, comma)?)?;
    Some((if negative || is_behind { -value } else { value }, unit))
}

/// A number and the unit behind it, such as kg, m2, km/h, \u{B0}C or years. An ordinal such as 3rd has none.
fn behind(body: &str) -> Option<(&str, &str)> {
    let is_of_number =
        |letter: char| letter.is_ascii_digit() || matches!(letter, '.' | ',') || BETWEEN.contains(&letter);
    let end = body.find(|letter| !is_of_number(letter))?;
    // Not the apostrophe of feet and minutes.
    let number = body[..end].trim_end();
    let unit = body[end..].trim_end_matches('.');
    let is_sound = |letter: char| {
        letter.is_alphabetic()
            || matches!(
                letter,
                '2' | '3' | '\u{B2}' | '\u{B3}' | '/' | '\u{B0}' | '%' | '"' | '\u{2032}' | '\u{2033}' | ' '
            )
    };
    let begins =
        |letter: char| letter.is_alphabetic() || matches!(letter, '\u{B0}' | '"' | '\u{2032}' | '\u{2033}');
    let fits = unit.starts_with(begins)
        && unit.chars().count() <= MOST_LETTERS
        && unit.replace("/100", "/").chars().all(is_sound)
        && unit.matches(' ').count() <= 1
        && !["st", "nd", "rd", "th", "e", "er"].contains(&unit);
    // One year, two years.
    let one = unit
        .strip_suffix('s')
        .filter(|unit| unit.len() >= 2 && unit.ends_with(char::is_alphabetic))
        .unwrap_or(unit);
    (fits && number.starts_with(|letter: char| letter.is_ascii_digit() || matches!(letter, '.' | ',')))
        .then_some((number, one))
}

/// Digits as Rust reads them: without groups, with a point before the decimals.
fn plain(body: &str, comma: bool) -> Option<String> {
    let (point, group) = if comma { (',', '.') } else { ('.', ',') };
    let (whole, decimals) = body.split_once(point).unwrap_or((body, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (fraction, exponent) = decimals.split_at(decimals.find(['e', 'E']).unwrap_or(decimals.len()));
    let exponent_digits = exponent.get(1..).unwrap_or("");
    let exponent_digits = exponent_digits
        .strip_prefix(['-', '+'])
        .unwrap_or(exponent_digits);
    if !digits(fraction) || !digits(exponent_digits) || exponent.len() == 1 {
        return None;
    }
    let between = whole
        .chars()
        .find(|letter| *letter == group || BETWEEN.contains(letter));
    let whole = match between {
        None if digits(whole) => whole.to_owned(),
        None => return None,
        Some(between) => {
            let (first, rest) = whole.split_once(between)?;
            // In India the middle groups have two digits.
            let middle = |group: &str| group.len() == 3 || group.len() == 2 && between == ',';
            let sound = (1..=3).contains(&first.len())
                && !first.starts_with('0')
                && rest.rsplit(between).next().is_some_and(|last| last.len() == 3)
                && rest.split(between).all(|group| middle(group) && digits(group));
            match sound && digits(first) {
                true => whole.replace(between, ""),
                false => return None,
            }
        }
    };
    (!whole.is_empty() || !fraction.is_empty()).then(|| format!("{whole}.{fraction}{exponent}"))
}

/// Why a cell is no number that can be used.
pub(crate) fn not_a_number(cell: &str) -> String {
    let shown: String = cell.chars().take(40).collect();
    match cell.parse::<f64>() {
        Ok(value) if value.abs() > MOST && value.is_finite() => {
            format!("{shown:?} is too large a number: at most 1e15, so write it in a larger unit")
        }
        _ => format!("{shown:?} is not a number"),
    }
}

/// Names for a line of text: the first ones, and how many more there are.
pub fn listed(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(LISTED).map(AsRef::as_ref).collect();
    let mut text = shown.join(", ");
    if let Some(more) = names.len().checked_sub(LISTED + 1) {
        text += &format!(" and {} more", grouped(more as u64 + 1));
    }
    text
}

/// Names that a line lists; the rest are counted.
const LISTED: usize = 40;

/// A count with commas between thousands: `20,640`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with four significant digits: `51,420`, `0.8012`, `1.250e-7`.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return "-".into();
    }
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return format!("{value:.3e}");
    }
    if size >= 1000.0 {
        // Zeros in place of digits that mean nothing.
        let mut step = 1.0;
        while size / step >= 10_000.0 {
            step *= 10.0;
        }
        let rounded = grouped(((size / step).round() * step) as u64);
        return format!("{}{rounded}", if value < 0.0 { "-" } else { "" });
    }
    let decimals = [100.0, 10.0, 1.0, 0.1, 0.01, 0.001]
        .iter()
        .take_while(|border| size < **border);
    format!("{value:.*}", 1 + decimals.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_four_digits() {
        for (value, text) in [
            (51_423.0, "51,420"),
            (-1_234_567.0, "-1,235,000"),
            (0.80123, "0.8012"),
            (97.1, "97.10"),
            (512.34, "512.3"),
            (999.96, "1000.0"),
            (0.0, "0"),
            (1.25e-7, "1.250e-7"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(
            [0, 999, 1000, 20_640, 1_000_000].map(grouped).join(" "),
            "0 999 1,000 20,640 1,000,000"
        );
    }

    #[test]
    fn long_lists_are_counted() {
        let names: Vec<String> = (0..3000).map(|at| format!("c{at}")).collect();
        assert_eq!(listed(&names[..2]), "c0, c1");
        assert!(listed(&names[..40]).ends_with(", c38, c39"));
        assert!(listed(&names).ends_with(", c38, c39 and 2,960 more"));
    }

    #[test]
    fn numbers_that_are_too_large_are_told_from_words() {
        for (cell, told) in [
            ("five", "\"five\" is not a number"),
            ("inf", "\"inf\" is not a number"),
            (
                "1000000000000000001",
                "\"1000000000000000001\" is too large a number: at most 1e15",
            ),
        ] {
            assert!(not_a_number(cell).starts_with(told), "{}", not_a_number(cell));
        }
    }

    #[test]
    fn words_and_infinities_are_no_numbers() {
        for word in ["", "five", "inf", "NaN", "1,000", "0x10", "1e999", "1e16"] {
            assert_eq!(parse(word), None, "{word}");
        }
        for (text, value) in [
            ("-3", -3.0),
            ("+2.5", 2.5),
            (".5", 0.5),
            ("1e3", 1000.0),
            ("007", 7.0),
        ] {
            assert_eq!(parse(text), Some(value));
        }
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        let point = |unit: &str| Notation {
            comma: false,
            groups: true,
            unit: unit.into(),
        };
        let comma = |unit: &str| Notation {
            comma: true,
            groups: true,
            unit: unit.into(),
        };
        for (notation, cell, value) in [
            (point(""), "25,066.65", 25_066.65),
            (point(""), "25 066.65", 25_066.65),
            (point(""), "25\u{A0}066", 25_066.0),
            (point(""), "25'066.65", 25_066.65),
            (point(""), "12,34,567", 1_234_567.0),
            (point(""), "'25066.65", 25_066.65),
            (point(""), "(25,066.65)", -25_066.65),
            (point(""), "-1,000", -1000.0),
            (point(""), "\u{2212}3", -3.0),
            (point(""), "1.5E+3", 1500.0),
            (point("$"), "$25,066.65", 25_066.65),
            (point("$"), "-$5", -5.0),
            (point("$"), "$-5", -5.0),
            (point("$"), "($5)", -5.0),
            (point("$"), "$(1,005.50)", -1005.5),
            (point("$"), "5", 5.0),
            (point("EUR"), "25066.65 EUR", 25_066.65),
            (point("EUR"), "EUR 7", 7.0),
            (point("%"), "25.1%", 25.1),
            (point("%"), "25.1 %", 25.1),
            (point("%"), "0", 0.0),
            (point("kg"), "45 kg", 45.0),
            (point("kg"), "1,045.5kg", 1045.5),
            (point("m2"), "77 m2", 77.0),
            (point("km/h"), "-3 km/h", -3.0),
            (point("m/s"), "3 m/s", 3.0),
            (point("l/100 km"), "6.5 l/100 km", 6.5),
            (point("\u{B0}C"), "21\u{B0}C", 21.0),
            (point("year"), "1 year", 1.0),
            (point("year"), "12 years", 12.0),
            (point("Rs."), "Rs. 500", 500.0),
            (point(""), "5.5-", -5.5),
            (point(""), "=\"17\"", 17.0),
            (comma("cm"), "10,5 cm", 10.5),
            (comma(""), "25066,65", 25_066.65),
            (comma(""), "25.066,65", 25_066.65),
            (comma(""), "1.234", 1234.0),
            (comma(""), "0,123", 0.123),
            (comma(""), ",5", 0.5),
            (comma(""), "1,5e3", 1500.0),
            (comma("\u{20AC}"), "25.066,65 \u{20AC}", 25_066.65),
        ] {
            assert_eq!(notation.read(cell), Some(value), "{cell} {notation:?}");
        }
        for (notation, cell) in [
            (point(""), "25066,65"),
            (point(""), "0,123"),
            (point(""), "1,2345"),
            (point(""), "12,34"),
            (point(""), "1,234 567"),
            (point(""), "5 kg"),
            (point("kg"), "5 g"),
            (point("rd"), "3rd"),
            (point("m"), "10 h 5 m"),
            (point(""), "-5-"),
            (point(""), "5-7"),
            (point(""), "$5"),
            (point("$"), "5 EUR"),
            (point("%"), "0.25"),
            (point("k"), "500"),
            (point(""), "01.02.2024"),
            (point(""), "1e"),
            (point(""), "-"),
            (point(""), "."),
            (point(""), "%"),
            (point(""), "()"),
            (comma(""), "25.06"),
            (comma(""), "inf"),
            (comma(""), "1e999"),
        ] {
            assert_eq!(notation.read(cell), None, "{cell} {notation:?}");
        }
        // Where nothing separates thousands in training, a mark before three digits may be either.
        let [point, comma] = [false, true].map(|comma| Notation {
            comma,
            ..Notation::default()
        });
        for (notation, cell, value) in [
            (&point, "5.250", Some(5.25)),
            (&point, "5,250", None),
            (&point, "-5,250", None),
            (&point, "5,250.00", Some(5250.0)),
            (&point, "1,005,250", Some(1_005_250.0)),
            (&comma, "5,250", Some(5.25)),
            (&comma, "5.250", None),
            (&comma, "5.250,00", Some(5250.0)),
        ] {
            assert_eq!(notation.read(cell), value, "{cell} {notation:?}");
        }
    }
}
