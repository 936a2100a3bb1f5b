//! Makes a graph of a file: finds what each name stands for, and refuses what cannot be trained.

use std::collections::{HashMap, HashSet};

use crate::error::GraphError;
use crate::graph::{Graph, Input, Parameter, Role};
use crate::host::{Element, HostTensor};
use crate::limits::Limits;
use crate::onnx::{self, Attribute, Model};
use crate::ops;
use crate::pass::{Kind, Node};
use crate::plan::{Plan, Plans};
use crate::weights::read_tensors;

/// Versions of ONNX's own operations that are read. Before 13 some have other inputs.
const OPSETS: std::ops::RangeInclusive<i64> = 13..=24;

/// Nodes that one message names at most.
const MOST_NAMED: usize = 20;

const HOW_TO_EXPORT: &str = "export it with `annulus.export` from a model in training mode";

/// How to read a file.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Take a file that was made for inference as it is: batch norm keeps its statistics, dropout drops nothing. If the
    /// file does not say which parameters are trained, all its floats with an axis are.
    pub as_is: bool,
    /// What the file may ask for.
    pub limits: Limits,
}

impl Graph {
    /// Reads an ONNX file, and the parameters' values from a safetensors file beside it.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged, or the model cannot be trained: then the message names the nodes, and says how to
    /// export it correctly.
    pub fn read(file: &[u8], weights: Option<&[u8]>, options: &ReadOptions) -> Result<Self, GraphError> {
        let model = Model::read(file, &options.limits)?;
        if !OPSETS.contains(&model.opset) {
            let (first, last) = (OPSETS.start(), OPSETS.end());
            let problem = format!(
                "it uses opset {}; export it with one from {first} to {last}",
                model.opset
            );
            return Err(GraphError::file(problem));
        }
        let weights = weights.map_or(Ok(Vec::new()), read_tensors)?;
        let kinds = kinds(&model.nodes)?;
        let mut reader = Reader::new(options);
        reader.add_values(&model, weights)?;
        reader.add_inputs(&model)?;
        for (node, kind) in model.nodes.iter().zip(kinds) {
            reader.add_node(node, kind)?;
        }
        reader.finish(&model)
    }
}

/// The kind of each node; all unknown ones in one message.
fn kinds(nodes: &[onnx::Node]) -> Result<Vec<&'static Kind>, GraphError> {
    let mut unknown: Vec<(String, Vec<String>)> = Vec::new();
    let mut kinds = Vec::with_capacity(nodes.len());
    for node in nodes {
        match ops::find(&node.domain, &node.operation) {
            Some(kind) => kinds.push(kind),
            None => {
                let name = node.display_name();
                match unknown
                    .iter_mut()
                    .find(|(operation, _)| *operation == name.operation)
                {
                    Some((_, names)) => names.push(name.name),
                    None => unknown.push((name.operation, vec![name.name])),
                }
            }
        }
    }
    if unknown.is_empty() {
        return Ok(kinds);
    }
    let listed = unknown.iter().map(|(operation, names)| {
        let some = names[..names.len().min(MOST_NAMED)].join(", ");
        let more = names.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!("{operation} ({some}{more})")
    });
    let nodes = listed.take(MOST_NAMED).collect::<Vec<_>>().join("; ");
    Err(GraphError::UnknownOperations { nodes })
}

/// A graph in the making.
struct Reader<'a> {
    options: &'a ReadOptions,
    /// The number of each name's value.
    slots: HashMap<String, usize>,
    names: Vec<String>,
    /// Values that stand in a file.
    stored: HashMap<usize, HostTensor>,
    /// Values that are known when a node runs.
    defined: HashSet<usize>,
    inputs: Vec<Input>,
    nodes: Vec<Node>,
    /// Running statistics, and how fast they move.
    statistics: Vec<(usize, f64)>,
    /// Masks of attention, and what becomes of each.
    masks: HashMap<usize, [usize; 2]>,
}

impl<'a> Reader<'a> {
    fn new(options: &'a ReadOptions) -> Self {
        Self {
            options,
            slots: HashMap::new(),
            names: Vec::new(),
            stored: HashMap::new(),
            defined: HashSet::new(),
            inputs: Vec::new(),
            nodes: Vec::new(),
            statistics: Vec::new(),
            masks: HashMap::new(),
        }
    }

