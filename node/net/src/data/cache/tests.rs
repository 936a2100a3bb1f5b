//! The cache on disk: places, notes, and room for new sets.

use super::*;
use crate::data::Data;
use crate::data::DataError;
use crate::data::provision::{ListedFile, PIECE};
use crate::data::tree::Blocks;
use crate::testing::Scratch;
use std::io::Read;
use std::iter;

/// Files that do not repeat themselves.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

fn listing(folder: bool, files: &[(&str, &[u8])]) -> Listing {
    let files = files.iter().map(|(name, bytes)| ListedFile {
        name: (*name).to_owned(),
        size: bytes.len() as u64,
        hash: *blake3::hash(bytes).as_bytes(),
    });
    Listing {
        folder,
        files: files.collect(),
    }
}

/// Puts up to `most` missing pieces of these files there. Returns how many were missing.
fn fill(store: &mut impl Store, files: &[(&str, &[u8])], most: usize) -> usize {
    let here = store.begin(&listing(true, files)).unwrap();
    let mut count = 0;
    for (file, (here, (_, bytes))) in here.iter().zip(files).enumerate() {
        let proof = Blocks::of(*bytes).unwrap();
        if here.nodes.is_empty() && !proof.nodes().is_empty() {
            store.prove(file, proof.nodes()).unwrap();
        }
        for index in &here.missing {
            count += 1;
            if count <= most {
                let start = (index * PIECE) as usize;
                let end = bytes.len().min(start + PIECE as usize);
                store.put(file, *index, &bytes[start..end]).unwrap();
            }
        }
    }
    count
}

/// A store in which all is right that can be read.
async fn store(place: &Place) -> Arriving<fn(&Path) -> Result<(), String>> {
    place
        .fetching(|| ())
        .await
        .unwrap()
        .into_store(LIMIT, can_be_read)
}

fn can_be_read(path: &Path) -> Result<(), String> {
    let data = Data::open(path).map_err(|error| error.to_string())?;
    for name in ["a", "b", "none"] {
        if let Some(file) = data.file(name).unwrap() {
            let contents = file.contents().unwrap();
            contents.read_all(|_| {}).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn read(data: &Data, name: &str) -> Vec<u8> {
    let mut read = Vec::new();
    let file = data.file(name).unwrap().unwrap();
    file.reader().unwrap().read_to_end(&mut read).unwrap();
    read
}

#[tokio::test]
async fn what_was_fetched_goes_on_after_a_crash_at_each_piece_and_is_read_as_it_was() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.join("new"), Digest([7; 32]));
    let large = bytes(3 * PIECE as usize + 3);
    let files: [(&str, &[u8]); 3] = [("a", &large), ("b", b"to"), ("none", b"")];
    for missing in (1..=5).rev() {
        assert_eq!(place.found(), None);
        let mut store = store(&place).await;
        assert_eq!(fill(&mut store, &files, 1), missing);
        // As a crash leaves it: half a piece under another name, and one that the disk has cut off.
        let folder = store.folder();
        fs::write(folder.join("0-2.partial"), b"half").unwrap();
        if missing > 1 {
            fs::write(folder.join("1-0"), b"t").unwrap();
        }
    }
    let folder = place.found().expect("it is whole");
    let mut store = store(&place).await;
    assert_eq!(fill(&mut store, &files, 9), 0);
    assert_eq!(store.finish(), Ok(folder.clone()));
    assert!(!folder.join("0-2.partial").exists());
    let data = Data::open(&folder).unwrap();
    for (name, bytes) in files {
        assert!(read(&data, name) == bytes, "{name}");
        let file = data.file(name).unwrap().unwrap();
        assert_eq!(file.size().unwrap(), bytes.len() as u64);
        assert_eq!(file.proof(), Some(Blocks::of(bytes).unwrap()));
    }
    let contents = data.file("a").unwrap().unwrap().contents().unwrap();
    assert_eq!(contents.read_all(|_| {}).unwrap(), Digest::of(&large));
    for range in [0..1, PIECE - 1..PIECE + 1, 5..3 * PIECE + 3, 7..7] {
        let part = contents.part(range.clone()).unwrap();
        assert!(*part == large[range.start as usize..range.end as usize]);
    }
    assert!(data.file("c").unwrap().is_none());
}

#[tokio::test]
async fn a_spoilt_piece_is_never_read_and_is_fetched_again() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.clone(), Digest([8; 32]));
    let large = bytes(2 * PIECE as usize);
    let files: [(&str, &[u8]); 1] = [("a", &large)];
    let mut store = store(&place).await;
    fill(&mut store, &files, 9);
    let folder = store.finish().unwrap();
    let open = || {
        Data::open(&folder)
            .unwrap()
            .file("a")
            .unwrap()
            .unwrap()
            .contents()
            .unwrap()
    };
    let piece = folder.join("0-1");
    for seen in [false, true] {
        let contents = open();
        if seen {
            contents.part(PIECE..PIECE + 5).unwrap();
        }
        let mut other = large[PIECE as usize..].to_vec();
        other[9] ^= 1;
        fs::write(&piece, &other).unwrap();
        let later = SystemTime::now() + Duration::from_secs(9);
        File::options()
            .write(true)
            .open(&piece)
            .unwrap()
            .set_modified(later)
            .unwrap();
        let told = contents.part(PIECE..PIECE + 5).unwrap_err().to_string();
        assert!(told.contains("0-1") && told.contains("again"), "{told}");
        assert!(*contents.part(0..5).unwrap() == large[..5]);
        assert_eq!(place.found(), None);
        assert_eq!(fill(&mut store, &files, 9), 1);
        assert!(*open().part(PIECE..PIECE + 5).unwrap() == large[PIECE as usize..][..5]);
    }
    // A piece that is found spoilt in the end is asked for again too.
    fs::write(&piece, &large[..PIECE as usize]).unwrap();
    assert!(store.finish().is_err());
    assert_eq!(fill(&mut store, &files, 9), 1);
    store.finish().unwrap();
    // Nodes that are gone or spoilt prove nothing.
    fs::write(folder.join("0.nodes"), [7; 8 * 32]).unwrap();
    assert_eq!(place.found(), None);
    assert_eq!(fill(&mut store, &files, 9), 2);
    assert_eq!(place.found(), Some(folder));
}

