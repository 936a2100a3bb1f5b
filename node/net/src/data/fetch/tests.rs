//! Fetching from a peer on this machine, alone and beside others.

use super::*;
use crate::data::provision::{Answer, Ask, FetchError, Listing, News, Offer, Store, Trouble, fetch};
use crate::data::serve::{ServedData, TRANSFERS};
use crate::data::{Data, Stock};
use crate::net::config::QuicConfig;
use crate::net::hello::encode;
use crate::net::quic::QuicLink;
use crate::net::quic::tests::{config, root, start, ticket, ticket_by};
use crate::net::ticket::Secret;
use crate::testing::{RUN_KEY, Scratch};
use annulus_core::invitation::{Invitation, Role};
use std::path::PathBuf;

/// Collects everything until the end.
#[derive(Default)]
struct Any(Vec<Vec<u8>>);

impl Store for Any {
    type Whole = Vec<Vec<u8>>;

    fn begin(&mut self, listing: &Listing) -> Result<Vec<u64>, String> {
        self.0.resize(listing.files.len(), Vec::new());
        Ok(self.0.iter().map(|file| file.len() as u64).collect())
    }

    fn append(&mut self, file: usize, bytes: &[u8]) -> Result<(), String> {
        self.0[file].extend(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<Vec<u8>>, Trouble> {
        Ok(self.0.clone())
    }

    fn clear(&mut self) -> Result<(), String> {
        self.0.clear();
        Ok(())
    }
}

/// A peer that hands out a file.
struct Host {
    _scratch: Scratch,
    _link: QuicLink,
    path: PathBuf,
    bytes: Vec<u8>,
    listing: Listing,
    source: Source,
}

impl Host {
    fn of(len: u32) -> Self {
        let scratch = Scratch::new();
        let path = scratch.0.join("data");
        let bytes: Vec<u8> = (0..len).map(|i| (i >> 5) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let data = Data::open(&path).unwrap();
        data.single().unwrap();
        let stock = Stock::new(data);
        let listing = stock.check().unwrap().listing.clone();
        let link = start(QuicConfig {
            served: ServedData::Files(stock, listing.digest()),
            ..config()
        });
        let source = Source {
            peer: link.peer(),
            contact: Contact(vec![link.local_addr().to_string()]),
        };
        Self {
            _scratch: scratch,
            _link: link,
            path,
            bytes,
            listing,
            source,
        }
    }

    async fn fetch(
        &self,
        guest: &mut Guest,
        limit: u64,
        tell: &mut dyn FnMut(News),
    ) -> Result<Vec<Vec<u8>>, FetchError> {
        let (source, files) = (self.source.clone(), self.listing.digest());
        let fetched = fetch(guest, &mut Any::default(), source, files, limit, tell).await;
        fetched.map(|(whole, _)| whole)
    }

    /// A caller that has read the offer of the files, once there is one, and is silent.
    async fn offered(&self, guest: &mut Guest) -> GuestStream {
        let answer = Answer::Files(self.listing.clone());
        let offer = Offer {
            answer,
            others: vec![],
        };
        let offer = encode(&offer).len();
        loop {
            let mut line = guest.dial(&self.source).await.unwrap();
            let mut left = offer;
            while let Ok(bytes) = line.receive(left).await {
                left -= bytes.len();
                if left == 0 {
                    return line;
                }
            }
        }
    }

    /// A caller that has a transfer, and reads no more of it.
    async fn served(&self, guest: &mut Guest) -> GuestStream {
        let mut line = self.offered(guest).await;
        line.send(&encode(&Ask { file: 0, from: 0 })).await.unwrap();
        line.receive(1).await.unwrap();
        line
    }
}

fn guest(ticket: &Ticket) -> Guest {
    Guest::new(ticket, &Identity::generate()).unwrap()
}

#[tokio::test]
async fn holders_of_a_ticket_are_served_and_only_so_many_at_once() {
    let host = Host::of(3_000_000);
    let stranger = guest(&ticket_by(Secret([0; 32]), Vec::new()));
    let refused = { stranger }.dial(&host.source).await.err();
    assert_eq!(refused, Some(DialError::Refused(Refusal::WrongTicket)));

    let mut guest = guest(&ticket());
    let mut lines = vec![];
    for _ in 0..TRANSFERS {
        lines.push(host.served(&mut guest).await);
    }
    let mut waited = false;
    let mut tell = |news| {
        if news == News::Waiting {
            waited = true;
            lines.pop();
        }
    };
    let fetched = host.fetch(&mut guest, 3_000_000, &mut tell).await;
    assert!(fetched.unwrap() == std::slice::from_ref(&host.bytes));
    assert!(waited);

    let limit = FetchError::TooLarge {
        bytes: 3_000_000,
        limit: 4,
    };
    let fetched = host.fetch(&mut guest, 4, &mut |_| {}).await;
    assert_eq!(fetched.err(), Some(limit));
    // Reading a file that has changed or become shorter ends in an error.
    std::fs::write(&host.path, vec![7; 3_000_000]).unwrap();
    let fetched = host.fetch(&mut guest, 3_000_000, &mut |_| {}).await;
    assert!(matches!(fetched.err(), Some(FetchError::Nobody(why)) if why[0].contains("not the run's data")));
    let mut line = host.offered(&mut guest).await;
    std::fs::write(&host.path, b"s").unwrap();
    line.send(&encode(&Ask { file: 0, from: 0 })).await.unwrap();
    let nodes = 32 * 3_000_000_usize.div_ceil(crate::data::BLOCK);
    let mut heard = 0;
    while let Ok(bytes) = line.receive(usize::MAX).await {
        heard += bytes.len();
    }
    assert!(heard <= nodes + 1, "{heard}");
}

#[tokio::test]
async fn callers_that_ask_for_nothing_hold_no_transfer() {
    let (host, ticket) = (Host::of(300_000), ticket());
    let mut silent = guest(&ticket);
    let mut lines = vec![];
    for _ in 0..2 * TRANSFERS {
        lines.push(host.offered(&mut silent).await);
    }
    let (mut asks, mut quiet) = (guest(&ticket), |_| {});
    let fetched = tokio::select! {
        fetched = host.fetch(&mut asks, 300_000, &mut quiet) => fetched,
        _ = lines[0].receive(1) => panic!("the fetch waits for a silent caller's end"),
    };
    assert!(fetched.unwrap() == std::slice::from_ref(&host.bytes));
    for mut line in lines {
        let left = timeout(Duration::from_secs(7), line.receive(1)).await;
        assert!(left.expect("its place is taken from it").is_err());
    }
}

#[tokio::test]
async fn one_ticket_holds_a_quarter_of_the_transfers_while_others_ask() {
    let host = Host::of(30_000_000);
    let mut greedy = guest(&ticket());
    let mut lines = vec![];
    for _ in 0..TRANSFERS {
        lines.push(host.served(&mut greedy).await);
    }
    let all = Invitation::of_run(RUN_KEY.key());
    let other = Ticket::made_from(&all, root(), Role::Member, None, None).unwrap();
    let mut waited = false;
    let mut tell = |news| waited |= news == News::Waiting;
    let fetched = host.fetch(&mut guest(&other), 30_000_000, &mut tell).await;
    assert!(fetched.unwrap() == std::slice::from_ref(&host.bytes) && !waited);
}