    fn slot(&mut self, name: &str) -> Result<usize, GraphError> {
        if let Some(slot) = self.slots.get(name) {
            return Ok(*slot);
        }
        let (slot, most) = (self.names.len(), self.options.limits.values);
        if slot == most {
            return Err(GraphError::file(format!("it has more than {most} values")));
        }
        self.names.push(name.to_owned());
        self.slots.insert(name.to_owned(), slot);
        Ok(slot)
    }

    /// A number for a value that nothing else may define.
    fn define(&mut self, name: &str) -> Result<usize, GraphError> {
        let slot = self.slot(name)?;
        if !self.defined.insert(slot) {
            return Err(GraphError::file(format!("it defines `{name}` twice")));
        }
        Ok(slot)
    }

    /// Values from both files. Those beside the model take precedence.
    fn add_values(&mut self, model: &Model, weights: Vec<(String, HostTensor)>) -> Result<(), GraphError> {
        let used = model.nodes.iter().flat_map(|node| &node.inputs);
        let used: HashSet<&str> = used.map(String::as_str).collect();
        let mut weights: HashMap<String, HostTensor> = weights
            .into_iter()
            .filter(|(name, _)| used.contains(&**name))
            .collect();
        for initializer in &model.initializers {
            let onnx::Initializer {
                name, shape, value, ..
            } = initializer;
            let beside = weights.remove(name);
            if beside.as_ref().is_some_and(|beside| beside.shape() != shape) {
                return Err(GraphError::weights(format!(
                    "`{name}` has another shape than {shape:?} in the model"
                )));
            }
            let value = beside.or_else(|| value.clone());
            let value = value.ok_or_else(|| GraphError::weights(format!("`{name}` is missing")))?;
            self.store(name, value)?;
        }
        let mut rest: Vec<(String, HostTensor)> = weights.into_iter().collect();
        rest.sort_by(|a, b| a.0.cmp(&b.0));
        rest.into_iter()
            .try_for_each(|(name, value)| self.store(&name, value))
    }

    fn store(&mut self, name: &str, value: HostTensor) -> Result<(), GraphError> {
        let slot = self.define(name)?;
        self.stored.insert(slot, value);
        Ok(())
    }

    fn add_inputs(&mut self, model: &Model) -> Result<(), GraphError> {
        for info in &model.inputs {
            // Old files list initializers here too.
            let stored = self
                .slots
                .get(&info.name)
                .is_some_and(|slot| self.stored.contains_key(slot));
            if stored {
                continue;
            }
            let fault = |problem: String| GraphError::input(&info.name, problem);
            let element =
                Element::of_onnx(info.element).map_err(|problem| fault(format!("has {problem}")))?;
            if info.shape.as_ref().is_some_and(Vec::is_empty) {
                return Err(fault("has no axis; the first one must count samples".into()));
            }
            let (name, shape, slot) = (info.name.clone(), info.shape.clone(), self.define(&info.name)?);
            self.inputs.push(Input {
                name,
                element,
                shape,
                slot,
            });
        }
        if let Some(listed) = model.metadata("annulus.inputs") {
            let listed: HashSet<&str> = listed.lines().collect();
            if let Some(input) = self.inputs.iter().find(|input| !listed.contains(&*input.name)) {
                return Err(GraphError::input(
                    &input.name,
                    "is neither data nor in weights.safetensors",
                ));
            }
        }
        Ok(())
    }

    fn add_node(&mut self, node: &onnx::Node, kind: &'static Kind) -> Result<(), GraphError> {
        let fault = |problem: String| {
            let node = node.display_name();
            GraphError::Node { node, problem }
        };
        check_form(node, kind).map_err(fault)?;
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            if name.is_empty() {
                inputs.push(None);
                continue;
            }
            let slot = self.slot(name)?;
            if !self.defined.contains(&slot) {
                return Err(fault(format!(
                    "its input `{name}` is neither an input of the model, nor a stored value, nor computed by a \
                     node before this one"
                )));
            }
            inputs.push(Some(slot));
        }
        self.check_mode(node, kind, &inputs).map_err(fault)?;
        if let ("Attention", Some(&Some(mask))) = (kind.name, inputs.get(3)) {
            inputs.truncate(3);
            inputs.extend(self.reduced_mask(mask)?.map(Some));
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for name in &node.outputs {
            outputs.push(if name.is_empty() {
                None
            } else {
                Some(self.define(name)?)
            });
        }
        let number = self.nodes.len() as u64;
        let (name, attributes) = (node.display_name().name, node.attributes.clone());
        self.nodes.push(Node {
            name,
            kind,
            inputs,
            outputs,
            attributes,
            number,
        });
        Ok(())
    }

