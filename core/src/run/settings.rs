//! The settings of one peer, which need not be the same on others.

use crate::access::invitation::{Admission, Role};
use crate::access::signature::Key;
use crate::base::id::{Contact, PeerId, Round};
use crate::base::jobs::{InTurn, Jobs};
use crate::base::planted::Bug;
use crate::run::config::Manifest;
use crate::run::initial::Initial;
use crate::run::room::Room;
use crate::run::waits::Waits;
use std::sync::Arc;

/// What one peer chooses for itself.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This peer.
    pub me: PeerId,
    /// Signs in its name.
    pub key: Key,
    /// The proof of its right to take part.
    pub admission: Admission,
    /// The addresses at which others can dial it.
    pub contact: Contact,
    /// The protocol's time 0, in seconds since 1970. Only the expiry of tickets depends on it.
    pub epoch_s: u64,
    /// When this peer was started, in microseconds since a fixed moment. The frames that others relay for it are
    /// numbered from here on, so that nobody can replay frames of an earlier start.
    pub started: u64,
    /// The most rounds that a newcomer which follows this peer may be behind, at least 2.
    pub lag: Round,
    /// How much of a [split](Manifest::split) model this peer has room for.
    pub room: Room,
    /// The first weights of a split model.
    pub initial: Option<Initial>,
    /// In a split run, this peer saves its parts after every this many rounds, and tells the others; 0: never.
    pub saves_every: Round,
    /// How long it waits for others before it does without them.
    pub waits: Waits,
    /// Applies rounds to long states in several places at the same time.
    pub jobs: Arc<dyn Jobs>,
    /// A bug switched on to prove that the simulation finds it.
    #[cfg(feature = "sim")]
    pub bug: Option<Bug>,
}

impl Settings {
    /// The usual [`lag`](Self::lag).
    pub const LAG: Round = 128;

    /// A peer without bugs.
    pub fn new(key: Key, admission: Admission, contact: Contact) -> Self {
        Self {
            me: key.peer(),
            key,
            admission,
            contact,
            epoch_s: 0,
            started: 0,
            lag: Self::LAG,
            room: Room::of(1),
            initial: None,
            saves_every: 0,
            waits: Waits::default(),
            jobs: Arc::new(InTurn),
            #[cfg(feature = "sim")]
            bug: None,
        }
    }

    /// A full member with a stand-in key.
    #[cfg(any(test, feature = "sim"))]
    pub fn stand_in(me: PeerId, contact: Contact, manifest: &Manifest) -> Self {
        Self::new(
            Key::stand_in(me),
            Admission::stand_in(me, manifest.root()),
            contact,
        )
    }

    /// What this peer may do.
    pub fn role(&self) -> Role {
        self.admission.role()
    }

    /// The spans of a run's model that it has room for; none if the model is not split.
    pub(crate) fn room(&self, manifest: &Manifest) -> Room {
        let split = manifest.split.as_ref();
        split.map_or_else(Room::default, |split| self.room.within(split.spans.len()))
    }

    /// Whether this bug is switched on.
    #[inline]
    pub(crate) fn planted(&self, bug: Bug) -> bool {
        self.bug() == Some(bug)
    }

    /// The bug that is switched on.
    #[inline]
    pub(crate) fn bug(&self) -> Option<Bug> {
        #[cfg(feature = "sim")]
        let bug = self.bug;
        #[cfg(not(feature = "sim"))]
        let bug = None;
        bug
    }
}
