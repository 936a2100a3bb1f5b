//! What happens in the demo of a kill and a newcomer, and when.

use super::super::canvas::Canvas;
use super::super::messages::Headline;
use super::super::terminal::Style;
use super::super::{human, progress};
use super::observed::Observed;
use super::{Next, Play, picture, summary};
use crate::events::Event;
use crate::view::{Agreement, Phase};

/// Peers at first.
const PEERS: usize = 3;
/// How much of the run is done when one is killed.
const KILL_AT: f64 = 0.3;
/// Rounds that survivors commit before a new one joins.
const ALONE_ROUNDS: u64 = 20;

/// Rounds for each of the machine's threads, and the most of all. Two threads of a busy 2.3 GHz Xeon commit 140 of
/// them per second: 20 seconds.
const ROUNDS_PER_THREAD: u64 = 1500;
const ROUNDS_MOST: u64 = 9000;

/// Rounds that suit this machine.
pub fn rounds() -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    (threads * ROUNDS_PER_THREAD).min(ROUNDS_MOST)
}

impl Play for Observed {
    fn next(&self, _now_ms: u64) -> Next {
        next(self)
    }

    /// The founder, or one that joins who is there.
    fn start(&mut self, now_ms: u64) -> Vec<String> {
        let mut living = self.logs.peers.iter().filter(|p| !p.killed);
        let mut args: Vec<String> = match living.find_map(|p| p.view.ready.as_ref()) {
            // Not the ticket itself: others on this machine can read what a process was started with.
            Some(ready) => vec!["join".into(), format!("@{}", ready.ticket_file)],
            None => {
                // All three share one processor, of which a ring takes the least.
                let run = [
                    "optimizer=adam",
                    "lr=1e-3",
                    "batch=96",
                    "min_peers=2",
                    "topology=ring",
                    "stand_aside=off",
                ];
                let rounds = format!("rounds={}", self.rounds);
                let args = [&["train", "--task", self.task], &run[..], &[&rounds]].concat();
                args.into_iter().map(str::to_owned).collect()
            }
        };
        args.push(format!("eval_every={}", (self.rounds / 12).max(1)));
        self.started(now_ms);
        args
    }

    fn killed(&mut self, peer: usize, now_ms: u64) {
        self.kill(peer, now_ms);
    }

    fn take(&mut self, peer: usize, event: &Event, now_ms: u64) {
        self.hear(peer, event, now_ms);
    }

    fn ended(&mut self, peer: usize, now_ms: u64) -> bool {
        self.end(peer, now_ms)
    }

    fn smallest(&self) -> (usize, usize) {
        picture::SMALLEST
    }

    fn draw(&self, now_ms: u64, size: (usize, usize)) -> Canvas {
        picture::draw(self, now_ms, size)
    }

    fn news(&self) -> &[(u64, Headline)] {
        &self.news
    }

    fn progress(&self, now_ms: u64, width: usize, style: Style) -> Vec<String> {
        let line = progress::line(&self.logs.run, now_ms, width.saturating_sub(11), style);
        let peers = human::plural(self.ring().len() as u64, "peer");
        line.map(|line| format!("  {peers}  {line}"))
            .into_iter()
            .collect()
    }

    fn summary(&self, style: Style) -> (String, bool) {
        summary::summary(self, style)
    }
}

/// The next thing to do, by what was [`Observed`].
fn next(observed: &Observed) -> Next {
    let logs = &observed.logs;
    let Some(founder) = logs.peers.first() else {
        return Next::Start;
    };
    let mut living = logs.peers.iter().filter(|p| !p.killed);
    if living.all(|p| p.view.phase == Phase::Done) {
        return Next::End;
    }
    let survivors_ready = || {
        let rounds = founder.view.last_round() + ALONE_ROUNDS;
        observed.recovery_ms.is_some() && logs.run.last_round() >= rounds
    };
    match logs.peers.len() {
        // Nobody can join before there is a ticket.
        ..PEERS if founder.id().is_some() => Next::Start,
        PEERS if founder.killed && survivors_ready() => Next::Start,
        // The founder is the one to go: who expects a master expects it there. Not in the instant of a commit, which is
        // no fair sample of the times at which machines fail.
        PEERS
            if !founder.killed
                && observed.ring().len() == PEERS
                && logs.run.share_done() >= KILL_AT
                && logs.agreement(0) == Agreement::Same =>
        {
            Next::Kill(0)
        }
        _ => Next::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::super::observed::tests::join;
    use super::*;
    use crate::view::testing::{done, ready_for, round_of};

    #[test]
    fn the_story_takes_its_course() {
        let mut demo = Observed::default();
        assert_eq!(next(&demo), Next::Start);
        demo.started(0);
        assert_eq!(next(&demo), Next::Wait, "there is no ticket yet");
        demo.hear(0, &ready_for(0, 9600), 100);
        for _ in 1..3 {
            assert_eq!(next(&demo), Next::Start);
            join(&mut demo, 200);
        }
        assert_eq!(next(&demo), Next::Wait);
        for (rounds, members, then) in [
            (1..=10, &[0, 1][..], Next::Wait),
            (11..=29, &[0, 1, 2], Next::Wait),
            (30..=30, &[0, 1, 2], Next::Kill(0)),
            (31..=49, &[1, 2], Next::Wait),
            (50..=50, &[1, 2], Next::Start),
            (51..=100, &[1, 2, 3], Next::Wait),
        ] {
            for n in rounds {
                members
                    .iter()
                    .for_each(|p| demo.hear(*p, &round_of(n, members, ""), 100 * n));
            }
            assert_eq!(next(&demo), then);
            match then {
                Next::Kill(peer) => demo.kill(peer, 3010),
                Next::Start => join(&mut demo, 5010),
                _ => {}
            }
        }
        for peer in [1, 2, 3] {
            assert_eq!(next(&demo), Next::Wait);
            demo.hear(peer, &done(100), 10_100);
        }
        assert_eq!((next(&demo), demo.logs.rounds_lost()), (Next::End, 0));
    }
}
