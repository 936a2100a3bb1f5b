//! Replaces patterns of small operations by ours, which are faster and keep less in memory.
//!
//! A pattern is replaced where the shapes fit. Shapes come from one pass over a few samples; each operation of ours checks
//! them again when it runs. A pattern's inner nodes go, unless something else reads their values.

mod attention;
mod linear;
mod rows;

use std::collections::{HashMap, HashSet};

use crate::host::HostTensor;
use crate::onnx::Attribute;
use crate::pass::{Kind, Node};

/// Finds an operation's kind.
pub(crate) type Find = fn(&str, &str) -> Option<&'static Kind>;

/// What is known of a graph's values.
pub(crate) struct Known<'a> {
    /// The shape of each in one pass.
    pub(crate) shapes: &'a [Option<Vec<usize>>],
    /// Those of parameters.
    pub(crate) parameters: HashSet<usize>,
    /// Those that stand in the file and never change.
    pub(crate) stored: HashMap<usize, &'a HostTensor>,
    /// Those that the graph returns.
    pub(crate) kept: &'a [usize],
}

/// A graph's nodes, some of which are gone.
pub(crate) struct Fusion<'a> {
    nodes: Vec<Option<Node>>,
    /// Which node makes a value.
    makers: HashMap<usize, usize>,
    /// Which nodes read a value, each as often as it does.
    readers: HashMap<usize, Vec<usize>>,
    known: Known<'a>,
    /// Values that follow from parameters, which gradients flow to.
    learned: HashSet<usize>,
    find: Find,
}

impl<'a> Fusion<'a> {
    pub(crate) fn new(nodes: Vec<Node>, known: Known<'a>, find: Find) -> Self {
        let mut fusion = Self {
            nodes: nodes.iter().map(|_| None).collect(),
            makers: HashMap::new(),
            readers: HashMap::new(),
            learned: known.parameters.clone(),
            known,
            find,
        };
        for (at, node) in nodes.into_iter().enumerate() {
            if node
                .inputs
                .iter()
                .flatten()
                .any(|slot| fusion.learned.contains(slot))
            {
                fusion.learned.extend(node.outputs.iter().flatten());
            }
            fusion.insert(at, node);
        }
        fusion
    }

    /// Replaces all patterns; the nodes that remain.
    pub(crate) fn run(mut self) -> Vec<Node> {
        self.sweep(self.makers.keys().copied().collect());
        let patterns: &[fn(&mut Self, usize) -> Option<()>] = &[
            Self::pass_on,
            Self::rms_norm,
            Self::gelu_by_tanh,
            Self::gated,
            Self::product,
            // A bias first, then a residual.
            Self::sum,
            Self::two_layers,
            Self::sum,
            Self::rotary,
            Self::shared_heads,
            Self::packed_attention,
            Self::embedding,
        ];
        for pattern in patterns {
            for at in 0..self.nodes.len() {
                // None where it is another node's pattern.
                pattern(&mut self, at).unwrap_or(());
            }
        }
        self.nodes.into_iter().flatten().collect()
    }

    fn insert(&mut self, at: usize, node: Node) {
        for slot in node.outputs.iter().flatten() {
            self.makers.insert(*slot, at);
        }
        for slot in node.inputs.iter().flatten() {
            self.readers.entry(*slot).or_default().push(at);
        }
        self.nodes[at] = Some(node);
    }

    fn take(&mut self, at: usize) -> Option<Node> {
        let node = self.nodes[at].take()?;
        for slot in node.outputs.iter().flatten() {
            self.makers.remove(slot);
        }
        for slot in node.inputs.iter().flatten() {
            self.readers
                .entry(*slot)
                .or_default()
                .retain(|reader| *reader != at);
        }
        Some(node)
    }

    /// Takes out the nodes that make these values, if nothing reads them, and then what only those read.
    fn sweep(&mut self, mut values: Vec<usize>) {
        while let Some(slot) = values.pop() {
            let Some(at) = self.maker(slot) else { continue };
            let is_read = |slot: &usize| {
                self.known.kept.contains(slot)
                    || self.readers.get(slot).is_some_and(|readers| !readers.is_empty())
            };
            let needed = self.node(at).is_none_or(|node| {
                node.kind.name == "BatchNormalization" || node.outputs.iter().flatten().any(is_read)
            });
            if !needed && let Some(node) = self.take(at) {
                values.extend(node.inputs.iter().flatten());
            }
        }
    }

    /// Puts a node of ours in the place of the last one of a pattern, whose output it makes. The first one names it.
    fn replace(
        &mut self,
        [first, last]: [usize; 2],
        kind: &str,
        inputs: Vec<Option<usize>>,
        attributes: Vec<(&str, Attribute)>,
    ) -> Option<()> {
        let kind = (self.find)(domain(kind), kind)?;
        let name = self.node(first)?.name.clone();
        let gone = self.take(last)?;
        let attributes = attributes
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let node = Node {
            name,
            kind,
            inputs,
            outputs: gone.outputs,
            attributes: attributes.collect(),
            number: gone.number,
        };
        self.insert(last, node);
        self.sweep(gone.inputs.into_iter().flatten().collect());
        Some(())
    }

