//! The largest number, or the mean, of each window that moves over two axes.

/// What is made of a window's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The largest one.
    Maximum,
    /// The mean of those that there are.
    Mean,
    /// The mean, to which the zeros of the border count.
    MeanWithBorder,
}

/// Windows over planes of rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Rows and columns of a window.
    pub kernel: [usize; 2],
    /// From a window to the next.
    pub strides: [usize; 2],
    /// The border, on either side.
    pub before: [usize; 2],
    /// From a number of a window to the next.
    pub dilations: [usize; 2],
    /// How many there are along each axis.
    pub count: [usize; 2],
    /// What is made of them.
    pub kind: Kind,
}

/// The maximum of no numbers, as `pool.wgsl` has it: WGSL has no infinity.
const NOTHING: f32 = -3.40282e38;

impl Windows {
    /// A number for each window of the planes, and where in its plane the largest is, the first of several.
    pub fn forward(&self, x: &[f32], lengths: [usize; 2]) -> (Vec<f32>, Vec<u32>) {
        let [down, across] = self.count;
        let planes = x.chunks_exact((lengths[0] * lengths[1]).max(1));
        let mut out = Vec::with_capacity(planes.len() * down * across);
        let mut places = Vec::with_capacity(out.capacity());
        for plane in planes {
            for window in (0..down).flat_map(|y| (0..across).map(move |x| [y, x])) {
                let (mut top, mut sum) = (None, 0.0);
                for at in self.numbers(window, lengths) {
                    sum += plane[at];
                    if top.is_none_or(|top: usize| plane[at] > plane[top]) {
                        top = Some(at);
                    }
                }
                out.push(match self.kind {
                    Kind::Maximum => top.map_or(NOTHING, |top| plane[top]),
                    _ => sum / self.divisor(window, lengths),
                });
                places.push(top.unwrap_or(0) as u32);
            }
        }
        (out, places)
    }

    /// The gradient for the planes, from that of the windows.
    pub fn backward(&self, gradient: &[f32], places: &[u32], lengths: [usize; 2]) -> Vec<f32> {
        let [down, across] = self.count;
        let size = lengths[0] * lengths[1];
        let mut out = vec![0.0; gradient.len() / (down * across).max(1) * size];
        for (number, (slope, place)) in gradient.iter().zip(places).enumerate() {
            let plane = &mut out[number / (down * across) * size..][..size];
            let window = [number / across % down, number % across];
            if self.kind == Kind::Maximum {
                // A window may lie in the border alone.
                if self.numbers(window, lengths).next().is_some() {
                    plane[*place as usize] += slope;
                }
                continue;
            }
            let each = slope / self.divisor(window, lengths);
            self.numbers(window, lengths).for_each(|at| plane[at] += each);
        }
        out
    }

    /// Places of a window's numbers in its plane.
    fn numbers(&self, window: [usize; 2], lengths: [usize; 2]) -> impl Iterator<Item = usize> {
        let inside = |axis: usize| {
            let (start, before, dilation) = (
                window[axis] * self.strides[axis],
                self.before[axis],
                self.dilations[axis],
            );
            let first = before.saturating_sub(start).div_ceil(dilation);
            let end = (lengths[axis] + before)
                .saturating_sub(start)
                .div_ceil(dilation)
                .min(self.kernel[axis]);
            (first..end).map(move |tap| start + tap * dilation - before)
        };
        let columns = inside(1);
        inside(0).flat_map(move |row| columns.clone().map(move |column| row * lengths[1] + column))
    }

    /// What a mean divides by.
    fn divisor(&self, window: [usize; 2], lengths: [usize; 2]) -> f32 {
        let counted = |axis: usize| {
            let (start, before) = (window[axis] * self.strides[axis], self.before[axis]);
            let end = start + self.kernel[axis];
            match self.kind {
                Kind::MeanWithBorder => end.min(lengths[axis] + 2 * before) - start,
                _ => end.min(lengths[axis] + before) - start.max(before),
            }
        };
        (counted(0) * counted(1)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_numbers_has_the_least_maximum_and_passes_nothing_on() {
        let windows = Windows {
            kernel: [1, 2],
            strides: [1, 1],
            before: [0, 1],
            dilations: [1, 3],
            count: [1, 1],
            kind: Kind::Maximum,
        };
        let (out, places) = windows.forward(&[7.0, 8.0], [1, 2]);
        assert_eq!(out, [NOTHING]);
        assert_eq!(windows.backward(&[1.0], &places, [1, 2]), [0.0, 0.0]);
    }

    #[test]
    fn windows_over_a_border_are_as_pytorch_has_them() {
        let x: Vec<f32> = [1.0, 5.0, 2.0, 5.0, 3.0, 4.0].to_vec();
        let windows = |kind| Windows {
            kernel: [2, 2],
            strides: [1, 2],
            before: [0, 1],
            dilations: [1, 1],
            count: [1, 2],
            kind,
        };
        let lengths = [2, 3];
        let (out, places) = windows(Kind::Maximum).forward(&x, lengths);
        assert_eq!((out, &places), (vec![5.0, 5.0], &vec![3, 1]));
        let back = |kind| windows(kind).backward(&[1.0, 2.0], &places, lengths);
        assert_eq!(back(Kind::Maximum), [0.0, 2.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(windows(Kind::Mean).forward(&x, lengths).0, [3.0, 3.5]);
        assert_eq!(back(Kind::Mean), [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]);
        assert_eq!(windows(Kind::MeanWithBorder).forward(&x, lengths).0, [1.5, 3.5]);
        assert_eq!(back(Kind::MeanWithBorder), [0.25, 0.5, 0.5, 0.25, 0.5, 0.5]);
    }
}
