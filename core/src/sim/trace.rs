//! A seed's story as text, one line per event, for finding the cause of a failure.

use super::plan::{PeerPlan, Plan};
use super::world::{World, tell};
use crate::access::signature::Signed;
use crate::base::id::PeerId;
use crate::ledger::keeps::Keeps;
use crate::ledger::shifts::Goal;
use crate::ledger::{Head, Header, Record};
use crate::peer::{Event, Input, Lane, Output, Peer, Phase};
use crate::run::parts::PartSet;
use crate::wire::{Leg, Message, Standing, ViewKey};
use std::ops::Range;

/// A world in one line.
pub(super) fn plan(plan: &Plan) -> String {
    let m = &plan.manifest;
    let faults: Vec<String> = plan
        .faults
        .iter()
        .map(|(kind, weight)| format!("{kind} {weight:.1}"))
        .collect();
    format!(
        "{} peers, {} elements, pieces of {}, batch {}, target {}, min_peers {}, stand_aside {} {:.0}, copies {:?}, stop {:?}, {:?}, {}, {}, local {:?}, overlap {}, clip {:?}, rounds of {:.2} s, \
         latency {:.1} ms, {:.0} kB/s, idle {:.1} s, jitter {:.2}, frames {}, {} deaths, a fault every {:.2} s of [{}]",
        plan.peers.len(),
        m.layout.len,
        m.piece,
        m.batch,
        m.target,
        m.min_peers,
        m.stand_aside,
        plan.slow_line,
        m.copies,
        m.early_stop.map(|stop| stop.every),
        m.codec,
        m.topology
            .map_or_else(|| "auto".into(), |topology| topology.to_string()),
        m.optimizer,
        m.local
            .as_ref()
            .map(|local| (local.steps, local.outer.to_string())),
        m.overlap,
        m.clip,
        plan.round_us / 1e6,
        plan.latency_us / 1e3,
        plan.rate_bytes_per_s / 1e3,
        plan.idle_us as f64 / 1e6,
        plan.jitter,
        plan.frames,
        plan.deaths,
        plan.fault_every_us / 1e6,
        faults.join(", "),
    )
}

/// A peer in a few words.
pub(super) fn peer_plan(plan: &PeerPlan) -> String {
    format!(
        "{:.1} samples/s{}",
        plan.speed,
        if plan.dialable { "" } else { ", cannot be dialled" }
    )
}

impl World {
    /// The activity of every living peer.
    pub(super) fn situation(&self) -> String {
        let alive = self.nodes.iter().filter_map(|n| n.peer.as_ref().map(|p| (n, p)));
        let each = alive.map(|(n, p)| {
            let head = p.head();
            let frozen = if n.frozen { " frozen" } else { "" };
            format!(
                "{}{frozen}: {} after round {} of {}",
                n.name,
                phase(self, p),
                head.round,
                head.chain
            )
        });
        each.collect::<Vec<_>>().join("; ")
    }
}

/// The activity of a peer.
fn phase(world: &World, peer: &Peer) -> String {
    let now = peer.shared.now;
    let wake = peer.wake_at().map_or(0.0, |at| (at - now).as_secs_f64());
    let doing = match &peer.phase {
        Phase::Newcomer(join) => format!("joins: {join:?}"),
        Phase::Member(w) => {
            let members: Vec<String> = w.view.members.iter().map(|m| world.name(*m)).collect();
            let reduce = if w.reduce.is_started() {
                "reduces"
            } else {
                "computes"
            };
            let missing = w.reduce.gathered.missing().len();
            let flush = w
                .agreement
                .flush()
                .map(|f| format!(", flush {f:?}"))
                .unwrap_or_default();
            let told = w
                .agreement
                .told()
                .map(|t| format!(", told by {}", world.name(t.by)))
                .unwrap_or_default();
            format!(
                "{reduce} {} [{}], {missing} missing{flush}{told}",
                view(&w.view.key),
                members.join(" ")
            )
        }
        Phase::Lingering(lingering) => format!("lingers, {:?}", lingering.exit),
        Phase::Gone => "gone".into(),
    };
    format!("{doing}, wakes {wake:.3} s later")
}

