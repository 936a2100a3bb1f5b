//! Amounts as they are typed: fractions, times and sizes. An error says what to write.

use crate::net::hello::{NAME_LIMIT, name_of, named};
pub use crate::options::seconds;
use annulus_core::Contact;
use std::time::Duration;

/// A factor, at least 1.
pub fn times(text: &str) -> Result<f64, String> {
    let times = text.parse().ok().filter(|times| (1.0..=1e6).contains(times));
    times.ok_or_else(|| "write a number, at least 1".into())
}

/// A number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
    number.ok_or_else(|| "write a number above 0".into())
}

/// A time in milliseconds.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    let ms = text.parse().ok().filter(|ms| (0.001..=1e6).contains(ms));
    let ms: f64 = ms.ok_or("write a number of milliseconds between 0.001 and 1000000, such as 170")?;
    Ok(Duration::from_secs_f64(ms / 1e3))
}

/// A peer's name for people.
pub fn peer_name(text: &str) -> Result<String, String> {
    let name = name_of(&named(Contact::default(), Some(text)));
    let name = name.filter(|name| name == text);
    name.ok_or_else(|| format!("write 1 to {NAME_LIMIT} printable characters, such as Anna"))
}

/// The address of a page on another web server, with a slash at its end.
pub fn web_address(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or(text.strip_prefix("http://"));
    let is_plain = |c: char| c.is_ascii_graphic() && !"#?\"<>".contains(c);
    match rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(is_plain)) {
        true => Ok(format!("{}/", text.trim_end_matches('/'))),
        false => Err("write where the files are, as https://example.org/train/".into()),
    }
}

/// A fraction of the time.
pub fn power(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.01..=1.0).contains(part));
    part.ok_or_else(|| "write a fraction between 0.01 and 1, such as 0.3".into())
}

/// A size in bytes, with the units that people write: 380M, 4G and 4GB are powers of ten, 1.5Gi and 1.5GiB of two.
pub fn bytes(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit = unit.to_ascii_lowercase();
    let unit = match unit.strip_suffix('b').unwrap_or(&unit) {
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        "ki" => f64::from(1 << 10),
        "mi" => f64::from(1 << 20),
        "gi" => f64::from(1 << 30),
        "ti" => f64::from(1 << 20) * f64::from(1 << 20),
        _ => f64::NAN,
    };
    let number = number.trim().parse().unwrap_or(f64::NAN);
    let all = number * unit;
    match (1.0..1e15).contains(&all) {
        true => Ok(all as u64),
        false => Err("write a size with its unit, such as 800M, 4G or 1.5Gi".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_taken_as_people_write_them() {
        for (text, count) in [
            ("800MB", 800_000_000),
            ("380M", 380_000_000),
            ("4g", 4_000_000_000),
            ("1.5gb", 1_500_000_000),
            ("2 GiB", 2 << 30),
            ("1.5Gi", 3 << 29),
            ("1MiB", 1 << 20),
            ("64k", 64_000),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(bytes(text), Ok(count), "{text}");
        }
        for bad in [
            "", "4", "GB", "-1GB", "0GB", "4XB", "1e9GB", "nanGB", "4 G B", "4B", "4Gbit",
        ] {
            let error = bytes(bad).unwrap_err();
            assert!(error.contains("800M"), "{bad}");
        }
    }

    #[test]
    fn fractions_and_factors_have_bounds() {
        assert_eq!((power("0.3"), times("2.5")), (Ok(0.3), Ok(2.5)));
        for bad in ["0", "0.009", "1.1", "-1", "x", "NaN"] {
            assert!(power(bad).is_err(), "{bad}");
        }
        for bad in ["0.9", "1e7", "x", "NaN"] {
            assert!(times(bad).is_err(), "{bad}");
        }
        for bad in ["0", "-1", "inf", "x"] {
            assert!(positive(bad).is_err(), "{bad}");
        }
    }
}
