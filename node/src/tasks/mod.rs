//! The tasks that come with the program, each small enough to learn from.

pub mod digits;
pub mod gpt;
