//! LSTM and GRU, token by token.

use annulus_shaders::ops::linear::WeightLayout;
use burn::backend::Dispatch;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::tensor::TensorData;

use super::product::affine;
use super::slice::{columns, rows};
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[Kind::ours("Recurrent", (5, 5), recurrent).with(&[("kind", Type::Text)])];

/// One layer of PyTorch's: x `[time, batch, features]`, then its weights and biases for inputs and for the state, with
/// the gates one below the other. The state is 0 before the first token.
fn recurrent(call: &mut Call) -> Made {
    let gates = match call.text("kind") {
        Some("lstm") => 4,
        Some("gru") => 3,
        other => {
            return Err(format!(
                "the kind {:?}, which is not lstm or gru",
                other.unwrap_or("")
            ));
        }
    };
    let x = call.floats(0)?;
    let (input_weight, state_weight) = (call.floats(1)?, call.floats(2)?);
    let (input_bias, state_bias) = (call.floats(3)?, call.floats(4)?);
    let &[steps, batch, _] = x.shape() else {
        return Err(format!(
            "an input of shape {:?}, which is not [time, batch, features]",
            x.shape()
        ));
    };
    let hidden = match state_weight.shape() {
        [rows, hidden] if hidden.checked_mul(gates) == Some(*rows) => *hidden,
        other => return Err(format!("weights of shape {other:?} for the state")),
    };
    if input_weight.shape().first() != Some(&(gates * hidden)) {
        return Err(format!(
            "weights of shape {:?} for the input",
            input_weight.shape()
        ));
    }
    let layout = WeightLayout::OutputsFirst;
    let ahead = affine(call, x, input_weight, (Some(input_bias), None), layout)?;
    let ahead = ahead.reshaped(vec![steps * batch, gates * hidden]);
    let count = call.reserve(&[batch, hidden])?;
    let zeros = TensorData::new(vec![0.0f32; count], [batch, hidden]);
    let zeros = Floats::new(Dispatch::float_from_data(zeros, call.pass.device));
    let mut state = State {
        hidden: zeros.clone(),
        cell: zeros,
    };
    call.reserve(&[steps, batch, hidden])?;
    let mut all = Vec::with_capacity(steps);
    for step in 0..steps {
        // About as much as the gates and what is made of them.
        call.reserve(&[4, batch, gates * hidden])?;
        let ahead = rows(&ahead, step * batch, batch);
        let (weight, bias) = (state_weight.clone(), state_bias.clone());
        let back = affine(call, state.hidden.clone(), weight, (Some(bias), None), layout)?;
        state = match gates {
            4 => state.lstm(&add(ahead, back), hidden),
            _ => state.gru(&ahead, &back, hidden),
        };
        all.push(state.hidden.clone().reshaped(vec![1, batch, hidden]).tensor());
    }
    one(Floats::new(Dispatch::float_cat(all, 0)))
}

fn add(a: Floats, b: Floats) -> Floats {
    Floats::new(Dispatch::float_add(a.tensor(), b.tensor()))
}

fn mul(a: Floats, b: Floats) -> Floats {
    Floats::new(Dispatch::float_mul(a.tensor(), b.tensor()))
}

fn sigmoid(x: Floats) -> Floats {
    Floats::new(Dispatch::sigmoid(x.tensor()))
}

fn tanh(x: Floats) -> Floats {
    Floats::new(Dispatch::float_tanh(x.tensor()))
}

/// What one token leaves for the next, `[batch, hidden]` each.
struct State {
    hidden: Floats,
    /// Of the LSTM alone.
    cell: Floats,
}

impl State {
    /// Gates in PyTorch's order: input, forget, cell, output.
    fn lstm(self, sums: &Floats, hidden: usize) -> Self {
        let gate = |number: usize| columns(sums, number * hidden, hidden);
        let kept = mul(sigmoid(gate(1)), self.cell);
        let cell = add(kept, mul(sigmoid(gate(0)), tanh(gate(2))));
        let hidden = mul(sigmoid(gate(3)), tanh(cell.clone()));
        Self { hidden, cell }
    }

    /// Gates in PyTorch's order: reset, update, new.
    fn gru(self, ahead: &Floats, back: &Floats, hidden: usize) -> Self {
        let part = |sums: &Floats, number: usize| columns(sums, number * hidden, hidden);
        let gate = |number: usize| sigmoid(add(part(ahead, number), part(back, number)));
        let new = tanh(add(part(ahead, 2), mul(gate(0), part(back, 2))));
        let difference = Floats::new(Dispatch::float_sub(self.hidden.tensor(), new.clone().tensor()));
        let hidden = add(new, mul(gate(1), difference));
        Self {
            hidden,
            cell: self.cell,
        }
    }
}
