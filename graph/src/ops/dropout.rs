//! Dropout, by the project's own generator: the same numbers are dropped on all devices.

use annulus_shaders::ops::dropout::dropout;

use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[Kind::onnx("Dropout", (1, 3), drop_out).with(&[("seed", Type::Integer)])];

fn drop_out(call: &mut Call) -> Made {
    let x = call.floats(0)?;
    let rate = call.optional_host(1)?.map_or(Ok(0.5), |rate| rate.number())?;
    let on = call.is_true(2)?;
    let Some(mask) = call.mask(rate)?.filter(|_| on) else {
        return one(x);
    };
    call.reserve(x.shape())?;
    let shape = x.shape().to_vec();
    one(Floats::shaped(dropout(x.any::<1>(), mask).into_dispatch(), shape))
}
