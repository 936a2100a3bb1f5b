//! Every kernel against its twin, and the operations and layers made of them against slopes and Burn's own.
//!
//! One program for all of it, so that one file is enough for a machine with other hardware.

mod adapters;
mod attention;
mod cases;
mod check;
mod codec;
mod common;
mod convolution;
mod cross_entropy;
mod elementwise;
mod embedding;
mod flat;
mod halves;
mod linear;
mod linear_cross_entropy;
mod matrices;
mod needs;
mod norm;
#[cfg(target_os = "linux")]
mod offline;
mod optim;
mod pytorch;
mod recurrent;
mod rotary;
mod rotary_halves;
