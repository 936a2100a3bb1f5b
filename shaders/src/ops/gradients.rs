//! How an operation enters the graph of what gradients can be taken of.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use std::fmt::Debug;

/// The gradients for an operation's parents, from what it has kept and the gradient for its result; needed are those that
/// are said to be wanted.
type Slopes<B, S, const N: usize> = fn(S, FloatTensor<B>, [bool; N]) -> [Option<FloatTensor<B>>; N];

#[derive(Debug)]
struct Step<B: Backend, S, const N: usize>(Slopes<B, S, N>);

impl<B: Backend, S: Clone + Send + Debug + 'static, const N: usize> Backward<B, N> for Step<B, S, N> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let slopes = (self.0)(ops.state, gradient, wanted);
        for (parent, slope) in ops.parents.into_iter().zip(slopes) {
            if let (Some(parent), Some(slope)) = (parent, slope) {
                gradients.register::<B>(parent.id, slope);
            }
        }
    }
}

/// Runs an operation on the inner backend and puts it into the graph. `forward` gives its result and what `backward` needs,
/// and is told whether anything will be.
pub fn differentiable<
    B: Backend,
    C: CheckpointStrategy,
    S: Clone + Send + Debug + 'static,
    const N: usize,
>(
    parents: [NodeGuard; N],
    forward: impl FnOnce(bool) -> (FloatTensor<B>, S),
    backward: Slopes<B, S, N>,
) -> FloatTensor<Autodiff<B, C>> {
    match Step(backward).prepare::<C>(parents).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let (out, kept) = forward(true);
            prepared.finish(kept, out)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(false).0),
    }
}
