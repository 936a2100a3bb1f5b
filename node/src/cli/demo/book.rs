//! What the demo knows: the events of all its peers, put together and compared.
//!
//! Pure: events and times go in. Whatever the demo claims in the end is computed here, from what the peers wrote.

use super::super::human;
use super::super::terminal::Color;
use crate::events::{Change, Done, Event, Ready, Share};
use std::collections::{BTreeMap, VecDeque};

/// All that is known.
#[derive(Debug, Default)]
pub struct Book {
    /// The peers in the order of their start.
    pub peers: Vec<Peer>,
    /// What has happened, the latest last.
    pub news: Vec<News>,
    /// The last evaluation: round and accuracy.
    pub eval: Option<(u64, Option<f32>)>,
    /// Loss of each committed round, in order.
    pub losses: Vec<(u64, f32)>,
    /// Rounds worth a mark: a sign and its colour.
    pub marks: Vec<(u64, char, Color)>,
    rounds: BTreeMap<u64, Committed>,
    commits: VecDeque<(f64, u64, u64)>,
    first_commit: Option<f64>,
    last_commit: f64,
    kill: Option<f64>,
    recovery: Option<f64>,
    target: u64,
    counted: u64,
}

/// A line of news.
#[derive(Clone, Debug)]
pub struct News {
    /// Seconds since the demo's start.
    pub at: f64,
    /// How to colour it.
    pub color: Color,
    /// What.
    pub text: String,
}

/// One peer process.
#[derive(Debug)]
pub struct Peer {
    /// A letter.
    pub name: char,
    /// What it is doing.
    pub phase: Phase,
    /// From its `ready` event.
    pub ready: Option<Ready>,
    /// Stretches of rounds that it committed: first and last. A new one begins whenever it had to catch up.
    pub spans: Vec<(u64, u64)>,
    /// Its last committed state: round and digest.
    pub last: Option<(u64, String)>,
    /// From its `done` event.
    pub done: Option<Done>,
    gap: bool,
}

/// What a peer is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Its process starts.
    Starting,
    /// It is up and waits for others.
    Waiting,
    /// It catches up: this share of what it needs.
    Syncing(f64),
    /// It takes part.
    Member,
    /// It was killed on purpose.
    Killed,
    /// It has ended as it should.
    Done,
    /// It has ended as it should not.
    Broken,
}

/// A round as the peers reported it.
#[derive(Debug, Default)]
struct Committed {
    /// One, if all is well.
    versions: Vec<Version>,
    /// A member went on to a later round without having reported this one, or reported it twice.
    bad: bool,
}

/// What some peers reported of a round.
#[derive(Debug)]
struct Version {
    digest: String,
    peers: Vec<usize>,
    samples: u64,
    members: Vec<Share>,
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

/// Rates are taken over so many seconds.
const WINDOW_SECONDS: f64 = 2.0;

impl Book {
    /// A peer's process has been started.
    pub fn start(&mut self, at: f64) -> usize {
        let name = char::from(b'A' + (self.peers.len() % 26) as u8);
        self.peers.push(Peer {
            name,
            phase: Phase::Starting,
            ready: None,
            spans: Vec::new(),
            last: None,
            done: None,
            gap: false,
        });
        self.tell(at, Color::Dim, format!("{name} starts"));
        self.peers.len() - 1
    }

    /// A peer was killed on purpose.
    pub fn kill(&mut self, peer: usize, at: f64) {
        self.peers[peer].phase = Phase::Killed;
        self.kill = Some(at);
        self.marks.push((self.round(), '✗', Color::Red));
        self.tell(
            at,
            Color::Red,
            format!("{} is killed without warning (SIGKILL)", self.peers[peer].name),
        );
    }

    /// A peer's process has ended. What it wrote before is to be taken first.
    pub fn gone(&mut self, peer: usize, at: f64) {
        let name = self.peers[peer].name;
        if !matches!(self.peers[peer].phase, Phase::Killed | Phase::Done) {
            self.peers[peer].phase = Phase::Broken;
            self.tell(at, Color::Red, format!("{name} has ended without a word"));
        }
    }

