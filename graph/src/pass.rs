//! One pass over a graph: the values so far, and how an operation reads its inputs.
//!
//! Values live in two lanes. Floats that a gradient may flow through are on the device. Integers, booleans and what is
//! made of them are on the host. Integers and booleans that follow from floats of the model are on the device too, as
//! floats: 0 and 1 are truth values, integers are exact up to 2^24, and no gradient flows through either.

use annulus_shaders::cpu::dropout::Mask;
use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::{Dispatch, DispatchDevice, DispatchTensor, get_device_settings};
use burn::tensor::{Shape, Tensor, TensorData};

use crate::budget::Budget;
use crate::host::{self, HostTensor};
use crate::limits::Limits;
use crate::onnx::Attribute;
use crate::value::{Floats, Value};

/// What an operation gives: one value for each of its outputs.
pub(crate) type Made = Result<Vec<Value>, String>;

/// The only value of an operation.
pub(crate) fn one(value: impl Into<Value>) -> Made {
    Ok(vec![value.into()])
}

/// A kind of operation.
pub(crate) struct Kind {
    /// Empty for ONNX's own.
    pub(crate) domain: &'static str,
    pub(crate) name: &'static str,
    /// How many inputs it has, at least and at most.
    pub(crate) inputs: (usize, usize),
    /// The attributes that it knows.
    pub(crate) attributes: &'static [(&'static str, Type)],
    /// Whether it looks at the shapes of its inputs alone.
    pub(crate) of_shapes: bool,
    pub(crate) run: fn(&mut Call) -> Made,
}

impl Kind {
    /// One of ONNX's own, without attributes.
    pub(crate) const fn onnx(name: &'static str, inputs: (usize, usize), run: fn(&mut Call) -> Made) -> Self {
        Self {
            domain: "",
            name,
            inputs,
            attributes: &[],
            of_shapes: false,
            run,
        }
    }

    /// One of ours, without attributes.
    pub(crate) const fn ours(name: &'static str, inputs: (usize, usize), run: fn(&mut Call) -> Made) -> Self {
        let domain = "annulus";
        Self {
            domain,
            ..Self::onnx(name, inputs, run)
        }
    }

    /// With these attributes.
    pub(crate) const fn with(self, attributes: &'static [(&'static str, Type)]) -> Self {
        Self { attributes, ..self }
    }
}

/// The type of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Float,
    Integer,
    Text,
    Tensor,
    Floats,
    Integers,
}

impl Attribute {
    /// Its type.
    pub(crate) fn kind(&self) -> Type {
        match self {
            Self::Float(_) => Type::Float,
            Self::Integer(_) => Type::Integer,
            Self::Text(_) => Type::Text,
            Self::Tensor(_) => Type::Tensor,
            Self::Floats(_) => Type::Floats,
            Self::Integers(_) => Type::Integers,
        }
    }
}

/// An operation of a graph, with the numbers of its values.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: &'static Kind,
    pub(crate) inputs: Vec<Option<usize>>,
    pub(crate) outputs: Vec<Option<usize>>,
    pub(crate) attributes: Vec<(String, Attribute)>,
    /// Its place in the file, which tells masks of dropout apart.
    pub(crate) number: u64,
}

/// The statistic of one batch, towards which a running statistic moves.
#[derive(Clone, Debug)]
pub struct Statistic {
    /// The buffer's name in the state_dict.
    pub name: String,
    /// The buffer: a parameter of the model, with its gradient recorded.
    pub buffer: Tensor<1>,
    /// The batch's own mean, or its unbiased variance.
    pub value: Tensor<1>,
    /// How far the buffer moves: `buffer + rate * (value - buffer)`.
    pub rate: f64,
}

/// A value, and whether it follows from the shapes of the inputs alone.
#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    fixed: bool,
}

