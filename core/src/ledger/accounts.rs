//! An account for each ticket by which guests come: the strikes against it, and when it may bring the next guest. A
//! function of the records alone, so that all members agree.
//!
//! A guest that comes and falls silent holds a round up for about a second, and names are free. So what guests cost
//! counts against their ticket. Each round that loses a guest without a goodbye is a strike. A ticket with strikes
//! brings one guest at a time, with a wait in between that doubles with each strike. Honest visitors of a page share
//! their ticket with everybody else, so the wait has a cap, and strikes halve with time.
//!
//! The places of contributors are shared out by ticket too, for the same reason.

use crate::access::invitation::{Admission, Role};
use crate::base::id::{PeerId, RunId, TicketId};
use crate::base::planted::Bug;
use crate::ledger::record::Member;
use crate::run::config::{MAX_CONTRIBUTORS, MAX_PEERS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The wait between two guests of a ticket with one strike: about what a strike costs the others.
const FIRST_WAIT_US: u64 = 1_000_000;

/// The longest wait. In simulated stories a guest that falls silent costs the others at most two seconds, so that
/// ever new names by one ticket cost at most an eighth of the rounds.
const LONGEST_WAIT_US: u64 = 16_000_000;

/// Strikes halve after this long without another. A guess: a ticket is clean some minutes after an attack.
const HALF_LIFE_US: u64 = 60_000_000;

/// Most strikes that count.
const MAX_STRIKES: u8 = 32;

/// Most tickets with strikes. The one with the fewest is forgotten first.
const MAX_ACCOUNTS: usize = MAX_PEERS;

/// Places that one ticket may hold while others ask.
const SHARE: usize = MAX_CONTRIBUTORS / 4;

/// A ticket with strikes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    ticket: TicketId,
    strikes: u8,
    /// When there last was a strike, or when strikes were last halved.
    since_us: u64,
    /// When it brought the last guest, or had its last strike.
    used_us: u64,
}

impl Account {
    fn wait_us(&self, bug: Option<Bug>) -> u64 {
        let doubled = FIRST_WAIT_US << (self.strikes.max(1) - 1);
        if bug == Some(Bug::WaitWithoutEnd) {
            return doubled;
        }
        doubled.min(LONGEST_WAIT_US)
    }
}

/// The tickets with strikes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// Total time of the run's rounds.
    elapsed_us: u64,
    /// Ordered by ticket.
    accounts: Vec<Account>,
}

/// The ticket whose account a peer's conduct counts against. Full members have none.
pub(crate) fn account(admission: &Admission, run: RunId) -> Option<TicketId> {
    let ticket = || admission.ticket(run);
    (admission.role() < Role::Member).then(ticket).flatten()
}

impl Accounts {
    /// Whether a ticket has strikes, so that it brings one guest at a time.
    pub(crate) fn has_strikes(&self, ticket: TicketId) -> bool {
        self.place(ticket).is_ok()
    }

    /// Whether a ticket may bring a guest after the last round.
    pub(crate) fn may_bring(&self, ticket: TicketId, bug: Option<Bug>) -> bool {
        let account = self.place(ticket).ok().map(|place| &self.accounts[place]);
        account.is_none_or(|account| self.elapsed_us - account.used_us >= account.wait_us(bug))
    }

    /// The longest wait between two guests of a ticket.
    #[cfg(feature = "sim")]
    pub(crate) fn longest_wait_us(&self, bug: Option<Bug>) -> u64 {
        let waits = self.accounts.iter().map(|account| account.wait_us(bug));
        waits.max().unwrap_or(0)
    }

    /// Applies a round, given how long the one before it took, and the tickets of guests that it has lost.
    pub(crate) fn apply(&mut self, took_us: u64, lost: &BTreeSet<TicketId>) {
        self.elapsed_us = self.elapsed_us.saturating_add(took_us);
        let now_us = self.elapsed_us;
        for account in &mut self.accounts {
            let half_lives = (now_us - account.since_us) / HALF_LIFE_US;
            account.strikes = account.strikes.checked_shr(half_lives.min(8) as u32).unwrap_or(0);
            account.since_us += half_lives * HALF_LIFE_US;
        }
        self.accounts.retain(|account| account.strikes > 0);
        for ticket in lost {
            self.strike(*ticket);
        }
    }

