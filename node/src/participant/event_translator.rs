//! Translates a peer's events into those of the run.

use crate::events::{self, Event};
use crate::net::hello::name_of;
use crate::net::link::Link;
use crate::participant::driver::{Driver, Traffic};
use annulus_core::aside::{Aside, Cause};
use annulus_core::invitation::Role;
use annulus_core::ledger::{Head, Member};
use annulus_core::pace::Turn;
use annulus_core::parts::Parts;
use annulus_core::peer::{Change, Commit, Event as PeerEvent, OutcastReason};
use annulus_core::shifts::{Goal, Shift};
use annulus_core::wire::Slow;
use annulus_core::{Peer, PeerId};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZeroU16;
use std::time::Duration;

/// Translates a peer's events.
#[derive(Debug, Default)]
pub struct EventTranslator {
    /// The traffic when the last round was committed.
    traffic: Traffic,
    /// The last reported percentage of the state.
    synced: Option<u64>,
    /// The names of members that were told.
    names: BTreeMap<PeerId, String>,
}

impl EventTranslator {
    /// The run's events for an event that `driver` has just handed out: names that are news, and at most two others.
    pub fn tell<L: Link>(&mut self, event: &PeerEvent, driver: &Driver<L>) -> Vec<Event> {
        let mut told = match event {
            PeerEvent::Committed(_) | PeerEvent::Member { .. } | PeerEvent::Entered => {
                self.names(&driver.peer().head().members)
            }
            _ => Vec::new(),
        };
        told.extend(self.translate(event, driver));
        told
    }

    /// Names of members that nobody was told of yet.
    fn names(&mut self, members: &[Member]) -> Vec<Event> {
        self.names
            .retain(|peer, _| members.iter().any(|member| member.peer == *peer));
        let news = members.iter().filter_map(|member| {
            let name = name_of(&member.contact)?;
            let is_news = self.names.insert(member.peer, name.clone()).as_ref() != Some(&name);
            is_news.then(|| Event::Named {
                peer: member.peer.to_hex(),
                name,
            })
        });
        news.collect()
    }

    fn translate<L: Link>(&mut self, event: &PeerEvent, driver: &Driver<L>) -> Vec<Event> {
        let peer = driver.peer();
        let round = peer.head().round;
        let me = || peer.me().to_hex();
        let member = |peer, change, reason| Event::Member {
            peer,
            change,
            round,
            reason,
        };
        let warning = |message| Event::Warning { message };
        match event {
            PeerEvent::Committed(commit) => {
                vec![Event::Round(self.round(commit, peer, driver.traffic()))]
            }
            // Why was told before.
            PeerEvent::Outcast {
                reason: OutcastReason::StandsAside,
                ..
            } => Vec::new(),
            PeerEvent::Aside(aside) => stands_aside(aside, peer, round),
            PeerEvent::Member { peer, change, reason } => {
                let change = match change {
                    // Why was told before.
                    Change::StandsAside => return Vec::new(),
                    Change::Joined => events::Change::Joined,
                    Change::Left => events::Change::Left,
                    Change::Failed => events::Change::Failed,
                    Change::Evicted => events::Change::Evicted,
                };
                vec![member(peer.to_hex(), change, reason.to_string())]
            }
            &PeerEvent::Syncing { bytes, total, round } => {
                // One line per percent is enough.
                let percent = bytes * 100 / total.max(1);
                if self.synced.replace(percent) == Some(percent) {
                    return Vec::new();
                }
                vec![Event::Sync { bytes, total, round }]
            }
            PeerEvent::Entered if peer.settings().role() == Role::Watch => Vec::new(),
            PeerEvent::Entered => vec![member(me(), events::Change::Joined, String::new())],
            PeerEvent::Continued { .. } => {
                vec![warning(
                    "no other member can be reached, so this peer goes on alone. Others join again when they come back".into(),
                )]
            }
            &PeerEvent::Outcast { reason } => vec![put_out(me(), round, reason, peer.is_leaving())],
            PeerEvent::Lost { samples } => vec![warning(format!(
                "{samples} samples that this peer's part of the run had counted while it was apart are computed again: the others \
                 have gone on without them"
            ))],
            PeerEvent::NoPlace { wait } => {
                let what = match peer.settings().role() {
                    Role::Member => "peer",
                    _ => "contributor",
                };
                vec![warning(format!(
                    "the run has no place for another {what} now; trying again in {} s",
                    wait.as_secs()
                ))]
            }
            PeerEvent::TooSlow {
                peer: who,
                slow,
                wait,
            } => vec![warning(too_slow(*who, *slow, *wait, peer))],
            PeerEvent::Outlawed { peer, proven } => vec![warning(cut_off(*peer, *proven))],
            PeerEvent::FalseWork { peer } => vec![warning(idle(*peer))],
            PeerEvent::FalseUpdate { peer, part } => vec![warning(format!(
                "{} sent an update of part {part} that does not follow from its sum, and all peers have taken these weights. If you \
                 do not trust them, go on from an older checkpoint",
                peer.to_hex()
            ))],
            PeerEvent::NotFinite { .. } => Vec::new(),
            &PeerEvent::Pace(turn) => vec![pace(turn, peer.head())],
            PeerEvent::Shift(shift) => vec![self::shift(shift, peer.head())],
            PeerEvent::Lacking { .. } if peer.manifest().split.is_some() => {
                vec![warning(lacking_spans(peer))]
            }
            PeerEvent::Lacking { parts, wait } => {
                let seconds = wait.as_secs();
                vec![warning(format!(
                    "waiting: no member here holds the optimizer state of parts {}. If no holder comes back within {seconds} s, it \
                     starts again from zero",
                    ranges(parts)
                ))]
            }
            &PeerEvent::WentBack { from, to, samples } => vec![warning(format!(
                "went back from round {from} to {to}: {samples} samples are computed again, as only members that are gone held some \
                 parts of the model since then"
            ))],
            PeerEvent::Waiting { members } => vec![warning(format!(
                "waiting for members: {members} of at least {} are here",
                peer.manifest().min_peers
            ))],
        }
    }

