//! Fetching from a peer on this machine, alone and beside others.

use super::*;
use crate::data::gather::fetch;
use crate::data::provision::{
    Answer, Ask, FetchError, HAS, Here, LACKS, ListedFile, Listing, News, Offer, PIECE, Store,
};
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

    fn begin(&mut self, listing: &Listing) -> Result<Vec<Here>, String> {
        self.0 = listing
            .files
            .iter()
            .map(|file| vec![0; file.size as usize])
            .collect();
        let missing = |file: &ListedFile| (0..file.size.div_ceil(PIECE)).collect();
        let here = |file| Here {
            nodes: vec![],
            missing: missing(file),
        };
        Ok(listing.files.iter().map(here).collect())
    }

    fn put(&mut self, file: usize, piece: u64, bytes: &[u8]) -> Result<(), String> {
        self.0[file][(piece * PIECE) as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<Vec<u8>>, String> {
        Ok(self.0.clone())
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
        guest: &Guest,
        limit: u64,
        tell: &mut dyn FnMut(News),
    ) -> Result<Vec<Vec<u8>>, FetchError> {
        let (source, files) = (self.source.clone(), self.listing.digest());
        let fetched = fetch(guest, &mut Any::default(), source, files, limit, tell).await;
        fetched.map(|(whole, _)| whole)
    }

    /// A caller that has read the offer of the files, once there is one, and is silent.
    async fn offered(&self, guest: &Guest) -> GuestStream {
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
    async fn served(&self, guest: &Guest) -> GuestStream {
        let mut line = self.offered(guest).await;
        line.send(&first_piece()).await.unwrap();
        line.receive(1).await.unwrap();
        // More than QUIC takes at once, so that it stays busy.
        for _ in 0..30 {
            line.send(&first_piece()).await.unwrap();
        }
        line
    }
}

/// Asks for a piece.
fn first_piece() -> Vec<u8> {
    encode(&Ask::Blocks {
        file: 0,
        from: 0,
        blocks: 4,
    })
}

fn guest(ticket: &Ticket) -> Guest {
    Guest::new(ticket, &Identity::generate()).unwrap()
}

#[tokio::test]
async fn holders_of_a_ticket_are_served_and_only_so_many_at_once() {
    let host = Host::of(3_000_000);
    let stranger = guest(&ticket_by(Secret([0; 32]), Vec::new()));
    let refused = stranger.dial(&host.source).await.err();
    assert_eq!(refused, Some(DialError::Refused(Refusal::WrongTicket)));

    let guest = guest(&ticket());
    let mut lines = vec![];
    for _ in 0..TRANSFERS {
        lines.push(host.served(&guest).await);
    }
    let mut waited = false;
    let mut tell = |news| {
        if news == News::Waiting {
            waited = true;
            lines.pop();
        }
    };
    let fetched = host.fetch(&guest, 3_000_000, &mut tell).await;
    assert!(fetched.unwrap() == std::slice::from_ref(&host.bytes));
    assert!(waited);

    let limit = FetchError::TooLarge {
        bytes: 3_000_000,
        limit: 4,
    };
    let fetched = host.fetch(&guest, 4, &mut |_| {}).await;
    assert_eq!(fetched.err(), Some(limit));
    // Reading a file that has changed or become shorter ends in an error.
    std::fs::write(&host.path, vec![7; 3_000_000]).unwrap();
    let fetched = host.fetch(&guest, 3_000_000, &mut |_| {}).await;
    assert!(matches!(fetched.err(), Some(FetchError::Nobody(why)) if why[0].contains("not the run's data")));
    let mut line = host.offered(&guest).await;
    std::fs::write(&host.path, b"s").unwrap();
    line.send(&first_piece()).await.unwrap();
    assert_eq!(*line.receive(usize::MAX).await.unwrap(), [LACKS]);
    // A question beyond the file, or for too much, ends the conversation.
    for (file, from, blocks) in [
        (1, 0, 1),
        (0, 3_000_000, 1),
        (0, 0, 5),
        (0, 0, 0),
        (0, u64::MAX, 1),
    ] {
        let mut line = host.offered(&guest).await;
        line.send(&encode(&Ask::Blocks { file, from, blocks }))
            .await
            .unwrap();
        assert!(line.receive(1).await.is_err(), "{file} {from} {blocks}");
    }
}

#[tokio::test]
async fn one_that_pauses_gives_its_transfer_back_and_may_ask_again() {
    let host = Host::of(3_000_000);
    let guest = guest(&ticket());
    let mut lines = vec![];
    for _ in 0..TRANSFERS {
        let mut line = host.offered(&guest).await;
        line.send(&first_piece()).await.unwrap();
        lines.push(line);
    }
    let all = async |line: &mut GuestStream| {
        let mut heard = Vec::new();
        while heard.len() <= PIECE as usize {
            heard.extend_from_slice(&line.receive(1 + PIECE as usize - heard.len()).await.unwrap());
        }
        assert!(heard[0] == HAS && heard[1..] == host.bytes[..PIECE as usize]);
    };
    for line in &mut lines {
        all(line).await;
    }
    // Each has its answer and asks for nothing more, so another gets a transfer.
    let fetched = host.fetch(&guest, 3_000_000, &mut |_| {}).await;
    assert!(fetched.unwrap() == std::slice::from_ref(&host.bytes));
    lines[0].send(&first_piece()).await.unwrap();
    all(&mut lines[0]).await;
}

#[tokio::test]
async fn callers_that_ask_for_nothing_hold_no_transfer() {
    let (host, ticket) = (Host::of(300_000), ticket());
    let silent = guest(&ticket);
    let mut lines = vec![];
    for _ in 0..2 * TRANSFERS {
        lines.push(host.offered(&silent).await);
    }
    let (asks, mut quiet) = (guest(&ticket), |_| {});
    let fetched = tokio::select! {
        fetched = host.fetch(&asks, 300_000, &mut quiet) => fetched,
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
    let greedy = guest(&ticket());
    let mut lines = vec![];
    for _ in 0..TRANSFERS {
        lines.push(host.served(&greedy).await);
    }
    let all = Invitation::of_run(RUN_KEY.key());
    let other = Ticket::made_from(&all, root(), Role::Member, None, None).unwrap();
    let mut waited = false;
    let mut tell = |news| waited |= news == News::Waiting;
    let fetched = host.fetch(&guest(&other), 30_000_000, &mut tell).await;
    assert!(fetched.unwrap() == std::slice::from_ref(&host.bytes) && !waited);
}
