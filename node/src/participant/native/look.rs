//! Looks for other peers of the run, and lets them find this one: at a ticket's addresses, and at the run's meeting
//! place.

use super::{NativeHost, Participant};
use crate::data::fetch::{fetch_manifest, who_is_there};
use crate::data::provision::Source;
use crate::events::Event;
use crate::net::hello::addresses;
use crate::net::identity::Identity;
use crate::net::link::{DialError, Refusal};
use crate::net::mapping::Outside;
use crate::net::quic::QuicLink;
use crate::net::reach;
use crate::net::ticket::Ticket;
use crate::participant::driver::Driver;
use crate::participant::home::dialable;
use crate::participant::host::Host;
use crate::participant::meeting::{Place, Unresolved};
use crate::participant::right::Right;
use annulus_core::{Contact, Exit, Input, Peer, PeerId};
use std::iter;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep_until, timeout_at};

/// Time between two tries at a ticket's addresses.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Time until the first look at the meeting place, and its step; later looks are less frequent.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(60);

/// Time between two updates of this peer's entry at the meeting place.
const KEEP_FRESH: Duration = Duration::from_secs(60);

/// This peer's entry at the meeting place.
pub(super) struct Meeting {
    place: Place,
    ours: Ticket,
}

impl Meeting {
    /// Notes there that the run is complete.
    pub(super) async fn finish(self, result: &Path) {
        if let Place::File(file) = self.place
            && let Ok(held) = file.hold().await
        {
            // The run is complete all the same. If this fails, later peers wait in vain.
            let _ = held.finish(self.ours.root.run, result);
        }
    }
}

impl Participant<'_> {
    /// Tries a ticket's addresses until somebody answers: the run that continues here may have other peers there.
    pub fn look_for(&self, ticket: Ticket, identity: Arc<Identity>) {
        if ticket.addrs.is_empty() {
            return;
        }
        let found = self.host.found.clone();
        tokio::spawn(async move {
            loop {
                match fetch_manifest(&ticket, iter::empty(), &identity).await {
                    Ok((source, _)) => {
                        // If nobody receives it, the peer has ended.
                        let _ = found.send(Ok(source));
                        return;
                    }
                    Err(DialError::Refused(Refusal::Ourselves)) => return,
                    Err(error) if error.barred().is_some() => {
                        let _ = found.send(Err(error));
                        return;
                    }
                    Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
                }
            }
        });
    }

    /// Looks for other peers at the run's meeting place, again and again, and announces this peer there with its
    /// ticket.
    pub fn meet_at(&mut self, place: Place, ours: Ticket, identity: Arc<Identity>) {
        let (found, meeting, ticket) = (self.host.found.clone(), place.clone(), ours.clone());
        tokio::spawn(async move {
            let mut pause = FIRST_LOOK;
            let others_run = AtomicBool::new(false);
            let mut unresolved = Unresolved::default();
            loop {
                let (mut others, fails) = meeting.addresses().await;
                if unresolved.is_due(!fails.is_empty(), Instant::now()) {
                    // If nobody hears it, the peer is gone.
                    let _ = found.send(Err(DialError::NoAddress(fails.join(", "))));
                }
                others.retain(|address| !ticket.addrs.contains(address));
                // A few of many are enough, different ones each time: they know each other.
                let first = getrandom::u64().unwrap_or_default() as usize % others.len().max(1);
                others.rotate_left(first);
                others.truncate(Contact::LIMIT);
                let tell = |answer: Result<Source, DialError>| {
                    let matters = match &answer {
                        Ok(_) => true,
                        // Reporting it once is enough.
                        Err(DialError::Refused(Refusal::AnotherRun)) => {
                            !others_run.swap(true, Ordering::Relaxed)
                        }
                        Err(error) => error.barred().is_some(),
                    };
                    if matters {
                        // If nobody receives it, the peer has ended, and this task soon will.
                        let _ = found.send(answer);
                    }
                };
                // A peer that is gone must not delay the others.
                let next = tokio::time::Instant::now() + pause;
                let _ = timeout_at(next, who_is_there(&ticket, others, &identity, tell)).await;
                sleep_until(next).await;
                pause = (2 * pause).min(LAST_LOOK);
            }
        });
        self.host.meeting = Some(Meeting { place, ours });
    }
}

