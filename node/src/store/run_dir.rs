//! Reads a run's folder: its manifest, its ledger, and the last few states.
//!
//! ```text
//! manifest.bin    the manifest, exactly as hashed       ledger        committed rounds, append-only
//! manifest.json   the same for people                   ledger.cut    what was last cut off its end
//! lock            held by the process that trains here  checkpoints/round-00000042.safetensors
//! evals.jsonl     results of evaluations                identity      the peer's private key
//! peers.json      peers that it knows                   ticket        lets others take part
//! options         options of this peer
//! ```
//!
//! It only reads, and works while a process trains there; `checkpoint.rs` writes. It knows nothing of peers, tasks or
//! devices.

use crate::store::evals::{self, Evaluated};
use crate::store::ledger_file::{self, Entry, LedgerError, LedgerReader, advance};
use crate::store::parts_file::SavedParts;
use crate::store::state_file::{self, Label, StateFileError};
use crate::store::which::Which;
use annulus_core::config::{Manifest, ManifestError};
use annulus_core::id::{Digest, Round};
use annulus_core::ledger::Head;
use annulus_core::state::State;
use annulus_net::files::{At, FileError, read_limited};
use annulus_net::open;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

impl Which {
    /// Of a split model, whose checkpoints lie in several folders, there is only the newest.
    pub fn of_split(self) -> Result<(), CheckpointError> {
        match self {
            Self::Newest => Ok(()),
            Self::Best | Self::After(_) => Err(CheckpointError::NewestOnly),
        }
    }
}

/// Why a run's folder cannot be used. Unless a variant says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder has no run.
    #[error("{}", no_run(.0))]
    NoRun(PathBuf),
    /// The folder has another run.
    #[error(
        "{dir} holds another run, or the same one with other settings or data: go on with it by `annulus resume {dir}`, \
         or choose another directory with --out",
        dir = .0.display()
    )]
    Occupied(PathBuf),
    /// The directory cannot be made.
    #[error("cannot make the folder {dir}: {1}. {help}", dir = .0.display(), help = folder_help(.1))]
    Folder(PathBuf, io::Error),
    /// Another user owns the directory or can write to it.
    #[error("{dir} {1}", dir = .0.display())]
    Foreign(PathBuf, String),
    /// The checkpoint that was asked for is not there. These are, by round.
    #[error("{}", .1.not_kept(.0, .2))]
    NotKept(PathBuf, Which, Vec<Round>),
    /// Another than the newest checkpoint of a split model was asked for.
    #[error(
        "the model is split, so its newest checkpoint is put together from several folders; others cannot be: leave out --round"
    )]
    NewestOnly,
    /// There are checkpoints without a ledger.
    #[error(
        "{dir} holds checkpoints, but its `ledger` is missing: put it back from a backup. Without it `annulus resume {dir}` \
         goes on from the newest checkpoint, and the rounds before can no longer be inspected or replayed",
        dir = .0.display()
    )]
    NoLedger(PathBuf),
    /// There is a ledger or a checkpoint without a manifest.
    #[error(
        "{dir} holds a run, but its `manifest.bin` is missing: copy it from a backup or from the folder of any other peer of \
         the run, where it is the same",
        dir = .0.display()
    )]
    NoManifest(PathBuf),
    /// The manifest's bytes are not those that the run began with.
    #[error(
        "{path} is damaged: {1}. Copy it from a backup or from the folder of any other peer of the run, where it is the same; \
         manifest.json beside it tells the settings to begin another run with",
        path = .0.display()
    )]
    Damaged(PathBuf, String),
    /// Another process trains in the folder.
    #[error("another process is training in {dir}: stop it or choose another directory", dir = .0.display())]
    Locked(PathBuf),
    /// The manifest cannot be used.
    #[error("{path}: {1}", path = .0.display())]
    Manifest(PathBuf, ManifestError),
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(LedgerError),
    /// A state could not be saved, or a requested one could not be read.
    #[error("{path}: {1}", path = .0.display())]
    State(PathBuf, StateFileError),
    /// The folder belongs to another run than the first one.
    #[error("{dir} is of another run: name folders of one run's members", dir = .0.display())]
    OtherRun(PathBuf),
    /// Members held parts of the model, and some are missing here.
    #[error(
        "the model of the run in {dir} is split over its members, and {1} of its {2} parts are not in the folders that were named: \
         name those of other members too, with --with",
        dir = .0.display()
    )]
    Parts(PathBuf, usize, usize),
    /// No checkpoint is good; with the reason for each.
    #[error("{dir} has no {}", checkpoint(.1), dir = .0.display())]
    NoneGood(PathBuf, Vec<String>),
}