    fn strike(&mut self, ticket: TicketId) {
        let now_us = self.elapsed_us;
        let place = match self.place(ticket) {
            Ok(place) => place,
            Err(_) => {
                if self.accounts.len() >= MAX_ACCOUNTS {
                    let least = (0..self.accounts.len()).min_by_key(|place| self.accounts[*place].strikes);
                    least.map(|place| self.accounts.remove(place));
                }
                let place = self.accounts.partition_point(|account| account.ticket < ticket);
                let account = Account {
                    ticket,
                    strikes: 0,
                    since_us: now_us,
                    used_us: now_us,
                };
                self.accounts.insert(place, account);
                place
            }
        };
        let account = &mut self.accounts[place];
        account.strikes = (account.strikes + 1).min(MAX_STRIKES);
        (account.since_us, account.used_us) = (now_us, now_us);
    }

    /// A ticket has brought a guest.
    pub(crate) fn bring(&mut self, ticket: TicketId) {
        if let Ok(place) = self.place(ticket) {
            self.accounts[place].used_us = self.elapsed_us;
        }
    }

    fn place(&self, ticket: TicketId) -> Result<usize, usize> {
        self.accounts
            .binary_search_by_key(&ticket, |account| account.ticket)
    }

    /// Whether records can lead to it.
    pub(crate) fn is_sound(&self) -> bool {
        let is_sound = |account: &Account| {
            (1..=MAX_STRIKES).contains(&account.strikes)
                && account.since_us <= self.elapsed_us
                && account.used_us <= self.elapsed_us
        };
        self.accounts.len() <= MAX_ACCOUNTS
            && self.accounts.is_sorted_by(|a, b| a.ticket < b.ticket)
            && self.accounts.iter().all(is_sound)
    }
}

/// Where one more peer finds its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is a free one.
    Free,
    /// That of the last guest of the ticket which holds most, and more than its share.
    Of(PeerId),
    /// There is none.
    None,
}

