//! Keeps links alive while this machine's addresses change: another network, another lease, a cable pulled out.
//!
//! A link that we dialled recovers by itself: QUIC's server follows packets that come from a new address. A link that
//! the other end dialled does not, since a client accepts packets only from the address that it dialled, so we dial
//! that end anew. Both take less than the second after which a silent peer is suspected.
//!
//! It polls the system's addresses, since every system reports changes in another way.

use crate::net::addresses::{own_addresses, source_towards};
use crate::net::connection::Wire;
use crate::net::endpoint::{Places, Shared};
use crate::net::link::{Frame, Lane};
use crate::net::mapping::Outside;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How often it polls. Each time costs a few system calls.
const LOOK: Duration = Duration::from_millis(200);

/// Own addresses that are announced before those seen from outside: one of each family.
const FIRST: usize = 2;

/// State that is kept from one poll to the next.
pub(crate) struct Roaming {
    shared: Arc<Shared>,
    listen: SocketAddr,
    /// Other addresses to announce.
    given: Vec<String>,
    /// The port mapping.
    outside: watch::Receiver<Outside>,
    places: Places,
    /// Our addresses as others see them, if they agree.
    observed: Vec<SocketAddr>,
}

impl Roaming {
    /// For an endpoint on this address. From now on announces its own addresses, the given ones, and those by which it
    /// can be reached from outside.
    pub(crate) fn new(
        shared: Arc<Shared>,
        listen: SocketAddr,
        given: Vec<String>,
        outside: watch::Receiver<Outside>,
    ) -> Self {
        let mut roaming = Self {
            shared,
            listen,
            given,
            outside,
            places: Places::default(),
            observed: Vec::new(),
        };
        roaming.look();
        roaming
    }

    /// Follows changes for ever.
    pub(crate) async fn go_on(mut self) {
        loop {
            sleep(LOOK).await;
            self.look();
        }
    }

    fn look(&mut self) {
        let places = Places {
            own: own_addresses(self.listen),
            mapped: self.outside.borrow().at(),
        };
        let changed = places.own != self.places.own;
        if changed {
            // What others saw belongs to our former address.
            self.shared.me.observed().forget();
        }
        let observed = self.shared.me.observed().worth_telling(&places.own);
        if places != self.places || observed != self.observed {
            (self.places, self.observed) = (places, observed);
            *self.shared.places() = self.places.clone();
            self.shared.me.advertise(self.told());
        }
        for wire in self.shared.native() {
            if wire.dialled_by_us && changed {
                // Any packet will do.
                let _ = wire.send(Lane::Control, Frame::default());
            } else if !wire.dialled_by_us && is_stranded(&wire) {
                self.shared.clone().redial(&wire);
            }
        }
    }

    /// The addresses to announce: the nearest first, since the last ones may not fit.
    fn told(&self) -> Vec<String> {
        let Places { own, mapped } = &self.places;
        let (first, others) = own.split_at(FIRST.min(own.len().saturating_sub(1)));
        let outside = mapped.iter().chain(&self.observed);
        let mut told = self.given.clone();
        for at in first.iter().chain(outside).chain(others) {
            let at = at.to_string();
            if !told.contains(&at) {
                told.push(at);
            }
        }
        told
    }
}

/// Whether a link depends on an address that is no longer ours, while there is another path.
fn is_stranded(wire: &Wire) -> bool {
    let connection = wire.connection();
    let gone = connection.local_ip().is_some_and(|ip| !is_ours(ip));
    gone && source_towards(connection.remote_address()).is_ok()
}

/// Whether packets can be sent from an address.
fn is_ours(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        // Only its scope would tell which of our networks it belongs to.
        IpAddr::V6(ip) if ip.is_unicast_link_local() => true,
        ip => UdpSocket::bind((ip, 0)).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_ours_while_the_system_has_it() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(is_ours(ip("127.0.0.1")) && is_ours(ip("::ffff:127.0.0.1")));
        assert!(is_ours(ip("fe80::1")), "as far as can be told");
        assert!(!is_ours(ip("192.0.2.1")) && !is_ours(ip("2001:db8::1")));
    }
}
