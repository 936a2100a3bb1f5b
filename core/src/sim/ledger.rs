//! The reference: all lineages as they should be, computed without the code under test. Sums are plain loops over
//! the contributions that the devices really made, and samples are counted one by one. It uses the protocol's own
//! arithmetic only for the codec, the optimizer's step, the allotment and the hash of a lineage.

mod arithmetic;
mod checks;
mod standing;

use self::arithmetic::step;
use self::checks::{check_guests, check_head, check_record, check_stop, count};
use super::node::Node;
use super::{device, kept};
use crate::access::signature::Signed;
use crate::base::id::{Digest, PeerId, Round};
use crate::base::planted::Bug;
use crate::ledger::local::{LocalOptimizer, LocalRound, Part};
use crate::ledger::{Head, Header, Record};
use crate::numeric::codec::Codec;
use crate::numeric::optim::{Slot, norm_squared};
use crate::peer::device::Asked;
use crate::peer::{Commit, Peer};
use crate::run::config::{Manifest, Topology};
use crate::run::parts::{PartSet, Parts};
use crate::state::State;
use crate::wire::ViewKey;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// The fate of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sample {
    /// Not counted; perhaps refused by this member because its result was not usable.
    Open(Option<PeerId>),
    /// Given up.
    Skipped,
    Counted,
}

/// One point of a lineage.
struct Point {
    head: Head,
    /// The lineage that a lone peer continued from to here.
    parent: Option<Digest>,
    /// The lineage before the round that led here.
    previous: Option<Digest>,
    /// All states that peers hold here, each with the digest of the state before. There is more than one only after
    /// a bit has flipped.
    states: Vec<Held>,
    samples: Vec<Sample>,
    /// Local optimizers that continue from here, by member.
    moments: BTreeMap<PeerId, LocalOptimizer>,
    /// The sums of the round that led here, as decoded; `None` for a round without samples.
    sums: Option<Vec<f32>>,
    errors: Errors,
    /// Rounds committed from here, and where they lead. Each record's consequences are computed once.
    next: Vec<(Record, Digest)>,
}

/// Rounding errors of each member's sums that are in no state yet. `None` if unknown.
type Errors = Option<BTreeMap<PeerId, Vec<f32>>>;

struct Held {
    before: Digest,
    digest: Digest,
    state: State,
    /// Whether it has this digest. After a bit has flipped it may not.
    is_sound: bool,
}

/// A device's result.
struct Made {
    /// The digest of the state that it was computed from. A peer that finds its state damaged lets its device
    /// repeat its share.
    from: Digest,
    weight: u32,
    /// Whether a local optimizer started from zero with it.
    fresh: Option<bool>,
    /// The sum of the losses, where the right value is known.
    loss: Option<f32>,
    gradient: Vec<f32>,
}

impl Made {
    /// The length of the gradient by samples.
    fn length(&self) -> f64 {
        norm_squared(&self.gradient).sqrt() / f64::from(self.weight)
    }

    fn is_of(&self, header: &Header) -> bool {
        let anew = self.fresh.is_none_or(|fresh| fresh == header.anew);
        let loss = self.loss.is_none_or(|loss| loss == header.loss);
        self.weight == header.weight && anew && loss && (header.ahead || self.from == header.digest)
    }
}

/// The member, the lineage that it computes from, and the round.
type Work = (PeerId, Digest, Round);

/// How an attempt ended for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Committed,
    /// Tried again without these.
    Aborted(BTreeSet<PeerId>),
}

/// A member's decision about an attempt.
#[derive(Debug, PartialEq)]
struct Decided {
    by: PeerId,
    fate: Fate,
    /// It was a member then, and has ceased to be one since.
    is_gone: bool,
}

/// All lineages, as they should be.
pub(super) struct Ledger {
    manifest: Arc<Manifest>,
    points: BTreeMap<Digest, Point>,
    /// Each member's decision about each attempt.
    fates: BTreeMap<ViewKey, Vec<Decided>>,
    /// The devices' results: weight and sum.
    contributions: BTreeMap<Work, Vec<Made>>,
    /// Their local optimizers after these.
    moments: BTreeMap<(PeerId, Digest), LocalOptimizer>,
    /// Peers whose devices may be claimed to have computed anything.
    pub liars: BTreeSet<PeerId>,
    /// A bit has flipped where members keep parts of the moments. A state that a lone peer continues from, or that
    /// others learn meanwhile, then need not equal the reference, but only be the same for all.
    pub is_tainted: bool,
    /// Whether a liar has lied about moments: from then on only the keepers know them.
    pub is_unkept: bool,
    /// A planted bug of the rules that this ledger makes too, so that only its consequences show.
    pub rules: Option<Bug>,
}

