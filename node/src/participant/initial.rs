//! The initial weights of a run in which no peer has room for all of them: drawn once, and kept in an unnamed file.
//!
//! Weights are drawn one tensor after the other, so to get some of them all earlier ones must be drawn. With the file
//! they are available at once when the protocol asks, without delaying its peers.

use crate::task_factory::Drawing;
use annulus_core::Initial;
use annulus_net::files::{At, FileError};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

/// Draws all weights of a run with this seed into a file in a folder, which disappears when it is no longer needed.
///
/// # Errors
///
/// If the disk is full.
pub fn drawn(folder: &Path, drawing: &Drawing, seed: u64) -> Result<Initial, FileError> {
    on_disk(folder, |take| {
        // Cannot fail: the model was drawn before, to find its steps.
        let _ = drawing(seed, &mut |_, read| {
            // The data were just converted to this type.
            take(read().as_slice::<f32>().expect("f32 data"));
        });
    })
}

/// The initial weights that `draw` gives in order, in a file, to be read piece by piece.
fn on_disk(folder: &Path, draw: impl FnOnce(&mut dyn FnMut(&[f32]))) -> Result<Initial, FileError> {
    let mut file = BufWriter::new(tempfile::tempfile_in(folder).at(folder)?);
    let mut written = Ok(());
    draw(&mut |values| {
        if written.is_ok() {
            written = file.write_all(bytemuck::cast_slice(values));
        }
    });
    let file = written.and_then(|()| file.into_inner().map_err(io::IntoInnerError::into_error));
    let file = Mutex::new(file.at(folder)?);
    let path = folder.to_owned();
    Ok(Initial::new(move |ranges| {
        let file = &mut *file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let values: io::Result<Vec<_>> = ranges.iter().map(|range| read(file, range)).collect();
        // If the file cannot be read right after it was written, nothing on this disk is reliable.
        let fails = |error: io::Error| panic!("the disk of {} fails: {error}", path.display());
        values.unwrap_or_else(fails)
    }))
}

fn read(file: &mut File, range: &Range<usize>) -> io::Result<Vec<f32>> {
    let mut values = vec![0.0f32; range.len()];
    file.seek(SeekFrom::Start((range.start * size_of::<f32>()) as u64))?;
    file.read_exact(bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn any_range_is_read_as_it_was_drawn_and_no_file_is_left() {
        let scratch = Scratch::new();
        let all: Vec<f32> = (0..1000).map(|i| i as f32 / 7.0).collect();
        let initial = on_disk(&scratch.0, |take| all.chunks(33).for_each(take)).unwrap();
        let ranges = [3..7, 0..1000, 999..1000, 5..5];
        let expected: Vec<Vec<f32>> = ranges.iter().map(|range| all[range.clone()].to_vec()).collect();
        assert_eq!(initial.values(&ranges), expected);
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
    }
}
