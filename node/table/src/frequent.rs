//! Values that occur often enough in training to be learnt.

/// A category or a term with fewer training rows cannot be learnt; a guess, from the design's measurements.
const LEAST: u64 = 5;

/// The `most` commonest of the values that enough training rows have, with their counts: by falling count, then by bytes.
pub(crate) fn frequent<T: Ord>(counts: impl IntoIterator<Item = (T, u64)>, most: usize) -> Vec<(T, u64)> {
    let mut kept: Vec<_> = counts.into_iter().filter(|(_, count)| *count >= LEAST).collect();
    kept.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
    kept.truncate(most);
    kept
}
