//! What happens in the demo, and when. Pure: what to do next follows from what was [`Observed`].

use super::observed::Observed;
use crate::view::{Agreement, Phase};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Nothing yet.
    Wait,
    /// Start a peer: the founder, or one that joins.
    Start,
    /// Kill this one.
    Kill(usize),
    /// The story is over.
    End,
}

/// Peers at first.
const PEERS: usize = 3;
/// How much of the run is done when one is killed.
const KILL_AT: f64 = 0.3;
/// Rounds that survivors commit before a new one joins.
const ALONE_ROUNDS: u64 = 20;

/// The next thing to do. To be called again until it is [`Next::Wait`].
pub fn next(observed: &Observed) -> Next {
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
        demo.start(0);
        assert_eq!(next(&demo), Next::Wait, "there is no ticket yet");
        demo.take(0, &ready_for(0, 9600), 100);
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
                    .for_each(|p| demo.take(*p, &round_of(n, members, ""), 100 * n));
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
            demo.take(peer, &done(100), 10_100);
        }
        assert_eq!((next(&demo), demo.logs.rounds_lost()), (Next::End, 0));
    }
}
