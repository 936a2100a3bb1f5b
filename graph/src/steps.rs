//! A model in steps that different machines compute.
//!
//! A step ends where a single value crosses that follows from both parameters and samples, such as the residual stream
//! between two blocks. A value that follows from parameters alone, such as a transposed weight, is made again where it is
//! used. Only the first step and the last get the batch, so only they know values that follow from samples alone, such as
//! the classes.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Device, Tensor, TensorData};

use crate::error::GraphError;
use crate::graph::{Graph, Input, Output, PassOptions};
use crate::host::{Element, HostTensor, Numbers};
use crate::model::GraphModel;
use crate::pass::{Node, Pass};
use crate::plan::Plan;
use crate::value::Floats;

/// How a model is cut. [`Graph::steps`] makes it.
#[derive(Debug)]
pub struct Steps {
    /// The shape of each input for one sample.
    inputs: Vec<Vec<usize>>,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    nodes: Vec<usize>,
    /// The parameters and constants that these nodes read.
    parameters: Vec<usize>,
    constants: Vec<usize>,
    /// What it hands to the next step; none: it gives the loss.
    crossing: Option<Crossing>,
}

/// A value between two steps.
#[derive(Clone, Debug, PartialEq)]
struct Crossing {
    slot: usize,
    /// Its shape for one sample.
    shape: Vec<usize>,
}

impl Crossing {
    /// How many numbers it has for one sample.
    fn numbers(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The input of a step.
#[derive(Debug, Default)]
pub struct StepInput<'a> {
    /// What the step before gave; none for the first.
    pub crossing: Option<Tensor<3>>,
    /// The batch, for the first step and the last.
    pub batch: Option<&'a [(String, HostTensor)]>,
}

/// What a step gives.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one is made for each step")]
pub enum Stepped {
    /// A value for the next step: samples, 1, and all numbers of a sample.
    Crossing(Tensor<3>),
    /// Of the last step.
    Output(Output),
}

/// The shape of each value that a pass has made.
type Shapes = Vec<Option<Vec<usize>>>;

/// What a value follows from, apart from shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Origin {
    parameters: bool,
    samples: bool,
}

impl Steps {
    /// How many there are, at least two.
    pub fn count(&self) -> usize {
        self.steps.len()
    }

    /// How many numbers a step hands to the next for one sample; 0 for the last.
    pub fn numbers(&self, step: usize) -> usize {
        self.steps[step].crossing.as_ref().map_or(0, Crossing::numbers)
    }
}

