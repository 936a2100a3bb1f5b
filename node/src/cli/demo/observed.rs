//! The demo's knowledge: the events of its peers, and what it did to them itself.
//!
//! Pure: events and times go in. Times are milliseconds since the demo's start.

use super::super::human;
use super::super::messages::{Headline, headline};
use super::super::terminal::Color;
use crate::events::{Event, Round, Share};
use crate::view::{Logs, PeerLog, Phase};

/// All that is known.
#[derive(Debug, Default)]
pub struct Observed {
    /// What the run trains.
    pub task: &'static str,
    /// How many rounds it is to have.
    pub rounds: u64,
    /// What the peers wrote, in the order of their start.
    pub logs: Logs,
    /// What has happened and when, the latest last.
    pub news: Vec<(u64, Headline)>,
    /// When the first round was committed, and the last.
    pub span_ms: Option<(u64, u64)>,
    /// From the kill to the first commit of the others alone.
    pub recovery_ms: Option<u64>,
    kill_ms: Option<u64>,
    /// A peer whose process ended before the run did, and not on purpose.
    pub broken: Option<usize>,
}

/// A peer's name: a letter.
pub fn letter(peer: usize) -> char {
    char::from(b'A' + (peer % 26) as u8)
}

impl Observed {
    /// A run of this task with `rounds` rounds, before it begins.
    pub fn new(task: &'static str, rounds: u64) -> Self {
        Self {
            task,
            rounds,
            ..Self::default()
        }
    }

    /// A peer's process has been started.
    pub fn started(&mut self, now_ms: u64) {
        let name = letter(self.logs.peers.len());
        self.logs.peers.push(PeerLog::default());
        self.tell(now_ms, " ", Color::Dim, format!("{name} starts"));
    }

    /// A peer was killed on purpose.
    pub fn kill(&mut self, peer: usize, now_ms: u64) {
        self.logs.peers[peer].killed = true;
        self.kill_ms = Some(now_ms);
        let text = format!("{} is killed without warning (SIGKILL)", letter(peer));
        self.tell(now_ms, "✗", Color::Red, text);
    }

    /// A peer's process has ended; take its events first. Returns whether that is a fault.
    pub fn end(&mut self, peer: usize, now_ms: u64) -> bool {
        let log = &self.logs.peers[peer];
        if log.killed || log.view.phase == Phase::Done {
            return false;
        }
        self.broken = Some(peer);
        let text = format!("{} has ended without a word", letter(peer));
        self.tell(now_ms, "✗", Color::Red, text);
        true
    }

    /// A peer's event.
    pub fn hear(&mut self, peer: usize, event: &Event, now_ms: u64) {
        let news = self.logs.take(peer, event, now_ms);
        if let Event::Round(round) = event {
            self.recover(round, now_ms);
        }
        if !news {
            return;
        }
        let name = |id: &str| match self.logs.peers.iter().position(|p| p.id() == Some(id)) {
            Some(peer) => letter(peer).to_string(),
            None => human::id(id).to_owned(),
        };
        if let Some(mut line) = headline(event, name) {
            if matches!(event, Event::Warning { .. }) {
                line.text = format!("{}: {}", letter(peer), line.text);
            }
            self.news.push((now_ms, line));
        }
        match event {
            Event::Ready(ready) => {
                let text = format!("{} is ready: {}", letter(peer), human::id(&ready.peer));
                self.tell(now_ms, " ", Color::Plain, text);
            }
            Event::Round(_) => {
                let first_ms = self.span_ms.map_or(now_ms, |(first, _)| first);
                self.span_ms = Some((first_ms, now_ms));
            }
            _ => {}
        }
    }

    /// Notes when a round was first committed by the others alone, without those that were killed.
    fn recover(&mut self, round: &Round, now_ms: u64) {
        let killed = |share: &Share| {
            let mut killed = self.logs.peers.iter().filter(|p| p.killed);
            killed.any(|p| p.id() == Some(&share.peer))
        };
        if let (Some(kill_ms), None) = (self.kill_ms, self.recovery_ms)
            && !round.members.iter().any(killed)
        {
            self.recovery_ms = Some(now_ms - kill_ms);
        }
    }

    fn tell(&mut self, now_ms: u64, sign: &'static str, color: Color, text: String) {
        self.news.push((now_ms, Headline { sign, color, text }));
    }

