//! What happens in the demo, and when. Pure: what to do next follows from what the [`Book`] knows.

use super::book::{Agreement, Book, Phase};

/// Where the story stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Story {
    /// The founder starts; others follow when it has a ticket.
    #[default]
    Gathering,
    /// Three train together.
    Together,
    /// One was killed; two go on.
    Bereaved,
    /// A new one joins and all train until the end.
    Ending,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Nothing yet.
    Wait,
    /// Start a peer that joins.
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

impl Story {
    /// The next thing to do. To be called again until it is [`Next::Wait`].
    pub fn next(&mut self, book: &Book) -> Next {
        let living = |p: &&super::book::Peer| !matches!(p.phase, Phase::Killed | Phase::Broken);
        if book.peers.iter().filter(living).all(|p| p.phase == Phase::Done) && !book.peers.is_empty() {
            return Next::End;
        }
        match self {
            Self::Gathering => {
                let ticket = book.peers.first().is_some_and(|p| p.ready.is_some());
                if ticket && book.peers.len() < PEERS {
                    return Next::Start;
                }
                if book.ring().len() == PEERS {
                    *self = Self::Together;
                }
                Next::Wait
            }
            // The founder is the one to go: who expects a master expects it there.
            // Not in the instant of a commit, which is no fair sample of the times at which machines fail.
            Self::Together if book.share() >= KILL_AT && book.agreement(0) == Agreement::Same => {
                *self = Self::Bereaved;
                Next::Kill(0)
            }
            Self::Bereaved => {
                let killed = book.peers[0].last.as_ref().map_or(0, |(round, _)| *round);
                let survived = book.recovery().is_some() && book.round() >= killed + ALONE_ROUNDS;
                if !survived {
                    return Next::Wait;
                }
                *self = Self::Ending;
                Next::Start
            }
            Self::Together | Self::Ending => Next::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::tests::{ready, round};
    use super::*;
    use crate::events::{Done, Event};

    #[test]
    fn the_story_takes_its_course() {
        let (mut story, mut book) = (Story::default(), Book::default());
        book.start(0.0);
        assert_eq!(
            story.next(&book),
            Next::Wait,
            "nobody can join before there is a ticket"
        );
        book.take(0, ready(0), 0.1);
        for peer in 1..3 {
            assert_eq!(story.next(&book), Next::Start);
            book.start(0.2);
            book.take(peer, ready(peer), 0.3);
        }
        assert_eq!(story.next(&book), Next::Wait);
        let commit = |book: &mut Book, rounds: std::ops::RangeInclusive<u64>, members: &[usize]| {
            for n in rounds {
                for peer in members {
                    book.take(*peer, round(n, members, ""), n as f64);
                }
            }
        };
        commit(&mut book, 1..=10, &[0, 1]);
        assert_eq!(story.next(&book), Next::Wait);
        commit(&mut book, 11..=29, &[0, 1, 2]);
        assert_eq!(story.next(&book), Next::Wait);
        assert_eq!(story, Story::Together);
        commit(&mut book, 30..=30, &[0, 1, 2]);
        assert_eq!(story.next(&book), Next::Kill(0));
        book.kill(0, 31.0);
        book.gone(0, 31.0);
        commit(&mut book, 31..=49, &[1, 2]);
        assert_eq!(story.next(&book), Next::Wait);
        commit(&mut book, 50..=50, &[1, 2]);
        assert_eq!(story.next(&book), Next::Start);
        let newcomer = book.start(51.0);
        book.take(newcomer, ready(3), 51.0);
        commit(&mut book, 51..=100, &[1, 2, 3]);
        for peer in [1, 2, 3] {
            assert_eq!(story.next(&book), Next::Wait);
            let done = Done {
                round: 100,
                digest: String::new(),
                loss: 0.0,
                accuracy: None,
                dir: String::new(),
            };
            book.take(peer, Event::Done(done), 101.0);
        }
        assert_eq!(story.next(&book), Next::End);
        assert_eq!(book.rounds_lost(), 0);
    }
}
