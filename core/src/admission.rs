//! Who names newcomers that come, and who names such as do not: a function of the records alone, so that all members know
//! the same.
//!
//! A round waits for a newcomer that was let in and is not there as long as for a member that has died. Whoever holds a
//! ticket could name invented ones round by round, and hardly a round would be done. So each time that one does not come,
//! who named it names nobody for some rounds, twice as many as the time before; one who comes makes that half again. A
//! member that has bad luck with its newcomers has them wait, or go to another sponsor; the others' rounds go on.

use crate::config::MAX_PEERS;
use crate::id::{PeerId, Round};
use crate::ledger::{Member, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most newcomers that one header names. A guess: a single sponsor fills a view of 64 in eight rounds.
pub const MAX_NAMED: usize = 8;

/// Most doublings of how long a member names nobody: 64 rounds.
const MAX_MISSED: u8 = 6;

/// A member whose newcomers did not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Namer {
    peer: PeerId,
    /// Rounds in which one did not come, less those in which all did.
    missed: u8,
    /// The first round in which it may name somebody again.
    barred_until: Round,
}

/// What became of the newcomers that members have named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admissions {
    /// Newcomers that the last round let in, each with who named it.
    fresh: Vec<(PeerId, PeerId)>,
    /// Who has named such as did not come, in order of their names.
    namers: Vec<Namer>,
}

impl Admissions {
    /// Whether a member may name newcomers in a round.
    pub(crate) fn may_name(&self, peer: PeerId, round: Round) -> bool {
        let namer = self.namers.iter().find(|namer| namer.peer == peer);
        namer.is_none_or(|namer| namer.barred_until <= round)
    }

    /// Takes a record, and the members that it leads to.
    pub(crate) fn apply(&mut self, record: &Record, next: &[Member]) {
        let took_part = |peer: PeerId| record.headers.iter().any(|h| h.peer == peer);
        // By who named them: whether all came.
        let mut came: BTreeMap<PeerId, bool> = BTreeMap::new();
        for (newcomer, by) in self.fresh.drain(..) {
            *came.entry(by).or_insert(true) &= took_part(newcomer);
        }
        for (peer, came) in came {
            self.judge(peer, came, record.round);
        }
        let here = |namer: &Namer| next.iter().any(|m| m.peer == namer.peer);
        self.namers
            .retain(|namer| namer.barred_until > record.round || (namer.missed > 0 && here(namer)));
        let new = next.iter().filter(|member| !took_part(member.peer));
        let by = |newcomer: &Member| {
            let names = |h: &&crate::ledger::Header| h.ready.iter().any(|m| m.peer == newcomer.peer);
            record.headers.iter().find(|h| names(h)).map(|h| h.peer)
        };
        self.fresh = new.filter_map(|newcomer| Some((newcomer.peer, by(newcomer)?))).collect();
    }

    fn judge(&mut self, peer: PeerId, came: bool, round: Round) {
        let place = self.namers.binary_search_by_key(&peer, |namer| namer.peer);
        match place {
            Ok(place) if came => self.namers[place].missed = self.namers[place].missed.saturating_sub(1),
            Err(_) if came || self.namers.len() >= MAX_PEERS => {}
            Ok(place) | Err(place) => {
                if place == self.namers.len() || self.namers[place].peer != peer {
                    let namer = Namer {
                        peer,
                        missed: 0,
                        barred_until: 0,
                    };
                    self.namers.insert(place, namer);
                }
                let namer = &mut self.namers[place];
                namer.missed = (namer.missed + 1).min(MAX_MISSED);
                namer.barred_until = round + 1 + (1 << namer.missed);
            }
        }
    }

    /// Whether records can lead to it.
    pub(crate) fn is_sound(&self, members: &[Member]) -> bool {
        let is_member = |peer: PeerId| members.iter().any(|m| m.peer == peer);
        self.fresh.len() <= MAX_PEERS
            && self.fresh.iter().all(|(newcomer, _)| is_member(*newcomer))
            && self.namers.len() <= MAX_PEERS
            && self.namers.is_sorted_by(|a, b| a.peer < b.peer)
            && self.namers.iter().all(|namer| namer.missed <= MAX_MISSED)
    }
}