impl Ledger {
    pub fn new(manifest: Arc<Manifest>) -> Self {
        Self {
            manifest,
            points: BTreeMap::new(),
            fates: BTreeMap::new(),
            contributions: BTreeMap::new(),
            moments: BTreeMap::new(),
            liars: BTreeSet::new(),
            is_tainted: false,
            is_unkept: false,
            rules: None,
        }
    }

    /// Whether a peer has continued alone, or two sides apart from each other.
    pub fn has_forks(&self) -> bool {
        let mut led: Vec<Digest> = self.points.values().filter_map(|point| point.previous).collect();
        let all = led.len();
        led.sort_unstable();
        led.dedup();
        led.len() < all || self.points.values().any(|point| point.parent.is_some())
    }

    /// Rounds over all lineages.
    pub fn rounds(&self) -> u64 {
        self.points.len().saturating_sub(1) as u64
    }

    /// The topology of the round after a lineage.
    pub fn topology(&self, chain: Digest) -> Option<Topology> {
        self.points.get(&chain).map(|point| point.head.pace.topology)
    }

    /// The run's beginning.
    pub fn found(&mut self, head: &Head, state: &State) {
        let digest = kept::digest(state, &self.manifest);
        let state = match self.manifest.copies {
            Some(_) => kept::begin(state, &self.manifest),
            None => state.clone(),
        };
        let states = vec![Held {
            before: digest,
            digest,
            state,
            is_sound: true,
        }];
        let samples = vec![Sample::Open(None); self.manifest.target.get() as usize];
        self.points.insert(
            head.chain,
            Point {
                head: head.clone(),
                parent: None,
                previous: None,
                states,
                samples,
                moments: BTreeMap::new(),
                sums: None,
                errors: Some(BTreeMap::new()),
                next: Vec::new(),
            },
        );
    }

    /// A device got a task: checks its share and the parameters.
    pub fn contribute(
        &mut self,
        (node, round, doubtful): (&Node, Round, bool),
        local: Option<LocalRound>,
        positions: &[Range<u64>],
        params: &[f32],
        weight: u64,
        gradient: &[f32],
    ) -> Result<(), String> {
        let Some(peer) = &node.peer else { return Ok(()) };
        self.begin_misled(node, peer);
        let (from, digest) = origin(peer);
        let point = self
            .points
            .get(&from)
            .ok_or_else(|| format!("{} works on an unknown lineage", node.name))?;
        let me = point
            .head
            .position(node.id)
            .ok_or_else(|| format!("{} works without being a member", node.name))?;
        if round <= point.head.round {
            // It has entered and committed the round at once, alone, so nobody saw it in between.
            return Ok(());
        }
        let share = match round == point.head.round + 1 {
            true => point.head.allot(&self.manifest),
            false => point.head.allot_ahead(&self.manifest),
        };
        let share = share.ranges(me);
        // A device without a share is only tried out.
        if !share.is_empty() && share != positions {
            return Err(format!(
                "{} works on another share than its own: {positions:?}",
                node.name
            ));
        }
        let (mut moments, mut loss) = (node.moments.clone(), None);
        // Between two rounds committed at once from sums that a liar has spoilt, only the device holds the state.
        let unseen = point.states.is_empty();
        if !doubtful && !unseen {
            let held = point.states.iter().find(|s| s.digest == digest);
            let held =
                held.ok_or_else(|| format!("{} holds a state that no member has: {digest}", node.name))?;
            if !same_bits(&held.state.params, params) {
                return Err(format!(
                    "{} computes from parameters that are not its lineage's",
                    node.name
                ));
            }
            let known = point.moments.get(&node.id);
            let mut made = (Vec::new(), 0.0);
            let (pure, of_steps) = match local.filter(|_| !share.is_empty()) {
                None => device::contribution(&self.manifest.layout, params, positions, weight),
                // The result of the first steps shows in that of the others.
                Some(round) if round.part == Part::Lead => return Ok(()),
                Some(round) => {
                    let allotment = point.head.allot(&self.manifest);
                    if point.head.cut(&allotment, me, &self.manifest) != Some(round.cut) {
                        return Err(format!("{} cuts its share into other steps", node.name));
                    }
                    moments = match round.fresh {
                        true => LocalOptimizer::new(&self.manifest),
                        false => known.cloned().ok_or_else(|| {
                            format!("{} goes on with moments of another membership", node.name)
                        })?,
                    };
                    let lead = LocalRound::lead(round.cut).filter(|_| round.part == Part::Rest);
                    for round in lead.into_iter().chain([round]) {
                        let weight = round.counted(weight as usize).into();
                        let round = (&*self.manifest, &round);
                        let (pure, of_steps) =
                            device::local_contribution(params, positions, weight, round, &mut moments);
                        made = (pure, made.1 + of_steps);
                    }
                    made
                }
            };
            loss = Some(of_steps);
            if weight > 0 && !same_bits(&pure, gradient) {
                return Err(format!(
                    "{}'s contribution is not what its state gives",
                    node.name
                ));
            }
        }
        if weight > 0 {
            self.give((node, round, local), weight, loss, gradient);
        }
        if !share.is_empty() {
            self.moments.insert((node.id, from), moments);
        }
        Ok(())
    }

