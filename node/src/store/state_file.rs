//! A state as a safetensors file that any tool can read. It has the model's tensors under their own names, the
//! optimizer's as `optimizer.0.NAME`, and in `__metadata__` the run, the head and the digest that make it a checkpoint.
//! If moments are kept in 8 bits, the optimizer's tensors are codes, and the scales of a vector's blocks are
//! `optimizer.scales.0`.
//!
//! It is written and read in place, without a second copy in memory. It knows nothing of folders.

use annulus_core::config::Manifest;
use annulus_core::id::{Digest, RunId};
use annulus_core::ledger::Head;
use annulus_core::moments::Moments;
use annulus_core::optim::Moments as Kind;
use annulus_core::parts::PartSet;
use annulus_core::state::State;
use annulus_net::files::{At, FileError};
use annulus_net::open;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

// Tensors are copied between memory and file unchanged.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "checkpoints are little-endian, like every supported target"
);

/// A checkpoint's label.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// The ledger's end.
    pub head: Head,
    /// The state there.
    pub digest: Digest,
}

/// Why a file is not a usable checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The operating system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is torn, altered, or not a checkpoint.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// It has another version.
    #[error(
        "it is of version {0}, and this program reads version {VERSION}: use a program of the version that wrote it"
    )]
    Version(String),
    /// It belongs to another run.
    #[error("it belongs to run {found}, not to run {expected}")]
    OtherRun {
        /// The expected run.
        expected: RunId,
        /// The run that the file names.
        found: RunId,
    },
    /// Its contents differ from what was saved.
    #[error("its contents have digest {found} instead of the recorded {recorded}")]
    Digest {
        /// The recorded digest.
        recorded: Digest,
        /// The digest of the contents.
        found: Digest,
    },
    /// The state to save does not have the manifest's shape, or two tensors have one name.
    #[error("the state cannot be saved: {0}")]
    Shape(String),
}

/// Longest header that readers of the format accept.
const HEADER_LIMIT: usize = 100_000_000;
/// The name of the format, before its version.
const FORMAT: &str = "annulus-checkpoint-";
/// Its version, and that of the head in it. Another field means another version.
const VERSION: u8 = 23;
const _: () = assert!(
    annulus_core::ledger::VERSION == 23,
    "the head in a checkpoint has changed: so has VERSION"
);

/// The header of a checkpoint, to be written before [`write_vectors`].
pub fn checkpoint_header(
    manifest: &Manifest,
    label: &Label,
    state: &State,
) -> Result<Vec<u8>, StateFileError> {
    let slots = vectors(manifest);
    let kept = state.kept.set();
    let expected = tensors(manifest, slots, &kept).last();
    let expected = expected.map_or(0, |(_, info)| info.data_offsets.1);
    let sections = state.sections().chain(state.kept.sections());
    if state.slots.len() != slots || sections.map(<[u8]>::len).sum::<usize>() != expected {
        return Err(StateFileError::Shape(format!(
            "it must be {} vectors of {} elements, {expected} bytes",
            1 + slots,
            manifest.layout.len
        )));
    }
    let head = postcard::to_allocvec(&label.head).expect("a head has only plain data");
    let metadata = [
        ("format", format!("{FORMAT}{VERSION}")),
        ("task", manifest.task.clone()),
        ("run", manifest.run_id().to_hex()),
        ("round", label.head.round.to_string()),
        ("digest", label.digest.to_hex()),
        ("head", HEXLOWER.encode(&head)),
        ("check", check(&head, label.digest).to_hex()),
        ("kept", kept_text(&state.kept)),
        ("stepped", state.kept.stepped.to_hex()),
    ];
    // Each peer keeps all of them if there are no parts.
    let parts = if manifest.copies.is_some() { 0 } else { 2 };
    header(&metadata[..metadata.len() - parts], manifest, slots, &kept)
}

/// How many of the optimizer's vectors each peer keeps whole.
fn vectors(manifest: &Manifest) -> usize {
    match manifest.copies {
        None => manifest.shared_optimizer().0.slots(),
        Some(_) => 0,
    }
}

