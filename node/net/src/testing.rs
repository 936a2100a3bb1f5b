//! What the tests of this crate and of those above it share: folders that go away, bytes that are spoilt, and tickets.

use crate::net::ticket::{Secret, Ticket};
use annulus_core::RunId;
use annulus_core::invitation::{Invitation, Role, Root};
use annulus_core::random::SplitMix;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed in the end.
pub struct Scratch(
    /// Where it lies.
    pub PathBuf,
);

#[expect(clippy::new_without_default, reason = "it makes a folder")]
impl Scratch {
    /// Makes one with a name of its own.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "annulus-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        // In memory where possible: some tests write thousands of small files.
        let memory = PathBuf::from("/dev/shm");
        let path = if memory.is_dir() {
            memory
        } else {
            std::env::temp_dir()
        }
        .join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Spoils bytes, in ways that its seed decides.
pub struct Twister(SplitMix);

impl Twister {
    /// One that always spoils in the same way.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Below a bound above 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// The same bytes, but for one to three changes.
    pub fn twist(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(3) {
            let len = bytes.len();
            if len == 0 {
                return bytes;
            }
            let (at, other) = (self.below(len), self.below(len));
            match self.below(7) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.bits() as u8,
                2 => bytes.truncate(at),
                // As numbers are written: many bytes of nothing, or of all.
                3 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
                4 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0),
                5 => drop(bytes.splice(at..at, vec![self.bits() as u8; 1 + self.below(9)])),
                _ => {
                    let part = bytes[at.min(other)..at.max(other)].to_vec();
                    drop(bytes.splice(other..other, part));
                }
            }
        }
        bytes
    }
}

/// The key of the runs that tests make tickets of.
pub const RUN_KEY: Secret = Secret([2; 32]);

/// A ticket of a run with this id.
pub fn ticket_in(run: RunId, addrs: Vec<SocketAddr>) -> Ticket {
    ticket_by(RUN_KEY, run, addrs)
}

/// A ticket that this key grants.
pub fn ticket_by(run_key: Secret, run: RunId, addrs: Vec<SocketAddr>) -> Ticket {
    let (all, key) = (Invitation::of_run(run_key.key()), run_key.key().peer());
    let ticket = Ticket::made_from(&all, Root { run, key }, Role::Member, None, None).unwrap();
    Ticket { addrs, ..ticket }
}