/// A pass.
pub(crate) struct Pass<'a> {
    pub(crate) device: &'a DispatchDevice,
    pub(crate) limits: &'a Limits,
    pub(crate) training: bool,
    /// Seed of dropout; none if nothing is dropped.
    pub(crate) dropout: Option<u64>,
    /// Names of values.
    pub(crate) names: &'a [String],
    pub(crate) statistics: Vec<Statistic>,
    values: Vec<Option<Entry>>,
    /// The shape of each value so far.
    pub(crate) shapes: Vec<Option<Vec<usize>>>,
    pub(crate) budget: Budget<'a>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(device: &'a DispatchDevice, limits: &'a Limits, names: &'a [String]) -> Self {
        Self {
            device,
            limits,
            training: false,
            dropout: None,
            names,
            statistics: Vec::new(),
            values: vec![None; names.len()],
            shapes: vec![None; names.len()],
            budget: Budget::new(limits, names.len()),
        }
    }

    /// One that only tries the model out, on the processor.
    pub(crate) fn trial(mut self) -> Self {
        self.budget.trial = true;
        self
    }

    pub(crate) fn set(&mut self, slot: usize, value: Value, fixed: bool) {
        self.shapes[slot] = Some(value.shape().to_vec());
        self.values[slot] = Some(Entry { value, fixed });
    }

    pub(crate) fn free(&mut self, slot: usize) {
        self.values[slot] = None;
        self.budget.free(slot);
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Value> {
        self.values[slot].as_ref().map(|entry| &entry.value)
    }

    /// A value on the host that follows from shapes alone.
    pub(crate) fn fixed(&self, slot: usize) -> Option<&HostTensor> {
        match self.values[slot].as_ref()? {
            Entry {
                value: Value::Host(host),
                fixed: true,
            } => Some(host),
            _ => None,
        }
    }

    /// Runs an operation and keeps its results.
    pub(crate) fn step(&mut self, node: &Node) -> Result<(), String> {
        self.budget.begin_node();
        let mut call = Call {
            pass: self,
            node,
            fixed: true,
        };
        let made = (node.kind.run)(&mut call)?;
        let fixed = call.fixed || node.kind.of_shapes;
        for (slot, value) in node.outputs.iter().zip(made) {
            if let Some(slot) = slot {
                self.budget.made(*slot, &value);
                self.set(*slot, value, fixed);
            }
        }
        Ok(())
    }

    /// Keeps the statistic of a batch. A norm that runs twice moves its buffers twice, which becomes one move here.
    pub(crate) fn follow(&mut self, statistic: Statistic) {
        let mut kept = self.statistics.iter_mut();
        match kept.find(|own| own.name == statistic.name) {
            Some(first) => {
                let way = (first.value.clone() - first.buffer.clone()).detach();
                first.value = statistic.value + way * (1.0 - statistic.rate);
            }
            None => self.statistics.push(statistic),
        }
    }

    /// Takes floats to the device.
    pub(crate) fn upload(&mut self, host: &HostTensor) -> Result<Floats, String> {
        let values = host.floats()?;
        self.budget.reserve(host.shape())?;
        let shape = if host.shape().is_empty() {
            &[1][..]
        } else {
            host.shape()
        };
        let data = TensorData::new(values.to_vec(), shape.to_vec());
        let tensor = Dispatch::float_from_data(data, self.device);
        Ok(Floats::shaped(tensor, host.shape().to_vec()))
    }
}

/// An operation at work.
pub(crate) struct Call<'c, 'a> {
    pub(crate) pass: &'c mut Pass<'a>,
    pub(crate) node: &'c Node,
    /// Whether all inputs so far follow from shapes alone.
    fixed: bool,
}

impl Call<'_, '_> {
    fn slot(&self, input: usize) -> Option<usize> {
        self.node.inputs.get(input).copied().flatten()
    }

    /// Whether an optional input is there.
    pub(crate) fn has(&self, input: usize) -> bool {
        self.slot(input).is_some()
    }

    /// An input in its lane.
    pub(crate) fn value(&mut self, input: usize) -> Result<Value, String> {
        let slot = self
            .slot(input)
            .ok_or_else(|| format!("input {input} is missing"))?;
        let entry = self.pass.values[slot].as_ref();
        let entry = entry.ok_or_else(|| format!("`{}` is not computed before it", self.pass.names[slot]))?;
        self.fixed &= entry.fixed;
        Ok(entry.value.clone())
    }

    /// An input's shape.
    pub(crate) fn shape(&mut self, input: usize) -> Result<Vec<usize>, String> {
        Ok(self.value(input)?.shape().to_vec())
    }

    /// An input on the host.
    pub(crate) fn host(&mut self, input: usize) -> Result<HostTensor, String> {
        match self.value(input)? {
            Value::Host(host) => Ok(host),
            Value::Device(_) => Err(format!(
                "`{}` follows from floats of the model, and only what follows from shapes, integers and \
                 booleans is possible here",
                self.input_name(input)
            )),
        }
    }

    /// An optional input on the host.
    pub(crate) fn optional_host(&mut self, input: usize) -> Result<Option<HostTensor>, String> {
        self.has(input).then(|| self.host(input)).transpose()
    }

    /// An input on the device.
    pub(crate) fn floats(&mut self, input: usize) -> Result<Floats, String> {
        let value = self.value(input)?;
        self.on_device(value)
    }

    /// An optional input on the device.
    pub(crate) fn optional_floats(&mut self, input: usize) -> Result<Option<Floats>, String> {
        self.has(input).then(|| self.floats(input)).transpose()
    }

    /// A value, taken to the device if it is not there.
    pub(crate) fn on_device(&mut self, value: Value) -> Result<Floats, String> {
        match value {
            Value::Device(floats) => Ok(floats),
            Value::Host(host) => self.pass.upload(&host),
        }
    }

    /// The seed of numbers that this operation draws. An evaluation draws the same ones each time.
    pub(crate) fn seed(&mut self) -> u64 {
        self.fixed = false;
        self.pass.dropout.unwrap_or(0)
    }

    /// The name of an input's value.
    pub(crate) fn input_name(&self, input: usize) -> &str {
        self.slot(input).map_or("", |slot| &self.pass.names[slot])
    }

    /// Integers for the device. Each must be below 2^31.
    pub(crate) fn upload_integers(&self, values: &[usize], shape: &[usize]) -> DispatchTensor {
        let values: Vec<i32> = values.iter().map(|i| *i as i32).collect();
        Dispatch::int_from_data(TensorData::new(values, shape.to_vec()), self.pass.device)
    }

