//! Tensors on the host: shapes, indices, masks and positions. They follow from the batch and never from parameters, so
//! no gradient flows through them, and most never reach a device.

use std::sync::Arc;

/// The elements of a tensor, the last axis fastest.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Floats.
    Floats(Vec<f32>),
    /// Integers of any width.
    Integers(Vec<i64>),
    /// Truth values.
    Booleans(Vec<bool>),
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Floats of any width, computed as `f32`.
    Float,
    /// Integers of any width, computed as `i64`.
    Integer,
    /// Truth values.
    Boolean,
}

impl Element {
    /// From ONNX's number of a type.
    pub(crate) fn of_onnx(number: i64) -> Result<Self, String> {
        match number {
            1 | 10 | 11 | 16 => Ok(Self::Float),
            2..=7 | 12 | 13 => Ok(Self::Integer),
            9 => Ok(Self::Boolean),
            _ => Err(format!(
                "elements of ONNX's type {number}, which Annulus does not have"
            )),
        }
    }

    /// In messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "floats",
            Self::Integer => "integers",
            Self::Boolean => "booleans",
        }
    }
}

/// The same expression for elements of each type, with the type kept.
macro_rules! each {
    ($numbers:expr, $values:ident => $made:expr) => {
        match $numbers {
            Numbers::Floats($values) => Numbers::Floats($made),
            Numbers::Integers($values) => Numbers::Integers($made),
            Numbers::Booleans($values) => Numbers::Booleans($made),
        }
    };
}

impl Numbers {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Integers(values) => values.len(),
            Self::Booleans(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
    pub fn element(&self) -> Element {
        match self {
            Self::Floats(_) => Element::Float,
            Self::Integers(_) => Element::Integer,
            Self::Booleans(_) => Element::Boolean,
        }
    }

    /// The first one, as often as asked for.
    pub(crate) fn repeated(&self, count: usize) -> Option<Self> {
        Some(each!(self, values => vec![*values.first()?; count]))
    }

    /// Those at these places.
    ///
    /// # Panics
    ///
    /// If a place is none of them.
    pub fn pick(&self, places: impl Iterator<Item = usize>) -> Self {
        each!(self, values => places.map(|place| values[place]).collect())
    }
}

/// A tensor on the host. Clones share the elements.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    shape: Vec<usize>,
    numbers: Arc<Numbers>,
}

impl HostTensor {
    /// A tensor of this shape.
    ///
    /// # Errors
    ///
    /// If the shape has another number of elements.
    pub fn new(shape: Vec<usize>, numbers: Numbers) -> Result<Self, String> {
        let count = shape.iter().try_fold(1usize, |n, axis| n.checked_mul(*axis));
        if count != Some(numbers.len()) {
            return Err(format!(
                "{} elements do not make the shape {shape:?}",
                numbers.len()
            ));
        }
        Ok(Self::of(shape, numbers))
    }

