//! Weights in blocks of 32 numbers with one scale, bit for bit as GGML's types Q8_0 and Q4_0 have them, so that a GGUF file
//! takes a copy.
//!
//! A block is a scale as a half, followed by 32 bytes (Q8_0) or 16 (Q4_0). The definitions are `block_q8_0` and `block_q4_0`
//! in `ggml-common.h`, and `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref` in `ggml-quants.c` of ggml-org/llama.cpp.

use std::fmt;
use std::str::FromStr;

use burn::tensor::f16;

/// Numbers that share a scale.
const LENGTH: usize = 32;

/// A kind of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// 8 bits for each number, and a scale: 8.5 bits.
    Q8_0,
    /// 4 bits for each number, and a scale: 4.5 bits.
    Q4_0,
}

impl Blocks {
    /// The blocks with this many bits for a number, if there are such.
    pub fn of_bits(bits: u32) -> Option<Self> {
        match bits {
            8 => Some(Self::Q8_0),
            4 => Some(Self::Q4_0),
            _ => None,
        }
    }

    /// As files name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => 2 + LENGTH,
            Self::Q4_0 => 2 + LENGTH / 2,
        }
    }

    /// The blocks of some numbers; zeros fill the last one. None if a number is not finite or too large for a scale.
    pub fn pack(self, values: &[f32]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(values.len().div_ceil(LENGTH) * self.bytes());
        for part in values.chunks(LENGTH) {
            let mut block = [0.0; LENGTH];
            block[..part.len()].copy_from_slice(part);
            if !block.iter().all(|value| value.is_finite()) {
                return None;
            }
            let scale = self.scale(&block);
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            let half = f16::from_f32(scale);
            if !half.is_finite() {
                return None;
            }
            out.extend(half.to_le_bytes());
            match self {
                Self::Q8_0 => out.extend(block.map(|value| (value * inverse).round() as i8 as u8)),
                Self::Q4_0 => {
                    // Rounds up from the middle, by cutting off.
                    let level = |value: f32| ((value * inverse + 8.5) as i8 as u8).min(15);
                    let (low, high) = block.split_at(LENGTH / 2);
                    out.extend(
                        low.iter()
                            .zip(high)
                            .map(|(low, high)| level(*low) | level(*high) << 4),
                    );
                }
            }
        }
        Some(out)
    }

    fn scale(self, block: &[f32; LENGTH]) -> f32 {
        match self {
            Self::Q8_0 => block.iter().fold(0.0f32, |most, value| most.max(value.abs())) / 127.0,
            Self::Q4_0 => {
                // The number farthest from 0 becomes -8, with whatever sign: the other side reaches only to 7.
                let farther = |most: f32, value: &f32| if value.abs() > most.abs() { *value } else { most };
                block.iter().fold(0.0f32, farther) / -8.0
            }
        }
    }

    /// The first `count` numbers of some blocks.
    pub fn unpack(self, blocks: &[u8], count: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(count.next_multiple_of(LENGTH));
        for block in blocks.chunks_exact(self.bytes()) {
            let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
            let levels = &block[2..];
            match self {
                Self::Q8_0 => out.extend(levels.iter().map(|level| f32::from(*level as i8) * scale)),
                Self::Q4_0 => {
                    let number = |level: u8| (f32::from(level) - 8.0) * scale;
                    out.extend(levels.iter().map(|levels| number(levels & 15)));
                    out.extend(levels.iter().map(|levels| number(levels >> 4)));
                }
            }
        }
        out.truncate(count);
        out
    }
}

/// How a tensor lies in blocks. A file says it in its metadata, as `q8_0 columns 784 128` under `blocks.NAME`, and has the
/// blocks as a tensor of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The kind of blocks.
    pub blocks: Blocks,
    /// Whether a matrix is packed column by column. The numbers of a block are then those that one output sums up, for a
    /// matrix `[inputs, outputs]`, as GGML has them.
    pub columns: bool,
    /// The tensor's own shape.
    pub shape: Vec<usize>,
}

