//! Limits the connections that have not yet shown who they are: in total, per address, and with some reserved for known
//! addresses.
//!
//! It does not know what slots are used for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// Addresses that are remembered as known. A guess: several times the peers of a large run.
const KNOWN: usize = 256;

/// The slots.
#[derive(Debug)]
pub struct Slots {
    all: usize,
    /// Slots per address.
    each: usize,
    /// Slots of all that are reserved for known addresses.
    kept: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    by: HashMap<IpAddr, usize>,
    /// Known addresses, the most recently seen last.
    known: Vec<IpAddr>,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    address: IpAddr,
}

impl Slots {
    /// `all` slots in total, at most `each` per address, and `kept` of them for known addresses.
    pub fn new(all: usize, each: usize, kept: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            each,
            kept,
            state: Mutex::default(),
        })
    }

    /// Takes a slot for this address, if there is one.
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

    /// Whether slots are so scarce, in total or for this address, that the caller should prove its address first.
    pub fn is_scarce(&self, from: IpAddr) -> bool {
        let state = self.state();
        let own = state.by.get(&block(from)).copied().unwrap_or_default();
        2 * state.taken > self.all || 2 * own > self.each
    }

    /// A peer at this address has proved, or is said, to belong to the run.
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

/// What counts as one address. For IPv6 these are the first 64 bits, since whoever owns one address owns the whole
/// block.
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
