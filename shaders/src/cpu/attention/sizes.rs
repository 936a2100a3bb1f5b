//! How large an attention is, where its numbers lie, and how it is cut.

use crate::cpu::dropout::Mask;
use crate::cpu::processor;

/// Queries that are treated together: their keys and values are read once.
pub(super) const ROWS: usize = 4;

/// Products that take about ten times as long as starting a thread does (30 us).
const PRODUCTS_PER_THREAD: usize = 1 << 20;

/// The sizes of an attention, and what each query sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Queries in each.
    pub queries: usize,
    /// Keys, and values, in each.
    pub keys: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of queries that share a head of keys and values.
    pub group: usize,
    /// Numbers in a query, key or value of one head.
    pub head_dim: usize,
    /// Whether query i sees no keys behind key i.
    pub causal: bool,
    /// The factor of the scores.
    pub scale: f64,
    /// Drops weights.
    pub dropout: Option<Mask>,
}

impl Sizes {
    /// Of tokens that attend to each other, with the usual scale.
    pub fn of_tokens(batch: usize, tokens: usize, heads: usize, head_dim: usize, causal: bool) -> Self {
        Self {
            batch,
            queries: tokens,
            keys: tokens,
            heads,
            group: 1,
            head_dim,
            causal,
            scale: usual_scale(head_dim),
            dropout: None,
        }
    }

    /// Numbers of all heads in a token's row of the queries and of the output.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Heads of keys and values.
    pub fn key_heads(&self) -> usize {
        self.heads / self.group
    }

    /// How many queries, keys and values there are in a sequence, in this order.
    pub fn tokens(&self) -> [usize; 3] {
        [self.queries, self.keys, self.keys]
    }

    /// How many heads they have.
    pub fn heads_of(&self) -> [usize; 3] {
        [self.heads, self.key_heads(), self.key_heads()]
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.batch * self.queries * self.keys * self.inner() == 0
    }

    pub(super) fn check(&self) {
        assert!(
            self.head_dim.is_multiple_of(4) && self.heads.is_multiple_of(self.group),
            "{self:?}"
        );
    }

    /// Keys, with as many that do not exist as make the last group of four full.
    pub(super) fn padded_keys(&self) -> usize {
        self.keys.next_multiple_of(ROWS)
    }

    /// How many keys a query sees at most.
    pub(super) fn seen(&self, query: usize) -> usize {
        if self.causal {
            self.keys.min(query + 1)
        } else {
            self.keys
        }
    }

    /// How many keys four queries together see, a multiple of 4.
    pub(super) fn keys_of_four(&self, row: usize) -> usize {
        if self.causal {
            self.padded_keys().min(row + ROWS)
        } else {
            self.padded_keys()
        }
    }

    /// Threads that are worth starting, at most one per sequence.
    pub(super) fn threads(&self) -> usize {
        let products = self.batch * self.inner() * self.queries * self.keys;
        processor::threads(products, PRODUCTS_PER_THREAD, self.batch)
    }
}

/// 1 over the square root of a head's width (Vaswani et al., 2017).
pub fn usual_scale(head_dim: usize) -> f64 {
    1.0 / (head_dim as f64).sqrt()
}

/// Where the rows of heads lie among numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The first number.
    pub start: usize,
    /// The step from a sequence to the next.
    pub batch: usize,
    /// The step from a head to the next.
    pub head: usize,
    /// The step from a token to the next.
    pub token: usize,
}

impl Place {
    /// Without gaps, in the order `[batch, tokens, heads, head_dim]`.
    pub fn tokens_first(tokens: usize, heads: usize, head_dim: usize) -> Self {
        Self {
            start: 0,
            batch: tokens * heads * head_dim,
            head: head_dim,
            token: heads * head_dim,
        }
    }

    /// Without gaps, in the order `[batch, heads, tokens, head_dim]`.
    pub fn heads_first(tokens: usize, heads: usize, head_dim: usize) -> Self {
        Self {
            start: 0,
            batch: tokens * heads * head_dim,
            head: tokens * head_dim,
            token: head_dim,
        }
    }

    /// Queries, keys and values side by side, `[batch, tokens, 3, heads, head_dim]`.
    pub fn packed(sizes: Sizes) -> [Self; 3] {
        let inner = sizes.inner();
        [0, 1, 2].map(|kind| Self {
            start: kind * inner,
            batch: 3 * sizes.queries * inner,
            head: sizes.head_dim,
            token: 3 * inner,
        })
    }

    pub(super) fn at(&self, head: usize, token: usize) -> usize {
        self.start + head * self.head + token * self.token
    }
}