    /// A device got a part of a check of a guest's work: it must be of a guest's share, from the parameters before the
    /// round.
    pub fn check_spot(
        &mut self,
        (node, doubtful): (&Node, bool),
        positions: &[Range<u64>],
        params: &[f32],
    ) -> Result<(), String> {
        let Some(peer) = &node.peer else { return Ok(()) };
        self.begin_misled(node, peer);
        let (from, digest) = origin(peer);
        let point = self
            .points
            .get(&from)
            .ok_or_else(|| format!("{} checks work on an unknown lineage", node.name))?;
        let shares = point.head.allot(&self.manifest);
        let is_of = |place: usize| {
            let share = shares.ranges(place);
            let within = |range: &Range<u64>| {
                share
                    .iter()
                    .any(|of| of.start <= range.start && range.end <= of.end)
            };
            positions.iter().all(within)
        };
        let mut members = point.head.members.iter().enumerate();
        if !members.any(|(place, member)| !member.is_full() && is_of(place)) {
            return Err(format!(
                "{} checks what no guest has to compute: {positions:?}",
                node.name
            ));
        }
        let held = point.states.iter().find(|s| s.digest == digest);
        match held.filter(|_| !doubtful) {
            Some(held) if !same_bits(&held.state.params, params) => Err(format!(
                "{} checks work with parameters that are not its lineage's",
                node.name
            )),
            _ => Ok(()),
        }
    }

    /// The local optimizers that continue after a round. Of members that counted samples, those of then; of others,
    /// the earlier ones, unless their headers declare a reset.
    fn moments_after(&self, before: Digest, record: &Record) -> BTreeMap<PeerId, LocalOptimizer> {
        let point = &self.points[&before];
        let moments = |header: &Header| match header.weight {
            0 => point.moments.get(&header.peer).filter(|_| !header.anew),
            _ => self.moments.get(&(header.peer, before)),
        };
        let headers = record.headers.iter();
        headers
            .filter_map(|h| Some((h.peer, moments(h)?.clone())))
            .collect()
    }

    /// A device has computed this, or a liar says so.
    pub fn give(
        &mut self,
        (node, round, local): (&Node, Round, Option<LocalRound>),
        weight: u64,
        loss: Option<f32>,
        gradient: &[f32],
    ) {
        let is_lead = local.is_some_and(|round| round.part == Part::Lead);
        if let Some(peer) = node.peer.as_ref().filter(|_| !is_lead) {
            let (from, state) = origin(peer);
            let made = self.contributions.entry((node.id, from, round)).or_default();
            made.push(Made {
                from: state,
                weight: weight as u32,
                fresh: local.map(|round| round.fresh),
                loss,
                gradient: gradient.to_vec(),
            });
        }
    }

