//! Which texts are the same category: booleans and numbers count by value, other words as they look.
//!
//! A file may say `True`, a program `true`, and pandas writes whole numbers beside gaps as `1.0`. Compared as texts, the model
//! would take them for values that it never saw, and its answers would flip.

use crate::number::parse;
use icu_normalizer::ComposingNormalizer;
use std::borrow::Cow;
use std::collections::HashMap;

/// Words for yes and no in any case of letters, and what each is equal to.
const WORDS: [(&str, &str); 14] = [
    ("true", "1"),
    ("false", "0"),
    ("wahr", "1"),
    ("falsch", "0"),
    ("vrai", "1"),
    ("faux", "0"),
    ("yes", "yes"),
    ("no", "no"),
    ("ja", "ja"),
    ("nein", "nein"),
    ("oui", "oui"),
    ("non", "non"),
    ("on", "on"),
    ("off", "off"),
];

/// What is equal for two spellings of one value. Numbers with leading zeros, such as postal codes, stay as they are, and so do
/// decimals: 1.10 may be a version.
pub(crate) fn key(cell: &str) -> Cow<'_, str> {
    if let Some((_, value)) = WORDS.iter().find(|(word, _)| cell.eq_ignore_ascii_case(word)) {
        return (*value).into();
    }
    let (whole, fraction) = cell.split_once('.').unwrap_or((cell, ""));
    let digits = whole.strip_prefix(['-', '+']).unwrap_or(whole);
    let is_whole = !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && fraction.bytes().all(|byte| byte == b'0');
    match is_whole && !(digits.len() > 1 && digits.starts_with('0')) {
        true if digits == "0" => "0".into(),
        true => whole.strip_prefix('+').unwrap_or(whole).into(),
        false => seen(cell),
    }
}

/// A text as a reader sees it: accents composed, blanks as one, no characters without width.
fn seen(cell: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii() && !byte.is_ascii_control();
    if cell.bytes().all(is_plain) && !cell.contains("  ") {
        return cell.into();
    }
    let composed = ComposingNormalizer::new_nfc().normalize(cell);
    let shown = composed.chars().filter(|letter| !WITHOUT_WIDTH.contains(letter));
    let dashes = |letter| {
        if matches!(letter, '\u{2010}' | '\u{2011}') {
            '-'
        } else {
            letter
        }
    };
    let shown: String = shown.map(dashes).collect();
    shown.split_whitespace().collect::<Vec<_>>().join(" ").into()
}

/// The soft hyphen, the zero-width space, the word joiner, and the mark at the beginning of files.
const WITHOUT_WIDTH: [char; 4] = ['\u{AD}', '\u{200B}', '\u{2060}', '\u{FEFF}'];

/// Whether the case of letters makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Matters,
    Any,
}

impl Case {
    pub fn any(is_any: bool) -> Self {
        if is_any { Self::Any } else { Self::Matters }
    }

    /// What is equal for two spellings of one value.
    pub fn key(self, cell: &str) -> Cow<'_, str> {
        match self {
            Self::Matters => key(cell),
            Self::Any => key(cell).to_lowercase().into(),
        }
    }
}

/// The number that a spelling means, if it means one.
pub(crate) fn number(cell: &str) -> Option<f64> {
    match key(cell).as_ref() {
        "yes" | "ja" | "oui" | "on" => Some(1.0),
        "no" | "nein" | "non" | "off" => Some(0.0),
        key => parse(key).map(|number| number + 0.0),
    }
}

/// Finds the place of a category among the known ones.
pub(crate) struct Places<'a> {
    case: Case,
    by_key: HashMap<Cow<'a, str>, usize>,
    /// Those that are numbers, by their bits; none where two have the same value.
    by_value: HashMap<u64, Option<usize>>,
}

impl<'a> Places<'a> {
    pub fn of(values: &'a [String], case: Case) -> Self {
        let (mut by_key, mut by_value) = (HashMap::new(), HashMap::new());
        for (place, cell) in values.iter().enumerate() {
            by_key.entry(case.key(cell)).or_insert(place);
            if let Some(value) = number(cell) {
                let other = by_value.insert(value.to_bits(), Some(place));
                if other.is_some() {
                    by_value.insert(value.to_bits(), None);
                }
            }
        }
        Self {
            case,
            by_key,
            by_value,
        }
    }

    /// The place of the category that a cell means: of a number also in another spelling, if only one category has its value.
    pub fn of_cell(&self, cell: &str) -> Option<usize> {
        let known = self.by_key.get(&self.case.key(cell)).copied();
        known.or_else(|| self.by_value.get(&number(cell)?.to_bits()).copied()?)
    }
}

/// Counts of each value, under its commonest spelling; of equally common ones, the least by bytes.
pub(crate) fn counted<'a>(cells: impl Iterator<Item = &'a str>, case: Case) -> HashMap<&'a str, u64> {
    let mut spellings = HashMap::<&str, u64>::new();
    cells.for_each(|cell| *spellings.entry(cell).or_default() += 1);
    let mut values = HashMap::<Cow<str>, (&str, u64, u64)>::new();
    for (cell, count) in spellings {
        let (spelled, best, all) = values.entry(case.key(cell)).or_insert((cell, count, 0));
        *all += count;
        if (count, *spelled) > (*best, cell) {
            (*spelled, *best) = (cell, count);
        }
    }
    values
        .into_values()
        .map(|(spelled, _, all)| (spelled, all))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_value_are_one_category() {
        for (a, b) in [
            ("True", "true"),
            ("TRUE", "1"),
            ("false", "0.0"),
            ("1", "1.0"),
            ("1.", "+1"),
            ("-0", "0"),
            ("YES", "yes"),
            ("No", "NO"),
            ("WAHR", "true"),
            ("Nein", "nein"),
            ("New York", "New  York"),
            ("New York", "New\u{A0}York"),
            ("M\u{FC}nchen", "Mu\u{308}nchen"),
            ("Paris", "Paris\u{200B}"),
            ("A-1", "A\u{2011}1"),
        ] {
            assert_eq!(key(a), key(b), "{a} {b}");
        }
        for (a, b) in [
            ("1.1", "1.10"),
            ("01", "1"),
            ("A", "a"),
            ("no", "0"),
            ("yes", "true"),
            ("1", "-1"),
        ] {
            assert_ne!(key(a), key(b), "{a} {b}");
        }
    }

    #[test]
    fn a_cell_finds_its_category_by_key_and_a_number_by_value_if_only_one_has_it() {
        let values = ["True", "01234", "1.1", "1.10", "2.50", "x"].map(str::to_owned);
        let places = Places::of(&values, Case::Matters);
        for (cell, place) in [
            ("TRUE", Some(0)),
            ("1", Some(0)),
            ("1234", Some(1)),
            ("1.1", Some(2)),
            ("1.10", Some(3)),
            ("1.100", None),
            ("2.5", Some(4)),
            ("X", None),
        ] {
            assert_eq!(places.of_cell(cell), place, "{cell}");
        }
    }

    #[test]
    fn a_boolean_finds_yes_and_no() {
        let values = ["no", "yes"].map(str::to_owned);
        let places = Places::of(&values, Case::Matters);
        assert_eq!(
            ["false", "1", "YES"].map(|cell| places.of_cell(cell)),
            [Some(0), Some(1), Some(1)]
        );
    }

    #[test]
    fn values_are_counted_together_and_spelled_as_most_are() {
        let found = counted("True true True 1 no NO no 7 7.0".split(' '), Case::Matters);
        assert_eq!(found, HashMap::from([("True", 4), ("no", 3), ("7", 2)]));
    }
}
