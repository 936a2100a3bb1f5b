//! Fetches among made-up peers: some hand out, some lie, some fall silent. Time passes only from poll to poll.

use super::*;
use crate::data::listing::{ListedFile, Listing, MAX_FILES, MAX_NAME, is_safe_name};
use crate::data::provision::{Answer, Here, LACKS, MAX_ASK, MAX_OTHERS, Offer, Pace, SILENCE, SLOWEST};
use crate::data::tree::Blocks;
use crate::net::hello::{HEAD, decode};
use crate::net::link::DialError;
use annulus_core::{Contact, PeerId};
use bytes::Bytes;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

/// A peer that serves files, and its faults.
#[derive(Clone)]
struct Server {
    offer: Vec<u8>,
    files: Vec<Vec<u8>>,
    /// The proof that it claims to have, if that is not the true one.
    nodes: Option<Vec<u8>>,
    /// Of a file, the piece that it has lost.
    lacks: Option<Place>,
    /// It says nothing more after this many bytes of files in a visit.
    patience: usize,
    /// Whether it is then silent, and does not hang up.
    freezes: bool,
    /// Polls that each of its parts takes.
    takes: u64,
    /// How many times it answers that it is busy.
    busy: u32,
    visits: u32,
    /// The pieces that it was asked for.
    asked: Vec<Place>,
}

/// Peers by the first byte of their names, how often the newcomer had to rest, and the time in polls.
struct World {
    peers: RefCell<Vec<Option<Server>>>,
    rests: Cell<u32>,
    now: Cell<u64>,
}

/// Polls in a second.
const SECOND: u64 = 1000;

impl World {
    fn new(peers: Vec<Option<Server>>) -> Self {
        Self {
            peers: RefCell::new(peers),
            rests: Cell::new(0),
            now: Cell::new(0),
        }
    }

    async fn sleep(&self, polls: u64) {
        let until = self.now.get() + polls;
        poll_fn(|_| match self.now.get() < until {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    fn peer<T>(&self, peer: usize, look: impl FnOnce(&mut Server) -> T) -> T {
        look(self.peers.borrow_mut()[peer].as_mut().expect("it is there"))
    }

    /// Fetches these files from peer 0 and those that it names.
    fn fetch(&self, store: &mut TestStore, listing: &Listing, limit: u64) -> Fetched {
        let mut news = vec![];
        let mut tell = |told| news.push(told);
        let fetched = {
            let fetching = fetch(&self, store, source(0), listing.digest(), limit, &mut tell);
            let mut fetching = pin!(fetching);
            loop {
                match fetching.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(fetched) => break fetched.map(|(whole, _)| whole),
                    Poll::Pending => self.now.set(self.now.get() + 1),
                }
                assert!(self.now.get() < 1000 * SECOND, "it waits for ever");
            }
        };
        (fetched, news, self.rests.get())
    }
}

/// The outcome, the news on the way, and how often the newcomer rested.
type Fetched = (Result<(), FetchError>, Vec<News>, u32);

struct ServerStream<'a> {
    world: &'a World,
    peer: usize,
    out: Vec<u8>,
    /// Of `out`, what has been heard.
    heard: usize,
    patience: usize,
    cut: bool,
}

impl<'a> DataDialer for &'a World {
    type DataStream = ServerStream<'a>;

    async fn dial(&self, source: &Source) -> Result<ServerStream<'a>, DialError> {
        let peer = source.peer.0[0] as usize;
        let gone = || DialError::Unreachable("gone".into());
        let mut peers = self.peers.borrow_mut();
        let server = peers[peer].as_mut().ok_or_else(gone)?;
        server.visits += 1;
        let out = match server.visits <= server.busy {
            true => encode(&Offer {
                answer: Answer::Busy,
                others: vec![],
            }),
            false => server.offer.clone(),
        };
        Ok(ServerStream {
            world: self,
            peer,
            out,
            heard: 0,
            patience: server.patience,
            cut: false,
        })
    }

    async fn rest(&self) {
        self.rests.set(self.rests.get() + 1);
        self.sleep(SECOND).await;
    }
}

