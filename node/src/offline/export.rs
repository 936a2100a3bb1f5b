//! A trained model as one safetensors file with its parameters, for any other tool, or as the ONNX file that it came as.
//!
//! It must not know what the model is: names and shapes come from the manifest, and what else a reader needs from the task.

use crate::offline::parts_on_disk::PartsOnDisk;
use crate::offline::saved::{MODEL, Saved};
use crate::participant::error::Error;
use crate::participant::run_data::{About, about, find, load_of_run};
use crate::store::run_dir::{CheckpointError, LoadedRun, RunDir};
use crate::store::state_file::{Label, params_header, write_vector};
use crate::store::which::Which;
use crate::task::Tensors;
use crate::task_factory::TaskFactory;
use annulus_core::Manifest;
use annulus_core::id::{Digest, Round};
use annulus_net::files::{FileError, write_atomic};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The result of an export.
#[derive(Debug)]
pub struct Exported {
    /// The checkpoint's round.
    pub round: Round,
    /// The digest of the state that contains the parameters.
    pub digest: Digest,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of parameters.
    pub parameters: usize,
    /// The task's judgement of the model, in lines; empty: it gives none.
    pub report: String,
    /// Checkpoints that were skipped, and why.
    pub warnings: Vec<String>,
}

/// Writes the parameters of a run's checkpoint to `file`, in place of any that is there.
/// `others`: folders of other members, where the model is split. Then no more than a part of it is in memory at a time.
/// `data`: the run's, if it is not found here and the task tells something of it.
pub fn export(
    (dir, others, which): (&Path, &[PathBuf], Which),
    data: Option<&Path>,
    factories: &[TaskFactory],
    file: &Path,
) -> Result<Exported, CheckpointError> {
    let run = RunDir::open(dir)?;
    if run.manifest().split.is_none() {
        let loaded = run.load_which(which)?;
        let about = about(&loaded.manifest, Some(&loaded.state.params), data, factories);
        let finished = about
            .lacks
            .as_ref()
            .and_then(|_| Saved::finished(dir, loaded.digest));
        if let Some(finished) = finished.and_then(|finished| finished.to_bytes().ok()) {
            // It has all that the task says of the model.
            write_atomic(file, |out| out.write_all(&finished))?;
            let label = Label {
                head: loaded.head,
                digest: loaded.digest,
            };
            return Ok(exported(&loaded.manifest, &label, loaded.warnings));
        }
        return whole(loaded, about, file);
    }
    which.of_split()?;
    let About { metadata, lacks, .. } = about(run.manifest(), None, data, factories);
    let on_disk = PartsOnDisk::newest(dir, others)?;
    let mut unread = None;
    let parts = |out: &mut Out<'_>| {
        // Parts lie in the file in the order of the flat vector.
        on_disk.parts().try_for_each(|part| match on_disk.part(part) {
            Ok(weights) => write_vector(out, &weights),
            Err(error) => Err(io::Error::other(unread.insert(error).to_string())),
        })
    };
    let written = write(&on_disk.manifest, (&on_disk.label, &metadata), file, parts);
    // An error in reading is not blamed on the file that is written.
    unread.map_or(written, Err)?;
    let warnings = on_disk.warnings.iter().cloned().chain(lacks).collect();
    Ok(exported(&on_disk.manifest, &on_disk.label, warnings))
}

/// Writes the model of a run's checkpoint into the ONNX file that it came as, and the result to `file`. `data`:
/// the run's, which has that file, if it is not found here.
///
/// # Errors
///
/// If the task's models come as no ONNX file, or the run's data is not found.
pub fn export_onnx(
    (dir, which): (&Path, Which),
    data: Option<&Path>,
    factories: &[TaskFactory],
    file: &Path,
) -> Result<Exported, Error> {
    let run = RunDir::open(dir)?;
    let factory = find(factories, &run.manifest().task)?;
    let none = || Error::NoOnnx(factory.name.to_owned());
    if run.manifest().split.is_some() {
        return Err(none());
    }
    let loaded = run.load_which(which)?;
    let files = load_of_run(&loaded.manifest, (data, None), factories)?
        .files
        .ok_or_else(none)?;
    let tensors = Tensors::of(&loaded.manifest.layout, &loaded.state.params);
    let model = (factory.onnx)(&files, &tensors)?.ok_or_else(none)?;
    write_atomic(file, |out| out.write_all(&model)).map_err(CheckpointError::from)?;
    let label = Label {
        head: loaded.head,
        digest: loaded.digest,
    };
    Ok(exported(&loaded.manifest, &label, loaded.warnings))
}

