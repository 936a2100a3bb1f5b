//! Offers the checkpoints on a member's disk to a split run, and reads them if the run goes back.

use crate::net::link::Link;
use crate::net::quic::QuicLink;
use crate::participant::driver::Driver;
use crate::participant::host::Host;
use crate::participant::native::NativeHost;
use crate::store::on_disk::{self, OnDisk};
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::moments::Moments;
use annulus_core::saved::Saved;
use annulus_core::{Digest, Input, Peer, Round, Time};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The result of reading a checkpoint.
pub(super) type Restored = (Digest, Result<Option<Moments>, CheckpointError>);

/// The checkpoints in a folder, and reading them.
pub(super) struct Disk {
    dir: PathBuf,
    keep: usize,
    on_disk: OnDisk,
    /// The checkpoint that is being written.
    saving: Option<(Round, Saved)>,
    to_us: UnboundedSender<Restored>,
    pub restored: UnboundedReceiver<Restored>,
}

impl Disk {
    /// For a folder that keeps this many.
    pub fn new(dir: &Path, keep: usize) -> Self {
        let (to_us, restored) = unbounded_channel();
        Self {
            dir: dir.to_owned(),
            keep,
            on_disk: OnDisk::default(),
            saving: None,
            to_us,
            restored,
        }
    }

    /// Finds the checkpoints in the folder. Returns whether to tell the peer, which asks only if its model is split.
    pub fn look(&mut self) -> bool {
        let dir = RunDir::open(&self.dir).ok();
        let split = dir.filter(|dir| dir.manifest().split.is_some());
        split.map(|dir| self.on_disk = OnDisk::of(&dir)).is_some()
    }

    /// The folder has another path by now.
    pub fn moved(&mut self, dir: &Path) {
        self.dir = dir.to_owned();
    }

    /// Tells the peer which ones there are.
    pub fn tell<L: Link>(&self, driver: &mut Driver<L>, now: Time) {
        driver.handle(Input::Saved(self.on_disk.saved()), now);
    }

    /// A checkpoint of the peer's parts is being written.
    pub fn saves(&mut self, peer: &Peer) {
        let (kept, round) = (&peer.state().kept, peer.head().round);
        let (stepped, parts) = (kept.stepped, kept.set());
        self.saving = Some((round, Saved { stepped, parts }));
    }

    /// The checkpoint is safe on disk. Returns whether to tell the peer.
    pub fn has_saved(&mut self, round: Round) -> bool {
        let saved = self.saving.take_if(|(saving, _)| *saving == round);
        let saved = saved.filter(|(_, saved)| !saved.parts.is_empty());
        saved
            .inspect(|(round, saved)| self.on_disk.add(*round, *saved, self.keep))
            .is_some()
    }

    /// Reads the parts of a lineage on a separate thread.
    pub fn restore(&self, stepped: Digest) {
        let (dir, to_us) = (self.dir.clone(), self.to_us.clone());
        let Some(round) = self.on_disk.newest_of(stepped) else {
            let _ = to_us.send((stepped, Ok(None)));
            return;
        };
        tokio::task::spawn_blocking(move || {
            // If nobody receives it, the peer has ended.
            let _ = to_us.send((stepped, on_disk::read(&dir, round, stepped)));
        });
    }
}

impl NativeHost<'_> {
    /// The parts that the peer asked for were read.
    pub(super) fn on_restored(&mut self, (stepped, read): Restored, driver: &mut Driver<QuicLink>) {
        let kept = read.unwrap_or_else(|error| {
            self.warn(format!("a checkpoint to go back to cannot be read: {error}"));
            None
        });
        let kept = kept.map(Box::new);
        self.feed(Input::Restored { stepped, kept }, driver);
    }
}
