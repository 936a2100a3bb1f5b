//! LSTM and GRU layers against their definition by Burn's operations, forward and backward.

use crate::common::{assert_close, devices, numbers, tensor, values};
use annulus_shaders::ops::recurrent::{Cell, recurrent};
use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

const SIZES: [usize; 3] = [5, 3, 4];

/// Token by token.
fn by_definition(ahead: &Tensor<3>, weight: &Tensor<2>, bias: &Tensor<1>, cell: Cell) -> Tensor<3> {
    let [count, batch, hidden] = SIZES;
    let device = ahead.device();
    let mut state: Tensor<2> = Tensor::zeros([batch, hidden], &device);
    let mut inner = state.clone();
    let mut states = Vec::new();
    for token in 0..count {
        let ahead = ahead
            .clone()
            .narrow(0, token, 1)
            .reshape([batch, cell.gates() * hidden]);
        let back = state.clone().matmul(weight.clone().transpose()) + bias.clone().unsqueeze();
        let part = |sums: &Tensor<2>, gate: usize| sums.clone().narrow(1, gate * hidden, hidden);
        state = match cell {
            Cell::Lstm => {
                let sums = ahead + back;
                inner = sigmoid(part(&sums, 1)) * inner + sigmoid(part(&sums, 0)) * part(&sums, 2).tanh();
                sigmoid(part(&sums, 3)) * inner.clone().tanh()
            }
            Cell::Gru => {
                let gate = |gate: usize| sigmoid(part(&ahead, gate) + part(&back, gate));
                let new = (part(&ahead, 2) + gate(0) * part(&back, 2)).tanh();
                new.clone() * (-gate(1) + 1) + gate(1) * state
            }
        };
        states.push(state.clone().unsqueeze());
    }
    Tensor::cat(states, 0)
}

#[test]
fn layers_and_their_gradients_are_what_they_should_be() {
    let [count, batch, hidden] = SIZES;
    for device in devices() {
        let device = device.autodiff();
        for cell in [Cell::Lstm, Cell::Gru] {
            let width = cell.gates() * hidden;
            let ahead =
                tensor(&numbers(count * batch * width, 1), [count, batch, width], &device).require_grad();
            let weight = tensor(&numbers(width * hidden, 2), [width, hidden], &device).require_grad();
            let bias = tensor(&numbers(width, 3), [width], &device).require_grad();
            let slopes = tensor(
                &numbers(count * batch * hidden, 4),
                [count, batch, hidden],
                &device,
            );
            let expected = by_definition(&ahead, &weight, &bias, cell);
            let found = recurrent(ahead.clone(), weight.clone(), bias.clone(), cell);
            let what = format!("{cell:?}");
            assert_close(&what, &values(expected.clone()), &values(found.clone()), 1e-5);
            let [expected, found] = [expected, found].map(|out| (out * slopes.clone()).sum().backward());
            let [of_ahead, wanted] = [&found, &expected].map(|all| values(ahead.grad(all).unwrap()));
            assert_close(&what, &wanted, &of_ahead, 1e-4);
            let [of_weight, wanted] = [&found, &expected].map(|all| values(weight.grad(all).unwrap()));
            assert_close(&what, &wanted, &of_weight, 1e-4);
            let [of_bias, wanted] = [&found, &expected].map(|all| values(bias.grad(all).unwrap()));
            assert_close(&what, &wanted, &of_bias, 1e-4);
        }
    }
}
