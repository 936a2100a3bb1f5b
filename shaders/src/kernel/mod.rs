//! The table of WGSL kernels, and what their texts say about themselves.
//!
//! A kernel is a file in `wgsl/`, or another text of one: [`include`] puts in what files share, [`variant`] picks the
//! lines. Bindings and workgroup sizes are never written down twice: [`reflect`](reflect()) reads them from the text by
//! naga, the compiler that wgpu itself uses.

pub mod include;
pub mod variant;

mod reflect;
mod shared;
mod table;
mod text;

pub use reflect::{Interface, KernelError, reflect};
pub use table::*;
pub use text::{FOLDER_VARIABLE, Kernel};

#[cfg(test)]
mod tests;
