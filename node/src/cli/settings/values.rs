//! Values that several settings can have, as text.

use crate::cli::amounts::{bytes, seconds};
use crate::options::{Every, Steps};
use annulus_core::optim::LocalSteps;
use std::num::{IntErrorKind, NonZeroU32, ParseIntError};
use std::str::FromStr;

/// A switch: on or off.
pub(super) fn on(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// A number of bytes, or `all` for as many as there are.
pub(super) fn all_or_bytes(text: &str) -> Result<Option<u64>, String> {
    match text {
        "all" => Ok(None),
        _ => bytes(text).map(Some),
    }
}

/// A number of rounds, or a time.
pub(super) fn every(text: &str) -> Result<Every, String> {
    match seconds(text) {
        Ok(seconds) => Ok(Every::seconds(seconds)),
        Err(_) => Ok(Every::rounds(number(text)?)),
    }
}

/// A number of local steps, or auto.
pub(super) fn steps(text: &str) -> Result<Steps, String> {
    match text {
        "auto" => Ok(Steps::Auto),
        "1" => Ok(Steps::None),
        _ => {
            let steps: NonZeroU32 = number(text)?;
            at_most(steps.get().into(), LocalSteps::MOST.into())?;
            Ok(Steps::Fixed(steps))
        }
    }
}

/// A whole number.
pub(super) fn number<N: FromStr<Err = ParseIntError>>(text: &str) -> Result<N, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::Zero => "it must be at least 1".into(),
        IntErrorKind::PosOverflow => "that is too large".into(),
        _ => "that is not a whole number, at least 0".into(),
    })
}

/// Whether a number is small enough.
pub(super) fn at_most(number: u64, most: u64) -> Result<(), String> {
    match number > most {
        true => Err(format!("it must be at most {most}")),
        false => Ok(()),
    }
}

/// A number in a range, which `range` says in words.
pub(super) fn real(text: &str, fits: impl Fn(f32) -> bool, range: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() && fits(x) => Ok(x),
        Ok(_) => Err(format!("it must be a finite number, {range}")),
        Err(_) => Err("that is not a number".into()),
    }
}
