//! Codecs: how a run of `f32` is encoded on the wire.
//!
//! The decoded values are what counts: every peer that decodes the same bytes gets the same bits, on any machine.
//! Equal values have equal bytes. Everything is little-endian.
//!
//! This module knows neither who sends what to whom, nor how bytes are framed.

mod blocks;
mod f16;
mod f32;
mod int4;
mod int8;
mod quantized;
mod sign;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use quantized::Quantized;
use sign::Sign;

type Int8 = Quantized<256, int8::Int8>;
type Int4 = Quantized<32, int4::Int4>;

/// How a run of `f32` is encoded. Written and read as `f32`, `f16`, `int8`, `int4` and `sign`.
///
/// A run may hold infinities and NaNs. They arrive as such (a NaN as some NaN; integers and signs turn the whole
/// block into NaNs), so that a check after the journey still finds them. Hostile bytes can decode to them as well:
/// [`is_summable`](Codec::is_summable) detects that.
///
/// Speed on one core of a 2.3 GHz Sapphire Rapids Xeon, in GB of `f32` per second for runs of 64 KiB, from `cargo
/// run --release -p annulus-core --example codec_rate` (and without AVX2, at the baseline of x86-64):
///
/// | | encode | decode | decode_add |
/// |---|---|---|---|
/// | `f32` | 38 | 40 | 32 |
/// | `f16` | 12.6 (5.3) | 15.4 (3.8) | 14.6 (3.6) |
///
/// and on one of a busy 2.8 GHz Ice Lake Xeon:
///
/// | | encode | decode | decode_add |
/// |---|---|---|---|
/// | `int8` | 14.7 | 24.2 | 11.4 |
/// | `int4` | 7.6 | 11.5 | 9.5 |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// As it is: 4 bytes per element.
    F32,
    /// Half precision around one exponent shared by the run: 2 bytes per element and 2 for the exponent.
    ///
    /// The error of an element is at most 2^-11 of its magnitude or 2^-39 of the run's largest, whichever is more; so
    /// neither large nor small gradients need a loss scale.
    F16,
    /// Integers up to 127 and a scale for each 256 of them: 1.008 bytes per element.
    ///
    /// The error of an element is at most 1/254 of the largest of its block, half of the scale.
    Int8,
    /// Integers up to 7 and a scale for each 64 of them: 0.531 bytes per element.
    ///
    /// The error of an element is at most a fourteenth of the largest of its block, half of the scale.
    Int4,
    /// Signs, and the mean magnitude of each 256 of them: 0.133 bytes per element.
    ///
    /// Decoding loses each element's own magnitude, so a member adds its rounding errors to its next contribution.
    /// Meant for local steps: nano reaches a loss of 2.2 after 345 local batches, where `Int4` needs 333. With the
    /// gradients of every batch it has 2.59 after 500, where `Int4` needs 179.
    Sign,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Int8, Self::Int4, Self::Sign];

    /// Largest magnitude of an element that may enter a sum, 2^119. The most members that a run can have add up to
    /// 2^125.
    pub const LARGEST: f32 = f32::from_bits((119 + 127) << 23);

    /// Whether it may carry activations and their gradients. Fewer than eight bits lose too much of them.
    pub fn carries_activations(self) -> bool {
        !matches!(self, Self::Int4 | Self::Sign)
    }

    /// Whether each member adds its rounding errors to its next contribution. `Sign` needs that, since all its
    /// magnitudes are means; so does `Int4`, whose errors are as large as many gradients. The sums of local steps
    /// are so large that `Int4` needs no feedback for them.
    pub fn has_feedback(self, local_steps: bool) -> bool {
        self == Self::Sign || self == Self::Int4 && !local_steps
    }

    /// The codec of weight updates where sums use this one. Nothing makes up for an update's rounding, so 4 bits
    /// would lose too much.
    pub(crate) fn of_updates(self) -> Self {
        match self {
            Self::Int4 => Self::Int8,
            codec => codec,
        }
    }

    /// Whether bytes from elsewhere can be a run of `elements` values and a sum of `contributions`. Then they can
    /// be decoded, and stay summable when more contributions are added. So a member that adds to a sum is never
    /// blamed for one that was too large before.
    ///
    /// Rounding never takes such a sum above this limit: a small multiple of a power of two is exact in `f32` and
    /// `f16`, and integers and signs never decode to more than was encoded.
    pub fn is_summable(self, bytes: &[u8], elements: usize, contributions: usize) -> bool {
        let most = contributions as f32 * Self::LARGEST;
        let at_most = |largest| largest <= most;
        let fits = self.check_length(bytes, elements).is_ok();
        fits && match self {
            Self::F32 => f32::is_summable(bytes, most),
            Self::F16 => f16::is_summable(bytes, most),
            Self::Int8 => blocks::check::<_, Int8>(bytes, elements).is_ok_and(at_most),
            Self::Int4 => blocks::check::<_, Int4>(bytes, elements).is_ok_and(at_most),
            Self::Sign => blocks::check::<_, Sign>(bytes, elements).is_ok_and(at_most),
        }
    }

    /// Whether elements are encoded as they lie in memory.
    pub(crate) fn keeps_memory(self) -> bool {
        cfg!(target_endian = "little") && self == Self::F32
    }

    /// The elements of an encoded run, if they lie in memory as they are.
    pub(crate) fn as_it_lies(self, bytes: &[u8]) -> Option<&[f32]> {
        let cast = || bytemuck::try_cast_slice(bytes).ok();
        self.keeps_memory().then(cast).flatten()
    }

    /// Bytes of an encoded run of this many elements.
    pub fn encoded_len(self, elements: usize) -> usize {
        match self {
            Self::F32 => f32::encoded_len(elements),
            Self::F16 => f16::encoded_len(elements),
            Self::Int8 => blocks::encoded_len::<_, Int8>(elements),
            Self::Int4 => blocks::encoded_len::<_, Int4>(elements),
            Self::Sign => blocks::encoded_len::<_, Sign>(elements),
        }
    }

    /// Appends the run's [`encoded_len`](Self::encoded_len) bytes to `out`.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => f32::encode(values, out),
            Self::F16 => f16::encode(values, out),
            Self::Int8 => blocks::encode::<_, Int8>(values, out),
            Self::Int4 => blocks::encode::<_, Int4>(values, out),
            Self::Sign => blocks::encode::<_, Sign>(values, out),
        }
    }

    /// Decodes a run that fills `out`. On an error `out` is as it was.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        self.check_length(bytes, out.len())?;
        match self {
            Self::F32 => f32::decode(bytes, out),
            Self::F16 => f16::decode(bytes, out)?,
            Self::Int8 => blocks::decode::<_, Int8>(bytes, out)?,
            Self::Int4 => blocks::decode::<_, Int4>(bytes, out)?,
            Self::Sign => blocks::decode::<_, Sign>(bytes, out)?,
        }
        Ok(())
    }

    /// `out = decoded + addend`, in this order: a hop of a reduce-scatter, where the partial sum that travelled meets
    /// this member's own share. On an error `out` is as it was.
    pub fn decode_add(self, bytes: &[u8], addend: &[f32], out: &mut [f32]) -> Result<(), CodecError> {
        self.check_length(bytes, out.len())?;
        if addend.len() != out.len() {
            return Err(CodecError::Addend {
                expected: out.len(),
                got: addend.len(),
            });
        }
        match self {
            Self::F32 => f32::decode_add(bytes, addend, out),
            Self::F16 => f16::decode_add(bytes, addend, out)?,
            Self::Int8 => blocks::decode_add::<_, Int8>(bytes, addend, out)?,
            Self::Int4 => blocks::decode_add::<_, Int4>(bytes, addend, out)?,
            Self::Sign => blocks::decode_add::<_, Sign>(bytes, addend, out)?,
        }
        Ok(())
    }

    /// Appends to `out` the encoded sum of a run and `addend`: what [`decode_add`](Self::decode_add) and then
    /// [`encode`](Self::encode) give, with less memory touched. `sum` is room to work in. On an error nothing is appended.
    pub fn add_encode(
        self,
        bytes: &[u8],
        addend: &[f32],
        sum: &mut Vec<f32>,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        self.check_length(bytes, addend.len())?;
        let start = out.len();
        for (elements, encoded) in self.parts(addend.len()) {
            sum.resize(elements.len(), 0.0);
            if let Err(error) = self.decode_add(&bytes[encoded], &addend[elements], sum) {
                out.truncate(start);
                return Err(error);
            }
            self.encode(sum, out);
        }
        Ok(())
    }

    /// Divides a run into parts that can be encoded one after the other and together equal the encoded run: their
    /// elements, and their bytes. Where elements are encoded independently, a part fits the first cache, in whole
    /// blocks. A run without elements is one part.
    pub(crate) fn parts(self, elements: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let at_once = match self {
            Self::F32 | Self::Int8 | Self::Int4 | Self::Sign => 1024,
            Self::F16 => elements.max(1),
        };
        let width = self.encoded_len(at_once);
        let firsts = (0..elements.max(1)).step_by(at_once).zip((0..).step_by(width));
        firsts.map(move |(first, start)| {
            let part = first..elements.min(first + at_once);
            let end = start + self.encoded_len(part.len());
            (part, start..end)
        })
    }

    fn check_length(self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        let expected = self.encoded_len(elements);
        if bytes.len() == expected {
            Ok(())
        } else {
            Err(CodecError::Length {
                expected,
                got: bytes.len(),
            })
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Sign => "sign",
        })
    }
}

