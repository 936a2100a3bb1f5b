//! Limits the connections that have not yet shown who they are: in total, per address, and with some reserved for known
//! addresses.
//!
//! It does not know what slots are used for.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// Addresses that are remembered as known. A guess: several times the peers of a large run.
const KNOWN: usize = 256;

/// A site has this many times the slots of one of its networks.
const NETWORKS: usize = 2;

/// The addresses at which a peer of the run is or was, and those of `localhost`.
#[derive(Debug, Default)]
pub struct Known(Mutex<Vec<IpAddr>>);

impl Known {
    /// A peer at this address has proved, or is said, to belong to the run.
    pub fn add(&self, address: IpAddr) {
        let address = network(address);
        let mut known = self.all();
        known.retain(|other| *other != address);
        if known.len() >= KNOWN {
            known.remove(0);
        }
        known.push(address);
    }

    fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address == Ipv4Addr::LOCALHOST
            || address == Ipv6Addr::LOCALHOST
            || self.all().contains(&network(address))
    }

    /// The most recently seen last.
    fn all(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.0
            .lock()
            .expect("nobody panics while holding the known addresses")
    }
}

/// How many slots there are.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In total.
    pub all: usize,
    /// Per address. For IPv6 that is a network of 64 bits, and a site of 48 bits has twice as many.
    pub each: usize,
    /// How many of all are reserved for known addresses.
    pub kept: usize,
    /// Whether unknown addresses lose their oldest slot to others once half of all are taken. The address with most
    /// slots is the first to lose one.
    pub displace: bool,
}

/// The slots.
#[derive(Debug)]
pub struct Slots {
    limits: Limits,
    known: Arc<Known>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by: HashMap<Block, usize>,
    /// The slots in the order in which they were taken.
    taken: BTreeMap<u64, Taken>,
    next: u64,
}

#[derive(Debug)]
struct Taken {
    address: IpAddr,
    displaced: Arc<Notify>,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    number: u64,
    displaced: Arc<Notify>,
}

impl Slots {
    /// With these limits.
    pub fn new(limits: Limits, known: Arc<Known>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            known,
            state: Mutex::default(),
        })
    }

    /// Takes a slot for this address, if there is one.
    pub fn take(self: &Arc<Self>, from: IpAddr) -> Option<Slot> {
        let Limits {
            all,
            each,
            kept,
            displace,
        } = self.limits;
        let mut state = self.state();
        if state.share(from, each) >= 1.0 {
            return None;
        }
        if displace && 2 * state.taken.len() >= all {
            state.displace(&self.known);
        }
        let free = all - state.taken.len();
        if free == 0 || (free <= kept && !self.known.has(from)) {
            return None;
        }
        let displaced = Arc::new(Notify::new());
        let number = state.next;
        state.next += 1;
        let taken = Taken {
            address: from,
            displaced: displaced.clone(),
        };
        state.add(number, taken);
        Some(Slot {
            slots: self.clone(),
            number,
            displaced,
        })
    }

    /// Whether slots are so scarce, in total or for this address, that the caller should prove its address first.
    pub fn is_scarce(&self, from: IpAddr) -> bool {
        let state = self.state();
        2 * state.taken.len() >= self.limits.all || state.share(from, self.limits.each) > 0.5
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding the places")
    }
}

impl State {
    /// How much of its share an address has, as parts of 1.
    fn share(&self, address: IpAddr, each: usize) -> f64 {
        let blocks = blocks(address).into_iter();
        let parts = blocks.map(|(block, times)| {
            let own = self.by.get(&block).copied().unwrap_or_default();
            own as f64 / (times * each) as f64
        });
        parts.fold(0.0, f64::max)
    }

    fn add(&mut self, number: u64, taken: Taken) {
        for (block, _) in blocks(taken.address) {
            *self.by.entry(block).or_default() += 1;
        }
        self.taken.insert(number, taken);
    }

    fn remove(&mut self, number: u64) -> Option<Taken> {
        let taken = self.taken.remove(&number)?;
        for (block, _) in blocks(taken.address) {
            let own = self.by.get_mut(&block)?;
            *own -= 1;
            if *own == 0 {
                self.by.remove(&block);
            }
        }
        Some(taken)
    }

    /// Takes the oldest slot away from the unknown site that has most.
    fn displace(&mut self, known: &Known) {
        let mut sites: HashMap<Option<Block>, (usize, u64)> = HashMap::new();
        for (number, taken) in self.taken.iter().filter(|(_, taken)| !known.has(taken.address)) {
            let site = blocks(taken.address).pop().map(|(site, _)| site);
            sites.entry(site).or_insert((0, *number)).0 += 1;
        }
        let most = sites
            .into_values()
            .max_by_key(|(slots, oldest)| (*slots, u64::MAX - oldest));
        if let Some(taken) = most.and_then(|(_, oldest)| self.remove(oldest)) {
            taken.displaced.notify_one();
        }
    }
}

