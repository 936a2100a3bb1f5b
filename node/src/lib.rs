//! A participant in Annulus, the portable distributed trainer.

pub mod core_types;
pub mod data;
pub mod device;
pub mod task;
pub mod tasks;
pub mod trainer;
