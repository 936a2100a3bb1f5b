//! A tab's identity: a key that lives as long as its worker.
//!
//! The program signs with it itself, as native peers do: a browser's own signatures come as promises, and a round cannot wait for
//! them.

use annulus_core::signature::Key;

/// A fresh key.
pub fn generate() -> Key {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).expect("browsers give random bytes");
    Key::from_seed(&seed)
}
