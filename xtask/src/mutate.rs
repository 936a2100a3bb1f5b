//! Mutation tests: changes the product by one token at a time, and expects its tests to fail.
//!
//! Without options it tries each kernel in a dozen places, and knows which mutants nobody can notice. With `--drawn` it
//! draws mutants at random from the protocol, the node or the kernels. That measures how much the tests see, before and
//! after a change of the tests: the same seed draws the same mutants for two checkouts, and `--compare` lists what only
//! the older tests noticed.

mod areas;
mod bench;
mod change;
mod copy;
mod drawn;
mod exchanges;
mod kernels;
mod limit;
mod list;
mod rust;

use std::path::Path;

/// Does what the arguments ask for. Whether the tests do their work.
///
/// # Errors
///
/// If the arguments are not understood, or the tests cannot be built or fail without any mutant.
pub fn run(root: &Path, args: &[&str]) -> Result<bool, String> {
    match args {
        ["--compare", old, new] => list::compare(Path::new(old), Path::new(new)),
        _ if args.iter().any(|arg| arg.starts_with("--")) => drawn::run(root, &drawn::Options::read(args)?),
        names => kernels::mutate(root, names),
    }
}
