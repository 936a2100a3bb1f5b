//! ONNX files: the dozen messages and sixty fields of onnx.proto that a model needs.
//!
//! All that would make a file more than data is refused: graphs inside of nodes, functions, other files.

use burn::tensor::{bf16, f16};

use crate::error::{GraphError, NodeName};
use crate::host::{Element, HostTensor, Numbers};
use crate::limits::Limits;
use crate::protobuf::{Fields, Value, words};

/// The only other file that a model may name.
pub(crate) const WEIGHTS_FILE: &str = "weights.safetensors";

/// A model as the file has it.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Version of ONNX's own operations.
    pub(crate) opset: i64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) initializers: Vec<Initializer>,
    pub(crate) inputs: Vec<ValueInfo>,
    pub(crate) outputs: Vec<ValueInfo>,
    pub(crate) metadata: Vec<(String, String)>,
}

/// One operation.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) operation: String,
    /// Empty for ONNX's own.
    pub(crate) domain: String,
    /// Empty names stand for what is left out.
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) attributes: Vec<(String, Attribute)>,
}

impl Node {
    /// For messages.
    pub(crate) fn display_name(&self) -> NodeName {
        let first = self.outputs.iter().find(|name| !name.is_empty());
        let unnamed = first.map_or("without a name", String::as_str);
        let domain = if self.domain.is_empty() { "" } else { "." };
        NodeName {
            name: if self.name.is_empty() {
                unnamed.to_owned()
            } else {
                self.name.clone()
            },
            operation: format!("{}{domain}{}", self.domain, self.operation),
        }
    }
}

/// A setting of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribute {
    Float(f32),
    Integer(i64),
    Text(String),
    Tensor(HostTensor),
    Floats(Vec<f32>),
    Integers(Vec<i64>),
}

/// A constant or the first value of a parameter.
#[derive(Debug)]
pub(crate) struct Initializer {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// ONNX's number of the elements' type.
    pub(crate) kind: i64,
    /// None if it stands in [`WEIGHTS_FILE`].
    pub(crate) value: Option<HostTensor>,
}

/// An input or output of the graph.
#[derive(Debug, Default)]
pub(crate) struct ValueInfo {
    pub(crate) name: String,
    /// ONNX's number of the type; 0 if the file does not say.
    pub(crate) element: i64,
    /// Lengths of axes; none where they differ from batch to batch. None if the file does not say.
    pub(crate) shape: Option<Vec<Option<usize>>>,
}

impl Model {
    /// Reads a file.
    pub(crate) fn read(file: &[u8], limits: &Limits) -> Result<Self, GraphError> {
        let mut model = Self::default();
        let mut graph = None;
        for field in Fields::of(file) {
            match field.map_err(GraphError::file)? {
                (7, value) if graph.is_none() => graph = Some(value.bytes().map_err(GraphError::file)?),
                (7, _) => return Err(GraphError::file("it has two graphs")),
                (8, value) => model.read_opset(value, limits).map_err(GraphError::file)?,
                (14, value) => {
                    let [key, text] = pair(value).map_err(GraphError::file)?;
                    model.metadata.push((key, text));
                }
                (20 | 25, _) => {
                    let problem = "it has functions or training steps of its own, which Annulus does not run";
                    return Err(GraphError::file(problem));
                }
                _ => {}
            }
        }
        let graph = graph.ok_or_else(|| GraphError::file("it has no graph"))?;
        model.read_graph(graph, limits)?;
        Ok(model)
    }

    fn read_opset(&mut self, value: Value, limits: &Limits) -> Result<(), String> {
        let (mut domain, mut version) = ("", 0);
        for field in Fields::of(value.bytes()?) {
            match field? {
                (1, value) => domain = value.text(limits.name_bytes)?,
                (2, value) => version = value.integer()?,
                _ => {}
            }
        }
        if matches!(domain, "" | "ai.onnx") {
            self.opset = version;
        }
        Ok(())
    }