impl DataStream for ServerStream<'_> {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.cut {
            return Ok(());
        }
        let mut said = vec![HAS];
        self.world
            .peer(self.peer, |server| match decode(&bytes[HEAD..]).unwrap() {
                Ask::Nodes { file } => {
                    let own = || {
                        Blocks::of(server.files[file as usize].as_slice())
                            .unwrap()
                            .nodes()
                            .to_vec()
                    };
                    said.extend(server.nodes.clone().unwrap_or_else(own));
                }
                Ask::Blocks { file, from, blocks } => {
                    let place = (file as usize, from / PIECE);
                    server.asked.push(place);
                    if server.lacks == Some(place) {
                        said = vec![LACKS];
                        return;
                    }
                    let rest = &server.files[place.0][from as usize..];
                    let bytes = &rest[..rest.len().min(blocks as usize * BLOCK)];
                    said.extend(bytes);
                    // After half an answer there is no other.
                    self.cut = self.patience < bytes.len();
                    said.truncate(self.patience.saturating_add(1));
                    self.patience -= bytes.len().min(self.patience);
                }
            });
        self.out.extend(said);
        Ok(())
    }

    async fn receive(&mut self, most: usize) -> Result<Bytes, String> {
        let (takes, freezes) = self
            .world
            .peer(self.peer, |server| (server.takes, server.freezes));
        self.world.sleep(takes).await;
        let rest = &self.out[self.heard..];
        if rest.is_empty() && freezes {
            self.world.sleep(SILENCE.as_secs() * SECOND).await;
            return Err("nothing came".into());
        }
        if rest.is_empty() {
            return Err("it hung up".into());
        }
        // In parts, as networks do.
        let part = &rest[..most.min(10_007).min(rest.len())];
        self.heard += part.len();
        Ok(Bytes::copy_from_slice(part))
    }
}

/// Wants files that are just these.
struct TestStore {
    wanted: Vec<Vec<u8>>,
    /// What the listing proves: it may be something else.
    right: Vec<Vec<u8>>,
    files: Vec<BTreeMap<u64, Vec<u8>>>,
    sizes: Vec<u64>,
    /// Pieces that turn out to be damaged in the end, one at each.
    damaged: Vec<Place>,
    /// The only file that it wants; none: all.
    only: Option<&'static str>,
}

impl TestStore {
    fn new(wanted: Vec<Vec<u8>>, right: Vec<Vec<u8>>) -> Self {
        Self {
            wanted,
            right,
            files: vec![],
            sizes: vec![],
            damaged: vec![],
            only: None,
        }
    }
}

impl Store for TestStore {
    type Whole = ();

    fn wants(&self, name: &str) -> bool {
        self.only.is_none_or(|only| only == name)
    }

    fn begin(&mut self, listing: &Listing) -> Result<Vec<Here>, String> {
        self.sizes = listing.files.iter().map(|file| file.size).collect();
        self.files.resize(listing.files.len(), BTreeMap::new());
        let here = |(file, size): (&BTreeMap<u64, _>, &u64)| Here {
            nodes: vec![],
            missing: (0..size.div_ceil(PIECE))
                .filter(|index| !file.contains_key(index))
                .collect(),
        };
        Ok(self.files.iter().zip(&self.sizes).map(here).collect())
    }

    fn put(&mut self, file: usize, index: u64, bytes: &[u8]) -> Result<(), String> {
        let range = piece(self.sizes[file], index);
        // Only what is right, whoever it came from, and once.
        assert_eq!(bytes, &self.right[file][range.start as usize..range.end as usize]);
        assert!(self.files[file].insert(index, bytes.to_vec()).is_none());
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        if let Some((file, index)) = self.damaged.pop() {
            self.files[file].remove(&index);
            return Err("a piece is damaged".into());
        }
        let files = self
            .files
            .iter()
            .map(|file| file.values().flatten().copied().collect());
        match files.collect::<Vec<Vec<u8>>>() == self.wanted {
            true => Ok(()),
            false => Err("other bytes".into()),
        }
    }
}

const LIMIT: u64 = 8 << 20;

fn source(peer: u8) -> Source {
    Source {
        peer: PeerId([peer; 32]),
        contact: Contact::default(),
    }
}

fn listing(files: &[(&str, u64)]) -> Listing {
    let files = files.iter().map(|(name, size)| ListedFile {
        name: (*name).to_owned(),
        size: *size,
        hash: [7; 32],
    });
    Listing {
        folder: true,
        files: files.collect(),
    }
}

