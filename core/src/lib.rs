//! The protocol of Annulus as a pure state machine: no sockets, clocks, threads or files.
//!
//! # The problem
//!
//! Many machines train one model together: strangers' GPUs, laptops and browser tabs on slow links. They join and
//! leave at any moment, die without notice, differ in speed by orders of magnitude, and some may lie. Data-parallel
//! training as usual needs a fixed set of workers; elastic frameworks need a coordinator that never fails.
//!
//! # The idea
//!
//! All members hold the same state bit for bit, so none of them is special. A run is a sequence of *rounds*. From the
//! *ledger* of past rounds alone, every member derives who computes which samples. It sums gradients over its share,
//! and an all-reduce gives all members the same total. A *header* with each member's measurements travels along.
//! Every member applies the total on its CPU in a fixed order and appends the headers to the ledger, which defines
//! the members and shares of the next round. While all members are healthy, there are no other messages.
//!
//! If a member fails, the others agree on its exclusion without a leader and repeat the attempt. A newcomer follows a
//! member (its *sponsor*) and fetches the state while training goes on. After a partition, the side with fewer of the
//! old members yields. Headers, seals and decisions are signed, so a lie convicts its author.
//!
//! # How to drive a peer
//!
//! [`Peer`] is one participant. A driver connects it to a network, a clock and a device:
//!
//! 1. Create it with [`Peer::found`], [`Peer::join`] or, from a checkpoint, [`Peer::resume`].
//! 2. Drain [`Peer::poll`] until it returns `None`, and carry out each [`Output`]. Do this after every input too.
//! 3. Pass everything that happens to [`Peer::handle`] as an [`Input`], with the time: messages, links that come up
//!    or go down, results of the device.
//! 4. Pass [`Input::Tick`] no later than [`Peer::wake_at`]. While [`Peer::is_applying`], let the network have its turn
//!    first, then tick at once.
//! 5. After [`Output::Exit`], send what is queued and drop the peer.
//!
//! Time is an argument and only differences matter. Calls never block, and nothing is random: equal inputs at equal
//! times give equal outputs.
//!
//! In this example a peer founds a run and another one joins it. The network is a queue, and the "model" minimises
//! the sum of squares of its parameters.
//!
//! ```
//! use annulus_core::invitation::Invitation;
//! use annulus_core::signature::Key;
//! use annulus_core::{Contact, Exit, Input, Layout, Manifest, Output, Peer, Settings, State, Time};
//! use std::collections::VecDeque;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! let invitation = Invitation::of_run(Key::from_seed(&[0; 32]));
//! let manifest = Arc::new(Manifest {
//!     key: invitation.key.peer(),
//!     samples: 100.try_into().unwrap(),
//!     target: 4000.try_into().unwrap(),
//!     batch: 20.try_into().unwrap(),
//!     ..Manifest::new(Layout::flat(8))
//! });
//! let settings = |seed| {
//!     let key = Key::from_seed(&[seed; 32]);
//!     let admission = invitation.admit(key.peer(), manifest.run_id());
//!     Settings::new(key, admission, Contact(vec![format!("address {seed}")]))
//! };
//! let (ann, ben) = (settings(1), settings(2));
//! let (names, contacts) = ([ann.me, ben.me], [ann.contact.clone(), ben.contact.clone()]);
//!
//! let mut now = Time(0);
//! let state = State::new(vec![1.0; 8], &manifest);
//! let founder = Peer::found(manifest.clone(), ann, state, now);
//! let joiner = Peer::join(manifest.clone(), ben, names[0], &contacts[0], now);
//! let mut peers = [founder, joiner];
//! let mut exits = [None, None];
//! let mut queue = VecDeque::from([(1, Input::Warm { speed: 20_000 })]);
//! while exits.contains(&None) {
//!     for me in 0..2 {
//!         while let Some(output) = peers[me].poll() {
//!             match output {
//!                 Output::Dial { .. } => {
//!                     let up = |i: usize| Input::LinkUp {
//!                         peer: names[i],
//!                         contact: contacts[i].clone(),
//!                         rtt: Duration::from_millis(1),
//!                     };
//!                     queue.extend([(me, up(1 - me)), (1 - me, up(me))]);
//!                 }
//!                 Output::Send { message, .. } => {
//!                     queue.push_back((1 - me, Input::Message { from: names[me], message }));
//!                 }
//!                 Output::Compute { round, positions, buffer, .. } => {
//!                     let weight = positions.iter().map(|range| range.end - range.start).sum::<u64>() as u32;
//!                     let gradient = buffer.iter().map(|p| 2.0 * p * weight as f32).collect();
//!                     let loss = buffer.iter().map(|p| p * p).sum::<f32>() * weight as f32;
//!                     let compute = Duration::from_millis(weight.into());
//!                     queue.push_back((me, Input::Contribution { round, gradient, weight, loss, compute, late: false }));
//!                 }
//!                 Output::Exit(exit) => exits[me] = Some(exit),
//!                 _ => {} // events, and requests that this run does not make
//!             }
//!         }
//!     }
//!     now = now + Duration::from_micros(100);
//!     match queue.pop_front() {
//!         Some((to, input)) => peers[to].handle(input, now),
//!         None => {
//!             // Nothing is under way: sleep until the next deadline.
//!             now = peers.iter().filter_map(Peer::wake_at).min().map_or(now, |at| now.max(at));
//!             peers.iter_mut().for_each(|peer| peer.handle(Input::Tick, now));
//!         }
//!     }
//! }
//! assert_eq!(exits, [Some(Exit::Finished), Some(Exit::Finished)]);
//! assert_eq!(peers[0].digest(), peers[1].digest());
//! assert!(peers[0].state().params.iter().all(|p| p.abs() < 0.1));
//! ```
//!
//! # Rooms
//!
//! The source has twelve folders, each with one subject. A room imports only from rooms above it in this list:
//!
//! | room | subject |
//! |---|---|
//! | `base` | ids, time, random numbers |
//! | `numeric` | [`optim`], [`codec`], [`feedback`]: arithmetic that knows no run |
//! | `access` | [`signature`], [`invitation`]: keys, signed statements, grants |
//! | `run` | [`Manifest`], [`Settings`], [`shuffle`], [`split`]: the immutable facts of a run |
//! | [`placement`] | pipeline parallelism as arithmetic |
//! | [`ledger`] | what a round records, and everything that follows from it |
//! | [`wire`] | messages, their limits, and who may send which |
//! | [`collective`] | the all-reduce |
//! | [`state`] | parameters and optimizer state, and how rounds change them |
//! | `reach` | links, relays, deadlines |
//! | `peer` | [`Peer`], its three phases, and agreement after a failure |
//! | `sim` | a simulated world of peers, links, faults and liars, with the feature `sim` |
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | view | the members of one attempt, in ring order |
//! | attempt | one try at a round's all-reduce in one view |
//! | chunk, piece | the share of the vector that one member owns; the part of it in one frame |
//! | commit | the local act of applying a completed round |
//! | lineage | a ledger's history; two lineages differ after a partition |
//! | digest | BLAKE3 of the state after a round |
//! | hole | samples that were allotted but not counted; they are allotted again first |
//! | keeper, learner | with `copies`: a member with the moments of a part; one that fetches them |
//! | span, lane | with a split model: a pipeline stage; the microbatches that one holder of a span computes |
//!
//! # Papers
//!
//! - All-reduce: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009);
//!   Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU
//!   Clusters" (BytePS, OSDI 2020).
//! - Agreement on members: Birman and Joseph, "Exploiting virtual synchrony in distributed systems" (SOSP 1987),
//!   whose *flush* ends a view as it does here. Deadlines: RFC 6298.
//! - Local steps: Stich (2019, arXiv 1805.09767); Douillard et al., DiLoCo (2023, arXiv 2311.08105).
//! - Kept parts of moments: Rajbhandari et al., "ZeRO" (SC 2020, arXiv 1910.02054). Split models: Narayanan et al.,
//!   "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021, arXiv 2104.04473).

mod access;
mod base;
pub mod collective;
pub mod ledger;
mod numeric;
pub mod peer;
pub mod placement;
mod reach;
mod run;
#[cfg(feature = "sim")]
pub mod sim;
pub mod state;
pub mod wire;

pub use access::{invitation, signature};
pub use base::{id, jobs, planted, random};
pub use ledger::{
    admission, allot, aside, back, check, claim, conviction, cut, decision, fork, keepers, keeps, local,
    pace, route, saved, seal, shifts, tickets, trials,
};
pub use numeric::{codec, feedback, optim, vector};
pub use peer::{interface, reason};
pub use placement as stages;
pub use reach::detector;
pub use run::{config, initial, parts, room, shuffle, split};
pub use state::{moments, recompute};
pub use wire::rights;

pub use base::time::Time;
pub use config::{
    DataSource, EarlyStop, Layout, Manifest, Settings, TensorRule, TensorSpec, Topology, Waits,
};
pub use id::{Contact, Digest, PeerId, Round, RunId};
pub use initial::Initial;
pub use peer::{Change, Event, Exit, Input, Lane, OutcastReason, Output, Peer, Reason};
pub use room::Room;
pub use state::State;
