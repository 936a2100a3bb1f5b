//! Generates text from a trained model, token by token.

use annulus_core::random::SplitMix;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::model::Transformer;
use super::text::Vocabulary;
use super::windows::Tokens;
use crate::task::{Answering, Answers, Emit, TaskError};

/// How to choose the next token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Divides the logits: below 1 likely tokens become likelier, and 0 always takes the likeliest.
    pub temperature: f64,
    /// Samples from this many of the likeliest tokens; 0: from all.
    pub top_k: usize,
}

/// Generates text with a model that was trained on a vocabulary.
pub struct Writer<'a> {
    model: &'a mut dyn Answers<Tokens>,
    vocabulary: &'a Vocabulary,
    context: usize,
    choice: Choice,
    random: SplitMix,
}

impl<'a> Writer<'a> {
    /// For a model that sees `context` tokens and predicts the logits of the next one.
    pub fn new(
        model: &'a mut dyn Answers<Tokens>,
        vocabulary: &'a Vocabulary,
        context: usize,
        choice: Choice,
        seed: u64,
    ) -> Self {
        Self {
            model,
            vocabulary,
            context,
            choice,
            random: SplitMix(seed),
        }
    }

    /// Continues `prompt` by `count` tokens, and emits each piece of text as soon as it is complete. An empty prompt
    /// stands for the beginning of a line.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub async fn write(&mut self, prompt: &[i32], count: usize, emit: Emit<'_>) -> Result<(), TaskError> {
        let mut tokens = prompt.to_vec();
        if tokens.is_empty() {
            // A vocabulary without the end of a line has a token 0.
            tokens = self.vocabulary.encode("\n").unwrap_or_else(|_| vec![0]);
        }
        let mut pieces = Pieces::default();
        for _ in 0..count {
            let seen = &tokens[tokens.len().saturating_sub(self.context)..];
            let seen = Tokens {
                inputs: seen.to_vec(),
                targets: Vec::new(),
                windows: 1,
            };
            let logits = self.model.answer(seen).await?;
            // Rows that only pad the embedding are not tokens.
            let token = self
                .choice
                .of(&logits[..self.vocabulary.size()], &mut self.random);
            tokens.push(token as i32);
            self.vocabulary.decode(token, &mut pieces.bytes);
            let piece = pieces.take();
            if !piece.is_empty() {
                emit(&piece).await;
            }
        }
        if !pieces.bytes.is_empty() {
            emit("\u{fffd}").await;
        }
        Ok(())
    }
}

/// A whole model on a device, without autodiff.
#[derive(Debug)]
pub struct Whole<'a> {
    /// The model.
    pub model: &'a Transformer,
    /// The model's device.
    pub device: &'a Device,
}

impl Answers<Tokens> for Whole<'_> {
    fn answer(&mut self, batch: Tokens) -> Answering<'_> {
        Box::pin(async move {
            let data = TensorData::new(batch.inputs.clone(), [1, batch.inputs.len()]);
            let tokens = Tensor::<2, Int>::from_data(data, self.device);
            let logits = self
                .model
                .last_logits(self.model.blocks(self.model.embed(tokens)));
            let data = logits.into_data_async().await;
            let data = data.map_err(|error| format!("the device failed: {error}"))?;
            Ok(data.iter::<f32>().collect())
        })
    }
}

impl Choice {
    /// Chooses a token by its logits.
    fn of(&self, logits: &[f32], random: &mut SplitMix) -> usize {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // Likeliest first, and of equals the first, so that the result does not depend on the sorting.
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        if self.temperature == 0.0 {
            return order[0];
        }
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let largest = f64::from(logits[order[0]]);
        let weight = |token: &usize| libm::exp((f64::from(logits[*token]) - largest) / self.temperature);
        let weights: Vec<f64> = order.iter().map(weight).collect();
        let mut left = random.unit() * weights.iter().sum::<f64>();
        for (token, weight) in order.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding may leave a remainder.
        order[0]
    }
}

/// Assembles text from bytes that come one by one.
#[derive(Debug, Default)]
struct Pieces {
    bytes: Vec<u8>,
}

impl Pieces {
    /// All complete text, with a replacement character for bytes that are not text. Bytes that may still become a
    /// character wait.
    fn take(&mut self) -> String {
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.bytes.clear();
                    return text;
                }
                Err(error) => {
                    let (whole, rest) = self.bytes.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(whole).expect("valid up to there"));
                    let Some(wrong) = error.error_len() else {
                        self.bytes = rest.to_vec();
                        return text;
                    };
                    text.push('\u{fffd}');
                    self.bytes = rest[wrong..].to_vec();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(choice: Choice, logits: &[f32]) -> Vec<f64> {
        let mut random = SplitMix(3);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[choice.of(logits, &mut random)] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn tokens_come_as_often_as_their_logits_say() {
        let logits = [0.0, f32::ln(3.0), f32::ln(4.0), f32::NEG_INFINITY];
        let close = |found: &[f64], expected: [f64; 4]| {
            assert!(
                found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 0.015),
                "{found:?}"
            );
        };
        let choice = |temperature, top_k| Choice { temperature, top_k };
        close(&shares(choice(1.0, 0), &logits), [0.125, 0.375, 0.5, 0.0]);
        close(
            &shares(choice(0.5, 0), &logits),
            [1.0 / 26.0, 9.0 / 26.0, 16.0 / 26.0, 0.0],
        );
        close(&shares(choice(1.0, 2), &logits), [0.0, 3.0 / 7.0, 4.0 / 7.0, 0.0]);
        close(&shares(choice(0.0, 0), &logits), [0.0, 0.0, 1.0, 0.0]);
        close(&shares(choice(1.0, 1), &logits), [0.0, 0.0, 1.0, 0.0]);
        // Of equals the first.
        assert_eq!(choice(0.0, 0).of(&[1.0, 2.0, 2.0], &mut SplitMix(0)), 1);
    }

    #[test]
    fn a_character_is_handed_out_when_it_is_whole() {
        let mut pieces = Pieces::default();
        let mut out = Vec::new();
        for byte in b"a\xe2\x82\xacb\xff\xc3(\xf0\x9f" {
            pieces.bytes.push(*byte);
            out.push(pieces.take());
        }
        assert_eq!(out, ["a", "", "", "€", "b", "\u{fffd}", "", "\u{fffd}(", "", ""]);
        assert_eq!(pieces.bytes, b"\xf0\x9f");
    }
}
