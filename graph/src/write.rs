//! Writes values back into an ONNX file, such as those that a run has trained.

use std::collections::{HashMap, HashSet};

use crate::error::GraphError;
use crate::host::{Element, HostTensor, Numbers};
use crate::limits::Limits;
use crate::onnx::{self, Attribute, Initializer, Model, Node, to_bytes};
use crate::protobuf::{Fields, Message};
use crate::weights::read_tensors;

/// Protobuf's readers take no longer message.
const MOST_BYTES: usize = i32::MAX as usize;

/// An ONNX file with other values for some of its tensors, by name. All tensors are in the file then, also those of
/// `weights`, the bytes of the safetensors file beside it. [`Graph::read`](crate::Graph::read) reads the same model from it.
/// The layers that have operations of ONNX's own instead of ours are written so, for programs that do not have ours.
///
/// # Errors
///
/// If a file is damaged, a value has another number of elements, or the result is longer than 2 GB, where ONNX files end.
pub fn with_values<'a>(
    file: &[u8],
    weights: Option<&[u8]>,
    value: impl Fn(&str) -> Option<&'a [f32]>,
) -> Result<Vec<u8>, GraphError> {
    let limits = Limits::default();
    let model = Model::read(file, &limits)?;
    let mut beside: HashMap<String, HostTensor> = weights
        .map_or(Ok(Vec::new()), read_tensors)?
        .into_iter()
        .collect();
    let mut out = Message::default();
    for field in Fields::of(file).with_bytes() {
        match field.map_err(GraphError::file)? {
            (7, graph, _) => {
                let graph = graph.bytes().map_err(GraphError::file)?;
                out.bytes(7, &with_values_of(graph, &model, &mut beside, &value)?);
            }
            (_, _, bytes) => out.0.extend_from_slice(bytes),
        }
    }
    if out.0.len() > MOST_BYTES {
        let problem = "with its weights it would be longer than 2 GB, where ONNX files end; export safetensors instead, and \
                       put that file beside the model as weights.safetensors";
        return Err(GraphError::file(problem));
    }
    Ok(out.0)
}

/// The graph's message.
fn with_values_of<'a>(
    graph: &[u8],
    model: &Model,
    beside: &mut HashMap<String, HostTensor>,
    value: impl Fn(&str) -> Option<&'a [f32]>,
) -> Result<Vec<u8>, GraphError> {
    let limits = Limits::default();
    let given = |name: &str, shape: &[usize]| -> Result<Option<HostTensor>, GraphError> {
        let Some(values) = value(name) else {
            return Ok(None);
        };
        let tensor = HostTensor::new(shape.to_vec(), Numbers::Floats(values.to_vec()));
        let fault = |problem| GraphError::weights(format!("`{name}`: {problem}"));
        tensor.map(Some).map_err(fault)
    };
    // Tensors beside the model stand in for inputs, or for initializers without values.
    let mut stored: HashSet<&str> = model.initializers.iter().map(|own| &*own.name).collect();
    let used = model.nodes.iter().flat_map(|node| &node.inputs);
    stored.extend(used.filter(|name| beside.contains_key(*name)).map(String::as_str));
    let mut out = Message::default();
    for field in Fields::of(graph).with_bytes() {
        let (number, field, bytes) = field.map_err(GraphError::file)?;
        match number {
            1 => match in_onnx(&onnx::node(field, &limits)?) {
                Some(nodes) => nodes.iter().for_each(|node| out.bytes(1, &node.0)),
                None => out.0.extend_from_slice(bytes),
            },
            5 => {
                let own = onnx::initializer(field, &limits).map_err(GraphError::file)?;
                let Initializer {
                    name,
                    shape,
                    kind,
                    value,
                } = own;
                let beside = beside.remove(&name);
                let missing = || GraphError::weights(format!("`{name}` is missing"));
                match given(&name, &shape)?.or(beside) {
                    Some(new) => out.bytes(5, &tensor(&name, kind, &new)?.0),
                    None if value.is_none() => return Err(missing()),
                    None => out.0.extend_from_slice(bytes),
                }
            }
            11 => {
                let info = onnx::value_info(field, &limits).map_err(GraphError::file)?;
                if !stored.contains(&*info.name) {
                    out.0.extend_from_slice(bytes);
                }
            }
            _ => out.0.extend_from_slice(bytes),
        }
    }
    // In one order, so that equal models are equal files.
    let mut rest: Vec<_> = beside
        .drain()
        .filter(|(name, _)| stored.contains(&**name))
        .collect();
    rest.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, own) in rest {
        let new = given(&name, own.shape())?.unwrap_or(own);
        let kind = match new.element() {
            Element::Float => 1,
            Element::Integer => 7,
            Element::Boolean => 9,
        };
        out.bytes(5, &tensor(&name, kind, &new)?.0);
    }
    Ok(out.0)
}

/// A tensor of ONNX's type with this number.
fn tensor(name: &str, kind: i64, value: &HostTensor) -> Result<Message, GraphError> {
    let fault = |problem| GraphError::weights(format!("`{name}`: {problem}"));
    let bytes = to_bytes(kind, value.numbers()).map_err(fault)?;
    let mut tensor = Message::default();
    for axis in value.shape() {
        tensor.integer(1, *axis as u64);
    }
    tensor.integer(2, kind as u64);
    tensor.bytes(8, name.as_bytes());
    tensor.bytes(9, &bytes);
    Ok(tensor)
}

/// One of our layers as operations of ONNX, which compute the same; none for other nodes.
fn in_onnx(node: &Node) -> Option<Vec<Message>> {
    let [y] = &node.outputs[..] else { return None };
    let between = |what: &str| format!("{y}/{what}");
    let mut nodes = Vec::new();
    let mut add = |operation: &str, inputs: &[&str], output: &str| {
        let mut made = Message::default();
        inputs.iter().for_each(|name| made.bytes(1, name.as_bytes()));
        made.bytes(2, output.as_bytes());
        made.bytes(3, output.as_bytes());
        made.bytes(4, operation.as_bytes());
        nodes.push(made);
    };
    match (&*node.domain, &*node.operation, &node.inputs[..]) {
        // ONNX has it from opset 24 on, which many files do not say.
        ("annulus" | "", "Swish", [x]) if node.attributes.is_empty() => {
            let share = between("share");
            add("Sigmoid", &[x], &share);
            add("Mul", &[x, &share], y);
        }
        ("annulus", "Linear", [x, weight, added @ ..]) => {
            let outputs_first = ("outputs_first".to_owned(), Attribute::Integer(1));
            let transposed = between("weight");
            let weight = match node.attributes.contains(&outputs_first) {
                true => {
                    add("Transpose", &[weight], &transposed);
                    &transposed
                }
                false => weight,
            };
            let added: Vec<&String> = added.iter().filter(|name| !name.is_empty()).collect();
            let sums: Vec<String> = (0..added.len()).map(|i| between(&format!("sum_{i}"))).collect();
            let output = |i: usize| sums.get(i).unwrap_or(y);
            add("MatMul", &[x, weight], output(0));
            for (i, term) in added.into_iter().enumerate() {
                add("Add", &[output(i), term], output(i + 1));
            }
        }
        _ => return None,
    }
    Some(nodes)
}