    fn of(shape: Vec<usize>, numbers: Numbers) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), numbers.len());
        let numbers = Arc::new(numbers);
        Self { shape, numbers }
    }

    /// One element without axes.
    pub(crate) fn scalar(numbers: Numbers) -> Self {
        Self::of(Vec::new(), numbers)
    }

    /// Integers along one axis.
    pub(crate) fn vector(values: Vec<i64>) -> Self {
        Self::of(vec![values.len()], Numbers::Integers(values))
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its elements.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn element(&self) -> Element {
        self.numbers.element()
    }

    pub(crate) fn integers(&self) -> Result<&[i64], String> {
        match &*self.numbers {
            Numbers::Integers(values) => Ok(values),
            other => Err(format!("{} where integers belong", other.element().name())),
        }
    }

    pub(crate) fn floats(&self) -> Result<&[f32], String> {
        match &*self.numbers {
            Numbers::Floats(values) => Ok(values),
            other => Err(format!("{} where floats belong", other.element().name())),
        }
    }

    pub(crate) fn booleans(&self) -> Result<&[bool], String> {
        match &*self.numbers {
            Numbers::Booleans(values) => Ok(values),
            other => Err(format!("{} where booleans belong", other.element().name())),
        }
    }

    /// One number everywhere, as elements of a type.
    pub(crate) fn filled(shape: Vec<usize>, element: Element, value: f64) -> Self {
        let count = shape.iter().product();
        let numbers = match element {
            Element::Float => Numbers::Floats(vec![value as f32; count]),
            Element::Integer => Numbers::Integers(vec![value as i64; count]),
            Element::Boolean => Numbers::Booleans(vec![value != 0.0; count]),
        };
        Self::of(shape, numbers)
    }

    /// The only element, a number.
    pub(crate) fn number(&self) -> Result<f64, String> {
        match &*self.numbers {
            Numbers::Floats(values) if values.len() == 1 => Ok(f64::from(values[0])),
            Numbers::Integers(values) if values.len() == 1 => Ok(values[0] as f64),
            other => Err(format!(
                "{} {} where one number belongs",
                other.len(),
                other.element().name()
            )),
        }
    }

    /// Its elements as sizes of axes.
    pub(crate) fn sizes(&self) -> Result<Vec<usize>, String> {
        let sizes = self.integers()?.iter().map(|n| usize::try_from(*n));
        sizes
            .collect::<Result<_, _>>()
            .map_err(|_| "a negative or very large size".into())
    }

    /// As many elements in another shape.
    pub(crate) fn reshaped(&self, shape: Vec<usize>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), self.len());
        let numbers = self.numbers.clone();
        Self { shape, numbers }
    }

    /// A tensor whose elements are those at these places.
    pub(crate) fn pick(&self, shape: Vec<usize>, places: impl Iterator<Item = usize>) -> Self {
        Self::of(shape, self.numbers.pick(places))
    }

    /// Repeats axes of length 1. The shape must be one that this broadcasts to.
    pub(crate) fn expanded(&self, shape: &[usize]) -> Self {
        if self.shape == shape {
            return self.clone();
        }
        let lead = shape.len() - self.shape.len();
        let own = strides(&self.shape);
        let stride = |axis: usize| match axis.checked_sub(lead) {
            Some(axis) if self.shape[axis] > 1 => own[axis] as isize,
            _ => 0,
        };
        let strides: Vec<isize> = (0..shape.len()).map(stride).collect();
        self.pick(shape.to_vec(), walk(shape, 0, strides))
    }

    /// Axes in another order.
    pub(crate) fn permuted(&self, order: &[usize]) -> Self {
        let own = strides(&self.shape);
        let shape: Vec<usize> = order.iter().map(|axis| self.shape[*axis]).collect();
        let strides = order.iter().map(|axis| own[*axis] as isize).collect();
        self.pick(shape.clone(), walk(&shape, 0, strides))
    }

    /// A start, a count and a step for each axis.
    pub(crate) fn sliced(&self, ranges: &[Range]) -> Self {
        let own = strides(&self.shape);
        let shape: Vec<usize> = ranges.iter().map(|range| range.count).collect();
        let start = ranges
            .iter()
            .zip(&own)
            .map(|(range, stride)| range.start * stride);
        let steps = ranges
            .iter()
            .zip(&own)
            .map(|(range, stride)| (range.step * stride) as isize);
        self.pick(shape.clone(), walk(&shape, start.sum(), steps.collect()))
    }

    /// A tensor of the same shape, each element made of one of this.
    pub(crate) fn map_floats(&self, function: impl Fn(f32) -> f32) -> Result<Self, String> {
        let values = self.floats()?.iter().map(|x| function(*x)).collect();
        Ok(Self::of(self.shape.clone(), Numbers::Floats(values)))
    }

    /// Truth values of the same shape.
    pub(crate) fn map_booleans(&self, function: impl Fn(bool) -> bool) -> Result<Self, String> {
        let values = self.booleans()?.iter().map(|x| function(*x)).collect();
        Ok(Self::of(self.shape.clone(), Numbers::Booleans(values)))
    }

    /// Integers of the same shape; the function may refuse, as overflow does.
    pub(crate) fn map_integers(&self, function: impl Fn(i64) -> Option<i64>) -> Result<Self, String> {
        let values = self.integers()?.iter().map(|x| function(*x));
        let values = values.collect::<Option<_>>().ok_or(OVERFLOW)?;
        Ok(Self::of(self.shape.clone(), Numbers::Integers(values)))
    }

    /// With elements of another type.
    pub(crate) fn cast(&self, to: Element) -> Self {
        let numbers = match (&*self.numbers, to) {
            (Numbers::Floats(_), Element::Float)
            | (Numbers::Integers(_), Element::Integer)
            | (Numbers::Booleans(_), Element::Boolean) => return self.clone(),
            (Numbers::Floats(v), Element::Integer) => {
                Numbers::Integers(v.iter().map(|x| *x as i64).collect())
            }
            (Numbers::Floats(v), Element::Boolean) => {
                Numbers::Booleans(v.iter().map(|x| *x != 0.0).collect())
            }
            (Numbers::Integers(v), Element::Float) => Numbers::Floats(v.iter().map(|x| *x as f32).collect()),
            (Numbers::Integers(v), Element::Boolean) => {
                Numbers::Booleans(v.iter().map(|x| *x != 0).collect())
            }
            (Numbers::Booleans(v), Element::Float) => {
                Numbers::Floats(v.iter().map(|x| f32::from(u8::from(*x))).collect())
            }
            (Numbers::Booleans(v), Element::Integer) => {
                Numbers::Integers(v.iter().map(|x| i64::from(*x)).collect())
            }
        };
        Self::of(self.shape.clone(), numbers)
    }

    /// Elements of two tensors of one shape, pair by pair.
    pub(crate) fn arithmetic(
        &self,
        other: &Self,
        integers: fn(i64, i64) -> Option<i64>,
        floats: fn(f32, f32) -> f32,
    ) -> Result<Self, String> {
        let numbers = match (&*self.numbers, &*other.numbers) {
            (Numbers::Integers(a), Numbers::Integers(b)) => {
                let values = a.iter().zip(b).map(|(a, b)| integers(*a, *b));
                Numbers::Integers(values.collect::<Option<_>>().ok_or(OVERFLOW)?)
            }
            (Numbers::Floats(a), Numbers::Floats(b)) => {
                Numbers::Floats(a.iter().zip(b).map(|(a, b)| floats(*a, *b)).collect())
            }
            (a, b) => {
                let (a, b) = (a.element().name(), b.element().name());
                return Err(format!(
                    "arithmetic with {a} and {b}; cast them to one type of numbers"
                ));
            }
        };
        Ok(Self::of(self.shape.clone(), numbers))
    }

    /// Compares two tensors of one shape, pair by pair.
    pub(crate) fn compared(
        &self,
        other: &Self,
        order: fn(std::cmp::Ordering) -> bool,
    ) -> Result<Self, String> {
        let values = match (&*self.numbers, &*other.numbers) {
            (Numbers::Integers(a), Numbers::Integers(b)) => {
                a.iter().zip(b).map(|(a, b)| order(a.cmp(b))).collect()
            }
            (Numbers::Booleans(a), Numbers::Booleans(b)) => {
                a.iter().zip(b).map(|(a, b)| order(a.cmp(b))).collect()
            }
            // What is not a number compares as false.
            (Numbers::Floats(a), Numbers::Floats(b)) => {
                let pairs = a.iter().zip(b);
                pairs.map(|(a, b)| a.partial_cmp(b).is_some_and(order)).collect()
            }
            (a, b) => {
                let (a, b) = (a.element().name(), b.element().name());
                return Err(format!("a comparison of {a} with {b}; cast them to one type"));
            }
        };
        Ok(Self::of(self.shape.clone(), Numbers::Booleans(values)))
    }

    /// Truth values of two tensors of one shape, pair by pair.
    pub(crate) fn logic(&self, other: &Self, function: fn(bool, bool) -> bool) -> Result<Self, String> {
        let pairs = self.booleans()?.iter().zip(other.booleans()?);
        let values = pairs.map(|(a, b)| function(*a, *b)).collect();
        Ok(Self::of(self.shape.clone(), Numbers::Booleans(values)))
    }

    /// Elements of `self` where this is true, otherwise of `other`; all three of one shape.
    pub(crate) fn chosen(&self, mask: &[bool], other: &Self) -> Result<Self, String> {
        fn of<T: Copy>(mask: &[bool], a: &[T], b: &[T]) -> Vec<T> {
            let pairs = a.iter().zip(b);
            mask.iter()
                .zip(pairs)
                .map(|(m, (a, b))| if *m { *a } else { *b })
                .collect()
        }
        let numbers = match (&*self.numbers, &*other.numbers) {
            (Numbers::Floats(a), Numbers::Floats(b)) => Numbers::Floats(of(mask, a, b)),
            (Numbers::Integers(a), Numbers::Integers(b)) => Numbers::Integers(of(mask, a, b)),
            (Numbers::Booleans(a), Numbers::Booleans(b)) => Numbers::Booleans(of(mask, a, b)),
            _ => return Err("a choice between tensors of two types".into()),
        };
        Ok(Self::of(self.shape.clone(), numbers))
    }

    /// Tensors that differ along one axis alone, one behind the other.
    pub(crate) fn concatenated(parts: &[Self], axis: usize) -> Result<Self, String> {
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let outer: usize = shape[..axis].iter().product();
        fn of<T: Copy>(parts: &[&[T]], outer: usize) -> Vec<T> {
            let chunk = |row: usize, part: &[T]| {
                let length = part.len() / outer.max(1);
                part[row * length..(row + 1) * length].to_vec()
            };
            (0..outer)
                .flat_map(|row| parts.iter().flat_map(move |part| chunk(row, part)))
                .collect()
        }
        let numbers = match parts[0].element() {
            Element::Float => {
                let parts = parts.iter().map(Self::floats).collect::<Result<Vec<_>, _>>()?;
                Numbers::Floats(of(&parts, outer))
            }
            Element::Integer => {
                let parts = parts.iter().map(Self::integers).collect::<Result<Vec<_>, _>>()?;
                Numbers::Integers(of(&parts, outer))
            }
            Element::Boolean => {
                let parts = parts.iter().map(Self::booleans).collect::<Result<Vec<_>, _>>()?;
                Numbers::Booleans(of(&parts, outer))
            }
        };
        Ok(Self::of(shape, numbers))
    }
}

