//! What connections report to the owner of the link, in which order, and how much of it waits.
//!
//! Members' frames go first, and each lane has its own bound for members and for others. So nobody outside of the run makes
//! members wait. Events of one peer stay in order.

use crate::net::link::{DialError, DownReason, Lane, MAX_FRAME};
use annulus_core::{Contact, PeerId};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The cost of a frame in a queue beyond its bytes, so that empty frames are bounded too.
pub(crate) const OVERHEAD: usize = 64;

/// After this many events of members in a row, another peer has its turn, if one waits: rounds may follow each other without a
/// pause, and newcomers must be heard. A guess: a flood then costs a tenth of the time at most, even if its frames cost as much
/// as members'.
const IN_A_ROW: usize = 16;

/// The part of the inbox for all who are no members.
const GUESTS: usize = 4;

/// What connections report. `W` is a connection that stands.
pub(crate) enum ConnectionEvent<W> {
    Up {
        peer: PeerId,
        wire: W,
        contact: Contact,
    },
    Down {
        peer: PeerId,
        reason: DownReason,
    },
    Frame {
        peer: PeerId,
        lane: Lane,
        bytes: Bytes,
        _share: OwnedSemaphorePermit,
    },
    DialFailed {
        peer: PeerId,
        reason: DialError,
    },
    Stopped,
}

impl<W> ConnectionEvent<W> {
    fn peer(&self) -> Option<PeerId> {
        match self {
            Self::Up { peer, .. }
            | Self::Down { peer, .. }
            | Self::Frame { peer, .. }
            | Self::DialFailed { peer, .. } => Some(*peer),
            Self::Stopped => None,
        }
    }
}

/// The queue to the owner.
pub(crate) struct Inbox<W> {
    waiting: Mutex<Waiting<W>>,
    members: [Arc<Semaphore>; 2],
    guests: [Arc<Semaphore>; 2],
}

struct Waiting<W> {
    members: VecDeque<ConnectionEvent<W>>,
    others: VecDeque<ConnectionEvent<W>>,
    /// How many events of each peer wait: as a member's, and as another's.
    of: HashMap<PeerId, [usize; 2]>,
    /// Members' events since another peer had its turn.
    in_a_row: usize,
    owner: Option<Waker>,
}

impl<W> Inbox<W> {
    pub(crate) fn new(bytes_per_lane: usize) -> Self {
        let budget = |bytes: usize| {
            let bytes = bytes.clamp(MAX_FRAME + OVERHEAD, u32::MAX as usize >> 4);
            [(); 2].map(|()| Arc::new(Semaphore::new(bytes)))
        };
        Self {
            waiting: Mutex::new(Waiting {
                members: VecDeque::new(),
                others: VecDeque::new(),
                of: HashMap::new(),
                in_a_row: 0,
                owner: None,
            }),
            members: budget(bytes_per_lane),
            guests: budget(bytes_per_lane / GUESTS),
        }
    }

    /// Reports something that is bounded by itself: of a member, or of another peer.
    pub(crate) fn tell(&self, event: ConnectionEvent<W>, is_member: bool) {
        self.push(event, is_member);
    }

    /// Reports a frame of a member or of another peer, once there is room for it.
    pub(crate) async fn frame(&self, peer: PeerId, is_member: impl Fn() -> bool, lane: Lane, bytes: Bytes) {
        let cost = (bytes.len() + OVERHEAD) as u32;
        let budgets = if is_member() { &self.members } else { &self.guests };
        let share = budgets[lane as usize]
            .clone()
            .acquire_many_owned(cost)
            .await
            .expect("the budget is never closed");
        let frame = ConnectionEvent::Frame {
            peer,
            lane,
            bytes,
            _share: share,
        };
        self.push(frame, is_member());
    }

    fn push(&self, event: ConnectionEvent<W>, is_member: bool) {
        let mut waiting = self.waiting();
        let mut is_first = is_member;
        if let Some(peer) = event.peer() {
            let [members, others] = waiting.of.entry(peer).or_default();
            // It may have become a member meanwhile.
            is_first &= *others == 0;
            *if is_first { members } else { others } += 1;
        }
        match is_first {
            true => waiting.members.push_back(event),
            false => waiting.others.push_back(event),
        }
        if let Some(owner) = waiting.owner.take() {
            owner.wake();
        }
    }

