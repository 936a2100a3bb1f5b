//! Takes local steps on a GPU: parameters and moments stay there, and only three numbers per step come back.
//!
//! Otherwise the host would read all gradients, step on the processor and send all parameters, for every step: twice
//! the vector over the bus.

use annulus_core::TensorRule;
use annulus_core::optim::Optimizer;
use annulus_shaders::optim::{LocalOptimizer, Rule, Step, Totals};
use annulus_shaders::split::SplitVector;

use super::Trainer;
use super::on_device::read_total;
use super::read::{as_floats, read, read_scalar};
use super::worker::{LocalStep, Pending, Stepper, WorkerError, check_finite};
use crate::task::Task;

/// The kernels' rule for an optimizer, if they have one.
pub(super) fn rule_of(optimizer: &Optimizer) -> Option<Rule> {
    let adam = |[beta1, beta2, eps, weight_decay]: [f32; 4], decoupled| Rule::Adam {
        beta1,
        beta2,
        eps,
        weight_decay,
        decoupled,
    };
    Some(match *optimizer {
        Optimizer::Sgd { weight_decay } => Rule::Sgd { weight_decay },
        Optimizer::Momentum {
            momentum,
            nesterov,
            weight_decay,
        } => Rule::Momentum {
            momentum,
            nesterov,
            weight_decay,
        },
        Optimizer::Adam {
            beta1,
            beta2,
            eps,
            weight_decay,
        } => adam([beta1, beta2, eps, weight_decay], false),
        Optimizer::AdamW {
            beta1,
            beta2,
            eps,
            weight_decay,
        } => adam([beta1, beta2, eps, weight_decay], true),
        Optimizer::RmsProp { .. } => return None,
    })
}

impl<T: Task> Trainer<T> {
    /// The optimizer's state on the device, which begins at zero.
    pub(super) fn state_of(&self, rule: Rule) -> Option<LocalOptimizer> {
        let tensors = self.layout.tensors.iter();
        let decays: Vec<bool> = tensors
            .map(|tensor| tensor.rule == TensorRule::StepAndDecay)
            .collect();
        let device = self.device.clone().without_autodiff();
        LocalOptimizer::new(rule, &self.on_device, &decays, &device)
    }

    /// The sum of the losses, and whether the gradient is finite.
    async fn outcome(&self, total: &SplitVector, totals: &Totals) -> Result<(f32, bool), WorkerError> {
        let loss = total.view(self.layout.tensors.len(), [1]);
        let totals = read(totals.tensor()).await?;
        let loss = read_scalar(loss).await?;
        let [_, others] = as_floats(&totals)? else {
            unreachable!("a norm and a count");
        };
        Ok((loss, *others == 0.0))
    }
}

impl<T: Task> Stepper for Trainer<T> {
    fn begin_anew(&mut self) {
        let rule = self.stepping.as_ref().map(LocalOptimizer::rule);
        self.stepping = rule.and_then(|rule| self.state_of(rule));
    }

    fn step<'a>(&'a mut self, step: &LocalStep) -> Pending<'a, f32> {
        let LocalStep { number, rate, clip } = *step;
        Box::pin(async move {
            loop {
                // A step by a sum that the device has refused would spoil the parameters.
                self.settle().await?;
                let total = self.sum.on_device.clone();
                let (Some(total), Some(params), Some(optimizer)) =
                    (total, &mut self.params, &mut self.stepping)
                else {
                    // Nothing was summed.
                    return Ok(0.0);
                };
                let totals = Totals::of_gradients(&total, &self.on_device);
                let step = Step {
                    lr: rate,
                    number,
                    scale: 1.0 / self.sum.samples.len() as f32,
                    clip,
                };
                // By a sum that is not finite it changes nothing.
                optimizer.step(params, &total, Some(&totals), step);
                // After a loss that is not finite, with a finite gradient, the step is taken: no reason to make it again.
                let (loss, is_finite) = self.outcome(&total, &totals).await?;
                // Gives its memory back before another sum is made.
                drop(total);
                if self.without_overflow(is_finite)? {
                    continue;
                }
                let total = self.sum.on_device.take();
                // The parameters will be read into this allocation.
                self.sum.gradient = std::mem::take(&mut self.sum).gradient;
                if !loss.is_finite() {
                    return Err(WorkerError::LossNotFinite);
                }
                if let Some(total) = total.filter(|_| !is_finite) {
                    // To name the tensor, the whole gradient must be read.
                    let mut gradient = vec![0.0; self.layout.len];
                    read_total(&total, &mut gradient).await?;
                    check_finite(&self.layout, &gradient)?;
                }
                return Ok(loss);
            }
        })
    }

    fn stepped(&mut self) -> Pending<'_, Vec<f32>> {
        Box::pin(async move {
            let mut params = std::mem::take(&mut self.sum.gradient);
            params.resize(self.layout.len, 0.0);
            if let Some(vector) = &self.params {
                read_total(vector, &mut params).await?;
            }
            Ok(params)
        })
    }
}