/// The model of a run that has ended, as a file.
#[derive(Debug)]
pub struct FinishedModel {
    /// The file.
    pub file: PathBuf,
    /// The judgement in its metadata: keys, and JSON.
    pub judged: Vec<(&'static str, String)>,
    /// The judgement in lines, for people, and what to do next.
    pub report: String,
}

/// Writes the model of a run's folder as `model.safetensors` into that folder, and its card as `MODEL.md`, if its task
/// judges models.
///
/// # Errors
///
/// If the folder holds no usable checkpoint, or the file cannot be written.
pub fn export_finished(
    dir: &Path,
    data: Option<&Path>,
    factories: &[TaskFactory],
) -> Result<Option<FinishedModel>, CheckpointError> {
    let run = RunDir::open(dir)?;
    let task = factories
        .iter()
        .find(|factory| factory.name == run.manifest().task);
    let Some((task, what)) = task.and_then(|task| Some((task, task.predicts?))) else {
        return Ok(None);
    };
    if run.manifest().split.is_some() {
        return Ok(None);
    }
    // The user's data may be a folder, which was packed into a file here.
    let packed = task
        .packed
        .map(|name| dir.join(name))
        .filter(|path| path.exists());
    let data = packed.as_deref().or(data);
    let loaded = run.load_latest()?;
    let mut about = about(&loaded.manifest, Some(&loaded.state.params), data, factories);
    if about.report.is_empty() {
        return Ok(None);
    }
    write_atomic(&dir.join(CARD), |out| out.write_all(about.card.as_bytes()))?;
    let (file, judged) = (dir.join(MODEL), std::mem::take(&mut about.judged));
    let report = whole(loaded, about, &file)?.report;
    let (shown, dir) = (file.display(), dir.display());
    Ok(Some(FinishedModel {
        report: format!("{report}model: {shown}\nnext: annulus predict {dir} {what}"),
        judged,
        file,
    }))
}

/// The name of the card beside a run's model file.
const CARD: &str = "MODEL.md";

/// Writes the model of a checkpoint that has all of it.
fn whole(loaded: LoadedRun, about: About, file: &Path) -> Result<Exported, CheckpointError> {
    let label = Label {
        head: loaded.head,
        digest: loaded.digest,
    };
    let params = |out: &mut Out<'_>| write_vector(out, &loaded.state.params);
    write(&loaded.manifest, (&label, &about.metadata), file, params)?;
    let warnings = loaded.warnings.into_iter().chain(about.lacks).collect();
    Ok(Exported {
        report: about.report,
        ..exported(&loaded.manifest, &label, warnings)
    })
}

type Out<'a> = BufWriter<&'a File>;

/// Writes a file with the header of a run's parameters, followed by what `params` writes.
fn write(
    manifest: &Manifest,
    (label, metadata): (&Label, &[(&'static str, String)]),
    file: &Path,
    params: impl FnOnce(&mut Out<'_>) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    let header = params_header(manifest, label, metadata);
    let header = header.map_err(|error| CheckpointError::State(file.to_path_buf(), error))?;
    let written: Result<(), FileError> = write_atomic(file, |out| {
        out.write_all(&header)?;
        params(out)
    });
    Ok(written?)
}

fn exported(manifest: &Manifest, label: &Label, warnings: Vec<String>) -> Exported {
    Exported {
        round: label.head.round,
        digest: label.digest,
        tensors: manifest.layout.tensors.len(),
        parameters: manifest.layout.len,
        report: String::new(),
        warnings,
    }
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
        let exported = export((writer.dir().path(), &[], Which::Newest), None, &[], &file).unwrap();
        assert_eq!(
            (
                exported.round,
                exported.digest,
                exported.tensors,
                exported.parameters
            ),
            (1, digest, 4, 27)
        );
        assert!(
            exported.warnings[0].contains("no task"),
            "{:?}",
            exported.warnings
        );
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
