//! Replaces patterns of small operations by ours, which are faster and keep less in memory.
//!
//! A pattern is replaced where its inner values have no other reader and the shapes fit. Shapes come from one pass over a
//! few samples; each operation of ours checks them again when it runs.

use std::collections::{HashMap, HashSet};

use crate::onnx::Attribute;
use crate::pass::{Kind, Node};

/// Finds an operation's kind.
pub(crate) type Find = fn(&str, &str) -> Option<&'static Kind>;

/// A graph's nodes, some of which are gone.
pub(crate) struct Fusion<'a> {
    nodes: Vec<Option<Node>>,
    /// Which node makes a value.
    makers: HashMap<usize, usize>,
    /// Which nodes read a value, each as often as it does.
    readers: HashMap<usize, Vec<usize>>,
    /// The shape of each value in one pass.
    shapes: &'a [Option<Vec<usize>>],
    /// Values of parameters.
    parameters: HashSet<usize>,
    /// Values that the graph returns.
    kept: &'a [usize],
    find: Find,
}

impl<'a> Fusion<'a> {
    pub(crate) fn new(
        nodes: Vec<Node>,
        shapes: &'a [Option<Vec<usize>>],
        parameters: HashSet<usize>,
        kept: &'a [usize],
        find: Find,
    ) -> Self {
        let mut fusion = Self {
            nodes: nodes.iter().map(|_| None).collect(),
            makers: HashMap::new(),
            readers: HashMap::new(),
            shapes,
            parameters,
            kept,
            find,
        };
        for (at, node) in nodes.into_iter().enumerate() {
            fusion.insert(at, node);
        }
        fusion
    }

    /// Replaces all patterns; the nodes that remain.
    pub(crate) fn run(mut self) -> Vec<Node> {
        let all = 0..self.nodes.len();
        all.clone().for_each(|at| self.rms_norm(at).unwrap_or(()));
        all.clone().for_each(|at| self.product(at).unwrap_or(()));
        // A bias first, then a residual.
        all.clone().for_each(|at| self.sum(at).unwrap_or(()));
        all.clone().for_each(|at| self.two_layers(at).unwrap_or(()));
        all.clone().for_each(|at| self.sum(at).unwrap_or(()));
        all.clone().for_each(|at| self.attention(at).unwrap_or(()));
        all.clone().for_each(|at| self.embedding(at).unwrap_or(()));
        // What nothing reads any more, from behind, so that its inputs become unread before they are looked at.
        all.rev().for_each(|at| self.sweep(at));
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

    fn remove(&mut self, at: usize) {
        let Some(node) = self.nodes[at].take() else { return };
        for slot in node.outputs.iter().flatten() {
            self.makers.remove(slot);
        }
        for slot in node.inputs.iter().flatten() {
            self.readers
                .entry(*slot)
                .or_default()
                .retain(|reader| *reader != at);
        }
    }

    /// Puts a node of ours in the place of the last of some nodes, whose output it makes.
    fn replace(
        &mut self,
        gone: &[usize],
        kind: &str,
        inputs: Vec<Option<usize>>,
        attributes: Vec<(&str, Attribute)>,
    ) -> Option<()> {
        let (last, first) = (*gone.last()?, *gone.first()?);
        let kind = (self.find)(domain(kind), kind)?;
        let node = Node {
            name: self.node(first)?.name.clone(),
            kind,
            inputs,
            outputs: vec![self.output(last)],
            attributes: attributes
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            number: self.node(last)?.number,
        };
        gone.iter().for_each(|at| self.remove(*at));
        self.insert(last, node);
        Some(())
    }

    fn node(&self, at: usize) -> Option<&Node> {
        self.nodes[at].as_ref()
    }

    /// The node there, if it is of this kind.
    fn of_kind(&self, at: usize, kind: &str) -> Option<&Node> {
        self.node(at).filter(|node| node.kind.name == kind)
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
            Some([reader]) if !self.kept.contains(&slot) => Some(*reader),
            _ => None,
        }
    }

