//! A run as several of its peers tell it: their logs put together and compared.
//!
//! Pure, as [`RunView`] is. Whether a run has lost anything is computed here, from nothing but what its peers wrote.

use super::run::{MemberChange, RunView};
use crate::events::{Change, Event, Ready, Round};
use std::collections::{BTreeMap, BTreeSet};

/// The logs of a run's peers.
#[derive(Debug, Default)]
pub struct Logs {
    /// The run, each event as the first peer told it. It is the view of no peer in particular.
    pub run: RunView,
    /// The peers in the order of their start.
    pub peers: Vec<PeerLog>,
    /// The reports of each round: one version, if all is well.
    rounds: BTreeMap<u64, Vec<Version>>,
    /// Rounds that a peer has left out, or reported twice.
    broken: BTreeSet<u64>,
}

/// One peer's log.
#[derive(Debug, Default)]
pub struct PeerLog {
    /// The run as this peer tells it.
    pub view: RunView,
    /// Stretches of rounds that it committed: first and last. A new one begins whenever it had to catch up.
    pub spans: Vec<(u64, u64)>,
    /// Whether it was killed: its last round may have died with it.
    pub killed: bool,
    catching_up: bool,
}

/// What some peers reported of a round.
#[derive(Debug)]
struct Version {
    digest: String,
    samples: u64,
    peers: Vec<usize>,
}

/// Whether a peer's last state is that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// No other peer has reported that round yet.
    Pending,
    /// Another peer had the same bits.
    Same,
    /// It was killed before the others had all of the round. They did it again, without the peer.
    Alone,
    /// Another peer had other bits.
    Differs,
}

impl Logs {
    /// The logs of `peers` peers, before anything has happened.
    pub fn of(peers: usize) -> Self {
        let mut logs = Self::default();
        logs.peers.resize_with(peers, PeerLog::default);
        logs
    }

    /// Takes a peer's event. Says whether no other peer had told it yet: all members tell of the same rounds, changes and
    /// evaluations.
    pub fn take(&mut self, peer: usize, event: &Event, now_ms: u64) -> bool {
        let log = &mut self.peers[peer];
        log.view.take(event, now_ms);
        match event {
            Event::Sync { .. } => log.catching_up = true,
            Event::Member { peer, change, .. } if *change == Change::Evicted && log.view.is_own(peer) => {
                log.catching_up = true;
            }
            Event::Round(round) => self.commit(peer, round),
            _ => {}
        }
        let news = self.is_news(event);
        match event {
            _ if !news => {}
            Event::Ready(ready) => {
                let peer = String::new();
                let nobody = Event::Ready(Ready {
                    peer,
                    ..ready.clone()
                });
                self.run.take(&nobody, now_ms);
            }
            event => self.run.take(event, now_ms),
        }
        news
    }

    fn is_news(&self, event: &Event) -> bool {
        let run = &self.run;
        match event {
            Event::Pack { .. }
            | Event::Fetch { .. }
            | Event::Computing { .. }
            | Event::Sync { .. }
            | Event::Reach { .. }
            | Event::Nearby { .. }
            | Event::Link { .. } => false,
            Event::Ready(_)
            | Event::Data { .. }
            | Event::Model { .. }
            | Event::Waiting { .. }
            | Event::Warning { .. }
            | Event::Done(_) => true,
            Event::Named { peer, name } => run.name_of(peer) != Some(name),
            Event::Sample { round, .. } => run.sample.as_ref().is_none_or(|last| last.round < *round),
            Event::Round(round) => round.round > run.last_round(),
            Event::Pace(pace) => run.pace.as_ref().is_none_or(|last| last.round < pace.round),
            Event::Shift { round, .. } | Event::Cut { round, .. } => run.shifted < *round,
            Event::Eval { round, .. } => run.evaluations.back().is_none_or(|last| last.round < *round),
            Event::Member {
                peer, change, round, ..
            } => {
                let same = |c: &MemberChange| (&c.peer, &c.change, &c.round) == (peer, change, round);
                !run.changes.iter().any(same)
            }
        }
    }

    fn commit(&mut self, peer: usize, round: &Round) {
        let number = round.round;
        let log = &mut self.peers[peer];
        match log.spans.last_mut() {
            // A round that does not follow the last one is a round lost, unless the peer had to catch up.
            Some((_, last)) if !log.catching_up => {
                self.broken.extend((number <= *last).then_some(number));
                self.broken.extend(*last + 1..number);
                *last = number.max(*last);
            }
            _ => log.spans.push((number, number)),
        }
        log.catching_up = false;
        let versions = self.rounds.entry(number).or_default();
        match versions.iter_mut().find(|v| v.digest == round.digest) {
            Some(version) => version.peers.push(peer),
            None => versions.push(Version {
                digest: round.digest.clone(),
                samples: round.samples,
                peers: vec![peer],
            }),
        }
    }

    /// Rounds that are missing in a peer's log, in all logs, or that differ between two. A round that a peer committed in the
    /// instant of its death, before the others had all of it, does not count: it is [`Logs::redone`].
    pub fn rounds_lost(&self) -> u64 {
        let lost = |round: &u64| self.broken.contains(round) || self.standing(*round).count() != 1;
        (1..=self.run.last_round()).filter(lost).count() as u64
    }

    /// The peer that was killed when it alone had committed its last round, if there is one. The others did that again.
    pub fn redone(&self) -> Option<usize> {
        (0..self.peers.len()).find(|peer| self.agreement(*peer) == Agreement::Alone)
    }

    /// Whether the rounds' samples add up to what the run says it has counted, and to what it was to count.
    pub fn samples_add_up(&self) -> bool {
        let standing = self.rounds.keys().flat_map(|round| self.standing(*round));
        let sum: u64 = standing.map(|v| v.samples).sum();
        sum == self.run.counted() && sum == self.run.target()
    }

