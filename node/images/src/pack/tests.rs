//! Folders of pictures, good and bad.

use super::*;
use crate::Augment;
use crate::decode::tests::ROSE;
use crate::testing::{colour_png, png};
use std::fs;
use tempfile::TempDir;

/// A folder with these files: paths and contents.
fn folder(files: &[(String, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// Ten pictures of each of two classes, of 40 x 30 pixels.
fn lamps() -> Vec<(String, Vec<u8>)> {
    let lamp = |class: &str, at: u8, shade: u8| {
        let file = colour_png(40, 30, |_, _| [shade, shade, at]);
        (format!("{class}/{at:02}.png"), file)
    };
    let both = (0..10).flat_map(|at| [lamp("on", at, 200), lamp("off", at, 20)]);
    both.collect()
}

fn packed(folder: &TempDir, options: &Options) -> Result<Records, ImageError> {
    let bytes = pack(folder.path(), options, &mut |_, _| {})?;
    Ok(Records::read("packed", bytes).unwrap())
}

fn refusal(files: &[(String, Vec<u8>)]) -> String {
    packed(&folder(files), &Options::default())
        .unwrap_err()
        .to_string()
}

fn named(name: &str, bytes: &[u8]) -> (String, Vec<u8>) {
    (name.to_owned(), bytes.to_vec())
}

#[test]
fn a_folder_of_classes_is_packed_once_and_the_same_each_time() {
    let folder = folder(&lamps());
    fs::write(folder.path().join("on/.DS_Store"), b"x").unwrap();
    let (mut told, options) = (Vec::new(), Options::default());
    let bytes = pack(folder.path(), &options, &mut |done, of| told.push((done, of))).unwrap();
    assert_eq!(told.last(), Some(&(40, 40)));
    assert_eq!(pack(folder.path(), &options, &mut |_, _| {}).unwrap(), bytes);
    let records = Records::read("packed", bytes).unwrap();
    assert_eq!(records.facts.classes, ["off", "on"]);
    assert_eq!(
        (records.facts.size, records.facts.channels, records.len()),
        (32, 3, 20)
    );
    assert_eq!(
        (records.label(0), records.record(0)[..3].to_vec()),
        (0, vec![20, 20, 0])
    );
    assert_eq!(
        (records.label(19), records.record(19)[..3].to_vec()),
        (1, vec![200, 200, 9])
    );
    let parts = [
        &records.split.train,
        &records.split.validation,
        &records.split.test,
    ];
    assert_eq!(parts.map(Vec::len), [16, 2, 2]);
    let told = records.describe(Augment::Auto);
    println!("{told}");
    for part in [
        ": 20 pictures in 2 classes\n  off        10\n  on         10\n",
        "40 x 30 pixels; the middle square of each becomes 32 x 32",
        "flipped left to right half of the time, and shifted by up to 4 pixels",
        "split by draw: 16 train, 2 validation, 2 test",
    ] {
        assert!(told.contains(part), "{part}");
    }
}

#[test]
fn sizes_and_colours_are_guessed() {
    let of = |width: u32, height: u32, grey: bool| {
        let files: Vec<_> = lamps()
            .iter()
            .map(|(name, _)| {
                let (kind, bytes) = if grey { (0, width) } else { (2, 3 * width) };
                let pixels = vec![9; (bytes * height) as usize];
                (
                    name.clone(),
                    png((width, height), (kind, 8), bytes as usize, &pixels),
                )
            })
            .collect();
        let facts = packed(&folder(&files), &Options::default()).unwrap().facts;
        (facts.size, facts.channels)
    };
    assert_eq!(of(28, 28, true), (28, 1));
    assert_eq!(of(64, 64, false), (64, 3));
    assert_eq!(of(28, 30, true), (32, 1));
    assert_eq!(of(100, 70, false), (64, 3));
    let options = Options {
        size: 16,
        ..Options::default()
    };
    assert_eq!(packed(&folder(&lamps()), &options).unwrap().facts.size, 16);
    for size in [1, 7, 513] {
        let options = Options {
            size,
            ..Options::default()
        };
        assert!(
            packed(&folder(&lamps()), &options)
                .unwrap_err()
                .to_string()
                .contains("between 8 and 512")
        );
    }
}

#[test]
fn folders_may_divide_the_pictures() {
    let mut files = Vec::new();
    for (at, (name, bytes)) in lamps().into_iter().enumerate() {
        let part = if at < 12 { "train" } else { "test" };
        files.push((format!("{part}/{name}"), bytes));
    }
    let records = packed(&folder(&files), &Options::default()).unwrap();
    assert_eq!(records.facts.divided, "split by folder");
    let parts = [
        &records.split.train,
        &records.split.validation,
        &records.split.test,
    ];
    assert_eq!(parts.map(Vec::len), [10, 2, 8]);
}

#[test]
fn folders_without_classes_are_refused() {
    let all = lamps();
    let one: Vec<_> = all
        .iter()
        .filter(|(name, _)| name.starts_with("on"))
        .cloned()
        .collect();
    for (files, told) in [
        (vec![], "it has no folders, so no classes"),
        (
            vec![named("a.png", ROSE)],
            "a.png is in no folder of a class. Make one folder for each class",
        ),
        (one, "it has one class, on, and at least two are needed"),
        (
            [&all[..], &[named("dim/.hidden", b"")]].concat(),
            "the class dim has no pictures",
        ),
        (
            [&all[..], &[named("top.jpg", ROSE)]].concat(),
            "top.jpg is in no folder of a class",
        ),
        (
            all[..8].to_vec(),
            "it has 8 usable pictures, and at least 10 are needed",
        ),
    ] {
        let error = refusal(&files);
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn files_that_are_no_pictures_are_told_all_at_once_and_can_be_skipped() {
    let bad = [
        named("off/notes.txt", b"hello"),
        named("on/fake.png", b"hello"),
        named("on/cut.jpg", &ROSE[..100]),
        named("on/old/1.png", ROSE),
    ];
    let folder = folder(&[&lamps()[..], &bad[..]].concat());
    #[cfg(unix)]
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("off/link.png")).unwrap();
    let error = packed(&folder, &Options::default()).unwrap_err().to_string();
    println!("{error}");
    let count = if cfg!(unix) { 5 } else { 4 };
    for part in [
        &format!(": {count} of {} files cannot be used:\n", 20 + count)[..],
        "\n  off/notes.txt: its name ends neither in .png",
        "\n  on/cut.jpg: it is damaged",
        "\n  on/fake.png: it is neither a PNG nor a JPEG file",
        "\n  on/old: it is a folder inside a class",
        "bad_files=skip",
    ] {
        assert!(error.contains(part), "{part}");
    }
    assert!(
        !cfg!(unix) || error.contains("off/link.png: it is a symbolic link"),
        "{error}"
    );
    let options = Options {
        bad_files: BadFiles::Skip,
        ..Options::default()
    };
    let records = packed(&folder, &options).unwrap();
    assert_eq!((records.len(), records.facts.skipped.0), (20, count));
    assert!(
        records
            .describe(Augment::Off)
            .contains(&format!("\nskipped {count} files:\n  off/"))
    );
}

#[test]
fn folders_without_pictures_can_be_skipped_and_are_told() {
    let skip = Options {
        bad_files: BadFiles::Skip,
        ..Options::default()
    };
    let extra = |top: &str| {
        [
            named(&format!("{top}dim/.hidden"), b""),
            named("__MACOSX/on/._1.png", b"x"),
        ]
    };
    let parted = lamps().into_iter().enumerate().map(|(at, (name, bytes))| {
        let part = if at < 12 { "train" } else { "test" };
        (format!("{part}/{name}"), bytes)
    });
    for (files, top) in [(lamps(), ""), (parted.collect(), "train/")] {
        let folder = folder(&[&files[..], &extra(top)].concat());
        assert!(packed(&folder, &Options::default()).is_err());
        let facts = packed(&folder, &skip).unwrap().facts;
        assert_eq!(facts.classes, ["off", "on"]);
        let told: Vec<String> = facts.skipped.1.iter().map(ToString::to_string).collect();
        let empty = |name: &str| format!("{name}: it is a folder without pictures");
        assert_eq!(told, [empty("__MACOSX"), empty(&format!("{top}dim"))]);
    }
}

#[cfg(unix)]
#[test]
fn a_class_that_is_a_link_is_refused() {
    use std::os::unix::fs::symlink;
    let elsewhere = folder(&[named("1.png", ROSE)]);
    for (to, part) in [
        (elsewhere.path(), ""),
        (Path::new("nowhere"), ""),
        (elsewhere.path(), "train"),
    ] {
        let files = lamps()
            .into_iter()
            .map(|(name, bytes)| (format!("{part}/{name}").trim_matches('/').to_owned(), bytes));
        let folder = folder(&files.collect::<Vec<_>>());
        let link = folder.path().join(part).join("dim");
        symlink(to, &link).unwrap();
        for bad_files in [BadFiles::Fail, BadFiles::Skip] {
            let options = Options {
                bad_files,
                ..Options::default()
            };
            let told = packed(&folder, &options).unwrap_err().to_string();
            let wanted = format!(
                "{} is a symbolic link; put the folder itself there",
                link.display()
            );
            assert_eq!(told, wanted);
        }
    }
    // A link to a file is none of a class.
    let folder = folder(&lamps());
    symlink("/etc/hostname", folder.path().join("README")).unwrap();
    assert!(packed(&folder, &Options::default()).is_ok());
}

#[test]
fn a_folder_of_pictures_is_recognized() {
    let is = |files: &[(String, Vec<u8>)]| crate::is_of_pictures(folder(files).path());
    assert!(is(&lamps()) && is(&[named("a.JPG", b"")]) && is(&[named("train/a/b.jpeg", b"")]));
    assert!(
        !is(&[])
            && !is(&[
                named("train-images-idx3-ubyte.gz", b""),
                named("notes/a.txt", b"")
            ])
    );
}
