//! Numbers in texts: read as the table means them, written for people.

/// The greatest number that a cell may be, with room for squares in f32; the rest are typing errors.
const MOST: f64 = 1e15;

/// A cell as a number; none if it is none or too large. Takes what Rust's `f64` takes, which rounds correctly everywhere.
pub(crate) fn parse(cell: &str) -> Option<f64> {
    cell.parse().ok().filter(|value: &f64| value.abs() <= MOST)
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
}