/// An input of a peer.
pub(super) fn input(world: &World, i: usize, input: &Input) {
    let text = match input {
        Input::Tick => "tick".into(),
        Input::LinkUp { peer, .. } => format!("link up: {}", world.name(*peer)),
        Input::LinkDown { peer } => format!("link down: {}", world.name(*peer)),
        Input::Revoke(_) => "revokes a ticket".to_string(),
        Input::DialFailed { peer, .. } => format!("dial failed: {}", world.name(*peer)),
        Input::Message { from, message: m } => format!("<- {}: {}", world.name(*from), message(world, m)),
        Input::Contribution {
            round,
            weight,
            compute,
            ..
        } => {
            format!(
                "contribution to round {round}: {weight} samples in {:.3} s",
                compute.as_secs_f64()
            )
        }
        Input::Line { bytes_per_s } => format!("has a line of {bytes_per_s} bytes per second"),
        Input::Warm { speed } => format!("warm: {:.1} samples/s", *speed as f64 / 1e3),
        Input::Span(done) => format!("a pass is done, {:.3} s", done.compute.as_secs_f64()),
        Input::Leave => "leave".into(),
        Input::Stalled(stalled) => format!("evaluates: no gain {stalled}"),
        Input::Saved(saved) => format!("has {} checkpoints", saved.len()),
        Input::Restored { stepped, kept } => {
            let parts = kept.as_ref().map_or(0, |kept| kept.set().len());
            format!("{parts} parts of {stepped} are read")
        }
    };
    tell!(world, "{} {text}", world.nodes[i].name);
}

/// An output of a peer.
pub(super) fn output(world: &World, i: usize, output: &Output, dead: bool) {
    let text = match output {
        Output::Send { to, lane, message: m } => {
            let lane = if *lane == Lane::Control { "" } else { "~" };
            format!("->{lane} {}: {}", world.name(*to), message(world, m))
        }
        Output::HangUp { peer } => format!("hangs up on {}", world.name(*peer)),
        Output::Dial { peer, .. } => format!("dials {}", world.name(*peer)),
        Output::Compute { round, positions, .. } => format!("computes round {round}: {}", ranges(positions)),
        Output::Span(work) => format!(
            "computes round {}: span {}, back {}, of {}",
            work.round,
            work.span,
            work.pass.back,
            ranges(&work.pass.positions)
        ),
        Output::Restore { stepped } => format!("reads what it has of {stepped}"),
        Output::Event(event) => return self::event(world, i, event),
        Output::Exit(exit) => format!("EXIT {exit:?}"),
    };
    tell!(
        world,
        "  {}{} {text}",
        world.nodes[i].name,
        if dead { " (dead)" } else { "" }
    );
}

