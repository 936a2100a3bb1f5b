//! Everything that a peer keeps on disk: the run folder with its ledger, checkpoints and evaluations, and the peers it
//! knows.

pub mod checkpoint;
pub mod checkpoint_writer;
pub mod evals;
pub mod folders;
pub mod given;
#[cfg(test)]
mod hostile;
pub mod known;
pub mod ledger_file;
pub mod lock;
pub(crate) mod on_disk;
pub mod options_file;
pub(crate) mod parts_file;
pub mod run_dir;
pub mod save_now;
pub(crate) mod state_file;
pub mod which;
