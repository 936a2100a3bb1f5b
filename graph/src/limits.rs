//! Bounds on what a model may ask for. They are checked before anything is allocated, because a model may come from
//! anybody.

/// How large a graph and its tensors may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes of the graph.
    pub nodes: usize,
    /// Named values of the graph: inputs, parameters, constants and results.
    pub values: usize,
    /// Bytes of a name.
    pub name_bytes: usize,
    /// Axes of a tensor.
    pub rank: usize,
    /// Elements of one tensor on the device.
    pub elements: usize,
    /// Elements of one tensor on the host, where masks, indices and shapes are computed.
    pub host_elements: usize,
    /// Elements of all tensors that one pass computes together.
    pub pass_elements: u64,
}

/// Guesses: a 24-layer transformer has 2,000 nodes, a mask for 16 windows of 2,048 tokens 2^26 elements, and a kernel
/// counts elements in 32 bits.
impl Default for Limits {
    fn default() -> Self {
        Self {
            nodes: 1 << 16,
            values: 1 << 18,
            name_bytes: 1 << 10,
            rank: 8,
            elements: (1 << 31) - 1,
            host_elements: 1 << 26,
            pass_elements: 1 << 38,
        }
    }
}

impl Limits {
    /// How many elements a shape has, if a tensor on the device may have that many.
    pub(crate) fn on_device(&self, shape: &[usize]) -> Result<usize, String> {
        self.count(shape, self.elements)
    }

    /// How many elements a shape has, if a tensor on the host may have that many.
    pub(crate) fn on_host(&self, shape: &[usize]) -> Result<usize, String> {
        self.count(shape, self.host_elements)
    }

    fn count(&self, shape: &[usize], most: usize) -> Result<usize, String> {
        if shape.len() > self.rank {
            return Err(format!(
                "a tensor of {} axes; at most {} are possible",
                shape.len(),
                self.rank
            ));
        }
        // An axis of length 0 must not hide a product of the others that overflows.
        let bound = shape
            .iter()
            .try_fold(1usize, |n, axis| n.checked_mul((*axis).max(1)));
        match bound {
            Some(n) if n <= most => Ok(shape.iter().product()),
            _ => Err(format!(
                "a tensor of shape {shape:?} has more than {most} elements"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_without_overflow() {
        let limits = Limits::default();
        assert_eq!(limits.on_host(&[]), Ok(1));
        assert_eq!(limits.on_host(&[3, 4]), Ok(12));
        assert_eq!(limits.on_host(&[0, 4]), Ok(0));
        for shape in [
            &[1 << 27][..],
            &[usize::MAX, usize::MAX],
            &[0, usize::MAX, 2],
            &[1 << 13, 1 << 14],
            &[1; 9],
        ] {
            assert!(limits.on_host(shape).is_err(), "{shape:?}");
        }
    }
}