/// Of files called `a` and `b`.
fn listing_of(files: &[Vec<u8>; 2]) -> Listing {
    let listed = ["a", "b"].into_iter().zip(files).map(|(name, file)| ListedFile {
        name: name.to_owned(),
        size: file.len() as u64,
        hash: *blake3::hash(file).as_bytes(),
    });
    Listing {
        folder: true,
        files: listed.collect(),
    }
}

fn answers(answer: Answer, others: &[u8]) -> Option<Server> {
    let others = others.iter().map(|peer| source(*peer)).collect();
    Some(Server {
        offer: encode(&Offer { answer, others }),
        files: vec![],
        nodes: None,
        lacks: None,
        patience: usize::MAX,
        freezes: false,
        takes: 0,
        busy: 0,
        visits: 0,
        asked: vec![],
    })
}

/// One that offers the run's files and hands out these.
fn hands_out(files: [Vec<u8>; 2], others: &[u8]) -> Option<Server> {
    let server = answers(Answer::Files(listing_of(&data())), others)?;
    let files = files.to_vec();
    Some(Server { files, ..server })
}

/// Some pieces and a bit, and less than a block.
fn data() -> [Vec<u8>; 2] {
    let bytes = |len: u32, seed: u32| (0..len).map(|i| (i.wrapping_mul(seed) >> 24) as u8).collect();
    [bytes(3 * PIECE as u32 + 77, 2_654_435_761), bytes(1000, 40_503)]
}

/// Bytes of both.
const TOTAL: u64 = 3 * PIECE + 1077;

/// What a newcomer meets in a world of these peers.
fn fetched(world: Vec<Option<Server>>) -> Fetched {
    fetched_as(listing_of(&data()), data(), world)
}

/// Fetches for a run whose manifest names this listing and this data.
fn fetched_as(listing: Listing, wanted: [Vec<u8>; 2], world: Vec<Option<Server>>) -> Fetched {
    let mut store = TestStore::new(wanted.to_vec(), data().to_vec());
    World::new(world).fetch(&mut store, &listing, LIMIT)
}

/// A world of these peers after everything was fetched, with no news but those.
fn after(peers: Vec<Option<Server>>) -> World {
    let world = World::new(peers);
    let mut store = TestStore::new(data().to_vec(), data().to_vec());
    assert_eq!(world.fetch(&mut store, &listing_of(&data()), LIMIT).0, Ok(()));
    world
}

#[test]
fn what_one_peer_hands_out_is_fetched() {
    let (whole, news, rests) = fetched(vec![hands_out(data(), &[])]);
    assert_eq!((whole, rests), (Ok(()), 0));
    let got = |bytes| News::Got { bytes, total: TOTAL };
    assert_eq!(news[0], got(0));
    assert_eq!(news.last(), Some(&got(TOTAL)));
}

#[test]
fn files_that_are_not_wanted_stay_where_they_are() {
    let [_, small] = data();
    let world = World::new(vec![hands_out(data(), &[])]);
    let mut store = TestStore {
        only: Some("b"),
        ..TestStore::new(vec![small.clone()], vec![small.clone()])
    };
    // The large file would be beyond the limit.
    let limit = small.len() as u64;
    let (whole, news, _) = world.fetch(&mut store, &listing_of(&data()), limit);
    assert_eq!(whole, Ok(()));
    let (bytes, total) = (limit, limit);
    assert_eq!(news.last(), Some(&News::Got { bytes, total }));
}

#[test]
fn if_a_peer_goes_another_goes_on() {
    let cut = |server: Option<Server>, patience| server.map(|server| Server { patience, ..server });
    let patience = PIECE as usize + 10;
    let world = vec![
        cut(hands_out(data(), &[1, 2]), patience),
        None,
        hands_out(data(), &[]),
    ];
    let (whole, news, _) = fetched(world);
    assert_eq!(whole, Ok(()));
    // No piece twice.
    let got = news.iter().filter_map(|news| match news {
        News::Got { bytes, .. } => Some(*bytes),
        News::Waiting => None,
    });
    assert!(got.is_sorted());
    // Alone and with little patience, but each time it brings us further.
    let world = after(vec![cut(hands_out(data(), &[]), patience)]);
    assert_eq!((world.peer(0, |peer| peer.visits), world.rests.get()), (4, 0));
    // One that never says enough for a piece is given up.
    for patience in [0, PIECE as usize - 1] {
        let (whole, _, rests) = fetched(vec![cut(hands_out(data(), &[]), patience)]);
        assert_eq!(rests, 2);
        assert!(matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("it hung up")));
    }
}

