//! One newcomer that follows this peer: what it was sent, what it has applied, and how long it takes for that.

use crate::access::invitation::{Admission, Role};
use crate::access::signature::Signed;
use crate::base::id::{Contact, Round, TicketId};
use crate::base::time::Time;
use crate::ledger::Ready;
use std::time::Duration;

/// No round trip is longer than this; anything longer waits before a slow line.
const LONGEST_WAY: Duration = Duration::from_secs(2);

/// A newcomer that follows this peer.
#[derive(Debug)]
pub(super) struct Follower {
    pub admission: Admission,
    /// The guests' ticket that its place counts for.
    pub account: Option<TicketId>,
    /// Its place in the order of arrival.
    pub number: u64,
    /// When it came ...
    pub came_at: Time,
    /// ... when it last got further on its way to being ready ...
    pub progress_at: Time,
    /// ... and the blocks that it has asked for.
    pub fetched: usize,
    /// When it began, or began again, ...
    pub begun_at: Time,
    /// ... when it last asked for a block, ...
    pub asked_at: Time,
    /// ... and about the bytes that it has received since it began.
    pub bytes: u64,
    pub contact: Contact,
    /// Its "ready", once it has caught up.
    pub ready: Option<Signed<Ready>>,
    /// The round that it began from. Statements about earlier rounds do not count any more.
    pub since: Round,
    pub sent: Round,
    pub applied: Round,
    /// A round that it has not reported as applied, and since when it has been on its way. As TCP measures a round
    /// trip: one at a time.
    timed: Option<(Round, Time)>,
    /// How long the last measured one took, if any was.
    took: Option<Duration>,
    /// The least that any took, which may be due to its distance.
    least: Option<Duration>,
    /// Whether this attempt's pieces are forwarded.
    pub live: bool,
    /// Whether a round was not forwarded, so that it must begin again.
    pub gap: bool,
    /// How often it had to.
    pub restarts: u32,
}

impl Follower {
    /// A follower at round `applied` that is sent all rounds after `sent`.
    pub fn new(admission: Admission, contact: Contact, applied: Round, sent: Round) -> Self {
        Self {
            admission,
            account: None,
            number: 0,
            came_at: Time::default(),
            progress_at: Time::default(),
            fetched: 0,
            begun_at: Time::default(),
            asked_at: Time::default(),
            bytes: 0,
            contact,
            ready: None,
            since: applied,
            sent,
            applied,
            timed: None,
            took: None,
            least: None,
            live: true,
            gap: false,
            restarts: 0,
        }
    }

    /// The same peer, beginning again from here.
    pub fn again(&self, contact: Contact, (applied, sent): (Round, Round), now: Time) -> Self {
        Self {
            begun_at: now,
            asked_at: now,
            took: self.took,
            restarts: self.restarts + 1,
            account: self.account,
            number: self.number,
            came_at: self.came_at,
            progress_at: self.progress_at,
            fetched: self.fetched,
            ..Self::new(self.admission.clone(), contact, applied, sent)
        }
    }

    /// Rounds that it has not reported as applied.
    pub fn behind(&self) -> Round {
        self.sent - self.applied.min(self.sent)
    }

    /// A round is on its way to it.
    pub fn sends(&mut self, round: Round, now: Time) {
        self.sent = round;
        self.timed.get_or_insert((round, now));
    }

    /// It has applied a round.
    pub fn applies(&mut self, round: Round, now: Time) {
        if round > self.applied && self.admission.role() == Role::Watch {
            self.progress_at = now;
        }
        self.applied = self.applied.max(round);
        if let Some((_, since)) = self.timed.take_if(|(timed, _)| *timed <= self.applied) {
            let took = now - since;
            self.took = Some(took);
            self.least = Some(self.least.map_or(took, |least| least.min(took)));
        }
    }

    /// Whether it lacks nothing, or gets what is sent at most `bound` later than the path takes. Once it is a
    /// member, the others wait until it has what is on its way to it.
    pub fn is_prompt(&self, bound: Duration, now: Time) -> bool {
        let on_its_way = self.on_its_way(now);
        let way = self.least.unwrap_or_default().min(LONGEST_WAY);
        self.behind() == 0 || self.took.unwrap_or_default().max(on_its_way) <= bound + way
    }

    /// Whether a round came to it within `bound` when one was last timed.
    pub fn is_quick(&self, bound: Duration) -> bool {
        self.took.is_some_and(|took| took <= bound)
    }

    /// How long a round has been on its way to it.
    pub fn on_its_way(&self, now: Time) -> Duration {
        self.timed.map_or(Duration::ZERO, |(_, since)| now - since)
    }

    /// Decides whether the next attempt is forwarded, given the rounds that it may be behind.
    pub fn begin_attempt(&mut self, lag: Round) {
        self.live = !self.gap && self.behind() <= lag;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::PeerId;
    use crate::run::config::{Layout, Manifest};

    #[test]
    fn who_is_long_in_taking_what_it_is_sent_is_not_prompt() {
        let (bound, at) = (Duration::from_secs(1), |ms: u64| Time(ms * 1000));
        let admission = Admission::stand_in(PeerId([1; 32]), Manifest::new(Layout::flat(3)).root());
        let mut f = Follower::new(admission, Contact::default(), 5, 5);
        assert!(f.is_prompt(bound, at(0)), "it lacks nothing");
        f.sends(6, at(0));
        f.sends(7, at(500));
        assert!(f.is_prompt(bound, at(1000)));
        assert!(!f.is_prompt(bound, at(1001)), "the first is still on its way");
        f.applies(6, at(1500));
        f.sends(8, at(1500));
        assert!(f.is_prompt(bound, at(1500)), "its way may be so long");
        f.applies(8, at(1800));
        f.sends(9, at(1800));
        assert!(!f.is_prompt(bound, at(3101)), "it is not");
        f.applies(9, at(4000));
        assert!(f.is_prompt(bound, at(4000)), "it has caught up");
        f.sends(10, at(4000));
        assert!(
            !f.is_prompt(bound, at(4000)),
            "but the last that was timed took long"
        );
        f.applies(10, at(4300));
        f.sends(11, at(4300));
        assert!(f.is_prompt(bound, at(4400)));
    }
}
