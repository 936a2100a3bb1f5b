//! Staying in touch while this machine's addresses change: another network, another lease, a cable pulled out.
//!
//! A link that we dialled finds its own way: QUIC's server follows packets that come from elsewhere, as soon as there are
//! some. One that was dialled by its other end does not, since a client takes packets from nowhere else than where it dialled;
//! we dial that end anew. Both within less than the second after which the silent are suspected.
//!
//! Looked at is what the system says, again and again, since no two systems tell of a change alike.

use crate::net::addresses::{own_addresses, source_towards};
use crate::net::connection::Wire;
use crate::net::endpoint::Shared;
use crate::net::link::{Frame, Lane};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Between two looks, each of which takes a few system calls.
const LOOK: Duration = Duration::from_millis(200);

/// What is kept from one look to the next.
pub(crate) struct Roaming {
    shared: Arc<Shared>,
    listen: SocketAddr,
    /// Other addresses to tell.
    given: Vec<String>,
    own: Vec<SocketAddr>,
}

impl Roaming {
    /// Of an endpoint that listens there. Tells others from now on of its own addresses and those given.
    pub(crate) fn new(shared: Arc<Shared>, listen: SocketAddr, given: Vec<String>) -> Self {
        let roaming = Self {
            shared,
            listen,
            given,
            own: own_addresses(listen),
        };
        roaming.advertise();
        roaming
    }

    /// Follows what changes, for ever.
    pub(crate) async fn go_on(mut self) {
        // Who listens on one address alone is there or is not.
        while self.listen.ip().is_unspecified() {
            sleep(LOOK).await;
            self.look();
        }
    }

    fn look(&mut self) {
        let own = own_addresses(self.listen);
        let changed = own != self.own;
        if changed {
            self.own = own;
            self.advertise();
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

    fn advertise(&self) {
        let own = self.own.iter().map(ToString::to_string);
        let all = self.given.iter().cloned().chain(own);
        self.shared.me.advertise(all.collect());
    }
}

/// Whether a link hangs on an address that is ours no longer, while there is another way.
fn is_stranded(wire: &Wire) -> bool {
    let connection = wire.connection();
    let gone = connection.local_ip().is_some_and(|ip| !is_ours(ip));
    gone && source_towards(connection.remote_address()).is_ok()
}

/// Whether packets can be sent from an address.
fn is_ours(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        // Of which of our networks, only its scope would say.
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
