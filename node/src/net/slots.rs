//! Places for those who knock and have not yet shown who they are: so many in all, so many for one address, and some for
//! addresses that are known.
//!
//! It must not know what they are taken for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// Addresses that are remembered as known. A guess: several times the peers of a large run.
const KNOWN: usize = 256;

/// The places.
#[derive(Debug)]
pub struct Slots {
    all: usize,
    /// For one address.
    each: usize,
    /// Of all, those that only known addresses get.
    kept: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    by: HashMap<IpAddr, usize>,
    /// Those last seen come last.
    known: Vec<IpAddr>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    address: IpAddr,
}

impl Slots {
    /// So many in `all`, `each` at most for one address, and `kept` of them for those that are known.
    pub fn new(all: usize, each: usize, kept: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            each,
            kept,
            state: Mutex::default(),
        })
    }

    /// A place for somebody at this address, if there is one for it.
    pub fn take(self: &Arc<Self>, from: IpAddr) -> Option<Slot> {
        let address = block(from);
        let mut state = self.state();
        let free = self.all - state.taken;
        let open = free > self.kept || (free > 0 && state.known.contains(&address));
        let own = state.by.entry(address).or_default();
        if !open || *own >= self.each {
            if *own == 0 {
                state.by.remove(&address);
            }
            return None;
        }
        *own += 1;
        state.taken += 1;
        Some(Slot {
            slots: self.clone(),
            address,
        })
    }

    /// Whether places are so scarce, in all or for this address, that it is worth asking first whether the address is real.
    pub fn is_scarce(&self, from: IpAddr) -> bool {
        let state = self.state();
        let own = state.by.get(&block(from)).copied().unwrap_or_default();
        2 * state.taken > self.all || 2 * own > self.each
    }

    /// Somebody at this address has shown to belong here, or is said to.
    pub fn know(&self, address: IpAddr) {
        let (address, mut state) = (block(address), self.state());
        state.known.retain(|known| *known != address);
        if state.known.len() >= KNOWN {
            state.known.remove(0);
        }
        state.known.push(address);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding the places")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        state.taken -= 1;
        if let Some(own) = state.by.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                state.by.remove(&self.address);
            }
        }
    }
}

/// What counts as one address: of IPv6 the first 64 bits, since whoever has one has all of those.
fn block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => {
            let mut octets = ip.octets();
            octets[8..].fill(0);
            octets.into()
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_places_of_others() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let slots = Slots::new(8, 3, 2);
        slots.know(at("192.0.2.9"));
        let mut held = Vec::new();
        let mut take = |from: &str| slots.take(at(from)).map(|slot| held.push(slot)).is_some();
        assert!(!slots.is_scarce(at("2001:db8::1")));
        // One network has as many addresses as it likes, and one share.
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
        assert_eq!((state.taken, state.by.len()), (0, 0));
    }

    #[test]
    fn the_known_are_bounded() {
        let slots = Slots::new(1, 1, 1);
        let first = IpAddr::from([198, 51, 100, 1]);
        slots.know(first);
        for last in 0..KNOWN {
            assert!(slots.take(first).is_some());
            slots.know(IpAddr::from([10, 0, (last >> 8) as u8, last as u8]));
        }
        assert!(slots.take(first).is_none());
    }
}