/// The error of a folder without a run.
fn no_run(dir: &Path) -> String {
    match dir.is_dir() {
        true => format!(
            "the folder {} holds no run: name the folder of one",
            dir.display()
        ),
        false => format!("there is no folder {}: name the folder of a run", dir.display()),
    }
}

/// The remedy for a folder that cannot be made.
fn folder_help(error: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::AlreadyExists | Kind::NotADirectory => "A file has that name: name another folder with --out",
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => "Name one with --out that you may write to",
        Kind::InvalidFilename => "Name a shorter one with --out",
        Kind::StorageFull | Kind::QuotaExceeded => "Make room, or name one on another disk with --out",
        _ => "Name another with --out",
    }
}

/// What a folder lacks.
fn checkpoint(reasons: &[String]) -> String {
    if reasons.is_empty() {
        return "checkpoint: start the run again".into();
    }
    format!("good checkpoint: {}", reasons.join("; "))
}

impl From<LedgerError> for CheckpointError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::File(error) => Self::File(error),
            error => Self::Ledger(error),
        }
    }
}

/// A run's directory, for reading.
#[derive(Clone, Debug)]
pub struct RunDir {
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
}

/// A checkpoint that was read and is good.
#[derive(Debug)]
pub struct LoadedRun {
    /// The run.
    pub manifest: Manifest,
    /// The ledger's end at the checkpoint.
    pub head: Head,
    /// The state there.
    pub state: State,
    /// Its digest, recorded and computed.
    pub digest: Digest,
    /// Where it was read.
    pub path: PathBuf,
    /// Checkpoints that were damaged and skipped.
    pub warnings: Vec<String>,
}