#[tokio::test]
async fn a_cache_that_is_removed_meanwhile_is_made_again() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.join("cache"), Digest([8; 32]));
    let large = bytes(2 * PIECE as usize + 1);
    let files: [(&str, &[u8]); 2] = [("a", &large), ("b", b"b")];
    let mut store = store(&place).await;
    assert_eq!(fill(&mut store, &files, 2), 4);
    fs::remove_dir_all(&place.folder).unwrap();
    store.put(0, 2, &large[2 * PIECE as usize..]).unwrap();
    assert!(store.finish().is_err());
    assert_eq!(fill(&mut store, &files, 9), 3);
    let found = store.finish().unwrap();
    assert!(read(&Data::open(&found).unwrap(), "a") == large);
}

#[cfg(unix)]
#[tokio::test]
async fn a_full_disk_is_named_and_leaves_no_half_of_a_piece() {
    const FOLDER: &str = "ANNULUS_TEST_FULL_DISK";
    let large = bytes(PIECE as usize);
    let files: [(&str, &[u8]); 2] = [("a", &large), ("b", b"b")];
    let place = |folder: &Path| Place::new(folder.to_owned(), Digest([8; 32]));
    if let Some(folder) = std::env::var_os(FOLDER) {
        let limit = libc::rlimit {
            rlim_cur: PIECE / 2,
            rlim_max: PIECE / 2,
        };
        // SAFETY: both take plain numbers. No file of this process may be longer, as if the disk were full.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
        let mut store = store(&place(Path::new(&folder))).await;
        store.begin(&listing(true, &files)).unwrap();
        let told = store.put(0, 0, &large).unwrap_err();
        assert!(told.contains("no space left") && told.contains("0-0"), "{told}");
        store.put(1, 0, b"b").unwrap();
        return;
    }
    let scratch = Scratch::new();
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::a_full_disk_is_named_and_leaves_no_half_of_a_piece");
    let output = test
        .args(["--exact", &name])
        .env(FOLDER, &scratch.0)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let place = place(&scratch.0);
    let names = fs::read_dir(place.named(BLOCKS)).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["1-0", "listing"]);
    // There is room again.
    let mut store = store(&place).await;
    assert_eq!(fill(&mut store, &files, 9), 1);
    store.finish().unwrap();
}

#[test]
fn where_data_lies_is_remembered() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.join("new"), Digest([6; 32]));
    assert!(place.noted().is_empty());
    let data = scratch.0.join("book.txt");
    fs::write(&data, "text").unwrap();
    place.note(&data).unwrap();
    assert_eq!(place.noted(), std::slice::from_ref(&data));
    // It is shared with no run but those that its user shares it with, and the newest of these are remembered.
    let runs = |at: usize| RunId([at as u8; 32]);
    assert!(!place.is_shared_with(runs(0)));
    for at in 0..=RUNS {
        place.share_with(runs(at), true).unwrap();
    }
    assert_eq!(
        [0, 1, RUNS].map(|at| place.is_shared_with(runs(at))),
        [false, true, true]
    );
    place.share_with(runs(1), false).unwrap();
    assert_eq!([1, 2].map(|at| place.is_shared_with(runs(at))), [false, true]);
    assert_eq!(place.found(), None);
    fs::remove_file(&data).unwrap();
    assert_eq!(place.noted(), std::slice::from_ref(&data));
    // The newest first, each once, and not too many.
    for copy in (0..20).chain([18]) {
        place.note(&scratch.0.join(format!("copy {copy}"))).unwrap();
    }
    place.note(&data).unwrap();
    let names = [18, 19, 17, 16, 15, 14, 13].map(|copy| scratch.0.join(format!("copy {copy}")));
    assert_eq!(place.noted(), [&[data], names.as_slice()].concat());
}

