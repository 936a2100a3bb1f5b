//! How a newcomer gets the state: block by block from several members at once, each brought up to date by
//! the rounds that its sponsor forwards.
//!
//! The members do not stop to take a snapshot, nor do they copy their state: each block comes as it is
//! when it is asked for and says after which round that is. The rounds that follow are applied to the
//! blocks that are there (as a database restores a fuzzy backup from its log). When all blocks stand at
//! the same round, the digest tells whether the state is the members'.

use crate::id::{Digest, PeerId, Round};
use crate::ledger::Record;
use crate::optim::Step;
use crate::peer::{Event, Lane, Output, Peer, Phase};
use crate::planted::Bug;
use crate::reduce::Assembly;
use crate::round::view_id;
use crate::schedule::Ring;
use crate::state::plan;
use crate::time::Time;
use crate::wire::{Message, Phase as Half, Standing, ViewKey};

/// Blocks on their way from one member at a time: enough to hide a round trip, few enough that the
/// members' own traffic hardly notices.
const WINDOW: usize = 2;

/// Followed rounds that are kept to bring late blocks up to date. A member that serves blocks is at most
/// one round behind the sponsor.
const LOG: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Block {
    Missing,
    Asked { from: PeerId, at: Time },
    Held { round: Round, chain: Digest },
}

#[derive(Debug)]
pub(crate) struct Logged {
    /// Lineage before the round.
    pub before: Standing,
    pub step: Option<Step>,
    pub sums: Assembly,
}

impl Peer {
    /// Asks for blocks, from all members that can be reached, within the window of each.
    pub(crate) fn fetch(&mut self) {
        let patience = 2 * self.detector.answer();
        let now = self.now;
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        if !join.following {
            return;
        }
        let members = self.head.members.iter().map(|m| m.peer);
        let mut room: Vec<(PeerId, usize)> = members
            .filter(|p| self.links.is_up(*p) && !join.refused.contains_key(p))
            .filter(|p| !join.sponsor_only || join.sponsor == Some(*p))
            .map(|p| (p, WINDOW))
            .collect();
        if room.is_empty() {
            // The sponsor is a member, even if only a relay reaches it.
            room.extend(join.sponsor.map(|s| (s, WINDOW)));
        }
        for block in &mut join.blocks {
            if let Block::Asked { from, at } = *block {
                if now - at > patience {
                    *block = Block::Missing;
                    // Who does not deliver is not asked again; the sponsor is there.
                    join.sponsor_only |= join.sponsor != Some(from);
                } else if let Some((_, room)) = room.iter_mut().find(|(p, _)| *p == from) {
                    *room = room.saturating_sub(1);
                }
            }
        }
        let mut turn = 0;
        for (i, block) in join.blocks.iter_mut().enumerate() {
            if !matches!(block, Block::Missing) {
                continue;
            }
            let Some(k) = (0..room.len())
                .map(|k| (turn + k) % room.len())
                .find(|k| room[*k].1 > 0)
            else {
                break;
            };
            let (from, left) = &mut room[k];
            *left -= 1;
            turn = k + 1;
            *block = Block::Asked { from: *from, at: now };
            self.links.send(
                &mut self.out,
                *from,
                Lane::Control,
                Message::Fetch { block: i as u32 },
            );
        }
    }

    /// A block of the state has come.
    pub(crate) fn on_block(&mut self, block: u32, round: Round, chain: Digest, data: &[u8]) {
        let now = self.now;
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let Some(slot) = join.blocks.get_mut(block as usize) else {
            return;
        };
        if matches!(slot, Block::Held { .. }) || !join.following {
            return;
        }
        *slot = Block::Missing;
        let here = Standing::of(&self.head);
        let first = join
            .log
            .iter()
            .position(|l| l.before.round == round && l.before.chain == chain);
        let fits = round > here.round || (round == here.round && chain == here.chain) || first.is_some();
        if fits && self.state.write_block(&self.manifest, block, data) {
            let range = self
                .state
                .block_range(&self.manifest, block)
                .expect("it was written");
            let mut held = (round, chain);
            if let Some(first) = first {
                for logged in join.log.range(first..) {
                    if let Some(step) = &logged.step {
                        self.state
                            .apply_round(&self.manifest, step, &logged.sums, range.clone());
                    }
                }
                held = (here.round, here.chain);
            }
            join.blocks[block as usize] = Block::Held {
                round: held.0,
                chain: held.1,
            };
        }
        join.heard_at = now;
        self.tell_progress();
        self.fetch();
        self.catch_up();
    }

    pub(crate) fn tell_progress(&mut self) {
        let Phase::Joining(join) = &self.phase else {
            return;
        };
        let held = join
            .blocks
            .iter()
            .filter(|b| matches!(b, Block::Held { .. }))
            .count() as u64;
        let total = 4 * (self.state.params.len() * (1 + self.state.slots.len())) as u64;
        let bytes = total * held / (join.blocks.len().max(1) as u64);
        self.out.push_back(Output::Event(Event::Syncing {
            bytes,
            total,
            round: self.head.round,
        }));
    }

