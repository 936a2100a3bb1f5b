//! What stages are told and tell, and how that travels between processes.

use std::io::{self, Read, Write};

use annulus_core::codec::Codec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::trainer::span::{Activation, Use};

/// Largest frame: a boundary of a large model, or what two spans share of it.
const MAX_FRAME: usize = 1 << 30;

/// What passes a boundary between two spans: activations or their gradient, as the run's boundary codec has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boundary {
    /// Samples, positions, features.
    pub shape: [u32; 3],
    /// A run of that many numbers.
    #[serde(with = "as_bytes")]
    pub bytes: Vec<u8>,
}

impl Boundary {
    /// For the way. What is decoded is what counts, on all machines the same.
    pub fn encode(activation: &Activation, codec: Codec) -> Self {
        let mut bytes = Vec::with_capacity(codec.encoded_len(activation.values.len()));
        codec.encode(&activation.values, &mut bytes);
        Self {
            shape: activation.shape.map(|dimension| dimension as u32),
            bytes,
        }
    }

    /// What came; nothing if it is no such run.
    pub fn decode(&self, codec: Codec) -> Option<Activation> {
        let shape = self.shape.map(|dimension| dimension as usize);
        let product = shape
            .iter()
            .try_fold(1usize, |product, d| product.checked_mul(*d))?;
        // No codec takes less than half a byte for a number, so that nothing is allocated that has not come.
        if product > 2 * self.bytes.len() {
            return None;
        }
        let mut values = vec![0.0; product];
        codec.decode(&self.bytes, &mut values).ok()?;
        Some(Activation { shape, values })
    }
}

/// A span's sum of gradients of a tensor that other spans use, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedSum {
    /// Whose.
    pub of: Use,
    /// As `f32`, little-endian.
    #[serde(with = "as_bytes")]
    pub bytes: Vec<u8>,
}

/// What a stage is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// A round begins, of so many microbatches, numbered from 0.
    Begin {
        /// How many.
        microbatches: u32,
    },
    /// A microbatch's input.
    Forward {
        /// Its number.
        microbatch: u32,
        /// Its samples, for the first and the last span; others need not know them.
        samples: Vec<u64>,
        /// What the span before has made; none for the first.
        input: Option<Boundary>,
    },
    /// The gradient at the span's output.
    Backward {
        /// Its number.
        microbatch: u32,
        /// What the span behind has made.
        gradient: Boundary,
    },
    /// What other spans have summed up for tensors that this one has, too.
    Combine {
        /// By step and tensor.
        shared: Vec<SharedSum>,
    },
    /// Step the parameters by the combined gradient.
    Apply {
        /// Learning rate.
        lr: f32,
        /// Number of the step, from 1.
        step: u64,
        /// The gradient is the sum times this.
        scale: f32,
    },
    /// Give the span's parameters, or its combined gradient.
    Export {
        /// The gradient; else the parameters.
        gradient: bool,
    },
    /// Tell what was measured since the last time.
    Report,
}

/// What a stage tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Activations for the span behind.
    Forth {
        /// The microbatch.
        microbatch: u32,
        /// What the span has made of it.
        activation: Boundary,
    },
    /// A backward pass is done.
    Back {
        /// The microbatch.
        microbatch: u32,
        /// The gradient for the span before; none from the first.
        gradient: Option<Boundary>,
    },
    /// All microbatches of the round are in the sums.
    Summed {
        /// Sum of the losses; 0 but in the last span.
        loss_sum: f32,
        /// What other spans need of it.
        shared: Vec<SharedSum>,
    },
    /// The gradient is combined: the sums of its squares by tensor.
    Norms {
        /// Tensor and sum of squares.
        squares: Vec<(usize, f64)>,
    },
    /// The parameters are stepped.
    Applied,
    /// What was asked for, by tensor, as `f32`, little-endian.
    Exported {
        /// The span's tensors one after the other.
        #[serde(with = "as_bytes")]
        bytes: Vec<u8>,
    },
    /// What was measured.
    Report(StageReport),
    /// It cannot go on.
    Failed(String),
}

