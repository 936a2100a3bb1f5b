//! Random numbers other than dropout's: noise of a variational or a diffusion model.
//!
//! They are drawn on the host by a counter, so all devices have the same ones, and a replay draws them again.

use crate::host::{HostTensor, Numbers};
use crate::pass::{Call, Kind, Made, Type, one};

pub(super) const KINDS: &[Kind] =
    &[Kind::ours("Random", (1, 1), draw).with(&[("kind", Type::Text), ("stream", Type::Integer)])];

fn draw(call: &mut Call) -> Made {
    let shape = call.host(0)?.sizes()?;
    let count = call.reserve_host(&shape)?;
    let stream = call.integer("stream").unwrap_or(0) as u64;
    let start = scrambled(call.seed() ^ scrambled(stream.wrapping_add(1)));
    let bits = (0..count as u64).map(|at| scrambled(start.wrapping_add(at)));
    let numbers = match call.text("kind") {
        Some("uniform") => bits.map(uniform).collect(),
        Some("normal") => bits.map(normal).collect(),
        other => return Err(format!("the kind {other:?}, which is not uniform or normal")),
    };
    one(HostTensor::new(shape, Numbers::Floats(numbers))?)
}

/// SplitMix64: from a counter to bits that look random (Steele, Lea and Flood, 2014).
fn scrambled(counter: u64) -> u64 {
    let z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// From 0 to below 1.
fn uniform(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u32 << 24) as f32
}

/// By Box and Muller, of both halves. The libm crate's functions are the same on all machines.
fn normal(bits: u64) -> f32 {
    let whole = (1u64 << 32) as f64;
    let (one, other) = (((bits >> 32) + 1) as f64 / whole, f64::from(bits as u32) / whole);
    (libm::sqrt(-2.0 * libm::log(one)) * libm::cos(std::f64::consts::TAU * other)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_moments_of_their_distribution() {
        let bits = || (0..100_000).map(scrambled);
        let moments = |values: Vec<f64>| {
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let spread = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            (mean, spread)
        };
        let (mean, spread) = moments(bits().map(|x| f64::from(uniform(x))).collect());
        assert!((mean - 0.5).abs() < 0.005 && (spread - 1.0 / 12.0).abs() < 0.002);
        let (mean, spread) = moments(bits().map(|x| f64::from(normal(x))).collect());
        assert!(mean.abs() < 0.01 && (spread - 1.0).abs() < 0.02);
        assert!(bits().all(|x| (0.0..1.0).contains(&uniform(x)) && normal(x).is_finite()));
    }

    /// The exporter draws the same numbers for its reference.
    #[test]
    fn numbers_are_these() {
        assert_eq!(scrambled(1), 0xe220_a839_7b1d_cdaf);
        assert_eq!(uniform(scrambled(1)), 0.883_310_8);
    }
}