impl NativeHost<'_> {
    /// Does what is due from time to time, and perhaps ends.
    pub(super) fn on_look(&mut self, driver: &mut Driver<QuicLink>) -> ControlFlow<Exit> {
        if self.comes_too_late(driver.peer()) {
            return ControlFlow::Break(Exit::Left);
        }
        if let Some(told) = self.working.told(Instant::now()) {
            (self.sink)(told);
        }
        let (contact, outside) = (driver.link().contact(), driver.link().outside());
        self.follow_addresses(contact, outside);
        let bytes_per_s = driver.link().carried();
        self.feed(Input::Line { bytes_per_s }, driver);
        self.checkpoint_writer.look();
        self.tell_of_lost_data(driver);
        self.pass_on_revocations(driver);
        self.save_on_request(driver.peer());
        self.keep_fresh(driver.peer());
        let at = driver.link().local_addr();
        self.tell_nearby(driver.peer(), at);
        self.write_sample(driver.peer());
        if let (Some(tally), Some(folder)) = (self.given.due(), self.local.tally.clone()) {
            // If this fails, this number is lost.
            tokio::task::spawn_blocking(move || tally.keep(&folder));
        }
        self.look_at_the_clock(driver);
        self.stand_aside(driver)
    }

    /// Tells once that newcomers cannot get the data here.
    fn tell_of_lost_data(&mut self, driver: &mut Driver<QuicLink>) {
        if let Some(why) = driver.link().lost_data().filter(|_| !self.told_of_data) {
            self.told_of_data = true;
            self.warn(format!(
                "this peer can no longer hand out the run's data ({why}). Newcomers get it from other members, if any has it: put the \
                 file back, or they name their own copy with --data"
            ));
        }
    }

    /// Whether the others have finished the run before this peer got anything of it. Nobody is left to ask.
    fn comes_too_late(&mut self, peer: &Peer) -> bool {
        let has_nothing = !peer.is_member() && peer.head().round == 0;
        let told = match &self.meeting {
            Some(Meeting {
                place: Place::File(file),
                ours,
            }) if has_nothing => file.finished(ours.root.run),
            _ => None,
        };
        self.is_too_late = told.is_some();
        told.into_iter().for_each(|told| self.warn(told));
        self.is_too_late
    }

    /// Updates this peer's entry at the meeting place from time to time, if it is a member.
    pub(super) fn keep_fresh(&mut self, peer: &Peer) {
        let due = self.told_at.is_none_or(|at| at.elapsed() >= KEEP_FRESH);
        let Some(Meeting {
            place: Place::File(file),
            ours,
        }) = self.meeting.as_ref().filter(|_| due && peer.is_member())
        else {
            return;
        };
        self.told_at = Some(Instant::now());
        let (file, former, out) = (file.clone(), ours.clone(), self.local.out.clone());
        tokio::spawn(async move {
            let ours = Right::of_folder(&out).ok().flatten();
            let ours = ours.map_or(former, |right| right.ticket);
            // Peers with an earlier ticket get in as well, so the next time is soon enough.
            if let Ok(held) = file.hold().await {
                let _ = held.keep_fresh(&ours);
            }
        });
    }
}

impl NativeHost<'_> {
    /// Updates the ticket in the folder when this peer's address changes, and reports it.
    pub(super) fn follow_addresses(&mut self, contact: Contact, outside: Outside) {
        let moved = contact != self.contact;
        if !moved && self.outside.as_ref() == Some(&outside) {
            return;
        }
        let lost = addresses(&self.contact.0).any(|at| !contact.0.contains(at));
        let here: Vec<String> = addresses(&contact.0).cloned().collect();
        let own: Vec<SocketAddr> = here.iter().filter_map(|at| at.parse().ok()).collect();
        let why = reach::words(&own, &outside);
        (self.contact, self.outside) = (contact.clone(), Some(outside));
        if lost {
            self.warn(format!(
                "this machine's addresses have changed: this peer is at {} now, and tickets from before lead to where it was",
                here.join(", ")
            ));
        }
        (self.sink)(Event::Reach { addresses: here, why });
        if !moved {
            return;
        }
        self.told_at = None;
        let out = self.local.out.clone();
        // It may have to resolve names.
        tokio::task::spawn_blocking(move || {
            if let Ok(Some(mut right)) = Right::of_folder(&out) {
                right.ticket.addrs = dialable(&contact);
                // If this fails, the ticket keeps its old addresses.
                let _ = right.keep(&out);
            }
        });
    }
}

/// Whether two peers are members of one round, as far as the first one knows.
pub(super) fn is_member_with(peer: &Peer, other: PeerId) -> bool {
    peer.is_member() && peer.head().position(other).is_some()
}