fn event(world: &World, i: usize, event: &Event) {
    let text = match event {
        Event::Committed(c) => {
            let head = world.nodes[i]
                .peer
                .as_ref()
                .map(|p| head(world, p.head()))
                .unwrap_or_default();
            format!(
                "COMMITS {}: {} -> digest {}; {head}",
                view(&c.view),
                record(world, &c.record),
                c.digest
            )
        }
        Event::Member { peer, change, reason } => format!("sees {} {change:?}: {reason}", world.name(*peer)),
        Event::Syncing { bytes, total, round } => format!("syncing {bytes} of {total} bytes, round {round}"),
        Event::Outlawed { peer, proven } => format!("cuts {} off, proven: {proven}", world.name(*peer)),
        Event::FalseUpdate { peer, part } => {
            format!("sees a false update of part {part} by {}", world.name(*peer))
        }
        Event::FalseWork { peer } => format!("finds the work of {} false", world.name(*peer)),
        Event::Entered => "ENTERS".into(),
        Event::Continued { .. } => "GOES ON ALONE".into(),
        Event::Outcast { reason } => format!("OUTCAST: {reason}"),
        Event::Lost { samples } => format!("{samples} samples are lost"),
        Event::TooSlow { peer, slow, .. } => format!("{peer} is too slow: {slow:?}"),
        Event::NoPlace { wait } => format!("no place for {} s", wait.as_secs()),
        Event::NotFinite { round } => format!("not finite in round {round}"),
        Event::Lacking { parts, .. } => format!("waits for keepers of {parts:?}"),
        Event::WentBack { from, to, samples } => {
            format!("WENT BACK from round {from} to {to}: {samples} samples again")
        }
        Event::Waiting { members } => format!("waits with {members} members"),
        Event::Aside(aside) => format!("sees {} stand aside: {aside:?}", world.name(aside.peer)),
        Event::Pace(turn) => format!("goes on with {turn:?}"),
        Event::Shift(shift) => match &shift.goal {
            Goal::Move(goes) => format!("sees {} go {shift:?}", world.name(goes.peer)),
            Goal::Cut(recut) => format!(
                "sees the cut go to {:?}, {} % shorter",
                recut.spans, shift.shorter
            ),
        },
    };
    tell!(world, "  {} {text}", world.nodes[i].name);
}

/// A message without its values.
pub(super) fn message(world: &World, message: &Message) -> String {
    let peers = |peers: &[PeerId]| peers.iter().map(|p| world.name(*p)).collect::<Vec<_>>().join(" ");
    match message {
        Message::Piece {
            view: v,
            leg,
            chunk,
            piece,
            headers,
            ..
        } => {
            let leg = match leg {
                Leg::Partial => "partial",
                Leg::Finished => "finished",
                Leg::Sum => "sum",
                Leg::Lane(_) => "lane",
            };
            let told = peers(&headers.iter().map(|h| h.peer).collect::<Vec<_>>());
            format!("{leg} {} chunk {chunk} piece {piece} [{told}]", view(v))
        }
        Message::Probe { view: v, nonce } => format!("probe {} #{nonce}", view(v)),
        Message::Alive { nonce, round, doing } => format!("alive #{nonce} round {round} {doing:?}"),
        Message::Flush {
            view: v, suspects, ..
        } => format!("FLUSH {} suspects [{}]", view(v), peers(suspects)),
        Message::Decision {
            view: v, suspects, ..
        } => {
            format!("DECISION {} without [{}]", view(v), peers(suspects))
        }
        Message::Committed {
            view: v,
            record: r,
            digest,
        } => {
            format!("COMMITTED {}: {} -> {digest}", view(v), record(world, r))
        }
        Message::Seals { view: v, .. } => format!("seals of {}", view(v)),
        Message::Repair { view: v, missing } => format!("repair {}: {missing:?}", view(v)),
        Message::Out { view: v } => format!("OUT of {}", view(v)),
        Message::Status {
            standing: s,
            places: _,
            claim,
            member,
            finished,
        } => {
            let shown = claim.as_ref().map(|claim| record(world, &claim.record));
            let (at, shown) = (standing(s), shown.unwrap_or_default());
            format!("status {at}, member {member}, finished {finished}, {shown}")
        }
        Message::Follow { have, .. } => {
            format!("follow, have {}", have.as_ref().map(standing).unwrap_or_default())
        }
        Message::Following {
            head: h,
            digest,
            resumes,
            member,
            claim: _,
        } => {
            format!(
                "following from {} digest {digest}, resumes {resumes:?}, member {member}",
                head(world, h)
            )
        }
        Message::NotMember { standing: s, follows } => {
            let standing = s.as_ref().map(standing).unwrap_or_default();
            format!("not member, {standing}, follows {follows:?}")
        }
        Message::Acquaintances { acquaintances } => {
            let known: Vec<PeerId> = acquaintances.iter().map(|(peer, _)| *peer).collect();
            format!("knows {}", peers(&known))
        }
        Message::Block {
            block, round, chain, ..
        } => format!("block {block} of round {round} on {chain}"),
        Message::Moments {
            part, piece, stepped, ..
        } => format!("moments of part {part}, piece {piece}, on {stepped}"),
        Message::Tensor { .. } | Message::Want { .. } | Message::Held { .. } => of_spans(message),
        Message::Relay { envelope, frame } => {
            let inner = Message::decode(frame.clone()).map(|m| self::message(world, &m));
            format!(
                "relay {} to {}: {}",
                world.name(envelope.from),
                world.name(envelope.to),
                inner.unwrap_or_else(|e| e.to_string())
            )
        }
        Message::Unreachable { envelope, .. } => format!("unreachable {}", world.name(envelope.to)),
        other => format!("{other:?}"),
    }
}