    /// A peer has committed a round. Returns the lineage after it. If a liar has `spoilt` the sums, the peer's own
    /// count, and the next round compares them.
    pub fn commit(
        &mut self,
        before: Digest,
        me: &Node,
        commit: &Commit,
        spoilt: bool,
    ) -> Result<Digest, String> {
        let (record, digest) = (&commit.record, commit.digest);
        let point = self
            .points
            .get(&before)
            .ok_or("it goes on from an unknown lineage")?;
        let known = point.next.iter().find(|(known, _)| known == record);
        let known = known.map(|(_, chain)| *chain);
        if known.is_none() {
            check_record(&point.head, record, &self.manifest)?;
        }
        let own = record
            .headers
            .iter()
            .find(|h| h.peer == me.id)
            .ok_or("its own header is not in the record")?;
        let majority = point.head.majority(record);
        if Some(own.digest) != majority {
            return Err(format!(
                "its state {} is not the majority's {majority:?}",
                own.digest
            ));
        }
        let unseen = point.states.is_empty();
        // Only the keepers know moments that were stepped by spoilt sums.
        let unkept = self.manifest.copies.is_some() && point.states.iter().any(|s| s.state.slots.is_empty());
        let is_split = self.manifest.split.is_some();
        // Headers do not tell who computed what of a split model.
        let unknown = self.is_unkept || !is_split && self.is_unknown(before, record);
        let unknown = unseen || unkept || unknown;
        let spoilt = spoilt || unknown || self.lacks_errors(point, record);
        let chain = match known {
            Some(chain) => chain,
            None => self.lead(before, record, spoilt)?,
        };
        match spoilt {
            true => self.apply_spoilt((before, chain), own.digest, me, record, digest)?,
            false => self.apply(before, chain, own.digest, me, record, digest)?,
        }
        Ok(chain)
    }

    /// Where a record leads that nobody has committed before.
    fn lead(&mut self, before: Digest, record: &Record, spoilt: bool) -> Result<Digest, String> {
        let point = &self.points[&before];
        let mut head = point.head.clone();
        head.apply_of(&head.attempt_of(record), record, &self.manifest, self.rules);
        let chain = head.chain;
        if let Some(target) = self.back(before, record, &head)? {
            return Ok(self.lead_back(before, record, (head, target)));
        }
        let point = &self.points[&before];
        kept::check_copies(&point.head, &head, record, &self.manifest)?;
        check_guests(&point.head, record, &head, &self.manifest)?;
        check_stop(&point.head, record, &head, &self.manifest)?;
        if !self.points.contains_key(&chain) {
            let (sums, errors) = match spoilt {
                true => (None, None),
                false => self.reduce(before, record)?,
            };
            let samples = count(point, record, &self.manifest)?;
            let moments = self.moments_after(before, record);
            check_head(&head, &samples)?;
            self.points.insert(
                chain,
                Point {
                    head,
                    parent: None,
                    previous: Some(before),
                    states: Vec::new(),
                    samples,
                    moments,
                    sums,
                    errors,
                    next: Vec::new(),
                },
            );
        }
        let from = self.points.get_mut(&before).expect("just looked up");
        from.next.push((record.clone(), chain));
        Ok(chain)
    }

    /// The lineage to which a record goes back, if it does. It must lead here, no member may have the trained
    /// values of some part, all keepers must have waited, and all parts must be on disks.
    fn back(&self, before: Digest, record: &Record, head: &Head) -> Result<Option<Digest>, String> {
        let point = &self.points[&before];
        if self.manifest.split.is_none() || head.stepped == point.head.stepped || head.stepped == head.chain {
            return Ok(None);
        }
        let target = head.stepped;
        let mut at = Some(before);
        while at.is_some_and(|chain| chain != target) {
            let point = at.and_then(|chain| self.points.get(&chain));
            at = point.and_then(|point| point.previous.or(point.parent));
        }
        if at.is_none() {
            return Err(format!("it goes back to {target}, which does not lead there"));
        }
        let said = || record.headers.iter().filter(|h| point.head.is_full(h.peer));
        let (mut kept, mut on_disks) = (PartSet::default(), PartSet::default());
        for header in said() {
            kept = kept.or(&header.keeps.kept);
            let saved = header.keeps.saved.iter().filter(|saved| saved.stepped == target);
            on_disks = saved.fold(on_disks, |all, saved| all.or(&saved.parts));
        }
        let all = Parts::of_len(self.manifest.layout.len).all();
        if all.without(&kept).is_empty() {
            return Err("it goes back though each part has a keeper".into());
        }
        if !all.without(&on_disks).is_empty() {
            return Err("it goes back to where not all parts are".into());
        }
        let impatient = |h: &&Signed<Header>| !h.keeps.kept.is_empty() && !h.keeps.waits && !h.leaving;
        match said().find(impatient) {
            Some(header) => Err(format!("it goes back though {} does not wait", header.peer)),
            None => Ok(Some(target)),
        }
    }

