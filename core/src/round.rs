//! A member's way through a round: contribute, reduce, commit. What happens when another member fails is
//! in `flush.rs`.

use crate::config::Manifest;
use crate::flush::{Decided, Flush, Probing};
use crate::id::{Digest, PeerId, Round};
use crate::ledger::{Allotment, Head, Header, Member, Record};
use crate::peer::{Change, Commit, Event, Exit, Lane, Output, Peer, Phase};
use crate::planted::Bug;
use crate::reduce::{Assembly, Hops, Reduce, Violation};
use crate::schedule::Ring;
use crate::state::plan;
use crate::time::Time;
use crate::wire::{Doing, Message, Standing, ViewKey};
use std::collections::BTreeSet;
use std::time::Duration;

/// The members of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub key: ViewKey,
    pub members: Vec<PeerId>,
    pub me: usize,
}

impl View {
    /// `None` if this peer is not among the members.
    fn new(head: &Head, attempt: u32, members: Vec<PeerId>, me: PeerId) -> Option<Self> {
        let id = view_id(head, attempt, &members);
        let me = members.iter().position(|m| *m == me)?;
        Some(Self {
            key: ViewKey {
                round: head.round + 1,
                attempt,
                id,
            },
            members,
            me,
        })
    }

    pub fn contains(&self, peer: PeerId) -> bool {
        self.members.contains(&peer)
    }

    pub fn others(&self) -> impl Iterator<Item = PeerId> {
        let me = self.me;
        self.members
            .iter()
            .enumerate()
            .filter(move |(i, _)| *i != me)
            .map(|(_, m)| *m)
    }
}

/// What tells an attempt from all others: lineage, attempt and members.
pub(crate) fn view_id(head: &Head, attempt: u32, members: &[PeerId]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head.chain.0).update(&attempt.to_le_bytes());
    for member in members {
        hasher.update(&member.0);
    }
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes"))
}

/// This member's values for the round.
#[derive(Debug)]
pub(crate) enum Own {
    /// The device is at work.
    Computing,
    /// They wait for the reduce, or are in it; kept for another attempt.
    Made {
        gradient: Vec<f32>,
        weight: u32,
        loss: f32,
        compute: Duration,
    },
}

/// A commit that another member told of, while its pieces come.
#[derive(Debug)]
pub(crate) struct Told {
    pub by: PeerId,
    pub record: Record,
}

/// The last committed round.
#[derive(Debug)]
pub(crate) struct Committed {
    pub view: ViewKey,
    pub record: Record,
    pub digest: Digest,
    pub sums: Assembly,
    /// Who was excluded on the way to it.
    pub decided: Vec<Decided>,
    /// The lineage before it.
    pub before: Standing,
}

/// The round in work.
pub(crate) struct Working {
    pub view: View,
    pub allotment: Allotment,
    pub own: Own,
    pub reduce: Reduce,
    pub began: Time,
    pub made_at: Option<Time>,
    /// When the wait for the next piece becomes long.
    pub quiet_at: Option<Time>,
    pub probing: Option<Probing>,
    /// Probes in a row that found everybody well and nobody at work.
    pub idle_probes: u32,
    pub flush: Option<Flush>,
    pub told: Option<Told>,
    /// Aborted attempts of this round, for those who have not heard.
    pub decided: Vec<Decided>,
}

impl Working {
    /// Whether the view is too small to train: its rounds only change the membership.
    pub fn is_null(&self, manifest: &Manifest) -> bool {
        self.view.members.len() < usize::from(manifest.min_peers)
    }
}

impl Peer {
    /// Starts the round after the head, as one of its members.
    pub(crate) fn enter_round(&mut self) {
        if self.head.finished(&self.manifest) {
            return self.finish(Exit::Finished);
        }
        let members: Vec<PeerId> = self.head.members.iter().map(|m| m.peer).collect();
        for member in &self.head.members {
            self.links.want(member.peer, &member.contact, self.now);
        }
        let Some(working) = self.working(0, members, Vec::new()) else {
            return self.outcast("not among the members", None);
        };
        let null = working.is_null(&self.manifest);
        let me = working.view.me;
        let share = working.allotment.len(me);
        let members = working.view.members.len();
        self.phase = Phase::Member(Box::new(working));
        if null {
            self.out.push_back(Output::Event(Event::Waiting { members }));
        } else if share > 0 {
            self.ask_device();
        } else {
            let gradient = vec![0.0; self.manifest.layout.len];
            self.made(Own::Made {
                gradient,
                weight: 0,
                loss: 0.0,
                compute: Duration::ZERO,
            });
        }
        self.tell_strangers();
        self.start_if_ready();
        self.take_early();
    }

