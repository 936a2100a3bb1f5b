//! The tasks that come with the program, each one file to learn from.

pub mod digits;
