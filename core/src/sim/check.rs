//! What must hold. The ledger kept here is worked out apart from the code under test: sums in ring order
//! by plain loops over the contributions that the devices really made, samples counted one by one. It
//! relies on the protocol's own arithmetic only for the codec, the optimizer's step, the allotment and
//! the hash of a lineage.

use super::device;
use super::world::{Node, World};
use crate::config::{Manifest, Settings};
use crate::id::{Digest, PeerId};
use crate::ledger::{Head, Member, Record};
use crate::optim::{clip_scale, norm_squared};
use crate::peer::{Change, Commit, Event, Exit, Input, Output, Peer, Phase};
use crate::state::State;
use crate::wire::{Message, ViewKey};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Most vectors that a peer may hold in queues and early pieces, beside its state: its own round, one
/// that is early, one to repair others, and a window for each of its followers.
const MOST_VECTORS: usize = 16;
/// So long after the faults lineages may still not have met: dials that just failed, links not yet known to be
/// dead, a slow peer's round. Who finishes before that may finish apart from others.
const GRACE_US: u64 = 60_000_000;
/// After the faults a peer may need so long to be a member again, beside some rounds.
const PATIENCE_US: u64 = 150_000_000;

/// What has become of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sample {
    /// Not counted, and given back so many times because a result was not usable.
    Open(u8),
    /// Given up.
    Skipped,
    Counted,
}

/// One point of a lineage.
struct Point {
    head: Head,
    /// All states that peers hold here, with the digest of the one before each. More than one only after
    /// a bit has flipped.
    states: Vec<Held>,
    samples: Vec<Sample>,
    /// The sums of the round that led here, as decoded; `None` for a round without samples.
    sums: Option<Vec<f32>>,
}

struct Held {
    before: Digest,
    digest: Digest,
    state: State,
}

/// What a member did with an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Committed,
    /// Tried again without these.
    Aborted(BTreeSet<PeerId>),
}

/// All lineages, as they should be.
pub(super) struct Ledger {
    manifest: Arc<Manifest>,
    points: BTreeMap<Digest, Point>,
    /// What each member did with each attempt.
    fates: BTreeMap<ViewKey, Vec<(PeerId, Fate)>>,
    /// What the devices made, by peer and lineage: weight and sum.
    contributions: BTreeMap<(PeerId, Digest), Vec<(u32, Vec<f32>)>>,
}

impl Ledger {
    pub fn new(manifest: Arc<Manifest>) -> Self {
        Self {
            manifest,
            points: BTreeMap::new(),
            fates: BTreeMap::new(),
            contributions: BTreeMap::new(),
        }
    }

    /// Rounds over all lineages.
    pub fn rounds(&self) -> u64 {
        self.points.len().saturating_sub(1) as u64
    }

    /// The run's beginning.
    pub fn found(&mut self, head: &Head, state: &State) {
        let digest = state.digest();
        let states = vec![Held {
            before: digest,
            digest,
            state: state.clone(),
        }];
        let samples = vec![Sample::Open(0); self.manifest.target as usize];
        self.points.insert(
            head.chain,
            Point {
                head: head.clone(),
                states,
                samples,
                sums: None,
            },
        );
    }

    /// A device was asked for a contribution: was it given its own share and the right parameters?
    pub fn contribute(
        &mut self,
        node: &Node,
        positions: &[Range<u64>],
        params: &[f32],
        weight: u64,
        gradient: &[f32],
    ) -> Result<(), String> {
        let Some(peer) = &node.peer else { return Ok(()) };
        let head = peer.head();
        let point = self
            .points
            .get(&head.chain)
            .ok_or_else(|| format!("{} works on an unknown lineage", node.name))?;
        let me = point
            .head
            .position(node.id)
            .ok_or_else(|| format!("{} works without being a member", node.name))?;
        if point.head.allot(&self.manifest).ranges(me) != positions {
            return Err(format!(
                "{} works on another share than its own: {positions:?}",
                node.name
            ));
        }
        if !node.flipped {
            let digest = peer.digest();
            let held = point.states.iter().find(|s| s.digest == digest);
            let held =
                held.ok_or_else(|| format!("{} holds a state that no member has: {digest}", node.name))?;
            if !same_bits(&held.state.params, params) {
                return Err(format!(
                    "{} computes from parameters that are not its lineage's",
                    node.name
                ));
            }
            let (pure, _) = device::contribution(&held.state.params, positions, weight);
            if weight > 0 && !same_bits(&pure, gradient) {
                return Err(format!(
                    "{}'s contribution is not what its state gives",
                    node.name
                ));
            }
        }
        if weight > 0 {
            let made = self.contributions.entry((node.id, head.chain)).or_default();
            made.push((weight as u32, gradient.to_vec()));
        }
        Ok(())
    }

