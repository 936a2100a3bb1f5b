//! Draws images of digits, for training without a download.
//!
//! Each sample is a stroke skeleton of one of the ten digits. It is bent, slanted, stretched, shifted, drawn with a pen
//! of random width, crossed by stray strokes and covered with noise. Sample `i` depends only on the seed and `i`, and
//! has the same bits on every platform: the arithmetic is IEEE's basic operations in a fixed order, and sine and cosine
//! come from the crate `libm`.

use super::{Images, Split};
use annulus_core::random::SplitMix;

/// Rows and columns of an image, as in MNIST.
pub const SIDE: usize = 28;

/// Draws `train` images to train on, and the `test` images that follow them.
///
/// Labels come in the order 0, 1, ... 9, 0, 1, ...
pub fn draw(seed: u64, train: usize, test: usize) -> Split {
    let draw_range = |from: usize, count: usize| {
        let mut pixels = Vec::with_capacity(count * SIDE * SIDE);
        let mut labels = Vec::with_capacity(count);
        for index in from..from + count {
            let (image, label) = draw_one(seed, index as u64);
            pixels.extend_from_slice(&image);
            labels.push(label);
        }
        Images {
            pixels,
            labels,
            rows: SIDE,
            columns: SIDE,
        }
    };
    Split {
        train: draw_range(0, train),
        test: draw_range(train, test),
    }
}

/// Draws sample `index`: its pixels in row-major order, and its label.
pub fn draw_one(seed: u64, index: u64) -> ([u8; SIDE * SIDE], u8) {
    let label = (index % 10) as u8;
    let mut rng = Rng::new(seed, index);
    let mut strokes = skeleton(label, &mut rng);
    let warp = Warp::new(&mut rng);
    for point in strokes.iter_mut().flatten() {
        *point = warp.apply(*point);
    }
    let mut canvas = Canvas::default();
    let pen = rng.between(0.7, 1.8);
    for stroke in &strokes {
        canvas.line(stroke, pen, 1.0);
    }
    for _ in 0..rng.below(STRAY_STROKES + 1) {
        let from = [rng.between(0.0, 28.0), rng.between(0.0, 28.0)];
        let to = [from[0] + rng.between(-6.0, 6.0), from[1] + rng.between(-6.0, 6.0)];
        let (pen, ink) = (rng.between(0.4, 1.0), rng.between(0.4, 1.0));
        canvas.line(&[from, to], pen, ink);
    }
    (canvas.develop(&mut rng), label)
}

/// Most stray strokes on an image.
const STRAY_STROKES: u32 = 2;

/// A point, as x to the right and y down. In a skeleton the digit fills the unit square.
type Point = [f32; 2];