    /// A record goes back: counts and state are what they were there.
    fn lead_back(&mut self, before: Digest, record: &Record, (head, target): (Head, Digest)) -> Digest {
        let (chain, to) = (head.chain, &self.points[&target]);
        let states = to.states.iter().map(|s| Held {
            before: s.digest,
            digest: s.digest,
            state: s.state.clone(),
            is_sound: s.is_sound,
        });
        let point = Point {
            states: states.collect(),
            samples: to.samples.clone(),
            head,
            parent: None,
            previous: Some(before),
            moments: BTreeMap::new(),
            sums: None,
            errors: Some(BTreeMap::new()),
            next: Vec::new(),
        };
        self.points.entry(chain).or_insert(point);
        let from = self.points.get_mut(&before).expect("just looked up");
        from.next.push((record.clone(), chain));
        chain
    }

    /// Compares the serial reference's next state with the peer's.
    fn apply(
        &mut self,
        before: Digest,
        chain: Digest,
        own: Digest,
        me: &Node,
        record: &Record,
        digest: Digest,
    ) -> Result<(), String> {
        let peer = me.peer.as_ref().ok_or("it is gone")?;
        let actual = peer.state();
        let later = is_later(peer, record);
        let is_known = |s: &&Held| s.before == own;
        let known = self.points[&chain].states.iter().find(is_known).map(|s| s.digest);
        let expected = match known {
            Some(known) => known,
            None => {
                let point = &self.points[&before];
                let held = point.states.iter().find(|s| s.digest == own);
                let held = held.map(|held| held.state.clone());
                let mut state = held
                    .or_else(|| noticed(me, actual, own, record, point))
                    .ok_or_else(|| format!("nobody held the state {own} that it goes on from"))?;
                if let Some(sums) = &self.points[&chain].sums {
                    match self.manifest.copies {
                        Some(_) => kept::step(&mut state, &self.manifest, &point.head, record, sums),
                        None => step(&mut state, &self.manifest, &point.head, record, sums),
                    }
                }
                kept::begin_anew(&mut state, &self.manifest, &point.head, &self.points[&chain].head);
                let digest = kept::digest(&state, &self.manifest);
                let point = self.points.get_mut(&chain).expect("just made");
                point.states.push(Held {
                    before: own,
                    digest,
                    state,
                    is_sound: true,
                });
                digest
            }
        };
        let is_held = || {
            let states = &self.points[&chain].states;
            let held = states.iter().find(|s| s.before == own && s.digest == digest);
            let is_same = held.is_some_and(|s| s.is_sound && is_same(actual, &s.state, &self.manifest));
            is_same || actual.digest() == digest
        };
        if digest == expected && (me.is_doubtful() || later || is_held()) {
            let states = &self.points[&chain].states;
            let held = states.iter().find(|s| s.before == own && s.digest == digest);
            let looks = self.manifest.copies.is_some() && !me.is_doubtful() && !later && !self.is_tainted;
            return match held.filter(|_| looks) {
                Some(held) => kept::check(peer, &held.state),
                None => Ok(()),
            };
        }
        let others = self.points[&chain]
            .states
            .iter()
            .filter(|s| s.before == own && s.digest != expected);
        let (is_first, is_known) = (
            others.clone().count() == 0,
            others.clone().any(|s| s.digest == digest),
        );
        if self.is_tainted && is_known {
            return Ok(());
        }
        if !(me.is_doubtful() || self.is_tainted && is_first) {
            return Err(format!(
                "its state {digest} is not the serial reference's {expected}"
            ));
        }
        let point = self.points.get_mut(&chain).expect("just made");
        let mut state = actual.clone();
        // If members keep parts, its moments are not all in one place.
        if let Some(held) = point
            .states
            .iter()
            .find(|s| s.before == own)
            .filter(|_| state.slots.is_empty())
        {
            state.slots = held.state.slots.clone();
        }
        point.states.push(Held {
            before: own,
            digest,
            state,
            is_sound: true,
        });
        Ok(())
    }