    /// A peer has committed a round. Gives the lineage after it.
    fn commit(
        &mut self,
        before: Digest,
        me: &Node,
        record: &Record,
        digest: Digest,
    ) -> Result<Digest, String> {
        let point = self
            .points
            .get(&before)
            .ok_or("it goes on from an unknown lineage")?;
        check_record(&point.head, record, &self.manifest)?;
        let own = record
            .headers
            .iter()
            .find(|h| h.peer == me.id)
            .ok_or("its own header is not in the record")?;
        if own.digest != record.majority() {
            return Err(format!(
                "its state {} is not the majority's {}",
                own.digest,
                record.majority()
            ));
        }
        let mut head = point.head.clone();
        head.apply(record, &self.manifest);
        let chain = head.chain;
        if !self.points.contains_key(&chain) {
            let sums = self.reduce(before, record)?;
            let samples = count(point, record, &self.manifest)?;
            check_head(&head, &samples)?;
            self.points.insert(
                chain,
                Point {
                    head,
                    states: Vec::new(),
                    samples,
                    sums,
                },
            );
        }
        self.apply(before, chain, own.digest, me, record, digest)?;
        Ok(chain)
    }

    /// The serial reference's next state, against the peer's.
    fn apply(
        &mut self,
        before: Digest,
        chain: Digest,
        own: Digest,
        me: &Node,
        record: &Record,
        digest: Digest,
    ) -> Result<(), String> {
        let actual = me.peer.as_ref().map(|p| p.state()).ok_or("it is gone")?;
        let known = self.points[&chain]
            .states
            .iter()
            .find(|s| s.before == own)
            .map(|s| s.digest);
        let expected = match known {
            Some(known) => known,
            None => {
                let point = &self.points[&before];
                let held = point.states.iter().find(|s| s.digest == own);
                let mut state = held
                    .ok_or_else(|| format!("nobody held the state {own} that it goes on from"))?
                    .state
                    .clone();
                if let Some(sums) = &self.points[&chain].sums {
                    step(&mut state, &self.manifest, point.head.steps, record, sums);
                }
                let digest = state.digest();
                let point = self.points.get_mut(&chain).expect("just made");
                point.states.push(Held {
                    before: own,
                    digest,
                    state,
                });
                digest
            }
        };
        if digest == expected && (me.flipped || actual.digest() == digest) {
            return Ok(());
        }
        if !me.flipped {
            return Err(format!(
                "its state {digest} is not the serial reference's {expected}"
            ));
        }
        let point = self.points.get_mut(&chain).expect("just made");
        point.states.push(Held {
            before: own,
            digest,
            state: actual.clone(),
        });
        Ok(())
    }

    /// The round's sums, chunk by chunk in ring order, encoded for each hop. `None` without samples.
    fn reduce(&self, before: Digest, record: &Record) -> Result<Option<Vec<f32>>, String> {
        let m = &self.manifest;
        if record.weight() == 0 {
            return Ok(None);
        }
        let (n, len) = (record.headers.len(), m.layout.len);
        let zeros = vec![0.0f32; len];
        let mut values: Vec<&[f32]> = Vec::new();
        for header in &record.headers {
            let made = self.contributions.get(&(header.peer, before));
            let made = made.and_then(|made| made.iter().find(|(weight, _)| *weight == header.weight));
            match made {
                _ if header.weight == 0 => values.push(&zeros),
                Some((_, gradient)) => values.push(gradient),
                None => return Err("the record counts a contribution that no device made".into()),
            }
        }
        let mut sums = vec![0.0f32; len];
        for owner in 0..n {
            let chunk = owner * len / n..(owner + 1) * len / n;
            for start in chunk.clone().step_by(m.piece as usize) {
                let piece = start..chunk.end.min(start + m.piece as usize);
                let mut sum = Vec::new();
                for hop in 1..=n {
                    let own = &values[(owner + hop) % n][piece.clone()];
                    sum = if hop == 1 {
                        own.to_vec()
                    } else {
                        sum.iter().zip(own).map(|(a, b)| a + b).collect()
                    };
                    let mut bytes = Vec::new();
                    m.codec.encode(&sum, &mut bytes);
                    m.codec.decode(&bytes, &mut sum).map_err(|e| e.to_string())?;
                }
                sums[piece].copy_from_slice(&sum);
            }
        }
        Ok(Some(sums))
    }