/// Where a peer that comes by an admission finds its place among members.
pub(crate) fn place(members: &[Member], admission: &Admission, run: RunId, bug: Option<Bug>) -> Place {
    let guests = members.iter().filter(|m| !m.is_full());
    let is_full = members.len() >= MAX_PEERS;
    let Some(own) = account(admission, run) else {
        return if is_full { Place::None } else { Place::Free };
    };
    if !is_full && guests.clone().count() < MAX_CONTRIBUTORS {
        return Place::Free;
    }
    let tickets: Vec<Option<TicketId>> = guests.clone().map(|m| account(&m.admission, run)).collect();
    let held = |ticket: Option<TicketId>| tickets.iter().filter(|other| **other == ticket).count();
    let last_of_most = guests.zip(&tickets).max_by_key(|(_, ticket)| held(**ticket));
    match last_of_most {
        Some((last, most))
            if held(*most) > SHARE && held(Some(own)) < SHARE && bug != Some(Bug::NoShares) =>
        {
            Place::Of(last.peer)
        }
        _ => Place::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::invitation::Invitation;
    use crate::access::signature::Key;
    use crate::base::id::Contact;
    use crate::ledger::Trials;
    use crate::ledger::keeps::Keeper;
    use crate::run::config::{Layout, Manifest};

    const TICKET: TicketId = TicketId([7; 32]);
    const SECOND_US: u64 = 1_000_000;

    fn strike(accounts: &mut Accounts, times: usize) {
        (0..times).for_each(|_| accounts.apply(0, &[TICKET].into()));
    }

    /// Seconds until the ticket may bring a guest.
    fn wait_s(mut accounts: Accounts) -> u64 {
        let may_at_last = |_: &u64| {
            let may = accounts.may_bring(TICKET, None);
            accounts.apply(SECOND_US, &BTreeSet::new());
            may
        };
        (0..).find(may_at_last).expect("it does not wait for ever")
    }

    #[test]
    fn each_strike_doubles_the_wait_up_to_its_cap() {
        let waits = [0, 1, 2, 4, 8, 16, 16, 16];
        for (strikes, wait) in waits.into_iter().enumerate() {
            let mut accounts = Accounts::default();
            strike(&mut accounts, strikes);
            assert_eq!(wait_s(accounts.clone()), wait, "{strikes} strikes");
            // A guest may come, and then the next has to wait as long.
            accounts.apply(wait * SECOND_US, &BTreeSet::new());
            accounts.bring(TICKET);
            assert_eq!(wait_s(accounts), wait, "{strikes} strikes");
        }
        let mut accounts = Accounts::default();
        strike(&mut accounts, 1000);
        assert!(accounts.is_sound() && wait_s(accounts) == 16);
    }

    #[test]
    fn strikes_halve_with_time() {
        let mut accounts = Accounts::default();
        strike(&mut accounts, 5);
        for left in [2, 1] {
            accounts.apply(HALF_LIFE_US, &BTreeSet::new());
            assert_eq!(accounts.accounts[0].strikes, left);
        }
        accounts.apply(HALF_LIFE_US, &BTreeSet::new());
        assert!(!accounts.has_strikes(TICKET));
        strike(&mut accounts, 200);
        accounts.apply(100 * HALF_LIFE_US, &BTreeSet::new());
        assert!(!accounts.has_strikes(TICKET), "at once, if it was long");
    }

    #[test]
    fn tickets_with_the_fewest_strikes_are_forgotten_first() {
        let mut accounts = Accounts::default();
        strike(&mut accounts, 2);
        for n in 0..2 * MAX_ACCOUNTS {
            let other = TicketId([100 + n as u8; 32]);
            accounts.apply(0, &[other].into());
            assert!(accounts.is_sound());
        }
        assert_eq!(accounts.accounts.len(), MAX_ACCOUNTS);
        assert!(accounts.has_strikes(TICKET));
    }

    /// A member by a ticket of a page, or a full member.
    fn member(name: u8, page: Option<u8>, manifest: &Manifest) -> Member {
        let (root, peer) = (manifest.root(), PeerId([name; 32]));
        let of_run = Invitation::of_run(Key::stand_in(root.key));
        let by_page = |page: u8| {
            let key = Key::stand_in(PeerId([page; 32]));
            let ticket = of_run.narrow(root, key, Role::Contribute, None, None);
            ticket.expect("the run's key grants all").admit(peer, root.run)
        };
        Member {
            peer,
            admission: page.map_or_else(|| Admission::stand_in(peer, root), by_page),
            speed: 1000,
            contact: Contact::default(),
            trials: Trials::default(),
            keeper: Keeper::default(),
        }
    }

    #[test]
    fn guests_of_a_ticket_with_more_than_its_share_make_room_for_others() {
        let manifest = Manifest::new(Layout::flat(3));
        let mut members = vec![member(1, None, &manifest)];
        members.extend((0..32).map(|n| member(10 + n, Some(200), &manifest)));
        let place = |members: &[Member], page| {
            let admission = member(99, page, &manifest).admission;
            place(members, &admission, manifest.run_id(), None)
        };
        assert_eq!(place(&members, None), Place::Free);
        assert_eq!(place(&members, Some(200)), Place::None);
        for taken in 0..SHARE as u8 {
            let Place::Of(last) = place(&members, Some(201)) else {
                panic!("there is none for guest {taken}");
            };
            assert_eq!(last, PeerId([41 - taken; 32]), "the last that came");
            members.retain(|m| m.peer != last);
            members.push(member(50 + taken, Some(201), &manifest));
        }
        assert_eq!(place(&members, Some(201)), Place::None, "it has its share");
    }
}
