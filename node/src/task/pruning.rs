//! Takes units out of a trained model: hidden units, channels or heads, each with its rows and columns.
//!
//! The units that stay are those with the largest product of norms, one factor for each matrix that has a part of the unit: what
//! comes in and what goes out. Li et al. (2017, "Pruning filters for efficient ConvNets") use the norm of what comes in. The
//! product does not change if a unit's inputs are scaled and its outputs scaled back, which leaves a ReLU network the same.

use std::collections::BTreeSet;

use super::error::TaskError;
use super::finish::FileTensor;

/// A smaller model of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Pruning<C> {
    /// Its settings.
    pub config: C,
    /// What else its file says differently.
    pub metadata: Vec<(&'static str, String)>,
    /// What becomes fewer.
    pub units: Vec<Units>,
}

/// Units of one layer, of which some stay.
#[derive(Clone, Debug, PartialEq)]
pub struct Units {
    /// How many there are.
    pub count: usize,
    /// How many stay.
    pub kept: usize,
    /// The parts that each unit has of tensors.
    pub places: Vec<Place>,
}

/// The part of a tensor that units have: unit 0 has the first `each` indices of an axis from `start` on, and so forth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tensor's name.
    pub tensor: String,
    /// The axis along which units lie.
    pub axis: usize,
    /// Where unit 0 begins.
    pub start: usize,
    /// Indices of a unit.
    pub each: usize,
}

impl Place {
    /// Units of one index each, from the first on.
    pub fn of(tensor: impl Into<String>, axis: usize) -> Self {
        Self {
            tensor: tensor.into(),
            axis,
            start: 0,
            each: 1,
        }
    }

    /// Each unit with several indices in a row.
    pub fn each(self, each: usize) -> Self {
        Self { each, ..self }
    }

    /// With unit 0 further back.
    pub fn from(self, start: usize) -> Self {
        Self { start, ..self }
    }

    fn indices(&self, unit: usize) -> std::ops::Range<usize> {
        let start = self.start + unit * self.each;
        start..start + self.each
    }
}

/// How many of `count` units stay if a share of them should: at least one, and a multiple of `grain`.
pub fn kept(count: usize, keep: f64, grain: usize) -> usize {
    let grains = count / grain;
    grain * ((grains as f64 * keep).round() as usize).clamp(1, grains.max(1))
}

/// The tensors without the units that go.
///
/// # Errors
///
/// If a tensor is missing or has another shape.
pub fn without_units(tensors: &[FileTensor], units: &[Units]) -> Result<Vec<FileTensor>, TaskError> {
    let mut left = tensors.to_vec();
    for units in units {
        let gone: Vec<usize> = gone(tensors, units)?;
        for place in &units.places {
            // Several places of one axis are one cut.
            let first = units
                .places
                .iter()
                .find(|other| other.tensor == place.tensor && other.axis == place.axis);
            if first != Some(place) {
                continue;
            }
            let same = units
                .places
                .iter()
                .filter(|other| other.tensor == place.tensor && other.axis == place.axis);
            let indices: BTreeSet<usize> = same
                .flat_map(|place| gone.iter().flat_map(|unit| place.indices(*unit)))
                .collect();
            if let Some(tensor) = left.iter_mut().find(|tensor| tensor.name == place.tensor) {
                *tensor = cut(tensor, place.axis, &indices);
            }
        }
    }
    Ok(left)
}

/// The units with the least products of norms. Of equal ones the later go.
fn gone(tensors: &[FileTensor], units: &Units) -> Result<Vec<usize>, TaskError> {
    let mut scores = vec![0.0; units.count];
    for place in &units.places {
        let end = place.indices(units.count.saturating_sub(1)).end;
        let fits = |tensor: &&FileTensor| {
            tensor.name == place.tensor && tensor.shape.get(place.axis).is_some_and(|axis| *axis >= end)
        };
        let unfit = || {
            format!(
                "the model file has no {} for {} units: export it again",
                place.tensor, units.count
            )
        };
        let tensor = tensors.iter().find(fits).ok_or_else(unfit)?;
        // Biases and norms have one axis.
        if tensor.shape.len() > 1 {
            let squares = squares(tensor, place.axis);
            for (unit, score) in scores.iter_mut().enumerate() {
                // Half the logarithm of a square is that of a norm.
                *score += libm::log(squares[place.indices(unit)].iter().sum()) / 2.0;
            }
        }
    }
    let mut order: Vec<usize> = (0..units.count).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    Ok(order.split_off(units.kept))
}

