//! Trains a model that comes as a file, without compiling anything.
//!
//! A PyTorch model becomes an ONNX file with training semantics: batch norm uses its batch, and dropout drops. Each
//! parameter keeps its name in the state_dict. [`Graph::read`] reads the file. [`Graph::run`] computes its loss by
//! interpreting one operation after the other on Burn's tensors. On a device with autodiff, Burn records the tape, so
//! that each operation needs a forward pass only. Interpreting one costs less than a microsecond.
//!
//! ```no_run
//! use annulus_graph::{Graph, PassOptions, ReadOptions, read_tensors};
//! use burn::tensor::Device;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (model_onnx, weights, samples): (Vec<u8>, Vec<u8>, Vec<u8>) = Default::default();
//! let graph = Graph::read(&model_onnx, Some(&weights), &ReadOptions::default())?;
//! let device = Device::flex().autodiff();
//! let model = graph.model(&device)?;
//! let batch = read_tensors(&samples)?;
//! let options = PassOptions { training: true, dropout: Some(1) };
//! let gradients = graph.run(&model, &batch, &device, options)?.loss.backward();
//! # Ok(())
//! # }
//! ```
//!
//! Values live in two lanes. Floats that gradients may flow through are on the device. Integers, booleans and shapes
//! are on the host: they follow from the batch, never from parameters. Values that follow from the shapes of the
//! inputs alone are computed once for each shape.
//!
//! A file may come from anybody. It holds no code, loops or branches. [`Limits`] bound its nodes and the elements of
//! every tensor, and they are checked before anything is allocated.

#![deny(unreachable_pub)]

mod blocks;
mod budget;
mod columns;
mod error;
mod fuse;
mod gradients;
mod graph;
mod host;
mod limits;
mod model;
mod onnx;
mod ops;
mod pass;
mod plan;
mod protobuf;
mod read;
mod steps;
mod value;
mod weights;
mod work;
mod write;

pub use blocks::{Blocks, Packing};
pub use columns::{Column, HEADER_LENGTH, columns, header};
pub use error::{GraphError, NodeName};
pub use gradients::{NamedGradient, named_gradients};
pub use graph::{Graph, Input, Output, Parameter, PassOptions, Role};
pub use host::{Element, HostTensor, Numbers};
pub use limits::Limits;
pub use model::GraphModel;
pub use pass::Statistic;
pub use read::ReadOptions;
pub use steps::{StepInput, Stepped, Steps};
pub use value::Floats;
pub use weights::{first_values, metadata_of, read_tensors};
pub use work::Work;
pub use write::with_values;
