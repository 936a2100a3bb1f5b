//! The built-in tasks, each small enough to learn from.

pub mod digits;
pub mod gpt;
pub mod graph;
pub mod images;
mod init;
pub mod pytorch;
pub mod table;
#[cfg(test)]
mod testing;
