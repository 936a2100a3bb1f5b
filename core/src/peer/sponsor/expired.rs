//! What a sponsor hears of clocks that differ from its own.

use super::Sponsor;
use crate::access::invitation::Admission;
use crate::base::time::Time;
use crate::ledger::tickets::Barred;
use crate::peer::shared::Shared;
use crate::wire::Message;
use std::time::Duration;

/// How long a sponsor believes another member's clock, by which a ticket has expired. A guess: each time costs an
/// attempt.
const CLOCK: Duration = Duration::from_secs(60);

/// An end of tickets that has passed by another member's clock, and until when this peer believes that.
#[derive(Debug, Default)]
pub(super) struct Expired(Option<(u64, Time)>);

impl Expired {
    /// Whether another member has said so of a ticket with this end, or a later one.
    pub fn has(&self, admission: &Admission, now: Time) -> bool {
        let said = self.0.filter(|(_, until)| now < *until);
        let end_s = admission.chain.until_s();
        said.zip(end_s).is_some_and(|((said, _), end_s)| end_s <= said)
    }
}

impl Sponsor {
    /// Another member holds the ticket of a newcomer that this one names for expired. Of those named, that is the one
    /// that ends first.
    pub fn on_expired(&mut self, shared: &mut Shared) {
        let named =
            |(_, f): &(_, &super::Follower)| f.ready.is_some() && !self.expired.has(&f.admission, shared.now);
        let ends = self.followers.iter().filter(named);
        let ends = ends.filter_map(|(peer, f)| Some((f.admission.chain.until_s()?, *peer)));
        if let Some((end_s, peer)) = ends.min() {
            self.expired = Expired(Some((end_s, shared.now + CLOCK)));
            self.forget(peer);
            let why = Barred::Expired;
            shared.control(peer, Message::Barred { why });
        }
    }
}