    /// What a mask of attention adds to scores, and whether it hides later keys: a node's work, done once for all layers, and
    /// once for all batches of a shape where nothing else decides it.
    fn reduced_mask(&mut self, mask: usize) -> Result<[usize; 2], GraphError> {
        if let Some(reduced) = self.masks.get(&mask) {
            return Ok(*reduced);
        }
        let name = self.names[mask].clone();
        let reduced = [
            self.define(&format!("{name} as a bias"))?,
            self.define(&format!("{name} is causal"))?,
        ];
        self.masks.insert(mask, reduced);
        self.nodes.push(Node {
            name,
            kind: ops::find("annulus", "AttentionMask").expect("an operation of ours"),
            inputs: vec![Some(mask)],
            outputs: reduced.map(Some).to_vec(),
            attributes: Vec::new(),
            number: self.nodes.len() as u64,
        });
        Ok(reduced)
    }

    /// Refuses nodes of a file that was made for inference, and notes running statistics.
    fn check_mode(&mut self, node: &onnx::Node, kind: &Kind, inputs: &[Option<usize>]) -> Result<(), String> {
        let attribute = |name: &str| {
            node.attributes
                .iter()
                .find(|(own, _)| own == name)
                .map(|(_, value)| value)
        };
        let as_is = "or read it as it is (`as_is=true`)";
        match kind.name {
            "BatchNormalization" if attribute("training_mode") == Some(&Attribute::Integer(1)) => {
                let kept = match attribute("momentum") {
                    Some(Attribute::Float(kept)) => *kept,
                    _ => 0.9,
                };
                if !(0.0..=1.0).contains(&kept) {
                    return Err(format!("the momentum {kept}, which is not from 0 to 1"));
                }
                for slot in inputs[3..].iter().flatten() {
                    // With a momentum of 1 they never move, so they are constants.
                    if kept < 1.0 && !self.is_statistic(*slot) {
                        self.statistics.push((*slot, 1.0 - f64::from(kept)));
                    }
                }
                Ok(())
            }
            "BatchNormalization" if !self.options.as_is => Err(format!(
                "batch norm was exported for inference, so it would not train; {HOW_TO_EXPORT}, {as_is}"
            )),
            "Dropout" if !self.options.as_is => {
                let flag = inputs
                    .get(2)
                    .copied()
                    .flatten()
                    .and_then(|slot| self.constant(slot));
                match flag.and_then(|flag| flag.booleans().ok()?.first().copied()) {
                    Some(true) => Ok(()),
                    _ => Err(format!(
                        "dropout was exported for inference, so it would drop nothing; {HOW_TO_EXPORT}, {as_is}"
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    /// A value that stands in the file, also as a node of its own.
    fn constant(&self, slot: usize) -> Option<&HostTensor> {
        let node = || self.nodes.iter().find(|node| node.outputs.contains(&Some(slot)));
        self.stored.get(&slot).or_else(|| match &node()?.attributes[..] {
            [(_, Attribute::Tensor(value))] => Some(value),
            _ => None,
        })
    }

    /// The values that are trained, by the metadata or as they come.
    fn trained(&self, model: &Model) -> Result<Vec<usize>, GraphError> {
        if let Some(names) = model.metadata("annulus.trained") {
            let slot = |name: &str| {
                let slot = self.slots.get(name).filter(|slot| self.stored.contains_key(slot));
                slot.copied()
                    .ok_or_else(|| GraphError::model(format!("the trained parameter `{name}` is missing")))
            };
            return names.lines().filter(|name| !name.is_empty()).map(slot).collect();
        }
        if !self.options.as_is {
            let problem = format!(
                "the file does not say which parameters are trained; {HOW_TO_EXPORT}, or read it as it is \
                 (`as_is=true`) to train all of them"
            );
            return Err(GraphError::model(problem));
        }
        let trainable = |slot: &usize| {
            let value = &self.stored[slot];
            value.element() == Element::Float && !value.shape().is_empty() && !self.is_statistic(*slot)
        };
        // In the order of the file.
        Ok((0..self.names.len())
            .filter(|slot| self.stored.contains_key(slot))
            .filter(trainable)
            .collect())
    }

    fn is_statistic(&self, slot: usize) -> bool {
        self.statistics.iter().any(|(own, _)| *own == slot)
    }

    /// The value that the metadata or its place among the outputs names.
    fn output(&self, model: &Model, key: &str, place: usize) -> Result<Option<usize>, GraphError> {
        let name = match model.metadata(key) {
            Some(name) => Some(name).filter(|name| !name.is_empty()),
            None => model.outputs.get(place).map(|info| &*info.name),
        };
        let Some(name) = name else { return Ok(None) };
        let slot = self.slots.get(name).filter(|slot| self.defined.contains(slot));
        let slot = slot.ok_or_else(|| GraphError::file(format!("nothing computes its output `{name}`")))?;
        Ok(Some(*slot))
    }

    fn finish(mut self, model: &Model) -> Result<Graph, GraphError> {
        let loss = self.output(model, "annulus.loss", 0)?;
        let loss = loss.ok_or_else(|| GraphError::file("it has no output, and the first one is the loss"))?;
        let logits = self.output(model, "annulus.logits", 1)?;
        if self.inputs.is_empty() {
            return Err(GraphError::file("it has no inputs"));
        }
        let trained = self.trained(model)?;
        let trained = trained.into_iter().map(|slot| (slot, Role::Trained));
        let statistics = std::mem::take(&mut self.statistics);
        let statistics = statistics
            .into_iter()
            .map(|(slot, rate)| (slot, Role::Statistic { rate }));
        let decayed: Option<HashSet<&str>> = model
            .metadata("annulus.decayed")
            .map(|names| names.lines().collect());
        let mut parameters = Vec::new();
        for (slot, role) in trained.chain(statistics) {
            let name = self.names[slot].clone();
            let initial = self
                .stored
                .remove(&slot)
                .filter(|value| value.element() == Element::Float);
            let initial = initial.ok_or_else(|| {
                let problem = "is no stored tensor of floats, or trained in two ways";
                GraphError::model(format!("the parameter `{name}` {problem}"))
            })?;
            // Biases and norms have one axis.
            let decays = decayed
                .as_ref()
                .map_or(initial.shape().len() > 1, |names| names.contains(&*name));
            parameters.push(Parameter {
                name,
                role,
                decays,
                slot,
                initial,
            });
        }
        if !parameters.iter().any(|parameter| parameter.role == Role::Trained) {
            return Err(GraphError::model("the model has no parameter that is trained"));
        }
        let on_device = |value: &HostTensor| value.element() == Element::Float && value.shape().len() > 1;
        let (constants, known): (Vec<_>, Vec<_>) =
            self.stored.into_iter().partition(|(_, value)| on_device(value));
        let kept: Vec<usize> = [loss].into_iter().chain(logits).collect();
        Ok(Graph {
            whole: Plan::of(&self.nodes, 0..self.nodes.len(), &kept, known),
            names: self.names,
            nodes: self.nodes,
            parameters,
            inputs: self.inputs,
            constants,
            loss,
            logits,
            limits: self.options.limits.clone(),
            shapes: Vec::new(),
            plans: Plans::default(),
        })
    }
}

/// Whether a node has inputs and attributes that its kind knows.
fn check_form(node: &onnx::Node, kind: &Kind) -> Result<(), String> {
    let (least, most) = kind.inputs;
    let count = node.inputs.len();
    if count < least || count > most || node.inputs[..least].iter().any(String::is_empty) {
        return Err(format!(
            "it has {count} inputs; this operation takes {least} to {most}"
        ));
    }
    for (name, value) in &node.attributes {
        let known = kind.attributes.iter().find(|(known, _)| known == name);
        match known {
            None => {
                return Err(format!(
                    "it has the attribute `{name}`, which Annulus does not know"
                ));
            }
            Some((_, kind)) if value.kind() != *kind => {
                return Err(format!("its attribute `{name}` is not of the type {kind:?}"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}
