//! What other peers report about this peer's address: where they see its packets come from, or where they dialled it.
//!
//! A single peer may lie or be in an unusual network, so an address is announced only while no other peer disagrees.
//! Behind a router that uses another port for each destination all of them disagree, and rightly so: nobody else can
//! use these addresses.

use crate::net::addresses::is_for_one_link;
use annulus_core::PeerId;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// How many peers are remembered: the most recent ones.
const VOICES: usize = 32;

/// The last report of each peer.
#[derive(Debug, Default)]
pub(crate) struct Observed(VecDeque<(PeerId, SocketAddr)>);

impl Observed {
    /// Another peer sees this one at this address.
    pub fn hear(&mut self, by: PeerId, at: SocketAddr) {
        let at = SocketAddr::new(at.ip().to_canonical(), at.port());
        let broadcast = matches!(at.ip(), IpAddr::V4(ip) if ip.is_broadcast());
        let no_peers = at.ip().is_loopback() || at.ip().is_unspecified() || at.ip().is_multicast();
        if is_for_one_link(at.ip()) || broadcast || no_peers || at.port() == 0 {
            return;
        }
        self.0.retain(|(voice, _)| *voice != by);
        self.0.push_front((by, at));
        self.0.truncate(VOICES);
    }

    /// Forgets all reports, since this machine's address has changed.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// For each address family, the address that most peers report, without those that see one of our own addresses.
    pub fn worth_telling(&self, own: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut told = Vec::new();
        for is_ipv4 in [false, true] {
            let elsewhere = || {
                let all = self.0.iter().map(|(_, at)| *at);
                all.filter(|at| at.is_ipv4() == is_ipv4 && !own.contains(at))
            };
            let agree = |at: &SocketAddr| elsewhere().filter(|other| other == at).count();
            let most = elsewhere().max_by_key(|at| (agree(at), *at));
            told.extend(most.filter(|at| 2 * agree(at) > elsewhere().count()));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_on_is_where_most_others_see_one() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let own = [at("10.0.0.7:4433")];
        let told = |said: &[(u8, &str)]| -> Vec<String> {
            let mut observed = Observed::default();
            said.iter()
                .for_each(|(by, text)| observed.hear(PeerId([*by; 32]), at(text)));
            observed
                .worth_telling(&own)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let (home, other) = ("192.0.2.1:4433", "192.0.2.1:50000");
        assert_eq!(told(&[(1, home)]), [home]);
        assert_eq!(told(&[(1, home), (1, other)]), [other], "the last that one says");
        assert!(told(&[(1, home), (2, other)]).is_empty(), "another port for each");
        assert_eq!(told(&[(1, home), (2, other), (3, home)]), [home], "one liar");
        assert_eq!(
            told(&[(1, home), (2, "10.0.0.7:4433")]),
            [home],
            "neighbours see what is one's own"
        );
        assert_eq!(told(&[(1, "[::ffff:192.0.2.1]:4433")]), [home]);
        assert_eq!(
            told(&[(1, home), (2, "[2001:db8::1]:1")]),
            ["[2001:db8::1]:1", home]
        );
        for nowhere in [
            "127.0.0.1:1",
            "0.0.0.0:1",
            "169.254.0.1:1",
            "[fe80::1]:1",
            "224.0.0.1:1",
            "192.0.2.1:0",
        ] {
            assert!(told(&[(1, nowhere)]).is_empty(), "{nowhere}");
        }
    }

    #[test]
    fn not_all_that_ever_spoke_are_remembered() {
        let mut observed = Observed::default();
        for i in 0..=255 {
            observed.hear(PeerId([i; 32]), SocketAddr::from(([192, 0, 2, i], 1)));
        }
        assert_eq!(observed.0.len(), VOICES);
        observed.forget();
        assert!(observed.worth_telling(&[]).is_empty());
    }
}