    /// A member has decided about an attempt. Those who do not exclude each other must agree, and none
    /// changes its mind.
    fn decide(&mut self, peer: PeerId, view: ViewKey, fate: Fate) -> Result<(), String> {
        let fates = self.fates.entry(view).or_default();
        if fates.contains(&(peer, fate.clone())) {
            return Ok(());
        }
        let excludes =
            |fate: &Fate, peer| matches!(fate, Fate::Aborted(suspects) if suspects.contains(&peer));
        for (other, theirs) in fates.iter() {
            if *theirs != fate && !excludes(&fate, *other) && !excludes(theirs, peer) {
                return Err(format!("attempt {view:?} was {fate:?}, but {other} {theirs:?}"));
            }
        }
        fates.push((peer, fate));
        Ok(())
    }

    /// If a lineage is unknown, it must be what a peer begins that goes on alone from a known one.
    fn go_on_alone(&mut self, peer: &Peer, chain: Digest) -> Result<(), String> {
        if self.points.contains_key(&chain) {
            return Ok(());
        }
        let Settings { me, contact, .. } = peer.settings.clone();
        let member = Member {
            peer: me,
            speed: 1,
            contact,
        };
        let mut heads = self
            .points
            .values()
            .map(|from| (from, from.head.clone().continued_by(member.clone())));
        let (from, head) = heads
            .find(|(_, head)| head.chain == chain)
            .ok_or("it is on a lineage that nobody committed")?;
        let states = from.states.iter();
        let states = states
            .map(|s| Held {
                before: s.before,
                digest: s.digest,
                state: s.state.clone(),
            })
            .collect();
        let point = Point {
            head,
            states,
            samples: from.samples.clone(),
            sums: None,
        };
        self.points.insert(chain, point);
        Ok(())
    }

    /// Where a peer stands that is a member without having committed: joined, or gone on alone.
    fn stand(&mut self, node: &Node, peer: &Peer) -> Result<(), String> {
        let (head, digest) = (peer.head(), peer.digest());
        self.go_on_alone(peer, head.chain)?;
        let point = self.points.get_mut(&head.chain).expect("just looked up");
        if node.flipped && point.states.iter().all(|s| s.digest != digest) {
            // A lone peer that has noticed the damage has nothing else to go on from.
            point.states.push(Held {
                before: digest,
                digest,
                state: peer.state().clone(),
            });
        }
        let point = &self.points[&head.chain];
        // A lone member's speed is no matter, and each time that it goes on it may be another.
        let plain = |head: &Head| {
            let mut head = head.clone();
            head.members
                .iter_mut()
                .filter(|_| point.head.members.len() == 1)
                .for_each(|m| m.speed = 1);
            head
        };
        if plain(&point.head) != plain(head) {
            return Err(format!(
                "its ledger is not its lineage's: {head:?} instead of {:?}",
                point.head
            ));
        }
        let held = point.states.iter().find(|s| s.digest == digest);
        let held = held.ok_or_else(|| format!("it is a member with a state that no member has: {digest}"))?;
        if !node.flipped && !same_bits(&held.state.params, &peer.state().params) {
            return Err("its digest is not that of its parameters".into());
        }
        Ok(())
    }
}

