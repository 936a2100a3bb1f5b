//! How an optimizer's vectors are stored between two steps: as `f32`, or in a quarter of the bytes.
//!
//! In 8 bits, each block of [`BLOCK`] elements has a scale, its largest magnitude, and each element a code for its
//! share of the scale. This is block-wise quantization with a map that is fine near zero, as in Dettmers et al.,
//! "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861), sections 2.1 and 2.2.
//!
//! The map here is the leading bits of an `f32`, three of them behind the leading one: 8 codes from each power of
//! two to the next. A vector with signs reaches down to 2^-16 of the scale. A second moment has no sign, so its map
//! reaches down to 2^-32. Code and value are a shift apart, so nothing searches a table.
//!
//! Neighbouring codes are an eighth apart, but a second moment moves by a thousandth in a step; rounded to nearest,
//! it would never move. So rounding is stochastic: a value goes up to the next code with the probability of its
//! distance from the lower one. The random number follows from place and step alone. The mean is exact, and all
//! machines get the same bits whichever parts of the vector they step first. A second moment that is not zero never
//! gets code 0: dividing by its root would move the parameter too far.

use crate::base::random::mix;
use crate::base::wide::wide;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Elements that share a scale. Small enough that one large value spoils few others, large enough that scales are a
/// sixty-fourth of the bytes.
pub const BLOCK: usize = 256;

/// The precision of an optimizer's vectors between two steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Moments {
    /// As computed: `f32`.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// 8 bits each, and a scale for each block of 256.
    #[serde(rename = "8bit")]
    EightBit,
}

impl Moments {
    /// All precisions.
    pub const ALL: [Self; 2] = [Self::F32, Self::EightBit];

    /// A vector may be stepped in parts that begin at multiples of this number of elements.
    pub fn grain(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::EightBit => BLOCK,
        }
    }

    /// Bytes of a vector of this many elements.
    pub fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32 => 4 * elements,
            Self::EightBit => elements + 4 * elements.div_ceil(BLOCK as u64),
        }
    }
}

impl fmt::Display for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::EightBit => "8bit",
        })
    }
}

/// This precision does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("moments cannot be kept as \"{0}\": use one of f32, 8bit")]
pub struct UnknownMoments(pub String);

impl FromStr for Moments {
    type Err = UnknownMoments;

    fn from_str(name: &str) -> Result<Self, UnknownMoments> {
        let found = Self::ALL.into_iter().find(|moments| moments.to_string() == name);
        found.ok_or_else(|| UnknownMoments(name.to_owned()))
    }
}

/// The range of a vector's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// Any value: a velocity, a first moment.
    Signed,
    /// Never negative, and the step divides by its root: a second moment.
    Squares,
}

/// One of an optimizer's vectors, zero before the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum Slot {
    /// As computed.
    F32(Vec<f32>),
    /// In 8 bits.
    Coded(Coded),
}

/// A vector in blocks of [`BLOCK`] elements, the last of which may be short.
#[derive(Clone, Debug, PartialEq)]
pub struct Coded {
    values: Values,
    /// The largest magnitude of each block.
    scales: Vec<f32>,
    codes: Vec<u8>,
}

impl Slot {
    /// A vector of zeros.
    pub fn zeros(moments: Moments, values: Values, len: usize) -> Self {
        match moments {
            Moments::F32 => Self::F32(vec![0.0; len]),
            Moments::EightBit => Self::Coded(Coded {
                values,
                scales: vec![0.0; len.div_ceil(BLOCK)],
                codes: vec![0; len],
            }),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Coded(coded) => coded.codes.len(),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The floats that store some of the elements: their values, or the scales of their blocks. A range that begins
    /// within a block includes that block's scale.
    pub fn floats(&self, range: Range<usize>) -> &[f32] {
        match self {
            Self::F32(values) => &values[range],
            Self::Coded(coded) => &coded.scales[blocks(range)],
        }
    }

    /// Mutable access to [`floats`](Self::floats).
    pub fn floats_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        self.parts_mut(range).0
    }

    /// The codes of some of the elements; empty for a vector without codes.
    pub fn codes(&self, range: Range<usize>) -> &[u8] {
        match self {
            Self::F32(_) => &[],
            Self::Coded(coded) => &coded.codes[range],
        }
    }

    /// Mutable access to floats and codes.
    pub fn parts_mut(&mut self, range: Range<usize>) -> (&mut [f32], &mut [u8]) {
        match self {
            Self::F32(values) => (&mut values[range], &mut []),
            Self::Coded(coded) => (&mut coded.scales[blocks(range.clone())], &mut coded.codes[range]),
        }
    }

    /// Some of its elements as a vector of their own. The range begins with a block.
    pub fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(values[range].to_vec()),
            Self::Coded(coded) => Self::Coded(Coded {
                values: coded.values,
                scales: coded.scales[blocks(range.clone())].to_vec(),
                codes: coded.codes[range].to_vec(),
            }),
        }
    }

    /// Some of its elements, to be stepped.
    ///
    /// # Panics
    /// If a range of a vector in 8 bits begins or ends within a block.
    pub fn view(&mut self, range: Range<usize>) -> SlotMut<'_> {
        let coded = match self {
            Self::F32(_) => None,
            Self::Coded(coded) => Some(coded.values),
        };
        let len = self.len();
        let (floats, codes) = self.parts_mut(0..len);
        let all = SlotMut { coded, floats, codes };
        all.split(range.start).1.split(range.len()).0
    }
}

