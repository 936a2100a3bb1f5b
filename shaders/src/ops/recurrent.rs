//! LSTM and GRU layers over all tokens of a sequence, with the gates in PyTorch's order.
//!
//! The graph of gradients has one node for the whole sequence. With one for each token, the gradient of each token's inputs
//! would be a tensor of all tokens' inputs, most of it zeros.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape, Tensor};

use super::gradients::differentiable;
use super::host;
use super::linear::{Products, Rest, WeightLayout};
use crate::cpu::activation::{sigmoids, tanhs};

const LAYOUT: WeightLayout = WeightLayout::OutputsFirst;

/// Which layer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Gates: input, forget, cell, output (Hochreiter and Schmidhuber, 1997; Gers and others, 2000).
    Lstm,
    /// Gates: reset, update, new (Cho and others, 2014), with the reset behind the product, as cuDNN has it.
    Gru,
}

impl Cell {
    /// How many gates it has.
    pub fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }
}

/// The state after each token, `[tokens, batch, hidden]`, from 0 on. `ahead` are the inputs' products with their weights,
/// and their bias, `[tokens, batch, gates * hidden]`; the weights for the state `[gates * hidden, hidden]` have a bias too.
pub fn recurrent<const D: usize>(
    ahead: Tensor<D>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    cell: Cell,
) -> Tensor<D> {
    let (ahead, weight, bias) = (
        ahead.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
    );
    Tensor::from_dispatch(Dispatch::recurrence(ahead, weight, bias, cell))
}

