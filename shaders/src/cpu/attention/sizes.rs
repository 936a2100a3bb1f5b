//! How large an attention is, and how it is cut.

use crate::cpu::processor;

/// Queries that are treated together: their keys and values are read once.
pub(super) const ROWS: usize = 4;

/// Products that take about ten times as long as starting a thread does (30 us).
const PRODUCTS_PER_THREAD: usize = 1 << 20;

/// The sizes of an attention, and whether later tokens are hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Tokens in each.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Numbers in a query, key or value of one head.
    pub head_dim: usize,
    /// Whether a token sees only itself and those before it.
    pub causal: bool,
}

impl Sizes {
    /// Numbers in a token's row of the output; one of `qkv` has three times as many.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The factor of the scores.
    pub fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    pub(super) fn check(&self, numbers: usize, parts: usize) {
        assert!(
            self.head_dim.is_multiple_of(4),
            "heads of {} numbers",
            self.head_dim
        );
        assert_eq!(
            numbers,
            parts * self.batch * self.tokens * self.inner(),
            "{self:?}"
        );
    }

    /// Tokens, with as many that do not exist as make the last group of four full.
    pub(super) fn padded(&self) -> usize {
        self.tokens.next_multiple_of(ROWS)
    }

    /// How many keys a query sees.
    pub(super) fn seen(&self, token: usize) -> usize {
        if self.causal { token + 1 } else { self.tokens }
    }

    /// How many keys four queries together see, a multiple of 4.
    pub(super) fn keys(&self, row: usize) -> usize {
        if self.causal { row + ROWS } else { self.padded() }
    }

    /// Threads that are worth starting, at most one per sequence.
    pub(super) fn threads(&self) -> usize {
        let products = self.batch * self.inner() * self.tokens * self.tokens;
        processor::threads(products, PRODUCTS_PER_THREAD, self.batch)
    }
}