    /// The results of a contributor's device for a round after a lineage.
    fn made(&self, before: Digest, round: Round, header: &Header) -> Option<&Vec<Made>> {
        self.contributions.get(&(header.peer, before, round))
    }

    /// Whether a liar counts samples that its device was not said to have computed, or of which members may have
    /// shortened the gradient.
    fn is_unknown(&self, before: Digest, record: &Record) -> bool {
        let made = |h: &Header| {
            let made = self.made(before, record.round, h)?;
            made.iter().find(|made| made.is_of(h))
        };
        let at_work = || record.headers.iter().filter(|h| h.weight > 0);
        let is_liar = |h: &Header| self.liars.contains(&h.peer);
        let of_others = at_work().filter(|h| !is_liar(h));
        let longest = of_others
            .filter_map(|h| Some(made(h)?.length()))
            .fold(0.0, f64::max);
        let mut of_liars = at_work().filter(|h| is_liar(h));
        of_liars.any(|h| made(h).is_none_or(|made| made.length() > 2.0 * longest))
    }

    /// Whether the errors that members add to their contributions are unknown.
    fn lacks_errors(&self, point: &Point, record: &Record) -> bool {
        self.manifest.feedback() && point.errors.is_none() && record.weight() > 0
    }

    /// Compares the state that follows from a peer's own sums with its state.
    fn apply_spoilt(
        &mut self,
        (before, chain): (Digest, Digest),
        own: Digest,
        me: &Node,
        record: &Record,
        digest: Digest,
    ) -> Result<(), String> {
        let peer = me.peer.as_ref().ok_or("it is gone")?;
        if self.manifest.split.is_some() {
            return self.pass_over(chain, own, digest);
        }
        let point = &self.points[&before];
        let held = match point.states.iter().find(|s| s.digest == own) {
            Some(held) => &held.state,
            None if point.states.is_empty() => peer.state(),
            None => return Err(format!("nobody held the state {own} that it goes on from")),
        };
        let mut state = held.clone();
        let last = peer.shared.lineage.last.as_ref().ok_or("it keeps no sums")?;
        let mut sums = match (self.manifest.copies, self.manifest.codec) {
            // Pieces that were dropped equal the parameters.
            (Some(_), Codec::F32) => peer.state().params.clone(),
            _ => vec![0.0; self.manifest.layout.len],
        };
        last.sums
            .decode(0..sums.len(), |range, values| sums[range].copy_from_slice(values));
        let trains = kept::trains(&point.head, record, &self.manifest);
        let steps = record.weight() > 0 && trains && !point.states.is_empty();
        match self.manifest.copies {
            // Published updates are the new weights.
            Some(_) => {
                state.slots.clear();
                if steps {
                    kept::update(&mut state.params, self.manifest.codec, &sums);
                }
            }
            None if steps => step(&mut state, &self.manifest, &point.head, record, &sums),
            None => {}
        }
        // The kept sums are those of a round that was committed at once after it.
        let later = is_later(peer, record) && record.weight() > 0;
        // A bit may have flipped since: the state is stored under this digest.
        if (me.is_doubtful() || later) && state.digest() != digest {
            state = peer.state().clone();
        }
        let expected = state.digest();
        if later && expected != digest {
            // Both have samples, so nobody sees the state between them.
            return Ok(());
        }
        if expected != digest && !me.is_doubtful() {
            return Err(format!(
                "its state {digest} does not follow from its sums, but {expected}"
            ));
        }
        let point = self.points.get_mut(&chain).expect("just made");
        if point
            .states
            .iter()
            .all(|held| (held.before, held.digest) != (own, digest))
        {
            let before = own;
            point.states.push(Held {
                before,
                digest,
                state,
                is_sound: expected == digest,
            });
        }
        Ok(())
    }

    /// In a split run nobody has the whole state. The effect of spoilt sums shows in the holders' digests of their
    /// parts.
    fn pass_over(&mut self, chain: Digest, own: Digest, digest: Digest) -> Result<(), String> {
        let point = self.points.get_mut(&chain).expect("just made");
        let is_here = |held: &Held| (held.before, held.digest) == (own, digest);
        if !point.states.iter().any(is_here) {
            point.states.push(Held {
                before: own,
                digest,
                state: State::new(Vec::new(), &self.manifest),
                is_sound: true,
            });
        }
        Ok(())
    }