    /// The sponsor has committed a round.
    pub(crate) fn on_followed_commit(&mut self, from: PeerId, view: ViewKey, record: Record, digest: Digest) {
        let null = record.headers.len() < usize::from(self.manifest.min_peers);
        let len = if null { 0 } else { self.manifest.layout.len };
        let ring = Ring {
            n: record.headers.len(),
            len,
            piece: self.manifest.piece as usize,
        };
        let next = self.head.round + 1;
        let codec = self.manifest.codec;
        let now = self.now;
        let members: Vec<PeerId> = record.headers.iter().map(|h| h.peer).collect();
        let fits = view.id == view_id(&self.head, record.attempt, &members);
        let Some(join) = self.joining().filter(|j| j.sponsor == Some(from) && j.following) else {
            return;
        };
        join.heard_at = now;
        join.asked_alive = false;
        if record.round != next || view.round != next || !fits {
            if record.round >= next {
                // A round is missing between, or it is one of another lineage: begin again.
                self.seek(Some(from));
            }
            return;
        }
        let mut sums = Assembly::new(view, ring, codec);
        for (sender, message) in self.drain_early(view) {
            match message {
                Message::Piece {
                    phase: Half::Gather,
                    chunk,
                    piece,
                    data,
                    ..
                } if sender == from => {
                    sums.put(chunk, piece, data);
                }
                _ => {}
            }
        }
        let missing = sums.missing();
        if !missing.is_empty() {
            self.links.send(
                &mut self.out,
                from,
                Lane::Control,
                Message::Repair { view, missing },
            );
        }
        let Some(join) = self.joining() else { return };
        join.told = Some((view, record, digest, sums));
        self.apply_followed();
    }

    /// A finished piece, as the sponsor forwards it.
    pub(crate) fn on_followed_piece(&mut self, from: PeerId, message: Message) {
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let Message::Piece {
            view,
            phase,
            chunk,
            piece,
            ref data,
            ..
        } = message
        else {
            return;
        };
        if join.sponsor == Some(from) && phase == Half::Gather {
            join.heard_at = self.now;
            if let Some((_, _, _, sums)) = join.told.as_mut().filter(|told| told.0 == view) {
                sums.put(chunk, piece, data.clone());
                return self.apply_followed();
            }
            return self.keep_early(from, message);
        }
        if self.may_become(view) {
            self.keep_early(from, message);
        } else if piece == 0 {
            self.say_out(from, view);
        }
    }

    /// Applies the round that the sponsor told of, once all its pieces are there.
    fn apply_followed(&mut self) {
        let before = Standing::of(&self.head);
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let Some((_, record, digest, sums)) = join.told.take_if(|told| told.3.is_complete()) else {
            return;
        };
        let step = plan(&self.manifest, self.head.steps, &record, &sums);
        join.whole = false;
        for (i, block) in join.blocks.iter_mut().enumerate() {
            let Block::Held { round, chain } = block else {
                continue;
            };
            if (*round, *chain) == (before.round, before.chain) {
                let range = self
                    .state
                    .block_range(&self.manifest, i as u32)
                    .expect("own block");
                if let Some(step) = &step {
                    self.state.apply_round(&self.manifest, step, &sums, range);
                }
                *round += 1;
            } else if *round <= before.round {
                *block = Block::Missing;
            }
        }
        self.apply_record(&record);
        let head = Standing::of(&self.head);
        let sponsor = {
            let Some(join) = self.joining() else { return };
            for block in &mut join.blocks {
                if let Block::Held { round, chain } = block
                    && *round == head.round
                {
                    if before.round + 1 == *round && *chain == before.chain {
                        *chain = head.chain;
                    }
                    // It came from a member of another lineage.
                    if *chain != head.chain {
                        *block = Block::Missing;
                    }
                }
            }
            join.expected = digest;
            join.log.push_back(Logged { before, step, sums });
            if join.log.len() > LOG {
                join.log.pop_front();
            }
            join.sponsor
        };
        for member in self.head.members.clone() {
            self.links.want(member.peer, &member.contact, self.now);
        }
        if let Some(sponsor) = sponsor {
            self.links.send(
                &mut self.out,
                sponsor,
                Lane::Control,
                Message::Followed { round: head.round },
            );
        }
        self.fetch();
        self.catch_up();
    }

    /// Checks whether the whole state is here, and what follows from that.
    pub(crate) fn catch_up(&mut self) {
        let unchecked = self.settings.planted(Bug::JoinUnchecked);
        let here = (self.head.round, self.head.chain);
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let at_head = |b: &Block| matches!(b, Block::Held { round, chain } if (*round, *chain) == here);
        if !join.following || !join.blocks.iter().all(at_head) {
            return;
        }
        let digest = self.state.digest();
        if digest != join.expected && !unchecked {
            // What the sponsor holds, the others do not share, or a block was damaged: all from the sponsor
            // then, and if even that does not fit together, another sponsor.
            join.blocks.fill(Block::Missing);
            join.whole = false;
            join.synced = false;
            join.log.clear();
            let mut sponsor = join.sponsor;
            if join.sponsor_only {
                join.refused.extend(sponsor.take().map(|s| (s, None)));
            }
            join.sponsor_only = true;
            return self.seek(sponsor);
        }
        self.digest = digest;
        join.synced = true;
        join.sound = Some(here.1);
        join.sponsor_only = false;
        let admitted = self.head.position(self.settings.me).is_some()
            && self.head.round >= join.since
            && join.excluded_after != Some(self.head.chain);
        if self.head.finished(&self.manifest) || admitted {
            self.committed_at = self.now;
            self.last = None;
            self.out.push_back(Output::Event(Event::Entered));
            return self.enter_round();
        }
        self.say_ready();
    }
}
