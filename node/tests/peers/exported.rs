//! Folders as PyTorch's package exports them, from models that it has exported once.
#![allow(dead_code, reason = "each test file uses its own part")]

use safetensors::tensor::{SafeTensors, TensorView};
use std::path::{Path, PathBuf};

/// A file of the models that PyTorch's package has exported.
pub fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../graph/tests/fixtures");
    std::fs::read(folder.join(name)).expect("a fixture")
}

/// An exported folder: a model, and its few samples many times over.
pub fn exported(folder: &Path, name: &str, times: usize) -> PathBuf {
    let path = folder.join("exported");
    std::fs::create_dir_all(&path).expect("a folder");
    std::fs::write(path.join("model.onnx"), fixture(&format!("{name}.annulus.onnx"))).expect("writable");
    let reference = fixture(&format!("{name}.safetensors"));
    let tensors = SafeTensors::deserialize(&reference).expect("safetensors");
    let inputs = tensors.iter().filter_map(|(name, view)| {
        let mut shape = view.shape().to_vec();
        shape[0] *= times;
        Some((
            name.strip_prefix("input.")?,
            view.dtype(),
            shape,
            view.data().repeat(times),
        ))
    });
    let inputs: Vec<_> = inputs.collect();
    let views = inputs.iter().map(|(name, dtype, shape, bytes)| {
        (
            *name,
            TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"),
        )
    });
    let samples = safetensors::serialize(views, None).expect("safetensors");
    std::fs::write(path.join("samples.safetensors"), samples).expect("writable");
    path
}
