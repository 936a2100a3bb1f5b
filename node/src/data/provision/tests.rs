//! Fetches among made-up peers: some hand out, some lie, some fall silent.

use super::*;
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What a peer of the tests does with whoever comes.
#[derive(Clone)]
struct Server {
    offer: Vec<u8>,
    files: Vec<Vec<u8>>,
    /// It hangs up after so many bytes of files in a visit.
    patience: usize,
    /// It answers that it is busy, so many times.
    busy: u32,
    visits: u32,
}

/// Peers by the first byte of their names, and how often the newcomer had to rest.
struct World(Vec<Option<Server>>, u32);

struct ServerStream {
    server: Server,
    out: Vec<u8>,
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
        Ok(ServerStream { server, out })
    }

    async fn rest(&mut self) {
        self.1 += 1;
    }
}

impl DataStream for ServerStream {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let ask: Ask = decode(&bytes[HEAD..]).unwrap();
        let file = &self.server.files[ask.file as usize][ask.from as usize..];
        let most = file.len().min(self.server.patience);
        self.server.patience -= most;
        self.out.extend(&file[..most]);
        Ok(())
    }

    async fn receive(&mut self, most: usize) -> Result<Bytes, String> {
        if self.out.is_empty() {
            return ready(Err("it hung up".into())).await;
        }
        // In parts, as networks do.
        let rest = self.out.split_off(most.min(7).min(self.out.len()));
        Ok(std::mem::replace(&mut self.out, rest).into())
    }
}

/// Wants files that are just these.
struct TestStore {
    wanted: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
    begun: u32,
}

impl Store for TestStore {
    type Whole = u32;

    fn begin(&mut self, listing: &Listing) -> Result<Vec<u64>, String> {
        self.begun += 1;
        self.files.resize(listing.files.len(), Vec::new());
        Ok(self.files.iter().map(|file| file.len() as u64).collect())
    }

    fn append(&mut self, file: usize, bytes: &[u8]) -> Result<(), String> {
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

const LIMIT: u64 = 1000;

fn source(peer: u8) -> Source {
    Source {
        peer: PeerId([peer; 32]),
        contact: Contact::default(),
    }
}

fn listing(files: &[(&str, u64)]) -> Listing {
    let files = files.iter().map(|(name, size)| ((*name).to_owned(), *size));
    Listing {
        folder: true,
        files: files.collect(),
    }
}

fn answers(answer: Answer, others: &[u8]) -> Option<Server> {
    let others = others.iter().map(|peer| source(*peer)).collect();
    Some(Server {
        offer: encode(&Offer { answer, others }),
        files: vec![],
        patience: usize::MAX,
        busy: 0,
        visits: 0,
    })
}

fn hands_out(files: [&str; 2], others: &[u8]) -> Option<Server> {
    let sizes = listing(&[("a", files[0].len() as u64), ("b", files[1].len() as u64)]);
    let server = answers(Answer::Files(sizes), others)?;
    let files = files.map(|text| text.as_bytes().to_vec()).to_vec();
    Some(Server { files, ..server })
}

const DATA: [&str; 2] = ["the first of two files", "and the second"];

/// What comes of it; all that was told; how often the newcomer rested.
fn fetched(world: Vec<Option<Server>>) -> (Result<u32, FetchError>, Vec<News>, u32) {
    let (mut world, mut news) = (World(world, 0), vec![]);
    let mut served = TestStore {
        wanted: DATA.map(|text| text.as_bytes().to_vec()).to_vec(),
        files: vec![],
        begun: 0,
    };
    let whole = {
        let mut tell = |told| news.push(told);
        let mut fetching = pin!(fetch(&mut world, &mut served, source(0), LIMIT, &mut tell));
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
    let (whole, news, rests) = fetched(vec![hands_out(DATA, &[])]);
    assert_eq!((whole, rests), (Ok(1), 0));
    assert_eq!(news[0], News::Got { bytes: 0, total: 36 });
    assert_eq!(news.last(), Some(&News::Got { bytes: 36, total: 36 }));
}

#[test]
fn if_a_peer_goes_another_goes_on() {
    let cut = |server: Option<Server>, patience| server.map(|server| Server { patience, ..server });
    let world = vec![cut(hands_out(DATA, &[1, 2]), 10), None, hands_out(DATA, &[])];
    let (whole, news, _) = fetched(world);
    assert_eq!(whole, Ok(2));
    // No byte twice.
    let got = news.iter().filter_map(|news| match news {
        News::Got { bytes, .. } => Some(*bytes),
        News::Waiting => None,
    });
    assert!(got.is_sorted());
    // Alone and with little patience, but each time it brings us further.
    let (whole, _, rests) = fetched(vec![cut(hands_out(DATA, &[]), 10)]);
    assert_eq!((whole, rests), (Ok(4), 0));
    // One that never says anything more is given up.
    let (whole, _, rests) = fetched(vec![cut(hands_out(DATA, &[]), 0)]);
    assert_eq!(rests, 2);
    assert!(matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("it hung up")));
}

#[test]
fn what_is_not_the_data_is_thrown_away() {
    let wrong = ["the worst of two files", DATA[1]];
    let (whole, ..) = fetched(vec![hands_out(wrong, &[])]);
    assert!(matches!(whole, Err(FetchError::Nobody(why)) if why[0].contains("other bytes")));
    assert_eq!(
        fetched(vec![hands_out(wrong, &[1]), hands_out(DATA, &[])]).0,
        Ok(2)
    );
    // Half of the wrong one, and the other half from an honest peer: that one is not blamed.
    let half = hands_out(wrong, &[1]).map(|server| Server {
        patience: 12,
        ..server
    });
    let honest = hands_out(DATA, &[]);
    assert_eq!(fetched(vec![half, honest]).0, Ok(3));
}

#[test]
fn the_busy_are_waited_for_and_the_others_are_not_asked_again() {
    let busy = hands_out(DATA, &[]).map(|server| Server { busy: 5, ..server });
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
    let huge = || answers(Answer::Files(listing(&[("a", bytes)])), &[]);
    let (whole, news, _) = fetched(vec![huge()]);
    assert_eq!(whole, Err(FetchError::TooLarge { bytes, limit: LIMIT }));
    assert!(news.is_empty());
}

#[test]
fn offers_that_make_no_sense_are_refused() {
    let many: Vec<String> = (0..=MAX_FILES).map(|i| i.to_string()).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 1)).collect();
    let bad = [
        listing(&[]),
        listing(&[("../a", 1)]),
        listing(&[("a", 1), ("A", 1)]),
        listing(&[("a", u64::MAX), ("b", 1)]),
        listing(&many),
        Listing {
            folder: false,
            ..listing(&[("a", 1), ("b", 1)])
        },
    ];
    for listing in bad {
        assert!(!listing.is_sound(), "{listing:?}");
        let (whole, news, _) = fetched(vec![answers(Answer::Files(listing), &[])]);
        assert!(matches!(whole, Err(FetchError::Nobody(_))) && news.is_empty());
    }
    // Bytes that are no offer at all, or one without an end.
    for offer in [b"garbage".to_vec(), vec![0xff; 2000], encode(&()), vec![]] {
        let server = answers(Answer::Kept, &[]).map(|server| Server { offer, ..server });
        assert!(matches!(fetched(vec![server]).0, Err(FetchError::Nobody(_))));
    }
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
        let files = names.into_iter().map(|name| (name, size)).collect();
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