/// Lineage and digest of a peer that holds all that its lineage does: a member, or one that is done.
fn stands(peer: &Peer) -> Option<(Digest, Digest)> {
    let whole = matches!(peer.phase, Phase::Member(_) | Phase::Lingering { .. });
    whole.then(|| (peer.head().chain, peer.digest()))
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Applies a round's sums in one piece.
fn step(state: &mut State, manifest: &Manifest, steps: u64, record: &Record, sums: &[f32]) {
    let mut scale = 1.0 / record.weight() as f32;
    if let Some(max) = manifest.clip {
        let (n, len, piece) = (record.headers.len(), manifest.layout.len, manifest.piece as usize);
        let mut squared = 0.0f64;
        for owner in 0..n {
            let chunk = &sums[owner * len / n..(owner + 1) * len / n];
            squared = chunk
                .chunks(piece)
                .fold(squared, |squared, piece| squared + norm_squared(piece));
        }
        scale = scale_clipped(scale, squared, max);
    }
    let lr = manifest.schedule.rate(manifest.lr, steps + 1);
    let step = manifest.optimizer.step(lr, steps + 1, scale);
    state.apply(manifest, &step, 0..sums.len(), sums);
}

fn scale_clipped(scale: f32, squared: f64, max: f32) -> f32 {
    scale * clip_scale(squared.sqrt() * f64::from(scale), max)
}

/// Whether a peer did with an attempt what another said, rather than nothing or to exclude that one.
fn believes(peer: &Peer, view: ViewKey, by: PeerId) -> bool {
    let told = match &peer.phase {
        Phase::Member(w) if w.view.key == view => return w.told.as_ref().is_some_and(|told| told.by == by),
        Phase::Member(w) => w.decided.as_slice(),
        _ => &[],
    };
    let last = peer.last.as_ref().map_or(&[][..], |last| &last.decided);
    let own = last.iter().chain(told).any(|d| d.view == view && d.suspects.contains(&by));
    !own
}

/// Whether a record may follow a head at all.
fn check_record(head: &Head, record: &Record, manifest: &Manifest) -> Result<(), String> {
    if record.round != head.round + 1 {
        return Err(format!("round {} follows round {}", record.round, head.round));
    }
    let mut places = Vec::new();
    for header in &record.headers {
        places.push(
            head.position(header.peer)
                .ok_or("a contributor was not a member")?,
        );
    }
    if places.is_empty() || !places.is_sorted_by(|a, b| a < b) {
        return Err("the contributors are not in ring order".into());
    }
    let allotment = head.allot(manifest);
    let null = record.headers.len() < usize::from(manifest.min_peers);
    for (header, place) in record.headers.iter().zip(places) {
        let share = if null { 0 } else { allotment.len(place) };
        if u64::from(header.weight) > share {
            return Err(format!(
                "a weight of {} is more than the share of {share}",
                header.weight
            ));
        }
    }
    Ok(())
}

/// Counts a record's samples one by one.
fn count(point: &Point, record: &Record, manifest: &Manifest) -> Result<Vec<Sample>, String> {
    let mut samples = point.samples.clone();
    if record.headers.len() < usize::from(manifest.min_peers) {
        return Ok(samples);
    }
    let allotment = point.head.allot(manifest);
    for (place, member) in point.head.members.iter().enumerate() {
        let Some(header) = record.headers.iter().find(|h| h.peer == member.peer) else {
            continue;
        };
        for (k, position) in allotment.ranges(place).into_iter().flatten().enumerate() {
            let sample = samples
                .get_mut(position as usize)
                .ok_or("a sample beyond the target was handed out")?;
            *sample = match *sample {
                Sample::Open(_) if k < header.weight as usize => Sample::Counted,
                Sample::Open(0) => Sample::Open(1),
                Sample::Open(_) => Sample::Skipped,
                other => return Err(format!("sample {position} was handed out again: {other:?}")),
            };
        }
    }
    Ok(samples)
}

/// Whether a head says of every sample what was counted.
fn check_head(head: &Head, samples: &[Sample]) -> Result<(), String> {
    let number = |sample| samples.iter().filter(|s| **s == sample).count() as u64;
    if (head.samples, head.skipped) != (number(Sample::Counted), number(Sample::Skipped)) {
        return Err(format!(
            "{} samples and {} given up, but {} and {} were counted one by one",
            head.samples,
            head.skipped,
            number(Sample::Counted),
            number(Sample::Skipped)
        ));
    }
    let mut open = vec![None; samples.len()];
    open[(head.cursor as usize).min(samples.len())..].fill(Some(0));
    for hole in &head.holes {
        let range = open
            .get_mut(hole.start as usize..hole.end as usize)
            .ok_or("a hole beyond the target")?;
        range.fill(Some(hole.refused));
    }
    for (position, (open, sample)) in open.iter().zip(samples).enumerate() {
        let said = open.map_or(!matches!(sample, Sample::Open(_)), |refused| {
            *sample == Sample::Open(refused)
        });
        if !said {
            return Err(format!(
                "sample {position} is {sample:?}, but the ledger says {open:?}"
            ));
        }
    }
    Ok(())
}

/// What an input obliges a peer to at once. That everything comes right in the end does not show these: other
/// rules and deadlines make up for them, only later.
#[derive(Clone, Copy, Debug)]
pub(super) enum Duty {
    None,
    /// A member that it trusts has excluded it: it is one no longer.
    Yield,
    /// It suspects who says so: it stays where it is.
    Distrust(ViewKey, PeerId),
    /// It is no member, and somebody who may still wait for it asks.
    Answer(PeerId),
}

impl Duty {
    pub fn of(peer: &Peer, input: &Input) -> Self {
        let Input::Message { from, message } = input else {
            return Self::None;
        };
        match (&peer.phase, message) {
            (Phase::Member(w), Message::Decision { view, .. } | Message::Committed { view, .. })
                if *view == w.view.key && w.suspects(*from) =>
            {
                Self::Distrust(*view, *from)
            }
            (Phase::Member(w), Message::Flush { view, suspects } | Message::Decision { view, suspects }) => {
                let excluded = *view == w.view.key && suspects.contains(&peer.settings.me);
                if excluded && w.view.contains(*from) && !w.suspects(*from) {
                    Self::Yield
                } else {
                    Self::None
                }
            }
            (Phase::Joining(_), Message::Probe { .. }) => Self::Answer(*from),
            _ => Self::None,
        }
    }
}

impl World {
    /// Has a peer done what it must?
    pub(super) fn check_duty(&mut self, i: usize, duty: Duty, outputs: &[Output]) {
        let name = &self.nodes[i].name;
        let wrong = match duty {
            Duty::Yield => self.nodes[i]
                .is_member()
                .then(|| format!("{name} was excluded and is a member still")),
            Duty::Distrust(view, by) => {
                let believes = self.nodes[i].peer.as_ref().is_some_and(|p| believes(p, view, by));
                believes.then(|| format!("{name} believed a peer that it suspects"))
            }
            Duty::Answer(asker) => {
                let answers = outputs
                    .iter()
                    .any(|o| matches!(o, Output::Send { to, .. } if *to == asker));
                (!answers).then(|| format!("{name} is no member and does not tell {}", self.name(asker)))
            }
            Duty::None => None,
        };
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }

    /// A peer told its driver something.
    pub(super) fn on_event(&mut self, i: usize, event: Event) {
        match event {
            Event::Committed(commit) => self.on_commit(i, *commit),
            Event::Outcast { reason, .. } => {
                self.stats.outcasts += 1;
                self.nodes[i].stands = None;
                if self.plan.is_calm() {
                    self.fail(format!(
                        "{} is cast out though nothing went wrong: {reason}",
                        self.nodes[i].name
                    ));
                }
            }
            Event::Member {
                peer,
                change: Change::Failed | Change::Evicted,
                reason,
            } if self.plan.is_calm() => {
                let (me, it) = (&self.nodes[i].name, self.name(peer));
                self.fail(format!("{me} suspects {it} though nothing went wrong: {reason}"));
            }
            _ => {}
        }
    }

    fn on_commit(&mut self, i: usize, commit: Commit) {
        let node = &self.nodes[i];
        let last = node
            .peer
            .as_ref()
            .and_then(|p| p.last.as_ref())
            .map(|last| last.before.chain);
        let Some(before) = node.stands.map(|(chain, _)| chain).or(last) else {
            return self.fail(format!("{} commits a round out of nowhere", node.name));
        };
        let known = node
            .peer
            .as_ref()
            .map_or(Ok(()), |peer| self.ledger.go_on_alone(peer, before));
        match known.and_then(|()| self.ledger.commit(before, node, &commit.record, commit.digest)) {
            Ok(chain) => self.nodes[i].stands = Some((chain, commit.digest)),
            Err(why) => {
                let name = &self.nodes[i].name;
                return self.fail(format!("{name} commits round {}: {why}", commit.record.round));
            }
        }
        let id = self.nodes[i].id;
        if let Err(why) = self.ledger.decide(id, commit.view, Fate::Committed) {
            return self.fail(format!("{} commits: {why}", self.nodes[i].name));
        }
        self.stats.retried += u64::from(commit.record.attempt > 0);
        self.check_pace(i, &commit);
        self.nodes[i].commits += 1;
        self.nodes[i].last_commit_at = self.now;
    }

    /// Where nothing goes wrong every round succeeds at once, and nobody waits for a newcomer.
    fn check_pace(&mut self, i: usize, commit: &Commit) {
        if !self.plan.is_calm() {
            return;
        }
        let (name, round) = (&self.nodes[i].name, commit.record.round);
        if commit.record.attempt > 0 {
            return self.fail(format!(
                "round {round} took a second attempt though nothing went wrong"
            ));
        }
        let trains = commit.record.headers.len() >= usize::from(self.plan.manifest.min_peers);
        if self.nodes[i].commits == 0 || !trains {
            return;
        }
        let n = commit.record.headers.len() as f64;
        let vector = 4.0 * self.plan.manifest.layout.len as f64 + 2000.0;
        // The slowest way that can be drawn, there and back for each hop.
        let hop_us = 3.75 * 1.25 * self.plan.latency_us + vector / (0.5 * self.plan.rate_bytes_per_s) * 1e6;
        let compute_us = commit
            .record
            .headers
            .iter()
            .map(|h| h.compute_us)
            .max()
            .unwrap_or(0);
        let most_us = compute_us as f64 + 4.0 * n * hop_us + 100_000.0;
        let took_us = (self.now - self.nodes[i].last_commit_at) as f64;
        if took_us > most_us {
            let (took, most) = (took_us / 1e6, most_us / 1e6);
            self.fail(format!(
                "{name} waited {took:.3} s for round {round}, which needs at most {most:.3} s"
            ));
        }
    }

    /// After every input: does the peer stand where it should, within its bounds?
    pub(super) fn look_at(&mut self, i: usize) {
        let node = &self.nodes[i];
        let Some(peer) = &node.peer else { return };
        let vector = 4 * self.plan.manifest.layout.len + 4096;
        let buffered = peer.buffered_bytes();
        if buffered > MOST_VECTORS * vector {
            return self.fail(format!("{} has buffered {buffered} bytes", node.name));
        }
        let here = match &peer.phase {
            Phase::Member(w) => w.decided.as_slice(),
            _ => &[],
        };
        let last = peer.last.as_ref().map_or(&[][..], |last| &last.decided);
        for decided in last.iter().chain(here) {
            let fate = Fate::Aborted(decided.suspects.clone());
            if let Err(why) = self.ledger.decide(node.id, decided.view, fate) {
                return self.fail(format!("{} aborts: {why}", node.name));
            }
        }
        let stands = stands(peer);
        let member = stands.is_some();
        if member && (node.stands != stands || node.last_commit_at == self.now) {
            if let Err(why) = self.ledger.stand(node, peer) {
                return self.fail(format!("{} after round {}: {why}", node.name, peer.head().round));
            }
        }
        self.nodes[i].stands = stands;
        self.nodes[i].was_member |= member;
    }

    /// A peer says that it is done.
    pub(super) fn check_exit(&mut self, i: usize) {
        let node = &self.nodes[i];
        let (Some(peer), Some(exit)) = (&node.peer, &node.exit) else {
            return;
        };
        let head = peer.head();
        let wrong = match exit {
            Exit::Finished => {
                if let Err(why) = self.ledger.stand(node, peer) {
                    return self.fail(format!("{} finished: {why}", node.name));
                }
                let samples = self.ledger.points.get(&head.chain).map(|p| &p.samples);
                let done = samples.is_some_and(|s| s.iter().all(|s| !matches!(s, Sample::Open(_))));
                (!done).then_some("finished, but not every sample is counted or given up")
            }
            Exit::Left => (!node.leaving).then_some("left without being asked"),
            Exit::NotFinite => (!self
                .plan
                .faults
                .iter()
                .any(|(k, _)| *k == super::faults::Kind::Spoil))
            .then_some("saw nothing finite"),
        };
        let stands = (head.chain, peer.digest());
        if let Some(wrong) = wrong {
            return self.fail(format!("{} {wrong}", node.name));
        }
        if self.nodes[i].exit == Some(Exit::Finished) && self.first_finish.is_none() {
            self.first_finish = Some(self.now);
        }
        self.nodes[i].stands = Some(stands);
    }

    /// Longest round of this world, in microseconds: the slowest peer alone.
    fn longest_round_us(&self) -> f64 {
        let n = self.plan.peers.len() as f64;
        let vector = 4.0 * self.plan.manifest.layout.len as f64 + 2000.0;
        let hop_us = 4.7 * self.plan.latency_us + vector / (0.5 * self.plan.rate_bytes_per_s) * 1e6;
        3.0 * n * self.plan.round_us + 24.0 * hop_us + 2e6
    }

    /// Whether those alive can find each other at all: each knows another's address or is known, all in one.
    pub(super) fn is_connected(&self) -> bool {
        let alive: Vec<usize> = (0..self.nodes.len())
            .filter(|i| self.nodes[*i].is_alive())
            .collect();
        let knows = |a: usize, b: usize| {
            let id = self.nodes[b].id;
            self.nodes[a].peer.as_ref().is_some_and(|p| p.links.may_reach(id))
        };
        let mut met: Vec<usize> = alive.first().copied().into_iter().collect();
        let mut next = 0;
        while let Some(&a) = met.get(next) {
            next += 1;
            for &b in &alive {
                if !met.contains(&b) && (knows(a, b) || knows(b, a)) {
                    met.push(b);
                }
            }
        }
        met.len() == alive.len()
    }

    /// Whether all had the time to meet before the first finished.
    fn is_fair(&self) -> bool {
        if self.apart || self.hopeless {
            return false;
        }
        let healed_at = self.healed_at.unwrap_or(u64::MAX);
        self.plan.is_calm()
            || self
                .first_finish
                .is_none_or(|first| first >= healed_at.saturating_add(GRACE_US))
    }

    /// Once the faults have ended the run must come to its end, with everybody on board.
    pub(super) fn check_progress(&mut self) {
        let Some(healed_at) = self.healed_at.filter(|_| self.is_fair()) else {
            return;
        };
        let round_us = self.longest_round_us();
        let rounds = self.plan.manifest.target as f64 / f64::from(self.plan.manifest.batch) + 10.0;
        let bound = healed_at + (rounds * round_us) as u64 + 2 * PATIENCE_US;
        if self.now > bound {
            return self.fail(format!(
                "not finished so long after the faults: {}",
                self.situation()
            ));
        }
        let patience = PATIENCE_US + (10.0 * round_us) as u64;
        for node in &self.nodes {
            let joins = node.peer.as_ref().is_some_and(|p| stands(p).is_none());
            if joins && self.now > healed_at.max(node.last_commit_at) + patience {
                return self.fail(format!("{} is still no member: {}", node.name, self.situation()));
            }
        }
    }

    /// All are done: together, and all of them.
    pub(super) fn check_end(&mut self) {
        if self.nodes.iter().any(|n| n.exit == Some(Exit::NotFinite)) {
            return;
        }
        let finished: Vec<&Node> = self
            .nodes
            .iter()
            .filter(|n| n.exit == Some(Exit::Finished))
            .collect();
        if self.hopeless {
            return;
        }
        let Some(first) = finished.first() else {
            return self.fail(format!("nobody finished: {}", self.situation()));
        };
        if !self.is_fair() {
            return;
        }
        self.stats.judged += 1;
        if let Some(other) = finished.iter().find(|n| n.stands != first.stands) {
            let why = format!(
                "{} and {} finished apart: {:?} {:?}",
                first.name, other.name, first.stands, other.stands
            );
            self.fail(why);
        }
    }
}
