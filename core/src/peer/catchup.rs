//! How a newcomer gets the state: block by block from several members at once, each brought up to date by the
//! rounds that its sponsor forwards.
//!
//! Members neither stop to take a snapshot nor copy their state. They send each block as it is when it is
//! requested, with its round. The newcomer applies the rounds that follow to the blocks that it has, as a database
//! restores a fuzzy backup from its log. When all blocks are at the same round, the digest tells whether the state
//! is the members'.

use crate::base::id::{Digest, PeerId, Round};
use crate::base::time::Time;
use crate::collective::{Assembly, Plan};
use crate::ledger::Record;
use crate::ledger::claim::Claim;
use crate::numeric::optim::Step;
use crate::peer::handover;
use crate::peer::interface::Event;
use crate::peer::shared::Shared;
use crate::state::root;
use crate::wire::{Leg, Message, Standing, ViewKey};
use bytes::Bytes;
use std::collections::VecDeque;

/// Blocks requested from one member at a time: enough to hide a round trip, few enough that the members' own
/// traffic hardly suffers.
pub(crate) const WINDOW: usize = 2;

/// Followed rounds that are kept to bring late blocks up to date. A member that serves blocks is at most one round
/// behind the sponsor.
const LOG: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Block {
    Missing,
    Asked { from: PeerId, at: Time },
    Held { round: Round, chain: Digest },
}

/// A round that was followed.
#[derive(Debug)]
struct Logged {
    /// Lineage before the round.
    before: Standing,
    step: Option<Step>,
    sums: Assembly,
}

/// A round that the sponsor has committed, while its pieces come.
#[derive(Debug)]
struct Told {
    view: ViewKey,
    record: Record,
    digest: Digest,
    sums: Assembly,
}

/// Some block is wrong, and the sponsor is asked which.
#[derive(Debug)]
struct Doubt {
    since: Time,
    /// The digests of the sponsor's blocks, and their lineage, once they have come.
    told: Option<(Digest, Bytes)>,
}

/// How a commit from the sponsor fits this peer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It is the next round's.
    Next,
    /// It is known already.
    Old,
    /// A round is missing in between, or it belongs to another lineage or another head than the sponsor's.
    Gap,
    /// Members cannot have agreed on it.
    False,
}

/// The blocks of the state, and the rounds that bring them up to date.
#[derive(Debug, Default)]
pub(crate) struct CatchUp {
    blocks: Vec<Block>,
    log: VecDeque<Logged>,
    told: Option<Told>,
    /// The sponsor's digest at the head.
    expected: Option<Digest>,
    /// Set once all blocks were at the head and their digest was wrong.
    doubt: Option<Doubt>,
    /// Set once blocks of several members did not fit together.
    pub sponsor_only: bool,
}

impl CatchUp {
    /// Continues with the state that this peer has.
    pub fn resume(&mut self, expected: Digest, shared: &Shared) {
        let head = shared.head();
        let held = Block::Held {
            round: head.round,
            chain: head.chain,
        };
        self.begin(held, expected, shared);
    }

    /// Fetches all blocks from the start.
    pub fn restart(&mut self, expected: Digest, shared: &Shared) {
        self.begin(Block::Missing, expected, shared);
    }

    fn begin(&mut self, block: Block, expected: Digest, shared: &Shared) {
        self.blocks = vec![block; shared.lineage.state.blocks() as usize];
        self.expected = Some(expected);
        self.doubt = None;
        self.log.clear();
        self.told = None;
    }

    /// Discards blocks that do not fit together, to fetch them again.
    pub fn discard(&mut self) {
        self.blocks.fill(Block::Missing);
        self.doubt = None;
        self.log.clear();
    }

    /// Forgets forwarded rounds: new requests continue from the present state.
    pub fn forget_told(&mut self) {
        self.told = None;
    }

    /// A peer does not deliver any more.
    pub fn lost(&mut self, peer: PeerId) {
        for block in &mut self.blocks {
            if matches!(block, Block::Asked { from, .. } if *from == peer) {
                *block = Block::Missing;
            }
        }
    }

    /// Drops blocks that are ahead of a sponsor that does not move: they belong to another lineage.
    pub fn drop_ahead(&mut self, here: Round) {
        for block in &mut self.blocks {
            if matches!(block, Block::Held { round, .. } if *round > here) {
                *block = Block::Missing;
                self.sponsor_only = true;
            }
        }
    }

    /// Whether all blocks stand at the head.
    pub fn is_at_head(&self, shared: &Shared) -> bool {
        let here = (shared.head().round, shared.head().chain);
        let at_head = |b: &Block| matches!(b, Block::Held { round, chain } if (*round, *chain) == here);
        self.blocks.iter().all(at_head)
    }