/// The same elements of each vector, to be stepped, as [`Slot::view`].
pub(crate) fn views(slots: &mut [Slot], range: Range<usize>) -> Vec<SlotMut<'_>> {
    slots.iter_mut().map(|slot| slot.view(range.clone())).collect()
}

/// Some elements of one of an optimizer's vectors: of one in 8 bits whole blocks, but for the vector's last.
#[derive(Debug)]
pub struct SlotMut<'a> {
    /// Set for a vector in 8 bits.
    coded: Option<Values>,
    /// The values, or the scales of the blocks.
    floats: &'a mut [f32],
    codes: &'a mut [u8],
}

impl<'a> SlotMut<'a> {
    /// Splits off the first elements, up to this one.
    ///
    /// # Panics
    /// If a vector in 8 bits would be split within a block.
    pub(crate) fn split(self, at: usize) -> (Self, Self) {
        let coded = self.coded;
        let (floats, codes) = match coded {
            None => (at, 0),
            Some(_) => (at.div_ceil(BLOCK), at),
        };
        assert!(
            codes.is_multiple_of(BLOCK) || codes == self.codes.len(),
            "element {at} is within a block"
        );
        let (floats, codes) = (self.floats.split_at_mut(floats), self.codes.split_at_mut(codes));
        let of = |floats, codes| Self { coded, floats, codes };
        (of(floats.0, codes.0), of(floats.1, codes.1))
    }

    /// Some of the elements, as [`Slot::view`].
    pub(crate) fn part(&mut self, range: Range<usize>) -> SlotMut<'_> {
        let all = SlotMut {
            coded: self.coded,
            floats: self.floats,
            codes: self.codes,
        };
        all.split(range.start).1.split(range.len()).0
    }

    /// The floats that store them, and the codes, as [`Slot::parts_mut`].
    pub(crate) fn stored(&self) -> (&[f32], &[u8]) {
        (self.floats, self.codes)
    }

    /// Their values, of a vector that is not in 8 bits.
    pub(crate) fn floats(&mut self) -> &mut [f32] {
        assert_eq!(self.coded, None, "the vector is kept in 8 bits");
        self.floats
    }

    /// The range of the values, of a vector in 8 bits.
    fn values(&self) -> Values {
        self.coded.expect("the vector is kept in 8 bits")
    }
}

/// The most vectors of any optimizer.
const MOST_SLOTS: usize = 2;

