//! Activation functions and their slopes.

use super::Real;

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
        }
    }

    /// The function of each number. Which one is decided once, so that the loops become vector
    /// instructions.
    pub fn apply_all<T: Real>(self, numbers: &mut [T]) {
        match self {
            Self::Identity => {}
            Self::Relu => numbers.iter_mut().for_each(|x| *x = Self::Relu.apply(*x)),
            Self::Gelu => numbers.iter_mut().for_each(|x| *x = Self::Gelu.apply(*x)),
            Self::Silu => numbers.iter_mut().for_each(|x| *x = Self::Silu.apply(*x)),
        }
    }

    /// Multiplies each gradient by the slope at `input`.
    pub fn times_slopes<T: Real>(self, gradient: &mut [T], input: &[T]) {
        let pairs = gradient.iter_mut().zip(input);
        match self {
            Self::Identity => {}
            Self::Relu => pairs.for_each(|(g, x)| *g *= Self::Relu.slope(*x)),
            Self::Gelu => pairs.for_each(|(g, x)| *g *= Self::Gelu.slope(*x)),
            Self::Silu => pairs.for_each(|(g, x)| *g *= Self::Silu.slope(*x)),
        }
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
        }
    }
}

fn normal_cdf<T: Real>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}
