//! A vector of numbers that is sent without a copy.
//!
//! It knows neither what its numbers mean nor where they go.

use crate::numeric::codec::Codec;
use bytes::Bytes;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Numbers that frames under way may still share. They change only once no frame shares them.
#[derive(Clone, Debug, Default)]
pub struct Vector(Arc<Vec<f32>>);

impl From<Vec<f32>> for Vector {
    fn from(values: Vec<f32>) -> Self {
        Self(Arc::new(values))
    }
}

impl Deref for Vector {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

/// A part of a vector under way keeps the whole vector alive.
struct Sent(Arc<Vec<f32>>);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Vector {
    /// The numbers, to be changed. Copies them if frames still share them.
    pub fn to_mut(&mut self) -> &mut Vec<f32> {
        Arc::make_mut(&mut self.0)
    }

    /// The numbers. Copies them if frames still share them.
    pub fn into_vec(self) -> Vec<f32> {
        Arc::unwrap_or_clone(self.0)
    }

    /// Whether nobody else shares its memory.
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Its memory, unless frames still share it.
    pub fn into_buffer(self) -> Option<Vec<f32>> {
        Arc::into_inner(self.0)
    }

    /// Some of its elements, encoded. A codec that leaves them as they lie in memory makes no copy.
    pub fn encoded(&self, codec: Codec, elements: Range<usize>) -> Bytes {
        if codec.keeps_memory() && !elements.is_empty() {
            let bytes = codec.encoded_len(elements.start)..codec.encoded_len(elements.end);
            return Bytes::from_owner(Sent(self.0.clone())).slice(bytes);
        }
        let values = if elements.is_empty() { &[] } else { &self[elements] };
        let mut encoded = Vec::with_capacity(codec.encoded_len(values.len()));
        codec.encode(values, &mut encoded);
        encoded.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_stays_as_it_was_whoever_changes_the_vector() {
        for codec in Codec::ALL {
            let values: Vec<f32> = (0..3000).map(|i| i as f32).collect();
            let mut vector = Vector::from(values.clone());
            let sent = vector.encoded(codec, 256..2000);
            let mut expected = Vec::new();
            codec.encode(&values[256..2000], &mut expected);
            assert_eq!(sent, expected, "{codec}");
            vector.to_mut().fill(7.0);
            assert_eq!(sent, expected, "{codec}");
            assert_eq!(vector.into_vec(), [7.0; 3000]);
        }
    }

    #[test]
    fn its_memory_serves_again_once_nothing_of_it_is_on_its_way() {
        let vector = Vector::from(vec![1.0; 100]);
        let address = vector.as_ptr();
        let sent = [0..10, 90..100].map(|part| vector.encoded(Codec::F32, part));
        assert_eq!(vector.clone().into_buffer(), None);
        assert_eq!(sent.map(|part| part.len()), [40, 40]);
        let again = vector.into_buffer().expect("nobody else has it");
        assert_eq!(again.as_ptr(), address);
    }
}