/// The functions of the gates, not differentiable.
pub trait Gates: Products {
    /// The logistic function.
    fn open(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The hyperbolic tangent.
    fn bend(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl Gates for CubeBackend {
    fn open(x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::sigmoid(x)
    }

    fn bend(x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_tanh(x)
    }
}

/// By vectors. Burn's CPU backend takes one number after the other.
impl Gates for Flex {
    fn open(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let mut x = host::contiguous(x);
        sigmoids(host::floats_mut(&mut x));
        x
    }

    fn bend(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let mut x = host::contiguous(x);
        tanhs(host::floats_mut(&mut x));
        x
    }
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait RecurrentOps: Backend {
    /// See [`recurrent`].
    fn recurrence(
        ahead: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        cell: Cell,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl RecurrentOps for $backend {
            fn recurrence(
                ahead: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                cell: Cell,
            ) -> FloatTensor<Self> {
                forward::<Self>(&ahead, weight, bias, cell).0
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: RecurrentOps + Gates, C: CheckpointStrategy> RecurrentOps for Autodiff<B, C> {
    fn recurrence(
        ahead: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        cell: Cell,
    ) -> FloatTensor<Self> {
        let nodes = [ahead.node(), weight.node(), bias.node()];
        let [ahead, weight, bias] = [ahead, weight, bias].map(Self::inner);
        let forward = |_| forward::<B>(&ahead, weight, bias, cell);
        differentiable::<B, C, _, 3>(nodes, forward, |saved, gradient, _| {
            backward(saved, gradient).map(Some)
        })
    }
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    cell: Cell,
    weight: FloatTensor<B>,
    tokens: Vec<Token<B>>,
}

/// The values of one token that the backward pass needs, `[batch, hidden]` each.
#[derive(Clone, Debug)]
struct Token<B: Backend> {
    /// The state before.
    before: FloatTensor<B>,
    /// The gates, after their activations.
    gates: Vec<FloatTensor<B>>,
    /// LSTM: the cell before. GRU: the state's part of the new one.
    inner: FloatTensor<B>,
    /// LSTM alone: tanh of the cell after.
    bent: Option<FloatTensor<B>>,
}

fn forward<B: Gates>(
    ahead: &FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    cell: Cell,
) -> (FloatTensor<B>, Saved<B>) {
    let shape = ahead.shape();
    let [count, batch, width] = [shape[0], shape[1], shape[2]];
    let hidden = width / cell.gates();
    let zeros = || B::float_zeros([batch, hidden].into(), &ahead.device(), FloatDType::F32);
    let product = B::weight(weight.clone());
    let (mut state, mut inner) = (zeros(), zeros());
    let (mut states, mut tokens) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for token in 0..count {
        let ahead = part::<B>(ahead, 0, token, 1);
        let ahead = B::float_reshape(ahead, [batch, width].into());
        let rest = Rest::adding(Some(bias.clone()), None);
        let (back, _) = B::affine(&state, &product, LAYOUT, rest);
        let before = state;
        let of = |sums: &FloatTensor<B>, gate: usize| part::<B>(sums, 1, gate * hidden, hidden);
        let made = match cell {
            Cell::Lstm => {
                let sums = B::float_add(ahead, back);
                let [input, keep, output] = [0, 1, 3].map(|gate| B::open(of(&sums, gate)));
                let new = B::bend(of(&sums, 2));
                let after = B::float_add(mul::<B>(&keep, &inner), mul::<B>(&input, &new));
                let bent = B::bend(after.clone());
                state = mul::<B>(&output, &bent);
                Token {
                    before,
                    gates: vec![input, keep, new, output],
                    inner: std::mem::replace(&mut inner, after),
                    bent: Some(bent),
                }
            }
            Cell::Gru => {
                let sum = |gate| B::float_add(of(&ahead, gate), of(&back, gate));
                let [reset, update] = [0, 1].map(|gate| B::open(sum(gate)));
                let back = of(&back, 2);
                let new = B::bend(B::float_add(of(&ahead, 2), mul::<B>(&reset, &back)));
                let difference = B::float_sub(before.clone(), new.clone());
                state = B::float_add(new.clone(), mul::<B>(&update, &difference));
                Token {
                    before,
                    gates: vec![reset, update, new],
                    inner: back,
                    bent: None,
                }
            }
        };
        tokens.push(made);
        states.push(B::float_reshape(state.clone(), [1, batch, hidden].into()));
    }
    let out = match states.is_empty() {
        true => B::float_zeros([0, batch, hidden].into(), &ahead.device(), FloatDType::F32),
        false => B::float_cat(states, 0),
    };
    (out, Saved { cell, weight, tokens })
}

/// The gradients for `ahead`, the weights and the bias.
fn backward<B: Products>(saved: Saved<B>, gradient: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let Saved { cell, weight, tokens } = saved;
    let device = gradient.device();
    let shape = gradient.shape();
    let [count, batch, hidden] = [shape[0], shape[1], shape[2]];
    let width = cell.gates() * hidden;
    let zeros = |shape: Shape| B::float_zeros(shape, &device, FloatDType::F32);
    if count * batch == 0 {
        return [
            zeros([count, batch, width].into()),
            zeros([width, hidden].into()),
            zeros([width].into()),
        ];
    }
    // Turned once, so that each token's product reads it as it lies.
    let product = B::weight(B::float_transpose(weight));
    let mut to_state = zeros([batch, hidden].into());
    let mut to_inner = to_state.clone();
    // Of each token: for the products of the inputs and of the state.
    let (mut aheads, mut backs, mut befores) = (Vec::new(), Vec::new(), Vec::new());
    for (token, made) in tokens.into_iter().enumerate().rev() {
        let here = B::float_reshape(part::<B>(&gradient, 0, token, 1), [batch, hidden].into());
        let to_here = B::float_add(to_state, here);
        let (ahead, back, beside) = match (cell, &made.gates[..], &made.bent) {
            (Cell::Lstm, [input, keep, new, output], Some(bent)) => {
                let to_output = mul::<B>(&to_here, bent);
                let to_after = B::float_add(to_inner, by_tanh::<B>(mul::<B>(&to_here, output), bent));
                let sums = B::float_cat(
                    vec![
                        by_sigmoid::<B>(mul::<B>(&to_after, new), input),
                        by_sigmoid::<B>(mul::<B>(&to_after, &made.inner), keep),
                        by_tanh::<B>(mul::<B>(&to_after, input), new),
                        by_sigmoid::<B>(to_output, output),
                    ],
                    1,
                );
                to_inner = mul::<B>(&to_after, keep);
                (sums.clone(), sums, None)
            }
            (_, [reset, update, new], _) => {
                let difference = B::float_sub(made.before.clone(), new.clone());
                let to_update = by_sigmoid::<B>(mul::<B>(&to_here, &difference), update);
                let kept = mul::<B>(&to_here, update);
                let to_new = by_tanh::<B>(B::float_sub(to_here, kept.clone()), new);
                let to_reset = by_sigmoid::<B>(mul::<B>(&to_new, &made.inner), reset);
                let to_back = mul::<B>(&to_new, reset);
                let ahead = B::float_cat(vec![to_reset.clone(), to_update.clone(), to_new], 1);
                let back = B::float_cat(vec![to_reset, to_update, to_back], 1);
                (ahead, back, Some(kept))
            }
            _ => unreachable!("a cell has its gates"),
        };
        to_state = B::affine_input_gradient(&back, &product, WeightLayout::InputsFirst, None);
        if let Some(beside) = beside {
            to_state = B::float_add(to_state, beside);
        }
        aheads.push(B::float_reshape(ahead, [1, batch, width].into()));
        backs.push(back);
        befores.push(made.before);
    }
    aheads.reverse();
    let (backs, befores) = (B::float_cat(backs, 0), B::float_cat(befores, 0));
    let (to_weight, to_bias) = B::affine_weight_gradient(&befores, &backs, LAYOUT, true);
    let to_bias = to_bias.expect("it was asked for");
    [B::float_cat(aheads, 0), to_weight, to_bias]
}

fn mul<B: Backend>(a: &FloatTensor<B>, b: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_mul(a.clone(), b.clone())
}

/// The gradient for what a sigmoid was applied to, from its output.
fn by_sigmoid<B: Backend>(gradient: FloatTensor<B>, output: &FloatTensor<B>) -> FloatTensor<B> {
    let slope = B::float_sub(output.clone(), mul::<B>(output, output));
    B::float_mul(gradient, slope)
}

/// The gradient for what a tanh was applied to, from its output.
fn by_tanh<B: Backend>(gradient: FloatTensor<B>, output: &FloatTensor<B>) -> FloatTensor<B> {
    let less = B::float_mul(mul::<B>(&gradient, output), output.clone());
    B::float_sub(gradient, less)
}

/// `count` numbers of an axis from `start` on.
fn part<B: Backend>(tensor: &FloatTensor<B>, axis: usize, start: usize, count: usize) -> FloatTensor<B> {
    let shape = tensor.shape();
    let slices: Vec<_> = (0..shape.num_dims())
        .map(|at| match at == axis {
            true => (start..start + count).into(),
            false => (0..shape[at]).into(),
        })
        .collect();
    B::float_slice(tensor.clone(), &slices)
}