/// The sum of squares at each index of an axis.
fn squares(tensor: &FileTensor, axis: usize) -> Vec<f64> {
    let length = tensor.shape[axis];
    let inner: usize = tensor.shape[axis + 1..].iter().product();
    let mut squares = vec![0.0; length];
    for (at, value) in tensor.values.iter().enumerate() {
        squares[at / inner % length] += f64::from(*value) * f64::from(*value);
    }
    squares
}

/// A tensor without some indices of an axis.
fn cut(tensor: &FileTensor, axis: usize, gone: &BTreeSet<usize>) -> FileTensor {
    let length = tensor.shape[axis];
    let inner: usize = tensor.shape[axis + 1..].iter().product();
    let stays = |at: &usize| !gone.contains(&(at / inner % length));
    let values = (0..tensor.values.len()).filter(stays).map(|at| tensor.values[at]);
    let mut shape = tensor.shape.clone();
    shape[axis] -= gone.len();
    FileTensor {
        name: tensor.name.clone(),
        shape,
        values: values.collect(),
        packed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize], values: &[f32]) -> FileTensor {
        FileTensor {
            name: name.into(),
            shape: shape.to_vec(),
            values: values.to_vec(),
            packed: None,
        }
    }

    #[test]
    fn units_with_little_in_or_out_go_with_their_rows_and_columns() {
        let tensors = [
            tensor("in", &[2, 3], &[1.0, 8.0, 2.0, 1.0, 8.0, 2.0]),
            tensor("bias", &[3], &[0.1, 9.0, 0.3]),
            tensor("out", &[3, 1], &[3.0, 0.01, 4.0]),
        ];
        let units = Units {
            count: 3,
            kept: 2,
            places: vec![Place::of("in", 1), Place::of("bias", 0), Place::of("out", 0)],
        };
        let left = without_units(&tensors, std::slice::from_ref(&units)).unwrap();
        // Unit 1 has the largest inputs and bias, but gives nothing.
        assert_eq!(left[0], tensor("in", &[2, 2], &[1.0, 2.0, 1.0, 2.0]));
        assert_eq!(left[1], tensor("bias", &[2], &[0.1, 0.3]));
        assert_eq!(left[2], tensor("out", &[2, 1], &[3.0, 4.0]));
        let lacking = without_units(&tensors[1..], &[units]).unwrap_err().to_string();
        assert!(lacking.contains("has no in for 3 units"), "{lacking}");
    }

    #[test]
    fn a_head_takes_its_queries_keys_and_values_with_it() {
        // Two heads of two: q0 q0 q1 q1 k0 k0 k1 k1 v0 v0 v1 v1.
        let qkv: Vec<f32> = [1.0, 1.0, 5.0, 5.0].repeat(3);
        let tensors = [
            tensor("qkv", &[1, 12], &qkv),
            tensor("output", &[4, 1], &[1.0, 2.0, 3.0, 4.0]),
        ];
        let part = |start| Place::of("qkv", 1).each(2).from(start);
        let units = Units {
            count: 2,
            kept: 1,
            places: vec![part(0), part(4), part(8), Place::of("output", 0).each(2)],
        };
        let left = without_units(&tensors, &[units]).unwrap();
        assert_eq!(left[0], tensor("qkv", &[1, 6], &[5.0; 6]));
        assert_eq!(left[1], tensor("output", &[2, 1], &[3.0, 4.0]));
    }

    #[test]
    fn layers_one_behind_the_other_are_judged_before_anything_is_cut() {
        let tensors = [
            tensor("a", &[1, 2], &[1.0, 2.0]),
            tensor("b", &[2, 2], &[9.0, 1.0, 1.0, 2.0]),
            tensor("c", &[2, 1], &[1.0, 1.0]),
        ];
        let units = |left: &str, right: &str| Units {
            count: 2,
            kept: 1,
            places: vec![Place::of(left, 1), Place::of(right, 0)],
        };
        let left = without_units(&tensors, &[units("a", "b"), units("b", "c")]).unwrap();
        let numbers: Vec<&[f32]> = left.iter().map(|tensor| &tensor.values[..]).collect();
        assert_eq!(numbers, [&[1.0][..], &[9.0], &[1.0]]);
    }

    #[test]
    fn a_share_of_units_is_whole_and_not_nothing() {
        assert_eq!((kept(128, 0.5, 1), kept(5, 0.5, 1), kept(3, 0.1, 1)), (64, 3, 1));
        assert_eq!((kept(16, 0.5, 8), kept(24, 0.5, 8), kept(16, 0.1, 8)), (8, 16, 8));
    }
}