/// The pieces that these peers were asked for.
fn asked(world: &World, peers: &[usize]) -> Vec<Vec<Place>> {
    peers
        .iter()
        .map(|at| world.peer(*at, |peer| peer.asked.clone()))
        .collect()
}

/// A server of many pieces in one file, which takes a poll for each part.
fn many(others: &[u8], of: &[Vec<u8>; 2]) -> Server {
    Server {
        takes: 1,
        files: of.to_vec(),
        ..answers(Answer::Files(listing_of(of)), others).unwrap()
    }
}

/// How long a newcomer takes for 24 pieces from these peers, the first of which names the others, and what they were
/// asked for.
fn takes(peers: impl Fn(usize, Server) -> Server, count: usize) -> (u64, World) {
    let [some, small] = data();
    let large = some.iter().cycle().take(24 * PIECE as usize).copied().collect();
    let files = [large, small];
    let others: Vec<u8> = (1..count as u8).collect();
    let peers = (0..count).map(|at| Some(peers(at, many(&others, &files))));
    let world = World::new(peers.collect());
    let mut store = TestStore::new(files.to_vec(), files.to_vec());
    let (whole, ..) = world.fetch(&mut store, &listing_of(&files), u64::MAX);
    assert_eq!(whole, Ok(()));
    (world.now.get(), world)
}

#[test]
fn several_peers_send_at_once_and_none_sends_what_another_does() {
    let alone = takes(|_, peer| peer, 1).0;
    let (both, world) = takes(|_, peer| peer, 2);
    assert!(both < alone * 6 / 10, "{both} {alone}");
    let mut all = asked(&world, &[0, 1]).concat();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!((count, all.len()), (25, 25));
    // One that is slow gets little, and does not hold up the end.
    let slow = |at, peer| Server {
        takes: if at == 0 { 20 } else { 1 },
        ..peer
    };
    let (beside, world) = takes(slow, 2);
    assert!(beside < alone * 12 / 10 + 2 * SECOND, "{beside} {alone}");
    assert!(asked(&world, &[0])[0].len() < 8);
}

#[test]
fn one_that_freezes_holds_up_nobody() {
    let alone = takes(|_, peer| peer, 1).0;
    let freezes = |at, peer| Server {
        patience: if at == 0 { PIECE as usize + 10 } else { usize::MAX },
        freezes: true,
        ..peer
    };
    let (both, _) = takes(freezes, 2);
    assert!(both < alone + 6 * SECOND, "{both} {alone}");
    // Alone it is asked again after its silence.
    let server = hands_out(data(), &[]).map(|server| freezes(0, server));
    let world = after(vec![server]);
    assert!(world.now.get() >= 3 * SILENCE.as_secs() * SECOND);
}

#[test]
fn what_one_has_lost_another_has() {
    let lost = |others: &[u8]| {
        hands_out(data(), others).map(|server| Server {
            lacks: Some((0, 1)),
            ..server
        })
    };
    let world = after(vec![lost(&[1]), hands_out(data(), &[])]);
    let [first, second] = &asked(&world, &[0, 1])[..] else {
        unreachable!()
    };
    assert_eq!((first.len(), &second[..]), (5, &[(0, 1)][..]));
    let (whole, ..) = fetched(vec![lost(&[])]);
    assert!(
        matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("no longer has all of the data"))
    );
}

#[test]
fn what_is_damaged_here_is_fetched_again_and_no_more() {
    let world = World::new(vec![hands_out(data(), &[])]);
    let mut store = TestStore::new(data().to_vec(), data().to_vec());
    store.damaged = vec![(0, 2), (0, 0)];
    let (whole, news, _) = world.fetch(&mut store, &listing_of(&data()), LIMIT);
    assert_eq!(whole, Ok(()));
    let all = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)];
    assert_eq!(asked(&world, &[0])[0], [&all[..], &[(0, 0), (0, 2)]].concat());
    assert_eq!(
        news.last(),
        Some(&News::Got {
            bytes: TOTAL,
            total: TOTAL
        })
    );
    // A disk that damages all is not written to for ever.
    store.damaged = vec![(0, 1); 9];
    let (whole, ..) = world.fetch(&mut store, &listing_of(&data()), LIMIT);
    assert_eq!(whole, Err(FetchError::Here("a piece is damaged".into())));
    assert_eq!(store.damaged.len(), 6);
}

