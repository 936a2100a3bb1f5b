//! Packs a trained model's weights into fewer bits.

use super::saved::Saved;
use crate::task::{FileTensor, TaskError};
use annulus_graph::{Blocks, Packing};

/// Least numbers of a tensor that is packed. Smaller ones save little; a guess.
const LEAST: usize = 1_024;

/// The model with its large tensors in blocks, and with the numbers that these stand for.
///
/// # Errors
///
/// If it is quantized already, has nothing to pack, or has numbers that blocks cannot hold.
pub(crate) fn quantized(model: &Saved, blocks: Blocks) -> Result<Saved, TaskError> {
    let path = model.path.display();
    if let Some(kind) = model.quantized() {
        return Err(format!(
            "{path} is quantized already ({kind}), and doing it again would lose more: name the file that `annulus export` wrote"
        )
        .into());
    }
    let tensor = |tensor: &FileTensor| match packing(&model.task, tensor, blocks) {
        None => Ok(tensor.clone()),
        Some(packing) => packed(tensor, packing),
    };
    let tensors: Vec<_> = model
        .tensors
        .iter()
        .map(tensor)
        .collect::<Result<_, TaskError>>()?;
    let made = Saved {
        tensors,
        ..model.clone()
    };
    match made.quantized() {
        Some(_) => Ok(made),
        None => Err(format!("{path} has no matrix of {LEAST} numbers or more: it is small already").into()),
    }
}

fn packed(tensor: &FileTensor, packing: Packing) -> Result<FileTensor, TaskError> {
    let name = &tensor.name;
    let blocks = packing.pack(&tensor.values).ok_or_else(|| {
        format!("{name} has numbers that are not finite, or too large for a scale of 16 bits: the model is damaged")
    })?;
    let values = packing.unpack(&blocks)?;
    Ok(FileTensor {
        name: name.clone(),
        shape: tensor.shape.clone(),
        values,
        packed: Some((packing, blocks)),
    })
}

/// How a tensor is to be packed; none if it stays as it is.
fn packing(task: &str, tensor: &FileTensor, blocks: Blocks) -> Option<Packing> {
    // Norms and biases have one axis. Positions are few, and llama.cpp keeps them too.
    let is_matrix = tensor.shape.len() > 1 && tensor.values.len() >= LEAST;
    if !is_matrix || (task == "gpt" && tensor.name.starts_with("positions.")) {
        return None;
    }
    // The embedding is also the output layer, which counts most. llama.cpp keeps it finer, too.
    let is_embedding = task == "gpt" && tensor.name.starts_with("tokens.");
    // Linear layers are `[inputs, outputs]` here. Embeddings, filters, and all of PyTorch's tensors lie as GGML has them.
    let as_in_ggml = task == "graph" || tensor.shape.len() > 2 || is_embedding;
    Some(Packing {
        blocks: if is_embedding { Blocks::Q8_0 } else { blocks },
        columns: !as_in_ggml,
        shape: tensor.shape.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(task: &str, tensors: &[(&str, &[usize])]) -> Saved {
        let tensor = |(name, shape): &(&str, &[usize])| FileTensor {
            name: (*name).into(),
            shape: shape.to_vec(),
            values: (0..shape.iter().product())
                .map(|at| ((at * 7919) % 1000) as f32 / 500.0 - 1.0)
                .collect(),
            packed: None,
        };
        Saved {
            path: "m.safetensors".into(),
            task: task.into(),
            metadata: [("task".to_owned(), task.to_owned())].into(),
            tensors: tensors.iter().map(tensor).collect(),
        }
    }

    #[test]
    fn matrices_are_packed_by_inputs_and_the_rest_stays() {
        let model = model(
            "gpt",
            &[
                ("blocks.0.mlp.up.weight", &[32, 128]),
                ("norm.weight", &[2048]),
                ("positions.weight", &[64, 32]),
                ("small.weight", &[8, 8]),
                ("tokens.weight", &[256, 32]),
            ],
        );
        let packed = quantized(&model, Blocks::Q8_0).unwrap();
        let order = |at: usize| {
            packed.tensors[at]
                .packed
                .as_ref()
                .map(|(packing, _)| packing.columns)
        };
        assert_eq!(
            (0..5).map(order).collect::<Vec<_>>(),
            [Some(true), None, None, None, Some(false)]
        );
        assert_eq!(packed.tensors[1], model.tensors[1]);
        let four = quantized(&model, Blocks::Q4_0).unwrap();
        let kind = |at: usize| {
            four.tensors[at]
                .packed
                .as_ref()
                .map(|(packing, _)| packing.blocks)
        };
        assert_eq!((kind(0), kind(4)), (Some(Blocks::Q4_0), Some(Blocks::Q8_0)));
        let again = quantized(&packed, Blocks::Q4_0).unwrap_err().to_string();
        assert!(again.contains("already (q8_0)"), "{again}");
    }

    #[test]
    fn a_file_gives_back_the_numbers_that_its_blocks_stand_for() {
        let scratch = crate::testing::Scratch::new();
        let model = model("digits", &[("bias", &[10]), ("hidden.weight", &[784, 3])]);
        for blocks in [Blocks::Q8_0, Blocks::Q4_0] {
            let packed = quantized(&model, blocks).unwrap();
            let path = scratch.0.join(blocks.name());
            super::super::saved::write(&path, &packed.to_bytes().unwrap()).unwrap();
            let read = Saved::open((&path, Default::default()), None, &[]).unwrap();
            assert_eq!(read.tensors, packed.tensors);
            assert_eq!(read.quantized(), Some(blocks.name()));
        }
    }

    #[test]
    fn a_file_that_was_cut_or_altered_is_refused() {
        let scratch = crate::testing::Scratch::new();
        let model = model("digits", &[("hidden.weight", &[784, 3])]);
        let bytes = quantized(&model, Blocks::Q4_0).unwrap().to_bytes().unwrap();
        let path = scratch.0.join("m.safetensors");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Saved::open((&path, Default::default()), None, &[]).map(drop)
        };
        assert!(read(&bytes).is_ok());
        for length in [0, 7, 100, bytes.len() - 1] {
            let error = read(&bytes[..length]).unwrap_err().to_string();
            assert!(
                error.contains("is no model that can be used"),
                "{length}: {error}"
            );
        }
        // As many bytes, but of another shape or kind.
        for (from, to) in [
            ("784 3", "999 9"),
            ("784 3", "99999"),
            ("q4_0 c", "q5_0 c"),
            ("q4_0 c", "q8_0 c"),
        ] {
            let at = bytes
                .windows(from.len())
                .position(|part| part == from.as_bytes())
                .unwrap();
            let mut wrong = bytes.clone();
            wrong[at..at + to.len()].copy_from_slice(to.as_bytes());
            let error = read(&wrong).unwrap_err().to_string();
            assert!(error.contains("hidden.weight"), "{to}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_packed_is_told() {
        let small = model("table", &[("bias", &[10])]);
        let error = quantized(&small, Blocks::Q8_0).unwrap_err().to_string();
        assert!(error.contains("small already"), "{error}");
        let mut damaged = model("digits", &[("hidden.weight", &[784, 3])]);
        damaged.tensors[0].values[5] = f32::NAN;
        let error = quantized(&damaged, Blocks::Q8_0).unwrap_err().to_string();
        assert!(error.contains("not finite"), "{error}");
    }
}