impl Packing {
    /// The metadata's key for a tensor's packing.
    pub fn key(name: &str) -> String {
        format!("blocks.{name}")
    }

    /// The blocks of a tensor; none if a number is not finite or too large for a scale.
    pub fn pack(&self, values: &[f32]) -> Option<Vec<u8>> {
        match (self.columns, &self.shape[..]) {
            (true, [rows, columns]) => self.blocks.pack(&transposed(values, (*rows, *columns))),
            _ => self.blocks.pack(values),
        }
    }

    /// The tensor in these blocks, row by row.
    ///
    /// # Errors
    ///
    /// If there are more or fewer blocks than the shape needs.
    pub fn unpack(&self, blocks: &[u8]) -> Result<Vec<f32>, String> {
        let product = |n: usize, axis: &usize| n.checked_mul(*axis);
        let count = self.shape.iter().try_fold(1usize, product);
        // So a tensor is at most eight times as long as what the file really has.
        let expected = count.and_then(|count| count.div_ceil(LENGTH).checked_mul(self.blocks.bytes()));
        let (Some(count), true) = (count, expected == Some(blocks.len())) else {
            return Err(format!(
                "{} bytes of blocks do not fill the shape {:?}",
                blocks.len(),
                self.shape
            ));
        };
        let values = self.blocks.unpack(blocks, count);
        Ok(match (self.columns, &self.shape[..]) {
            (true, [rows, columns]) => transposed(&values, (*columns, *rows)),
            _ => values,
        })
    }
}

/// A matrix of `rows` by `columns`, column by column.
fn transposed(values: &[f32], (rows, columns): (usize, usize)) -> Vec<f32> {
    (0..columns)
        .flat_map(|column| (0..rows).map(move |row| values[row * columns + column]))
        .collect()
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.columns { "columns" } else { "rows" };
        write!(f, "{} {order}", self.blocks.name())?;
        self.shape.iter().try_for_each(|axis| write!(f, " {axis}"))
    }
}

impl FromStr for Packing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let mut words = text.split(' ');
            let kind = words.next()?;
            let blocks = [Blocks::Q8_0, Blocks::Q4_0];
            let packing = Self {
                blocks: blocks.into_iter().find(|blocks| blocks.name() == kind)?,
                columns: match words.next()? {
                    "columns" => true,
                    "rows" => false,
                    _ => return None,
                },
                shape: words.map(|axis| axis.parse().ok()).collect::<Option<_>>()?,
            };
            let fits = !packing.columns || packing.shape.len() == 2;
            (fits && packing.shape.len() <= MOST_AXES).then_some(packing)
        };
        read().ok_or_else(|| {
            let text: String = text.chars().take(60).collect();
            format!("it lies in blocks of an unknown kind, {text:?}: use a newer version of this program")
        })
    }
}

