//! What a member of a run whose model is split has on its disk, and brings back if the run goes back to it.

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

/// What was read, if it could be.
pub(super) type Restored = (Digest, Result<Option<Moments>, CheckpointError>);

/// The checkpoints of a folder, and what is read of them.
pub(super) struct Disk {
    dir: PathBuf,
    keep: usize,
    on_disk: OnDisk,
    /// What is on its way to the disk.
    saving: Option<(Round, Saved)>,
    to_us: UnboundedSender<Restored>,
    pub restored: UnboundedReceiver<Restored>,
}

impl Disk {
    /// Of a folder that keeps so many.
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

    /// What an earlier process has left there.
    pub fn look(&mut self) {
        if let Ok(dir) = RunDir::open(&self.dir)
            && dir.manifest().split.is_some()
        {
            self.on_disk = OnDisk::of(&dir);
        }
    }

    /// Tells the peer what there is.
    pub fn tell<L: Link>(&self, driver: &mut Driver<L>, now: Time) {
        driver.handle(Input::Saved(self.on_disk.saved()), now);
    }

    /// A checkpoint of what a peer has is being written.
    pub fn saves(&mut self, peer: &Peer) {
        let (kept, round) = (&peer.state().kept, peer.head().round);
        let (stepped, parts) = (kept.stepped, kept.set());
        self.saving = Some((round, Saved { stepped, parts }));
    }

    /// It is safe on disk. Whether the peer is to know.
    pub fn has_saved(&mut self, round: Round) -> bool {
        let saved = self.saving.take_if(|(saving, _)| *saving == round);
        let saved = saved.filter(|(_, saved)| !saved.parts.is_empty());
        saved
            .inspect(|(round, saved)| self.on_disk.add(*round, *saved, self.keep))
            .is_some()
    }

    /// Reads what is of a lineage, on a thread of its own.
    pub fn restore(&self, stepped: Digest) {
        let (dir, to_us) = (self.dir.clone(), self.to_us.clone());
        let Some(round) = self.on_disk.newest_of(stepped) else {
            let _ = to_us.send((stepped, Ok(None)));
            return;
        };
        tokio::task::spawn_blocking(move || {
            // Nobody listens any more if this peer has ended meanwhile.
            let _ = to_us.send((stepped, on_disk::read(&dir, round, stepped)));
        });
    }
}

impl NativeHost<'_> {
    /// What the peer asked for was read.
    pub(super) fn on_restored(&mut self, (stepped, read): Restored, driver: &mut Driver<QuicLink>) {
        let kept = read.unwrap_or_else(|error| {
            self.warn(format!("a checkpoint to go back to cannot be read: {error}"));
            None
        });
        let kept = kept.map(Box::new);
        self.feed(Input::Restored { stepped, kept }, driver);
    }
}
