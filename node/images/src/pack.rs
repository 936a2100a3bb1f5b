//! Packs a folder of pictures: decodes and resizes each once, on the machine that founds the run.

use crate::decode::{OF_FILE, Size, decode, read, size_of};
use crate::folder::{self, Entry, Found, SHOWN, refused};
use crate::options::{BadFiles, Options};
use crate::records::{Facts, Fault, ImageError, Records, SIZES};
use crate::resize::square;
use crate::threads;
use annulus_table::{Part, Split, grouped};
use std::path::Path;

/// Files that are read between two reports of progress.
const AT_ONCE: usize = 64;

/// Fewer pictures than this cannot be divided into three parts.
const LEAST: usize = 10;

/// Most bytes of all records: they are in memory.
const MOST_BYTES: usize = 8 << 30;

/// The file of a folder's pictures, as [`Records::read`] reads it. `tell` hears how many of how many steps are done.
///
/// # Errors
///
/// If the folder has no classes, a setting makes no sense, or some files cannot be used and the options do not say to skip
/// them: all of them.
pub fn pack(folder: &Path, options: &Options, tell: &mut dyn FnMut(u64, u64)) -> Result<Vec<u8>, ImageError> {
    if options.size != 0 && !SIZES.contains(&options.size) {
        let (least, most) = (SIZES.start(), SIZES.end());
        return Err(ImageError(format!(
            "size={} is not between {least} and {most}",
            options.size
        )));
    }
    let Found {
        classes,
        files,
        mut faults,
    } = folder::scan(folder, options.bad_files)?;
    let all = files.len() + faults.len();
    // Each file is read for its header, and again for its pixels: no size is known before.
    let steps = 2 * files.len() as u64;
    let sizes = looked(&files, &mut |done| tell(done, steps), size_of);
    let (files, sizes) = good(files, sizes, &mut faults);
    if files.is_empty() {
        return Err(refused(folder, &faults, all, "Put PNG or JPEG files there"));
    }
    let (size, channels, resized) = guess(&sizes, options.size);
    let record = size * size * channels;
    if files.len().saturating_mul(record) > MOST_BYTES {
        return Err(ImageError(format!(
            "{} pictures of {size} x {size} pixels take more than {} GB: choose a smaller size=N",
            grouped(files.len() as u64),
            MOST_BYTES >> 30
        )));
    }
    let before = steps - files.len() as u64;
    let records = looked(&files, &mut |done| tell(before + done, steps), |bytes| {
        Ok(square(&decode(bytes, OF_FILE)?, size, channels))
    });
    let (files, records) = good(files, records, &mut faults);
    faults.sort_by(|a, b| a.file.cmp(&b.file));
    if !faults.is_empty() && options.bad_files == BadFiles::Fail {
        let remedy = "Take them out of the folder, or continue without them: bad_files=skip";
        return Err(refused(folder, &faults, all, remedy));
    }
    let (split, divided) = divide(folder, &classes, &files)?;
    let mut parts = vec![Part::Train; files.len()];
    split
        .validation
        .iter()
        .for_each(|at| parts[*at] = Part::Validation);
    split.test.iter().for_each(|at| parts[*at] = Part::Test);
    let (mean, deviation) = Facts::measure(channels, split.train.iter().map(|at| &records[*at][..]));
    let name = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let facts = Facts {
        name: name
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        classes,
        size,
        channels,
        mean,
        deviation,
        resized,
        divided,
        skipped: (faults.len(), faults.into_iter().take(SHOWN).collect()),
    };
    let labels: Vec<u16> = files.iter().map(|file| file.class as u16).collect();
    Ok(Records::write(&facts, &labels, &parts, &records.concat()))
}

/// What `look` makes of each file's bytes, in their order.
fn looked<R: Send>(
    files: &[Entry],
    tell: &mut dyn FnMut(u64),
    look: impl Fn(&[u8]) -> Result<R, String> + Sync,
) -> Vec<Result<R, String>> {
    let mut found = Vec::with_capacity(files.len());
    for files in files.chunks(AT_ONCE) {
        found.extend(threads::map(files, |file| look(&read(&file.path)?)));
        tell(found.len() as u64);
    }
    found
}

/// The files without a fault, and what was found of them.
fn good<R>(
    files: Vec<Entry>,
    found: Vec<Result<R, String>>,
    faults: &mut Vec<Fault>,
) -> (Vec<Entry>, Vec<R>) {
    let mut good = (Vec::new(), Vec::new());
    for (file, found) in files.into_iter().zip(found) {
        match found {
            Ok(found) => {
                good.0.push(file);
                good.1.push(found);
            }
            Err(why) => faults.push(Fault { file: file.name, why }),
        }
    }
    good
}

/// The size and channels to bring pictures to, at least one, and what is done, in words. `wanted`: the size that was asked for, or 0.
fn guess(sizes: &[Size], wanted: usize) -> (usize, usize, String) {
    let of = |size: &Size| (size.width, size.height);
    let mut shorter: Vec<usize> = sizes.iter().map(|size| size.width.min(size.height)).collect();
    shorter.sort_unstable();
    let (least, most) = (sizes.iter().map(of).min(), sizes.iter().map(of).max());
    let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
    let median = shorter[shorter.len() / 2];
    let small = least == most && least.0 == least.1 && (*SIZES.start()..=64).contains(&median);
    let (size, why) = match wanted {
        // Small pictures of one size were made for it.
        0 if small => (median, "their own size"),
        0 if median >= 64 => (64, "half of their sides have 64 pixels or more"),
        0 => (32, "more than half of their sides have fewer than 64 pixels"),
        wanted => (wanted, "as you said"),
    };
    let channels = if sizes.iter().all(|size| size.grey) { 1 } else { 3 };
    let range = match least == most {
        true => format!("{} x {} pixels", least.0, least.1),
        false => format!("{} x {} to {} x {} pixels", least.0, least.1, most.0, most.1),
    };
    let resized =
        format!("{range}; the middle square of each becomes {size} x {size} ({why}; size=N for another)");
    (size, channels, resized)
}

/// Divides pictures as their folders say, or by draw, and tells how.
fn divide(folder: &Path, classes: &[String], files: &[Entry]) -> Result<(Split, String), ImageError> {
    let fail = |why: String| Err(ImageError(format!("{}: {why}", folder.display())));
    let labels: Vec<usize> = files.iter().map(|file| file.class).collect();
    if labels.len() < LEAST {
        return fail(format!(
            "it has {} usable pictures, and at least {LEAST} are needed",
            labels.len()
        ));
    }
    let parts: Option<Vec<Part>> = files.iter().map(|file| file.part).collect();
    let (split, divided) = match parts {
        None => (Split::by_row(&labels), "split by draw".to_owned()),
        Some(parts) => (Split::given(parts, &labels), "split by folder".into()),
    };
    if split.validation.is_empty() || split.test.is_empty() {
        return fail("a part has no pictures: give each class five or more".into());
    }
    let mut there = vec![false; classes.len()];
    split.train.iter().for_each(|at| there[labels[*at]] = true);
    match there.iter().position(|there| !there) {
        None => Ok((split, divided)),
        Some(class) => fail(format!(
            "the class {} has no usable pictures to train on",
            classes[class]
        )),
    }
}

#[cfg(test)]
mod tests;
