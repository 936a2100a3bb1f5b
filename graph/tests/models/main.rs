//! Models from files: their gradients against PyTorch's, and files that nobody should have made.

mod attention;
mod common;
mod files;
mod fixtures;
mod fusion;
mod fuzz;
mod hostile;
mod lanes;
mod modes;
mod pace;
mod steps;
mod twins;
mod write;