const OVERFLOW: &str = "integers that overflow, or a division by zero";

/// Part of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) count: usize,
    pub(crate) step: usize,
}

impl Range {
    /// All of an axis.
    pub(crate) fn all(count: usize) -> Self {
        let (start, step) = (0, 1);
        Self { start, count, step }
    }
}

/// How far apart neighbours along each axis are.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// The places of a tensor's elements in memory, the last axis fastest.
pub(crate) fn walk(shape: &[usize], start: usize, strides: Vec<isize>) -> impl Iterator<Item = usize> {
    let shape = shape.to_vec();
    let mut left: usize = shape.iter().product();
    let mut index = vec![0; shape.len()];
    let mut place = start as isize;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let now = place as usize;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            place += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            place -= strides[axis] * shape[axis] as isize;
            index[axis] = 0;
        }
        Some(now)
    })
}

/// The shape that two shapes broadcast to.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], axis: usize| match (axis + shape.len()).checked_sub(rank) {
        Some(axis) => shape[axis],
        None => 1,
    };
    let axes = (0..rank).map(|axis| match (at(a, axis), at(b, axis)) {
        (a, b) if a == b => Ok(a),
        (1, n) | (n, 1) => Ok(n),
        _ => Err(format!("the shapes {a:?} and {b:?} do not fit together")),
    });
    axes.collect()
}