/// The kept parts of the optimizer's vectors, each with its digest.
fn kept_text(kept: &Moments) -> String {
    let part = |part| format!("{part}:{:016x}", kept.digest(part).unwrap_or(0));
    kept.set().iter().map(part).collect::<Vec<_>>().join(",")
}

/// The parts in a checkpoint, their digests, and the lineage after the round that stepped them last.
pub(super) type Parts = (PartSet, String, Digest);

fn parts(header: &Metadata, manifest: &Manifest) -> Result<Parts, StateFileError> {
    let none = (PartSet::default(), String::new(), Digest([0; 32]));
    let Some(all) = annulus_core::parts::Parts::of(manifest).map(|parts| parts.all()) else {
        return Ok(none);
    };
    let metadata = header.metadata().as_ref();
    let get = |key: &str| metadata.and_then(|m| m.get(key)).cloned();
    let read = || {
        let (text, stepped) = (get("kept")?, Digest::from_hex(&get("stepped")?)?);
        let number = |part: &str| {
            part.split_once(':')?
                .0
                .parse::<u16>()
                .ok()
                .filter(|part| all.contains(*part))
        };
        let listed = text.split(',').filter(|part| !part.is_empty());
        let kept: Option<PartSet> = listed.map(number).collect();
        Some((kept?, text.clone(), stepped))
    };
    read()
        .ok_or_else(|| StateFileError::Damaged("its parts of the optimizer's vectors cannot be read".into()))
}

