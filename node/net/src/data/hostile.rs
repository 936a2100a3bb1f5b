//! Reads hostile data: whatever it contains, reading ends, with or without an error, and takes no more memory than the
//! data has bytes.

use super::files::Data;
use super::idx;
use super::listing::{ListedFile, Listing};
use super::tree::Blocks;
use crate::testing::Twister;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write as _;

/// How often each kind of file is corrupted.
const TIMES: u64 = 1000;

/// An IDX file of unsigned bytes.
fn idx_file(dimensions: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
    let elements = dimensions.iter().product::<u32>();
    bytes.extend((0..elements).map(|at| at as u8 % 10));
    bytes
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn spoilt_images_are_no_more_than_an_error() {
    let (images, labels) = (idx_file(&[20, 4, 4]), idx_file(&[20]));
    let mut twister = Twister::new(11);
    for time in 0..TIMES {
        let (mut first, mut second) = (images.clone(), labels.clone());
        match time % 4 {
            0 => first = twister.twist(&images),
            1 => second = twister.twist(&labels),
            2 => first = gzipped(&twister.twist(&images)),
            _ => first = twister.twist(&gzipped(&images)),
        }
        let files = [
            ("train-images-idx3-ubyte", first),
            ("train-labels-idx1-ubyte", second),
        ];
        let files = files.map(|(name, bytes)| (name.to_owned(), bytes.into()));
        if let Ok(split) = idx::read_folder(&Data::folder_in_memory(files.into()), None) {
            assert!(split.train.len() + split.test.len() <= 64);
        }
    }
}

#[test]
fn images_of_another_size_or_that_unpack_to_much_are_refused_before_they_are_unpacked() {
    let read = |images: Vec<u8>, size| {
        let files = [("images.gz", images), ("labels", idx_file(&[20]))];
        let files = files.map(|(name, bytes)| (name.to_owned(), bytes.into()));
        idx::read_folder(&Data::folder_in_memory(files.into()), size).map_err(|error| error.to_string())
    };
    // Their ends are missing, which would be noticed if they were unpacked.
    let cut = |mut packed: Vec<u8>| {
        packed.truncate(packed.len() - 8);
        packed
    };
    let small = idx_file(&[20, 4, 4]);
    let told = read(cut(gzipped(&small)), Some((28, 28))).unwrap_err();
    assert!(told.contains("4 x 4 pixels, not 28 x 28"), "{told}");
    assert!(read(gzipped(&small), Some((4, 4))).is_ok());
    let mut bomb = idx_file(&[20, 1024, 1024]);
    bomb[16..].fill(0);
    let told = read(cut(gzipped(&bomb)), None).unwrap_err();
    assert!(told.contains("64 times"), "{told}");
}

#[test]
fn a_listing_is_sound_or_not() {
    let file = |name: &str, size| ListedFile {
        name: name.into(),
        size,
        hash: [7; 32],
    };
    let good = Listing {
        folder: true,
        files: vec![file("a.txt", 5), file("b.txt", 1 << 20)],
    };
    let good = postcard::to_allocvec(&good).unwrap();
    let mut twister = Twister::new(13);
    let (mut sound, mut not) = (0, 0);
    for _ in 0..100 * TIMES {
        let Ok(listing) = postcard::from_bytes::<Listing>(&twister.twist(&good)) else {
            continue;
        };
        let _ = listing.digest();
        match listing.is_sound() {
            true => {
                sound += 1;
                assert!(listing.total() < u64::MAX);
            }
            false => not += 1,
        }
    }
    assert!(sound > 100 && not > 100, "{sound} {not}");
}

#[test]
fn hashes_of_blocks_that_do_not_add_up_prove_nothing() {
    let bytes: Vec<u8> = (0..3 * super::BLOCK + 17).map(|at| at as u8).collect();
    let blocks = Blocks::of(&bytes[..]).unwrap();
    let mut twister = Twister::new(14);
    for _ in 0..TIMES {
        let said = twister.twist(blocks.nodes());
        let proven = Blocks::proven(blocks.size(), blocks.root(), &said);
        assert_eq!(proven.is_some(), said == blocks.nodes());
        let _ = Blocks::proven(twister.bits(), blocks.root(), &said);
    }
}
