//! The weights that a run begins with, where members hold parts of a model: nobody has all of them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The weights that a run begins with, of any range of elements.
#[derive(Clone)]
pub struct Initial(Arc<dyn Fn(Range<usize>) -> Vec<f32> + Send + Sync>);

impl Initial {
    /// By a function that gives as many values as a range has elements, the same for all peers.
    pub fn new(values: impl Fn(Range<usize>) -> Vec<f32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(values))
    }

    /// Of these elements.
    pub fn values(&self, range: Range<usize>) -> Vec<f32> {
        (self.0)(range)
    }
}

impl fmt::Debug for Initial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initial")
    }
}