#[test]
fn one_that_lies_is_left_and_the_others_go_on() {
    let lies = |at, peer: Server| match at {
        0 => peer,
        _ => Server {
            nodes: None,
            files: vec![vec![7; 24 * PIECE as usize], vec![7; 1000]],
            ..peer
        },
    };
    let (_, world) = takes(lies, 3);
    assert_eq!([1, 2].map(|at| world.peer(at, |peer| peer.visits)), [1, 1]);
}

#[test]
fn what_is_not_the_data_is_not_kept() {
    let mut wrong = data();
    wrong[0][2 * PIECE as usize + 5] ^= 1;
    let right = || Blocks::of(data()[0].as_slice()).unwrap().nodes().to_vec();
    let longer = [data()[0].clone(), vec![7; 10_000_000]];
    // Wrong bytes, with their own nodes or with the right ones; nodes that prove nothing; more than was offered.
    for (files, nodes) in [
        (wrong.clone(), None),
        (wrong.clone(), Some(right())),
        (data(), Some(vec![0; right().len()])),
        (data(), Some(vec![0; 10_000_000])),
        (longer, None),
    ] {
        let lies = |others: &[u8]| {
            hands_out(files.clone(), others).map(|server| Server {
                nodes: nodes.clone(),
                ..server
            })
        };
        let (whole, news, _) = fetched(vec![lies(&[])]);
        assert!(matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("not the run's data")));
        // No more than announced.
        assert!(
            news.iter()
                .all(|news| matches!(news, News::Got { bytes, .. } if *bytes < TOTAL))
        );
        // What was right of it another need not say again.
        assert_eq!(fetched(vec![lies(&[1]), hands_out(data(), &[])]).0, Ok(()));
    }
}

#[test]
fn files_that_are_the_listings_and_not_the_data_end_the_fetch() {
    let other = [data()[1].clone(), data()[0].clone()];
    let world = vec![hands_out(data(), &[])];
    let (whole, ..) = fetched_as(listing_of(&data()), other, world);
    assert_eq!(whole, Err(FetchError::Here("other bytes".into())));
}

#[test]
fn the_busy_are_waited_for_and_the_others_are_not_asked_again() {
    let busy = hands_out(data(), &[]).map(|server| Server { busy: 5, ..server });
    let (whole, news, rests) = fetched(vec![busy.clone()]);
    assert_eq!((whole, rests), (Ok(()), 5));
    assert_eq!(news.iter().filter(|news| **news == News::Waiting).count(), 5);
    let kept = || answers(Answer::Kept, &[1]);
    assert_eq!(fetched(vec![kept(), busy]).0, Ok(()));
    assert_eq!(fetched(vec![kept(), None]).0, Err(FetchError::Kept));
    let missing = answers(Answer::Missing, &[]);
    assert!(matches!(fetched(vec![missing]).0, Err(FetchError::Nobody(_))));
}

#[test]
fn more_than_the_limit_is_not_begun() {
    let bytes = LIMIT + 1;
    let huge = listing(&[("a", bytes)]);
    let world = vec![answers(Answer::Files(huge.clone()), &[])];
    let (whole, news, _) = fetched_as(huge, data(), world);
    assert_eq!(whole, Err(FetchError::TooLarge { bytes, limit: LIMIT }));
    assert!(news.is_empty());
}

#[test]
fn another_listing_than_the_runs_is_not_believed() {
    let mut longer = listing_of(&data());
    longer.files[0].size += 1;
    let mut other = listing_of(&data());
    other.files[1].hash[0] ^= 1;
    for listing in [longer, other, listing(&[("a", 1)])] {
        let (whole, news, _) = fetched(vec![answers(Answer::Files(listing), &[])]);
        assert!(matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("other files")));
        assert!(news.is_empty());
    }
}

