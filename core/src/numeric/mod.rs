//! Arithmetic on vectors: optimizers, codecs and error feedback. It knows neither runs nor ledgers.

pub mod codec;
pub mod feedback;
pub mod optim;
pub mod vector;
