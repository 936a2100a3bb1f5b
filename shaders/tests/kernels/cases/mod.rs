//! Every kernel against its twin, whatever the adapter would take it for: cases for any device. The tests beside run them
//! natively, and the page that `cargo xtask browser kernels` builds runs them in a browser, whose compiler is another.
#![allow(dead_code)]

pub mod attentions;
pub mod bench;
pub mod channels;
pub mod convolutions;
pub mod layers;
pub mod products;
pub mod vectors;