    /// How many full members the round that led to a lineage could have had.
    pub fn full_members_before(&self, chain: Digest) -> Option<usize> {
        let previous = self.points.get(&chain)?.previous?;
        Some(self.points.get(&previous)?.head.full_members().count())
    }

    /// Whether a peer's lineage leads to the state that it holds.
    pub fn holds(&self, peer: &Peer) -> bool {
        let point = self.points.get(&peer.head().chain);
        let digest = peer.state().digest();
        digest == peer.digest() && point.is_some_and(|point| point.states.iter().any(|s| s.digest == digest))
    }

    /// A member has decided about an attempt. Members that do not exclude each other must agree, and none changes
    /// its decision.
    pub fn decide(&mut self, peer: PeerId, view: ViewKey, fate: Fate) -> Result<(), String> {
        let fates = self.fates.entry(view).or_default();
        let new = Decided {
            by: peer,
            fate,
            is_gone: false,
        };
        if fates.contains(&new) {
            return Ok(());
        }
        let excludes =
            |fate: &Fate, peer| matches!(fate, Fate::Aborted(suspects) if suspects.contains(&peer));
        // In a split run, a member that is alone with its sums may commit an attempt that others, which it
        // suspects, give up.
        let may_part = self.manifest.split.is_some();
        let parts = |a: &Fate, b: &Fate| may_part && (*a == Fate::Committed) != (*b == Fate::Committed);
        for old in fates.iter() {
            if parts(&old.fate, &new.fate) || (old.is_gone && old.by == peer) {
                continue;
            }
            if old.fate != new.fate && !excludes(&new.fate, old.by) && !excludes(&old.fate, peer) {
                let (fate, by, theirs) = (new.fate, old.by, &old.fate);
                return Err(format!("attempt {view:?} was {fate:?}, but {by} {theirs:?}"));
            }
        }
        fates.push(new);
        Ok(())
    }

    /// A peer is not a member any more. If it finds others at an attempt that it has decided about, it is there as
    /// one that knows nothing of it: the members that it had agreed with suspect it by then.
    pub fn is_gone(&mut self, peer: PeerId) {
        let own = self.fates.values_mut().flatten().filter(|old| old.by == peer);
        own.for_each(|old| old.is_gone = true);
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    bytemuck::cast_slice::<f32, u8>(a) == bytemuck::cast_slice::<f32, u8>(b)
}

/// Whether the part of a state that all hold equals the reference, bit by bit.
fn is_same(state: &State, reference: &State, manifest: &Manifest) -> bool {
    let same = |(a, b): (&Slot, &Slot)| {
        let all = 0..a.len();
        let floats = a.len() == b.len() && same_bits(a.floats(all.clone()), b.floats(all.clone()));
        floats && a.codes(all.clone()) == b.codes(all)
    };
    let params = manifest.split.is_some() || same_bits(&state.params, &reference.params);
    let slots =
        || state.slots.len() == reference.slots.len() && state.slots.iter().zip(&reference.slots).all(same);
    params && (manifest.copies.is_some() || slots())
}

/// The lineage and the state that a device computes from, by its peer's account. Share and parameters must match
/// these.
fn origin(peer: &Peer) -> (Digest, Digest) {
    match peer.shared.device.asked {
        Some(Asked::Share { chain, state, .. } | Asked::Check { chain, state }) => (chain, state),
        _ => (peer.head().chain, peer.digest()),
    }
}

/// Whether a peer has committed another round since. A lone peer with nothing to compute does so at once.
fn is_later(peer: &Peer, record: &Record) -> bool {
    peer.head().round > record.round
}

/// The state of a lone peer that has noticed at once that its state was damaged, and commits rounds which leave it
/// as it is. Nobody saw it in between.
fn noticed(me: &Node, actual: &State, own: Digest, record: &Record, point: &Point) -> Option<State> {
    let is_lone = record.headers.len() == 1 && record.weight() == 0;
    if !is_lone || !me.is_doubtful() || actual.digest() != own {
        return None;
    }
    let mut state = actual.clone();
    // If members keep parts, its moments are not all in one place.
    if state.slots.is_empty() {
        state.slots = point.states.first()?.state.slots.clone();
    }
    Some(state)
}