    /// A peer's event.
    pub fn take(&mut self, peer: usize, event: Event, at: f64) {
        match event {
            Event::Ready(ready) => {
                self.target = ready.target;
                let text = format!("{} is ready: {}", self.peers[peer].name, human::id(&ready.peer));
                self.peers[peer].ready = Some(ready);
                self.advance(peer, Phase::Waiting);
                self.tell(at, Color::Plain, text);
            }
            // The demo's data is drawn by each peer itself.
            Event::Fetch { .. } => {}
            Event::Sync { bytes, total, .. } => {
                self.peers[peer].gap = true;
                self.advance(peer, Phase::Syncing(bytes as f64 / total.max(1) as f64));
            }
            Event::Round(round) => self.round_of(peer, round, at),
            Event::Member {
                peer: who,
                change,
                round,
                reason,
            } => self.member(peer, &who, change, round, &reason, at),
            Event::Eval { round, accuracy, .. } => {
                if self.eval.is_none_or(|(last, _)| last < round) {
                    self.eval = Some((round, accuracy));
                    if let Some(accuracy) = accuracy {
                        let accuracy = human::percent(f64::from(accuracy), 1);
                        self.tell(
                            at,
                            Color::Magenta,
                            format!("accuracy {accuracy} at round {}", human::grouped(round)),
                        );
                    }
                }
            }
            Event::Warning { message } => {
                let text = format!("{}: {message}", self.peers[peer].name);
                self.tell(at, Color::Yellow, text);
            }
            Event::Done(done) => {
                if self.eval.is_none_or(|(last, _)| last <= done.round) && done.accuracy.is_some() {
                    self.eval = Some((done.round, done.accuracy));
                }
                self.advance(peer, Phase::Done);
                self.peers[peer].done = Some(done);
            }
        }
    }

    fn round_of(&mut self, peer: usize, round: crate::events::Round, at: f64) {
        let number = round.round;
        let seen = &mut self.peers[peer];
        seen.last = Some((number, round.digest.clone()));
        match seen.spans.last_mut() {
            // A round that does not follow the last one is a round lost, unless the peer had to catch up.
            Some(span) if !seen.gap => {
                let missing = span.1 + 1..number;
                let again = number <= span.1;
                span.1 = span.1.max(number);
                for lost in missing {
                    self.rounds.entry(lost).or_default().bad = true;
                }
                if again && let Some(entry) = self.rounds.get_mut(&number) {
                    entry.bad = true;
                }
            }
            _ => seen.spans.push((number, number)),
        }
        self.peers[peer].gap = false;
        self.advance(peer, Phase::Member);

        let entry = self.rounds.entry(number).or_default();
        if let Some(version) = entry.versions.iter_mut().find(|v| v.digest == round.digest) {
            version.peers.push(peer);
            return;
        }
        entry.versions.push(Version {
            digest: round.digest,
            peers: vec![peer],
            samples: round.samples,
            members: round.members,
        });
        if entry.versions.len() > 1 {
            self.recover(number, at);
            return;
        }
        self.losses.push((number, round.loss));
        self.counted = self.counted.max(round.counted);
        self.first_commit.get_or_insert(at);
        self.last_commit = at;
        self.recover(number, at);
        self.commits.push_back((at, number, round.counted));
        while self.commits.len() > 2 && at - self.commits[0].0 > WINDOW_SECONDS {
            self.commits.pop_front();
        }
    }

    /// Notes when a round was first committed by the others alone, without those that were killed.
    fn recover(&mut self, round: u64, at: f64) {
        let killed = self.peers.iter().filter(|p| p.phase == Phase::Killed);
        let killed: Vec<&String> = killed.filter_map(Peer::id).collect();
        let without = |v: &Version| v.members.iter().all(|m| !killed.contains(&&m.peer));
        let versions = self.rounds.get(&round).map_or(&[][..], |r| &r.versions);
        if let (Some(kill), None) = (self.kill, self.recovery)
            && versions.iter().any(without)
        {
            self.recovery = Some(at - kill);
        }
    }

