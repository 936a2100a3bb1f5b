//! Fetches among made-up peers: some hand out, some lie, some fall silent.

use super::*;
use crate::data::listing::is_safe_name;
use crate::data::tree::BLOCK;
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A peer that serves files, and its faults.
#[derive(Clone)]
struct Server {
    offer: Vec<u8>,
    files: Vec<Vec<u8>>,
    /// The proof that it claims to have, if that is not the true one.
    nodes: Option<Vec<u8>>,
    /// It hangs up after this many bytes of files in a visit.
    patience: usize,
    /// How many times it answers that it is busy.
    busy: u32,
    visits: u32,
}

/// Peers by the first byte of their names, and how often the newcomer had to rest.
struct World(Vec<Option<Server>>, u32);

struct ServerStream {
    server: Server,
    out: Vec<u8>,
    /// Of `out`, what has been heard.
    heard: usize,
}

impl DataDialer for World {
    type DataStream = ServerStream;

    async fn dial(&mut self, source: &Source) -> Result<ServerStream, DialError> {
        let gone = || DialError::Unreachable("gone".into());
        let server = self.0[source.peer.0[0] as usize].as_mut().ok_or_else(gone)?;
        server.visits += 1;
        let out = match server.visits <= server.busy {
            true => encode(&Offer {
                answer: Answer::Busy,
                others: vec![],
            }),
            false => server.offer.clone(),
        };
        let server = server.clone();
        Ok(ServerStream {
            server,
            out,
            heard: 0,
        })
    }

    async fn rest(&mut self) {
        self.1 += 1;
    }
}

impl DataStream for ServerStream {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let ask: Ask = decode(&bytes[HEAD..]).unwrap();
        let file = &self.server.files[ask.file as usize];
        let nodes = match &self.server.nodes {
            Some(nodes) => nodes.clone(),
            None => Blocks::of(file.as_slice()).unwrap().nodes().to_vec(),
        };
        self.out.extend(nodes);
        let file = &file[ask.from as usize..];
        let most = file.len().min(self.server.patience);
        self.server.patience -= most;
        self.out.extend(&file[..most]);
        Ok(())
    }

    async fn receive(&mut self, most: usize) -> Result<Bytes, String> {
        let rest = &self.out[self.heard..];
        if rest.is_empty() {
            return ready(Err("it hung up".into())).await;
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
    files: Vec<Vec<u8>>,
    begun: u32,
    /// The only file that it wants; none: all.
    only: Option<&'static str>,
}

impl Store for TestStore {
    type Whole = u32;

    fn wants(&self, name: &str) -> bool {
        self.only.is_none_or(|only| only == name)
    }

    fn begin(&mut self, listing: &Listing) -> Result<Vec<u64>, String> {
        self.begun += 1;
        self.files.resize(listing.files.len(), Vec::new());
        Ok(self.files.iter().map(|file| file.len() as u64).collect())
    }

    fn append(&mut self, file: usize, bytes: &[u8]) -> Result<(), String> {
        let have = self.files[file].len();
        // Only what is right, whoever it came from.
        assert_eq!(bytes, &self.right[file][have..][..bytes.len()]);
        self.files[file].extend(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<u32, Trouble> {
        match self.files == self.wanted {
            true => Ok(self.begun),
            false => Err(Trouble::Data("other bytes".into())),
        }
    }

    fn clear(&mut self) -> Result<(), String> {
        self.files.clear();
        Ok(())
    }
}

const LIMIT: u64 = 1 << 20;

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
        patience: usize::MAX,
        busy: 0,
        visits: 0,
    })
}

/// One that offers the run's files and hands out these.
fn hands_out(files: [Vec<u8>; 2], others: &[u8]) -> Option<Server> {
    let server = answers(Answer::Files(listing_of(&data())), others)?;
    let files = files.to_vec();
    Some(Server { files, ..server })
}

/// Some blocks and a bit, and less than one.
fn data() -> [Vec<u8>; 2] {
    let bytes = |len: u32, seed: u32| (0..len).map(|i| (i.wrapping_mul(seed) >> 24) as u8).collect();
    [bytes(3 * BLOCK as u32 + 77, 2_654_435_761), bytes(1000, 40_503)]
}

/// Bytes of both.
const TOTAL: u64 = 3 * BLOCK as u64 + 1077;

/// The outcome in a world of these peers, the news on the way, and how often the newcomer rested.
fn fetched(world: Vec<Option<Server>>) -> (Result<u32, FetchError>, Vec<News>, u32) {
    fetched_as(listing_of(&data()), data(), world)
}

