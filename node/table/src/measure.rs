//! Measures columns over the training rows: sequential sums in f64 and exact quantiles, so that all machines agree.

use crate::category::{Case, counted, key};
use crate::frequent::frequent;
use crate::number::parse;
use crate::schema::{Categories, Numbers};

/// Most categories of a column that get an input of their own.
const MOST: usize = 256;

/// Mean and standard deviation of the population.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, (squares / count).sqrt())
}

/// A deviation as a divisor: 1 if it is 0.
pub(crate) fn width(deviation: f64) -> f32 {
    if deviation > 0.0 { deviation as f32 } else { 1.0 }
}

/// The line of least squares through points: the mean of x, the slope, and the share of the variance of y that it explains. None if
/// all x or all y are equal.
pub(crate) fn line(points: impl Iterator<Item = (f64, f64)>) -> Option<(f64, f64, f64)> {
    let (x, y): (Vec<f64>, Vec<f64>) = points.unzip();
    let ((middle, wide), (mean, high)) = (mean_and_deviation(&x), mean_and_deviation(&y));
    let products = x.iter().zip(&y).map(|(x, y)| (x - middle) * (y - mean));
    let both = products.sum::<f64>() / x.len().max(1) as f64;
    let is_line = wide > 0.0 && high > 0.0;
    is_line.then(|| {
        (
            middle,
            both / (wide * wide),
            both * both / (wide * wide * high * high),
        )
    })
}

/// The third moment over the third power of the deviation; 0 if all values are equal.
pub(crate) fn skewness(values: &[f64]) -> f64 {
    let (mean, deviation) = mean_and_deviation(values);
    let cube = |value: &f64| {
        let scaled = (value - mean) / deviation;
        scaled * scaled * scaled
    };
    match deviation > 0.0 {
        true => values.iter().map(cube).sum::<f64>() / values.len() as f64,
        false => 0.0,
    }
}

/// Statistics of numbers, at least one.
pub(crate) fn numbers(mut values: Vec<f64>) -> Numbers {
    let (mean, deviation) = mean_and_deviation(&values);
    values.sort_unstable_by(f64::total_cmp);
    let octile = |eighth: usize| {
        // Between the two nearest values, in proportion.
        let place = (values.len() - 1) * eighth;
        let (low, part) = (place / 8, (place % 8) as f64 / 8.0);
        let high = (low + 1).min(values.len() - 1);
        (values[low] + (values[high] - values[low]) * part) as f32
    };
    Numbers {
        mean: mean as f32,
        deviation: deviation as f32,
        octiles: std::array::from_fn(octile),
    }
}

/// The values that occur often enough.
pub(crate) fn categories<'a>(values: impl Iterator<Item = &'a str>, case: Case) -> Categories {
    let counts = counted(values, case);
    let distinct = counts.len();
    let kept = frequent(counts, MOST);
    Categories {
        rare: (distinct - kept.len()) as u64,
        values: kept.into_iter().map(|(value, _)| value.to_owned()).collect(),
    }
}

/// Classes in their order: numbers by size, words by bytes. Spellings of one value are one class.
pub fn classes<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    classes_in(values, Case::Matters)
}

/// The same, where the case of letters may make no difference.
pub(crate) fn classes_in<'a>(values: impl Iterator<Item = &'a str>, case: Case) -> Vec<String> {
    let mut all: Vec<&str> = counted(values, case).into_keys().collect();
    all.sort_unstable();
    if all.iter().all(|class| parse(class).is_some()) {
        all.sort_by(|a, b| parse(a).unwrap_or(0.0).total_cmp(&parse(b).unwrap_or(0.0)));
    }
    all.into_iter().map(str::to_owned).collect()
}

/// Of two classes, the one that a question is about: one that says yes, or else the rarer.
pub fn positive(classes: &[String], counts: &[u64]) -> usize {
    let says_yes = |class: &String| {
        let class = key(class).to_lowercase();
        ["1", "yes", "ja", "oui", "on", "y", "t", "positive", "pos"].contains(&class.as_str())
    };
    let rarest = || (0..classes.len()).min_by_key(|class| counts[*class]).unwrap_or(0);
    classes.iter().position(says_yes).unwrap_or_else(rarest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against numpy 2: `np.quantile(v, k / 8)`, `np.mean`, `np.std`.
    #[test]
    fn statistics_are_those_of_numpy() {
        let found = numbers(vec![3.0, -1.0, 4.0, 1.5, 9.25, 2.0, 6.0, 5.0, 3.5, 5.0]);
        assert_eq!(
            found.octiles,
            [-1.0, 1.5625, 2.25, 3.1875, 3.75, 4.625, 5.0, 5.875, 9.25]
        );
        assert_eq!((found.mean, found.deviation), (3.825, 2.641_141));
        assert_eq!(numbers(vec![7.0]).octiles, [7.0; 9]);
    }

    #[test]
    fn categories_are_ordered_by_count_and_rare_ones_left_out() {
        let cells = "b a c a b c a b b c c c d d d d e e e e e".split(' ');
        let found = categories(cells.clone().chain("a a".split(' ')), Case::Matters);
        assert_eq!(found.values, ["a", "c", "e"]);
        assert_eq!(found.rare, 2);
        assert_eq!(classes("10 9 -1 9".split(' ')), ["-1", "9", "10"]);
        assert_eq!(classes("b 9 a".split(' ')), ["9", "a", "b"]);
        let names = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(positive(&names("no yes"), &[1, 9]), 1);
        assert_eq!(positive(&names("good bad"), &[9, 2]), 1);
    }
}
