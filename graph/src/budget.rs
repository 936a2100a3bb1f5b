//! Bounds a pass: its elements, its multiplications, and the bytes that are there at the same time. Each is counted before it is
//! used, since a model may come from anybody.

use crate::host::{Element, HostTensor};
use crate::limits::Limits;
use crate::value::Value;

/// The use of a pass so far.
pub(crate) struct Budget<'a> {
    limits: &'a Limits,
    /// Whether the pass only tries the model out, on the processor.
    pub(crate) trial: bool,
    elements: u64,
    products: u64,
    /// Bytes of each value that a node has made and that is still there.
    sizes: Vec<u64>,
    /// Their sum.
    held: u64,
    /// Bytes that the present node asks for.
    asked: u64,
}

impl<'a> Budget<'a> {
    /// That of a pass with this number of values.
    pub(crate) fn new(limits: &'a Limits, values: usize) -> Self {
        Self {
            limits,
            trial: false,
            elements: 0,
            products: 0,
            sizes: vec![0; values],
            held: 0,
            asked: 0,
        }
    }

    /// Another node begins.
    pub(crate) fn begin_node(&mut self) {
        self.asked = 0;
    }

    /// A node has made a value. A view of another one counts as well, since it may be there longer.
    pub(crate) fn made(&mut self, slot: usize, value: &Value) {
        let size = match value {
            Value::Host(host) => bytes(host),
            Value::Device(floats) if self.trial => 4 * floats.shape().iter().product::<usize>() as u64,
            Value::Device(_) => 0,
        };
        self.free(slot);
        self.sizes[slot] = size;
        self.held += size;
    }

    /// A value is dropped.
    pub(crate) fn free(&mut self, slot: usize) {
        self.held -= std::mem::take(&mut self.sizes[slot]);
    }

    /// Accounts for a tensor on the device before it is made.
    pub(crate) fn reserve(&mut self, shape: &[usize]) -> Result<usize, String> {
        let count = self.limits.on_device(shape)?;
        if count == 0 {
            return Err(format!("an empty tensor of shape {shape:?}"));
        }
        self.spend(count, if self.trial { 4 } else { 0 })
    }

    /// Accounts for a tensor on the host before it is made.
    pub(crate) fn reserve_host(&mut self, shape: &[usize]) -> Result<usize, String> {
        let count = self.limits.on_host(shape)?;
        // It may be of integers.
        self.spend(count, 8)
    }

    /// Accounts for multiplications, the product of these factors, before they are done.
    pub(crate) fn multiply(&mut self, factors: &[usize]) -> Result<(), String> {
        let products = factors
            .iter()
            .fold(1u64, |n, factor| n.saturating_mul(*factor as u64));
        self.products = self.products.saturating_add(products);
        let most = self.limits.trial_products;
        match self.trial && self.products > most {
            true => Err(format!(
                "with it a few samples take more than {most} multiplications"
            )),
            false => Ok(()),
        }
    }

    fn spend(&mut self, count: usize, bytes_each: u64) -> Result<usize, String> {
        self.elements += count as u64;
        let most = match self.trial {
            true => self.limits.trial_elements,
            false => self.limits.pass_elements,
        };
        if self.elements > most {
            return Err(format!("with it the pass computes more than {most} elements"));
        }
        self.asked += bytes_each * count as u64;
        let most = self.limits.bytes;
        if self.held + self.asked > most {
            let mb = most / 1_000_000;
            return Err(format!(
                "with it the model takes more than {mb} MB of memory at once"
            ));
        }
        Ok(count)
    }
}

/// Bytes of a tensor's elements.
pub(crate) fn bytes(host: &HostTensor) -> u64 {
    let each = match host.element() {
        Element::Float => 4,
        Element::Integer => 8,
        Element::Boolean => 1,
    };
    each * host.len() as u64
}