/// An axis, counted from behind if it is negative.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let from_front = if axis < 0 {
        axis.checked_add(rank as i64)
    } else {
        Some(axis)
    };
    match from_front.map(usize::try_from) {
        Some(Ok(found)) if found < rank => Ok(found),
        _ => Err(format!("axis {axis} of a tensor that has {rank}")),
    }
}

/// Indices into an axis of this length, those from behind made positive.
pub(crate) fn indices(index: &[i64], length: usize) -> Result<Vec<usize>, String> {
    index
        .iter()
        .map(|i| axis(*i, length).map_err(|_| format!("index {i} into {length} entries")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(shape: &[usize]) -> HostTensor {
        let count = shape.iter().product::<usize>() as i64;
        HostTensor::new(shape.to_vec(), Numbers::Integers((0..count).collect())).unwrap()
    }

    #[test]
    fn views_are_what_their_definitions_say() {
        let x = counting(&[2, 3]);
        assert_eq!(x.permuted(&[1, 0]).integers().unwrap(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(
            counting(&[3]).expanded(&[2, 3]).integers().unwrap(),
            [0, 1, 2, 0, 1, 2]
        );
        assert_eq!(
            counting(&[2, 1]).expanded(&[2, 2]).integers().unwrap(),
            [0, 0, 1, 1]
        );
        let range = |start, count, step| Range { start, count, step };
        let part = x.sliced(&[range(1, 1, 1), range(0, 2, 2)]);
        assert_eq!(
            (part.shape(), part.integers().unwrap()),
            (&[1, 2][..], &[3, 5][..])
        );
        let both = HostTensor::concatenated(&[x.clone(), x], 1).unwrap();
        assert_eq!(both.integers().unwrap(), [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
    }

    #[test]
    fn arithmetic_refuses_booleans_mixtures_and_overflow() {
        let x = counting(&[2]);
        let add = |a: &HostTensor, b: &HostTensor| a.arithmetic(b, i64::checked_add, |a, b| a + b);
        assert_eq!(add(&x, &x).unwrap().integers().unwrap(), [0, 2]);
        assert!(add(&x, &x.cast(Element::Float)).is_err());
        assert!(add(&x.cast(Element::Boolean), &x.cast(Element::Boolean)).is_err());
        let large = HostTensor::vector(vec![i64::MAX, 1]);
        assert!(add(&large, &large).is_err());
    }

    #[test]
    fn shapes_broadcast_from_behind() {
        assert_eq!(broadcast(&[2, 1, 4], &[3, 1]), Ok(vec![2, 3, 4]));
        assert_eq!(broadcast(&[], &[3]), Ok(vec![3]));
        assert!(broadcast(&[2], &[3]).is_err());
        assert_eq!((axis(-1, 3), axis(2, 3)), (Ok(2), Ok(2)));
        assert!(axis(3, 3).is_err() && axis(-4, 3).is_err() && axis(i64::MIN, 3).is_err());
    }
}