    fn member(&mut self, by: usize, who: &str, change: Change, round: u64, reason: &str, at: f64) {
        // All members report the same change: the first to do so is enough, but a peer's own word on itself is more.
        let name = self
            .peers
            .iter()
            .find(|p| p.id().is_some_and(|id| id == who))
            .map(|p| p.name);
        let shown = name.map_or_else(|| human::id(who).to_owned(), String::from);
        let (sign, color, verb) = match change {
            Change::Joined => ('+', Color::Green, "has joined"),
            Change::Left => ('-', Color::Dim, "has left"),
            Change::Failed => ('✗', Color::Red, "is missed by the others"),
            Change::Evicted => ('✗', Color::Red, "was put out"),
        };
        if change == Change::Evicted && self.peers[by].id().is_some_and(|id| id == who) {
            self.peers[by].gap = true;
        }
        let text = format!("{shown} {verb} after round {}", human::grouped(round));
        if self
            .news
            .iter()
            .rev()
            .take(40)
            .any(|news| news.text.starts_with(&text))
        {
            return;
        }
        if change == Change::Joined && round > 0 {
            self.marks.push((round, sign, color));
        }
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        self.tell(at, color, text + &reason);
    }

    fn advance(&mut self, peer: usize, phase: Phase) {
        // What a killed peer wrote just before comes in just after.
        if self.peers[peer].phase != Phase::Killed {
            self.peers[peer].phase = phase;
        }
    }

    /// Adds a line of news.
    pub fn tell(&mut self, at: f64, color: Color, text: String) {
        self.news.push(News { at, color, text });
    }

    /// The last round that anybody committed.
    pub(in super::super) fn round(&self) -> u64 {
        self.rounds.keys().next_back().copied().unwrap_or(0)
    }

    /// How much of the run is done, 0 to 1.
    pub fn share(&self) -> f64 {
        self.counted as f64 / self.target.max(1) as f64
    }

    /// Samples counted so far.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Rounds until the end, at the last round's size; none before a round had samples.
    pub fn rounds_expected(&self) -> Option<u64> {
        let sizes = self.rounds.values().rev().flat_map(|r| &r.versions);
        let size = sizes.map(|v| v.samples).find(|n| *n > 0)?;
        Some(self.round() + self.target.saturating_sub(self.counted).div_ceil(size))
    }

    /// The last round's number, of how many.
    pub fn round_text(&self) -> String {
        let of = self.rounds_expected().map(|n| format!("/{}", human::grouped(n)));
        format!("round {}{}", human::grouped(self.round()), of.unwrap_or_default())
    }

    /// The members of the last round in ring order, each with its share of the round's samples.
    pub fn ring(&self) -> Vec<(usize, f64)> {
        let Some(last) = self.rounds.values().next_back().and_then(|r| r.versions.last()) else {
            return Vec::new();
        };
        let find = |member: &Share| {
            let peer = self.peers.iter().position(|p| p.id() == Some(&member.peer))?;
            let share = member.weight as f64 / last.samples.max(1) as f64;
            (self.peers[peer].phase != Phase::Killed).then_some((peer, share))
        };
        last.members.iter().filter_map(find).collect()
    }

    /// Rounds and samples per second of late.
    pub fn rates(&self) -> Option<(f64, f64)> {
        let (first, last) = (self.commits.front()?, self.commits.back()?);
        let seconds = last.0 - first.0;
        let per_second = |n: u64| n as f64 / seconds;
        (seconds > 0.0).then(|| {
            (
                per_second(last.1.saturating_sub(first.1)),
                per_second(last.2.saturating_sub(first.2)),
            )
        })
    }

    /// Rounds per second from the first commit to the last.
    pub fn overall_rate(&self) -> Option<f64> {
        let seconds = self.last_commit - self.first_commit?;
        (seconds > 0.0).then(|| (self.round().saturating_sub(1)) as f64 / seconds)
    }