/// Most axes of a tensor.
const MOST_AXES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> [f32; LENGTH] {
        std::array::from_fn(|at| at as f32 - 16.0)
    }

    /// What GGML's C code makes of the numbers -16 to 15.
    #[test]
    fn blocks_are_those_of_ggml() {
        let eight = Blocks::Q8_0.pack(&ramp()).unwrap();
        // 16 / 127 = 0.12598 as a half is 0x3008; 1 / (16 / 127) = 7.9375.
        assert_eq!(eight[..2], 0x3008u16.to_le_bytes());
        let levels: Vec<i8> = eight[2..].iter().map(|level| *level as i8).collect();
        assert_eq!(levels[..5], [-127, -119, -111, -103, -95]);
        assert_eq!((levels[16], levels[17], levels[31]), (0, 8, 119));
        let four = Blocks::Q4_0.pack(&ramp()).unwrap();
        // -16 / -8 = 2; the levels are (x / 2 + 8.5) cut off: 0 for -16, 1 for -15 and -14, 8 for 0, 9 for 1.
        assert_eq!(four[..2], 0x4000u16.to_le_bytes());
        assert_eq!(four[2..6], [0x80, 0x91, 0x91, 0xa2]);
        // 14 / 2 + 8.5 is 15.5, and 15 / 2 + 8.5 is 16, which the largest level stands for.
        assert_eq!(four[16..], [0xf7, 0xf8]);
    }

    #[test]
    fn the_number_farthest_from_zero_is_exact_in_four_bits_whatever_its_sign() {
        let mut values = [0.5; LENGTH];
        values[7] = 8.0;
        let packed = Blocks::Q4_0.pack(&values).unwrap();
        assert_eq!(packed[..2], f16::from_f32(-1.0).to_le_bytes());
        let back = Blocks::Q4_0.unpack(&packed, LENGTH);
        assert_eq!(back[7], 8.0);
    }

    #[test]
    fn numbers_come_back_within_half_a_level() {
        let values: Vec<f32> = (0..100).map(|at| ((at * 37) % 101) as f32 / 50.0 - 1.0).collect();
        for (blocks, error) in [(Blocks::Q8_0, 1.0 / 127.0), (Blocks::Q4_0, 1.0 / 8.0)] {
            let packed = blocks.pack(&values).unwrap();
            assert_eq!(packed.len(), 4 * blocks.bytes());
            let back = blocks.unpack(&packed, values.len());
            assert_eq!(back.len(), values.len());
            let far = values.iter().zip(&back).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f32::max);
            // Four bits cut off the top level, which is a whole one away.
            assert!(far <= error * 1.02, "{blocks:?}: {far}");
        }
        assert_eq!(
            Blocks::Q8_0.unpack(&Blocks::Q8_0.pack(&[0.0; 3]).unwrap(), 3),
            [0.0; 3]
        );
    }

    #[test]
    fn what_a_half_cannot_scale_is_not_packed() {
        for wrong in [f32::NAN, f32::INFINITY, 1e9] {
            assert_eq!(Blocks::Q8_0.pack(&[1.0, wrong]), None);
            assert_eq!(Blocks::Q4_0.pack(&[wrong]), None);
        }
    }

    #[test]
    fn a_matrix_is_packed_by_columns() {
        let by_columns = Packing {
            blocks: Blocks::Q8_0,
            columns: true,
            shape: vec![2, 32],
        };
        // Blocks of two columns' halves would have one scale for small and large rows.
        let values: Vec<f32> = (0..64).map(|at| at as f32).collect();
        let packed = by_columns.pack(&values).unwrap();
        let turned: Vec<f32> = (0..64).map(|at| (at % 2 * 32 + at / 2) as f32).collect();
        assert_eq!(packed, Blocks::Q8_0.pack(&turned).unwrap());
        let back = by_columns.unpack(&packed).unwrap();
        assert!(
            values.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.3),
            "{back:?}"
        );
    }

    #[test]
    fn a_shape_that_the_blocks_do_not_fill_is_refused() {
        let read = |text: &str| text.parse::<Packing>();
        let packing = read("q4_0 columns 784 128").unwrap();
        assert_eq!(packing.to_string(), "q4_0 columns 784 128");
        for text in [
            "",
            "q4_0",
            "q5_0 rows 3",
            "q4_0 rows x",
            "q4_0 columns 3",
            "q4_0 rows -1",
        ] {
            assert!(read(text).unwrap_err().contains("newer version"), "{text}");
        }
        for (shape, bytes) in [
            ("33", 18),
            ("32", 17),
            ("18446744073709551615 18446744073709551615", 18),
            ("18446744073709551615", 18),
            ("1 0", 18),
        ] {
            let packing = read(&format!("q4_0 rows {shape}")).unwrap();
            assert!(packing.unpack(&vec![0; bytes]).is_err(), "{shape}");
        }
    }
}
