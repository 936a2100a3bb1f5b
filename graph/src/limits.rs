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
    /// Bytes of all tensors on the host that a pass has at once, and of the plans that are kept. The passes that try a model out
    /// run on the processor, so those on the device count there too.
    pub bytes: u64,
    /// Elements of all tensors that a pass computes together that tries a model out.
    pub trial_elements: u64,
    /// Multiplications of matrices and convolutions in such a pass.
    pub trial_products: u64,
}

/// Guesses: a 24-layer transformer has 2,000 nodes, a mask for 16 windows of 2,048 tokens 2^26 elements, and a kernel
/// counts elements in 32 bits. A tab has 4 GiB for everything. A trial of 3 samples of 1,024 tokens takes GPT-2 XL 2^42
/// multiplications.
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
            bytes: if cfg!(target_family = "wasm") {
                1 << 30
            } else {
                4 << 30
            },
            trial_elements: 1 << 34,
            trial_products: 1 << 43,
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
