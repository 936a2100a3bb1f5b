//! The members of the next round, derived from a record.

use super::Head;
use crate::access::invitation::Admission;
use crate::access::signature::Signed;
use crate::base::id::{PeerId, RunId};
use crate::base::planted::Bug;
use crate::ledger::accounts::{self, Place};
use crate::ledger::cut::SampleRange;
use crate::ledger::record::{Header, Member, Newcomer, Record};
use crate::run::config::Manifest;

impl Head {
    /// The next round's members, given the shares of this round if it trained, and the guests that make room for
    /// those of other tickets. Marks the tickets of new members as used.
    pub(super) fn next_members(
        &mut self,
        record: &Record,
        shares: Option<&[Vec<SampleRange>]>,
        run: impl Fn() -> RunId,
        bug: Option<Bug>,
    ) -> (Vec<Member>, Vec<PeerId>) {
        let mut next = Vec::new();
        let loss_of_full = self.loss_of_full(record);
        for header in record.headers.iter().filter(|h| !h.leaving) {
            // A record that passed the check has members' headers only.
            let Some(place) = self.position(header.peer) else {
                continue;
            };
            let member = &self.members[place];
            let trials = match shares {
                Some(shares) if shares[place].iter().any(|part| part.len() > 0) => {
                    member.trials.after(record.round, header.weight, header.late)
                }
                _ => member.trials,
            };
            let trials = match loss_of_full.filter(|_| !member.is_full() && header.weight > 0) {
                Some(loss) => trials.compared((header.weight, header.loss), loss),
                None => trials,
            };
            next.push(Member {
                speed: header.speed,
                trials,
                ..member.clone()
            });
        }
        let mut displaced = Vec::new();
        for member in named(record) {
            let known = |m: &Member| m.peer == member.peer;
            let took_part = record.headers.iter().any(|h| h.peer == member.peer);
            if took_part || next.iter().any(known) {
                continue;
            }
            let account = accounts::account(&member.admission, run());
            let waits = |ticket| shares.is_some() && !self.accounts.may_bring(ticket, bug);
            if account.is_some_and(waits)
                || self.tickets.check(&member.admission, member.peer, run()).is_err()
            {
                continue;
            }
            match accounts::place(&next, &member.admission, run(), bug) {
                Place::Free => {}
                Place::Of(guest) => {
                    next.retain(|m| m.peer != guest);
                    displaced.push(guest);
                }
                Place::None => continue,
            }
            self.tickets.spend(&member.admission, member.peer, run());
            account.into_iter().for_each(|ticket| self.accounts.bring(ticket));
            next.push(member);
        }
        (next, displaced)
    }

    /// Mean loss of the samples that full members have counted, if there are any.
    fn loss_of_full(&self, record: &Record) -> Option<f64> {
        let of_full = record.headers.iter().filter(|h| self.is_full(h.peer));
        let (samples, loss) = of_full.fold((0.0, 0.0), |(samples, loss), header| {
            (samples + f64::from(header.weight), loss + f64::from(header.loss))
        });
        (samples > 0.0 && self.members.iter().any(|m| !m.is_full())).then(|| loss / samples)
    }

    /// Whether there is a place for one more member that comes by this admission.
    pub(crate) fn has_place(&self, admission: &Admission, run: RunId, bug: Option<Bug>) -> bool {
        accounts::place(&self.members, admission, run, bug) != Place::None
    }

    /// Notes who named each new member, and which of the last ones took part.
    pub(super) fn admit(&mut self, record: &Record, manifest: &Manifest) {
        let took_part = |peer| record.headers.iter().any(|h| h.peer == peer);
        let named_by = |peer| {
            let mut headers = record.headers.iter();
            let names = |h: &&Signed<Header>| h.ready.iter().any(|n| n.peer() == peer);
            headers.find(names).map(|h| h.peer)
        };
        let next: Vec<PeerId> = self.members.iter().map(|m| m.peer).collect();
        // The compute time of such a round. A liar that claims a faster time only bars itself for longer.
        let speeds: u64 = record
            .headers
            .iter()
            .map(|h| h.speed)
            .fold(0, u64::saturating_add);
        let samples = self.pace.round_samples(manifest);
        let compute_us = samples.saturating_mul(1_000_000_000) / speeds.max(1);
        self.admissions
            .apply((record.round, compute_us), took_part, &next, named_by);
    }
}

/// The newcomers that a record names, full members first. Another member's come first in each round, so that guests
/// of one ticket that follow different members have the same chance.
fn named(record: &Record) -> Vec<Member> {
    let first = record.round as usize % record.headers.len().max(1);
    let in_turn = record.headers[first..].iter().chain(&record.headers[..first]);
    let mut named: Vec<Member> = in_turn
        .flat_map(|h| h.ready.iter().map(Newcomer::member))
        .collect();
    named.sort_by_key(|m| !m.is_full());
    named
}
