//! Linear layers with what surrounds them, and rows of tables.

use super::Fusion;
use crate::onnx::Attribute;

impl Fusion<'_> {
    /// A product with a parameter, or with its transpose, becomes a linear layer.
    pub(super) fn product(&mut self, at: usize) -> Option<()> {
        self.of_kind(at, "MatMul")?;
        let (x, weight) = (self.input(at, 0)?, self.input(at, 1)?);
        let (weight, outputs_first) = match self.maker(weight) {
            Some(maker) if self.transposes(maker, &[1, 0]) => (self.input(maker, 0)?, 1),
            Some(_) => return None,
            None => (weight, 0),
        };
        if !self.is_stored(weight) || self.shape(weight)?.len() != 2 {
            return None;
        }
        let inputs = vec![Some(x), Some(weight), None, None];
        let attributes = vec![("outputs_first", Attribute::Integer(outputs_first))];
        self.replace([at, at], "Linear", inputs, attributes)
    }

    /// A bias or a residual that is added to a linear layer or to two of them becomes its part.
    pub(super) fn sum(&mut self, at: usize) -> Option<()> {
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
        let is_stored = self.is_stored(other);
        if inputs[residual].is_some() {
            return None;
        } else if is_stored && inputs[bias].is_none() && shape.last().is_some_and(|last| added == [*last]) {
            inputs[bias] = Some(other);
        } else if !is_stored && added == shape {
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
        self.replace([at, reader], kind, inputs, attributes)
    }

    /// Two linear layers with an activation between them.
    pub(super) fn two_layers(&mut self, at: usize) -> Option<()> {
        let up = self.of_kind(at, "Linear")?.inputs.clone();
        let between = self.only_reader(at)?;
        // Those that products have as their epilogue on a GPU.
        let activation = self
            .activation(between)
            .filter(|kind| ["gelu", "relu"].contains(kind))?;
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
        self.replace([at, behind], "Mlp", inputs, attributes)
    }

    /// Rows of a table, plus those of another one from its first row on.
    pub(super) fn embedding(&mut self, at: usize) -> Option<()> {
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
        self.replace([tokens, at], "EmbeddingAt", inputs, Vec::new())
    }

    /// Whether a node makes 0, 1, 2 and so on.
    fn counts_from_zero(&self, at: usize) -> bool {
        let is = |number: usize, value: f64| {
            let constant = self.input(at, number).and_then(|slot| self.number(slot));
            constant == Some(value)
        };
        self.of_kind(at, "Range").is_some() && is(0, 0.0) && is(2, 1.0)
    }
}