/// Fetches for a run whose manifest names this listing and this data.
fn fetched_as(
    listing: Listing,
    wanted: [Vec<u8>; 2],
    world: Vec<Option<Server>>,
) -> (Result<u32, FetchError>, Vec<News>, u32) {
    let (mut world, mut news) = (World(world, 0), vec![]);
    let mut served = TestStore {
        wanted: wanted.to_vec(),
        right: data().to_vec(),
        files: vec![],
        begun: 0,
        only: None,
    };
    let files = listing.digest();
    let whole = {
        let mut tell = |told| news.push(told);
        let mut fetching = pin!(fetch(&mut world, &mut served, source(0), files, LIMIT, &mut tell));
        // Nothing in this world waits.
        match fetching.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(whole) => whole.map(|(whole, _)| whole),
            Poll::Pending => panic!("it waits"),
        }
    };
    (whole, news, world.1)
}

#[test]
fn what_one_peer_hands_out_is_fetched() {
    let (whole, news, rests) = fetched(vec![hands_out(data(), &[])]);
    assert_eq!((whole, rests), (Ok(1), 0));
    let got = |bytes| News::Got { bytes, total: TOTAL };
    assert_eq!(news[0], got(0));
    assert_eq!(news.last(), Some(&got(TOTAL)));
}

#[test]
fn files_that_are_not_wanted_stay_where_they_are() {
    let [_, small] = data();
    let mut world = World(vec![hands_out(data(), &[])], 0);
    let mut store = TestStore {
        wanted: vec![small.clone()],
        right: vec![small.clone()],
        files: vec![],
        begun: 0,
        only: Some("b"),
    };
    // The large file would be beyond the limit.
    let (files, limit) = (listing_of(&data()).digest(), small.len() as u64);
    let mut news = vec![];
    let mut tell = |told| news.push(told);
    let fetching = fetch(&mut world, &mut store, source(0), files, limit, &mut tell);
    let whole = pin!(fetching).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(whole, Poll::Ready(Ok((1, _)))));
    let (bytes, total) = (limit, limit);
    assert_eq!(news.last(), Some(&News::Got { bytes, total }));
}

#[test]
fn if_a_peer_goes_another_goes_on() {
    let cut = |server: Option<Server>, patience| server.map(|server| Server { patience, ..server });
    let world = vec![
        cut(hands_out(data(), &[1, 2]), BLOCK + 10),
        None,
        hands_out(data(), &[]),
    ];
    let (whole, news, _) = fetched(world);
    assert_eq!(whole, Ok(2));
    // No block twice.
    let got = news.iter().filter_map(|news| match news {
        News::Got { bytes, .. } => Some(*bytes),
        News::Waiting => None,
    });
    assert!(got.is_sorted());
    // Alone and with little patience, but each time it brings us further.
    let (whole, _, rests) = fetched(vec![cut(hands_out(data(), &[]), BLOCK + 10)]);
    assert_eq!((whole, rests), (Ok(4), 0));
    // One that never says enough for a block is given up.
    for patience in [0, BLOCK - 1] {
        let (whole, _, rests) = fetched(vec![cut(hands_out(data(), &[]), patience)]);
        assert_eq!(rests, 2);
        assert!(matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("it hung up")));
    }
}

#[test]
fn what_is_not_the_data_is_not_kept() {
    let mut wrong = data();
    wrong[0][2 * BLOCK + 5] ^= 1;
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
        assert_eq!(fetched(vec![lies(&[1]), hands_out(data(), &[])]).0, Ok(2));
    }
}

#[test]
fn files_that_are_the_listings_and_not_the_data_are_thrown_away() {
    let other = [data()[1].clone(), data()[0].clone()];
    let world = vec![hands_out(data(), &[])];
    let (whole, ..) = fetched_as(listing_of(&data()), other, world);
    assert!(matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("other bytes")));
}

#[test]
fn the_busy_are_waited_for_and_the_others_are_not_asked_again() {
    let busy = hands_out(data(), &[]).map(|server| Server { busy: 5, ..server });
    let (whole, news, rests) = fetched(vec![busy.clone()]);
    assert_eq!((whole, rests), (Ok(1), 5));
    assert_eq!(news.iter().filter(|news| **news == News::Waiting).count(), 5);
    let kept = || answers(Answer::Kept, &[1]);
    assert_eq!(fetched(vec![kept(), busy]).0, Ok(1));
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
    let mut line = ServerStream {
        server: answers(Answer::Kept, &[]).unwrap(),
        out: offer,
        heard: 0,
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
        assert_eq!(whole, Ok(1));
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
        let ask = Ask { file: u32::MAX, from: size };
        proptest::prop_assert!(encode(&ask).len() <= MAX_ASK);
    }
}
