//! The data of the language model: windows of a text, of which the last tenth is held out.
//!
//! It knows nothing of models or devices.

use super::text::Text;
use crate::task::{Dataset, TaskError};
use annulus_core::Digest;

/// All windows of one length in the first nine tenths of a text. Sample *i* begins at token *i*.
#[derive(Debug)]
pub struct Windows {
    text: Text,
    /// Tokens in a window.
    length: usize,
    /// Tokens to train on; the others are held out.
    train: u64,
    digest: Digest,
}

/// Tokens, and for each the next token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The windows, one after the other.
    pub inputs: Vec<i32>,
    /// The next token of each.
    pub targets: Vec<i32>,
    /// How many windows.
    pub windows: usize,
}

impl Windows {
    /// Windows of this many tokens.
    ///
    /// # Errors
    ///
    /// If the text is too short for one.
    pub fn new(text: Text, length: usize) -> Result<Self, TaskError> {
        let train = text.tokens() / 10 * 9 + text.tokens() % 10 * 9 / 10;
        let held_out = text.tokens() - train;
        if train <= length as u64 || held_out < 2 {
            return Err(format!(
                "the text is too short: of its {} tokens {train} are to train on and {held_out} held out, and a sample \
                 is of {} (context=N sets that)",
                text.tokens(),
                length + 1,
            )
            .into());
        }
        Ok(Self {
            digest: text.digest(),
            text,
            length,
            train,
        })
    }

    /// Makes the digest cover these bytes too, as another part of the run's data.
    pub fn cover(&mut self, bytes: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.digest.0).update(bytes);
        self.digest = Digest(*hasher.finalize().as_bytes());
    }

    /// The whole text.
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// Where the held-out text begins.
    pub fn train(&self) -> u64 {
        self.train
    }

    /// Windows of another length, anywhere in the text.
    pub fn read(&self, starts: &[u64], length: usize) -> Tokens {
        let count = starts.len() * length;
        let (mut inputs, mut targets) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut window = Vec::with_capacity(length + 1);
        for start in starts {
            window.clear();
            self.text.read(*start, length + 1, &mut window);
            inputs.extend(&window[..length]);
            targets.extend(&window[1..]);
        }
        Tokens {
            inputs,
            targets,
            windows: starts.len(),
        }
    }

    /// Where held-out windows begin: end to end, or spread evenly if there are more than `most`. If all are used, also
    /// the shorter one that is left at the end, with its length.
    pub fn held_out(&self, most: u64) -> (Vec<u64>, Option<(u64, usize)>) {
        let length = self.length as u64;
        // The last token is only predicted.
        let predicted = self.text.tokens() - self.train - 1;
        let whole = predicted / length;
        if whole > most {
            let spread =
                |i| self.train + (u128::from(i) * u128::from(whole) / u128::from(most)) as u64 * length;
            return ((0..most).map(spread).collect(), None);
        }
        let starts = (0..whole).map(|i| self.train + i * length).collect();
        let rest = (predicted % length) as usize;
        (starts, (rest > 0).then_some((self.train + whole * length, rest)))
    }
}

impl Dataset for Windows {
    type Batch = Tokens;

    fn len(&self) -> u64 {
        self.train - self.length as u64
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Tokens {
        self.read(samples, self.length)
    }

    fn intact(&self) -> Result<(), TaskError> {
        Ok(self.text.intact()?)
    }
}
