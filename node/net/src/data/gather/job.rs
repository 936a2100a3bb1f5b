//! The state that all visits of a fetch share: the pieces that are missing, and the peers that owe them.

use crate::data::demand::{Demand, Place};
use crate::data::listing::Listing;
use crate::data::provision::{Answer, FetchError, Here, MAX_OTHERS, News, Offer, Source, Store};
use crate::data::tree::{Blocks, piece};
use annulus_core::Digest;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

/// Why a peer is of no use.
pub(super) enum Out {
    Kept,
    Because(String),
}

/// Why a visit ended before everything was here.
pub(super) enum Ended {
    /// The peer has no free slot.
    Busy,
    /// There is no need to ask it again.
    Out(Out),
    /// It could not be reached, or fell silent.
    Lost(String),
    /// A problem that another peer would not solve.
    Failed(FetchError),
}

fn here(why: String) -> Ended {
    Ended::Failed(FetchError::Here(why))
}

fn because(why: &str) -> Ended {
    Ended::Out(Out::Because(why.to_owned()))
}

/// What all visits work on.
pub(super) struct Job<'a, S> {
    pub store: &'a mut S,
    pub tell: &'a mut dyn FnMut(News),
    files: Digest,
    limit: u64,
    /// The files that are wanted here, once a peer has listed them.
    wanted: Option<Wanted>,
    /// The proof of each file's blocks, if it is here.
    proofs: Vec<Option<Blocks>>,
    /// The pieces that are missing, and how many peers owe each.
    pub open: BTreeMap<Place, usize>,
    /// Bytes that are here.
    bytes: u64,
    /// Whether there are more peers to visit, or reasons to visit more of them.
    pub news: bool,
    /// Peers that others named.
    pub others: Vec<Source>,
    /// The demand for single pieces, if not all are wanted.
    pub demand: Option<&'a Demand>,
}

/// The run's files that are wanted here.
struct Wanted {
    listing: Listing,
    /// The place of each in the run's listing.
    places: Vec<u32>,
}

impl<'a, S: Store> Job<'a, S> {
    pub fn new(store: &'a mut S, tell: &'a mut dyn FnMut(News), files: Digest, limit: u64) -> Self {
        Self {
            store,
            tell,
            files,
            limit,
            wanted: None,
            proofs: Vec::new(),
            open: BTreeMap::new(),
            bytes: 0,
            news: false,
            others: Vec::new(),
            demand: None,
        }
    }

    /// Opens the pieces that are wanted now, and closes those that no longer are.
    pub fn look(&mut self) {
        let Some(demand) = self.demand else { return };
        let wanted: BTreeSet<Place> = demand.wanted().into_iter().collect();
        self.open
            .retain(|place, owing| *owing > 0 || wanted.contains(place));
        for place in wanted {
            self.open.entry(place).or_insert(0);
        }
    }

    /// Takes what a peer says of itself and others.
    pub fn hear(&mut self, offer: Offer) -> Result<(), Ended> {
        let mut others = offer.others;
        others.truncate(MAX_OTHERS);
        self.others.extend(others);
        self.news = true;
        let listing = match offer.answer {
            Answer::Files(listing) => listing,
            Answer::Kept => return Err(Ended::Out(Out::Kept)),
            Answer::Missing => return Err(because("it has no files to hand out")),
            Answer::Busy => return Err(Ended::Busy),
        };
        if listing.digest() != self.files {
            return Err(because("it offers other files than the run's"));
        }
        if !listing.is_sound() {
            return Err(because("the run's files cannot be handed out"));
        }
        if self.wanted.is_some() {
            return Ok(());
        }
        let Listing { folder, files } = listing;
        let files = (0..).zip(files).filter(|(_, file)| self.store.wants(&file.name));
        let (places, files) = files.unzip();
        let listing = Listing { folder, files };
        let (bytes, limit) = (listing.total(), self.limit);
        if bytes > limit {
            return Err(Ended::Failed(FetchError::TooLarge { bytes, limit }));
        }
        self.wanted = Some(Wanted { listing, places });
        self.take_stock().map_err(here)
    }

