//! Brings a picture to a square of one size, in integers: exact, and the same on every machine.

/// A decoded picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// Row by row, all channels of a pixel together.
    pub pixels: Vec<u8>,
    /// How to turn it before it is seen, as EXIF numbers it: 1 to 8, 1 for not at all.
    pub orientation: u8,
}

/// The middle square of a picture, averaged down (or up) to `size` pixels in each direction, turned as it is seen, in this many
/// channels.
///
/// A pixel of the result is the mean of the area that it covers, in which parts of pixels count as parts, rounded to the nearest.
pub fn square(picture: &Picture, size: usize, channels: usize) -> Vec<u8> {
    let side = picture.width.min(picture.height);
    let (left, top) = ((picture.width - side) / 2, (picture.height - side) / 2);
    let shares = shares(side, size);
    let all = (side * side) as u64;
    let of = picture.channels;
    let mut small = vec![0; size * size * of];
    let mut sums = vec![0u64; size * of];
    for (y, rows) in shares.iter().enumerate() {
        sums.fill(0);
        for (row, share_down) in rows {
            let start = ((top + row) * picture.width + left) * of;
            let row = &picture.pixels[start..start + side * of];
            for (columns, sums) in shares.iter().zip(sums.chunks_exact_mut(of)) {
                for (column, share) in columns {
                    let pixel = &row[column * of..(column + 1) * of];
                    let share = share * share_down;
                    sums.iter_mut()
                        .zip(pixel)
                        .for_each(|(sum, value)| *sum += share * u64::from(*value));
                }
            }
        }
        let to = &mut small[y * size * of..(y + 1) * size * of];
        to.iter_mut()
            .zip(&sums)
            .for_each(|(to, sum)| *to = ((sum + all / 2) / all) as u8);
    }
    let turned = turned(&small, size, of, picture.orientation);
    in_channels(turned, of, channels)
}

/// For each of `size` places, the pixels that it covers of `side` ones, and the share of each; the shares sum to `side`.
fn shares(side: usize, size: usize) -> Vec<Vec<(usize, u64)>> {
    // In units of 1 / (side * size) of the whole, a pixel is `size` long and a place `side`.
    let of = |place: usize| {
        let (from, until) = (place * side, (place + 1) * side);
        let pixels = from / size..until.div_ceil(size);
        let share = |pixel: usize| until.min((pixel + 1) * size) - from.max(pixel * size);
        pixels.map(|pixel| (pixel, share(pixel) as u64)).collect()
    };
    (0..size).map(of).collect()
}

/// A square turned by an orientation of EXIF.
fn turned(square: &[u8], size: usize, channels: usize, orientation: u8) -> Vec<u8> {
    if !(2..=8).contains(&orientation) {
        return square.to_vec();
    }
    let last = size - 1;
    let from = |y: usize, x: usize| match orientation {
        2 => (y, last - x),
        3 => (last - y, last - x),
        4 => (last - y, x),
        5 => (x, y),
        6 => (last - x, y),
        7 => (last - x, last - y),
        _ => (x, last - y),
    };
    let places = (0..size).flat_map(|y| (0..size).map(move |x| from(y, x)));
    places
        .flat_map(|(y, x)| &square[(y * size + x) * channels..][..channels])
        .copied()
        .collect()
}

/// Grey from colours by the weights of BT.601, or the same value in each colour.
fn in_channels(pixels: Vec<u8>, from: usize, to: usize) -> Vec<u8> {
    match (from, to) {
        (3, 1) => {
            let grey = |[r, g, b]: &[u8; 3]| {
                ((299 * u32::from(*r) + 587 * u32::from(*g) + 114 * u32::from(*b) + 500) / 1000) as u8
            };
            pixels.as_chunks().0.iter().map(grey).collect()
        }
        (1, 3) => pixels.into_iter().flat_map(|grey| [grey; 3]).collect(),
        _ => pixels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grey(width: usize, height: usize, pixels: &[u8]) -> Picture {
        Picture {
            width,
            height,
            channels: 1,
            pixels: pixels.to_vec(),
            orientation: 1,
        }
    }

    #[test]
    fn areas_are_averaged_with_parts_of_pixels_as_parts() {
        let picture = grey(2, 2, &[10, 20, 30, 41]);
        assert_eq!(square(&picture, 1, 1), [25]);
        assert_eq!(square(&picture, 2, 1), [10, 20, 30, 41]);
        // Upwards: each pixel twice; of three places the middle one covers half of each.
        assert_eq!(square(&grey(1, 1, &[7]), 3, 1), [7; 9]);
        assert_eq!(square(&picture, 3, 1)[..3], [10, 15, 20]);
        // Three pixels to two places: one and a half each.
        let picture = grey(3, 3, &[0, 90, 30, 0, 90, 30, 0, 90, 30]);
        assert_eq!(square(&picture, 2, 1), [30, 50, 30, 50]);
    }

    #[test]
    fn the_middle_square_is_taken() {
        assert_eq!(square(&grey(4, 2, &[1, 2, 3, 4, 5, 6, 7, 8]), 2, 1), [2, 3, 6, 7]);
        assert_eq!(square(&grey(1, 3, &[1, 2, 3]), 1, 1), [2]);
    }

    /// A viewer shows these for each orientation of a picture whose rows are `12` and `34`.
    #[test]
    fn pictures_are_turned_as_cameras_say() {
        let seen = [
            (1, [1, 2, 3, 4]),
            (2, [2, 1, 4, 3]),
            (3, [4, 3, 2, 1]),
            (4, [3, 4, 1, 2]),
            (5, [1, 3, 2, 4]),
            (6, [3, 1, 4, 2]),
            (7, [4, 2, 3, 1]),
            (8, [2, 4, 1, 3]),
            (9, [1, 2, 3, 4]),
        ];
        for (orientation, pixels) in seen {
            let picture = Picture {
                orientation,
                ..grey(2, 2, &[1, 2, 3, 4])
            };
            assert_eq!(square(&picture, 2, 1), pixels, "{orientation}");
        }
    }

    #[test]
    fn colours_become_grey_and_back() {
        let picture = Picture {
            channels: 3,
            ..grey(1, 1, &[255, 0, 0])
        };
        assert_eq!(square(&picture, 1, 1), [76]);
        assert_eq!(square(&picture, 1, 3), [255, 0, 0]);
        assert_eq!(square(&grey(1, 1, &[9]), 1, 3), [9; 3]);
    }

    proptest! {
        #[test]
        fn a_plain_picture_stays_plain(side in 1usize..40, size in 1usize..40, value: u8) {
            let picture = grey(side, side, &vec![value; side * side]);
            prop_assert_eq!(square(&picture, size, 1), vec![value; size * size]);
        }

        #[test]
        fn shares_sum_to_the_whole(side in 1usize..100, size in 1usize..100) {
            let shares = shares(side, size);
            let mut of_pixels = vec![0; side];
            for place in &shares {
                prop_assert_eq!(place.iter().map(|(_, share)| *share as usize).sum::<usize>(), side);
                place.iter().for_each(|(pixel, share)| of_pixels[*pixel] += *share as usize);
            }
            prop_assert!(of_pixels.iter().all(|sum| *sum == size));
        }
    }
}
