//! Functions of numbers and of rows that models spell out.

use super::Fusion;
use crate::onnx::Attribute;

impl Fusion<'_> {
    /// `w * (x * 1 / sqrt(mean(x ^ 2) + epsilon))`: RMS norm.
    pub(super) fn rms_norm(&mut self, at: usize) -> Option<()> {
        let node = self.of_kind(at, "Reciprocal")?;
        let root = self.made_by(node.inputs[0]?, "Sqrt")?;
        let sum = self.made_by(self.input(root, 0)?, "Add")?;
        let (a, b) = (self.input(sum, 0)?, self.input(sum, 1)?);
        let (mean, epsilon) = match self.number(b) {
            Some(epsilon) => (a, epsilon),
            None => (b, self.number(a)?),
        };
        let square = self.maker(self.input(self.made_by(mean, "ReduceMean")?, 0)?)?;
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
        let (last, lead) = self.shape(x)?.split_last()?;
        let is_row_mean = self.shape(mean)?.split_last() == Some((&1, lead)) && *last > 1;
        let fits = self.other(scaled, self.output(at)?) == Some(x) && self.shape(weight)? == [*last];
        if !is_row_mean || !fits {
            return None;
        }
        let attributes = vec![("epsilon", Attribute::Float(epsilon as f32))];
        let inputs = vec![Some(x), Some(weight)];
        self.replace([square, weighted], "RMSNormalization", inputs, attributes)
    }

    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ^ 3)))`.
    pub(super) fn gelu_by_tanh(&mut self, at: usize) -> Option<()> {
        self.of_kind(at, "Tanh")?;
        let scale = (2.0 / std::f64::consts::PI).sqrt();
        let inner = self.maker(self.input(at, 0)?)?;
        let sum = self.made_by(self.beside(inner, "Mul", scale)?, "Add")?;
        let (a, b) = (self.input(sum, 0)?, self.input(sum, 1)?);
        let cubed = |slot| {
            let power = self.maker(self.beside(self.maker(slot)?, "Mul", 0.044_715)?)?;
            let is_cube = self.number(self.input(power, 1)?) == Some(3.0);
            self.of_kind(power, "Pow").filter(|_| is_cube)?;
            self.input(power, 0)
        };
        let x = match (cubed(a), cubed(b)) {
            (Some(x), _) if x == b => x,
            (_, Some(x)) if x == a => x,
            _ => return None,
        };
        let gate = self.only_reader(at)?;
        self.beside(gate, "Add", 1.0)?;
        let product = self.only_reader(gate)?;
        let half = self.maker(self.other(product, self.output(gate)?)?)?;
        self.of_kind(product, "Mul")?;
        if self.beside(half, "Mul", 0.5) != Some(x) {
            return None;
        }
        let attributes = vec![("approximate", Attribute::Text("tanh".into()))];
        self.replace([half, product], "Gelu", vec![Some(x)], attributes)
    }

    /// An activation times another value, as in SwiGLU.
    pub(super) fn gated(&mut self, at: usize) -> Option<()> {
        self.of_kind(at, "Mul")?;
        let activated = [0, 1].into_iter().find_map(|number| {
            let active = self.maker(self.input(at, number)?)?;
            Some((active, self.activation(active)?))
        });
        let (active, activation) = activated?;
        let (gate, x) = (self.input(active, 0)?, self.other(at, self.output(active)?)?);
        if self.only_reader(active) != Some(at) || self.shape(gate)? != self.shape(x)? {
            return None;
        }
        let attributes = vec![("activation", Attribute::Text(activation.into()))];
        self.replace([active, at], "Gated", vec![Some(gate), Some(x)], attributes)
    }
}
