//! Events for tests of all that shows a run.

use super::logs::{Logs, PeerLog};
use crate::events::{Change, Done, Event, Pace, Ready, Round, Share};
use crate::net::link::LinkKind;
use crate::task::Metrics;
use std::ops::RangeInclusive;

/// A peer's name.
pub(crate) fn name(n: u8) -> String {
    format!("{n:02x}").repeat(32)
}

/// Peer `n` is up; the run is to count 6,400 samples.
pub(crate) fn ready(n: u8) -> Event {
    ready_for(n, 6400)
}

/// Peer `n` is up; the run ends after `target` samples.
pub(crate) fn ready_for(n: u8, target: u64) -> Event {
    Event::Ready(Ready {
        peer: name(n),
        run: name(0xee),
        code: None,
        ticket: Some("annulus2secret".into()),
        ticket_file: "out/ticket".into(),
        url: Some("http://localhost:1/#annulus2secret".into()),
        share_url: None,
        takes_tabs: false,
        title: "Digits for all".into(),
        about: "By a test.".into(),
        task: "digits".into(),
        device: "CPU \"x\"".into(),
        parameters: 101_770,
        target,
    })
}

/// Peers contribute samples to a round of a run in which all rounds are like it.
pub(crate) fn round(number: u64, weights: &[(u8, u64)], loss: f32) -> Round {
    let samples = weights.iter().map(|(_, weight)| weight).sum();
    let share = |&(n, weight): &(u8, u64)| Share {
        peer: name(n),
        weight,
    };
    Round {
        round: number,
        view: "00c0ffee00c0ffee".into(),
        members: weights.iter().map(share).collect(),
        loss,
        digest: format!("{number:08x}").repeat(8),
        samples,
        counted: number * samples,
        compute_seconds: 0.25,
        reduce_seconds: f64::NAN,
        seconds: 0.5,
        bytes_sent: 1000,
        bytes_received: 2000,
        bytes_relayed: 300,
    }
}

/// The link to peer `n` came up by that way, or went.
pub(crate) fn link(n: u8, way: Option<LinkKind>) -> Event {
    Event::Link {
        peer: name(n),
        way,
        rtt_ms: 20.0,
    }
}

/// [`round`] as an event.
pub(crate) fn committed(number: u64, weights: &[(u8, u64)], loss: f32) -> Event {
    Event::Round(round(number, weights, loss))
}

/// The members exchange in another way.
pub(crate) fn pace(round: u64) -> Event {
    Event::Pace(Pace {
        round,
        topology: "direct".into(),
        batches: 1,
        why: "why".into(),
    })
}

/// Something happened to a peer's membership.
pub(crate) fn member(n: u8, change: Change, round: u64, reason: &str) -> Event {
    let reason = reason.into();
    Event::Member {
        peer: name(n),
        change,
        round,
        reason,
    }
}

/// An evaluation.
pub(crate) fn eval(round: u64, loss: f32, accuracy: Option<f32>) -> Event {
    let metrics = accuracy.map(|accuracy| ("accuracy".to_owned(), accuracy));
    Event::Eval {
        round,
        loss,
        metrics: metrics.into_iter().collect(),
    }
}

/// So much of the state is here.
pub(crate) fn sync(bytes: u64, total: u64, round: u64) -> Event {
    Event::Sync { bytes, total, round }
}

/// The end.
pub(crate) fn done(round: u64) -> Event {
    Event::Done(Done {
        round,
        finished: true,
        stopped_early: false,
        out_of_time: false,
        split: false,
        digest: Some(format!("{round:08x}").repeat(8)),
        loss: 0.5,
        held_out: true,
        metrics: Metrics::new(),
        dir: Some("/home/someone".into()),
        best: None,
    })
}

/// A round of 96 samples; its digest follows from its number, or is `digest`.
pub(crate) fn round_of(n: u64, members: &[usize], digest: &str) -> Event {
    let weights: Vec<_> = members
        .iter()
        .map(|p| (*p as u8, 96 / members.len() as u64))
        .collect();
    let mut round = round(n, &weights, 2.3 / (1.0 + n as f32 / 20.0));
    if !digest.is_empty() {
        round.digest = digest.into();
    }
    Event::Round(round)
}

/// Peers commit rounds, ten a second.
pub(crate) fn commit(logs: &mut Logs, rounds: RangeInclusive<u64>, members: &[usize]) {
    for n in rounds {
        members.iter().for_each(|p| {
            logs.take(*p, &round_of(n, members, ""), 100 * n);
        });
    }
}

/// Three peers up to round `last` of a hundred.
pub(crate) fn three(last: u64) -> Logs {
    let mut logs = Logs::default();
    for peer in 0..3 {
        logs.peers.push(PeerLog::default());
        logs.take(peer, &ready_for(peer as u8, 9600), 50);
    }
    commit(&mut logs, 1..=last, &[0, 1, 2]);
    logs
}