    /// The next event.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<ConnectionEvent<W>> {
        let mut waiting = self.waiting();
        match waiting.next() {
            Some(event) => Poll::Ready(event),
            None => {
                waiting.owner = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<W>> {
        self.waiting
            .lock()
            .expect("nobody panics while holding the inbox")
    }
}

impl<W> Waiting<W> {
    fn next(&mut self) -> Option<ConnectionEvent<W>> {
        let peer = self.others.front().and_then(ConnectionEvent::peer);
        // It may have ceased to be a member meanwhile.
        let is_behind = peer.is_some_and(|peer| self.of.get(&peer).is_some_and(|[members, _]| *members > 0));
        let others_wait = !self.others.is_empty() && !is_behind;
        let is_member = !self.members.is_empty() && (self.in_a_row < IN_A_ROW || !others_wait);
        let event = match is_member {
            true => self.members.pop_front(),
            false => self.others.pop_front(),
        }?;
        self.in_a_row = if is_member { self.in_a_row + 1 } else { 0 };
        if let Some(peer) = event.peer()
            && let Some(of) = self.of.get_mut(&peer)
        {
            of[usize::from(!is_member)] -= 1;
            if *of == [0, 0] {
                self.of.remove(&peer);
            }
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    const MEMBER: PeerId = PeerId([1; 32]);
    const GUEST: PeerId = PeerId([2; 32]);

    async fn say(inbox: &Inbox<()>, peer: PeerId, is_member: bool, text: &'static str) {
        let bytes = Bytes::from_static(text.as_bytes());
        inbox.frame(peer, || is_member, Lane::Control, bytes).await;
    }

    /// What waits, as text.
    fn drain(inbox: &Inbox<()>) -> Vec<String> {
        let mut waiting = inbox.waiting();
        let text = |event| match event {
            ConnectionEvent::Frame { bytes, .. } => String::from_utf8_lossy(&bytes).into_owned(),
            ConnectionEvent::Down { .. } => "down".to_owned(),
            _ => "other".to_owned(),
        };
        std::iter::from_fn(|| waiting.next().map(text)).collect()
    }

    #[tokio::test]
    async fn members_go_first_and_nobody_waits_for_ever() {
        let inbox = Inbox::<()>::new(64 << 20);
        for _ in 0..3 {
            say(&inbox, GUEST, false, "g").await;
        }
        for _ in 0..40 {
            say(&inbox, MEMBER, true, "m").await;
        }
        let order = drain(&inbox).concat();
        assert_eq!(
            order,
            ["m".repeat(16), "m".repeat(16), "m".repeat(8)].join("g") + "g"
        );
    }

    #[tokio::test]
    async fn frames_of_a_peer_stay_in_order_when_it_becomes_a_member_or_ceases_to_be_one() {
        let inbox = Inbox::<()>::new(64 << 20);
        say(&inbox, GUEST, false, "1").await;
        say(&inbox, GUEST, true, "2").await;
        say(&inbox, MEMBER, true, "m").await;
        assert_eq!(drain(&inbox), ["m", "1", "2"]);
        for _ in 0..20 {
            say(&inbox, MEMBER, true, "m").await;
        }
        let reason = DownReason::PeerLeft;
        inbox.tell(ConnectionEvent::Down { peer: MEMBER, reason }, false);
        assert_eq!(drain(&inbox), [["m"; 20].as_slice(), &["down"]].concat());
        assert!(inbox.waiting().of.is_empty());
    }

    #[tokio::test]
    async fn a_flood_of_others_leaves_room_for_members() {
        let inbox = Inbox::<()>::new(64 << 20);
        let full = Bytes::from(vec![0; 1 << 20]);
        let flood = async {
            for _ in 0.. {
                inbox.frame(GUEST, || false, Lane::Control, full.clone()).await;
            }
        };
        let said = async {
            sleep(Duration::from_millis(50)).await;
            timeout(Duration::from_secs(5), say(&inbox, MEMBER, true, "m")).await
        };
        tokio::select! {
            () = flood => {}
            said = said => assert!(said.is_ok(), "it waits behind the flood"),
        }
        assert_eq!(drain(&inbox)[0], "m");
    }
}
