//! The parts of a run's folder that a replay needs: the ledger's entries, and the checkpoints that belong to them.

use crate::store::ledger_file::{Entry, LedgerError};
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::id::{Digest, Round};
use std::collections::BTreeMap;

/// The entries from the last base on.
pub fn present(dir: &RunDir) -> Result<impl Iterator<Item = Result<Entry, LedgerError>>, CheckpointError> {
    let mut last = 0;
    for (i, entry) in dir.entries()?.enumerate() {
        if let Entry::Base { .. } = entry? {
            last = i;
        }
    }
    Ok(dir.entries()?.skip(last))
}

/// The lineage of each complete checkpoint.
pub fn labels(dir: &RunDir) -> Result<BTreeMap<Round, Digest>, CheckpointError> {
    let files = dir.checkpoints()?;
    Ok(files
        .iter()
        .filter_map(|file| Some((file.round, dir.label(file.round).ok()?.head.chain)))
        .collect())
}
