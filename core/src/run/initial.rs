//! The weights that a run begins with, where members hold parts of a model: nobody has all of them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The weights that a run begins with, of any ranges of elements.
#[derive(Clone)]
pub struct Initial(Arc<Values>);

type Values = dyn Fn(&[Range<usize>]) -> Vec<Vec<f32>> + Send + Sync;

impl Initial {
    /// By a function that gives for each range as many values as it has elements, the same for all peers.
    pub fn new(values: impl Fn(&[Range<usize>]) -> Vec<Vec<f32>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(values))
    }

    /// Of these elements, for each range. All at once, since who draws some has to draw all that come before.
    pub fn values(&self, ranges: &[Range<usize>]) -> Vec<Vec<f32>> {
        (self.0)(ranges)
    }
}

impl fmt::Debug for Initial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initial")
    }
}
