//! Works on a run that is on disk: audit, inspect, replay, export, evaluate, sample. Makes a
//! trained model smaller. Computes the gradient of a model from a file.

pub mod replay;

#[cfg(feature = "native")]
pub mod audit;
#[cfg(feature = "native")]
pub(crate) mod compare;
#[cfg(feature = "native")]
pub mod evaluate;
#[cfg(feature = "native")]
pub mod export;
#[cfg(feature = "native")]
pub mod gradient;
#[cfg(feature = "native")]
mod history;
#[cfg(feature = "native")]
pub mod inspect;
#[cfg(feature = "native")]
mod newest;
#[cfg(feature = "native")]
mod parts_on_disk;
#[cfg(feature = "native")]
pub mod predict;
#[cfg(feature = "native")]
pub mod present;
#[cfg(feature = "native")]
pub(crate) mod prune;
#[cfg(feature = "native")]
pub(crate) mod quantize;
#[cfg(feature = "native")]
pub mod recompute;
#[cfg(feature = "native")]
pub mod report;
#[cfg(feature = "native")]
pub(crate) mod sample;
#[cfg(feature = "native")]
pub(crate) mod saved;
#[cfg(feature = "native")]
mod split_replay;

/// Tells a person, on standard error, if a model has learnt nothing yet.
#[cfg(feature = "native")]
pub(crate) fn note_round(round: annulus_core::Round) {
    if round == 0 {
        eprintln!("note: nothing is learnt yet: this is round 0, the model as its seed made it");
    }
}

/// Tells a person, on standard error, what was passed over on the way to a checkpoint.
#[cfg(feature = "native")]
pub(crate) fn warn(warnings: &[String]) {
    use std::io::Write;
    for warning in warnings {
        // If nobody reads it, nobody is told.
        let _ = writeln!(
            std::io::stderr(),
            "warning: {}",
            annulus_net::printable::printable(warning)
        );
    }
}