    pub fn expects(&self, digest: Digest) -> bool {
        self.expected == Some(digest)
    }

    /// Whether the sponsor was asked which blocks are wrong.
    pub fn doubts(&self) -> bool {
        self.doubt.is_some()
    }

    /// The sponsor sends the digests of its blocks.
    pub fn on_digests(&mut self, chain: Digest, data: Bytes) {
        if let Some(doubt) = &mut self.doubt {
            doubt.told = Some((chain, data));
        }
    }

    /// All blocks are at the head, with these digests, but the state is wrong. Whether the wrong blocks can be
    /// found, so that only they are fetched again. The sponsor is asked, which is at the same round or a little
    /// ahead; until its answer, wrong blocks stay wrong. False if the blocks came from the sponsor, or if it lies.
    pub fn mends(&mut self, held: &[Digest], sponsor: Option<PeerId>, shared: &mut Shared) -> bool {
        let (Some(sponsor), false) = (sponsor, self.sponsor_only) else {
            return false;
        };
        let Some(doubt) = &mut self.doubt else {
            let since = shared.now;
            self.doubt = Some(Doubt { since, told: None });
            shared.control(sponsor, Message::Doubt);
            return true;
        };
        let here = shared.head().chain;
        match doubt.told.take_if(|(chain, _)| *chain == here) {
            Some((_, theirs)) => {
                let (theirs, _) = theirs.as_chunks::<32>();
                let theirs: Vec<Digest> = theirs.iter().map(|digest| Digest(*digest)).collect();
                if !self.expects(root(&theirs)) || theirs.len() != held.len() {
                    return false;
                }
                let wrong = held.iter().zip(&theirs).map(|(held, theirs)| held != theirs);
                for (block, _) in self.blocks.iter_mut().zip(wrong).filter(|(_, wrong)| *wrong) {
                    *block = Block::Missing;
                }
                self.doubt = None;
                self.sponsor_only = true;
                true
            }
            None => shared.now - doubt.since <= 2 * shared.detector.answer(),
        }
    }

    /// Bytes of the rounds and digests that it holds.
    pub fn bytes(&self) -> usize {
        let told = self.told.iter().map(|told| told.sums.bytes());
        let digests = self.doubt.iter().flat_map(|doubt| &doubt.told);
        told.chain(self.log.iter().map(|logged| logged.sums.bytes()))
            .chain(digests.map(|(_, data)| data.len()))
            .sum()
    }

    /// Requests blocks, up to the window of each, from all `usable` members with a link, and from the sponsor even
    /// through a relay.
    pub fn fetch(&mut self, sponsor: Option<PeerId>, usable: impl Fn(PeerId) -> bool, shared: &mut Shared) {
        let now = shared.now;
        let patience = 2 * shared.detector.answer();
        let members = shared.head().members.iter().map(|m| m.peer);
        let mut room: Vec<(PeerId, usize)> = members
            .filter(|p| shared.links.is_up(*p) && usable(*p))
            .filter(|p| !self.sponsor_only || sponsor == Some(*p))
            .map(|p| (p, WINDOW))
            .collect();
        if room.is_empty() {
            room.extend(sponsor.map(|s| (s, WINDOW)));
        }
        for block in &mut self.blocks {
            if let Block::Asked { from, at } = *block {
                if now - at > patience {
                    *block = Block::Missing;
                    // A member that does not deliver is not asked again; the sponsor is there.
                    self.sponsor_only |= sponsor != Some(from);
                } else if let Some((_, room)) = room.iter_mut().find(|(p, _)| *p == from) {
                    *room = room.saturating_sub(1);
                }
            }
        }
        let mut turn = 0;
        let blocks = self.blocks.iter_mut().zip(0..);
        for (block, number) in blocks.filter(|(block, _)| matches!(block, Block::Missing)) {
            let mut turns = (0..room.len()).map(|k| (turn + k) % room.len());
            let Some(k) = turns.find(|k| room[*k].1 > 0) else {
                break;
            };
            let (from, left) = &mut room[k];
            *left -= 1;
            turn = k + 1;
            *block = Block::Asked { from: *from, at: now };
            shared.control(*from, Message::Fetch { block: number });
        }
    }

