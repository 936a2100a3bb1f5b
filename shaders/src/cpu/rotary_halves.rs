//! Rotary positions of pairs that are half a head apart: the twin of `rotary_halves`.

use super::Real;
use super::attention::{Place, Placed};

/// Cosine and sine of each token's angles.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a, T> {
    /// `[batch, tokens, head_dim]`.
    pub cosine: &'a [T],
    /// As many.
    pub sine: &'a [T],
    /// The step from a sequence to the next; 0 where all share them.
    pub batch: usize,
}

/// Turns number i of each row with number `i + head_dim / 2`, or makes the backward pass of that. `shape` is `[batch, heads,
/// tokens, head_dim]`; the result is placed as `to` says, without gaps.
///
/// # Panics
///
/// If there are fewer numbers than that.
pub fn rotate<T: Real>(
    x: Placed<'_, T>,
    angles: Angles<'_, T>,
    to: Place,
    [batch, heads, tokens, width]: [usize; 4],
    back: bool,
) -> Vec<T> {
    let mut out = vec![T::ZERO; batch * heads * tokens * width];
    let half = width / 2;
    for row in 0..batch * heads * tokens {
        let (token, head, batch) = (row % tokens, row / tokens % heads, row / (tokens * heads));
        let at = |place: Place| place.start + batch * place.batch + head * place.head + token * place.token;
        let (low, high) = x.numbers[at(x.place)..][..width].split_at(half);
        let table = angles.batch * batch + token * width;
        let [cosine, sine] =
            [angles.cosine, angles.sine].map(|table_of| table_of[table..][..width].split_at(half));
        let (to_low, to_high) = out[at(to)..][..width].split_at_mut(half);
        for i in 0..half {
            let (by_low, by_high) = if back {
                (sine.1[i], -sine.0[i])
            } else {
                (-sine.0[i], sine.1[i])
            };
            to_low[i] = low[i] * cosine.0[i] + high[i] * by_low;
            to_high[i] = high[i] * cosine.1[i] + low[i] * by_high;
        }
    }
    out
}
