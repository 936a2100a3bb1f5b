//! A trained model as one safetensors file with its parameters alone, for any other tool.
//!
//! It must not know what the model is: names and shapes come from the manifest.

use crate::offline::whole;
use crate::store::files::write_atomic;
use crate::store::run_dir::CheckpointError;
use crate::store::state_file::{Label, params_header, write_vector};
use annulus_core::id::{Digest, Round};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What was exported.
#[derive(Debug)]
pub struct Exported {
    /// The checkpoint's round.
    pub round: Round,
    /// The digest of the state that the parameters are part of.
    pub digest: Digest,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of parameters.
    pub parameters: usize,
    /// Checkpoints that were passed over.
    pub warnings: Vec<String>,
}

/// Writes the parameters of a run's newest good checkpoint to `file`, in place of any that is there.
/// `others`: folders of other members, where the model is split.
pub fn export(dir: &Path, others: &[PathBuf], file: &Path) -> Result<Exported, CheckpointError> {
    let loaded = whole::load(dir, others)?;
    let label = Label {
        head: loaded.head,
        digest: loaded.digest,
    };
    let header = params_header(&loaded.manifest, &label);
    let header = header.map_err(|error| CheckpointError::State(file.to_path_buf(), error))?;
    write_atomic(file, |out| {
        out.write_all(&header)?;
        write_vector(out, &loaded.state.params)
    })?;
    Ok(Exported {
        round: label.head.round,
        digest: label.digest,
        tensors: loaded.manifest.layout.tensors.len(),
        parameters: loaded.manifest.layout.len,
        warnings: loaded.warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoint::RunWriter;
    use crate::testing::{Run, Scratch};
    use safetensors::SafeTensors;

    #[test]
    fn the_newest_parameters_come_with_names_and_shapes() {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let mut run = Run::new();
        let mut writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        let (record, digest) = run.round();
        writer.append(&record, digest).unwrap();
        writer.saver().save(&run.head, &run.state, digest).unwrap();
        let file = scratch.0.join("model.safetensors");
        let exported = export(writer.dir().path(), &[], &file).unwrap();
        assert_eq!(
            (
                exported.round,
                exported.digest,
                exported.tensors,
                exported.parameters
            ),
            (1, digest, 4, 27)
        );
        assert!(exported.warnings.is_empty());
        let bytes = std::fs::read(&file).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["digest"], digest.to_hex());
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.len(), 4);
        let tensor = tensors.tensor("b \"x\".weight").unwrap();
        assert_eq!(tensor.shape(), [2, 1, 5]);
        assert_eq!(
            tensor.data(),
            bytemuck::cast_slice::<f32, u8>(&run.state.params[17..27])
        );
    }
}
