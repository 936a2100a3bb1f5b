//! Amounts as they are typed: parts, times and sizes.

use std::time::Duration;

/// How many times.
pub fn times(text: &str) -> Result<f64, String> {
    let times = text.parse().ok().filter(|times| (1.0..=1e6).contains(times));
    times.ok_or_else(|| "write a number from 1 on".into())
}

/// A time as a number of milliseconds.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    let ms = text.parse().ok().filter(|ms| (0.001..=1e6).contains(ms));
    let ms: f64 = ms.ok_or("write a number of milliseconds, such as 170")?;
    Ok(Duration::from_secs_f64(ms / 1e3))
}

/// A part of the time.
pub fn power(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| *part >= 0.01 && *part <= 1.0);
    part.ok_or_else(|| {
        format!("{text:?} is no part of the time: write 0.3 for three tenths; 0.01 is the least, 1 is all")
    })
}

/// A size in bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit = match unit.to_ascii_lowercase().as_str() {
        "mb" => 1e6,
        "gb" => 1e9,
        "mib" => f64::from(1 << 20),
        "gib" => f64::from(1 << 30),
        _ => f64::NAN,
    };
    let all = number
        .trim()
        .parse()
        .map_or(f64::NAN, |number: f64| number * unit);
    match (1.0..1e15).contains(&all) {
        true => Ok(all as u64),
        false => Err(format!(
            "{text:?} is no size: write it as 800MB, 4GB, 512MiB or 1.5GiB"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (text, count) in [
            ("800MB", 800_000_000),
            ("1.5gb", 1_500_000_000),
            ("2 GiB", 2 << 30),
            ("1MiB", 1 << 20),
        ] {
            assert_eq!(bytes(text), Ok(count), "{text}");
        }
        for bad in ["", "4", "GB", "-1GB", "0GB", "4XB", "1e9GB", "nanGB", "4 G B"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_and_times_have_bounds() {
        assert_eq!((power("0.3"), times("2.5")), (Ok(0.3), Ok(2.5)));
        for bad in ["0", "0.009", "1.1", "-1", "x", "NaN"] {
            assert!(power(bad).is_err(), "{bad}");
        }
        for bad in ["0.9", "1e7", "x", "NaN"] {
            assert!(times(bad).is_err(), "{bad}");
        }
    }
}