#[tokio::test]
async fn what_another_offer_left_behind_is_in_nobodys_way() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.clone(), Digest([8; 32]));
    let mut store = store(&place).await;
    fill(&mut store, &[("a", b"gzipped"), ("b", b"plain")], 9);
    // Another peer has it as one file, for which others have another name.
    let one = listing(false, &[("b", b"text")]);
    assert_eq!(store.begin(&one).unwrap()[0].missing, [0]);
    store.put(0, 0, b"text").unwrap();
    assert!(
        store.begin(&listing(false, &[("data", b"text")])).unwrap()[0]
            .missing
            .is_empty()
    );
    let data = Data::open(&place.found().unwrap()).unwrap();
    let file = data.single().unwrap();
    assert_eq!(
        (file.name(), file.part(1..3).unwrap().as_slice()),
        ("b", &b"ex"[..])
    );
}

#[test]
fn a_folder_of_the_users_is_not_taken_for_pieces() {
    let scratch = Scratch::new();
    for listing in [&b"my files"[..], MARK, &[MARK, b"\x01\x00"].concat()] {
        fs::write(scratch.0.join(LISTING), listing).unwrap();
        assert!(Data::open(&scratch.0).unwrap().file(LISTING).unwrap().is_some());
    }
}

/// A set of two pieces of 100 bytes, one of them older, in files of their own.
async fn keep(scratch: &Scratch, name: u8) {
    let place = Place::new(scratch.0.clone(), Digest([name; 32]));
    let mut store = store(&place).await;
    fill(&mut store, &[("a", &[name; 100]), ("b", &[!name; 100])], 9);
    let folder = store.finish().unwrap();
    let old = SystemTime::now() - Duration::from_secs(9);
    File::options()
        .write(true)
        .open(folder.join("1-0"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    drop(store);
    // Clocks of file systems are coarse.
    std::thread::sleep(Duration::from_millis(20));
}

#[tokio::test]
async fn what_was_not_used_for_the_longest_time_is_forgotten() {
    let scratch = Scratch::new();
    let place = |name| Place::new(scratch.0.clone(), Digest([name; 32]));
    let pieces = |name| ["0-0", "1-0"].map(|piece| place(name).named(BLOCKS).join(piece).exists());
    for name in 1..=3 {
        keep(&scratch, name).await;
    }
    // A note of where data lies takes no room.
    place(1).note(&scratch.0).unwrap();
    let found = place(1).found().unwrap();
    place(4).make_room(100, 700).unwrap();
    assert_eq!([1, 2, 3].map(pieces), [[true; 2]; 3]);
    place(4).make_room(100, 699).unwrap();
    assert_eq!([1, 2, 3].map(pieces), [[true; 2], [true, false], [true; 2]]);
    place(4).make_room(100, 500).unwrap();
    assert_eq!([1, 2, 3].map(pieces), [[true; 2], [false; 2], [true; 2]]);
    assert!(!place(2).named(BLOCKS).exists());
    // A set that is read or fetched is in use, however old it is, and its own place does not count.
    let reading = Data::open(&found).unwrap();
    let fetching = place(3).fetching(|| ()).await.unwrap();
    place(4).make_room(400, 400).unwrap();
    place(1).make_room(400, 400).unwrap();
    assert_eq!([1, 3].map(pieces), [[true; 2]; 2]);
    drop(fetching);
    place(1).make_room(400, 400).unwrap();
    assert_eq!([1, 3].map(pieces), [[true; 2], [false; 2]]);
    drop(reading);
    place(4).make_room(400, 400).unwrap();
    assert_eq!(pieces(1), [false; 2]);
    assert_eq!(place(1).noted(), std::slice::from_ref(&scratch.0));
}

#[tokio::test]
async fn a_set_that_cannot_be_removed_is_in_nobodys_way() {
    let scratch = Scratch::new();
    let place = |name| Place::new(scratch.0.clone(), Digest([name; 32]));
    for name in [1, 2] {
        keep(&scratch, name).await;
    }
    // The first would go first, but its lock cannot be taken.
    fs::remove_file(place(1).named(".used")).unwrap();
    fs::create_dir(place(1).named(".used")).unwrap();
    place(3).make_room(200, 400).unwrap();
    assert_eq!(
        [1, 2].map(|name| place(name).named(BLOCKS).exists()),
        [true, false]
    );
}

#[tokio::test]
async fn two_processes_do_not_fetch_the_same_at_once() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.clone(), Digest([9; 32]));
    let first = place.fetching(|| panic!("nobody is there")).await.unwrap();
    let (second, (told, mut waits)) = (place.clone(), tokio::sync::oneshot::channel());
    let second = tokio::spawn(async move { second.fetching(|| told.send(()).unwrap()).await.unwrap() });
    (&mut waits).await.unwrap();
    assert!(!second.is_finished());
    drop(first);
    second.await.unwrap();
}

