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

#[inline(always)]
fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}