    /// Seconds from the first commit to the last.
    pub fn seconds(&self) -> f64 {
        self.first_commit.map_or(0.0, |first| self.last_commit - first)
    }

    /// Seconds from the kill to the survivors' next commit.
    pub fn recovery(&self) -> Option<f64> {
        self.recovery
    }

    /// Rounds that are missing in a member's log, in all logs, or not the same in two. What a peer committed in the
    /// instant of its death, before the others had all of it, is not among them: it is [`Book::redone`].
    pub fn rounds_lost(&self) -> u64 {
        let unheard = self.round() - self.rounds.len() as u64;
        let lost = |(round, r): &(&u64, &Committed)| r.bad || self.standing(**round).count() != 1;
        unheard + self.rounds.iter().filter(lost).count() as u64
    }

    /// The round that only a killed peer had committed and that the others did again, if there is one.
    pub fn redone(&self) -> Option<(char, u64)> {
        let alone = (0..self.peers.len()).find(|peer| self.agreement(*peer) == Agreement::Alone)?;
        let (round, _) = self.peers[alone].last.as_ref()?;
        Some((self.peers[alone].name, *round))
    }

    /// The versions of a round, apart from what died with its only holder.
    fn standing(&self, round: u64) -> impl Iterator<Item = &Version> {
        let versions = self.rounds.get(&round).map_or(&[][..], |r| &r.versions);
        let died = move |v: &&Version| {
            let last = |p: &Peer| p.last.as_ref().is_some_and(|(last, _)| *last == round);
            let holders = v.peers.iter().map(|p| &self.peers[*p]);
            versions.len() > 1 && holders.clone().all(|p| p.phase == Phase::Killed && last(p))
        };
        versions.iter().filter(move |v| !died(v))
    }

    /// Whether the rounds' samples add up to what the run says it has counted, and to what it was to count.
    pub fn samples_add_up(&self) -> bool {
        let standing = self.rounds.keys().flat_map(|round| self.standing(*round));
        let sum: u64 = standing.map(|v| v.samples).sum();
        sum == self.counted && sum == self.target
    }