    /// A node that gives back its input: its readers read that instead.
    fn pass_on(&mut self, at: usize) -> Option<()> {
        let node = self.node(at)?;
        let same = match node.kind.name {
            "Identity" => true,
            "Dropout" => self.number(self.input(at, 1)?) == Some(0.0),
            // From the first row to one behind any end.
            "Slice" => {
                let number = |input| self.number(self.input(at, input)?);
                number(1) == Some(0.0)
                    && number(2).is_some_and(|end| end >= f64::from(i32::MAX))
                    && self.is_step_of_one(at)
            }
            _ => false,
        };
        let [Some(out)] = node.outputs[..] else {
            return None;
        };
        if !same || self.known.kept.contains(&out) {
            return None;
        }
        let (x, gone) = (self.input(at, 0)?, self.take(at)?);
        for reader in self.readers.remove(&out).unwrap_or_default() {
            let inputs = self.nodes[reader].iter_mut().flat_map(|node| &mut node.inputs);
            inputs
                .filter(|input| **input == Some(out))
                .for_each(|input| *input = Some(x));
            self.readers.entry(x).or_default().push(reader);
        }
        self.sweep(gone.inputs.into_iter().flatten().collect());
        Some(())
    }

    /// Whether a slice takes one element after the other.
    fn is_step_of_one(&self, at: usize) -> bool {
        self.input(at, 4)
            .is_none_or(|step| self.number(step) == Some(1.0))
    }

    fn node(&self, at: usize) -> Option<&Node> {
        self.nodes[at].as_ref()
    }

    /// The node there, if it is of this kind.
    fn of_kind(&self, at: usize, kind: &str) -> Option<&Node> {
        self.node(at).filter(|node| node.kind.name == kind)
    }

    /// Where a value is made, if a node of this kind makes it.
    fn made_by(&self, slot: usize, kind: &str) -> Option<usize> {
        self.maker(slot).filter(|at| self.of_kind(*at, kind).is_some())
    }

    fn input(&self, at: usize, number: usize) -> Option<usize> {
        self.node(at)?.inputs.get(number).copied().flatten()
    }

    fn output(&self, at: usize) -> Option<usize> {
        self.node(at)?.outputs.first().copied().flatten()
    }

    fn maker(&self, slot: usize) -> Option<usize> {
        self.makers.get(&slot).copied()
    }

    /// The only node that reads the first output of a node.
    fn only_reader(&self, at: usize) -> Option<usize> {
        let slot = self.output(at)?;
        match self.readers.get(&slot).map(Vec::as_slice) {
            Some([reader]) if !self.known.kept.contains(&slot) => Some(*reader),
            _ => None,
        }
    }

    fn shape(&self, slot: usize) -> Option<&[usize]> {
        self.known.shapes.get(slot)?.as_deref()
    }

    /// Whether a value stands in the file, trained or not.
    fn is_stored(&self, slot: usize) -> bool {
        self.known.parameters.contains(&slot) || self.known.stored.contains_key(&slot)
    }

    fn attribute(&self, at: usize, name: &str) -> Option<&Attribute> {
        let attributes = &self.node(at)?.attributes;
        attributes
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value)
    }

    fn integer(&self, at: usize, name: &str) -> Option<i64> {
        match self.attribute(at, name)? {
            Attribute::Integer(value) => Some(*value),
            _ => None,
        }
    }

    fn float(&self, at: usize, name: &str) -> Option<f64> {
        match self.attribute(at, name)? {
            Attribute::Float(value) => Some(f64::from(*value)),
            _ => None,
        }
    }

    /// The only number that a constant holds.
    fn number(&self, slot: usize) -> Option<f64> {
        if let Some(stored) = self.known.stored.get(&slot) {
            return stored.number().ok();
        }
        let node = self.node(self.made_by(slot, "Constant")?)?;
        match &node.attributes[..] {
            [(_, Attribute::Tensor(tensor))] => tensor.number().ok(),
            [(_, Attribute::Float(value))] => Some(f64::from(*value)),
            [(_, Attribute::Integer(value))] => Some(*value as f64),
            _ => None,
        }
    }

    /// The value that a binary operation takes beside this one.
    fn other(&self, at: usize, slot: usize) -> Option<usize> {
        match self.node(at)?.inputs[..] {
            [Some(a), Some(b)] if a == slot && b != slot => Some(b),
            [Some(a), Some(b)] if b == slot && a != slot => Some(a),
            _ => None,
        }
    }

    /// The value that an operation of this kind joins with this number, which files round to `f32`.
    fn beside(&self, at: usize, kind: &str, number: f64) -> Option<usize> {
        self.of_kind(at, kind)?;
        let (a, b) = (self.input(at, 0)?, self.input(at, 1)?);
        let is = |slot| {
            let found = self.number(slot);
            found.is_some_and(|found| (found - number).abs() <= 1e-6 * number.abs())
        };
        match (is(a), is(b)) {
            (false, true) => Some(a),
            (true, false) => Some(b),
            _ => None,
        }
    }

    /// Whether a node transposes so.
    fn transposes(&self, at: usize, order: &[i64]) -> bool {
        self.of_kind(at, "Transpose").is_some()
            && matches!(self.attribute(at, "perm"), Some(Attribute::Integers(own)) if own == order)
    }

    /// The function that a node applies to each number, as our kernels name it.
    fn activation(&self, at: usize) -> Option<&'static str> {
        let is_tanh =
            matches!(self.attribute(at, "approximate"), Some(Attribute::Text(how)) if how == "tanh");
        match self.node(at)?.kind.name {
            "Gelu" if is_tanh => Some("gelu_tanh"),
            "Gelu" => Some("gelu"),
            "Relu" => Some("relu"),
            "Swish" if self.attribute(at, "alpha").is_none() => Some("silu"),
            _ => None,
        }
    }
}

/// Where one of the kinds that a pattern becomes is.
fn domain(kind: &str) -> &'static str {
    match kind {
        "RMSNormalization" | "Gelu" => "",
        _ => "annulus",
    }
}