impl Graph {
    /// Cuts the model wherever a single value crosses and each step has a parameter of its own; none if there is no such
    /// place. Only the shapes of this batch count.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn steps(&self, batch: &[(String, HostTensor)]) -> Result<Option<Steps>, GraphError> {
        let shape = |name: &str| batch.iter().find(|(own, _)| own == name);
        let inputs: Option<Vec<_>> = self
            .inputs
            .iter()
            .map(|input| Some(shape(&input.name)?.1.shape().get(1..)?.to_vec()))
            .collect();
        let inputs = inputs.ok_or_else(|| GraphError::model("a batch lacks an input"))?;
        // Two sizes show which axes count samples.
        let (plan, two) = self.dry(&inputs, 2)?;
        let (_, three) = self.dry(&inputs, 3)?;
        let crosses = |slot: usize| {
            let shape = |shapes: &Shapes, samples: usize| {
                let shape = shapes[slot].as_deref()?.strip_prefix(&[samples])?;
                Some(shape.to_vec())
            };
            let shape = shape(&two, 2).filter(|own| shape(&three, 3).as_ref() == Some(own))?;
            Some(Crossing { slot, shape })
        };
        let flow = Flow::of(self, &plan);
        let places = flow.places(self, crosses);
        if places.is_empty() {
            return Ok(None);
        }
        let mut begin = 0;
        let mut steps = Vec::with_capacity(places.len() + 1);
        for (end, crossing) in places {
            steps.push(flow.step(self, begin..end, Some(crossing)));
            begin = end;
        }
        steps.push(flow.step(self, begin..self.nodes.len(), None));
        Ok(Some(Steps { inputs, steps }))
    }

    /// Computes one step.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn step(
        &self,
        (steps, step): (&Steps, usize),
        model: &GraphModel,
        input: StepInput,
        device: &Device,
        options: PassOptions,
    ) -> Result<Stepped, GraphError> {
        let own = &steps.steps[step];
        let mut pass = Pass::new(device.as_dispatch(), &self.limits, &self.names);
        pass.training = options.training;
        pass.dropout = options.dropout;
        self.set_parameters(&mut pass, model, own.parameters.iter().copied());
        self.set_constants(&mut pass, model, own.constants.iter().copied());
        let mut samples = 0;
        if let Some(batch) = input.batch {
            let shapes = self.set_inputs(&mut pass, batch)?;
            samples = shapes.first().map_or(0, |shape| shape[0]);
        }
        if let Some(crossing) = input.crossing {
            let before = step
                .checked_sub(1)
                .and_then(|before| steps.steps[before].crossing.as_ref());
            let before = before.ok_or_else(|| GraphError::model("its first step takes a batch alone"))?;
            samples = crossing.dims()[0];
            let shape = [&[samples], &before.shape[..]].concat();
            let value = Floats::shaped(crossing.into_dispatch(), shape);
            pass.set(before.slot, value.into(), false);
        }
        self.plan(&steps.inputs, samples)?.set_known(&mut pass);
        for number in &own.nodes {
            self.compute(&mut pass, &self.nodes[*number])?;
        }
        match &own.crossing {
            None => self.output(pass).map(Stepped::Output),
            Some(crossing) => {
                let value = self.floats(&pass, crossing.slot)?;
                let value = value.reshaped(vec![samples, 1, crossing.numbers()]);
                Ok(Stepped::Crossing(Tensor::from_dispatch(value.tensor())))
            }
        }
    }

    /// The plan for this number of samples, made without the parameters if no pass has made it.
    fn plan(&self, inputs: &[Vec<usize>], samples: usize) -> Result<Arc<Plan>, GraphError> {
        let key: Vec<Vec<usize>> = inputs
            .iter()
            .map(|shape| [&[samples], &shape[..]].concat())
            .collect();
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan);
        }
        let (plan, _) = self.dry(inputs, samples)?;
        Ok(self.plans.keep(key, plan, self.limits.bytes))
    }

    /// A batch of zeros, of the shapes that the file tells.
    ///
    /// # Errors
    ///
    /// If it does not tell how long an axis behind the first is, or the batch would be too large.
    pub fn blank(&self, samples: usize) -> Result<Vec<(String, HostTensor)>, GraphError> {
        let mut bytes = 0;
        let mut shape = |input: &Input| {
            let axes = input.shape.as_ref().and_then(|shape| shape.get(1..));
            let each: Option<Vec<usize>> = axes.and_then(|axes| axes.iter().copied().collect());
            let fault = |problem: &str| GraphError::input(&input.name, problem);
            let each = each.ok_or_else(|| fault("has axes whose length the file does not tell"))?;
            let batch = [&[samples], &each[..]].concat();
            let count = self.limits.on_host(&batch);
            bytes += 8 * count.map_err(|problem| fault(&format!("is too large: {problem}")))? as u64;
            match bytes > self.limits.bytes {
                true => Err(fault("is too large, with those before it")),
                false => Ok(each),
            }
        };
        let shapes: Result<Vec<_>, _> = self.inputs.iter().map(&mut shape).collect();
        Ok(self.zeros(&shapes?, samples))
    }

    /// A batch of zeros, of these shapes behind the first axis.
    fn zeros(&self, inputs: &[Vec<usize>], samples: usize) -> Vec<(String, HostTensor)> {
        let batch = self.inputs.iter().zip(inputs).map(|(input, shape)| {
            let shape = [&[samples], &shape[..]].concat();
            let count = shape.iter().product();
            let numbers = match input.element {
                Element::Float => Numbers::Floats(vec![0.0; count]),
                Element::Integer => Numbers::Integers(vec![0; count]),
                Element::Boolean => Numbers::Booleans(vec![false; count]),
            };
            let zeros = HostTensor::new(shape, numbers).expect("as many as the shape says");
            (input.name.clone(), zeros)
        });
        batch.collect()
    }

    /// Runs a batch of zeros on parameters of zeros, of which each is one number in memory: which values follow from
    /// shapes alone, and the shapes of all.
    fn dry(&self, inputs: &[Vec<usize>], samples: usize) -> Result<(Plan, Shapes), GraphError> {
        let device = Device::flex();
        let mut pass = Pass::new(device.as_dispatch(), &self.limits, &self.names).trial();
        let zeros = |shape: &[usize]| {
            let one = TensorData::new(vec![0f32], vec![1; shape.len().max(1)]);
            let one = Dispatch::float_from_data(one, device.as_dispatch());
            match shape {
                [] => Floats::scalar(one),
                shape => Floats::new(one).expanded(shape),
            }
        };
        for parameter in &self.parameters {
            pass.set(parameter.slot, zeros(parameter.shape()).into(), false);
        }
        for (slot, value) in &self.constants {
            pass.set(*slot, zeros(value.shape()).into(), false);
        }
        self.set_inputs(&mut pass, &self.zeros(inputs, samples))?;
        self.execute(&mut pass, &self.whole, false)?;
        let plan = self.whole.reduced(&self.nodes, &pass, &self.kept());
        Ok((plan, pass.shapes))
    }
}

/// The origin of each value, and where it is made and used.
struct Flow {
    origins: Vec<Origin>,
    /// The node that makes a value, of those that a plan leaves.
    makers: HashMap<usize, usize>,
    /// The last node that uses a value; past the last one for what the output needs.
    last: HashMap<usize, usize>,
    /// The nodes that a plan leaves.
    nodes: Vec<usize>,
    parameters: HashMap<usize, usize>,
    constants: HashMap<usize, usize>,
}

