//! Why a task cannot do what was asked.

/// A task's error, for a person to read.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;
