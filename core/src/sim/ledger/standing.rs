//! Where peers may stand: in a lineage that some have committed, or in one that they begin.

use super::{Held, Ledger, Point, Sample, same_bits};
use crate::base::id::Digest;
use crate::ledger::Head;
use crate::peer::{Commit, Peer};
use crate::sim::node::Node;
use std::collections::{BTreeMap, BTreeSet};

impl Ledger {
    /// A peer that followed a liar may enter a lineage of the liar's making. Rounds after that are checked.
    pub fn begin_misled(&mut self, node: &Node, peer: &Peer) {
        let (head, digest) = (peer.head(), peer.digest());
        if !node.misled || self.points.contains_key(&head.chain) {
            return;
        }
        let mut skipped = head.skipped;
        let mut given = || match skipped {
            0 => Sample::Counted,
            _ => {
                skipped -= 1;
                Sample::Skipped
            }
        };
        let handed_out = head.ahead.iter().flat_map(|given| &given.share);
        let open: Vec<_> = head.holes.iter().chain(handed_out).collect();
        let sample = |at: u64| match open.iter().find(|hole| (hole.start..hole.end).contains(&at)) {
            Some(hole) => Sample::Open(hole.refused_by),
            None if at < head.cursor => given(),
            None => Sample::Open(None),
        };
        let point = Point {
            head: head.clone(),
            parent: None,
            // Its own earlier work may be for a later round.
            previous: head.before.as_ref().map(|before| before.chain),
            states: vec![Held {
                before: digest,
                digest,
                state: peer.state().clone(),
                is_sound: true,
            }],
            samples: (0..self.manifest.target.get()).map(sample).collect(),
            moments: BTreeMap::new(),
            sums: None,
            errors: None,
            next: Vec::new(),
        };
        self.points.insert(head.chain, point);
    }

    /// The lineage before a commit, for a peer that was not a member before. It may have committed others since.
    pub fn begin_with(&mut self, peer: &Peer, commit: &Commit) -> Result<Digest, String> {
        let leads = |head: &Head| {
            let follows = head.round + 1 == commit.record.round;
            follows && head.attempt_of(&commit.record).view == commit.view
        };
        let joined = self.points.values().find(|point| leads(&point.head));
        match joined.map(|point| point.head.chain) {
            Some(chain) => Ok(chain),
            None => self.go_on_alone(peer, leads),
        }
    }

    /// An unknown lineage must be one that a peer begins by continuing alone from a known one. Returns it.
    pub(super) fn go_on_alone(&mut self, peer: &Peer, is: impl Fn(&Head) -> bool) -> Result<Digest, String> {
        let founder = peer.founder().ok_or("it is on a lineage that nobody committed")?;
        if !founder.member.is_full() {
            return Err("it goes on alone and is no full member".into());
        }
        let mut heads = self
            .points
            .values()
            .map(|from| (from, from.head.clone().continued_by(founder.clone())));
        let (from, head) = heads
            .find(|(_, head)| is(head))
            .ok_or("it is on a lineage that nobody committed")?;
        let chain = head.chain;
        let states = from.states.iter();
        let states = states
            .map(|s| Held {
                before: s.before,
                digest: s.digest,
                state: s.state.clone(),
                is_sound: s.is_sound,
            })
            .collect();
        let point = Point {
            head,
            parent: Some(from.head.chain),
            previous: None,
            states,
            samples: from.samples.clone(),
            moments: BTreeMap::new(),
            sums: None,
            errors: Some(BTreeMap::new()),
            next: Vec::new(),
        };
        self.points.insert(chain, point);
        Ok(chain)
    }

    /// Samples that one lineage counts since it parted from another.
    pub fn counted_apart(&self, from: Digest, other: Digest) -> Option<u64> {
        let before = |chain: &Digest| {
            let point = self.points.get(chain)?;
            point.previous.or(point.parent)
        };
        let others: BTreeSet<Digest> = std::iter::successors(Some(other), before).collect();
        let common = std::iter::successors(Some(from), before).find(|chain| others.contains(chain))?;
        let counted = |chain: &Digest| self.points.get(chain).map(|point| point.head.samples);
        Some(counted(&from)? - counted(&common)?)
    }

    /// Whether every sample is counted or given up at the end of a lineage, or it has stopped early.
    pub fn is_finished(&self, chain: Digest) -> bool {
        let done = |point: &Point| point.samples.iter().all(|s| !matches!(s, Sample::Open(_)));
        self.points
            .get(&chain)
            .is_some_and(|point| point.head.stopped || done(point))
    }

    /// The place of a member that has not committed: it joined, or continued alone.
    pub fn stand(&mut self, node: &Node, peer: &Peer) -> Result<(), String> {
        let (head, digest) = (peer.head(), peer.digest());
        self.begin_misled(node, peer);
        if !self.points.contains_key(&head.chain) {
            self.go_on_alone(peer, |begun| begun.chain == head.chain)?;
        }
        let parent = self.points[&head.chain].parent;
        let before = parent.and_then(|p| self.points[&p].states.iter().find(|s| s.digest == digest));
        let before = before.map(|s| (s.state.clone(), s.is_sound));
        let point = self.points.get_mut(&head.chain).expect("just looked up");
        let new = point.states.iter().all(|s| s.digest != digest);
        if let Some((state, is_sound)) = before.filter(|_| new) {
            // Since it last continued from there, the others' state has been damaged.
            point.states.push(Held {
                before: digest,
                digest,
                state,
                is_sound,
            });
        } else if node.is_doubtful() && point.states.iter().all(|s| s.digest != digest) {
            // A lone peer that has noticed the damage has nothing else to continue from.
            let mut state = peer.state().clone();
            let is_sound = state.digest() == digest;
            if let Some(held) = point.states.first().filter(|_| state.slots.is_empty()) {
                state.slots = held.state.slots.clone();
            }
            point.states.push(Held {
                before: digest,
                digest,
                state,
                is_sound,
            });
        }
        let point = &self.points[&head.chain];
        // A lone member's speed does not matter, and may differ each time that it continues.
        let plain = |head: &Head| {
            let mut head = head.clone();
            head.members
                .iter_mut()
                .filter(|_| point.head.members.len() == 1)
                .for_each(|m| m.speed = 1);
            head
        };
        if point.head != *head && plain(&point.head) != plain(head) {
            return Err(format!(
                "its ledger is not its lineage's: {head:?} instead of {:?}",
                point.head
            ));
        }
        let held = point.states.iter().find(|s| s.digest == digest);
        let held = held.ok_or_else(|| format!("it is a member with a state that no member has: {digest}"))?;
        let is_whole = self.manifest.split.is_none();
        if is_whole
            && !node.is_doubtful()
            && held.is_sound
            && !same_bits(&held.state.params, &peer.state().params)
        {
            return Err("its digest is not that of its parameters".into());
        }
        Ok(())
    }
}
