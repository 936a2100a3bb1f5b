//! LSTM and GRU.

use annulus_shaders::ops::linear::WeightLayout;
use annulus_shaders::ops::recurrent::{self as ops, Cell};

use super::product::affine;
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[Kind::ours("Recurrent", (5, 5), recurrent).with(&[("kind", Type::Text)])];

/// One layer of PyTorch's: x `[time, batch, features]`, then its weights and biases for inputs and for the state, with
/// the gates one below the other. The state is 0 before the first token.
fn recurrent(call: &mut Call) -> Made {
    let cell = match call.text("kind") {
        Some("lstm") => Cell::Lstm,
        Some("gru") => Cell::Gru,
        other => {
            return Err(format!(
                "the kind {:?}, which is not lstm or gru",
                other.unwrap_or("")
            ));
        }
    };
    let gates = cell.gates();
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
    let ahead = ahead.reshaped(vec![steps, batch, gates * hidden]);
    for _ in 0..steps {
        // About as much as the gates and what is made of them.
        call.reserve(&[4, batch, gates * hidden])?;
    }
    call.multiply(&[steps, batch, gates * hidden, hidden])?;
    let made = ops::recurrent::<1>(ahead.any(), state_weight.any(), state_bias.any(), cell);
    one(Floats::new(made.into_dispatch()))
}
