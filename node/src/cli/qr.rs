//! QR codes for terminals: two modules a character, in half blocks.

use qrcode::{EcLevel, QrCode, render::unicode::Dense1x2};

/// The QR code of a page's address, dark on light whatever the terminal's colours; none if it does not fit `width` columns.
///
/// The part after `#` is a ticket, in which case does not matter: capitals make the code a third smaller.
pub fn code(url: &str, columns: usize) -> Option<String> {
    let text = match url.split_once('#') {
        Some((page, ticket)) => format!("{page}#{}", ticket.to_ascii_uppercase()),
        None => url.to_owned(),
    };
    let code = QrCode::with_error_correction_level(text, EcLevel::L).ok()?;
    const QUIET: usize = 4;
    if code.width() + 2 * QUIET > columns {
        return None;
    }
    let image = code.render::<Dense1x2>().quiet_zone(true).build();
    let paper = |line: &str| format!("\x1b[30;107m{line}\x1b[0m\n");
    Some(image.lines().map(paper).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_fits_a_terminal_and_reads_the_same_on_any_background() {
        let ticket = "annulus2".to_owned() + &"0123456789abcdefghjkmnpqrstvwxyz".repeat(11);
        let code = code(&format!("https://192.168.100.100:44333/#{ticket}"), 72).unwrap();
        assert!(code.lines().count() <= 36, "{}", code.lines().count());
        for line in code.lines() {
            let inner = line
                .strip_prefix("\x1b[30;107m")
                .unwrap()
                .strip_suffix("\x1b[0m")
                .unwrap();
            assert!(inner.chars().count() <= 72);
            assert!(
                inner.chars().all(|c| " \u{2580}\u{2584}\u{2588}".contains(c)),
                "{inner:?}"
            );
        }
        // The finder pattern: seven dark modules after four light ones.
        let line = code.lines().nth(2).unwrap().strip_prefix("\x1b[30;107m").unwrap();
        let expected = "    \u{2588}\u{2580}\u{2580}\u{2580}\u{2580}\u{2580}\u{2588}";
        assert!(line.starts_with(expected), "{line:?}");
        assert_eq!(super::code(&"x".repeat(4000), 1000), None);
        assert_eq!(super::code("https://192.0.2.1:4433/#x", 20), None);
    }
}