#[tokio::test]
async fn streamed_data_is_read_as_it_arrives_and_keeps_to_its_budget() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.join("new"), Digest([7; 32]));
    let (model, large) = (bytes(2 * PIECE as usize), bytes(5 * PIECE as usize + 3));
    let proof = Blocks::of(&large[..]).unwrap();
    let of = |file: usize, index: u64| {
        let bytes = [&model, &large][file];
        let Range { start, end } = piece(bytes.len() as u64, index);
        &bytes[start as usize..end as usize]
    };
    let budget = 5 * PIECE;
    let demand = Arc::new(Demand::new(budget));
    let (begun, path) = std::sync::mpsc::channel();
    let begun: Begun = Box::new(move |folder| begun.send(folder).unwrap());
    let fetching = place.fetching(|| ()).await.unwrap();
    let whole: Whole = Some(|name| name == "a");
    let mut store = Supplied::new(fetching, (demand.clone(), budget), whole, begun);
    let here = store
        .begin(&listing(true, &[("a", &model), ("b", &large)]))
        .unwrap();
    assert!(here.iter().all(|here| here.missing.is_empty()) && path.try_recv().is_err());
    // All of the first, and one of the second.
    let first = demand.wanted();
    assert_eq!(first, [(0, 0), (0, 1), (1, 0)]);
    store.prove(0, Blocks::of(&model[..]).unwrap().nodes()).unwrap();
    store.prove(1, proof.nodes()).unwrap();
    for (file, index) in first {
        assert!(!store.has_begun());
        store.put(file, index, of(file, index)).unwrap();
    }
    let folder = path.try_recv().unwrap();
    let data = Data::on_demand(&folder, demand.clone()).unwrap();
    assert!(read(&data, "a") == model);
    let file = data.file("b").unwrap().unwrap();
    let contents = file.contents().unwrap();
    assert_eq!(contents.known_digest(), Some(Digest::of(&large)));
    assert_eq!(file.proof(), Some(proof));
    assert!(*contents.part(5..9).unwrap() == large[5..9]);
    // Nobody waits for a piece that was not asked for.
    let border = PIECE - 1..PIECE + 1;
    let away = contents.part(border.clone()).unwrap_err();
    assert!(matches!(away, DataError::Elsewhere), "{away}");
    assert!(!contents.have(iter::once(border.clone()), Duration::ZERO));
    assert_eq!(demand.wanted(), [(1, 1)]);
    store.put(1, 1, of(1, 1)).unwrap();
    assert!(contents.have(iter::once(border.clone()), Duration::ZERO));
    assert!(*contents.part(border).unwrap() == large[PIECE as usize - 1..PIECE as usize + 1]);
    // The oldest go once there is no room, and what is pinned stays.
    contents.pin(iter::once(0..1));
    for index in 2..5 {
        demand.begin_share();
        contents.have(iter::once(index * PIECE..index * PIECE + 1), Duration::ZERO);
        store.put(1, index, of(1, index)).unwrap();
    }
    let left = |(file, index): (usize, u64)| folder.join(piece_name(file, index)).exists();
    assert_eq!(
        [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)].map(left),
        [false, false, true, true, true, true, true]
    );
    // One that is spoilt on the disk is asked for again.
    fs::write(folder.join("1-4"), "something else").unwrap();
    assert!(contents.have(iter::once(4 * PIECE..5 * PIECE), Duration::ZERO));
    let spoilt = contents.part(4 * PIECE..5 * PIECE).unwrap_err();
    assert!(matches!(spoilt, DataError::Elsewhere), "{spoilt}");
    assert_eq!(demand.wanted(), [(1, 4)]);
    assert!(!contents.have(iter::once(4 * PIECE..5 * PIECE), Duration::ZERO));
    drop((data, file, contents));
    assert!(!demand.more().await);
}
