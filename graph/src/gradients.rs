//! Gradients by the names of the parameters. Knows nothing of graphs: any Burn module will do.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

/// A parameter of a module, and a loss's gradient along it.
#[derive(Clone, Debug)]
pub struct NamedGradient {
    /// The names of the fields that lead to it, joined by dots, such as `layer.weight`.
    pub name: String,
    /// The shape in the module.
    pub shape: Vec<usize>,
    /// The parameter, all elements along one axis.
    pub value: Tensor<1>,
    /// The gradient, as the value lies; none if the loss does not depend on the parameter.
    pub gradient: Option<Tensor<1>>,
}

/// The parameters of a module on a device with autodiff, in its order, with their gradients.
pub fn named_gradients(model: &impl Module, gradients: &Gradients) -> Vec<NamedGradient> {
    let mut collect = Collect {
        gradients,
        path: Vec::new(),
        found: Vec::new(),
    };
    model.visit(&mut collect);
    collect.found
}

struct Collect<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: Vec<NamedGradient>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let shape = value.dims().to_vec();
        let count = shape.iter().product::<usize>();
        let gradient = value.grad(self.gradients);
        self.found.push(NamedGradient {
            name: self.path.join("."),
            shape,
            value: value.inner().reshape([count]),
            gradient: gradient.map(|gradient| gradient.reshape([count])),
        });
    }
}