/// The metadata of a file with only the parameters.
pub fn params_metadata(
    manifest: &Manifest,
    label: &Label,
    of_task: &[(&'static str, String)],
) -> Vec<(&'static str, String)> {
    let own = [
        ("task", manifest.task.clone()),
        ("task_config", manifest.task_config.clone()),
        ("run", manifest.run_id().to_hex()),
        ("data", manifest.data.to_hex()),
        ("round", label.head.round.to_string()),
        ("digest", label.digest.to_hex()),
    ];
    // What a task calls by these names would hide them.
    let more = of_task
        .iter()
        .filter(|(key, _)| own.iter().all(|(own, _)| own != key));
    own.iter().chain(more).cloned().collect()
}

/// The header of a file with only the parameters.
pub fn params_header(
    manifest: &Manifest,
    label: &Label,
    of_task: &[(&'static str, String)],
) -> Result<Vec<u8>, StateFileError> {
    let metadata = params_metadata(manifest, label, of_task);
    // It has all of them even if the model is split.
    let whole = &Manifest {
        split: None,
        ..manifest.clone()
    };
    header(&metadata, whole, 0, &PartSet::default())
}

/// Writes a state's vectors without copying them.
pub fn write_vectors(out: &mut impl Write, state: &State) -> io::Result<()> {
    let mut sections = state.sections().chain(state.kept.sections());
    sections.try_for_each(|section| write_bytes(out, section))
}

/// Writes one vector without copying it.
pub fn write_vector(out: &mut impl Write, vector: &[f32]) -> io::Result<()> {
    write_bytes(out, bytemuck::cast_slice(vector))
}

fn write_bytes(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    // In portions, so that a full disk shows early and the scheduler can interrupt a background thread.
    bytes.chunks(8 << 20).try_for_each(|part| out.write_all(part))
}

/// Reads only a checkpoint's label, after checking that the file is complete.
pub fn read_label(path: &Path, manifest: &Manifest) -> Result<Label, StateFileError> {
    Ok(open(path, manifest)?.1)
}

/// Reads a checkpoint and checks it against the manifest's layout and its own digest.
pub fn read(path: &Path, manifest: &Manifest) -> Result<(Label, State), StateFileError> {
    let (mut file, label, (kept, text, stepped)) = open(path, manifest)?;
    // Allocated only now, when the file is known to be as long as the layout requires.
    let shared = match manifest.split {
        None => manifest.layout.len,
        Some(_) => 0,
    };
    let mut state = State::new(vec![0.0; shared], manifest);
    for section in state.sections_mut() {
        file.read_exact(section).at(path)?;
    }
    if manifest.copies.is_some() {
        let read = |section: &mut [u8]| file.read_exact(section).at(path);
        state.kept = Moments::load(manifest, (&kept, stepped), read)?;
        if kept_text(&state.kept) != text {
            return Err(StateFileError::Damaged(
                "its parts of the optimizer's vectors have other digests than are recorded".into(),
            ));
        }
    }
    let found = state.digest();
    if found != label.digest {
        return Err(StateFileError::Digest {
            recorded: label.digest,
            found,
        });
    }
    Ok((label, state))
}

fn header(
    metadata: &[(&str, String)],
    manifest: &Manifest,
    slots: usize,
    kept: &PartSet,
) -> Result<Vec<u8>, StateFileError> {
    let mut seen = HashSet::from(["__metadata__".to_string()]);
    if let Some((name, _)) = tensors(manifest, slots, kept).find(|(name, _)| !seen.insert(name.clone())) {
        return Err(StateFileError::Shape(format!(
            "two tensors are called {name}: rename one in the model"
        )));
    }
    let metadata = metadata
        .iter()
        .map(|(key, value)| (key.to_string(), value.clone()));
    header_of(metadata.collect(), tensors(manifest, slots, kept).collect())
}

/// The bytes before a file's tensors, which must lie one behind the other.
pub(crate) fn header_of(
    metadata: HashMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
) -> Result<Vec<u8>, StateFileError> {
    let header =
        Metadata::new(Some(metadata), tensors).map_err(|error| StateFileError::Shape(error.to_string()))?;
    // Keys are sorted, so equal states make equal files.
    let json = serde_json::to_value(&header).expect("a header has only plain data");
    let mut json = json.to_string().into_bytes();
    // The format wants tensors at multiples of eight bytes.
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() > HEADER_LIMIT {
        return Err(StateFileError::Shape(
            "its tensors are too many for the format".into(),
        ));
    }
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}

/// The tensors of a file, in the order of a [state's sections](State::sections), followed by the kept parts of the
/// optimizer's vectors.
fn tensors(manifest: &Manifest, slots: usize, kept: &PartSet) -> impl Iterator<Item = (String, TensorInfo)> {
    // In a split run no peer has them all: they are with its parts.
    let shared = match manifest.split {
        None => &manifest.layout.tensors[..],
        Some(_) => &[],
    };
    let tensors = move || shared.iter();
    let parameters = tensors().map(|tensor| (tensor.name.clone(), Dtype::F32, tensor.shape.clone()));
    let of_slots = move |dtype| {
        let named = move |slot| {
            tensors().map(move |tensor| {
                (
                    format!("optimizer.{slot}.{}", tensor.name),
                    dtype,
                    tensor.shape.clone(),
                )
            })
        };
        (0..slots).flat_map(named)
    };
    let rest: Vec<_> = match manifest.moments {
        _ if slots == 0 => of_parts(manifest, kept),
        Kind::F32 => of_slots(Dtype::F32).collect(),
        Kind::EightBit => {
            let blocks = manifest.layout.len.div_ceil(manifest.moments.grain());
            let scales =
                (0..slots).map(|slot| (format!("optimizer.scales.{slot}"), Dtype::F32, vec![blocks]));
            scales.chain(of_slots(Dtype::U8)).collect()
        }
    };
    let mut end = 0;
    parameters.chain(rest).map(move |(name, dtype, shape)| {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let info = TensorInfo {
            dtype,
            shape,
            data_offsets: (start, end),
        };
        (name, info)
    })
}

/// Parts of the optimizer's vectors, in the order of [their sections](Moments::sections).
fn of_parts(manifest: &Manifest, kept: &PartSet) -> Vec<(String, Dtype, Vec<usize>)> {
    let slots = manifest.shared_optimizer().0.slots();
    let parts = annulus_core::parts::Parts::of_len(manifest.layout.len);
    let mut tensors = Vec::new();
    for part in kept.iter() {
        let len = parts.range(part).map_or(0, |range| range.len());
        for slot in 0..slots {
            let name = format!("optimizer.{slot}.part.{part}");
            match manifest.moments {
                Kind::F32 => tensors.push((name, Dtype::F32, vec![len])),
                Kind::EightBit => {
                    let blocks = len.div_ceil(manifest.moments.grain());
                    tensors.push((
                        format!("optimizer.scales.{slot}.part.{part}"),
                        Dtype::F32,
                        vec![blocks],
                    ));
                    tensors.push((name, Dtype::U8, vec![len]));
                }
            }
        }
        if manifest.split.is_some() {
            tensors.push((format!("weights.part.{part}"), Dtype::F32, vec![len]));
        }
    }
    tensors
}

/// Checks everything but the tensors' contents, and leaves the file at their start.
pub(super) fn open(path: &Path, manifest: &Manifest) -> Result<(File, Label, Parts), StateFileError> {
    let damaged = |why: &str| StateFileError::Damaged(why.into());
    let mut file = open::own_to_read(path).at(path)?;
    let len = file.metadata().at(path)?.len();
    let mut size = [0; 8];
    if len < 8 {
        return Err(damaged("it ends within its first eight bytes"));
    }
    file.read_exact(&mut size).at(path)?;
    let size = u64::from_le_bytes(size);
    if size > HEADER_LIMIT as u64 || size > len - 8 {
        return Err(damaged("its header is longer than the file or the format allows"));
    }
    let mut json = vec![0; size as usize];
    file.read_exact(&mut json).at(path)?;
    let header: Metadata =
        serde_json::from_slice(&json).map_err(|error| StateFileError::Damaged(error.to_string()))?;

    let label = label(&header, manifest)?;
    let (slots, parts) = (vectors(manifest), parts(&header, manifest)?);
    let kept = &parts.0;
    if header.tensors().len() != tensors(manifest, slots, kept).count() {
        return Err(damaged("its tensors are not those of the model"));
    }
    for (name, expected) in tensors(manifest, slots, kept) {
        let fits = header.info(&name).is_some_and(|info| {
            info.dtype == expected.dtype
                && info.shape == expected.shape
                && info.data_offsets == expected.data_offsets
        });
        if !fits {
            return Err(StateFileError::Damaged(format!(
                "tensor {name} is not as in the model"
            )));
        }
    }
    let last = tensors(manifest, slots, kept).last();
    let data = last.map_or(0, |(_, info)| info.data_offsets.1 as u64);
    if len - 8 - size != data {
        return Err(StateFileError::Damaged(format!(
            "it has {} bytes of tensors instead of {data}",
            len - 8 - size
        )));
    }
    Ok((file, label, parts))
}

fn label(header: &Metadata, manifest: &Manifest) -> Result<Label, StateFileError> {
    let metadata = header.metadata().as_ref();
    let get = |key: &str| {
        let value = metadata.and_then(|m| m.get(key)).map(String::as_str);
        value.ok_or_else(|| StateFileError::Damaged(format!("its metadata lacks {key}")))
    };
    let version = get("format")?.strip_prefix(FORMAT);
    let version = version.ok_or_else(|| StateFileError::Damaged("it is no checkpoint of annulus".into()))?;
    if version != VERSION.to_string() {
        return Err(StateFileError::Version(version.into()));
    }
    let unreadable = |key: &str| StateFileError::Damaged(format!("its {key} cannot be read"));
    let found = RunId::from_hex(get("run")?).ok_or_else(|| unreadable("run"))?;
    let expected = manifest.run_id();
    if found != expected {
        return Err(StateFileError::OtherRun { expected, found });
    }
    let digest = Digest::from_hex(get("digest")?).ok_or_else(|| unreadable("digest"))?;
    let bytes = HEXLOWER_PERMISSIVE
        .decode(get("head")?.as_bytes())
        .map_err(|_| unreadable("head"))?;
    if get("check")? != check(&bytes, digest).to_hex() {
        return Err(StateFileError::Damaged(
            "its head is not the one that was saved".into(),
        ));
    }
    let head = postcard::from_bytes::<Head>(&bytes)
        .ok()
        .filter(|head| head.check_itself(manifest).is_ok());
    let head = head.filter(|head| get("round").is_ok_and(|round| round == head.round.to_string()));
    Ok(Label {
        head: head.ok_or_else(|| unreadable("head"))?,
        digest,
    })
}

/// A check over the head and the digest, since the state's digest does not cover the head.
fn check(head: &[u8], digest: Digest) -> Digest {
    Digest::of(&[head, &digest.0].concat())
}

#[cfg(test)]
mod tests;
