//! Where each parameter of a Burn model lies in one flat vector.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};

use super::worker::WorkerError;
use annulus_core::{Layout, TensorRule, TensorSpec};

/// Lists the parameters in visiting order. `rule` is [`Task::rule`](crate::task::Task::rule).
///
/// # Errors
///
/// If there are none, or some that cannot be trained by summing gradients.
pub fn layout_of<M: Module>(
    model: &M,
    rule: impl Fn(&str) -> Option<TensorRule>,
) -> Result<Layout, WorkerError> {
    let mut list = List::default();
    model.visit(&mut list);
    list.finish(rule)
}

/// The parameters that were visited so far.
#[derive(Default)]
pub(super) struct List {
    path: Vec<String>,
    layout: Layout,
    pub(super) problem: Option<String>,
}

impl List {
    pub(super) fn enter(&mut self, name: &str, container_type: &str) {
        self.path.push(name.to_owned());
        if container_type.ends_with(":BatchNorm") {
            // The type belongs to the module that has the field `name`.
            let module = self.path[..self.path.len() - 1].join(".");
            let problem = format!(
                "{module} is a batch normalization, whose running statistics no gradient carries \
                 to the other peers; use group or layer normalization"
            );
            self.problem.get_or_insert(problem);
        }
    }

    pub(super) fn exit(&mut self) {
        self.path.pop();
    }

    pub(super) fn add<const D: usize>(&mut self, tensor: &Tensor<D>) {
        let name = self.path.join(".");
        if tensor.dtype() != DType::F32 {
            let problem = format!("{name} is of type {:?}; only f32 is trained", tensor.dtype());
            self.problem.get_or_insert(problem);
        }
        let spec = TensorSpec {
            name,
            shape: tensor.dims().to_vec(),
            offset: self.layout.len,
            // Biases and normalizations have one dimension. A frozen parameter has no gradient and must not decay
            // either.
            rule: match D > 1 && tensor.is_require_grad() {
                true => TensorRule::StepAndDecay,
                false => TensorRule::Step,
            },
        };
        self.layout.len += spec.len();
        self.layout.tensors.push(spec);
    }

    /// The layout of all parameters.
    ///
    /// # Errors
    ///
    /// If there are none, or some that cannot be trained by summing gradients.
    pub(super) fn finish(mut self, rule: impl Fn(&str) -> Option<TensorRule>) -> Result<Layout, WorkerError> {
        let unsupported = |problem: String| Err(WorkerError::Unsupported { problem });
        if let Some(problem) = self.problem {
            return unsupported(problem);
        }
        if self.layout.len == 0 {
            return unsupported("it has no parameters".to_owned());
        }
        for tensor in &mut self.layout.tensors {
            tensor.rule = rule(&tensor.name).unwrap_or(tensor.rule);
        }
        Ok(self.layout)
    }
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(&param.base());
    }
}
