//! Heads of attention, and what models do to them before.

use super::Fusion;
use crate::onnx::Attribute;
use crate::pass::Node;

impl Fusion<'_> {
    /// Which third of which value becomes these heads, `[batch, heads, tokens, width]`.
    fn third(&self, heads: usize) -> Option<(usize, usize)> {
        let &[batch, count, tokens, width] = self.shape(heads)? else {
            return None;
        };
        let maker = self.maker(heads)?;
        let (split, part, whole) = if self.transposes(maker, &[0, 2, 1, 3]) {
            // The product is split, and then each part into heads.
            let part = self.input(self.made_by(self.input(maker, 0)?, "Reshape")?, 0)?;
            let split = self.made_by(part, "Split")?;
            let fits = self.shape(part)? == [batch, tokens, count * width];
            (split, part, self.input(split, 0).filter(|_| fits)?)
        } else {
            // The product becomes `[batch, tokens, 3, heads, width]`, then `[3, batch, heads, tokens, width]`.
            self.of_kind(maker, "Squeeze")?;
            let part = self.input(maker, 0)?;
            let split = self.made_by(part, "Split")?;
            let turned = self.maker(self.input(split, 0)?)?;
            let reshaped = self.made_by(self.input(turned, 0)?, "Reshape")?;
            let fits = self.shape(part)? == [1, batch, count, tokens, width]
                && self.transposes(turned, &[2, 0, 3, 1, 4])
                && self.shape(self.output(reshaped)?)? == [batch, tokens, 3, count, width];
            (split, part, self.input(reshaped, 0).filter(|_| fits)?)
        };
        let number = self
            .node(split)?
            .outputs
            .iter()
            .position(|out| *out == Some(part))?;
        (self.shape(whole)? == [batch, tokens, 3 * count * width]).then_some((whole, number))
    }

    /// Queries, keys and values that are thirds of one product, without a mask or dropout.
    pub(super) fn packed_attention(&mut self, at: usize) -> Option<()> {
        self.of_kind(at, "Attention")?;
        let &[batch, heads, tokens, width] = self.shape(self.input(at, 0)?)? else {
            return None;
        };
        let usual = 1.0 / (width as f64).sqrt();
        let scale = self.float(at, "scale").unwrap_or(usual);
        if self.input(at, 3).is_some()
            || self.float(at, "dropout_p").unwrap_or(0.0) != 0.0
            || (scale - usual).abs() > 1e-6 * usual
        {
            return None;
        }
        let causal = self.integer(at, "is_causal").unwrap_or(0);
        let parts = [0, 1, 2].map(|number| self.third(self.input(at, number)?));
        let [Some((packed, 0)), Some((keys, 1)), Some((values, 2))] = parts else {
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
        self.replace([at, reshaped], "PackedAttention", vec![Some(packed)], attributes)
    }

    /// Keys or values `[batch, groups, tokens, width]`, of which these are copies for all heads of a group.
    fn group(&self, heads: usize) -> Option<usize> {
        let expanded = self.made_by(self.input(self.made_by(heads, "Reshape")?, 0)?, "Expand")?;
        let raised = self.made_by(self.input(expanded, 0)?, "Unsqueeze")?;
        let x = self.input(raised, 0)?;
        let &[batch, groups, tokens, width] = self.shape(x)? else {
            return None;
        };
        let &[_, count, _, _] = self.shape(heads)? else {
            return None;
        };
        let each = count.checked_div(groups)?;
        let fits = self.shape(heads)? == [batch, groups * each, tokens, width]
            && self.shape(self.output(raised)?)? == [batch, groups, 1, tokens, width]
            && self.shape(self.output(expanded)?)? == [batch, groups, each, tokens, width];
        fits.then_some(x)
    }

    /// Attention reads the keys and values of a group once for all of its heads.
    pub(super) fn shared_heads(&mut self, at: usize) -> Option<()> {
        let node = self.of_kind(at, "Attention")?;
        let (keys, values) = (self.group(self.input(at, 1)?)?, self.group(self.input(at, 2)?)?);
        if self.shape(keys)?.get(1) != self.shape(values)?.get(1) {
            return None;
        }
        let mut inputs = node.inputs.clone();
        inputs[1..3].copy_from_slice(&[Some(keys), Some(values)]);
        let gone = self.take(at)?;
        let unread = gone.inputs.iter().flatten().copied().collect();
        self.insert(at, Node { inputs, ..gone });
        self.sweep(unread);
        Some(())
    }

    /// `rotate_half(x) * sine`: x, and the sine.
    fn rotated(&self, product: usize) -> Option<(usize, usize)> {
        self.of_kind(product, "Mul")?;
        [0, 1].into_iter().find_map(|number| {
            let turned = self.input(product, number)?;
            let joined = self.made_by(turned, "Concat")?;
            let negated = self.made_by(self.input(joined, 0)?, "Neg")?;
            let high = self.made_by(self.input(negated, 0)?, "Slice")?;
            let low = self.made_by(self.input(joined, 1)?, "Slice")?;
            let x = self.input(high, 0)?;
            let axis = self.shape(x)?.len().checked_sub(1)? as i64;
            let half = self.shape(x)?.last()? / 2;
            let last = |given: Option<f64>| [-1, axis].iter().any(|own| given == Some(*own as f64));
            let takes = |at: usize, start: usize| {
                let number = |input| self.number(self.input(at, input)?);
                let out = self.output(at).and_then(|out| self.shape(out)?.last().copied());
                self.input(at, 0) == Some(x)
                    && out == Some(half)
                    && number(1) == Some(start as f64)
                    && last(number(3))
                    && self.is_step_of_one(at)
            };
            let fits = self.node(joined)?.inputs.len() == 2
                && last(self.integer(joined, "axis").map(|axis| axis as f64))
                && takes(low, 0)
                && takes(high, half)
                && self.shape(turned)? == self.shape(x)?;
            Some((x, self.other(product, turned).filter(|_| fits)?))
        })
    }

    /// `x * cosine + rotate_half(x) * sine`: rotary positions as Hugging Face's models have them.
    pub(super) fn rotary(&mut self, at: usize) -> Option<()> {
        self.of_kind(at, "Add")?;
        let (a, b) = (self.maker(self.input(at, 0)?)?, self.maker(self.input(at, 1)?)?);
        let (plain, (x, sine)) = match (self.rotated(a), self.rotated(b)) {
            (_, Some(found)) => (a, found),
            (Some(found), _) => (b, found),
            _ => return None,
        };
        self.of_kind(plain, "Mul")?;
        let cosine = self.other(plain, x)?;
        let &[batch, _, tokens, width] = self.shape(x)? else {
            return None;
        };
        let fits = |table: usize| {
            let shape = self.shape(table).unwrap_or_default();
            let lead = std::iter::repeat_n(1, 4usize.saturating_sub(shape.len()));
            let ranked: Vec<usize> = lead.chain(shape.iter().copied()).collect();
            let of_all = [1, batch].map(|batch| [batch, 1, tokens, width]);
            // The kernel has no gradient for them.
            !self.learned.contains(&table) && of_all.iter().any(|own| ranked == own)
        };
        if !fits(cosine) || !fits(sine) || !width.is_multiple_of(2) {
            return None;
        }
        let inputs = vec![Some(x), Some(cosine), Some(sine)];
        self.replace([at, at], "RotaryHalves", inputs, Vec::new())
    }
}