    fn read_graph(&mut self, bytes: &[u8], limits: &Limits) -> Result<(), GraphError> {
        for field in Fields::of(bytes) {
            let (number, value) = field.map_err(GraphError::file)?;
            match number {
                1 if self.nodes.len() == limits.nodes => {
                    return Err(GraphError::file(format!(
                        "it has more than {} nodes",
                        limits.nodes
                    )));
                }
                1 => self.nodes.push(node(value, limits)?),
                5 => self
                    .initializers
                    .push(initializer(value, limits).map_err(GraphError::file)?),
                11 => self
                    .inputs
                    .push(value_info(value, limits).map_err(GraphError::file)?),
                12 => self
                    .outputs
                    .push(value_info(value, limits).map_err(GraphError::file)?),
                15 => {
                    return Err(GraphError::file(
                        "it has sparse tensors, which Annulus does not read",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A value of the metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        let entry = self.metadata.iter().find(|(name, _)| name == key)?;
        Some(&entry.1)
    }
}

/// A key and a value.
fn pair(value: Value) -> Result<[String; 2], String> {
    let mut pair = [String::new(), String::new()];
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => pair[0] = value.text(usize::MAX)?.to_owned(),
            (2, value) => pair[1] = value.text(usize::MAX)?.to_owned(),
            _ => {}
        }
    }
    Ok(pair)
}

pub(crate) fn node(value: Value, limits: &Limits) -> Result<Node, GraphError> {
    let (mut node, attributes) = node_fields(value, limits).map_err(GraphError::file)?;
    for value in attributes {
        let read = attribute(value, limits).map_err(|problem| GraphError::Node {
            node: node.display_name(),
            problem,
        })?;
        node.attributes.push(read);
    }
    Ok(node)
}

/// A node and its attributes, which are still to be read.
fn node_fields<'a>(value: Value<'a>, limits: &Limits) -> Result<(Node, Vec<Value<'a>>), String> {
    let (mut node, mut attributes) = (Node::default(), Vec::new());
    let text = |value: Value| Ok::<_, String>(value.text(limits.name_bytes)?.to_owned());
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => node.inputs.push(text(value)?),
            (2, value) => node.outputs.push(text(value)?),
            (3, value) => node.name = text(value)?,
            (4, value) => node.operation = text(value)?,
            (5, value) => attributes.push(value),
            (7, value) => node.domain = text(value)?,
            _ => {}
        }
    }
    if node.domain == "ai.onnx" {
        node.domain.clear();
    }
    Ok((node, attributes))
}

fn attribute(value: Value, limits: &Limits) -> Result<(String, Attribute), String> {
    let (mut name, mut kind) = ("", 0);
    let (mut float, mut integer, mut text, mut tensor) = (None, None, None, None);
    let (mut floats, mut integers) = (Vec::new(), Vec::new());
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => name = value.text(limits.name_bytes)?,
            (2, value) => float = Some(value.float()?),
            (3, value) => integer = Some(value.integer()?),
            (4, value) => text = Some(value.text(limits.name_bytes)?.to_owned()),
            (5, value) => tensor = Some(initializer(value, limits)?),
            (7, value) => value.floats(&mut floats)?,
            (8, value) => value.integers(&mut integers)?,
            (13, _) => {}
            (20, value) => kind = value.integer()?,
            _ => {
                return Err(format!(
                    "its attribute `{name}` holds a graph or another thing that Annulus does not run"
                ));
            }
        }
    }
    // Old files leave the type out.
    let kind = match kind {
        0 if float.is_some() => 1,
        0 if integer.is_some() => 2,
        0 if text.is_some() => 3,
        0 if tensor.is_some() => 4,
        0 if !floats.is_empty() => 6,
        0 if !integers.is_empty() => 7,
        kind => kind,
    };
    let attribute = match kind {
        1 => Attribute::Float(float.unwrap_or(0.0)),
        2 => Attribute::Integer(integer.unwrap_or(0)),
        3 => Attribute::Text(text.unwrap_or_default()),
        4 => {
            let tensor = tensor.and_then(|tensor| tensor.value);
            Attribute::Tensor(tensor.ok_or_else(|| format!("its attribute `{name}` has no value"))?)
        }
        6 => Attribute::Floats(floats),
        7 => Attribute::Integers(integers),
        _ => {
            return Err(format!(
                "its attribute `{name}` is of a type that Annulus does not read"
            ));
        }
    };
    Ok((name.to_owned(), attribute))
}

