//! Integers and booleans that follow from floats of the model: floats on the device.

use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::{Dispatch, DispatchTensor, get_device_settings};

use crate::host::{self, Element};
use crate::pass::Call;
use crate::value::{Floats, Value};

impl Call<'_, '_> {
    /// A value on the device; integers and booleans become floats.
    pub(crate) fn numbers(&mut self, value: Value) -> Result<Floats, String> {
        match value {
            Value::Host(host) => self.on_device(host.cast(Element::Float).into()),
            floats => self.on_device(floats),
        }
    }

    /// What is not 0 among floats.
    pub(crate) fn is_true_of(&self, x: Floats) -> DispatchTensor {
        let element = get_device_settings::<Dispatch>(self.pass.device).bool_dtype;
        Dispatch::float_not_equal_elem(x.tensor(), 0.0.into(), element)
    }

    /// Truth values of the device as floats.
    pub(crate) fn truth(&self, mask: DispatchTensor, shape: Vec<usize>) -> Floats {
        let element = get_device_settings::<Dispatch>(self.pass.device).float_dtype;
        Floats::shaped(Dispatch::bool_into_float(mask, element), shape)
    }

    /// Indices into an axis of this length. Those on the host are checked; those that follow from floats stay within it.
    pub(crate) fn places(&self, index: &Value, length: usize) -> Result<DispatchTensor, String> {
        let own = match index.shape() {
            [] => vec![1],
            shape => shape.to_vec(),
        };
        match index {
            Value::Host(host) => Ok(self.upload_integers(&host::indices(host.integers()?, length)?, &own)),
            Value::Device(floats) => {
                let element = get_device_settings::<Dispatch>(self.pass.device).int_dtype;
                let ids = Dispatch::float_into_int(Dispatch::float_detach(floats.clone().tensor()), element);
                let last = length.saturating_sub(1) as i64;
                Ok(Dispatch::int_clamp(ids, 0i64.into(), last.into()))
            }
        }
    }
}