/// The strokes of a digit, each a chain of points, with some variation in how it is written.
fn skeleton(label: u8, rng: &mut Rng) -> Vec<Vec<Point>> {
    let mut strokes: Vec<Vec<Point>> = match label {
        0 => vec![arc([0.5, 0.5], [rng.between(0.2, 0.36), 0.45], 0.0, 1.0)],
        1 => {
            let mut strokes = vec![vec![[0.5, 0.05], [0.5, 0.95]]];
            if rng.chance(0.6) {
                strokes.push(vec![[0.32, 0.24], [0.5, 0.05]]);
            }
            if rng.chance(0.3) {
                strokes.push(vec![[0.28, 0.95], [0.72, 0.95]]);
            }
            strokes
        }
        2 => {
            let mut stroke = arc([0.5, 0.3], [0.28, 0.25], 0.5, 1.1);
            stroke.extend([[0.2, 0.95], [0.82, rng.between(0.85, 0.97)]]);
            vec![stroke]
        }
        3 => vec![
            arc([0.45, 0.28], [0.27, 0.23], 0.6, 1.25),
            arc([0.45, 0.72], [0.3, 0.24], 0.75, 1.4),
        ],
        4 => {
            let top = if rng.chance(0.5) { 0.05 } else { 0.35 };
            let bar = rng.between(0.55, 0.7);
            vec![
                vec![[0.6, 0.05], [0.15, bar], [0.86, bar]],
                vec![[0.64, top], [0.64, 0.95]],
            ]
        }
        5 => {
            let mut stroke = vec![[0.78, 0.06], [0.28, 0.06], [0.25, 0.46]];
            stroke.extend(arc([0.47, 0.68], [0.3, 0.27], 0.62, 1.4));
            vec![stroke]
        }
        6 => vec![
            arc([0.75, 0.68], [0.53, 0.63], 0.75, 0.5),
            arc([0.5, 0.7], [0.28, rng.between(0.2, 0.27)], 0.5, 1.5),
        ],
        7 => {
            let mut strokes = vec![vec![[0.2, 0.07], [0.8, 0.07], [0.4, 0.95]]];
            if rng.chance(0.4) {
                strokes.push(vec![[0.38, 0.5], [0.74, 0.5]]);
            }
            strokes
        }
        8 => vec![
            arc([0.5, 0.27], [rng.between(0.17, 0.25), 0.21], 0.0, 1.0),
            arc([0.5, 0.72], [rng.between(0.2, 0.3), 0.24], 0.0, 1.0),
        ],
        _ => {
            let ring = arc([0.5, 0.3], [0.26, rng.between(0.2, 0.26)], 0.0, 1.0);
            let tail = if rng.chance(0.5) {
                vec![[0.76, 0.3], [rng.between(0.6, 0.76), 0.95]]
            } else {
                arc([0.3, 0.3], [0.46, 0.65], 0.0, 0.22)
            };
            vec![ring, tail]
        }
    };
    for point in strokes.iter_mut().flatten() {
        for coordinate in point {
            *coordinate += rng.between(-0.025, 0.025);
        }
    }
    strokes
}

/// An arc of an ellipse from one angle to another, in turns: 0 is right, 0.25 down, 0.5 left.
fn arc(center: Point, radii: Point, from: f32, to: f32) -> Vec<Point> {
    let pieces = (16.0 * (to - from).abs()) as usize + 2;
    (0..=pieces)
        .map(|piece| {
            let turn = from + (to - from) * piece as f32 / pieces as f32;
            let (sin, cos) = sin_cos(turn);
            [center[0] + radii[0] * cos, center[1] + radii[1] * sin]
        })
        .collect()
}

fn sin_cos(turns: f32) -> (f32, f32) {
    let angle = turns * std::f32::consts::TAU;
    (libm::sinf(angle), libm::cosf(angle))
}

/// Maps a skeleton to the image: an affine map, then two sine waves per coordinate that bend it.
struct Warp {
    matrix: [Point; 2],
    shift: Point,
    waves: [[Wave; 2]; 2],
}

struct Wave {
    amplitude: f32,
    frequency: Point,
    phase: f32,
}

impl Warp {
    fn new(rng: &mut Rng) -> Self {
        let (sin, cos) = sin_cos(rng.between(-0.04, 0.04));
        let shear = rng.between(-0.3, 0.3);
        let size = rng.between(16.0, 20.0);
        let stretch = [size * rng.between(0.75, 1.1), size];
        let mut wave = || Wave {
            amplitude: rng.between(0.0, 0.7),
            frequency: [rng.between(-0.07, 0.07), rng.between(-0.07, 0.07)],
            phase: rng.unit(),
        };
        let waves = [[wave(), wave()], [wave(), wave()]];
        Self {
            matrix: [
                [cos * stretch[0], (cos * shear - sin) * stretch[1]],
                [sin * stretch[0], (sin * shear + cos) * stretch[1]],
            ],
            shift: [rng.between(-2.5, 2.5), rng.between(-2.5, 2.5)],
            waves,
        }
    }

    fn apply(&self, point: Point) -> Point {
        let [x, y] = [point[0] - 0.5, point[1] - 0.5];
        let middle = SIDE as f32 / 2.0;
        let flat: Point = std::array::from_fn(|axis| {
            self.matrix[axis][0] * x + self.matrix[axis][1] * y + self.shift[axis] + middle
        });
        std::array::from_fn(|axis| {
            let mut bent = flat[axis];
            for wave in &self.waves[axis] {
                let [fx, fy] = wave.frequency;
                let turns = flat[0] * fx + flat[1] * fy + wave.phase;
                bent += wave.amplitude * sin_cos(turns).0;
            }
            bent
        })
    }
}

