//! Functions of each number, and arithmetic with two tensors that broadcast.

use annulus_shaders::nn::Activation;
use annulus_shaders::ops::activation::activation;
use annulus_shaders::ops::clip::clip as clip_within;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::backend::{Dispatch, DispatchTensor, Scalar};
use burn::tensor::Tensor;

use crate::host::{Element, HostTensor};
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::{Floats, Value};

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Add", (2, 2), |call| arithmetic(call, &ADD)),
    Kind::onnx("Sub", (2, 2), |call| arithmetic(call, &SUB)),
    Kind::onnx("Mul", (2, 2), |call| arithmetic(call, &MUL)),
    Kind::onnx("Div", (2, 2), |call| arithmetic(call, &DIV)),
    Kind::onnx("Mod", (2, 2), |call| arithmetic(call, &MOD)).with(&[("fmod", Type::Integer)]),
    Kind::onnx("Max", (2, 2), |call| arithmetic(call, &MAX)),
    Kind::onnx("Min", (2, 2), |call| arithmetic(call, &MIN)),
    Kind::onnx("Pow", (2, 2), power),
    Kind::onnx("Clip", (1, 3), clip),
    Kind::onnx("Neg", (1, 1), |call| {
        signed(call, i64::checked_neg, |x| -x, Dispatch::float_neg)
    }),
    Kind::onnx("Abs", (1, 1), |call| {
        signed(call, i64::checked_abs, f32::abs, Dispatch::float_abs)
    }),
    Kind::onnx("Exp", (1, 1), |call| map(call, libm::expf, Dispatch::float_exp)),
    Kind::onnx("Log", (1, 1), |call| map(call, libm::logf, Dispatch::float_log)),
    Kind::onnx("Sqrt", (1, 1), |call| map(call, f32::sqrt, Dispatch::float_sqrt)),
    Kind::onnx("Reciprocal", (1, 1), |call| {
        map(call, f32::recip, Dispatch::float_recip)
    }),
    Kind::onnx("Sin", (1, 1), |call| map(call, libm::sinf, Dispatch::float_sin)),
    Kind::onnx("Cos", (1, 1), |call| map(call, libm::cosf, Dispatch::float_cos)),
    Kind::onnx("Tanh", (1, 1), |call| {
        map(call, libm::tanhf, Dispatch::float_tanh)
    }),
    Kind::onnx("Erf", (1, 1), |call| map(call, libm::erff, Dispatch::float_erf)),
    Kind::onnx("Floor", (1, 1), |call| {
        map(call, f32::floor, Dispatch::float_floor)
    }),
    Kind::onnx("Ceil", (1, 1), |call| map(call, f32::ceil, Dispatch::float_ceil)),
    Kind::onnx("Round", (1, 1), |call| {
        map(call, f32::round_ties_even, Dispatch::float_round)
    }),
    Kind::onnx("Sign", (1, 1), |call| {
        let sign = |x: f32| if x == 0.0 { x } else { x.signum() };
        signed(call, |x| Some(x.signum()), sign, Dispatch::float_sign)
    }),
    Kind::onnx("Tan", (1, 1), |call| map(call, libm::tanf, Dispatch::float_tan)),
    Kind::onnx("Atan", (1, 1), |call| {
        map(call, libm::atanf, Dispatch::float_atan)
    }),
    Kind::onnx("Relu", (1, 1), |call| on_device(call, Dispatch::relu)),
    Kind::onnx("Sigmoid", (1, 1), |call| on_device(call, Dispatch::sigmoid)),
    Kind::onnx("Softplus", (1, 1), |call| on_device(call, softplus)),
    Kind::onnx("Gelu", (1, 1), gelu).with(&[("approximate", Type::Text)]),
    Kind::onnx("Swish", (1, 1), swish).with(&[("alpha", Type::Float)]),
    Kind::ours("Swish", (1, 1), swish).with(&[("alpha", Type::Float)]),
    Kind::ours("Detach", (1, 1), |call| on_device(call, Dispatch::float_detach)),
    Kind::onnx("HardSwish", (1, 1), |call| on_device(call, hard_swish)),
    Kind::onnx("HardSigmoid", (1, 1), hard_sigmoid).with(&[("alpha", Type::Float), ("beta", Type::Float)]),
    Kind::onnx("LeakyRelu", (1, 1), leaky_relu).with(&[("alpha", Type::Float)]),
    Kind::onnx("Elu", (1, 1), elu).with(&[("alpha", Type::Float)]),
];

/// How two numbers become one, in each lane.
struct Arithmetic {
    integers: fn(i64, i64) -> Option<i64>,
    floats: fn(f32, f32) -> f32,
    tensors: Option<fn(DispatchTensor, DispatchTensor) -> DispatchTensor>,
    with_number: fn(DispatchTensor, Scalar) -> DispatchTensor,
    /// Whether the two may change places.
    commutes: bool,
}

