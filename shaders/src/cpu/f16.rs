//! Half precision around an exponent that a run shares: the twin of `f16_encode` and `f16_decode`.
//!
//! Written with the arithmetic of `f64`, in which nothing here rounds but once, where the kernels
//! shift integers.

const INFINITY: u32 = 0x7f80_0000;
const LARGEST: u16 = 0x77ff;

/// The exponent of a run: of its largest finite magnitude, less 14; 0 for zeros.
pub fn exponent(run: &[f32]) -> i32 {
    let finite = run.iter().map(|x| x.abs()).filter(|x| x.is_finite());
    match f64::from(finite.fold(0.0, f32::max)) {
        0.0 => 0,
        largest => (largest.to_bits() >> 52) as i32 - 1023 - 14,
    }
}

/// A run's exponent and halves, rounded to nearest, ties to even.
pub fn encode(run: &[f32]) -> (i32, Vec<u16>) {
    let k = exponent(run);
    let careful = k >= 113 || run.iter().any(|x| !x.is_finite());
    let half = |x: &f32| {
        let sign = (x.to_bits() >> 16) as u16 & 0x8000;
        match x.to_bits() & !(1 << 31) {
            INFINITY => sign | 0x7c00,
            above if above > INFINITY => 0x7e00,
            _ => {
                let half = finite_half(f64::from(x.abs()) * power_of_two(-k));
                sign | if careful { half.min(LARGEST) } else { half }
            }
        }
    };
    (k, run.iter().map(half).collect())
}

/// A run from its exponent and halves.
pub fn decode(k: i32, halves: &[u16]) -> Vec<f32> {
    let value = |half: &u16| {
        let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
        let fraction = f64::from(half & 1023);
        let magnitude = match half >> 10 & 31 {
            0 => fraction * power_of_two(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            field => (1024.0 + fraction) * power_of_two(i32::from(field) - 25),
        };
        (sign * magnitude * power_of_two(k)) as f32
    };
    halves.iter().map(value).collect()
}

/// The half nearest to a magnitude below 2^16, ties to even.
pub(super) fn finite_half(x: f64) -> u16 {
    // The exponent, but at least that of the smallest normal half; zero has a field of 0.
    let exponent = ((x.to_bits() >> 52) as i32 - 1023).max(-14);
    // In units of the half's last bit, which a half counts on across its exponents.
    let units = (x * power_of_two(10 - exponent)).round_ties_even() as u16;
    units + ((exponent + 14) as u16) * 1024
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