    /// A fresh attempt's record, before anything has come or gone.
    fn working(&self, attempt: u32, members: Vec<PeerId>, decided: Vec<Decided>) -> Option<Working> {
        let view = View::new(&self.head, attempt, members, self.settings.me)?;
        let reduce = self.new_reduce(&view);
        Some(Working {
            view,
            allotment: self.head.allot(&self.manifest),
            own: Own::Computing,
            reduce,
            began: self.now,
            made_at: None,
            quiet_at: None,
            probing: None,
            idle_probes: 0,
            flush: None,
            told: None,
            decided,
        })
    }

    fn new_reduce(&self, view: &View) -> Reduce {
        let null = view.members.len() < usize::from(self.manifest.min_peers);
        let len = if null { 0 } else { self.manifest.layout.len };
        let ring = Ring {
            n: view.members.len(),
            len,
            piece: self.manifest.piece as usize,
        };
        let reduce = Reduce::new(view.key, view.members.clone(), view.me, ring, self.manifest.codec);
        #[cfg(feature = "sim")]
        let reduce = reduce.keeping_exact(self.settings.planted(Bug::OwnerSkipsDecoding));
        reduce
    }

    /// The next attempt at the same round, without some members, from the contributions still held.
    pub(crate) fn next_attempt(&mut self, members: Vec<PeerId>) {
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let attempt = w.view.key.attempt + 1;
        let Some(view) = View::new(&self.head, attempt, members, self.settings.me) else {
            return self.outcast("excluded", None);
        };
        let reduce = self.new_reduce(&view);
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        w.view = view;
        w.reduce = reduce;
        w.quiet_at = None;
        w.probing = None;
        w.idle_probes = 0;
        w.flush = None;
        w.told = None;
        if w.is_null(&self.manifest) {
            let members = w.view.members.len();
            self.out.push_back(Output::Event(Event::Waiting { members }));
        }
        let lag = self.lag();
        for follower in self.followers.values_mut() {
            follower.begin_attempt(lag);
        }
        self.tell_strangers();
        self.start_if_ready();
        self.take_early();
    }

    /// Asks for this round's contribution, unless the device is still at an older one: it gets one thing at a
    /// time, so that a peer in trouble does not bury it.
    fn ask_device(&mut self) {
        let Phase::Member(w) = &self.phase else { return };
        let Some(place) = self.head.position(self.settings.me) else {
            return;
        };
        let positions = w.allotment.ranges(place);
        let idle = self.computing.is_none() && matches!(w.own, Own::Computing);
        if !idle || positions.is_empty() || self.head.members.len() < usize::from(self.manifest.min_peers) {
            return;
        }
        self.computing = Some((self.head.chain, self.digest));
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer.extend_from_slice(&self.state.params);
        let round = self.head.round + 1;
        self.out.push_back(Output::Compute {
            round,
            positions,
            buffer,
        });
    }

    /// The device has finished.
    pub(crate) fn on_contribution(
        &mut self,
        round: Round,
        gradient: Vec<f32>,
        weight: u32,
        loss: f32,
        took: Duration,
    ) {
        let elements = self.manifest.layout.len;
        let asked = self.computing.take();
        let Phase::Member(w) = &self.phase else {
            self.spare = gradient;
            return;
        };
        if asked != Some((self.head.chain, self.digest))
            || w.view.key.round != round
            || !matches!(w.own, Own::Computing)
        {
            // It was for a round since given up; the device is free for the one in work.
            self.spare = gradient;
            return self.ask_device();
        }
        // The share is that of the place in the head, not in the attempt's view.
        let share = self
            .head
            .position(self.settings.me)
            .map_or(0, |i| w.allotment.len(i));
        let finite = weight > 0 && loss.is_finite() && all_finite(&gradient);
        let own = if finite && gradient.len() == elements {
            let weight = weight.min(share.min(u64::from(u32::MAX)) as u32);
            self.measure_speed(weight, took);
            Own::Made {
                gradient,
                weight,
                loss,
                compute: took,
            }
        } else {
            self.out.push_back(Output::Event(Event::NotFinite { round }));
            let mut gradient = gradient;
            gradient.clear();
            gradient.resize(elements, 0.0);
            Own::Made {
                gradient,
                weight: 0,
                loss: 0.0,
                compute: took,
            }
        };
        self.made(own);
        self.start_if_ready();
    }