const ADD: Arithmetic = Arithmetic {
    integers: i64::checked_add,
    floats: |a, b| a + b,
    tensors: Some(Dispatch::float_add),
    with_number: Dispatch::float_add_scalar,
    commutes: true,
};

const SUB: Arithmetic = Arithmetic {
    integers: i64::checked_sub,
    floats: |a, b| a - b,
    tensors: Some(Dispatch::float_sub),
    with_number: Dispatch::float_sub_scalar,
    commutes: false,
};

const MUL: Arithmetic = Arithmetic {
    integers: i64::checked_mul,
    floats: |a, b| a * b,
    tensors: Some(Dispatch::float_mul),
    with_number: Dispatch::float_mul_scalar,
    commutes: true,
};

const DIV: Arithmetic = Arithmetic {
    integers: i64::checked_div,
    floats: |a, b| a / b,
    tensors: Some(Dispatch::float_div),
    with_number: Dispatch::float_div_scalar,
    commutes: false,
};

const MOD: Arithmetic = Arithmetic {
    integers: i64::checked_rem_euclid,
    floats: |a, b| a - b * (a / b).floor(),
    tensors: Some(Dispatch::float_remainder),
    with_number: Dispatch::float_remainder_scalar,
    commutes: false,
};

const MAX: Arithmetic = Arithmetic {
    integers: |a, b| Some(a.max(b)),
    floats: f32::max,
    tensors: None,
    with_number: Dispatch::float_clamp_min,
    commutes: true,
};

const MIN: Arithmetic = Arithmetic {
    integers: |a, b| Some(a.min(b)),
    floats: f32::min,
    tensors: None,
    with_number: Dispatch::float_clamp_max,
    commutes: true,
};

fn arithmetic(call: &mut Call, how: &Arithmetic) -> Made {
    let (a, b) = (call.value(0)?, call.value(1)?);
    for value in [&a, &b] {
        if value.element() == Element::Boolean {
            return Err("arithmetic with booleans; the exporter wrote an invalid file, cast them".into());
        }
    }
    let shape = call.broadcast(a.shape(), b.shape())?;
    if let (Value::Host(a), Value::Host(b)) = (&a, &b) {
        let (a, b) = (call.expand_host(a, &shape)?, call.expand_host(b, &shape)?);
        return one(a.arithmetic(&b, how.integers, how.floats)?);
    }
    call.reserve(&shape)?;
    let made = match (a, b) {
        (Value::Device(a), Value::Host(b)) if is_number(&b, &a) => (how.with_number)(a.tensor(), number(&b)?),
        (Value::Host(a), Value::Device(b)) if how.commutes && is_number(&a, &b) => {
            (how.with_number)(b.tensor(), number(&a)?)
        }
        (a, b) => {
            let tensors = how
                .tensors
                .ok_or("two tensors of floats, of which one must be a constant number")?;
            let (a, b) = (call.numbers(a)?, call.numbers(b)?);
            tensors(a.ranked(shape.len()).tensor(), b.ranked(shape.len()).tensor())
        }
    };
    one(Floats::shaped(made, shape))
}

/// Whether a host tensor is one number that does not give the other more axes.
fn is_number(host: &HostTensor, other: &Floats) -> bool {
    host.len() == 1 && host.shape().len() <= other.shape().len()
}

fn number(host: &HostTensor) -> Result<Scalar, String> {
    host.number().map(Scalar::from)
}

fn power(call: &mut Call) -> Made {
    let (base, exponent) = (call.value(0)?, call.value(1)?);
    let shape = call.broadcast(base.shape(), exponent.shape())?;
    let is_number = match (&base, &exponent) {
        (_, Value::Device(_)) => false,
        (Value::Device(base), Value::Host(exponent)) => is_number(exponent, base),
        (Value::Host(_), Value::Host(_)) => true,
    };
    if !is_number {
        call.reserve(&shape)?;
        let (base, exponent) = (call.numbers(base)?, call.numbers(exponent)?);
        let made = Dispatch::float_powf(base.expanded(&shape).tensor(), exponent.expanded(&shape).tensor());
        return one(Floats::shaped(made, shape));
    }
    let exponent = call.host(1)?;
    let exponent = exponent.cast(Element::Float);
    match base {
        Value::Host(base) => {
            let (base, exponent) = (
                call.expand_host(&base, &shape)?,
                call.expand_host(&exponent, &shape)?,
            );
            let whole = base.element() == Element::Integer;
            let made = base
                .cast(Element::Float)
                .arithmetic(&exponent, |_, _| None, libm::powf)?;
            one(if whole { made.cast(Element::Integer) } else { made })
        }
        Value::Device(base) => {
            call.reserve(&shape)?;
            let exponent = exponent.floats()?[0];
            let base = base.tensor();
            let made = if exponent == 2.0 {
                Dispatch::float_mul(base.clone(), base)
            } else if exponent.fract() == 0.0 && exponent.abs() <= 64.0 {
                Dispatch::float_powi_scalar(base, (exponent as i64).into())
            } else {
                Dispatch::float_powf_scalar(base, f64::from(exponent).into())
            };
            one(Floats::shaped(made, shape))
        }
    }
}

