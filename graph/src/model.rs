//! The parameters of a graph as a Burn module.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};

use crate::error::GraphError;
use crate::host::{Element, HostTensor};

/// A parameter of any rank that Burn's optimizers and records know.
#[derive(Module, Debug)]
enum AnyParam {
    R1(Param<Tensor<1>>),
    R2(Param<Tensor<2>>),
    R3(Param<Tensor<3>>),
    R4(Param<Tensor<4>>),
    R5(Param<Tensor<5>>),
}

/// The same expression for a parameter of each rank.
macro_rules! ranked {
    ($param:expr, $p:ident => $made:expr) => {
        match $param {
            AnyParam::R1($p) => $made,
            AnyParam::R2($p) => $made,
            AnyParam::R3($p) => $made,
            AnyParam::R4($p) => $made,
            AnyParam::R5($p) => $made,
        }
    };
}

impl AnyParam {
    /// A parameter that is put on the device when it is first read. One without axes gets one.
    fn new(value: &HostTensor, device: &Device) -> Result<Self, String> {
        Ok(match *value.shape() {
            [] => Self::R1(param([1], value, device)),
            [a] => Self::R1(param([a], value, device)),
            [a, b] => Self::R2(param([a, b], value, device)),
            [a, b, c] => Self::R3(param([a, b, c], value, device)),
            [a, b, c, d] => Self::R4(param([a, b, c, d], value, device)),
            [a, b, c, d, e] => Self::R5(param([a, b, c, d, e], value, device)),
            ref shape => return Err(format!("has the shape {shape:?}; parameters have at most 5 axes")),
        })
    }
}

fn param<const D: usize>(shape: [usize; D], value: &HostTensor, device: &Device) -> Param<Tensor<D>> {
    let value = value.clone();
    let init = move |device: &Device, require_grad: bool| {
        // The graph has checked that these are floats.
        let data = TensorData::new(value.floats().unwrap_or_default().to_vec(), shape);
        Tensor::from_data(data, device).set_require_grad(require_grad)
    };
    Param::uninitialized(ParamId::new(), init, device.clone(), true, Shape::from(shape))
}

/// The parameters of a graph under the names of the state_dict that they come from, and its constants beside them.
#[derive(Clone, Debug)]
pub struct GraphModel {
    params: Vec<(String, AnyParam)>,
    /// Of any rank; Burn does not check it.
    constants: Vec<Tensor<1>>,
}

impl GraphModel {
    /// Parameters without a graph, in this order.
    ///
    /// # Errors
    ///
    /// If one of them has more axes than a parameter can have, or is not made of floats.
    pub fn of_parameters(params: &[(String, HostTensor)], device: &Device) -> Result<Self, GraphError> {
        if let Some((name, value)) = params.iter().find(|(_, value)| value.element() != Element::Float) {
            let problem = format!("the parameter `{name}` is made of {}", value.element().name());
            return Err(GraphError::model(problem));
        }
        let params = params.iter().map(|(name, value)| (name.as_str(), value));
        Self::new(params, std::iter::empty(), device)
            .map_err(|problem| GraphError::model(format!("the parameter {problem}")))
    }

    pub(crate) fn new<'a>(
        params: impl Iterator<Item = (&'a str, &'a HostTensor)>,
        constants: impl Iterator<Item = &'a HostTensor>,
        device: &Device,
    ) -> Result<Self, String> {
        let param = |(name, value): (&str, &HostTensor)| {
            let param = AnyParam::new(value, device).map_err(|problem| format!("`{name}` {problem}"))?;
            Ok((name.to_owned(), param))
        };
        let constant = |value: &HostTensor| {
            let data = TensorData::new(value.floats()?.to_vec(), value.shape().to_vec());
            Ok(Tensor::from_dispatch(Dispatch::float_from_data(
                data,
                device.as_dispatch(),
            )))
        };
        Ok(Self {
            params: params.map(param).collect::<Result<_, String>>()?,
            constants: constants.map(constant).collect::<Result<_, String>>()?,
        })
    }

    /// The value of a parameter, by its number.
    pub(crate) fn value(&self, number: usize) -> DispatchTensor {
        ranked!(&self.params[number].1, p => p.val().into_dispatch())
    }

    /// A constant that lives on the device, by its number.
    pub(crate) fn constant(&self, number: usize) -> DispatchTensor {
        self.constants[number].clone().into_dispatch()
    }

    fn each(self, param: impl Fn(AnyParam) -> AnyParam, constant: impl Fn(Tensor<1>) -> Tensor<1>) -> Self {
        Self {
            params: self
                .params
                .into_iter()
                .map(|(name, p)| (name, param(p)))
                .collect(),
            constants: self.constants.into_iter().map(constant).collect(),
        }
    }
}

/// What visitors see around each parameter.
const CONTAINER: &str = "Struct:Graph";

impl Module for GraphModel {
    fn collect_devices(&self, devices: Devices) -> Devices {
        let params = self.params.iter();
        params.fold(devices, |devices, (_, param)| param.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|param| param.fork(device), |constant| constant.to_device(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(
            |param| param.to_device(device),
            |constant| constant.to_device(device),
        )
    }

    fn train(self) -> Self {
        self.each(Module::train, Tensor::from_inner)
    }

    fn valid(&self) -> Self {
        self.clone().each(|param| param.valid(), Tensor::inner)
    }

    fn materialize(self) -> Self {
        self.each(Module::materialize, |constant| constant)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for (name, param) in &self.params {
            visitor.enter_module(name, CONTAINER);
            ranked!(param, p => visitor.visit_float(p));
            visitor.exit_module(name, CONTAINER);
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let params = self.params.into_iter().map(|(name, param)| {
            mapper.enter_module(&name, CONTAINER);
            let param = match param {
                AnyParam::R1(p) => AnyParam::R1(mapper.map_float(p)),
                AnyParam::R2(p) => AnyParam::R2(mapper.map_float(p)),
                AnyParam::R3(p) => AnyParam::R3(mapper.map_float(p)),
                AnyParam::R4(p) => AnyParam::R4(mapper.map_float(p)),
                AnyParam::R5(p) => AnyParam::R5(mapper.map_float(p)),
            };
            mapper.exit_module(&name, CONTAINER);
            (name, param)
        });
        Self {
            params: params.collect(),
            constants: self.constants,
        }
    }
}
