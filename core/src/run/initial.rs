//! The first weights of a split model, which no member has room for as a whole.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The first weights of a run, for any ranges of elements.
#[derive(Clone)]
pub struct Initial(Arc<Values>);

type Values = dyn Fn(&[Range<usize>]) -> Vec<Vec<f32>> + Send + Sync;

impl Initial {
    /// Wraps a function that returns one value for each element of each range, the same on all peers.
    pub fn new(values: impl Fn(&[Range<usize>]) -> Vec<Vec<f32>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(values))
    }

    /// The weights of each range. Ask for all ranges at once: drawing some weights means drawing all before them.
    pub fn values(&self, ranges: &[Range<usize>]) -> Vec<Vec<f32>> {
        (self.0)(ranges)
    }
}

impl fmt::Debug for Initial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initial")
    }
}