    /// Whether a peer's last state is also that of another peer after the same round.
    pub fn agreement(&self, peer: usize) -> Agreement {
        let Some((round, digest)) = &self.peers[peer].last else {
            return Agreement::Pending;
        };
        let versions = self.rounds.get(round).map_or(&[][..], |r| &r.versions);
        let own = versions.iter().find(|v| v.digest == *digest);
        match own {
            Some(own) if versions.len() == 1 && own.peers.len() == 1 => Agreement::Pending,
            Some(_) if versions.len() == 1 => Agreement::Same,
            _ if self.standing(*round).all(|v| v.digest != *digest) => Agreement::Alone,
            Some(own) if self.standing(*round).count() == 1 && own.peers.len() > 1 => Agreement::Same,
            Some(_) if self.standing(*round).count() == 1 => Agreement::Pending,
            _ => Agreement::Differs,
        }
    }
}

impl Peer {
    /// Its name in the run.
    pub(in super::super) fn id(&self) -> Option<&String> {
        self.ready.as_ref().map(|ready| &ready.peer)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::events::Round;

    pub(in super::super) fn ready(peer: usize) -> Event {
        Event::Ready(Ready {
            peer: id(peer),
            run: "ee".repeat(32),
            ticket: "TICKET".into(),
            url: None,
            share_url: None,
            task: "digits".into(),
            device: "CPU".into(),
            parameters: 101_770,
            target: 9600,
        })
    }

    pub(in super::super) fn id(peer: usize) -> String {
        format!("{:02x}", 0xa0 + peer * 0x11).repeat(32)
    }

    pub(in super::super) fn round(n: u64, members: &[usize], digest: &str) -> Event {
        Event::Round(Round {
            round: n,
            view: "0".into(),
            members: members
                .iter()
                .map(|p| Share {
                    peer: id(*p),
                    weight: 96 / members.len() as u64,
                })
                .collect(),
            loss: 2.3 / (1.0 + n as f32 / 20.0),
            digest: if digest.is_empty() {
                format!("{n:08x}").repeat(8)
            } else {
                digest.into()
            },
            samples: 96,
            counted: 96 * n,
            compute_seconds: 0.0,
            reduce_seconds: 0.0,
            seconds: 0.0,
            bytes_sent: 0,
            bytes_received: 0,
        })
    }

    /// Three peers up to round `last`, at ten rounds a second.
    pub(in super::super) fn three(last: u64) -> Book {
        let mut book = Book::default();
        for peer in 0..3 {
            book.start(0.0);
            book.take(peer, ready(peer), 0.5);
        }
        for n in 1..=last {
            for peer in 0..3 {
                book.take(peer, round(n, &[0, 1, 2], ""), n as f64 / 10.0);
            }
        }
        book
    }

    #[test]
    fn a_run_without_faults_loses_nothing() {
        let book = three(100);
        assert_eq!(book.rounds_lost(), 0);
        assert!(book.samples_add_up());
        assert_eq!(book.share(), 1.0);
        assert_eq!(
            book.ring().iter().map(|(peer, _)| *peer).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!((0..3).all(|peer| book.agreement(peer) == Agreement::Same));
        let (rounds, samples) = book.rates().unwrap();
        assert!(
            (rounds - 10.0).abs() < 0.01 && (samples - 960.0).abs() < 1.0,
            "{rounds} {samples}"
        );
        assert_eq!(book.losses.len(), 100);
        assert_eq!(book.rounds_expected(), Some(100));
        assert_eq!(three(50).round_text(), "round 50/100");
        assert_eq!(three(0).round_text(), "round 0");
    }

    #[test]
    fn a_kill_and_a_newcomer_lose_nothing() {
        let mut book = three(40);
        book.kill(2, 4.0);
        book.take(2, round(41, &[0, 1, 2], ""), 4.01); // was on its way
        book.take(0, round(41, &[0, 1, 2], ""), 4.02);
        book.take(1, round(41, &[0, 1, 2], ""), 4.02);
        assert_eq!(book.peers[2].phase, Phase::Killed);
        book.gone(2, 4.03);
        assert_eq!(book.recovery(), None);
        let failed = Event::Member {
            peer: id(2),
            change: Change::Failed,
            round: 41,
            reason: "its link closed".into(),
        };
        book.take(0, failed.clone(), 4.1);
        book.take(1, failed, 4.1);
        assert_eq!(book.news.iter().filter(|n| n.text.contains("missed")).count(), 1);
        let newcomer = book.start(4.2);
        book.take(newcomer, ready(3), 4.3);
        for n in 42..=60 {
            book.take(0, round(n, &[0, 1], ""), n as f64 / 10.0);
            book.take(1, round(n, &[0, 1], ""), n as f64 / 10.0);
        }
        assert!((book.recovery().unwrap() - 0.2).abs() < 1e-9);
        book.take(
            newcomer,
            Event::Sync {
                bytes: 1,
                total: 2,
                round: 60,
            },
            6.0,
        );
        assert_eq!(book.peers[newcomer].phase, Phase::Syncing(0.5));
        for n in 61..=100 {
            for peer in [0, 1, 3] {
                book.take(peer, round(n, &[0, 1, 3], ""), n as f64 / 10.0);
            }
        }
        assert_eq!(book.rounds_lost(), 0);
        assert_eq!(book.ring(), [(0, 1.0 / 3.0), (1, 1.0 / 3.0), (3, 1.0 / 3.0)]);
        assert_eq!(book.peers[3].spans, [(61, 100)]);
        assert_eq!(book.peers[2].spans, [(1, 41)]);
        assert_eq!(book.agreement(2), Agreement::Same);
        assert_eq!(book.redone(), None);
    }

    #[test]
    fn rounds_that_differ_or_are_missing_are_lost() {
        let mut differs = three(10);
        differs.take(0, round(11, &[0, 1, 2], ""), 2.0);
        differs.take(1, round(11, &[0, 1, 2], "other"), 2.0);
        assert_eq!(differs.rounds_lost(), 1);
        assert_eq!(differs.agreement(1), Agreement::Differs);
        assert_eq!(differs.redone(), None);

        let mut skipped_by_one = three(10);
        for n in [11, 13] {
            skipped_by_one.take(0, round(n, &[0, 1, 2], ""), 2.0);
        }
        for n in [11, 12, 13] {
            skipped_by_one.take(1, round(n, &[0, 1, 2], ""), 2.0);
        }
        assert_eq!(skipped_by_one.rounds_lost(), 1);

        let mut skipped_by_all = three(10);
        for peer in 0..3 {
            skipped_by_all.take(peer, round(14, &[0, 1, 2], ""), 2.0);
        }
        assert_eq!(skipped_by_all.rounds_lost(), 3);

        let mut twice = three(10);
        twice.take(0, round(10, &[0, 1, 2], ""), 2.0);
        assert_eq!(twice.rounds_lost(), 1);

        let mut never_seen = Book::default();
        never_seen.start(0.0);
        never_seen.take(0, round(3, &[0], ""), 0.0);
        assert_eq!(never_seen.rounds_lost(), 2);
        assert!(!never_seen.samples_add_up());
    }

    #[test]
    fn what_died_with_its_only_holder_is_redone_and_not_lost() {
        let mut book = three(10);
        book.take(0, round(11, &[0, 1, 2], "alone"), 1.1);
        assert_eq!(book.agreement(0), Agreement::Pending);
        book.kill(0, 1.1);
        assert_eq!(book.rounds_lost(), 0);
        for n in 11..=20 {
            for peer in [1, 2] {
                book.take(peer, round(n, &[1, 2], ""), 1.0 + n as f64 / 10.0);
            }
        }
        assert_eq!((book.rounds_lost(), book.redone()), (0, Some(('A', 11))));
        assert_eq!(book.agreement(0), Agreement::Alone);
        assert_eq!(book.agreement(1), Agreement::Same);
        assert!((book.recovery().unwrap() - 1.0).abs() < 1e-9);

        let mut not_the_last = three(10);
        not_the_last.take(0, round(11, &[0, 1, 2], "alone"), 1.1);
        not_the_last.take(0, round(12, &[0, 1, 2], "alone"), 1.1);
        not_the_last.kill(0, 1.1);
        for n in 11..=13 {
            not_the_last.take(1, round(n, &[1, 2], ""), 1.2);
        }
        assert_eq!(not_the_last.rounds_lost(), 1, "round 11 was not its last");

        let mut alive = three(10);
        alive.take(0, round(11, &[0, 1, 2], "alone"), 1.1);
        alive.take(1, round(11, &[1, 2], ""), 1.2);
        assert_eq!((alive.rounds_lost(), alive.redone()), (1, None), "it lives");
    }

    #[test]
    fn who_had_to_catch_up_again_has_lost_nothing() {
        let mut book = three(10);
        book.take(0, round(11, &[0, 1], ""), 2.0);
        book.take(1, round(11, &[0, 1], ""), 2.0);
        book.take(
            2,
            Event::Sync {
                bytes: 1,
                total: 1,
                round: 11,
            },
            2.0,
        );
        for peer in 0..3 {
            book.take(peer, round(12, &[0, 1, 2], ""), 2.1);
        }
        assert_eq!(book.rounds_lost(), 0);
        assert_eq!(book.peers[2].spans, [(1, 10), (12, 12)]);
    }

    #[test]
    fn an_unexpected_end_is_noticed() {
        let mut book = three(3);
        book.gone(1, 1.0);
        assert_eq!(book.peers[1].phase, Phase::Broken);
        assert!(book.news.last().unwrap().text.contains("B has ended"));
    }
}