/// A checkpoint's file.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointFile {
    /// Committed rounds, according to its name.
    pub round: Round,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl RunDir {
    /// Whether a run has begun in a directory: it holds a ledger, or a checkpoint whose ledger was lost.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read.
    pub fn is_begun(path: &Path) -> Result<bool, CheckpointError> {
        match fs::symlink_metadata(path.join("ledger")) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::new(path, error).into()),
            Err(_) => Ok(!checkpoints_in(path)?.is_empty()),
        }
    }

    /// Reads the manifest of the run in a directory.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let file = path.join("manifest.bin");
        let bytes = match read_limited(&file, Manifest::SIZE_LIMIT + 1) {
            Err(FileError::Missing(_)) => {
                let path = path.to_path_buf();
                return Err(match Self::is_begun(&path) {
                    Ok(true) => CheckpointError::NoManifest(path),
                    _ => CheckpointError::NoRun(path),
                });
            }
            other => other?,
        };
        // The ledger names the run by its manifest's hash.
        let expected = ledger_file::run_of(&path.join("ledger"));
        let changed = expected.is_some_and(|run| run.0 != *blake3::hash(&bytes).as_bytes());
        let damaged = |why: &str| Err(CheckpointError::Damaged(file.clone(), why.into()));
        let manifest = match Manifest::decode(&bytes) {
            Ok(manifest) => manifest,
            Err(_) if bytes.is_empty() => return damaged("it is empty"),
            Err(_) if changed => return damaged("it is not what this ledger's run began with"),
            Err(ManifestError::NoVersion | ManifestError::Unusable(_)) if expected.is_none() => {
                return damaged("it does not read as a manifest");
            }
            Err(error) => return Err(CheckpointError::Manifest(file, error)),
        };
        let dir = Self {
            path: path.to_path_buf(),
            manifest,
        };
        // If a checkpoint belongs to the manifest's run, the ledger is damaged and not the manifest.
        if changed
            && !dir
                .checkpoints()?
                .iter()
                .any(|saved| dir.label(saved.round).is_ok())
        {
            return damaged("it is not what this ledger's run began with");
        }
        Ok(dir)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The ledger's entries, from the first.
    pub fn entries(&self) -> Result<LedgerReader, CheckpointError> {
        match LedgerReader::open(&self.ledger_path(), self.manifest.run_id()) {
            Err(LedgerError::File(FileError::Missing(_))) => {
                Err(CheckpointError::NoLedger(self.path.clone()))
            }
            other => Ok(other?),
        }
    }

    /// Where the present lineage begins in this ledger.
    pub fn base(&self) -> Result<(Head, Digest), CheckpointError> {
        let mut base = None;
        for entry in self.entries()? {
            if let Entry::Base { head, digest } = entry? {
                base = Some((*head, digest));
            }
        }
        base.ok_or_else(|| LedgerError::NotALedger(self.ledger_path()).into())
    }

    /// All checkpoints, good or not, oldest first.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointFile>, CheckpointError> {
        checkpoints_in(&self.path)
    }

    /// The evaluation with the lowest loss among those of `files`; the earlier of equal ones.
    pub fn best(&self, files: &[CheckpointFile]) -> Result<Option<Evaluated>, CheckpointError> {
        let mut evals = evals::read(&self.path)?;
        evals.retain(|eval| eval.loss.is_finite() && files.iter().any(|file| file.round == eval.round));
        Ok(evals.into_iter().min_by(|a, b| a.loss.total_cmp(&b.loss)))
    }

    /// Reads the checkpoint that a user asks for.
    ///
    /// # Errors
    ///
    /// If there is none, or it is damaged. Only the newest makes place for an older one then.
    pub fn load_which(&self, which: Which) -> Result<LoadedRun, CheckpointError> {
        let files = self.checkpoints()?;
        let round = match which {
            Which::Newest => return self.load_latest(),
            Which::Best => self.best(&files)?.map(|best| best.round),
            Which::After(round) => files.iter().map(|file| file.round).find(|of| *of == round),
        };
        let rounds = files.iter().map(|file| file.round).collect();
        let none = || CheckpointError::NotKept(self.path.clone(), which, rounds);
        self.load(round.ok_or_else(none)?)
    }

    /// Reads one checkpoint.
    pub fn load(&self, round: Round) -> Result<LoadedRun, CheckpointError> {
        let path = self.checkpoint_path(round);
        let (label, state) = self.read(&path)?;
        Ok(self.loaded(path, label, state, Vec::new()))
    }

    /// Reads a checkpoint's label, without its state.
    pub fn label(&self, round: Round) -> Result<Label, CheckpointError> {
        let path = self.checkpoint_path(round);
        state_file::read_label(&path, &self.manifest).map_err(|error| state_error(path, error))
    }

    /// The digest of what a checkpoint says that it holds: of a split model that of its parts.
    pub fn digest(&self, round: Round) -> Result<Digest, CheckpointError> {
        if self.manifest.split.is_none() {
            return Ok(self.label(round)?.digest);
        }
        let path = self.checkpoint_path(round);
        let saved = SavedParts::open(&path, &self.manifest);
        Ok(saved.map_err(|error| state_error(path, error))?.digest())
    }

    /// Reads the newest good checkpoint. Those of a former lineage come last, however new.
    pub fn load_latest(&self) -> Result<LoadedRun, CheckpointError> {
        let mut warnings = Vec::new();
        let points = self.points(&mut warnings);
        self.latest(&points, warnings)
    }

    pub(crate) fn latest(
        &self,
        points: &[Point],
        mut warnings: Vec<String>,
    ) -> Result<LoadedRun, CheckpointError> {
        let place = |file: &CheckpointFile| {
            let label = self.label(file.round).ok()?;
            points.iter().rfind(|p| p.is_at(&label.head)).map(|p| p.base)
        };
        let present = points.last().map(|p| p.base);
        let mut files: Vec<_> = self.checkpoints()?.into_iter().map(|f| (place(&f), f)).collect();
        // A checkpoint that the ledger does not know is no worse than others, since the ledger may be the damaged one.
        files.sort_by_key(|(place, file)| (place.is_none() || *place == present, file.round));
        for (place, file) in files.into_iter().rev() {
            match self.read(&file.path) {
                Ok((label, state)) => {
                    if place.is_none() || place != present {
                        warnings.push(format!(
                            "round {} is not in the ledger, which restarts there",
                            file.round
                        ));
                    }
                    return Ok(self.loaded(file.path, label, state, warnings));
                }
                Err(error) => warnings.push(format!("passed over {error}")),
            }
        }
        Err(CheckpointError::NoneGood(self.path.clone(), warnings))
    }

    fn loaded(&self, path: PathBuf, label: Label, state: State, warnings: Vec<String>) -> LoadedRun {
        let manifest = self.manifest.clone();
        LoadedRun {
            manifest,
            head: label.head,
            state,
            digest: label.digest,
            path,
            warnings,
        }
    }

    fn read(&self, path: &Path) -> Result<(Label, State), CheckpointError> {
        state_file::read(path, &self.manifest).map_err(|error| state_error(path.to_path_buf(), error))
    }

    /// The heads that the ledger has gone through, as far as it can be read.
    pub(crate) fn points(&self, warnings: &mut Vec<String>) -> Vec<Point> {
        let mut points = Vec::new();
        let mut walk = || -> Result<(), CheckpointError> {
            let mut reader = self.entries()?;
            let mut head = None;
            let (mut count, mut base) = (0, 0);
            while let Some(entry) = reader.next().transpose()? {
                let next = advance(head, &entry, &self.manifest)?;
                if matches!(entry, Entry::Base { .. }) {
                    base = next.round;
                    count += 1;
                }
                let (round, chain) = (next.round, next.chain);
                points.push(Point {
                    base: (count, base),
                    round,
                    chain,
                    end: reader.position(),
                });
                head = Some(next);
            }
            if reader.rest() > 0 {
                warnings.push(format!(
                    "the ledger's last {} bytes are not readable",
                    reader.rest()
                ));
            }
            Ok(())
        };
        if let Err(error) = walk() {
            warnings.push(error.to_string());
        }
        points
    }

    pub(crate) fn ledger_path(&self) -> PathBuf {
        self.path.join("ledger")
    }

    pub(crate) fn checkpoint_path(&self, round: Round) -> PathBuf {
        self.path
            .join("checkpoints")
            .join(format!("round-{round:08}.safetensors"))
    }
}

