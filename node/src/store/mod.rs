//! What a peer keeps on disk: the run directory with its ledger, checkpoints and evaluations.

pub mod checkpoint;
pub mod checkpoint_writer;
pub mod evals;
pub(crate) mod files;
pub mod ledger_file;
pub mod run_dir;
pub(crate) mod state_file;
