//! Varies training pictures: flips and shifts, as a seed says.

use serde::{Deserialize, Serialize};

/// How training pictures are varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Augment {
    /// Colour pictures are flipped and shifted, grey ones are shifted: a mirrored letter is none.
    #[serde(rename = "auto")]
    Auto,
    /// Not at all.
    #[serde(rename = "off")]
    Off,
    /// Half of them are flipped left to right.
    #[serde(rename = "flip")]
    Flip,
    /// They are shifted.
    #[serde(rename = "crop")]
    Crop,
    /// Both.
    #[serde(rename = "flip,crop")]
    FlipCrop,
}

/// A variation of one picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variation {
    /// Whether left and right are exchanged.
    pub flipped: bool,
    /// Rows down and columns to the right from which it is taken.
    pub shift: (isize, isize),
}

impl Augment {
    /// Whether pictures of this many channels are flipped, and whether they are shifted.
    pub(crate) fn does(self, channels: usize) -> (bool, bool) {
        match self {
            Self::Auto => (channels == 3, true),
            Self::Off => (false, false),
            Self::Flip => (true, false),
            Self::Crop => (false, true),
            Self::FlipCrop => (true, true),
        }
    }

    /// The most pixels that a picture of this size is shifted by: an eighth, as 4 of 32 is usual on CIFAR.
    pub(crate) fn reach(size: usize) -> usize {
        size / 8
    }

    /// The variation that a seed picks, for pictures of this size and this many channels.
    pub(crate) fn pick(self, seed: u64, size: usize, channels: usize) -> Variation {
        let (flips, shifts) = self.does(channels);
        let reach = Self::reach(size);
        let shift = |bits: u64| (bits as u32 as usize % (2 * reach + 1)) as isize - reach as isize;
        Variation {
            flipped: flips && seed & 1 == 1,
            shift: match shifts {
                true => (shift(seed >> 1 & 0x7fff_ffff), shift(seed >> 32)),
                false => (0, 0),
            },
        }
    }
}

impl Variation {
    /// Calls `take` with the place of each pixel of the varied picture, row by row. Pixels beyond the border are those at it.
    pub(crate) fn places(self, size: usize, mut take: impl FnMut(usize)) {
        let last = size as isize - 1;
        let (down, right) = self.shift;
        for y in 0..size as isize {
            let row = (y + down).clamp(0, last) * size as isize;
            for x in 0..size as isize {
                let x = if self.flipped { last - x } else { x };
                take((row + (x + right).clamp(0, last)) as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn places(variation: Variation, size: usize) -> Vec<usize> {
        let mut places = Vec::new();
        variation.places(size, |place| places.push(place));
        places
    }

    #[test]
    fn a_picture_is_flipped_and_shifted_with_its_border_repeated() {
        let plain = Variation::default();
        assert_eq!(places(plain, 2), [0, 1, 2, 3]);
        let flipped = Variation {
            flipped: true,
            ..plain
        };
        assert_eq!(places(flipped, 2), [1, 0, 3, 2]);
        let shift = (1, -1);
        assert_eq!(
            places(Variation { shift, ..plain }, 3),
            [3, 3, 4, 6, 6, 7, 6, 6, 7]
        );
    }

    #[test]
    fn a_seed_picks_one_variation_and_seeds_pick_all() {
        let pick = |augment: Augment, seed| augment.pick(seed, 16, 3);
        let seeds = || (0..4000u64).map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let all: HashSet<(bool, (isize, isize))> = seeds()
            .map(|seed| {
                let Variation { flipped, shift } = pick(Augment::FlipCrop, seed);
                (flipped, shift)
            })
            .collect();
        assert_eq!(all.len(), 2 * 5 * 5);
        assert!(
            all.iter()
                .all(|(_, (down, right))| down.abs() <= 2 && right.abs() <= 2)
        );
        for seed in seeds().take(9) {
            assert_eq!(pick(Augment::FlipCrop, seed), pick(Augment::FlipCrop, seed));
            assert_eq!(pick(Augment::Off, seed), Variation::default());
            assert_eq!(pick(Augment::Flip, seed).shift, (0, 0));
            assert!(!Augment::Auto.pick(seed, 16, 1).flipped);
        }
    }
}