    fn measure_speed(&mut self, samples: u32, took: Duration) {
        let seconds = took.as_secs_f64().max(1e-6);
        let now = (f64::from(samples) * 1000.0 / seconds).min(1e15);
        // A quarter of each new measurement: shares follow a change within a few rounds but not each hiccup.
        let smooth = self.speed.map_or(now, |old| 0.75 * old as f64 + 0.25 * now);
        self.speed = Some((smooth as u64).max(1));
    }

    fn made(&mut self, own: Own) {
        if let Phase::Member(w) = &mut self.phase {
            w.own = own;
            w.made_at = Some(self.now);
        }
    }

    /// Puts this member's values into the reduce, if they are there and nothing speaks against it.
    pub(crate) fn start_if_ready(&mut self) {
        let Phase::Member(w) = &self.phase else {
            return;
        };
        if w.reduce.is_started() || w.flush.is_some() || w.told.is_some() {
            return;
        }
        let null = w.is_null(&self.manifest);
        let (weight, loss, compute) = match &w.own {
            // A round that only changes the membership begins when there is something to change.
            _ if null && (self.leaving || self.has_ready() || w.reduce.waits()) => (0, 0.0, Duration::ZERO),
            Own::Made {
                weight,
                loss,
                compute,
                ..
            } if !null => (*weight, *loss, *compute),
            _ => return,
        };
        let header = Header {
            peer: self.settings.me,
            weight,
            loss,
            speed: self.speed.unwrap_or(1),
            compute_us: compute.as_micros() as u64,
            digest: self.digest,
            ready: self.ready_followers(),
            leaving: self.leaving,
        };
        let mut hops = Hops::default();
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let own: &[f32] = match &w.own {
            Own::Made { gradient, .. } if !null => gradient,
            _ => &[],
        };
        let result = w.reduce.start(own, header, &mut hops);
        w.quiet_at = Some(self.now + self.detector.quiet());
        self.after_hops(hops, result);
    }

    /// A piece of the current attempt.
    pub(crate) fn on_piece(&mut self, from: PeerId, message: Message) {
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let Message::Piece { phase, .. } = &message else {
            return;
        };
        let gather = *phase == crate::wire::Phase::Gather;
        let frozen = w.flush.is_some() && w.told.is_none() && !self.settings.planted(Bug::FlushDoesNotFreeze);
        if frozen || (w.told.is_some() && !gather) {
            return;
        }
        let null = w.is_null(&self.manifest);
        let own: Option<&[f32]> = match &w.own {
            _ if null => Some(&[]),
            Own::Made { gradient, .. } => Some(gradient),
            Own::Computing => None,
        };
        let mut hops = Hops::default();
        let mut result = w.reduce.accept(own, message, &mut hops);
        // Told of the commit, a piece may come from anybody; the next member may lack it too.
        if w.told.is_none() && from != w.view.members[w.reduce.gathered.ring.previous(w.view.me)] {
            result = Err(Violation);
        }
        if result.is_ok() {
            // While an answer was awaited there was no other deadline.
            let waits = w.quiet_at.is_some() || w.probing.is_some();
            w.quiet_at = waits.then(|| self.now + self.detector.quiet());
            w.probing = None;
            w.idle_probes = 0;
        }
        if result.is_err() {
            return self.suspect([from].into());
        }
        self.after_hops(hops, result);
        if null {
            self.start_if_ready();
        }
    }

    fn after_hops(&mut self, hops: Hops, result: Result<(), Violation>) {
        let Phase::Member(w) = &self.phase else {
            return;
        };
        let successor = w.reduce.successor();
        let predecessor = w.view.members[w.reduce.gathered.ring.previous(w.view.me)];
        for message in hops.next {
            self.links.send(&mut self.out, successor, Lane::Bulk, message);
        }
        for message in hops.finished {
            self.forward_piece(&message);
        }
        if result.is_err() {
            return self.suspect([predecessor].into());
        }
        self.try_commit();
    }

