//! A small made-up run for tests: members come, fail and leave, samples return, and states change with each round.

use annulus_core::config::{Layout, Manifest, TensorRule, TensorSpec};
use annulus_core::id::{Contact, Digest, PeerId};
use annulus_core::invitation::Invitation;
use annulus_core::ledger::{Founder, Head, Header, Member, Newcomer, Ready, Record, Trials};
use annulus_core::optim::Optimizer;
use annulus_core::room::Room;
use annulus_core::signature::{Key, Scheme, Signed};
use annulus_core::state::State;
use std::sync::OnceLock;

pub(crate) use annulus_net::testing::{Scratch, Twister, ticket_in};

/// All peers' keys, in the order of their names.
fn keys() -> &'static [Key] {
    static KEYS: OnceLock<Vec<Key>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys: Vec<Key> = (0..64).map(|n| Key::from_seed(&[n; 32])).collect();
        keys.sort_by_key(Key::peer);
        keys
    })
}

pub(crate) fn key(n: u8) -> Key {
    keys()[usize::from(n)].clone()
}

pub(crate) fn peer(n: u8) -> PeerId {
    key(n).peer()
}

/// A record that follows a head, signed by all whom it names.
pub(crate) fn record(head: &Head, attempt: u32, headers: Vec<Header>) -> Record {
    let unsigned = keys()[0].sign_bytes(&[]);
    let headers = headers.into_iter().map(|content| Signed {
        content,
        signature: unsigned,
    });
    let mut record = Record {
        round: head.round + 1,
        attempt,
        headers: headers.collect(),
    };
    sign(head, &mut record);
    record
}

/// All whom a record names sign what it says.
fn sign(head: &Head, record: &mut Record) {
    let attempt = head.attempt_of(record);
    for header in &mut record.headers {
        let key = keys().iter().find(|key| key.peer() == header.peer);
        let key = key.expect("one of ours");
        header.signature = key.sign(&attempt, &header.content);
    }
}

pub(crate) fn member(n: u8) -> Member {
    let of_run = Invitation::of_run(keys()[0].clone());
    Member {
        peer: peer(n),
        admission: of_run.admit(peer(n), manifest().run_id()),
        speed: 1000 * u64::from(n),
        contact: Contact::default(),
        trials: Trials::default(),
        keeper: Default::default(),
    }
}

/// Somebody who goes on alone.
pub(crate) fn founder(n: u8) -> Founder {
    Founder {
        member: member(n),
        at: u64::from(n),
    }
}

/// Newcomers as a sponsor names them in the run's first rounds.
pub(crate) fn newcomers<const N: usize>(names: [u8; N]) -> Vec<Newcomer> {
    let run = manifest().run_id();
    let newcomer = |n| {
        let Member {
            peer,
            admission,
            speed,
            contact,
            ..
        } = member(n);
        let ready = Ready {
            peer,
            speed,
            round: 0,
            room: Room::default(),
        };
        let ready = keys()[usize::from(n)].signed(&run, ready);
        Newcomer {
            ready,
            admission,
            contact,
        }
    };
    names.map(newcomer).to_vec()
}

pub(crate) fn manifest() -> Manifest {
    let shapes: [(&str, &[usize]); 4] = [
        ("a.weight", &[3, 4]),
        ("a.bias", &[4]),
        ("scale", &[]),
        ("b \"x\".weight", &[2, 1, 5]),
    ];
    let mut layout = Layout::default();
    for (name, shape) in shapes {
        let tensor = TensorSpec {
            name: name.into(),
            shape: shape.into(),
            offset: layout.len,
            rule: match shape.len() {
                0 | 1 => TensorRule::Step,
                _ => TensorRule::StepAndDecay,
            },
        };
        layout.len += tensor.len();
        layout.tensors.push(tensor);
    }
    Manifest {
        key: keys()[0].peer(),
        task: "test".into(),
        task_config: "{\"hidden\":4}".into(),
        seed: 7,
        samples: 1000.try_into().unwrap(),
        data: Digest::of(b"data"),
        target: 1000.try_into().unwrap(),
        batch: 50.try_into().unwrap(),
        optimizer: Optimizer::parse("adam").unwrap(),
        piece: 4.try_into().unwrap(),
        ..Manifest::new(layout)
    }
}

/// A run that goes on as it is told to.
pub(crate) struct Run {
    pub(crate) manifest: Manifest,
    pub(crate) head: Head,
    pub(crate) state: State,
}

impl Run {
    pub(crate) fn new() -> Self {
        let manifest = manifest();
        let params = (0..manifest.layout.len).map(|i| (i as f32 * 0.7).sin()).collect();
        let head = Head::genesis(&manifest, member(1));
        Self {
            state: State::new(params, &manifest),
            manifest,
            head,
        }
    }

    /// A round in which all members count all of their shares.
    pub(crate) fn round(&mut self) -> (Record, Digest) {
        self.round_with(|_| {})
    }

    /// A round after whose making the record is changed.
    pub(crate) fn round_with(&mut self, change: impl FnOnce(&mut Record)) -> (Record, Digest) {
        let allotment = self.head.allot(&self.manifest);
        let digest = self.state.digest();
        let headers = self.head.members.iter().enumerate().map(|(i, member)| Header {
            peer: member.peer,
            weight: allotment.len(i) as u32,
            loss: 2.0 * allotment.len(i) as f32,
            speed: member.speed,
            compute_us: 1500,
            exchange_us: 0,
            round_us: 0,
            digest,
            ready: Vec::new(),
            ahead: false,
            anew: false,
            revoked: Vec::new(),
            stalled: false,
            late: false,
            leaving: false,
            keeps: Default::default(),
        });
        let mut record = record(&self.head, 0, headers.collect());
        change(&mut record);
        sign(&self.head, &mut record);
        assert_eq!(self.head.check(&record, &self.manifest, Scheme::Ed25519), Ok(()));
        self.head.apply(&record, &self.manifest);
        let len = self.state.params.len();
        let slots = self.state.slots.iter_mut().map(|slot| slot.parts_mut(0..len));
        let (floats, codes): (Vec<_>, Vec<_>) = slots.unzip();
        for vector in std::iter::once(&mut self.state.params[..]).chain(floats) {
            vector
                .iter_mut()
                .for_each(|x| *x = *x * 0.5 + record.round as f32);
        }
        for code in codes.into_iter().flatten() {
            *code = code.wrapping_mul(5).wrapping_add(record.round as u8);
        }
        (record, self.state.digest())
    }
}