impl Flow {
    fn of(graph: &Graph, plan: &Plan) -> Self {
        let nodes: Vec<usize> = plan.steps.iter().map(|(number, _)| *number).collect();
        let parameters = graph.parameters.iter().map(|own| own.slot);
        let constants = graph.constants.iter().map(|(slot, _)| *slot);
        let numbered =
            |slots: &mut dyn Iterator<Item = usize>| slots.enumerate().map(|(n, slot)| (slot, n)).collect();
        let mut flow = Self {
            origins: vec![Origin::default(); graph.names.len()],
            makers: HashMap::new(),
            last: HashMap::new(),
            parameters: numbered(&mut parameters.into_iter()),
            constants: numbered(&mut constants.into_iter()),
            nodes,
        };
        for slot in flow.parameters.keys().chain(flow.constants.keys()) {
            flow.origins[*slot].parameters = true;
        }
        for input in &graph.inputs {
            flow.origins[input.slot].samples = true;
        }
        let fixed: BTreeSet<usize> = plan.known.iter().map(|(slot, _)| *slot).collect();
        for number in flow.nodes.clone() {
            let node = &graph.nodes[number];
            let mut origin = Origin::default();
            for slot in node.inputs.iter().flatten() {
                origin.parameters |= flow.origins[*slot].parameters;
                origin.samples |= flow.origins[*slot].samples;
                flow.last.insert(*slot, number);
            }
            for slot in node.outputs.iter().flatten().filter(|slot| !fixed.contains(slot)) {
                flow.origins[*slot] = origin;
                flow.makers.insert(*slot, number);
            }
        }
        for slot in graph.kept() {
            flow.last.insert(slot, graph.nodes.len());
        }
        flow
    }

    /// Whether a value follows from both.
    fn is_learnt(&self, slot: usize) -> bool {
        let origin = self.origins[slot];
        origin.parameters && origin.samples
    }

    fn makes_learnt(&self, node: &Node) -> bool {
        node.outputs.iter().flatten().any(|slot| self.is_learnt(*slot))
    }

    /// Where to cut: nodes before each cut, and what crosses it.
    fn places(&self, graph: &Graph, crosses: impl Fn(usize) -> Option<Crossing>) -> Vec<(usize, Crossing)> {
        let reads =
            |node: &Node, is: &dyn Fn(usize) -> bool| node.inputs.iter().flatten().any(|slot| is(*slot));
        let of_samples = |slot: usize| {
            self.origins[slot]
                == Origin {
                    parameters: false,
                    samples: true,
                }
        };
        let of_parameters = |slot: usize| {
            self.origins[slot]
                == Origin {
                    parameters: true,
                    samples: false,
                }
        };
        let mut alive = BTreeSet::new();
        // The best place since a parameter was last used, once one follows.
        let mut found: Vec<(usize, Crossing)> = Vec::new();
        let mut best: Option<(usize, Crossing)> = None;
        // The places between two nodes that need the batch; the longest such row counts.
        let mut rows: Vec<Vec<(usize, Crossing)>> = Vec::new();
        for number in &self.nodes {
            let node = &graph.nodes[*number];
            if self.makes_learnt(node) && reads(node, &of_parameters) {
                found.extend(best.take());
            }
            if self.makes_learnt(node) && reads(node, &of_samples) {
                // A place before this node is one before its row.
                best = None;
                rows.push(std::mem::take(&mut found));
            }
            let learnt = node
                .outputs
                .iter()
                .flatten()
                .filter(|slot| self.is_learnt(**slot));
            alive.extend(learnt.filter(|slot| self.last.contains_key(slot)));
            alive.retain(|slot| self.last[slot] > *number);
            let only = (alive.len() == 1).then(|| alive.first().copied()).flatten();
            if let Some(crossing) = only.and_then(&crosses)
                && (best.as_ref()).is_none_or(|(_, best)| crossing.numbers() < best.numbers())
            {
                best = Some((number + 1, crossing));
            }
        }
        rows.push(found);
        rows.into_iter().max_by_key(Vec::len).unwrap_or_default()
    }

    /// The step that these nodes make, with all that they need of parameters and batch.
    fn step(&self, graph: &Graph, range: Range<usize>, crossing: Option<Crossing>) -> Step {
        let own = self.nodes.iter().copied().filter(|number| range.contains(number));
        let mut todo: Vec<usize> = own
            .filter(|number| self.makes_learnt(&graph.nodes[*number]))
            .collect();
        let mut nodes = BTreeSet::new();
        let (mut parameters, mut constants) = (BTreeSet::new(), BTreeSet::new());
        while let Some(number) = todo.pop() {
            if !nodes.insert(number) {
                continue;
            }
            for slot in graph.nodes[number].inputs.iter().flatten() {
                parameters.extend(self.parameters.get(slot));
                constants.extend(self.constants.get(slot));
                // A learnt value is made in this step, or has crossed.
                if !self.is_learnt(*slot) {
                    todo.extend(self.makers.get(slot));
                }
            }
        }
        Step {
            nodes: nodes.into_iter().collect(),
            parameters: parameters.into_iter().collect(),
            constants: constants.into_iter().collect(),
            crossing,
        }
    }
}
