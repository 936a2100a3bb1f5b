//! A model that can be run: its nodes, parameters and inputs.

use std::collections::HashMap;

use annulus_shaders::needs::Layer;
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Device, Shape, Tensor};

use crate::error::{GraphError, NodeName};
use crate::fuse::{Fusion, Known};
use crate::host::{Element, HostTensor};
use crate::limits::Limits;
use crate::model::GraphModel;
use crate::onnx::Attribute;
use crate::ops;
use crate::pass::{Node, Pass, Statistic};
use crate::plan::{Plan, Plans};
use crate::value::{Floats, Value};
use crate::weights::first_values;
use crate::work::Work;

/// A parameter, or a buffer that training changes.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in the state_dict.
    pub name: String,
    /// How it changes.
    pub role: Role,
    /// Whether weight decay is for it, if it is trained.
    pub decays: bool,
    pub(crate) slot: usize,
    pub(crate) initial: HostTensor,
}

impl Parameter {
    /// Its shape in the state_dict.
    pub fn shape(&self) -> &[usize] {
        self.initial.shape()
    }

    /// Its value before training.
    pub fn initial(&self) -> &HostTensor {
        &self.initial
    }
}

/// How a parameter changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// The optimizer changes it by its gradient.
    Trained,
    /// A running statistic of batch norm. It moves this share of the way to each batch's own statistic.
    Statistic {
        /// Above 0, and at most 1.
        rate: f64,
    },
}

/// An input of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// Lengths of its axes, none where batches differ; the first axis counts samples. None if the file does not say.
    pub shape: Option<Vec<Option<usize>>>,
    pub(crate) slot: usize,
}

/// How to run a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Whether batch norm uses the batch's own statistics, and dropout drops.
    pub training: bool,
    /// The seed of dropout; without one nothing is dropped. The same seed drops the same numbers on all devices.
    pub dropout: Option<u64>,
}

/// What a pass gives.
#[derive(Debug)]
pub struct Output {
    /// The loss, one element, with gradients if the model's device records them.
    pub loss: Tensor<1>,
    /// The logits, if the model tells which value they are.
    pub logits: Option<Floats>,
    /// The batch's own statistics, in training.
    pub statistics: Vec<Statistic>,
}

/// A model from a file. [`read`](Self::read) makes one.
pub struct Graph {
    pub(crate) names: Vec<String>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) inputs: Vec<Input>,
    /// Float constants with 2 or more axes, which live on the device.
    pub(crate) constants: Vec<(usize, HostTensor)>,
    pub(crate) loss: usize,
    pub(crate) logits: Option<usize>,
    pub(crate) limits: Limits,
    /// The shapes of values in the pass that showed patterns; none before.
    pub(crate) shapes: Vec<Option<Vec<usize>>>,
    /// All nodes, for shapes that were not seen before.
    pub(crate) whole: Plan,
    pub(crate) plans: Plans,
}

impl Graph {
    /// The parameters in the order of the module: those that are trained, then running statistics.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Takes the first values of all parameters from tensors by name, such as those of another run.
    ///
    /// # Errors
    ///
    /// As [`first_values`].
    pub fn start_from(&mut self, tensors: &[(String, HostTensor)]) -> Result<(), GraphError> {
        let wanted = self.parameters.iter().map(|own| (&*own.name, own.shape()));
        let values = first_values(wanted, tensors)?;
        for (parameter, value) in self.parameters.iter_mut().zip(values) {
            parameter.initial = value;
        }
        Ok(())
    }

    /// The inputs.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Whether the file tells which value the logits are.
    pub fn has_logits(&self) -> bool {
        self.logits.is_some()
    }