#[test]
fn offers_that_make_no_sense_are_refused() {
    let many: Vec<String> = (0..1_000_000).map(|i| i.to_string()).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 1)).collect();
    let bad = [
        listing(&[]),
        listing(&[("..", 1)]),
        listing(&[("../a", 1)]),
        listing(&[("/etc/passwd", 1)]),
        listing(&[("C:\\a", 1)]),
        listing(&[("a", 1), ("b/../../a", 1)]),
        listing(&[("a", 1), ("a", 1)]),
        listing(&[("a", 1), ("A", 1)]),
        listing(&[("a", u64::MAX), ("b", 1)]),
        listing(&many[..=MAX_FILES]),
        listing(&many),
        Listing {
            folder: false,
            ..listing(&[("a", 1), ("b", 1)])
        },
    ];
    for listing in bad {
        assert!(!listing.is_sound(), "{listing:?}");
        // Even if the founder says so.
        let world = vec![answers(Answer::Files(listing.clone()), &[])];
        let (whole, news, _) = fetched_as(listing, data(), world);
        assert!(matches!(whole, Err(FetchError::Nobody(_))) && news.is_empty());
    }
    // Bytes that are no offer at all, or one without an end.
    for offer in [b"garbage".to_vec(), vec![0xff; 2000], encode(&()), vec![]] {
        let server = answers(Answer::Kept, &[]).map(|server| Server { offer, ..server });
        assert!(matches!(fetched(vec![server]).0, Err(FetchError::Nobody(_))));
    }
}

#[test]
fn a_million_files_are_not_even_heard() {
    let many: Vec<String> = (0..1_000_000).map(|i| i.to_string()).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 0)).collect();
    let many = listing(&many);
    let offer = answers(Answer::Files(many.clone()), &[]).unwrap().offer;
    let world = World::new(vec![answers(Answer::Kept, &[])]);
    let mut line = ServerStream {
        world: &world,
        peer: 0,
        out: offer,
        heard: 0,
        patience: 0,
        cut: false,
    };
    {
        let hearing = pin!(hear_message::<Offer>(&mut line, MAX_OFFER));
        let heard = hearing.poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(heard, Poll::Ready(Err("its answer makes no sense".to_owned())));
    }
    assert_eq!(line.heard, HEAD);
    // A short message can announce any number of nodes. It is not believed before they arrive.
    let count = postcard::to_allocvec(&u64::MAX).unwrap();
    let body = [&[0, 1], count.as_slice()].concat();
    assert!(decode::<Offer>(&body).is_err());
}

#[test]
fn files_may_be_empty() {
    for files in [[vec![], data()[1].clone()], [vec![], vec![]]] {
        let listing = listing_of(&files);
        let total = listing.total();
        let server = answers(Answer::Files(listing.clone()), &[]).map(|server| Server {
            files: files.to_vec(),
            ..server
        });
        let (whole, news, _) = fetched_as(listing, files, vec![server]);
        assert_eq!(whole, Ok(()));
        assert_eq!(news.last(), Some(&News::Got { bytes: total, total }));
    }
}

#[test]
fn who_trickles_does_not_keep_pace() {
    let second = Duration::from_secs(1);
    let keeps = |bytes_per_second: u64| {
        let mut pace = Pace::default();
        (0..120).all(|_| pace.keeps(bytes_per_second as usize, second))
    };
    assert!(keeps(SLOWEST) && keeps(100 * SLOWEST));
    assert!(!keeps(SLOWEST - 1) && !keeps(1));
    // A burst is soon used up, and what takes no time is never too slow.
    let mut pace = Pace::default();
    assert!(pace.keeps(10_000_000, second));
    assert!(!(0..120).all(|_| pace.keeps(1, second)));
    assert!((0..1_000_000).all(|_| pace.keeps(1, Duration::ZERO)));
}

#[test]
fn names_are_harmless_on_any_system() {
    for good in [
        "book.txt",
        "train-images-idx3-ubyte.gz",
        "Ż 1",
        "a",
        "com10",
        "console",
    ] {
        assert!(is_safe_name(good), "{good}");
    }
    let long = "x".repeat(MAX_NAME + 1);
    let bad = [
        "", ".", "..", "../a", "a/b", "a\\b", "/a", "C:", ".hidden", "a.", "a ", " a", "a\n", "a\0", "nul",
        "Com1.txt", "LPT9", "a*", "a?", &long,
    ];
    for bad in bad {
        assert!(!is_safe_name(bad), "{bad:?}");
    }
}