impl Slot {
    /// Waits until another caller has got this slot.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.state().remove(self.number);
    }
}

/// The first bits of an address, and how many they are.
type Block = (IpAddr, u32);

/// The blocks of addresses in which an address is counted, the widest last, and their shares.
fn blocks(address: IpAddr) -> Vec<(Block, usize)> {
    let network = network(address);
    match network {
        IpAddr::V4(_) => vec![((network, 32), 1)],
        IpAddr::V6(_) => vec![((network, 64), 1), ((first_bits(network, 48), 48), NETWORKS)],
    }
}

/// What counts as one address. For IPv6 these are the first 64 bits, since whoever owns one address owns the whole
/// block.
fn network(address: IpAddr) -> IpAddr {
    first_bits(address.to_canonical(), 64)
}

/// An address of IPv6 with all but its first bits cleared.
fn first_bits(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - bits))).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn slots(all: usize, each: usize, kept: usize, displace: bool) -> Arc<Slots> {
        let limits = Limits {
            all,
            each,
            kept,
            displace,
        };
        Slots::new(limits, Arc::default())
    }

    #[test]
    fn nobody_takes_the_places_of_others() {
        let slots = slots(8, 3, 2, false);
        slots.known.add(at("192.0.2.9"));
        let mut held = Vec::new();
        let mut take = |from: &str| slots.take(at(from)).map(|slot| held.push(slot)).is_some();
        assert!(!slots.is_scarce(at("2001:db8::1")));
        // One network has as many addresses as it likes, but one share of the slots.
        assert!(take("2001:db8::1") && take("2001:db8::2"));
        assert!(slots.is_scarce(at("2001:db8::3")));
        assert!(take("2001:db8::3") && !take("2001:db8::4"));
        assert!(take("2001:db8:0:1::1") && take("192.0.2.1") && take("::ffff:192.0.2.1"));
        assert!(slots.is_scarce(at("192.0.2.2")));
        assert!(!take("192.0.2.2"), "the last two are kept");
        assert!(take("192.0.2.9") && take("192.0.2.9") && !take("192.0.2.9"));
        held.remove(0);
        held.remove(0);
        assert!(slots.take(at("192.0.2.2")).is_none(), "they are kept again");
        held.remove(0);
        assert!(slots.take(at("192.0.2.2")).is_some());
        held.clear();
        let state = slots.state();
        assert_eq!((state.taken.len(), state.by.len()), (0, 0));
    }

    #[test]
    fn a_site_with_many_networks_has_two_shares() {
        let slots = slots(64, 4, 16, false);
        let take = |network: u32| slots.take(at(&format!("2001:db8:7:{network:x}::1")));
        let held: Vec<_> = (0..256).filter_map(take).collect();
        assert_eq!(held.len(), 8);
        assert!(slots.take(at("2001:db8:8::1")).is_some());
    }

    #[test]
    fn the_owner_finds_a_place_whoever_holds_the_others() {
        let slots = slots(8, 8, 2, false);
        let held: Vec<_> = (0..8)
            .filter_map(|last| slots.take([192, 0, 2, last].into()))
            .collect();
        assert_eq!(held.len(), 6);
        assert!(slots.take(at("192.0.2.99")).is_none());
        assert!(
            ["127.0.0.1", "::1"]
                .map(at)
                .into_iter()
                .all(|local| slots.take(local).is_some())
        );
    }

    #[tokio::test]
    async fn where_half_are_taken_the_oldest_of_the_greediest_gives_way() {
        let slots = slots(8, 4, 2, true);
        let greedy: Vec<_> = (0..3).filter_map(|_| slots.take(at("192.0.2.1"))).collect();
        let single = slots.take(at("198.51.100.1")).unwrap();
        let mut others = Vec::new();
        for last in 2..4 {
            others.push(slots.take([203, 0, 113, last].into()).expect("a place"));
        }
        greedy[0].displaced().await;
        greedy[1].displaced().await;
        let keeps = |slot| timeout(Duration::ZERO, Slot::displaced(slot));
        assert!(keeps(&greedy[2]).await.is_err() && keeps(&single).await.is_err());
        // However many come, the newest has a place, and those who are known keep theirs.
        let owner = slots.take(at("127.0.0.1")).unwrap();
        for last in 4..100 {
            others.push(slots.take([203, 0, 113, last].into()).expect("a place"));
        }
        single.displaced().await;
        assert!(keeps(&owner).await.is_err());
        assert_eq!(slots.state().taken.len(), 4);
        drop((greedy, single, others, owner));
        assert_eq!(slots.state().by.len(), 0);
    }

    #[test]
    fn the_known_are_bounded() {
        let slots = slots(1, 1, 1, false);
        let first = IpAddr::from([198, 51, 100, 1]);
        slots.known.add(first);
        for last in 0..KNOWN {
            assert!(slots.take(first).is_some());
            slots
                .known
                .add(IpAddr::from([10, 0, (last >> 8) as u8, last as u8]));
        }
        assert!(slots.take(first).is_none());
    }
}