    /// Whether no two hold other states after the same round, as far as they have told.
    pub fn agree(&self) -> bool {
        (0..self.peers.len()).all(|peer| self.agreement(peer) != Agreement::Differs)
    }

    /// Whether a peer's last state is also that of another peer after the same round.
    pub fn agreement(&self, peer: usize) -> Agreement {
        let Some(last) = &self.peers[peer].view.round else {
            return Agreement::Pending;
        };
        let versions = || self.standing(last.round);
        match versions().find(|v| v.digest == last.digest) {
            None => Agreement::Alone,
            Some(_) if versions().count() > 1 => Agreement::Differs,
            Some(own) if own.peers.len() > 1 => Agreement::Same,
            Some(_) => Agreement::Pending,
        }
    }

    /// The versions of a round, apart from what died with its only holder.
    fn standing(&self, round: u64) -> impl Iterator<Item = &Version> {
        let versions = self.rounds.get(&round).map_or(&[][..], Vec::as_slice);
        let died = move |log: &PeerLog| log.killed && log.view.last_round() == round;
        let died = move |v: &Version| v.peers.iter().all(|p| died(&self.peers[*p]));
        versions.iter().filter(move |v| versions.len() == 1 || !died(v))
    }
}

impl PeerLog {
    /// Its name, once it has told it.
    pub fn id(&self) -> Option<&str> {
        self.view.ready.as_ref().map(|ready| ready.peer.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{commit, eval, member, round_of, sync, three};
    use super::*;

    #[test]
    fn a_run_without_faults_loses_nothing() {
        let logs = three(100);
        assert!(logs.rounds_lost() == 0 && logs.samples_add_up());
        assert!((0..3).all(|peer| logs.agreement(peer) == Agreement::Same));
        assert_eq!((logs.run.totals.rounds, logs.run.totals.samples), (100, 9600));
        assert!(!three(99).samples_add_up(), "the run is not over");
    }

    #[test]
    fn what_several_tell_is_news_once() {
        let mut logs = three(3);
        for (peer, event, news) in [
            (0, member(2, Change::Failed, 3, "its link closed"), true),
            (1, member(2, Change::Failed, 3, "no answer"), false),
            (1, member(2, Change::Joined, 3, ""), true),
            (0, eval(3, 0.5, None), true),
            (2, eval(3, 0.5, None), false),
            (2, sync(1, 2, 3), false),
            (1, round_of(4, &[0, 1], ""), true),
            (0, round_of(4, &[0, 1], ""), false),
        ] {
            assert_eq!(logs.take(peer, &event, 0), news, "{event:?}");
        }
        assert_eq!(
            (
                logs.run.changes.len(),
                logs.run.evaluations.len(),
                logs.run.last_round()
            ),
            (2, 1, 4)
        );
    }

    #[test]
    fn rounds_that_differ_or_are_missing_are_lost() {
        let skipped = [(0, 11, ""), (0, 13, ""), (1, 11, ""), (1, 12, ""), (1, 13, "")];
        for (what, reports, lost) in [
            ("they differ", &[(0, 11, ""), (1, 11, "other")][..], 1),
            ("one lacks it", &skipped, 1),
            ("all lack them", &[(0, 14, ""), (1, 14, ""), (2, 14, "")], 3),
            ("it comes twice", &[(0, 10, "")], 1),
        ] {
            let mut logs = three(10);
            for (peer, n, digest) in reports {
                logs.take(*peer, &round_of(*n, &[0, 1, 2], digest), 2000);
            }
            assert_eq!((logs.rounds_lost(), logs.redone()), (lost, None), "{what}");
            let differs = logs.agreement(1) == Agreement::Differs;
            assert_eq!(differs, what == "they differ");
        }
        let mut never_seen = Logs::default();
        never_seen.peers.push(PeerLog::default());
        never_seen.take(0, &round_of(3, &[0], ""), 0);
        assert!(never_seen.rounds_lost() == 2 && !never_seen.samples_add_up());
    }

    #[test]
    fn what_died_with_its_only_holder_is_redone_and_not_lost() {
        let alone = || {
            let mut logs = three(10);
            logs.take(0, &round_of(11, &[0, 1, 2], "alone"), 1100);
            logs
        };
        let mut logs = alone();
        assert_eq!(logs.agreement(0), Agreement::Pending);
        logs.peers[0].killed = true;
        assert_eq!(logs.rounds_lost(), 0);
        commit(&mut logs, 11..=20, &[1, 2]);
        assert_eq!((logs.rounds_lost(), logs.redone()), (0, Some(0)));
        assert_eq!(logs.agreement(1), Agreement::Same);

        let mut not_the_last = alone();
        not_the_last.take(0, &round_of(12, &[0, 1, 2], "alone"), 1100);
        not_the_last.peers[0].killed = true;
        commit(&mut not_the_last, 11..=13, &[1]);
        assert_eq!(not_the_last.rounds_lost(), 1, "round 11 was not its last");

        let mut alive = alone();
        commit(&mut alive, 11..=11, &[1, 2]);
        assert_eq!((alive.rounds_lost(), alive.redone()), (1, None), "it lives");
    }

    #[test]
    fn who_had_to_catch_up_again_has_lost_nothing() {
        for why in [sync(1, 1, 11), member(2, Change::Evicted, 10, "")] {
            let mut logs = three(10);
            commit(&mut logs, 11..=11, &[0, 1]);
            logs.take(2, &why, 2000);
            commit(&mut logs, 12..=12, &[0, 1, 2]);
            assert_eq!(logs.rounds_lost(), 0);
            assert_eq!(logs.peers[2].spans, [(1, 10), (12, 12)]);
        }
    }
}
