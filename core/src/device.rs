//! The device as the protocol sees it: a state to compute from, and a buffer.

use crate::id::Digest;

/// The device gets one thing at a time, so that a peer in trouble does not bury it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// The lineage for whose next round it is at work, and the digest of the state that it started from.
    pub asked: Option<(Digest, Digest)>,
    /// A buffer as long as the parameters that nobody uses now.
    pub spare: Vec<f32>,
}

impl Device {
    /// It has finished with what is no longer wanted.
    pub fn take_back(&mut self, buffer: Vec<f32>) {
        self.asked = None;
        self.give_back(buffer);
    }

    /// A buffer that may serve again.
    pub fn give_back(&mut self, buffer: Vec<f32>) {
        self.spare = buffer;
    }
}