    /// A mask on the device, expanded to a shape.
    pub(crate) fn upload_mask(
        &mut self,
        mask: &HostTensor,
        shape: &[usize],
    ) -> Result<DispatchTensor, String> {
        self.reserve(shape)?;
        let lead = shape.len() - mask.shape().len();
        let ranked = std::iter::repeat_n(1, lead).chain(mask.shape().iter().copied());
        let data = TensorData::new(mask.booleans()?.to_vec(), ranked.collect::<Vec<_>>());
        let element = get_device_settings::<Dispatch>(self.pass.device).bool_dtype;
        let mask = Dispatch::bool_from_data(data.convert_dtype(element.into()), self.pass.device);
        Ok(Dispatch::bool_expand(mask, Shape::from(shape.to_vec())))
    }

    /// Accounts for a tensor on the device before it is made.
    pub(crate) fn reserve(&mut self, shape: &[usize]) -> Result<usize, String> {
        self.pass.budget.reserve(shape)
    }

    /// Accounts for a tensor on the host before it is made.
    pub(crate) fn reserve_host(&mut self, shape: &[usize]) -> Result<usize, String> {
        self.pass.budget.reserve_host(shape)
    }

    /// Accounts for multiplications, the product of these factors, before they are done.
    pub(crate) fn multiply(&mut self, factors: &[usize]) -> Result<(), String> {
        self.pass.budget.multiply(factors)
    }

    /// The shape that two broadcast to.
    pub(crate) fn broadcast(&self, a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
        host::broadcast(a, b)
    }

    /// A host tensor in a shape that it broadcasts to.
    pub(crate) fn expand_host(&mut self, host: &HostTensor, shape: &[usize]) -> Result<HostTensor, String> {
        self.reserve_host(shape)?;
        Ok(host.expanded(shape))
    }

    /// A mask of this operation's own, if numbers are dropped in this pass.
    pub(crate) fn mask(&self, rate: f64) -> Result<Option<Mask>, String> {
        if !(0.0..1.0).contains(&rate) {
            return Err(format!(
                "a dropout rate of {rate}, which is not from 0 to below 1"
            ));
        }
        let offset = self.node.number;
        let seed = self.pass.dropout.filter(|_| self.pass.training && rate > 0.0);
        Ok(seed.map(|seed| Mask {
            rate: rate as f32,
            seed,
            offset,
        }))
    }

    fn attribute(&self, name: &str) -> Option<&Attribute> {
        let found = self.node.attributes.iter().find(|(own, _)| own == name);
        found.map(|(_, attribute)| attribute)
    }

    /// An attribute that is a number; the graph has checked its type.
    pub(crate) fn float(&self, name: &str) -> Option<f64> {
        match self.attribute(name)? {
            Attribute::Float(value) => Some(f64::from(*value)),
            _ => None,
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            Attribute::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether an attribute is there and not 0.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.integer(name).is_some_and(|value| value != 0)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Attribute::Text(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn integers(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name)? {
            Attribute::Integers(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&HostTensor> {
        match self.attribute(name)? {
            Attribute::Tensor(value) => Some(value),
            _ => None,
        }
    }

    /// As many sizes as there are axes, from a list that may be left out.
    pub(crate) fn sizes(&self, name: &str, default: usize, count: usize) -> Result<Vec<usize>, String> {
        let Some(values) = self.integers(name) else {
            return Ok(vec![default; count]);
        };
        let sizes = values
            .iter()
            .map(|n| usize::try_from(*n).ok().filter(|n| *n < 1 << 31));
        let sizes: Option<Vec<usize>> = sizes.collect();
        match sizes {
            Some(sizes) if sizes.len() == count => Ok(sizes),
            _ => Err(format!("{name} {values:?} are not {count} sizes")),
        }
    }

    /// An axis from an attribute.
    pub(crate) fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize, String> {
        host::axis(self.integer(name).unwrap_or(default), rank)
    }

    /// Axes from an attribute, as old files have them, or from an input; each at most once.
    pub(crate) fn axes(&mut self, input: usize, rank: usize) -> Result<Option<Vec<usize>>, String> {
        let given = match self.integers("axes") {
            Some(axes) => Some(axes.to_vec()),
            None => match self.optional_host(input)? {
                Some(axes) => Some(axes.integers()?.to_vec()),
                None => None,
            },
        };
        let Some(given) = given else { return Ok(None) };
        let mut axes = given
            .iter()
            .map(|a| host::axis(*a, rank))
            .collect::<Result<Vec<_>, _>>()?;
        axes.sort_unstable();
        if axes.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("the axes {given:?} have one twice"));
        }
        Ok(Some(axes))
    }

    /// Whether an optional input on the host says true.
    pub(crate) fn is_true(&mut self, input: usize) -> Result<bool, String> {
        match self.optional_host(input)? {
            Some(host) => Ok(host.booleans()?.first() == Some(&true)),
            None => Ok(false),
        }
    }
}
