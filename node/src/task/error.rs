//! Why a task cannot do what was asked.

/// Whatever the task says, for a person to read.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;