    /// The members of the last round in ring order, each with its share of the round's samples.
    pub fn ring(&self) -> Vec<(usize, f64)> {
        let Some(round) = &self.logs.run.round else {
            return Vec::new();
        };
        let find = |member: &Share| {
            let peers = &self.logs.peers;
            let peer = peers.iter().position(|p| p.id() == Some(&member.peer))?;
            let share = member.weight as f64 / round.samples.max(1) as f64;
            (!peers[peer].killed).then_some((peer, share))
        };
        round.members.iter().filter_map(find).collect()
    }

    /// The present activity of a peer, and its colour.
    pub fn doing(&self, peer: usize) -> (String, Color) {
        let log = &self.logs.peers[peer];
        let (text, color) = match log.view.phase {
            _ if log.killed => ("killed", Color::Red),
            _ if self.broken == Some(peer) => ("ended", Color::Red),
            Phase::Starting if log.id().is_some() => ("waiting", Color::Dim),
            Phase::Starting => ("starting", Color::Dim),
            Phase::Packing { done: bytes, total }
            | Phase::Fetching { bytes, total }
            | Phase::Syncing { bytes, total, .. } => {
                let share = human::percent(bytes as f64 / total.max(1) as f64, 0);
                return (format!("catching up {share}"), Color::Yellow);
            }
            Phase::Waiting => ("waiting", Color::Yellow),
            Phase::Training => ("member", Color::Green),
            Phase::Done => ("done", Color::Green),
        };
        (text.into(), color)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::events::Change;
    use crate::view::testing::{self, commit, member, ready_for, round_of, sync};

    /// Three peers up to round `last` of a hundred.
    pub(in super::super) fn three(last: u64) -> Observed {
        let logs = testing::three(last);
        Observed {
            logs,
            ..Observed::default()
        }
    }

    /// One more, that is up.
    pub(in super::super) fn join(observed: &mut Observed, now_ms: u64) {
        let n = observed.logs.peers.len();
        observed.started(now_ms);
        observed.hear(n, &ready_for(n as u8, 9600), now_ms);
    }

    #[test]
    fn a_kill_and_a_newcomer_are_told() {
        let mut demo = three(40);
        assert_eq!(demo.ring(), [(0, 1.0 / 3.0), (1, 1.0 / 3.0), (2, 1.0 / 3.0)]);
        demo.kill(2, 4000);
        demo.hear(2, &round_of(41, &[0, 1, 2], ""), 4010); // was on its way
        demo.hear(0, &round_of(41, &[0, 1, 2], ""), 4020);
        assert!(!demo.end(2, 4030));
        assert_eq!(
            (demo.ring().len(), demo.broken, demo.recovery_ms),
            (2, None, None)
        );
        (0..2).for_each(|p| demo.hear(p, &member(2, Change::Failed, 41, "its link closed"), 4100));
        demo.hear(0, &round_of(42, &[0, 1], ""), 4200);
        demo.hear(0, &round_of(43, &[0, 1], ""), 4300);
        assert_eq!((demo.recovery_ms, demo.span_ms), (Some(200), Some((4010, 4300))));
        join(&mut demo, 4400);
        demo.hear(3, &sync(1, 2, 60), 4500);
        (0..2).for_each(|p| demo.hear(p, &member(3, Change::Joined, 60, ""), 4600));
        let message = "m".into();
        demo.hear(1, &Event::Warning { message }, 4700);
        let doing = [0, 2, 3].map(|p| demo.doing(p).0);
        assert_eq!(doing, ["member", "killed", "catching up 50 %"]);
        let told: Vec<&str> = demo.news.iter().map(|(_, line)| line.text.as_str()).collect();
        assert_eq!(
            told,
            [
                "C is killed without warning (SIGKILL)",
                "C failed after round 41: its link closed",
                "D starts",
                "D is ready: 03030303",
                "D joined after round 60",
                "B: m",
            ]
        );
    }

    #[test]
    fn what_is_redone_ends_the_recovery_and_an_unexpected_end_is_noticed() {
        let mut demo = three(10);
        demo.hear(0, &round_of(11, &[0, 1, 2], "alone"), 1100);
        demo.kill(0, 1100);
        demo.hear(1, &round_of(11, &[1, 2], ""), 1250);
        assert_eq!(demo.recovery_ms, Some(150));
        assert!(demo.end(1, 1300));
        assert_eq!((demo.broken, demo.doing(1).0.as_str()), (Some(1), "ended"));
        commit(&mut demo.logs, 12..=12, &[1, 2]);
        assert!(!demo.end(0, 1400));
        assert_eq!(demo.broken, Some(1), "it was killed");
    }
}