/// What a stage has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// Microseconds of each forward pass; none in the last span.
    pub forward_us: Vec<u64>,
    /// Microseconds of each backward pass, with the forward pass done again.
    pub backward_us: Vec<u64>,
    /// Most microbatches stashed at once.
    pub stashed: usize,
    /// Most bytes of stashes at once.
    pub stash_bytes: usize,
}

/// Numbers as they travel.
pub(super) fn to_bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * values.len());
    Codec::F32.encode(values, &mut bytes);
    bytes
}

/// Numbers that came; nothing if they are not so many.
pub(super) fn from_bytes(bytes: &[u8], count: usize) -> Option<Vec<f32>> {
    if bytes.len() != 4 * count {
        return None;
    }
    let mut values = vec![0.0; count];
    Codec::F32.decode(bytes, &mut values).ok()?;
    Some(values)
}

/// Writes a message with its length before it.
///
/// # Errors
///
/// If nobody reads it any more, or it is too large.
pub fn write_frame(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
    if bytes.len() > MAX_FRAME {
        return Err(io::Error::other("a message of more than a gibibyte"));
    }
    to.write_all(&(bytes.len() as u32).to_le_bytes())?;
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads the next message; none at the end.
///
/// # Errors
///
/// If it ends in the middle of one, or it is none.
pub fn read_frame<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<M>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::other("a message of more than a gibibyte"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}

/// Bytes in one piece, where serde would write a list of numbers.
mod as_bytes {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use std::fmt;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }

        from.deserialize_byte_buf(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activation() -> Activation {
        let values = (0..2 * 3 * 128).map(|i| (i as f32).sin()).collect();
        Activation {
            shape: [2, 3, 128],
            values,
        }
    }

    #[test]
    fn what_passes_a_boundary_is_off_by_as_much_as_its_codec_says() {
        let given = activation();
        for (codec, most) in [
            (Codec::F32, 0.0),
            (Codec::F16, 1.0 / 2048.0),
            (Codec::Int8, 1.0 / 254.0),
        ] {
            let boundary = Boundary::encode(&given, codec);
            assert_eq!(boundary, Boundary::encode(&given, codec));
            let found = boundary.decode(codec).unwrap();
            assert_eq!(found.shape, given.shape);
            let off = found.values.iter().zip(&given.values);
            let off = off.fold(0.0f32, |off, (a, b)| off.max((a - b).abs()));
            assert!(off <= most, "{codec}: {off}");
        }
        let int8 = Boundary::encode(&given, Codec::Int8);
        let times = 4.0 * given.values.len() as f64 / int8.bytes.len() as f64;
        assert!(times > 3.9, "{times}");
    }

    #[test]
    fn what_is_no_boundary_is_refused_before_memory_is_taken_for_it() {
        let mut boundary = Boundary::encode(&activation(), Codec::F16);
        assert!(boundary.decode(Codec::F32).is_none());
        boundary.shape = [u32::MAX; 3];
        assert!(boundary.decode(Codec::F16).is_none());
        boundary.shape = [1 << 20, 1 << 10, 1];
        assert!(boundary.decode(Codec::F16).is_none());
    }

    #[test]
    fn messages_come_as_they_went() {
        let order = Order::Forward {
            microbatch: 3,
            samples: vec![1, 1 << 40],
            input: Some(Boundary::encode(&activation(), Codec::Int8)),
        };
        let mut pipe = Vec::new();
        write_frame(&mut pipe, &order).unwrap();
        write_frame(&mut pipe, &Order::Report).unwrap();
        let mut rest = &pipe[..];
        assert_eq!(read_frame::<Order>(&mut rest).unwrap(), Some(order));
        assert_eq!(read_frame::<Order>(&mut rest).unwrap(), Some(Order::Report));
        assert_eq!(read_frame::<Order>(&mut rest).unwrap(), None);
        let mut cut = &pipe[..pipe.len() / 2];
        assert!(read_frame::<Order>(&mut cut).is_err());
        let mut endless = &[0xff; 8][..];
        assert!(read_frame::<Order>(&mut endless).is_err());
    }
}