    /// Whether a pass in training draws random numbers.
    pub fn draws(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| match node.kind.name {
            "Dropout" | "Random" => true,
            "Attention" => drops(node),
            _ => false,
        })
    }

    /// Whether a pass in training draws random numbers or depends on how samples are divided into batches.
    pub fn depends_on_batch(&self) -> bool {
        let mut nodes = self.nodes.iter();
        self.draws() || nodes.any(|node| node.kind.name == "BatchNormalization")
    }

    /// The names of its operations, in their order.
    pub fn operations(&self) -> Vec<&'static str> {
        self.nodes.iter().map(|node| node.kind.name).collect()
    }

    /// The input that holds the classes, if the loss is the cross-entropy of the logits.
    pub fn classes(&self) -> Option<&Input> {
        let outputs = self
            .nodes
            .iter()
            .flat_map(|node| node.outputs.iter().flatten().map(move |slot| (*slot, node)));
        let makers: HashMap<usize, &Node> = outputs.collect();
        // The value that another one is a mere name of. An earlier node makes it, so this ends.
        let origin = |mut slot: usize| {
            while let Some(node) = makers.get(&slot).filter(|node| node.kind.name == "Identity")
                && let Some(source) = node.inputs[0]
            {
                slot = source;
            }
            slot
        };
        let node = makers.get(&origin(self.loss))?;
        let [Some(logits), Some(classes)] = node.inputs[..] else {
            return None;
        };
        let of_logits = self.logits.is_some_and(|own| origin(own) == origin(logits));
        if node.kind.name != "SoftmaxCrossEntropyLoss" || !of_logits {
            return None;
        }
        let classes = origin(classes);
        self.inputs.iter().find(|input| input.slot == classes)
    }

    /// The layers of ours that it runs, so that a device compiles the kernels of no others.
    pub fn layers(&self) -> Vec<Layer> {
        // Whether a kernel reads four numbers at once follows from shapes, so both are told.
        let widths = [1, 4];
        let mut layers = Vec::new();
        for node in &self.nodes {
            match node.kind.name {
                "Linear" | "Mlp" | "MatMul" | "Gemm" | "Recurrent" => layers.push(Layer::Linear),
                "Conv" | "ConvTranspose" => layers.push(Layer::Convolution),
                "MaxPool" | "AveragePool" => layers.push(Layer::Pool),
                "BatchNormalization" => layers.extend(widths.map(|each| Layer::BatchNorm { each })),
                "Gelu" | "Swish" => layers.push(Layer::Activation),
                "Gated" => layers.push(Layer::Gated),
                "Dropout" => layers.push(Layer::Dropout),
                "Gather" | "EmbeddingAt" => layers.extend(widths.map(|width| Layer::Embedding { width })),
                "LayerNormalization" | "RMSNormalization" => {
                    layers.extend(widths.map(|width| Layer::Norm { width }));
                }
                "Softmax" => layers.extend(widths.map(|width| Layer::Softmax { width })),
                "Attention" => layers.extend(self.layers_of_attention(node)),
                "RotaryHalves" => {
                    let head_dim = self.last_axis(node).unwrap_or(8);
                    layers.push(Layer::RotaryHalves { head_dim });
                }
                "PackedAttention" => {
                    layers.extend([16, 32, 64].map(|head_dim| Layer::Attention { head_dim }));
                }
                "SoftmaxCrossEntropyLoss" => {
                    layers.extend(widths.map(|classes| Layer::CrossEntropy { classes }));
                }
                _ => {}
            }
        }
        let is_new = |i: &usize| !layers[..*i].contains(&layers[*i]);
        (0..layers.len()).filter(is_new).map(|i| layers[i]).collect()
    }

    /// Those that attention of separate queries, keys and values may take.
    fn layers_of_attention(&self, node: &Node) -> Vec<Layer> {
        // Whether a mask hides anything is known when it is there, and nothing is dropped in evaluations.
        let has_mask = node.inputs.len() > 3;
        let forms: &[bool] = match has_mask || drops(node) {
            true => &[false, true],
            false => &[false],
        };
        let head_dim = self.last_axis(node);
        if head_dim.is_none_or(|width| width.is_multiple_of(4)) {
            let dims = head_dim.map_or(vec![32, 64], |width| vec![width]);
            let layers = dims.iter().flat_map(|head_dim| {
                forms.iter().map(move |masked| Layer::SeparateAttention {
                    head_dim: *head_dim,
                    masked: *masked,
                })
            });
            return layers.collect();
        }
        let mut layers = vec![Layer::Softmax { width: 1 }, Layer::Softmax { width: 4 }];
        if drops(node) {
            layers.push(Layer::Dropout);
        }
        layers
    }

    /// The last axis of a node's first input, once shapes are known.
    fn last_axis(&self, node: &Node) -> Option<usize> {
        self.shapes.get(node.inputs[0]?)?.as_ref()?.last().copied()
    }

    /// The model with its first parameters on a device.
    ///
    /// # Errors
    ///
    /// If a parameter has more axes than a Burn module can have.
    pub fn model(&self, device: &Device) -> Result<GraphModel, GraphError> {
        let params = self.parameters.iter().map(|p| (&*p.name, &p.initial));
        let constants = self.constants.iter().map(|(_, value)| value);
        GraphModel::new(params, constants, device).map_err(GraphError::model)
    }

    /// Replaces patterns of operations by faster ones of ours, for batches like this one: of 3 samples or more, so that
    /// no axis is taken for the batch's. Runs the batch on the CPU, and returns the work for a sample.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn fuse(&mut self, inputs: &[(String, HostTensor)]) -> Result<Work, GraphError> {
        let device = Device::flex();
        let options = PassOptions {
            training: true,
            dropout: None,
        };
        let mut pass = self.begin(&self.model(&device)?, &device, options).trial();
        self.set_inputs(&mut pass, inputs)?;
        self.execute(&mut pass, &self.whole, false)?;
        let shapes = pass.shapes.clone();
        self.output(pass)?;
        let samples = inputs.first().and_then(|(_, own)| own.shape().first());
        let samples = samples.copied().unwrap_or(1);
        let work = Work::of(&self.nodes, &shapes, samples);
        let stored = self.constants.iter().chain(&self.whole.known);
        let kept = self.kept();
        let known = Known {
            shapes: &shapes,
            parameters: self.parameters.iter().map(|parameter| parameter.slot).collect(),
            stored: stored.map(|(slot, value)| (*slot, value)).collect(),
            kept: &kept,
        };
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes = Fusion::new(nodes, known, ops::find).run();
        let known = std::mem::take(&mut self.whole.known);
        self.whole = Plan::of(&self.nodes, 0..self.nodes.len(), &kept, known);
        self.plans = Plans::default();
        let work = work.with_bytes(&self.nodes, &shapes, samples);
        self.shapes = shapes;
        Ok(work)
    }

    /// Computes the loss of a batch: a tensor for each input, by name. The model must be one of this graph and lie on
    /// the device. The first axis of each input counts samples.
    ///
    /// # Errors
    ///
    /// If an input does not fit, or an operation cannot work on it; the message names it.
    pub fn run(
        &self,
        model: &GraphModel,
        inputs: &[(String, HostTensor)],
        device: &Device,
        options: PassOptions,
    ) -> Result<Output, GraphError> {
        let pass = self.pass(model, inputs, device, options)?;
        self.output(pass)
    }

    /// Runs all nodes.
    fn pass<'a>(
        &'a self,
        model: &GraphModel,
        inputs: &[(String, HostTensor)],
        device: &'a Device,
        options: PassOptions,
    ) -> Result<Pass<'a>, GraphError> {
        let mut pass = self.begin(model, device, options);
        let shapes = self.set_inputs(&mut pass, inputs)?;
        let plan = self.plans.get(&shapes);
        self.execute(&mut pass, plan.as_deref().unwrap_or(&self.whole), plan.is_some())?;
        if plan.is_none() {
            let plan = self.whole.reduced(&self.nodes, &pass, &self.kept());
            self.plans.keep(shapes, plan, self.limits.bytes);
        }
        Ok(pass)
    }

    /// A pass before its inputs.
    fn begin<'a>(&'a self, model: &GraphModel, device: &'a Device, options: PassOptions) -> Pass<'a> {
        let mut pass = Pass::new(device.as_dispatch(), &self.limits, &self.names);
        pass.training = options.training;
        pass.dropout = options.dropout;
        self.set_parameters(&mut pass, model, 0..self.parameters.len());
        self.set_constants(&mut pass, model, 0..self.constants.len());
        pass
    }

    /// Takes parameters, by their numbers, to the device.
    pub(crate) fn set_parameters(
        &self,
        pass: &mut Pass,
        model: &GraphModel,
        numbers: impl IntoIterator<Item = usize>,
    ) {
        for number in numbers {
            let parameter = &self.parameters[number];
            let value = Floats::shaped(model.value(number), parameter.shape().to_vec());
            pass.set(parameter.slot, value.into(), false);
        }
    }

    pub(crate) fn set_constants(
        &self,
        pass: &mut Pass,
        model: &GraphModel,
        numbers: impl IntoIterator<Item = usize>,
    ) {
        for number in numbers {
            let value = Floats::new(model.constant(number));
            pass.set(self.constants[number].0, value.into(), false);
        }
    }

    /// Values that the output needs.
    pub(crate) fn kept(&self) -> Vec<usize> {
        [self.loss].into_iter().chain(self.logits).collect()
    }

    pub(crate) fn execute(&self, pass: &mut Pass, plan: &Plan, free: bool) -> Result<(), GraphError> {
        plan.set_known(pass);
        for (number, unused) in &plan.steps {
            self.compute(pass, &self.nodes[*number])?;
            for slot in unused {
                // A first pass keeps what is fixed, for the plan.
                if free || pass.fixed(*slot).is_none() {
                    pass.free(*slot);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn compute(&self, pass: &mut Pass, node: &Node) -> Result<(), GraphError> {
        pass.step(node).map_err(|problem| GraphError::Node {
            node: NodeName {
                name: node.name.clone(),
                operation: node.kind.name.to_owned(),
            },
            problem,
        })
    }

    /// Checks the inputs and puts each in its lane; their shapes.
    pub(crate) fn set_inputs(
        &self,
        pass: &mut Pass,
        given: &[(String, HostTensor)],
    ) -> Result<Vec<Vec<usize>>, GraphError> {
        let given: HashMap<&str, &HostTensor> = given.iter().map(|(name, value)| (&**name, value)).collect();
        let mut samples = None;
        let mut shapes = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let fault = |problem: String| GraphError::input(&input.name, problem);
            let value = *given
                .get(&*input.name)
                .ok_or_else(|| fault("is missing".into()))?;
            input.check(value).map_err(fault)?;
            let count = value.shape().first().copied().unwrap_or(0);
            if *samples.get_or_insert(count) != count {
                return Err(fault("has another number of samples than the others".into()));
            }
            let value = match value.element() {
                Element::Float => pass.upload(value).map(Value::from),
                _ => pass
                    .budget
                    .reserve_host(value.shape())
                    .map(|_| value.clone().into()),
            };
            pass.set(input.slot, value.map_err(fault)?, false);
            shapes.push(given[&*input.name].shape().to_vec());
        }
        Ok(shapes)
    }

    /// A value that follows from the parameters.
    pub(crate) fn floats(&self, pass: &Pass, slot: usize) -> Result<Floats, GraphError> {
        match pass.get(slot) {
            Some(Value::Device(floats)) => Ok(floats.clone()),
            _ => {
                let name = &self.names[slot];
                Err(GraphError::model(format!(
                    "`{name}` does not follow from the parameters"
                )))
            }
        }
    }

    pub(crate) fn output(&self, pass: Pass) -> Result<Output, GraphError> {
        let loss = self.floats(&pass, self.loss)?;
        if loss.shape().iter().product::<usize>() != 1 {
            let (name, shape) = (&self.names[self.loss], loss.shape());
            let problem = format!(
                "the loss `{name}` has the shape {shape:?}; it must be one number, the mean over the samples"
            );
            return Err(GraphError::model(problem));
        }
        let loss = Dispatch::float_reshape(loss.tensor(), Shape::from(vec![1]));
        Ok(Output {
            loss: Tensor::from_dispatch(loss),
            logits: (self.logits.map(|slot| self.floats(&pass, slot))).transpose()?,
            statistics: pass.statistics,
        })
    }
}

/// Whether attention drops weights in training.
fn drops(node: &Node) -> bool {
    let mut attributes = node.attributes.iter();
    attributes.any(|(name, value)| name == "dropout_p" && *value != Attribute::Float(0.0))
}

impl Input {
    /// Whether a batch fits.
    fn check(&self, value: &HostTensor) -> Result<(), String> {
        if value.element() != self.element {
            let (own, other) = (self.element.name(), value.element().name());
            return Err(format!("is made of {own}, not of {other}"));
        }
        if value.shape().first().is_none_or(|samples| *samples == 0) {
            return Err("has no samples".into());
        }
        let Some(shape) = &self.shape else { return Ok(()) };
        let fits = |(own, other): (&Option<usize>, &usize)| own.is_none_or(|own| own == *other);
        if shape.len() != value.shape().len() || !shape.iter().zip(value.shape()).all(fits) {
            let sides = shape.iter().map(|n| n.map_or("any".into(), |n| n.to_string()));
            let sides = sides.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "has the shape {:?}, but the model takes [{sides}]",
                value.shape()
            ));
        }
        Ok(())
    }
}
