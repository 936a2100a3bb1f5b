//! Activation functions and their slopes.

use super::Real;
use super::processor::widest;

/// What a layer applies to its sums, element by element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    Identity,
    /// max(x, 0).
    Relu,
    /// x Φ(x), with the normal distribution's function Φ (Hendrycks and Gimpel, 2016): the exact
    /// form, not the one with tanh.
    Gelu,
    /// x / (1 + exp(-x)).
    Silu,
    /// x (1 + tanh(u)) / 2 with u = sqrt(2 / π) (x + 0.044715 x³), which is nearly [`Gelu`](Self::Gelu): PyTorch's
    /// `approximate="tanh"`.
    GeluTanh,
}

impl Activation {
    /// The function.
    #[inline(always)]
    pub fn apply<T: Real>(self, x: T) -> T {
        match self {
            Self::Identity => x,
            Self::Relu => x.max(T::ZERO),
            Self::Gelu => x * normal_cdf(x),
            Self::Silu => x * sigmoid(x),
            Self::GeluTanh => x * tanh_gate(x),
        }
    }

    /// The function of each number.
    pub fn apply_all<T: Real>(self, numbers: &mut [T]) {
        let activation = self;
        widest!(
            [T: Real] (activation: Activation, numbers: &mut [T]),
            fused apply_all, otherwise apply_all,
        )
    }

    /// Multiplies each gradient by the slope at `input`.
    pub fn times_slopes<T: Real>(self, gradient: &mut [T], input: &[T]) {
        let activation = self;
        widest!(
            [T: Real] (activation: Activation, gradient: &mut [T], input: &[T]),
            fused times_slopes, otherwise times_slopes,
        )
    }

    /// Its derivative; 0 for the ReLU at 0.
    #[inline(always)]
    pub fn slope<T: Real>(self, x: T) -> T {
        match self {
            Self::Identity => T::ONE,
            Self::Relu if x > T::ZERO => T::ONE,
            Self::Relu => T::ZERO,
            Self::Gelu => {
                let density = T::from_f64(0.398_942_280_401_432_7) * (-(x * x) * T::from_f64(0.5)).exp();
                normal_cdf(x) + x * density
            }
            Self::Silu => {
                let s = sigmoid(x);
                s * (T::ONE + x * (T::ONE - s))
            }
            Self::GeluTanh => {
                let s = tanh_gate(x);
                let slope = T::from_f64(2.0 * TANH_SCALE) * (T::ONE + T::from_f64(3.0 * TANH_CUBE) * x * x);
                s + x * s * (T::ONE - s) * slope
            }
        }
    }
}

// Which function it is is decided once, so that the loops become vector instructions.

#[inline(always)]
fn apply_all<T: Real>(activation: Activation, numbers: &mut [T]) {
    match activation {
        Activation::Identity => {}
        Activation::Relu => numbers.iter_mut().for_each(|x| *x = Activation::Relu.apply(*x)),
        Activation::Gelu => numbers.iter_mut().for_each(|x| *x = Activation::Gelu.apply(*x)),
        Activation::Silu => numbers.iter_mut().for_each(|x| *x = Activation::Silu.apply(*x)),
        Activation::GeluTanh => numbers
            .iter_mut()
            .for_each(|x| *x = Activation::GeluTanh.apply(*x)),
    }
}

#[inline(always)]
fn times_slopes<T: Real>(activation: Activation, gradient: &mut [T], input: &[T]) {
    match activation {
        Activation::Identity => {}
        Activation::Relu => times(gradient, input, |x| Activation::Relu.slope(x)),
        Activation::Gelu => times(gradient, input, |x| Activation::Gelu.slope(x)),
        Activation::Silu => times(gradient, input, |x| Activation::Silu.slope(x)),
        Activation::GeluTanh => times(gradient, input, |x| Activation::GeluTanh.slope(x)),
    }
}

#[inline(always)]
fn times<T: Real>(gradient: &mut [T], input: &[T], slope: impl Fn(T) -> T) {
    for (g, x) in gradient.iter_mut().zip(input) {
        *g *= slope(*x);
    }
}

#[inline(always)]
fn normal_cdf<T: Real>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

/// sqrt(2 / π), and the factor of the cube.
const TANH_SCALE: f64 = 0.797_884_560_802_865_4;
const TANH_CUBE: f64 = 0.044_715;

/// (1 + tanh(u)) / 2, which is the logistic function of 2 u.
#[inline(always)]
fn tanh_gate<T: Real>(x: T) -> T {
    sigmoid(T::from_f64(2.0 * TANH_SCALE) * (x + T::from_f64(TANH_CUBE) * x * x * x))
}

/// The logistic function of each number.
pub fn sigmoids<T: Real>(numbers: &mut [T]) {
    widest!([T: Real] (numbers: &mut [T]), fused each_sigmoid, otherwise each_sigmoid)
}

/// The hyperbolic tangent of each number.
pub fn tanhs<T: Real>(numbers: &mut [T]) {
    widest!([T: Real] (numbers: &mut [T]), fused each_tanh, otherwise each_tanh)
}

#[inline(always)]
fn each_sigmoid<T: Real>(numbers: &mut [T]) {
    numbers.iter_mut().for_each(|x| *x = sigmoid(*x));
}

#[inline(always)]
fn each_tanh<T: Real>(numbers: &mut [T]) {
    numbers.iter_mut().for_each(|x| *x = tanh(*x));
}

/// Without branches or calls. Near 0 the difference of two numbers near 1 would keep few digits; there it is Taylor's series
/// to x^11, whose rest is below 2^-26 of it.
#[inline(always)]
fn tanh<T: Real>(x: T) -> T {
    let square = x * x;
    let mut series = T::from_f64(-1382.0 / 155_925.0);
    for coefficient in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
        series = series * square + T::from_f64(coefficient);
    }
    let near = x * series;
    let far = T::from_f64(2.0) * sigmoid(T::from_f64(2.0) * x) - T::ONE;
    if x.abs() < T::from_f64(0.3) { near } else { far }
}

#[inline(always)]
fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoids_and_tangents_are_exact() {
        let xs: Vec<f32> = (-4000..4000)
            .map(|i| i as f32 / 300.0)
            .chain([0.0, 1e-20, 90.0, -90.0])
            .collect();
        let [mut sigmoid, mut tangent] = [xs.clone(), xs.clone()];
        sigmoids(&mut sigmoid);
        tanhs(&mut tangent);
        for ((x, sigmoid), tangent) in xs.iter().map(|x| f64::from(*x)).zip(sigmoid).zip(tangent) {
            let wanted = [1.0 / (1.0 + (-x).exp()), x.tanh()];
            for (found, wanted) in [sigmoid, tangent].into_iter().zip(wanted) {
                let off = (f64::from(found) - wanted).abs();
                assert!(
                    off <= 4e-7 * wanted.abs() + 2e-38,
                    "{x}: {found} instead of {wanted}"
                );
            }
        }
        let mut not = [f32::NAN];
        tanhs(&mut not);
        assert!(not[0].is_nan());
    }
}