    fn round(&mut self, commit: &Commit, peer: &Peer, traffic: Traffic) -> events::Round {
        // Work ahead was done while the round before was exchanged.
        let own = commit
            .record
            .headers
            .iter()
            .find(|h| h.peer == peer.me() && h.weight > 0);
        let compute = own.map_or(commit.compute, |own| Duration::from_micros(own.compute_us));
        let before = std::mem::replace(&mut self.traffic, traffic);
        let members = commit.record.headers.iter();
        events::Round {
            round: commit.record.round,
            view: format!("{:016x}", commit.view.id),
            members: members
                .map(|h| events::Share {
                    peer: h.peer.to_hex(),
                    weight: h.weight.into(),
                })
                .collect(),
            loss: commit.record.loss(),
            digest: peer
                .held_digest()
                .map(|digest| digest.to_hex())
                .unwrap_or_default(),
            samples: commit.record.weight(),
            counted: commit.samples,
            compute_seconds: compute.as_secs_f64(),
            reduce_seconds: commit.reduce.as_secs_f64(),
            seconds: commit.total.as_secs_f64(),
            bytes_sent: traffic.sent - before.sent,
            bytes_received: traffic.received - before.received,
            bytes_relayed: traffic.relayed - before.relayed,
        }
    }
}

fn cut_off(peer: PeerId, proven: bool) -> String {
    let why = match proven {
        true => "it signed two messages that contradict each other",
        false => "what it sent is false",
    };
    format!("{} is cut off: {why}", peer.to_hex())
}

fn idle(peer: PeerId) -> String {
    format!(
        "{} is a guest that does not compute: this peer has computed two of its shares, and its values were false",
        peer.to_hex()
    )
}

/// The spans of a split model that no participating member holds.
fn lacking_spans(peer: &Peer) -> String {
    let manifest = peer.manifest();
    let here = peer.view().map_or(&[][..], |(_, members)| members);
    let (Some(split), Some(parts)) = (peer.head().split(manifest), Parts::of(manifest)) else {
        return String::new();
    };
    let spans = split.needs(parts);
    let is_held = |span: u16| {
        let mut members = peer
            .head()
            .members
            .iter()
            .filter(|member| here.contains(&member.peer));
        members.any(|member| member.keeper.holds(span.into(), &spans))
    };
    let all = spans.len() as u16;
    let open = (0..all).filter(|span| !is_held(*span)).map(|span| span + 1);
    let open: Vec<u16> = open.collect();
    let (which, it) = match open.len() {
        1 => ("span", "it"),
        _ => ("spans", "them"),
    };
    format!(
        "waiting: no member here holds {which} {} of the model's {all}. The run goes on when a peer with room for {it} joins, or \
         a former holder comes back",
        ranges(&open)
    )
}

/// Numbers in order, with runs written as ranges.
pub(crate) fn ranges(numbers: &[u16]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = |run: &[u16]| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    };
    runs.map(text).collect::<Vec<_>>().join(", ")
}

/// How spans will be held, and why, in one line.
fn shift(shift: &Shift, head: &Head) -> Event {
    let why = format!(
        "that makes the slowest member's part of a round {} % shorter",
        shift.shorter
    );
    let steps = |spans: &[NonZeroU16]| spans.iter().map(|steps| steps.get().into()).collect();
    match &shift.goal {
        Goal::Move(goes) => Event::Shift {
            peer: goes.peer.to_hex(),
            round: head.round,
            from: u64::from(goes.from) + 1,
            to: u64::from(goes.to) + 1,
            why,
        },
        Goal::Cut(recut) => Event::Cut {
            round: head.round,
            steps: steps(&recut.spans),
            before: steps(&head.spans),
            why,
        },
    }
}

