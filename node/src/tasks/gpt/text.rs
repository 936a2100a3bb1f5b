//! A text as a long sequence of tokens. It is read from the file as needed, so the file may be larger than memory.
//!
//! It knows nothing of models, devices or peers.

use annulus_core::Digest;
use serde::{Deserialize, Serialize};

use crate::data::{Contents, DataError, DataFile};

/// The built-in training text, about this project. It never changes: it is the data of all runs without a file, which
/// peers of other releases take part in and which are replayed later.
const SHIPPED: &str = include_str!("default_text.txt");

/// Characters between two entries of the index: an entry costs 8 bytes, and a look-up at most this many steps.
const STRIDE: u64 = 1024;

/// Bytes to hash at once: few enough to stay in the cache.
const HASHED: usize = 1 << 18;

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
}

impl Text {
    /// The built-in text.
    pub fn shipped(unit: Unit) -> Self {
        let text = Self::of(Contents::of(SHIPPED.as_bytes()), unit);
        text.expect("a string of Rust's is UTF-8")
    }

    /// A blank text of this many tokens, with a vocabulary of this size.
    pub fn blank(unit: Unit, tokens: usize, vocabulary: usize) -> Self {
        let bytes = Contents::of(vec![b' '; tokens]);
        let text = Self::of(bytes, unit).expect("blanks are UTF-8");
        let characters = || ('\0'..=char::MAX).take(vocabulary).collect();
        Self {
            vocabulary: match unit {
                Unit::Bytes => Vocabulary::Bytes,
                Unit::Characters => Vocabulary::Characters(characters()),
            },
            ..text
        }
    }

    /// Reads a file once from end to end. A file on disk is mapped into memory and must not change while the program
    /// runs.
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
        // The file on disk may change meanwhile. Nothing here relies on earlier checks of its bytes (each character is
        // decoded from a copy), so the worst outcome is a wrong token.
        Self::of(bytes, unit).map_err(|at| {
            malformed(format!(
                "is not UTF-8 text (byte {at}): use vocabulary=bytes, which takes any file"
            ))
        })
    }

    /// On an error, the place of the first byte that is not text.
    fn of(bytes: Contents, unit: Unit) -> Result<Self, usize> {
        let all: &[u8] = &bytes;
        let mut hasher = blake3::Hasher::new();
        all.chunks(HASHED).for_each(|part| {
            hasher.update(part);
        });
        let digest = Digest(*hasher.finalize().as_bytes());
        let (vocabulary, tokens, starts) = match unit {
            Unit::Bytes => (Vocabulary::Bytes, all.len() as u64, Vec::new()),
            Unit::Characters => index(all)?,
        };
        Ok(Self {
            bytes,
            vocabulary,
            tokens,
            starts,
            digest,
        })
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

    /// Appends `count` tokens from token `at` on.
    ///
    /// # Panics
    ///
    /// If the text ends before.
    pub fn read(&self, at: u64, count: usize, into: &mut Vec<i32>) {
        assert!(at + count as u64 <= self.tokens, "the text ends before");
        let bytes: &[u8] = &self.bytes;
        if self.vocabulary == Vocabulary::Bytes {
            let part = &bytes[at as usize..at as usize + count];
            into.extend(part.iter().map(|byte| i32::from(*byte)));
            return;
        }
        let mut place = self.starts[(at / STRIDE) as usize] as usize;
        for _ in 0..at % STRIDE {
            place += decode(bytes, place).map_or(1, |(_, length)| length);
        }
        for _ in 0..count {
            // Only a file that has changed has invalid characters, or ones without a token.
            let (c, length) = decode(bytes, place).unwrap_or(('\0', 1));
            into.push(self.vocabulary.token(c).unwrap_or(0));
            place += length;
        }
    }
}

/// Scans a text: its characters, how many there are, and where some of them begin. On an error, the place of the first
/// byte that is not text.
fn index(bytes: &[u8]) -> Result<(Vocabulary, u64, Vec<u64>), usize> {
    let mut seen = vec![false; char::MAX as usize + 1];
    let (mut starts, mut count, mut place) = (Vec::new(), 0u64, 0);
    while place < bytes.len() {
        let (c, length) = decode(bytes, place).ok_or(place)?;
        seen[c as usize] = true;
        if count.is_multiple_of(STRIDE) {
            starts.push(place as u64);
        }
        count += 1;
        place += length;
    }
    let all = ('\0'..=char::MAX).filter(|c| seen[*c as usize]).collect();
    Ok((Vocabulary::Characters(all), count, starts))
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
    use std::path::Path;

    fn open(path: &Path, unit: Unit) -> Result<Text, DataError> {
        Text::read_from(&Data::open(path)?.single()?, unit)
    }

    fn characters(text: &'static str) -> Text {
        Text::of(Contents::of(text.as_bytes()), Unit::Characters).unwrap()
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
            "617c79193f9efe711888b75355b1204b9e1c84bc63e862279103661a3ba5145e"
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
}
