//! The built-in tasks, each small enough to learn from.

pub mod digits;
pub mod gpt;
pub mod graph;
mod init;
pub mod table;