proptest::proptest! {
    #[test]
    fn hostile_bytes_never_panic(bytes: Vec<u8>) {
        let server = answers(Answer::Kept, &[]).map(|server| Server {
            offer: [&[1, 0], (bytes.len() as u32).to_le_bytes().as_slice(), &bytes].concat(),
            ..server
        });
        proptest::prop_assert!(fetched(vec![server]).0.is_err());
        if let Ok(listing) = decode::<Listing>(&bytes) {
            listing.is_sound();
        }
    }

    #[test]
    fn offers_survive_the_way_and_fit_their_bound(
        names in proptest::collection::vec("[a-z]{1,200}", 1..MAX_FILES), size: u64,
    ) {
        let listed = |name| ListedFile { name, size, hash: [0xff; 32] };
        let files = names.into_iter().map(listed).collect();
        let others = vec![
            Source {
                peer: PeerId([0xff; 32]),
                contact: Contact(vec!["x".repeat(Contact::ADDRESS_LIMIT); Contact::LIMIT]),
            };
            MAX_OTHERS
        ];
        let offer = Offer { answer: Answer::Files(Listing { folder: true, files }), others };
        let bytes = encode(&offer);
        proptest::prop_assert!(bytes.len() <= MAX_OFFER);
        proptest::prop_assert_eq!(decode::<Offer>(&bytes[HEAD..]), Ok(offer));
        let ask = Ask::Blocks { file: u32::MAX, from: size, blocks: u32::MAX };
        proptest::prop_assert!(encode(&ask).len() <= MAX_ASK);
    }
}

/// Takes what is wanted of files.
struct OnDemand<'a> {
    files: TestStore,
    demand: &'a Demand,
    begun: bool,
}

impl<'a> OnDemand<'a> {
    fn new(demand: &'a Demand) -> Self {
        Self {
            files: TestStore::new(data().to_vec(), data().to_vec()),
            demand,
            begun: false,
        }
    }
}

impl Store for OnDemand<'_> {
    type Whole = ();

    fn begin(&mut self, listing: &Listing) -> Result<Vec<Here>, String> {
        let mut here = self.files.begin(listing)?;
        here.iter_mut().for_each(|here| here.missing.clear());
        Ok(here)
    }

    fn put(&mut self, file: usize, piece: u64, bytes: &[u8]) -> Result<(), String> {
        self.files.put(file, piece, bytes)?;
        self.begun = true;
        assert!(self.demand.put((file, piece), bytes.len() as u64).is_empty());
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.begun
    }

    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn wanted_pieces_come_from_any_peer_and_no_others_come() {
    let world = World::new(vec![hands_out(data(), &[]), hands_out(data(), &[])]);
    let demand = Demand::new(u64::MAX);
    let mut store = OnDemand::new(&demand);
    let way = &world;
    let supplying = supply(&way, &mut store, &demand, source(0), listing_of(&data()).digest());
    let mut supplying = pin!(supplying);
    let mut pass = |polls: u64| {
        for _ in 0..polls {
            let polled = supplying.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            world.now.set(world.now.get() + 1);
            if let Poll::Ready(ended) = polled {
                return Some(ended);
            }
        }
        None
    };
    let places = [(0, 0), (0, 2), (0, 3), (1, 0)];
    assert!(!demand.want(&places[..1], false));
    assert_eq!(pass(SECOND), None);
    assert!(demand.want(&places[..1], false) && !demand.want(&places[..2], false));
    assert_eq!(pass(SECOND), None);
    assert_eq!(world.peer(0, |server| server.asked.clone()), places[..2]);
    // It goes, and another takes part.
    world.peers.borrow_mut()[0] = None;
    demand.meet(vec![source(1)]);
    assert!(!demand.want(&places[..3], false));
    assert_eq!(pass(SECOND), None);
    assert!(demand.want(&places[..3], false));
    assert_eq!(world.peer(1, |server| server.asked.clone()), places[2..3]);
    // Nobody is there for a while.
    let away = world.peers.borrow_mut()[1].take();
    assert!(!demand.want(&places, false));
    assert_eq!(pass(20 * SECOND), None);
    assert!(!demand.want(&places, false));
    world.peers.borrow_mut()[1] = away;
    assert_eq!(pass(5 * SECOND), None);
    assert!(demand.want(&places, false));
    demand.close();
    assert_eq!(pass(5 * SECOND), Some(Ok(())));
}

#[test]
fn a_peer_that_gets_nothing_at_first_is_told_why() {
    let demand = Demand::new(u64::MAX);
    let world = World::new(vec![answers(Answer::Kept, &[])]);
    let mut store = OnDemand::new(&demand);
    let way = &world;
    let supplied = supply(&way, &mut store, &demand, source(0), listing_of(&data()).digest());
    let polled = pin!(supplied).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(Err(FetchError::Kept)));
}