    fn shape(&self, slot: usize) -> Option<&[usize]> {
        self.shapes.get(slot)?.as_deref()
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

    /// The value that a binary operation takes beside this one.
    fn other(&self, at: usize, slot: usize) -> Option<usize> {
        match self.node(at)?.inputs[..] {
            [Some(a), Some(b)] if a == slot && b != slot => Some(b),
            [Some(a), Some(b)] if b == slot && a != slot => Some(a),
            _ => None,
        }
    }

    /// Whether a node transposes so.
    fn transposes(&self, at: usize, order: &[i64]) -> bool {
        self.of_kind(at, "Transpose").is_some()
            && matches!(self.attribute(at, "perm"), Some(Attribute::Integers(own)) if own == order)
    }

    /// A product with a parameter, or with its transpose, becomes a linear layer.
    fn product(&mut self, at: usize) -> Option<()> {
        self.of_kind(at, "MatMul")?;
        let (x, weight) = (self.input(at, 0)?, self.input(at, 1)?);
        let (weight, outputs_first) = match self.maker(weight) {
            Some(maker) if self.transposes(maker, &[1, 0]) => (self.input(maker, 0)?, 1),
            Some(_) => return None,
            None => (weight, 0),
        };
        if !self.parameters.contains(&weight) || self.shape(weight)?.len() != 2 {
            return None;
        }
        let attributes = vec![("outputs_first", Attribute::Integer(outputs_first))];
        self.replace(
            &[at],
            "Linear",
            vec![Some(x), Some(weight), None, None],
            attributes,
        )
    }

    /// A bias or a residual that is added to a linear layer or to two of them becomes its part.
    fn sum(&mut self, at: usize) -> Option<()> {
        let node = self.node(at)?;
        let (kind, bias, residual) = match node.kind.name {
            "Linear" => ("Linear", 2, 3),
            "Mlp" => ("Mlp", 4, 5),
            _ => return None,
        };
        let (mut inputs, attributes) = (node.inputs.clone(), node.attributes.clone());
        inputs.resize(residual + 1, None);
        let (out, reader) = (self.output(at)?, self.only_reader(at)?);
        self.of_kind(reader, "Add")?;
        let other = self.other(reader, out)?;
        let (shape, added) = (self.shape(out)?, self.shape(other)?);
        let is_parameter = self.parameters.contains(&other);
        if inputs[residual].is_some() {
            return None;
        } else if is_parameter && inputs[bias].is_none() && shape.last().is_some_and(|last| added == [*last])
        {
            inputs[bias] = Some(other);
        } else if !is_parameter && added == shape {
            inputs[residual] = Some(other);
        } else {
            return None;
        }
        // The layer moves to the place of the sum, where the other operand is known too. There another sum may follow, which
        // is looked at when its place comes.
        let attributes = attributes
            .iter()
            .map(|(name, value)| (&**name, value.clone()))
            .collect();
        self.replace(&[at, reader], kind, inputs, attributes)
    }

    /// Two linear layers with an activation between them.
    fn two_layers(&mut self, at: usize) -> Option<()> {
        let up = self.of_kind(at, "Linear")?.inputs.clone();
        let between = self.only_reader(at)?;
        let activation = match self.node(between)?.kind.name {
            "Gelu" if !matches!(self.attribute(between, "approximate"), Some(Attribute::Text(how)) if how == "tanh") => {
                "gelu"
            }
            "Relu" => "relu",
            "Swish" if self.attribute(between, "alpha").is_none() => "silu",
            _ => return None,
        };
        let behind = self.only_reader(between)?;
        let down = self.of_kind(behind, "Linear")?.inputs.clone();
        let layout = |at| self.integer(at, "outputs_first").unwrap_or(0);
        let given = |inputs: &[Option<usize>], number: usize| inputs.get(number).copied().flatten();
        let is_chain = given(&down, 0) == self.output(between) && layout(at) == layout(behind);
        if !is_chain || given(&up, 3).is_some() || self.shape(up[0]?)?.len() < 2 {
            return None;
        }
        let inputs = vec![
            up[0],
            up[1],
            given(&up, 2),
            down[1],
            given(&down, 2),
            given(&down, 3),
        ];
        let attributes = vec![
            ("activation", Attribute::Text(activation.to_owned())),
            ("outputs_first", Attribute::Integer(layout(at))),
        ];
        self.replace(&[at, between, behind], "Mlp", inputs, attributes)
    }

    /// Which third of which value becomes these heads, `[batch, heads, tokens, width]`.
    fn third(&self, heads: usize) -> Option<(usize, usize)> {
        let turned = self
            .maker(heads)
            .filter(|at| self.transposes(*at, &[0, 2, 1, 3]))?;
        let reshaped = self.maker(self.input(turned, 0)?)?;
        self.of_kind(reshaped, "Reshape")?;
        let part = self.input(reshaped, 0)?;
        let split = self.maker(part)?;
        let node = self.of_kind(split, "Split")?;
        let whole = self.input(split, 0)?;
        let (part_shape, whole_shape, heads) = (self.shape(part)?, self.shape(whole)?, self.shape(heads)?);
        let &[batch, tokens, columns] = part_shape else {
            return None;
        };
        let fits = whole_shape == [batch, tokens, 3 * columns]
            && heads == [batch, heads[1], tokens, heads[3]]
            && heads[1] * heads[3] == columns;
        let number = node.outputs.iter().position(|out| *out == Some(part))?;
        fits.then_some((whole, number))
    }

    /// Queries, keys and values that are thirds of one product.
    fn attention(&mut self, at: usize) -> Option<()> {
        let node = self.of_kind(at, "Attention")?;
        if node.inputs.get(3).is_some_and(Option::is_some)
            || self.attribute(at, "dropout_p").is_some()
            || self.attribute(at, "scale").is_some()
        {
            return None;
        }
        let causal = self.integer(at, "is_causal").unwrap_or(0);
        let parts = [0, 1, 2].map(|number| self.third(self.input(at, number)?));
        let [Some((packed, 0)), Some((keys, 1)), Some((values, 2))] = parts else {
            return None;
        };
        let &[batch, heads, tokens, width] = self.shape(self.input(at, 0)?)? else {
            return None;
        };
        let turned = self
            .only_reader(at)
            .filter(|turned| self.transposes(*turned, &[0, 2, 1, 3]))?;
        let reshaped = self.only_reader(turned)?;
        self.of_kind(reshaped, "Reshape")?;
        let out = self.shape(self.output(reshaped)?)?;
        if packed != keys
            || keys != values
            || out != [batch, tokens, heads * width]
            || !width.is_multiple_of(4)
        {
            return None;
        }
        let attributes = vec![
            ("heads", Attribute::Integer(heads as i64)),
            ("is_causal", Attribute::Integer(causal)),
        ];
        self.replace(
            &[at, turned, reshaped],
            "PackedAttention",
            vec![Some(packed)],
            attributes,
        )
    }

    /// Rows of a table, plus those of another one from its first row on.
    fn embedding(&mut self, at: usize) -> Option<()> {
        self.of_kind(at, "Add")?;
        let (tokens, places) = (self.maker(self.input(at, 0)?)?, self.maker(self.input(at, 1)?)?);
        let rows =
            |at: usize| self.of_kind(at, "Gather").is_some() && self.integer(at, "axis").unwrap_or(0) == 0;
        if !rows(tokens) || !rows(places) || self.only_reader(tokens) != Some(at) {
            return None;
        }
        let (table, ids) = (self.input(tokens, 0)?, self.input(tokens, 1)?);
        let (positions, range) = (self.input(places, 0)?, self.input(places, 1)?);
        let counted = self.maker(range).filter(|maker| self.counts_from_zero(*maker))?;
        let (ids_shape, range_shape) = (self.shape(ids)?, self.shape(self.output(counted)?)?);
        let matrices = self.shape(table)?.len() == 2 && self.shape(positions)?.len() == 2;
        if ids_shape.len() != 2 || !matrices || range_shape != [ids_shape[1]] {
            return None;
        }
        let inputs = vec![Some(ids), Some(table), Some(positions)];
        self.replace(&[tokens, at], "EmbeddingAt", inputs, Vec::new())
    }

    /// Whether a node makes 0, 1, 2 and so on.
    fn counts_from_zero(&self, at: usize) -> bool {
        let is = |number: usize, value: f64| {
            let constant = self.input(at, number).and_then(|slot| self.maker(slot));
            match constant.map(|maker| &self.nodes[maker]) {
                Some(Some(node)) if node.kind.name == "Constant" => match &node.attributes[..] {
                    [(_, Attribute::Tensor(tensor))] => tensor.number() == Ok(value),
                    [(_, Attribute::Integer(integer))] => *integer as f64 == value,
                    _ => false,
                },
                _ => false,
            }
        };
        self.of_kind(at, "Range").is_some() && is(0, 0.0) && is(2, 1.0)
    }

    /// `w * (x * 1 / sqrt(mean(x ^ 2) + epsilon))`, as models spell out RMS norm.
    fn rms_norm(&mut self, at: usize) -> Option<()> {
        let node = self.of_kind(at, "Reciprocal")?;
        let root = self.maker(node.inputs[0]?)?;
        self.of_kind(root, "Sqrt")?;
        let sum = self.maker(self.input(root, 0)?)?;
        self.of_kind(sum, "Add")?;
        let [mean, epsilon] = match [self.input(sum, 0)?, self.input(sum, 1)?] {
            [mean, epsilon] if self.number(epsilon).is_some() => [mean, epsilon],
            [epsilon, mean] => [mean, epsilon],
        };
        let epsilon = self.number(epsilon)?;
        let mean = self.maker(mean)?;
        self.of_kind(mean, "ReduceMean")?;
        let square = self.maker(self.input(mean, 0)?)?;
        let x = match self.node(square)?.kind.name {
            "Pow" if self.number(self.input(square, 1)?) == Some(2.0) => self.input(square, 0)?,
            "Mul" if self.input(square, 0) == self.input(square, 1) => self.input(square, 0)?,
            _ => return None,
        };
        let scaled = self.only_reader(at)?;
        self.of_kind(scaled, "Mul")?;
        let weighted = self.only_reader(scaled)?;
        self.of_kind(weighted, "Mul")?;
        let weight = self.other(weighted, self.output(scaled)?)?;
        let (shape, reduced) = (self.shape(x)?, self.shape(self.output(mean)?)?);
        let (last, lead) = shape.split_last()?;
        let is_row_mean = reduced.split_last() == Some((&1, lead)) && *last > 1;
        let fits = self.other(scaled, self.output(at)?) == Some(x) && self.shape(weight)? == [*last];
        if !is_row_mean || !fits {
            return None;
        }
        let inner = [square, mean, sum, root];
        let alone = inner.iter().all(|at| self.only_reader(*at).is_some());
        if !alone {
            return None;
        }
        let attributes = vec![("epsilon", Attribute::Float(epsilon as f32))];
        let gone = [square, mean, sum, root, at, scaled, weighted];
        self.replace(&gone, "RMSNormalization", vec![Some(x), Some(weight)], attributes)
    }

    /// The number that a constant holds.
    fn number(&self, slot: usize) -> Option<f64> {
        let node = self.node(self.maker(slot)?)?;
        match &node.attributes[..] {
            [(_, Attribute::Tensor(tensor))] if node.kind.name == "Constant" => tensor.number().ok(),
            [(_, Attribute::Float(value))] if node.kind.name == "Constant" => Some(f64::from(*value)),
            _ => None,
        }
    }

    fn sweep(&mut self, at: usize) {
        let Some(node) = self.node(at) else { return };
        let is_read = |slot: &usize| {
            self.kept.contains(slot) || self.readers.get(slot).is_some_and(|readers| !readers.is_empty())
        };
        let has_effect = node.kind.name == "BatchNormalization";
        if !has_effect && !node.outputs.iter().flatten().any(is_read) {
            self.remove(at);
        }
    }
}

/// Where one of the kinds that a pattern becomes is.
fn domain(kind: &str) -> &'static str {
    match kind {
        "RMSNormalization" => "",
        _ => "annulus",
    }
}