    /// Commits if all is there: from the headers that rode along, or as another member told.
    pub(crate) fn try_commit(&mut self) {
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        if self.applying.is_some() {
            return;
        }
        let whole = w.reduce.gathered.is_complete() || self.settings.planted(Bug::CommitWithoutRepair);
        if let Some(told) = w.told.take_if(|_| whole) {
            return self.commit(told.record);
        }
        let frozen = w.flush.is_some() && !self.settings.planted(Bug::FlushDoesNotFreeze);
        if frozen || w.told.is_some() || !w.reduce.is_complete() {
            return;
        }
        if let Some(headers) = w.reduce.headers() {
            let record = Record {
                round: w.view.key.round,
                attempt: w.view.key.attempt,
                headers,
            };
            self.commit(record);
        }
    }

    /// Applies a round, if it changes the state, and begins the next.
    fn commit(&mut self, record: Record) {
        if record.majority() != self.digest && !self.settings.planted(Bug::IgnoreDivergence) {
            return self.outcast_damaged("its state differs from the majority's");
        }
        let Phase::Member(w) = &self.phase else { return };
        match plan(&self.manifest, self.head.steps, &record, &w.reduce.gathered) {
            Some(step) => self.apply(record, step),
            None => self.applied(record, self.now),
        }
    }

    /// The state is that after the round, which was complete at the time given: begins the next.
    pub(crate) fn applied(&mut self, record: Record, complete_at: Time) {
        let Phase::Member(w) = std::mem::replace(&mut self.phase, Phase::Gone) else {
            return;
        };
        let w = *w;
        let null = w.is_null(&self.manifest);
        if let (Some(made), Some(_), None) = (w.made_at, &w.reduce.headers(), &w.flush) {
            self.detector.saw_reduce(complete_at - made);
        }
        for header in &record.headers {
            let took = Duration::from_micros(header.compute_us);
            self.detector
                .saw_compute(header.peer, took, u64::from(header.weight));
        }
        let sums = w.reduce.gathered;
        let before = Standing::of(&self.head);
        let members_before = self.head.members.clone();
        let refused = record.headers.iter().any(|h| {
            let share = self.head.position(h.peer).map_or(0, |i| w.allotment.len(i));
            h.weight == 0 && share > 0
        });
        self.apply_record(&record);
        self.last = Some(Committed {
            view: w.view.key,
            digest: self.digest,
            sums,
            decided: w.decided,
            before,
            record: record.clone(),
        });
        if let Own::Made { gradient, .. } = w.own {
            self.spare = gradient;
        }
        let made_at = w.made_at.unwrap_or(complete_at);
        let commit = Commit {
            view: w.view.key,
            digest: self.digest,
            samples: self.head.samples,
            compute: made_at - w.began,
            reduce: complete_at - made_at,
            total: self.now - self.committed_at,
            record,
        };
        self.committed_at = self.now;
        // A round in which only the dead had a share says nothing about numbers.
        if commit.record.weight() > 0 {
            self.barren = 0;
        } else if !null && refused {
            self.barren += 1;
        }
        let left = commit
            .record
            .headers
            .iter()
            .any(|h| h.leaving && h.peer == self.settings.me);
        self.out
            .push_back(Output::Event(Event::Committed(Box::new(commit))));
        self.tell_changes(&members_before);
        self.forward_commit();
        self.detector.keep(|peer| self.head.position(*peer).is_some());
        if left {
            self.finish(Exit::Left);
        } else if self.barren >= 2 {
            self.finish(Exit::NotFinite);
        } else {
            self.enter_round();
        }
    }

    /// Takes a record into the ledger's head.
    pub(crate) fn apply_record(&mut self, record: &Record) {
        if self.settings.planted(Bug::CountTheDead) {
            let mut padded = record.clone();
            let allotment = self.head.allot(&self.manifest);
            for (i, member) in self.head.members.iter().enumerate() {
                if padded.headers.iter().all(|h| h.peer != member.peer) {
                    let dead = Header {
                        peer: member.peer,
                        weight: allotment.len(i) as u32,
                        leaving: true,
                        ..padded.headers[0].clone()
                    };
                    padded.headers.push(dead);
                }
            }
            return self.head.apply(&padded, &self.manifest);
        }
        self.head.apply(record, &self.manifest);
    }