/// The checkpoints in a directory, oldest first. None if their folder does not exist.
fn checkpoints_in(path: &Path) -> Result<Vec<CheckpointFile>, CheckpointError> {
    let dir = path.join("checkpoints");
    match open::folder(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        is => is.at(&dir)?,
    }
    let mut found = Vec::new();
    for file in fs::read_dir(&dir).at(&dir)? {
        let file = file.at(&dir)?;
        let round = file.file_name().to_str().and_then(round_of);
        // It may have been pruned since; then it is as if it had not been listed.
        if let (Some(round), Ok(metadata)) = (round, file.metadata()) {
            found.push(CheckpointFile {
                round,
                path: file.path(),
                bytes: metadata.len(),
            });
        }
    }
    found.sort_by_key(|file| file.round);
    Ok(found)
}

/// A place in the ledger's file.
pub(crate) struct Point {
    /// The base that it follows: its number from 1, and its round.
    pub base: (usize, Round),
    pub round: Round,
    chain: Digest,
    /// The end of its entry.
    pub end: u64,
}

impl Point {
    pub fn is_at(&self, head: &Head) -> bool {
        (self.round, self.chain) == (head.round, head.chain)
    }
}

pub(crate) fn state_error(path: PathBuf, error: StateFileError) -> CheckpointError {
    match error {
        StateFileError::File(error) => CheckpointError::File(error),
        error => CheckpointError::State(path, error),
    }
}

fn round_of(name: &str) -> Option<Round> {
    name.strip_prefix("round-")?
        .strip_suffix(".safetensors")?
        .parse()
        .ok()
}