/// How much ink covers each pixel, 0 to 1.
struct Canvas([f32; SIDE * SIDE]);

impl Default for Canvas {
    fn default() -> Self {
        Self([0.0; SIDE * SIDE])
    }
}

impl Canvas {
    /// Draws a chain of points with a round pen of radius `pen`, in pixels.
    fn line(&mut self, chain: &[Point], pen: f32, ink: f32) {
        for ends in chain.windows(2) {
            self.segment(ends[0], ends[1], pen, ink);
        }
    }

    fn segment(&mut self, from: Point, to: Point, pen: f32, ink: f32) {
        let reach = pen + 1.0;
        let [columns, rows] = [0, 1].map(|axis| {
            let low = from[axis].min(to[axis]) - reach;
            let high = from[axis].max(to[axis]) + reach;
            // A cast saturates, so everything outside the image is cut off.
            low as usize..((high + 1.0) as usize).min(SIDE)
        });
        let [dx, dy] = [to[0] - from[0], to[1] - from[1]];
        let length_squared = (dx * dx + dy * dy).max(1e-12);
        for row in rows {
            for column in columns.clone() {
                // The point of the segment nearest to the pixel's centre.
                let [x, y] = [column as f32 + 0.5 - from[0], row as f32 + 0.5 - from[1]];
                let along = ((x * dx + y * dy) / length_squared).clamp(0.0, 1.0);
                let [x, y] = [x - along * dx, y - along * dy];
                let distance = (x * x + y * y).sqrt();
                let cover = (pen + 0.5 - distance).clamp(0.0, 1.0) * ink;
                let pixel = &mut self.0[row * SIDE + column];
                *pixel = pixel.max(cover);
            }
        }
    }

    /// The image as bytes, with a random contrast and noise.
    fn develop(&self, rng: &mut Rng) -> [u8; SIDE * SIDE] {
        let contrast = rng.between(0.6, 1.0);
        let noise = rng.between(0.0, 0.25);
        self.0.map(|cover| {
            let value = cover * contrast + noise * (rng.unit() - 0.5);
            (value.clamp(0.0, 1.0) * 255.0 + 0.5) as u8
        })
    }
}

/// The random numbers for one picture.
struct Rng(SplitMix);

impl Rng {
    fn new(seed: u64, index: u64) -> Self {
        let mut of_seed = SplitMix(seed);
        let mut rng = SplitMix(of_seed.bits() ^ index);
        // Scrambles the seed once more, so that neighbouring indices share no part of their sequences.
        rng.0 = rng.bits();
        Self(rng)
    }

    /// At least 0 and below 1; every value is a multiple of 2^-24 and so exact in `f32`.
    fn unit(&mut self) -> f32 {
        (self.0.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    fn chance(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    fn below(&mut self, end: u32) -> u32 {
        (self.unit() * end as f32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_are_the_same_everywhere_and_for_ever() {
        let split = draw(1, 300, 100);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&split.train.pixels).update(&split.test.pixels);
        let pinned = "73bba888c7d6d762fe98d24f97c16f7443a509b25b5a6215438453f0ee450d8f";
        assert_eq!(hasher.finalize().to_hex().as_str(), pinned);
    }

    #[test]
    fn a_sample_depends_on_its_index_and_seed_alone() {
        let split = draw(7, 20, 10);
        for index in 0..20 {
            let (pixels, label) = draw_one(7, index as u64);
            assert_eq!(split.train.pixels_of(index), pixels);
            assert_eq!(split.train.labels[index], label);
        }
        assert_eq!(split.test.pixels_of(3), draw_one(7, 23).0);
        assert_ne!(draw_one(7, 3).0, draw_one(8, 3).0);
        assert_ne!(draw_one(7, 3).0, draw_one(7, 13).0);
    }

    #[test]
    fn every_picture_shows_something_on_a_dark_ground() {
        let split = draw(1, 2_000, 1);
        for index in 0..split.train.len() {
            let pixels = split.train.pixels_of(index);
            let bright = pixels.iter().filter(|pixel| **pixel > 100).count();
            assert!(
                (15..500).contains(&bright),
                "image {index}: {bright} bright pixels"
            );
        }
    }
}