    /// Handles a block of the state. Whether it is of use: requested, and of the lineage that is followed.
    ///
    /// A block of another lineage shows that its sender has moved there. Asked again, it would send the same block
    /// as fast as the link allows, for ever. So from then on only the sponsor is asked; if the sponsor falls
    /// silent, it is left.
    pub fn take_block(
        &mut self,
        block: u32,
        (round, chain): (Round, Digest),
        data: &[u8],
        shared: &mut Shared,
    ) -> bool {
        let here = shared.lineage.standing();
        let Some(slot) = self.blocks.get_mut(block as usize) else {
            return false;
        };
        if matches!(slot, Block::Held { .. }) {
            return false;
        }
        *slot = Block::Missing;
        let is_first = |l: &Logged| l.before.round == round && l.before.chain == chain;
        let first = self.log.iter().position(is_first);
        let fits = round > here.round || (round == here.round && chain == here.chain) || first.is_some();
        let state = &mut shared.lineage.state;
        if fits && state.write_block(block, data) {
            let range = state.block_range(block);
            let range = range.expect("it was written");
            let mut held = (round, chain);
            if let Some(first) = first {
                for logged in self.log.range(first..) {
                    if let Some(step) = &logged.step {
                        state.apply_round(&shared.manifest, step, &logged.sums, range.clone());
                    }
                }
                held = (here.round, here.chain);
            }
            let (round, chain) = held;
            *slot = Block::Held { round, chain };
            return true;
        }
        self.sponsor_only = true;
        false
    }

    /// Reports how much has come.
    pub fn tell_progress(&self, shared: &mut Shared) {
        let held = |b: &&Block| matches!(b, Block::Held { .. });
        let held = self.blocks.iter().filter(held).count() as u64;
        let total = shared.manifest.state_bytes();
        let bytes = total * held / (self.blocks.len().max(1) as u64);
        let round = shared.head().round;
        shared.tell(Event::Syncing { bytes, total, round });
    }

    /// The sponsor has committed a round.
    pub fn on_commit(
        &mut self,
        sponsor: PeerId,
        (view, record, digest): (ViewKey, Record, Digest),
        shared: &mut Shared,
    ) -> Fit {
        let next = shared.head().round + 1;
        let fits = view == shared.head().attempt_of(&record).view;
        if record.round != next || !fits {
            return if record.round >= next { Fit::Gap } else { Fit::Old };
        }
        if shared.check(&record).is_err() {
            return Fit::False;
        }
        let members: Vec<PeerId> = record.headers.iter().map(|h| h.peer).collect();
        let plan = Plan::of(&shared.manifest, shared.head(), &members);
        let codec = plan.finished_codec(shared.manifest.codec);
        let mut sums = Assembly::new(plan.cut, codec);
        for (sender, piece) in shared.early.take(view) {
            if sender == sponsor {
                put(&mut sums, piece);
            }
        }
        let missing = sums.missing();
        if !missing.is_empty() {
            shared.control(sponsor, Message::Repair { view, missing });
        }
        self.told = Some(Told {
            view,
            record,
            digest,
            sums,
        });
        Fit::Next
    }

    /// A finished piece that the sponsor forwards. False if its round's commit has not come yet.
    pub fn take_piece(&mut self, view: ViewKey, piece: &Message) -> bool {
        let told = self.told.as_mut().filter(|told| told.view == view);
        told.map(|told| put(&mut told.sums, piece.clone())).is_some()
    }

    /// Applies and returns the round that the sponsor committed, once all its pieces are there.
    pub fn apply_told(&mut self, shared: &mut Shared) -> Option<(ViewKey, Record)> {
        let told = self.told.take_if(|told| told.sums.is_complete())?;
        let before = shared.lineage.standing();
        let step = shared.plan(&told.record, &told.sums);
        for (block, number) in self.blocks.iter_mut().zip(0..) {
            let Block::Held { round, chain } = block else {
                continue;
            };
            if (*round, *chain) == (before.round, before.chain) {
                let state = &mut shared.lineage.state;
                let range = state.block_range(number).expect("own block");
                if let Some(step) = &step {
                    state.apply_round(&shared.manifest, step, &told.sums, range);
                }
                *round += 1;
            } else if *round <= before.round {
                *block = Block::Missing;
            }
        }
        shared.lineage.followed = Some(Claim {
            trail: shared.head().trail,
            samples: before.samples,
            head: shared.head().hash(),
            record: told.record.clone(),
        });
        shared.apply_record(told.view, &told.record);
        handover::follow(shared);
        let head = shared.lineage.standing();
        for block in &mut self.blocks {
            if let Block::Held { round, chain } = block
                && *round == head.round
            {
                if *chain == before.chain {
                    *chain = head.chain;
                }
                // It came from a member of another lineage.
                if *chain != head.chain {
                    *block = Block::Missing;
                }
            }
        }
        self.expected = Some(told.digest);
        let sums = told.sums;
        self.log.push_back(Logged { before, step, sums });
        if self.log.len() > LOG {
            self.log.pop_front();
        }
        shared.want_members();
        Some((told.view, told.record))
    }
}

/// Stores a piece, if it is finished.
fn put(sums: &mut Assembly, piece: Message) {
    if let Message::Piece {
        leg: Leg::Finished,
        chunk,
        piece,
        data,
        ..
    } = piece
    {
        sums.put(chunk, piece, data);
    }
}