    /// Says who came and went in the last committed round.
    fn tell_changes(&mut self, before: &[Member]) {
        let Some(last) = &self.last else { return };
        let mut changes = Vec::new();
        for member in before.iter().filter(|m| self.head.position(m.peer).is_none()) {
            match last.record.headers.iter().find(|h| h.peer == member.peer) {
                Some(header) if header.leaving => changes.push((member.peer, Change::Left, "said goodbye")),
                Some(_) => changes.push((
                    member.peer,
                    Change::Evicted,
                    "its state differs from the majority's",
                )),
                // Told when it was decided.
                None => {}
            }
        }
        let joined = self
            .head
            .members
            .iter()
            .filter(|m| before.iter().all(|b| b.peer != m.peer));
        changes.extend(joined.map(|m| (m.peer, Change::Joined, "caught up")));
        for (peer, change, reason) in changes {
            match change {
                Change::Left if peer == self.settings.me => {}
                Change::Left => {
                    self.send_status(peer);
                    self.links.forget(peer);
                }
                Change::Joined => {
                    self.parted.remove(&peer);
                }
                _ => {}
            }
            self.out
                .push_back(Output::Event(Event::Member { peer, change, reason }));
        }
    }

    /// Done. Stays for a while to answer those who lack a piece of the last round.
    pub(crate) fn finish(&mut self, exit: Exit) {
        let others: Vec<PeerId> = match &self.last {
            Some(last) => last
                .record
                .headers
                .iter()
                .map(|h| h.peer)
                .filter(|p| *p != self.settings.me)
                .collect(),
            None => Vec::new(),
        };
        let mut waits_for: BTreeSet<PeerId> = others.into_iter().collect();
        if exit == Exit::Finished {
            // Who did not make it to the end takes the result from here.
            waits_for.extend(self.links.reachable());
        }
        // A follower hears of the end with the last commit.
        let status = Message::Status {
            standing: Standing::of(&self.head),
            member: true,
            finished: true,
        };
        for peer in waits_for.iter().filter(|p| !self.followers.contains_key(p)) {
            self.links
                .send(&mut self.out, *peer, Lane::Control, status.clone());
        }
        waits_for.retain(|peer| !self.ended.contains(peer));
        let until = self.now + 2 * self.detector.answer();
        self.phase = Phase::Lingering {
            exit,
            until,
            waits_for,
        };
        self.linger();
    }

    /// Somebody still needs something: stays a while longer.
    pub(crate) fn linger_on(&mut self) {
        let later = self.now + 2 * self.detector.answer();
        if let Phase::Lingering { until, .. } = &mut self.phase {
            *until = later;
        }
    }

    /// Goes as soon as nobody can need this peer any more.
    pub(crate) fn linger(&mut self) {
        let Phase::Lingering {
            exit,
            until,
            waits_for,
        } = &self.phase
        else {
            return;
        };
        if waits_for.is_empty() || self.now >= *until {
            self.out.push_back(Output::Exit(exit.clone()));
            self.phase = Phase::Gone;
        }
    }

    /// What this peer would answer to a probe.
    pub(crate) fn doing(&self) -> Doing {
        match &self.phase {
            Phase::Member(w) if w.is_null(&self.manifest) && !w.reduce.is_started() => Doing::Idle,
            Phase::Member(w) if matches!(w.own, Own::Computing) && !w.is_null(&self.manifest) => {
                Doing::Computing {
                    elapsed_us: (self.now - w.began).as_micros() as u64,
                }
            }
            Phase::Member(_) | Phase::Lingering { .. } | Phase::Gone => Doing::Waiting,
            Phase::Joining(_) => Doing::Syncing,
        }
    }
}

/// Whether every element is finite. Without a branch per element, so that it goes as fast as memory does.
fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let block = |values: &[f32]| {
        values
            .iter()
            .fold(false, |bad, x| bad | (x.to_bits() & EXPONENT == EXPONENT))
    };
    !values.chunks(4096).any(block)
}