fn clip(call: &mut Call) -> Made {
    let (least, most) = (call.optional_host(1)?, call.optional_host(2)?);
    let bound = |bound: Option<HostTensor>| bound.map(|bound| bound.number()).transpose();
    let (least, most) = (bound(least)?, bound(most)?);
    let least = least.unwrap_or(f64::NEG_INFINITY) as f32;
    let most = most.unwrap_or(f64::INFINITY) as f32;
    on_device(call, |x| {
        clip_within::<1>(Tensor::from_dispatch(x), least, most).into_dispatch()
    })
}

/// A function of each float, in either lane.
fn map(call: &mut Call, host: fn(f32) -> f32, device: fn(DispatchTensor) -> DispatchTensor) -> Made {
    match call.value(0)? {
        Value::Host(x) => {
            call.reserve_host(x.shape())?;
            one(x.map_floats(host)?)
        }
        Value::Device(_) => on_device(call, device),
    }
}

/// A function of each integer or float, in either lane.
fn signed(
    call: &mut Call,
    integers: fn(i64) -> Option<i64>,
    host: fn(f32) -> f32,
    device: fn(DispatchTensor) -> DispatchTensor,
) -> Made {
    match call.value(0)? {
        Value::Host(x) if x.element() == Element::Integer => {
            call.reserve_host(x.shape())?;
            one(x.map_integers(integers)?)
        }
        _ => map(call, host, device),
    }
}

/// A function of each float on the device.
fn on_device(call: &mut Call, function: impl FnOnce(DispatchTensor) -> DispatchTensor) -> Made {
    let x = call.floats(0)?;
    let shape = x.shape().to_vec();
    call.reserve(&shape)?;
    let made = function(x.tensor());
    one(Floats::shaped(made, shape))
}

fn softplus(x: DispatchTensor) -> DispatchTensor {
    Dispatch::float_neg(Dispatch::log_sigmoid(Dispatch::float_neg(x)))
}

fn gelu(call: &mut Call) -> Made {
    let kind = match call.text("approximate") {
        None | Some("none") => Activation::Gelu,
        Some("tanh") => Activation::GeluTanh,
        Some(other) => return Err(format!("the approximation `{other}`, which is not none or tanh")),
    };
    on_device(call, |x| activated(x, kind))
}

/// A function of each number by one of our kernels, which look at the shape and not at the type.
fn activated(x: DispatchTensor, kind: Activation) -> DispatchTensor {
    activation(Tensor::<1>::from_dispatch(x), kind).into_dispatch()
}

fn swish(call: &mut Call) -> Made {
    let alpha = call.float("alpha").unwrap_or(1.0);
    on_device(call, |x| match alpha {
        1.0 => activated(x, Activation::Silu),
        alpha => {
            let gate = Dispatch::sigmoid(Dispatch::float_mul_scalar(x.clone(), alpha.into()));
            Dispatch::float_mul(x, gate)
        }
    })
}

/// `clip(slope * x + shift, 0, 1)`.
fn gate(x: DispatchTensor, slope: f64, shift: f64) -> DispatchTensor {
    let line = Dispatch::float_add_scalar(Dispatch::float_mul_scalar(x, slope.into()), shift.into());
    Dispatch::float_clamp(line, 0.0.into(), 1.0.into())
}

fn hard_swish(x: DispatchTensor) -> DispatchTensor {
    Dispatch::float_mul(x.clone(), gate(x, 1.0 / 6.0, 0.5))
}

fn hard_sigmoid(call: &mut Call) -> Made {
    let (slope, shift) = (
        call.float("alpha").unwrap_or(0.2),
        call.float("beta").unwrap_or(0.5),
    );
    on_device(call, |x| gate(x, slope, shift))
}

fn leaky_relu(call: &mut Call) -> Made {
    let slope = call.float("alpha").unwrap_or(0.01);
    on_device(call, |x| Dispatch::leaky_relu(x, slope.into()))
}

/// `x` above 0, `alpha * (exp(x) - 1)` below.
fn elu(call: &mut Call) -> Made {
    let alpha = call.float("alpha").unwrap_or(1.0);
    on_device(call, |x| {
        let below = Dispatch::float_exp(Dispatch::float_clamp_max(x.clone(), 0.0.into()));
        let below = Dispatch::float_mul_scalar(Dispatch::float_sub_scalar(below, 1.0.into()), alpha.into());
        Dispatch::float_add(Dispatch::relu(x), below)
    })
}