    /// Finds out what is missing.
    pub fn take_stock(&mut self) -> Result<(), String> {
        let Some(Wanted { listing, .. }) = &self.wanted else {
            return Ok(());
        };
        let have = self.store.begin(listing)?;
        self.open.clear();
        self.proofs.clear();
        self.bytes = listing.total();
        for (file, (listed, Here { nodes, missing })) in listing.files.iter().zip(have).enumerate() {
            self.proofs.push(Blocks::proven(listed.size, listed.hash, &nodes));
            for index in missing {
                let Range { start, end } = piece(listed.size, index);
                self.bytes -= end - start;
                self.open.insert((file, index), 0);
            }
        }
        self.say();
        Ok(())
    }

    fn say(&mut self) {
        let (bytes, total) = (
            self.bytes,
            self.wanted.as_ref().map_or(0, |wanted| wanted.listing.total()),
        );
        (self.tell)(News::Got { bytes, total });
    }

    /// A peer no longer owes a piece.
    pub fn release(&mut self, place: Place) {
        if let Some(owing) = self.open.get_mut(&place) {
            // It may have come from another peer, and be wanted again.
            *owing = owing.saturating_sub(1);
        }
    }

    /// Whether there is a piece that nobody owes.
    pub fn has_free(&self) -> bool {
        // Those that somebody owes are few and mostly the first.
        self.open.values().any(|owing| *owing == 0)
    }

    /// A piece to ask a peer for that lacks or owes some: one that nobody owes, or any if `all`, the least owed first.
    pub fn next(&mut self, but: &BTreeSet<Place>, all: bool) -> Option<Place> {
        self.look();
        let may = |(place, _): &(&Place, &usize)| !but.contains(*place);
        let is_free = |open: &(&Place, &usize)| *open.1 == 0 && may(open);
        let found = match all {
            // It is asked in order, so there is mostly one behind the last that it owes or lacks.
            false => {
                let last = but.last().map_or(Bound::Unbounded, |last| Bound::Excluded(*last));
                let behind = self.open.range((last, Bound::Unbounded)).find(is_free);
                behind.or_else(|| self.open.iter().find(is_free))
            }
            true => self.open.iter().filter(may).min_by_key(|(_, owing)| **owing),
        };
        let place = *found?.0;
        *self.open.get_mut(&place)? += 1;
        Some(place)
    }

    /// The length and hash of a file, and its place in the run's listing.
    pub fn file(&self, file: usize) -> (u64, [u8; 32], u32) {
        let wanted = self
            .wanted
            .as_ref()
            .expect("files are listed before they are asked for");
        let listed = &wanted.listing.files[file];
        (listed.size, listed.hash, wanted.places[file])
    }

    pub fn lacks_nodes(&self, file: usize) -> bool {
        self.proofs[file].is_none()
    }

    pub fn prove(&mut self, file: usize, nodes: &[u8]) -> Result<(), Ended> {
        let (size, hash, _) = self.file(file);
        let proof = Blocks::proven(size, hash, nodes).ok_or_else(false_data)?;
        if self.lacks_nodes(file) {
            self.store.prove(file, nodes).map_err(here)?;
            self.proofs[file] = Some(proof);
        }
        Ok(())
    }

    pub fn put(&mut self, place: Place, bytes: &[u8]) -> Result<(), Ended> {
        let (file, index) = place;
        let proof = self.proofs[file].as_ref().expect("nodes come before pieces");
        if !proof.proves_piece(index, bytes) {
            return Err(false_data());
        }
        // Another peer may have been faster.
        if self.open.contains_key(&place) {
            self.store.put(file, index, bytes).map_err(here)?;
            self.open.remove(&place);
            self.bytes += bytes.len() as u64;
            self.say();
        }
        Ok(())
    }
}

fn false_data() -> Ended {
    because("what it handed out is not the run's data")
}