/// Messages between members that hold spans of a model.
fn of_spans(message: &Message) -> String {
    match message {
        Message::Tensor {
            chain,
            span,
            back,
            microbatch,
            ..
        } => format!(
            "{} of {microbatch} from span {span} on {chain}",
            if *back { "gradient" } else { "activations" }
        ),
        Message::Want {
            view: of,
            span,
            lane,
            back,
            have,
        } => format!(
            "want {} span {span} lane {lane} back {back} have {have:?}",
            view(of)
        ),
        Message::Held { view: of } => format!("held {}", view(of)),
        other => format!("{other:?}"),
    }
}

fn view(view: &ViewKey) -> String {
    format!("r{}.{}#{:04x}", view.round, view.attempt, view.id & 0xffff)
}

fn standing(standing: &Standing) -> String {
    format!(
        "round {} with {} samples on {}",
        standing.round, standing.samples, standing.chain
    )
}

fn record(world: &World, record: &Record) -> String {
    let header = |h: &Signed<Header>| {
        let ready: Vec<String> = h.ready.iter().map(|n| world.name(n.peer())).collect();
        let ready = if ready.is_empty() {
            String::new()
        } else {
            format!("+{}", ready.join("+"))
        };
        format!(
            "{}:{}{}{}{ready}@{}",
            world.name(h.peer),
            h.weight,
            keeps(&h.keeps),
            if h.leaving { " leaves" } else { "" },
            h.digest
        )
    };
    format!(
        "r{}.{} [{}]",
        record.round,
        record.attempt,
        record.headers.iter().map(header).collect::<Vec<_>>().join(" ")
    )
}

/// A header's statement about parts, if it has one.
fn keeps(said: &Keeps) -> String {
    if *said == Keeps::default() {
        return String::new();
    }
    let set = |set: &PartSet| {
        set.iter()
            .map(|part| part.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    let insists = match (said.insists, said.waits) {
        (true, _) => "!",
        (_, true) => "?",
        _ => "",
    };
    let saved = match (said.saves, said.saved.len()) {
        (true, _) => " saves".into(),
        (_, 0) => String::new(),
        (_, saved) => format!(" has {saved}"),
    };
    format!(
        " keeps {}+{}-{}{insists}{saved}",
        set(&said.kept),
        set(&said.learns),
        set(&said.drops)
    )
}

fn head(world: &World, head: &Head) -> String {
    let members: Vec<String> = head.members.iter().map(|m| world.name(m.peer)).collect();
    let holes: Vec<String> = head
        .holes
        .iter()
        .map(|h| {
            format!(
                "{}..{}{}",
                h.start,
                h.end,
                if h.refused_by.is_some() { "!" } else { "" }
            )
        })
        .collect();
    format!(
        "round {}, {} samples, {} undone, cursor {}, holes [{}], members [{}], chain {}",
        head.round,
        head.samples,
        head.undone,
        head.cursor,
        holes.join(" "),
        members.join(" "),
        head.chain
    )
}

fn ranges(ranges: &[Range<u64>]) -> String {
    ranges
        .iter()
        .map(|r| format!("{}..{}", r.start, r.end))
        .collect::<Vec<_>>()
        .join(" ")
}
