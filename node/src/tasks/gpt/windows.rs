//! The data of the language model: windows of a text, of which the last tenth is held out.
//!
//! Of a text that is streamed, each peer fetches only the pieces that it trains on. There a sample is a stretch of text as
//! long as a window, and a draw is a window that begins somewhere in it. All windows of a piece lie within it.
//!
//! It knows nothing of models or devices.

use super::text::Text;
use crate::data::PIECE;
use crate::task::{Dataset, Draw, TaskError};
use annulus_core::Digest;
use std::num::NonZeroU32;
use std::time::Duration;

/// Places of a streamed text from which held-out windows are taken. Each peer keeps the pieces around them.
const SPOTS: u64 = 16;

/// All windows of one length in the first nine tenths of a text. Sample *i* begins at token *i*, unless the text is streamed.
#[derive(Debug)]
pub struct Windows {
    text: Text,
    /// Tokens in a window.
    length: usize,
    /// Tokens to train on; the others are held out.
    train: u64,
    digest: Digest,
    /// Samples of a piece, if the text is streamed.
    of_piece: Option<NonZeroU32>,
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
    /// Windows of this many tokens, of a text that is streamed or not.
    ///
    /// # Errors
    ///
    /// If the text is too short.
    pub fn new(text: Text, length: usize, stream: bool) -> Result<Self, TaskError> {
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
        if stream && train < 2 * PIECE {
            let problem = format!(
                "stream=true is for texts of many megabytes, and this one has {} bytes: leave it out",
                text.tokens()
            );
            return Err(problem.into());
        }
        let of_piece = (PIECE / (length as u64 + 1)) as u32;
        Ok(Self {
            digest: text.digest(),
            text,
            length,
            train,
            of_piece: NonZeroU32::new(of_piece).filter(|_| stream),
        })
    }

    /// The places where the windows of some draws begin, in a streamed text with this many samples in a piece.
    fn starts(&self, draws: &[Draw], of_piece: NonZeroU32) -> Vec<u64> {
        let (of_piece, taken) = (u64::from(of_piece.get()), self.length as u64 + 1);
        let start = |draw: &Draw| {
            let within = draw.sample % of_piece * taken + draw.seed % taken;
            draw.sample / of_piece * PIECE + within.min(PIECE - taken)
        };
        draws.iter().map(start).collect()
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
            let spots = self.of_piece.map_or(most, |_| SPOTS.min(most));
            let each = most / spots;
            let spread = |i: u64| {
                let spot = u128::from(i / each) * u128::from(whole) / u128::from(spots);
                self.train + (spot as u64 + i % each) * length
            };
            return ((0..spots * each).map(spread).collect(), None);
        }
        let starts = (0..whole).map(|i| self.train + i * length).collect();
        let rest = (predicted % length) as usize;
        (starts, (rest > 0).then_some((self.train + whole * length, rest)))
    }
}

impl Dataset for Windows {
    type Batch = Tokens;

    fn len(&self) -> u64 {
        match self.of_piece {
            Some(of_piece) => self.train / PIECE * u64::from(of_piece.get()),
            None => self.train - self.length as u64,
        }
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Tokens {
        let draw = |sample: &u64| Draw {
            sample: *sample,
            seed: 0,
        };
        self.drawn(&samples.iter().map(draw).collect::<Vec<_>>())
    }

    fn drawn(&self, draws: &[Draw]) -> Tokens {
        let starts = match self.of_piece {
            Some(of_piece) => self.starts(draws, of_piece),
            None => draws.iter().map(|draw| draw.sample).collect(),
        };
        self.read(&starts, self.length)
    }

    fn have(&self, draws: &[Draw], wait: Duration) -> bool {
        let Some(of_piece) = self.of_piece else {
            return true;
        };
        let taken = self.length as u64 + 1;
        let starts = self.starts(draws, of_piece).into_iter();
        self.text.have(starts.map(|start| start..start + taken), wait)
    }

    fn chunk(&self) -> NonZeroU32 {
        self.of_piece.unwrap_or(NonZeroU32::MIN)
    }

    fn intact(&self) -> Result<(), TaskError> {
        Ok(self.text.intact()?)
    }
}
