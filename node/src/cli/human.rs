//! Numbers as people read them. Units are SI: 1 kB is 1,000 bytes.

/// Three significant digits and a prefix: `987`, `41.2k`, `3.05M`.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    let mut value = value;
    let mut prefix = "";
    for next in ["k", "M", "G", "T", "P"] {
        if value.abs() < 999.5 {
            break;
        }
        value /= 1000.0;
        prefix = next;
    }
    let digits = match value.abs() {
        v if prefix.is_empty() && (v >= 9.95 || v.fract() == 0.0) => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{prefix}")
}

/// Bytes: `640 B`, `407 kB`, `1.52 MB`.
pub fn bytes(value: f64) -> String {
    let text = short(value);
    match text.strip_suffix(|c: char| c.is_ascii_alphabetic()) {
        Some(number) => format!("{number} {}B", &text[number.len()..]),
        None => format!("{text} B"),
    }
}

/// A duration: `0.42 s`, `9.1 s`, `42 s`, `3m 05s`, `2h 07m`, `3d 04h`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".into();
    }
    let whole = seconds.round() as u64;
    match seconds {
        s if s < 0.995 => format!("{s:.2} s"),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 59.5 => format!("{whole} s"),
        s if s < 3599.5 => format!("{}m {:02}s", whole / 60, whole % 60),
        s if s < 86_400.0 => format!("{}h {:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d {:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

/// A whole number with separators: `101,770`.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A fraction as a percentage with this number of decimals: `97.3 %`.
pub fn percent(share: f64, decimals: usize) -> String {
    if share.is_finite() {
        format!("{:.decimals$} %", share * 100.0)
    } else {
        "-".into()
    }
}

/// A loss: four significant digits, no exponent in the usual range.
pub fn loss(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".into(),
        v if v != 0.0 && !(1e-3..1e5).contains(&v) => format!("{value:.2e}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A peer by its name, if it has one, and the beginning of its digits.
pub fn called(peer: &str, name: Option<&String>) -> String {
    match name {
        Some(name) => format!("{name} ({})", id(peer)),
        None => id(peer).to_owned(),
    }
}

/// The first eight digits of a name or digest: enough to tell a few apart by eye.
pub fn id(hex: &str) -> &str {
    hex.get(..8).unwrap_or(hex)
}

/// `1 peer`, `2 peers`, `2 batches`.
pub fn plural(count: u64, noun: &str) -> String {
    let ending = match count {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", grouped(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.50"),
            (7.0, "7"),
            (9.96, "10"),
            (987.4, "987"),
            (999.6, "1.00k"),
            (41_234.0, "41.2k"),
            (999_499.0, "999k"),
            (3_054_000.0, "3.05M"),
            (-1500.0, "-1.50k"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(short(value), text, "{value}");
        }
    }

    #[test]
    fn bytes_and_durations() {
        assert_eq!(bytes(640.0), "640 B");
        assert_eq!(bytes(407_080.0), "407 kB");
        assert_eq!(bytes(1.52e9), "1.52 GB");
        for (seconds, text) in [
            (0.004, "0.00 s"),
            (0.42, "0.42 s"),
            (9.94, "9.9 s"),
            (9.96, "10 s"),
            (59.6, "1m 00s"),
            (185.0, "3m 05s"),
            (7620.0, "2h 07m"),
            (273_600.0, "3d 04h"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn groups_losses_and_names() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(101_770), "101,770");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(loss(0.12345), "0.123");
        assert_eq!(loss(2.345_67), "2.346");
        assert_eq!(loss(1e-7), "1.00e-7");
        assert_eq!(loss(f64::NAN), "-");
        assert_eq!(id("0123456789abcdef"), "01234567");
        assert_eq!(id("0123"), "0123");
        assert_eq!(plural(1, "peer") + &plural(2, "peer"), "1 peer2 peers");
    }
}
