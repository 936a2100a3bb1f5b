//! Images in another size.

use burn::backend::Dispatch;
use burn::backend::ops::{InterpolateMode, InterpolateOptions, ModuleOps};

use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[Kind::onnx("Resize", (1, 4), resize).with(&[
    ("coordinate_transformation_mode", Type::Text),
    ("mode", Type::Text),
    ("nearest_mode", Type::Text),
])];

/// `[batch, channels, height, width]`, or the same without a height, to other sides, by scales or by sizes.
fn resize(call: &mut Call) -> Made {
    let x = call.floats(0)?;
    let from = x.shape().to_vec();
    let to: Vec<usize> = match call.optional_host(3)? {
        Some(sizes) => sizes.sizes()?,
        None => {
            let scales = call.host(2)?;
            let scaled = |(length, scale): (&usize, &f32)| (*length as f64 * f64::from(*scale)) as usize;
            from.iter().zip(scales.floats()?).map(scaled).collect()
        }
    };
    let [height, width] = match (&from[..], &to[..]) {
        ([a, b, _], [c, d, width]) if (a, b) == (c, d) => [1, *width],
        ([a, b, _, _], [c, d, height, width]) if (a, b) == (c, d) => [*height, *width],
        _ => {
            return Err(format!(
                "{from:?} to {to:?}; only the sides of images and signals are resized"
            ));
        }
    };
    // Kernels compute places as floats.
    if from[2..].iter().chain(&to[2..]).any(|side| *side >= 1 << 24) {
        return Err("a side of 2^24 or more".into());
    }
    let mode = call.text("mode").unwrap_or("nearest");
    let places = call
        .text("coordinate_transformation_mode")
        .unwrap_or("half_pixel");
    let rounding = call.text("nearest_mode").unwrap_or("round_prefer_floor");
    let (mode, corners) = match (mode, places, rounding) {
        ("nearest", "asymmetric", "floor") => (InterpolateMode::Nearest, false),
        ("linear", "align_corners", _) => (InterpolateMode::Bilinear, true),
        ("linear", "half_pixel" | "pytorch_half_pixel", _) => (InterpolateMode::Bilinear, false),
        _ => return Err(format!("the mode {mode} with {places} and {rounding}")),
    };
    call.reserve(&to)?;
    let image = if from.len() == 3 {
        x.reshaped(vec![from[0], from[1], 1, from[2]])
    } else {
        x
    };
    let options = InterpolateOptions::new(mode).with_align_corners(corners);
    one(Floats::shaped(
        Dispatch::interpolate(image.tensor(), [height, width], options),
        to,
    ))
}