/// The event of a peer without which a round goes on. A peer that leaves loses nothing by it, and does not come back.
fn put_out(peer: String, round: u64, reason: OutcastReason, is_leaving: bool) -> Event {
    let (change, reason) = match is_leaving {
        true => (
            events::Change::Left,
            "the others are a round ahead already".into(),
        ),
        false => (events::Change::Evicted, reason.to_string()),
    };
    Event::Member {
        peer,
        change,
        round,
        reason,
    }
}

/// The events of a member that stands aside. The member itself also learns why it waits.
fn stands_aside(aside: &Aside, me: &Peer, round: u64) -> Vec<Event> {
    let mut reason = standing_aside(aside);
    if aside.cause == Cause::Link
        && let Some(cure) = cure(me)
    {
        reason = format!("{reason}. {cure}");
    }
    let waits = (aside.peer == me.me()).then(|| Event::Waiting {
        why: format!("standing aside: {reason}"),
    });
    let member = Event::Member {
        peer: aside.peer.to_hex(),
        change: events::Change::Aside,
        round,
        reason,
    };
    [member].into_iter().chain(waits).collect()
}

/// A newcomer whose line cannot carry the run's rounds.
fn too_slow(who: PeerId, slow: Slow, wait: Option<Duration>, me: &Peer) -> String {
    let megabits = |bytes: u64| match bytes as f64 * 8e-6 {
        few if few < 10.0 => format!("{few:.1}"),
        many => format!("{many:.0}"),
    };
    let (carries, takes) = (megabits(slow.carries), megabits(slow.takes));
    let mut text = match wait {
        None => format!("{} cannot join: its line", who.to_hex()),
        Some(_) => "this peer cannot join: its line".into(),
    };
    let _ = match slow.carries {
        // Rounds filled the line, which are of no use without the state.
        0 => write!(
            text,
            " brought none of the state in time; the run's rounds take {takes} Mbit/s"
        ),
        _ => write!(
            text,
            " carries {carries} Mbit/s of the {takes} that the run's rounds take"
        ),
    };
    if let Some(wait) = wait {
        let _ = write!(text, "; trying again in {} s", wait.as_secs());
    }
    if let Some(cure) = cure(me) {
        let _ = write!(text, ". {cure}");
    }
    text
}

/// Advises local steps, which make a run bear slow lines, unless it has them.
fn cure(me: &Peer) -> Option<&'static str> {
    let is_open = me.manifest().local.is_none() && me.manifest().split.is_none();
    is_open.then_some("Rounds that are seldom help: begin the run with local_steps=auto")
}

/// Why a peer stands aside, and for how long.
pub fn standing_aside(aside: &Aside) -> String {
    let a_second = |rate: u64| match rate as f64 / 1000.0 {
        few if few < 10.0 => format!("{few:.1}"),
        many => format!("{many:.0}"),
    };
    let seconds = aside.wait_us.div_ceil(1_000_000);
    format!(
        "{}; with it the run counts {} samples/s, without it {}; next trial in {seconds} s",
        aside.cause,
        a_second(aside.with),
        a_second(aside.without)
    )
}

fn pace(turn: Turn, head: &Head) -> Event {
    let ms = |us: u64| format!("{} ms", (us as f64 / 1000.0).round());
    let pace = &head.pace;
    let why = match turn {
        Turn::Topology {
            exchange_us,
            before_us,
        } => match before_us {
            Some(before_us) => format!(
                "an exchange takes {} this way, and took {} before",
                ms(exchange_us),
                ms(before_us)
            ),
            None => format!(
                "an exchange takes {} this way, and often failed before",
                ms(exchange_us)
            ),
        },
        Turn::Batches {
            exchange_us,
            batch_us,
        } => format!(
            "an exchange takes {} and a batch {}",
            ms(exchange_us),
            ms(batch_us)
        ),
    };
    Event::Pace(events::Pace {
        round: head.round,
        topology: pace.topology.to_string(),
        batches: pace.batches.get().into(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_leaves_is_not_told_that_it_was_put_out() {
        for why in [OutcastReason::OtherLineage, OutcastReason::Excluded] {
            let told = |is_leaving| match put_out("me".into(), 7, why, is_leaving) {
                Event::Member { change, reason, .. } => (change, reason),
                other => panic!("{other:?}"),
            };
            let (change, reason) = told(true);
            assert_eq!(change, events::Change::Left);
            assert!(!reason.contains("again"), "{reason}");
            assert_eq!(told(false), (events::Change::Evicted, why.to_string()));
        }
    }
}
