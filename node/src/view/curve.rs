//! A curve of any length in few points: neighbours are merged as it grows. It must not know what it shows.

/// Most points that are kept.
const POINTS: usize = 500;

/// A row of numbers over rounds. Each point stands for as many rounds as any other, but for the last one.
#[derive(Debug)]
pub struct Curve {
    /// Round of the last value in each point, and the mean of its values.
    points: Vec<(u64, f32)>,
    /// Values in a full point.
    stride: u32,
    /// Values in the last point.
    filled: u32,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            stride: 1,
            filled: 1,
        }
    }
}

impl Curve {
    /// Appends a value.
    pub fn push(&mut self, round: u64, value: f32) {
        if let Some((last, mean)) = self.points.last_mut()
            && self.filled < self.stride
        {
            self.filled += 1;
            *last = round;
            *mean += (value - *mean) / self.filled as f32;
            return;
        }
        if self.points.len() == POINTS {
            // All points are full here, so the means of pairs are means of all values.
            let pairs = self.points.chunks(2);
            self.points = pairs
                .map(|pair| {
                    let sum: f32 = pair.iter().map(|(_, value)| value).sum();
                    (pair[pair.len() - 1].0, sum / pair.len() as f32)
                })
                .collect();
            self.stride = self.stride.saturating_mul(2);
        }
        self.points.push((round, value));
        self.filled = 1;
    }

    /// The points, at most 500.
    pub fn points(&self) -> &[(u64, f32)] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_curves_are_exact() {
        let mut curve = Curve::default();
        (1..=500).for_each(|i| curve.push(i, i as f32));
        let points = curve.points();
        assert_eq!(points.len(), 500);
        assert!(points.iter().all(|(round, value)| *value == *round as f32));
    }

    #[test]
    fn long_curves_keep_their_shape() {
        let mut curve = Curve::default();
        for i in 1..=100_000u64 {
            curve.push(i, i as f32);
            assert!(curve.points.len() <= POINTS);
        }
        let points = curve.points();
        assert!(points.len() > POINTS / 2);
        assert_eq!(points[points.len() - 1].0, 100_000);
        for pair in points.windows(2) {
            let (from, to) = (pair[0].0, pair[1].0);
            let mean = (from + 1 + to) as f32 / 2.0;
            assert!((pair[1].1 - mean).abs() <= mean * 1e-4, "{pair:?}");
        }
    }
}