/// Steps some elements of vectors in 8 bits for the `step`-th time, block by block. `slots` hold these elements alone.
/// `apply` gets the range of elements and their values in each vector, and changes these.
///
/// # Panics
/// If the elements do not begin at a block, or if a vector is not in 8 bits.
pub fn step_coded(
    step: u64,
    slots: &mut [SlotMut<'_>],
    range: Range<usize>,
    mut apply: impl FnMut(Range<usize>, &mut [&mut [f32]]),
) {
    assert!(
        range.start.is_multiple_of(BLOCK),
        "elements {range:?} are not whole blocks"
    );
    let mut room = [[0.0; BLOCK]; MOST_SLOTS];
    for block in blocks(range.clone()) {
        let at = block * BLOCK..range.end.min((block + 1) * BLOCK);
        let here = block - range.start / BLOCK;
        for (slot, values) in slots.iter_mut().zip(&mut room) {
            slot.decode(here, values);
        }
        let [first, second] = &mut room;
        let mut values = [&mut first[..at.len()], &mut second[..at.len()]];
        apply(at, &mut values[..slots.len()]);
        let noise = noise(step, block);
        for ((slot, values), shift) in slots.iter_mut().zip(&room).zip([0, 16]) {
            slot.encode(here, values, (&noise, shift));
        }
    }
}

fn blocks(range: Range<usize>) -> Range<usize> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

const SIGN: u32 = 1 << 31;
/// Low bits of an `f32` that a code drops.
const CUT: u32 = 20;
/// Codes for magnitudes.
const SIGNED: u32 = 1 << 7;
const SQUARES: u32 = 1 << 8;

/// The bits of the step of the map below its smallest value, where the largest of this many codes is 1.
const fn base(codes: u32) -> u32 {
    1f32.to_bits() - ((codes - 1) << CUT)
}

/// One 32-bit number for each element of a block. They follow from the step and the block's place alone. The
/// finaliser is that of MurmurHash3.
fn noise(step: u64, block: usize) -> [u32; BLOCK] {
    let seed = mix(mix(step).wrapping_add(block as u64)) as u32;
    let mut all = [0; BLOCK];
    wide!({
        for (lane, noise) in (0u32..).zip(&mut all) {
            let mut h = seed.wrapping_add(lane.wrapping_mul(0x9e37_79b9));
            h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
            h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
            *noise = h ^ (h >> 16);
        }
    });
    all
}

impl SlotMut<'_> {
    /// The values of a block, with zeros behind the vector's end.
    fn decode(&self, block: usize, out: &mut [f32; BLOCK]) {
        let codes = &self.codes[self.range(block)];
        let scale = self.floats[block];
        match <&[u8; BLOCK]>::try_from(codes) {
            Ok(codes) => self.decode_all(codes, scale, out),
            Err(_) => {
                let mut padded = [0; BLOCK];
                padded[..codes.len()].copy_from_slice(codes);
                self.decode_all(&padded, scale, out);
            }
        }
    }

    fn decode_all(&self, codes: &[u8; BLOCK], scale: f32, out: &mut [f32; BLOCK]) {
        match self.values() {
            Values::Signed => wide!({
                for (out, code) in out.iter_mut().zip(codes) {
                    let sign = u32::from(code & 0x80) << 24;
                    *out = f32::from_bits(magnitude::<SIGNED>((code & 0x7f).into()) | sign) * scale;
                }
            }),
            Values::Squares => wide!({
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = f32::from_bits(magnitude::<SQUARES>((*code).into())) * scale;
                }
            }),
        }
    }

    /// Stores the values of a block; those behind the vector's end are ignored. Uses 16 bits of each noise number,
    /// from `shift` on.
    fn encode(&mut self, block: usize, values: &[f32; BLOCK], noise: (&[u32; BLOCK], u32)) {
        let range = self.range(block);
        let mut codes = [0; BLOCK];
        let values = if range.len() == BLOCK {
            *values
        } else {
            let mut padded = [0.0; BLOCK];
            padded[..range.len()].copy_from_slice(&values[..range.len()]);
            padded
        };
        self.floats[block] = match self.values() {
            Values::Signed => encode::<SIGNED>(&values, noise, &mut codes),
            Values::Squares => encode::<SQUARES>(&values, noise, &mut codes),
        };
        self.codes[range.clone()].copy_from_slice(&codes[..range.len()]);
    }

    fn range(&self, block: usize) -> Range<usize> {
        let start = block * BLOCK;
        start..self.codes.len().min(start + BLOCK)
    }
}

/// The bits of a code's value.
#[inline(always)]
fn magnitude<const CODES: u32>(code: u32) -> u32 {
    if code == 0 { 0 } else { (code << CUT) + base(CODES) }
}

/// The codes of a block's values, and its scale.
fn encode<const CODES: u32>(
    values: &[f32; BLOCK],
    (noise, shift): (&[u32; BLOCK], u32),
    codes: &mut [u8; BLOCK],
) -> f32 {
    wide!({
        // As integers, the bits of magnitudes are ordered like the magnitudes. A value that is not finite counts as
        // the largest number.
        let bits = |x: f32| (x.to_bits() & !SIGN).min(f32::MAX.to_bits());
        let largest = values.iter().fold(0, |max, x| max.max(bits(*x)));
        let scale = f32::from_bits(largest);
        if largest == 0 {
            codes.fill(0);
        } else {
            for ((code, x), noise) in codes.iter_mut().zip(values).zip(noise) {
                // Between two codes bits grow linearly with values, so this rounds up with the right probability.
                let up = ((noise >> shift) & 0xffff) << (CUT - 16) | 1 << (CUT - 17);
                let share = (f32::from_bits(bits(*x)) / scale).to_bits() + up;
                let magnitude = (share.max(base(CODES)) - base(CODES)) >> CUT;
                *code = match CODES {
                    SIGNED => magnitude | (x.to_bits() & SIGN) >> 24,
                    _ => magnitude.max(u32::from(bits(*x) > 0)),
                } as u8;
            }
        }
        scale
    })
}

#[cfg(test)]
mod tests;