impl FromStr for Codec {
    type Err = CodecError;

    fn from_str(name: &str) -> Result<Self, CodecError> {
        Self::ALL
            .into_iter()
            .find(|codec| codec.to_string() == name)
            .ok_or_else(|| CodecError::UnknownName(name.to_owned()))
    }
}

/// Why a run could not be decoded, or a codec not named. Nothing was written when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Not the bytes of a run of that many elements.
    #[error("an encoded run has {got} bytes instead of {expected}")]
    Length {
        /// Bytes that the run takes.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// The addend is not as long as the run.
    #[error("a run of {expected} elements cannot be added to {got}")]
    Addend {
        /// Elements of the run.
        expected: usize,
        /// Elements of the addend.
        got: usize,
    },
    /// A shared exponent that no `f32` needs.
    #[error("the shared exponent {0} belongs to no f32")]
    Exponent(i16),
    /// A scale that no block of values is encoded with.
    #[error("no block of f32 is encoded with the scale {0:#06x}")]
    Scale(u16),
    /// Codes that no block of values is encoded with.
    #[error("no block of f32 is encoded with these codes: the largest does not fit the scale")]
    Codes,
    /// No codec has this name.
    #[error("no codec is called \"{0}\": use one of f32, f16, int8, int4, sign")]
    UnknownName(String),
}

#[cfg(test)]
mod tests;