pub(crate) fn value_info(value: Value, limits: &Limits) -> Result<ValueInfo, String> {
    let mut info = ValueInfo::default();
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => info.name = value.text(limits.name_bytes)?.to_owned(),
            (2, value) => {
                for field in Fields::of(value.bytes()?) {
                    match field? {
                        (1, value) => tensor_type(value, &mut info, limits)?,
                        // What documents the type.
                        (6, _) => {}
                        _ => return Err(format!("`{}` is no tensor", info.name)),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(info)
}

fn tensor_type(value: Value, info: &mut ValueInfo, limits: &Limits) -> Result<(), String> {
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => info.element = value.integer()?,
            (2, value) => {
                let mut shape = Vec::new();
                for field in Fields::of(value.bytes()?) {
                    let (1, value) = field? else { continue };
                    if shape.len() == limits.rank {
                        return Err(format!("`{}` has more than {} axes", info.name, limits.rank));
                    }
                    shape.push(length(value)?);
                }
                info.shape = Some(shape);
            }
            _ => {}
        }
    }
    Ok(())
}

/// The length of an axis; none if it has a name instead.
fn length(value: Value) -> Result<Option<usize>, String> {
    for field in Fields::of(value.bytes()?) {
        if let (1, value) = field? {
            let length = value.integer()?;
            return match usize::try_from(length) {
                Ok(length) => Ok(Some(length)),
                Err(_) => Err(format!("an axis of length {length}")),
            };
        }
    }
    Ok(None)
}

pub(crate) fn initializer(value: Value, limits: &Limits) -> Result<Initializer, String> {
    let (mut name, mut axes, mut kind, mut external) = ("", Vec::new(), 0, false);
    let (mut raw, mut floats, mut integers, mut doubles) = (None, Vec::new(), Vec::new(), Vec::new());
    let mut location = None;
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => value.integers(&mut axes)?,
            (2, value) => kind = value.integer()?,
            (4, value) => value.floats(&mut floats)?,
            (5 | 7, value) => value.integers(&mut integers)?,
            (8, value) => name = value.text(limits.name_bytes)?,
            (9, value) => raw = Some(value.bytes()?),
            (10, value) => value.doubles(&mut doubles)?,
            (13, value) => {
                let [key, text] = pair(value)?;
                if key == "location" {
                    location = Some(text);
                }
            }
            (14, value) => external = value.integer()? == 1,
            (12, _) => {}
            (number, _) => {
                return Err(format!(
                    "the tensor `{name}` has the field {number}, which Annulus does not read"
                ));
            }
        }
    }
    let context = |problem: String| format!("the tensor `{name}`: {problem}");
    let axis = |n: &i64| usize::try_from(*n).map_err(|_| context(format!("an axis of length {n}")));
    if axes.len() > limits.rank {
        return Err(context(format!("it has more than {} axes", limits.rank)));
    }
    let shape = axes.iter().map(axis).collect::<Result<Vec<_>, _>>()?;
    limits.on_device(&shape).map_err(context)?;
    let value = match (external, location.as_deref()) {
        (true, Some(WEIGHTS_FILE)) => None,
        (true, file) => {
            let file = file.unwrap_or("another file");
            return Err(context(format!(
                "its numbers are in {file}; only {WEIGHTS_FILE} is read"
            )));
        }
        (false, _) => {
            let numbers = match raw {
                Some(raw) => from_bytes(kind, raw),
                None => from_lists(kind, floats, integers, doubles),
            };
            Some(HostTensor::new(shape.clone(), numbers.map_err(context)?).map_err(context)?)
        }
    };
    let name = name.to_owned();
    Ok(Initializer {
        name,
        shape,
        kind,
        value,
    })
}

/// Numbers of ONNX's type with this number, as they lie in memory.
fn from_bytes(kind: i64, raw: &[u8]) -> Result<Numbers, String> {
    Ok(match kind {
        1 => Numbers::Floats(words(raw, f32::from_le_bytes)?),
        10 => Numbers::Floats(words(raw, |b| f16::from_le_bytes(b).to_f32())?),
        11 => Numbers::Floats(words(raw, |b| f64::from_le_bytes(b) as f32)?),
        16 => Numbers::Floats(words(raw, |b| bf16::from_le_bytes(b).to_f32())?),
        2 => Numbers::Integers(words(raw, |b| u8::from_le_bytes(b).into())?),
        3 => Numbers::Integers(words(raw, |b| i8::from_le_bytes(b).into())?),
        6 => Numbers::Integers(words(raw, |b| i32::from_le_bytes(b).into())?),
        7 => Numbers::Integers(words(raw, i64::from_le_bytes)?),
        9 => Numbers::Booleans(raw.iter().map(|byte| *byte != 0).collect()),
        _ => {
            return Err(format!(
                "its elements are of ONNX's type {kind}, which Annulus does not read"
            ));
        }
    })
}

/// Numbers as they lie in memory in ONNX's type with this number.
pub(crate) fn to_bytes(kind: i64, numbers: &Numbers) -> Result<Vec<u8>, String> {
    fn bytes<T: Copy, const N: usize>(values: &[T], write: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|value| write(*value)).collect()
    }
    Ok(match (kind, numbers) {
        (1, Numbers::Floats(values)) => bytes(values, f32::to_le_bytes),
        (10, Numbers::Floats(values)) => bytes(values, |x| f16::from_f32(x).to_le_bytes()),
        (11, Numbers::Floats(values)) => bytes(values, |x| f64::from(x).to_le_bytes()),
        (16, Numbers::Floats(values)) => bytes(values, |x| bf16::from_f32(x).to_le_bytes()),
        (2 | 3, Numbers::Integers(values)) => bytes(values, |x| [x as u8]),
        (6, Numbers::Integers(values)) => bytes(values, |x| (x as i32).to_le_bytes()),
        (7, Numbers::Integers(values)) => bytes(values, i64::to_le_bytes),
        (9, Numbers::Booleans(values)) => bytes(values, |x| [x.into()]),
        _ => {
            let element = numbers.element().name();
            return Err(format!("{element} cannot be written as ONNX's type {kind}"));
        }
    })
}

/// Numbers of ONNX's type with this number, as lists of a few wide types.
fn from_lists(kind: i64, floats: Vec<f32>, integers: Vec<i64>, doubles: Vec<f64>) -> Result<Numbers, String> {
    Ok(match (kind, Element::of_onnx(kind)?) {
        (1, _) => Numbers::Floats(floats),
        (11, _) => Numbers::Floats(doubles.iter().map(|x| *x as f32).collect()),
        (_, Element::Integer) => Numbers::Integers(integers),
        (_, Element::Boolean) => Numbers::Booleans(integers.iter().map(|x| *x != 0).collect()),
        (_, Element::Float) => return Err("its halves are not stored as bytes".into()),
    })
}
