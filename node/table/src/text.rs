//! Texts as a model's inputs: a weight for each word or pair of neighbouring words that is common in training.
//!
//! The weights are TF-IDF (Salton and Buckley 1988). A term weighs more, the more often the text has it, by the logarithm,
//! and the fewer training rows have it. A text's weights have length 1.

use crate::frequent::frequent;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Most terms of a column. On 4,000 reviews 4,000 terms were hardly better than 1,000 (81.3 beside 80.1 %, scikit-learn).
const MOST: usize = 1_000;

/// From here on Unicode has scripts that put no spaces between words, such as Chinese: each letter is a word.
const WITHOUT_SPACES: char = '\u{2E80}';

/// The terms of a column of texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Words {
    /// Words and pairs of neighbouring words, in small letters: by falling number of training rows, then by bytes.
    pub terms: Vec<String>,
    /// For each term how much it counts: `ln((1 + rows) / (1 + rows with it)) + 1`.
    pub weights: Vec<f32>,
}

/// The terms of a text and their weights, by rising number of the term.
pub(crate) type Bag = Vec<(u32, f32)>;

/// Number and weight of each term of a column.
pub(crate) struct Lexicon<'a>(HashMap<&'a str, (u32, f32)>);

impl Words {
    /// The terms that occur in most of these texts. Only pairs of frequent words are counted: all would fill the memory.
    pub(crate) fn of<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Self {
        let single = most_frequent(texts.clone().map(words));
        let known: HashSet<&str> = single.iter().map(|(word, _)| word.as_str()).collect();
        let is_known = |pair: &[String]| pair.iter().all(|word| known.contains(word.as_str()));
        let pairs = |text| {
            let words = words(text);
            let pairs = words.windows(2).filter(|pair| is_known(pair));
            pairs.map(joined).collect()
        };
        let pairs = most_frequent(texts.clone().map(pairs));
        let rows = texts.count() as f64;
        let weight = |count: u64| (libm::log((1.0 + rows) / (1.0 + count as f64)) + 1.0) as f32;
        let all = frequent(single.into_iter().chain(pairs), MOST);
        let (terms, weights) = all.into_iter().map(|(term, count)| (term, weight(count))).unzip();
        Self { terms, weights }
    }
}

/// The terms that most texts have, and how many do.
fn most_frequent(texts: impl Iterator<Item = Vec<String>>) -> Vec<(String, u64)> {
    let mut counts = HashMap::<String, u64>::new();
    for text in texts {
        let terms: HashSet<String> = text.into_iter().collect();
        terms
            .into_iter()
            .for_each(|term| *counts.entry(term).or_default() += 1);
    }
    frequent(counts, MOST)
}

impl<'a> Lexicon<'a> {
    pub fn of(words: &'a Words) -> Self {
        // A file may lack weights.
        let weighted = (0..).zip(words.weights.iter().copied());
        Self(words.terms.iter().map(String::as_str).zip(weighted).collect())
    }

    /// The known terms of a text.
    pub fn bag(&self, text: &str) -> Bag {
        let terms = terms(text);
        let known = terms.iter().filter_map(|term| self.0.get(term.as_str()));
        let mut found: Vec<(u32, f32)> = known.copied().collect();
        found.sort_unstable_by_key(|(term, _)| *term);
        let weighted = |same: &[(u32, f32)]| {
            let often = 1.0 + libm::log(same.len() as f64);
            (same[0].0, often * f64::from(same[0].1))
        };
        let same = found.chunk_by(|(a, _), (b, _)| a == b);
        let weights: Vec<(u32, f64)> = same.map(weighted).collect();
        let length = weights
            .iter()
            .map(|(_, weight)| weight * weight)
            .sum::<f64>()
            .sqrt();
        let unit = |(term, weight): (u32, f64)| (term, (weight / length) as f32);
        weights.into_iter().map(unit).collect()
    }
}

/// The words of a text and the pairs of neighbours, as often as it has them.
fn terms(text: &str) -> Vec<String> {
    let words = words(text);
    let pairs: Vec<String> = words.windows(2).map(joined).collect();
    words.into_iter().chain(pairs).collect()
}

fn joined(pair: &[String]) -> String {
    pair.join(" ")
}

/// Letters and digits in a row, in small letters. Which characters are letters is Rust's table of Unicode.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for letter in text.chars() {
        let alone = letter >= WITHOUT_SPACES;
        if alone || !letter.is_alphanumeric() {
            words.push(String::new());
        }
        if letter.is_alphanumeric() {
            words
                .last_mut()
                .expect("there is one")
                .extend(letter.to_lowercase());
        }
        if alone {
            words.push(String::new());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_letters_and_digits_and_each_chinese_letter_is_one() {
        assert_eq!(
            words("It's NOT good: 10/10!"),
            ["it", "s", "not", "good", "10", "10"]
        );
        assert_eq!(
            words("\u{00DC}ber \u{4E0D}\u{597D}a, b"),
            ["\u{00FC}ber", "\u{4E0D}", "\u{597D}", "a", "b"]
        );
        assert!(words(" -- ").is_empty());
    }

    #[test]
    fn terms_are_the_frequent_words_and_pairs_in_a_fixed_order() {
        let texts = [
            "not good",
            "not good, no",
            "good",
            "not good",
            "Good; not GOOD",
            "is not good",
        ];
        let found = Words::of(texts.into_iter());
        assert_eq!(found.terms, ["good", "not", "not good"]);
        // 6 rows: ln(7 / 7) + 1 and ln(7 / 6) + 1.
        assert_eq!(found.weights, [1.0, 1.154_150_7, 1.154_150_7]);
    }

    /// As scikit-learn's `TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, vocabulary=[..])` with these weights.
    #[test]
    fn weights_of_a_text_have_length_one_and_grow_with_the_logarithm_of_counts() {
        let words = Words {
            terms: ["a", "b", "a b"].map(str::to_owned).to_vec(),
            weights: vec![1.0, 2.0, 1.5],
        };
        let bag = Lexicon::of(&words).bag("a b, a - x B");
        let often = 1.0 + 2f64.ln();
        // a twice, b twice; of the pairs "a b" once, the others are not known.
        let length = (often * often * 5.0 + 2.25).sqrt();
        let wanted = [often, 2.0 * often, 1.5].map(|weight| (weight / length) as f32);
        let found: Vec<f32> = bag.iter().map(|(_, weight)| *weight).collect();
        assert_eq!(bag.iter().map(|(term, _)| *term).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(found, wanted);
        assert!(Lexicon::of(&words).bag("x").is_empty());
        // A file whose last weights are cut off.
        let cut = Words {
            weights: vec![1.0],
            ..words
        };
        assert_eq!(Lexicon::of(&cut).bag("a b"), [(0, 1.0)]);
    }
}
