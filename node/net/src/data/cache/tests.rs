//! The cache on disk: places, notes, and room for new sets.

use super::*;
use crate::testing::Scratch;

fn listing(folder: bool, files: &[(&str, u64)]) -> Listing {
    let files = files.iter().map(|(name, size)| ListedFile {
        name: (*name).to_owned(),
        size: *size,
        hash: [0; 32],
    });
    Listing {
        folder,
        files: files.collect(),
    }
}

#[tokio::test]
async fn a_place_gets_its_name_only_with_the_right_data_in_it() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.join("new"), Digest([7; 32]));
    assert_eq!(place.found(), None);
    let two = listing(true, &[("a", BLOCK as u64 + 3), ("b", 2)]);
    let block = vec![b'x'; BLOCK];
    // The first process stops in the middle.
    let is_it = |_: &Path| -> Result<(), Trouble> { panic!("it is not whole") };
    let mut store = place.fetching(|| ()).await.unwrap().into_store(is_it);
    assert_eq!(store.begin(&two).unwrap(), [0, 0]);
    store.append(0, &block).unwrap();
    // A block that arrived only in part, as after a crash.
    store.append(0, b"on").unwrap();
    drop(store);
    assert_eq!(place.found(), None);
    // The second process continues, and finds other data.
    let is_it = |path: &Path| match &fs::read(path.join("a")).unwrap()[BLOCK..] {
        b"one" => Ok(()),
        _ => Err(Trouble::Data("another".into())),
    };
    let mut store = place.fetching(|| ()).await.unwrap().into_store(is_it);
    assert_eq!(store.begin(&two).unwrap(), [BLOCK as u64, 0]);
    store.append(0, b"off").unwrap();
    store.append(1, b"to").unwrap();
    assert_eq!(store.finish(), Err(Trouble::Data("another".into())));
    assert_eq!(place.found(), None);
    store.clear().unwrap();
    assert_eq!(store.begin(&two).unwrap(), [0, 0]);
    store.append(0, &block).unwrap();
    store.append(0, b"one").unwrap();
    store.append(1, b"to").unwrap();
    let found = store.finish().unwrap();
    assert_eq!(place.found(), Some(found.clone()));
    assert_eq!(fs::read(found.join("b")).unwrap(), b"to");
    place.remove().unwrap();
    assert_eq!(place.found(), None);
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
    let mut store = place.fetching(|| ()).await.unwrap().into_store(|_: &Path| Ok(()));
    store.begin(&listing(true, &[("a.gz", 9), ("b", 9)])).unwrap();
    store.append(0, b"gzipped").unwrap();
    store.append(1, b"plain").unwrap();
    // Another peer has it as one file, whose name was that of a longer one.
    assert_eq!(store.begin(&listing(false, &[("b", 4)])).unwrap(), [0]);
    store.append(0, b"text").unwrap();
    let found = store.finish().unwrap();
    assert_eq!(fs::read(&found).unwrap(), b"text");
    assert_eq!(
        (place.found(), found.file_name()),
        (Some(found.clone()), Some("b".as_ref()))
    );
}

#[tokio::test]
async fn a_single_file_goes_on_under_whatever_name_the_next_peer_has_for_it() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.clone(), Digest([5; 32]));
    let mut store = place.fetching(|| ()).await.unwrap().into_store(|_: &Path| Ok(()));
    let (block, size) = (vec![b'x'; BLOCK], BLOCK as u64 + 3);
    assert_eq!(store.begin(&listing(false, &[("book.txt", size)])).unwrap(), [0]);
    store.append(0, &block).unwrap();
    let other = listing(false, &[("data", size)]);
    assert_eq!(store.begin(&other).unwrap(), [BLOCK as u64]);
    store.append(0, b"one").unwrap();
    let found = store.finish().unwrap();
    assert_eq!(found.file_name(), Some("data".as_ref()));
    assert_eq!(fs::read(&found).unwrap(), [&block[..], b"one"].concat());
    assert_eq!(place.found(), Some(found));
}

#[tokio::test]
async fn an_empty_file_is_there_as_soon_as_it_is_named() {
    let scratch = Scratch::new();
    let place = Place::new(scratch.0.clone(), Digest([4; 32]));
    let mut store = place.fetching(|| ()).await.unwrap().into_store(|_: &Path| Ok(()));
    let two = listing(true, &[("a", 1), ("none", 0)]);
    assert_eq!(store.begin(&two).unwrap(), [0, 0]);
    store.append(0, b"x").unwrap();
    let found = store.finish().unwrap();
    assert_eq!(fs::read(found.join("none")).unwrap(), b"");
}

#[test]
fn a_note_of_where_data_lies_takes_no_room() {
    let scratch = Scratch::new();
    let place = |name| Place::new(scratch.0.clone(), Digest([name; 32]));
    let kept = place(1).named(".file");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("a"), [1; 100]).unwrap();
    place(1).note(&scratch.0).unwrap();
    place(2).make_room(100, 200).unwrap();
    assert!(kept.exists());
    place(2).make_room(100, 199).unwrap();
    assert!(!kept.exists());
    assert_eq!(place(1).noted(), std::slice::from_ref(&scratch.0));
}

#[test]
fn a_set_that_cannot_be_removed_is_in_nobodys_way() {
    let scratch = Scratch::new();
    let place = |name| Place::new(scratch.0.clone(), Digest([name; 32]));
    let kept = [1, 2].map(|name| place(name).named(".file"));
    for kept in &kept {
        fs::create_dir(kept).unwrap();
        fs::write(kept.join("a"), [0; 100]).unwrap();
    }
    // Neither was ever used, so the first goes first, but its lock cannot be taken.
    fs::create_dir(place(1).named(".lock")).unwrap();
    place(3).make_room(100, 200).unwrap();
    assert_eq!(kept.map(|kept| kept.exists()), [true, false]);
}

#[tokio::test]
async fn what_was_not_used_for_the_longest_time_is_forgotten() {
    let scratch = Scratch::new();
    let place = |name| Place::new(scratch.0.clone(), Digest([name; 32]));
    let keep = async |name: u8| {
        let mut store = place(name)
            .fetching(|| ())
            .await
            .unwrap()
            .into_store(|_: &Path| Ok(()));
        store.begin(&listing(false, &[("a", 100)])).unwrap();
        store.append(0, &[name; 100]).unwrap();
        store.finish().unwrap();
        // Clocks of file systems are coarse.
        std::thread::sleep(Duration::from_millis(20));
    };
    for name in 1..=3 {
        keep(name).await;
    }
    assert!(place(1).found().is_some());
    std::thread::sleep(Duration::from_millis(20));
    let found = |name| place(name).named(".file").exists();
    place(4).make_room(100, 400).unwrap();
    assert_eq!([1, 2, 3].map(found), [true; 3]);
    place(4).make_room(100, 399).unwrap();
    assert_eq!([1, 2, 3].map(found), [true, false, true]);
    // A set that is being fetched is in use, however old it is, and its own place does not count.
    let fetching = place(3).fetching(|| ()).await.unwrap();
    place(1).make_room(400, 400).unwrap();
    assert_eq!([1, 2, 3].map(found), [true, false, true]);
    drop(fetching);
    place(1).make_room(400, 400).unwrap();
    assert_eq!([1, 2, 3].map(found), [true, false, false]);
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
