//! A text as a long sequence of tokens. It is read from the file as needed, so the file may be larger than memory.
//!
//! It knows nothing of models, devices or peers.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use annulus_core::Digest;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::data::{Contents, DataError, DataFile};

/// The built-in training text: short tales, which `default_text.py` makes. It never changes within a release: it is the data of
/// all runs without a file, which are replayed later.
const SHIPPED: &str = include_str!("default_text.txt");

/// Characters between two entries of the index: an entry costs 8 bytes, and a look-up at most this many steps.
const STRIDE: u64 = 1024;

/// The unit of text that is a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// One byte; works for any file.
    Bytes,
    /// One of the characters in the data, which must be UTF-8.
    Characters,
}

/// All tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// All bytes; a byte is its own token.
    Bytes,
    /// These characters, ordered by code point; a token is an index into this list.
    Characters(Vec<char>),
}

impl Vocabulary {
    /// How many tokens there are.
    pub fn size(&self) -> usize {
        match self {
            Self::Bytes => 256,
            Self::Characters(all) => all.len(),
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    ///
    /// The first character that the data does not have.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, char> {
        match self {
            Self::Bytes => Ok(text.bytes().map(i32::from).collect()),
            Self::Characters(_) => text.chars().map(|c| self.token(c).ok_or(c)).collect(),
        }
    }

    /// Appends the bytes of a token, none if there is no such token.
    pub fn decode(&self, token: usize, into: &mut Vec<u8>) {
        match self {
            Self::Bytes => into.extend(u8::try_from(token)),
            Self::Characters(all) => {
                if let Some(c) = all.get(token) {
                    into.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
        }
    }

    /// All characters; empty if tokens are bytes.
    pub fn characters(&self) -> String {
        match self {
            Self::Bytes => String::new(),
            Self::Characters(all) => all.iter().collect(),
        }
    }

    fn token(&self, c: char) -> Option<i32> {
        match self {
            Self::Bytes => None,
            Self::Characters(all) => all.binary_search(&c).ok().map(|place| place as i32),
        }
    }
}

/// A text, its vocabulary and its hash.
#[derive(Debug)]
pub struct Text {
    bytes: Contents,
    vocabulary: Vocabulary,
    tokens: u64,
    /// Where every [`STRIDE`]th character begins; empty if tokens are bytes.
    starts: Vec<u64>,
    digest: Digest,
    /// Why the file cannot be read any more.
    lost: OnceLock<String>,
}

impl Text {
    /// The built-in text.
    pub fn shipped(unit: Unit) -> Self {
        Self::held(SHIPPED.as_bytes().into(), unit)
    }

    /// A blank text of this many tokens, with a vocabulary of this size.
    pub fn blank(unit: Unit, tokens: usize, vocabulary: usize) -> Self {
        let text = Self::held(vec![b' '; tokens].into(), unit);
        let characters = || ('\0'..=char::MAX).take(vocabulary).collect();
        Self {
            vocabulary: match unit {
                Unit::Bytes => Vocabulary::Bytes,
                Unit::Characters => Vocabulary::Characters(characters()),
            },
            ..text
        }
    }

    /// Reads a file once from end to end. A file on disk stays there and must not change meanwhile:
    /// [`intact`](Self::intact) tells.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is empty, or for characters, if it is not UTF-8.
    pub fn read_from(file: &DataFile, unit: Unit) -> Result<Self, DataError> {
        let malformed = |problem: String| DataError::Malformed {
            path: file.path(),
            problem,
        };
        let bytes = file.contents()?;
        if bytes.is_empty() {
            return Err(malformed("is empty".to_owned()));
        }
        Self::of(bytes, unit)?.map_err(|at| {
            malformed(format!(
                "is not UTF-8 text (byte {at}): use vocabulary=bytes, which takes any file"
            ))
        })
    }

    /// Text in memory.
    fn held(bytes: Bytes, unit: Unit) -> Self {
        let text = Self::of(Contents::of(bytes), unit).expect("memory can be read");
        text.expect("it is UTF-8")
    }

    /// On an error, the place of the first byte that is not text.
    fn of(bytes: Contents, unit: Unit) -> Result<Result<Self, u64>, DataError> {
        let mut index = Index::default();
        let digest = match (unit, bytes.known_digest()) {
            (Unit::Bytes, Some(known)) => known,
            _ => bytes.read_all(|part| match unit {
                Unit::Bytes => {}
                Unit::Characters => index.add(part),
            })?,
        };
        let (vocabulary, tokens, starts) = match unit {
            Unit::Bytes => (Vocabulary::Bytes, bytes.len(), Vec::new()),
            Unit::Characters => match index.finish() {
                Ok(found) => found,
                Err(at) => return Ok(Err(at)),
            },
        };
        Ok(Ok(Self {
            bytes,
            vocabulary,
            tokens,
            starts,
            digest,
            lost: OnceLock::new(),
        }))
    }

    /// Whether everything read so far belongs to the text with this [`digest`](Self::digest).
    ///
    /// # Errors
    ///
    /// If not, what happened to the file.
    pub fn intact(&self) -> Result<(), &str> {
        match self.lost.get() {
            None => Ok(()),
            Some(why) => Err(why),
        }
    }

    /// How many tokens it has.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// All tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Hash of its bytes.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Of a streamed text: asks for these bytes, and keeps them from then on.
    pub fn pin(&self, ranges: impl Iterator<Item = Range<u64>>) {
        self.bytes.pin(ranges);
    }

    /// Of a streamed text: asks for these bytes, and waits for so long at most. Returns whether all are here.
    pub fn have(&self, ranges: impl Iterator<Item = Range<u64>>, wait: Duration) -> bool {
        self.bytes.have(ranges, wait)
    }

    /// Appends `count` tokens, from token `at` on. If the file has changed or cannot be read, they are zeros, and
    /// [`intact`](Self::intact) fails from then on.
    ///
    /// # Panics
    ///
    /// If the text ends before.
    pub fn read(&self, at: u64, count: usize, into: &mut Vec<i32>) {
        let end = at + count as u64;
        assert!(end <= self.tokens, "the text ends before");
        let bytes = match self.vocabulary {
            Vocabulary::Bytes => at..end,
            Vocabulary::Characters(_) => {
                let start = |entry: u64| self.starts.get(entry as usize).copied();
                let last = start(end.div_ceil(STRIDE)).unwrap_or(self.bytes.len());
                start(at / STRIDE).unwrap_or(last)..last
            }
        };
        match self.bytes.part(bytes) {
            Ok(part) => return self.tokens_of(&part, (at % STRIDE) as usize, count, into),
            // It may come; `have` tells.
            Err(DataError::Elsewhere) => {}
            Err(error) => drop(self.lost.get_or_init(|| error.to_string())),
        }
        into.resize(into.len() + count, 0);
    }

    /// Appends the tokens of `bytes`. For characters: `count` of them, after the first `before`.
    fn tokens_of(&self, bytes: &[u8], before: usize, count: usize, into: &mut Vec<i32>) {
        if self.vocabulary == Vocabulary::Bytes {
            return into.extend(bytes.iter().map(|byte| i32::from(*byte)));
        }
        let mut place = 0;
        let characters = std::iter::from_fn(|| {
            // The index has decoded these bytes before.
            let (c, length) = decode(bytes, place).unwrap_or(('\0', 1));
            place += length;
            Some(c)
        });
        let tokens = characters.skip(before).take(count);
        into.extend(tokens.map(|c| self.vocabulary.token(c).unwrap_or(0)));
    }
}

/// Finds the characters of a text, part by part.
#[derive(Default)]
struct Index {
    /// Whether each code point occurs.
    seen: Vec<bool>,
    /// Where every [`STRIDE`]th character begins.
    starts: Vec<u64>,
    /// Number of characters.
    count: u64,
    /// Number of their bytes.
    place: u64,
    /// The beginning of a character that the next part completes.
    rest: Vec<u8>,
    /// Whether a byte was found that is not UTF-8.
    ended: bool,
}

impl Index {
    fn add(&mut self, part: &[u8]) {
        if self.ended {
            return;
        }
        self.seen.resize(char::MAX as usize + 1, false);
        self.rest.extend_from_slice(part);
        let bytes = std::mem::take(&mut self.rest);
        let mut place = 0;
        while place < bytes.len() && !self.ended {
            match decode(&bytes, place) {
                Some((c, length)) => {
                    self.seen[c as usize] = true;
                    if self.count.is_multiple_of(STRIDE) {
                        self.starts.push(self.place);
                    }
                    self.count += 1;
                    self.place += length as u64;
                    place += length;
                }
                // The next part may complete it.
                None if bytes.len() - place < 4 => break,
                None => self.ended = true,
            }
        }
        self.rest.extend_from_slice(&bytes[place..]);
    }

    /// The vocabulary, the number of tokens, and where some begin. Or the place of the first byte that is not UTF-8.
    fn finish(self) -> Result<(Vocabulary, u64, Vec<u64>), u64> {
        if !self.rest.is_empty() {
            return Err(self.place);
        }
        let seen = |c: &char| self.seen.get(*c as usize) == Some(&true);
        let all = ('\0'..=char::MAX).filter(seen).collect();
        Ok((Vocabulary::Characters(all), self.count, self.starts))
    }
}

/// The character at a place, and its length in bytes; none if no valid one begins there.
fn decode(bytes: &[u8], place: usize) -> Option<(char, usize)> {
    let first = *bytes.get(place)?;
    let length = match first {
        0x00..=0x7f => return Some((char::from(first), 1)),
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    let mut copy = [0; 4];
    copy[..length].copy_from_slice(bytes.get(place..place + length)?);
    let c = std::str::from_utf8(&copy[..length]).ok()?.chars().next()?;
    Some((c, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Data;
    use crate::testing::Twister;
    use std::path::Path;

    fn open(path: &Path, unit: Unit) -> Result<Text, DataError> {
        Text::read_from(&Data::open(path)?.single()?, unit)
    }

    fn characters(text: &'static str) -> Text {
        Text::held(text.as_bytes().into(), Unit::Characters)
    }

    fn read(text: &Text, at: u64, count: usize) -> Vec<i32> {
        let mut tokens = Vec::new();
        text.read(at, count, &mut tokens);
        tokens
    }

    fn decoded(vocabulary: &Vocabulary, tokens: &[i32]) -> String {
        let mut bytes = Vec::new();
        tokens
            .iter()
            .for_each(|t| vocabulary.decode(*t as usize, &mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn bytes_are_their_own_tokens() {
        let text = Text::shipped(Unit::Bytes);
        assert_eq!(text.tokens(), SHIPPED.len() as u64);
        assert_eq!(text.vocabulary().size(), 256);
        let tokens = read(&text, 3, 40);
        assert!(
            tokens
                .iter()
                .zip(&SHIPPED.as_bytes()[3..])
                .all(|(t, b)| *t == i32::from(*b))
        );
        assert_eq!(text.vocabulary().encode("é"), Ok(vec![0xc3, 0xa9]));
        assert_eq!(decoded(text.vocabulary(), &[0xc3, 0xa9]), "é");
    }

    #[test]
    fn the_text_that_comes_with_the_program_never_changes() {
        let digest = Text::shipped(Unit::Bytes).digest().to_hex();
        assert_eq!(
            digest,
            "75e8dfb7a6d942d208293657b662bdfb0e5056c0d1d8fd91dd935d8a494e28d1"
        );
    }

    #[test]
    fn characters_are_numbered_in_order_and_found_anywhere() {
        let text = characters("zażółć\n");
        assert_eq!(
            text.vocabulary(),
            &Vocabulary::Characters("\nazóćłż".chars().collect())
        );
        assert_eq!(text.tokens(), 7);
        assert_eq!(read(&text, 0, 7), [2, 1, 6, 3, 5, 4, 0]);
        assert_eq!(read(&text, 3, 2), [3, 5]);
        assert_eq!(text.vocabulary().encode("łza"), Ok(vec![5, 2, 1]));
        assert_eq!(text.vocabulary().encode("lza"), Err('l'));
    }

    #[test]
    fn every_window_of_a_long_text_is_what_the_text_says_there() {
        let long: String = (0..5_000u32)
            .map(|i| ['a', 'é', '€', '🦀', 'b'][(i * i % 11 % 5) as usize])
            .collect();
        let long: &'static str = long.leak();
        let text = characters(long);
        let all: Vec<char> = long.chars().collect();
        for at in [0, 1, 1022, 1023, 1024, 1025, 2048, 4096, 4990] {
            let expected: String = all[at..at + 10].iter().collect();
            assert_eq!(
                decoded(text.vocabulary(), &read(&text, at as u64, 10)),
                expected,
                "{at}"
            );
        }
    }

    #[test]
    fn a_long_file_of_characters_is_what_it_is_in_memory() {
        let path = std::env::temp_dir().join(format!("annulus-long-text-{}", std::process::id()));
        // A character of three bytes lies across the border of any part that is read at once.
        let long = format!("a{}", "€".repeat(200_000));
        std::fs::write(&path, &long).unwrap();
        let text = open(&path, Unit::Characters).unwrap();
        assert_eq!(text.tokens(), 200_001);
        for at in [0, 87_380, 150_000, 199_991] {
            let expected: String = long.chars().skip(at).take(10).collect();
            assert_eq!(decoded(text.vocabulary(), &read(&text, at as u64, 10)), expected);
        }
        let cut = &long.as_bytes()[..long.len() - 1];
        std::fs::write(&path, cut).unwrap();
        let error = open(&path, Unit::Characters).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains(&format!("byte {}", long.len() - 3)), "{error}");
        // The file that it was opened from is another by now.
        assert_eq!(text.intact(), Ok(()));
        assert_eq!(read(&text, 5, 2), [0, 0]);
        assert!(text.intact().unwrap_err().contains("has changed"));
    }

    #[test]
    fn a_file_is_read_where_it_lies() {
        let path = std::env::temp_dir().join(format!("annulus-text-{}", std::process::id()));
        std::fs::write(&path, "naïve").unwrap();
        let mapped = open(&path, Unit::Characters).unwrap();
        assert_eq!(decoded(mapped.vocabulary(), &read(&mapped, 0, 5)), "naïve");
        assert_eq!(mapped.digest(), Digest::of("naïve".as_bytes()));
        let bytes = open(&path, Unit::Bytes).unwrap();
        assert_eq!((bytes.tokens(), bytes.digest()), (6, mapped.digest()));
        // Such a file can still be trained on as bytes.
        std::fs::write(&path, b"ab\xffcd").unwrap();
        let error = open(&path, Unit::Characters).unwrap_err().to_string();
        assert!(
            error.contains("byte 2") && error.contains("vocabulary=bytes"),
            "{error}"
        );
        assert_eq!(read(&open(&path, Unit::Bytes).unwrap(), 2, 1), [255]);
        std::fs::write(&path, b"").unwrap();
        let error = open(&path, Unit::Bytes).unwrap_err().to_string();
        assert!(error.contains("is empty"), "{error}");
        let held = Data::file_in_memory("text", "naïve");
        let held = Text::read_from(&held.single().unwrap(), Unit::Characters).unwrap();
        assert_eq!((held.digest(), held.tokens()), (mapped.digest(), 5));
        std::fs::remove_file(&path).unwrap();
        let error = open(&path, Unit::Bytes).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
        let error = open(&std::env::temp_dir(), Unit::Bytes).unwrap_err().to_string();
        assert!(error.contains("is a folder"), "{error}");
    }

    /// Reading ends for any content of a file.
    #[test]
    fn any_bytes_are_a_text_or_an_error() {
        let good = "Ein Körnchen Salz, ein Körnchen Sand. ∮ E⋅da = Q"
            .repeat(20)
            .into_bytes();
        let mut twister = Twister::new(12);
        for _ in 0..1000 {
            let data = Data::file_in_memory("text", twister.twist(&good));
            for unit in [Unit::Bytes, Unit::Characters] {
                let _ = Text::read_from(&data.single().unwrap(), unit);
            }
        }
    }
}
