//! `--tensorboard`: a run's loss and scores as an event file, which TensorBoard draws beside other runs.
//!
//! The file is a sequence of records (TensorFlow's `record_writer.h`): a length, its checksum, an encoded `Event` message
//! of `event.proto`, its checksum.

use crate::events::Event;
use annulus_net::files::FileError;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

/// Shortest time between two rounds in the file, in milliseconds: a run of a tiny model commits thousands a second.
const EVERY_MS: u64 = 200;

/// Events that may wait for a slow disk. Beyond that, events are dropped.
const WAITING: usize = 1024;

/// Writes a run's numbers to a new file in this folder, on its own thread, so that a slow disk delays nobody.
/// `now_ms` tells milliseconds since 1970, and `warn` the user.
pub fn start(
    dir: &Path,
    now_ms: fn() -> u64,
    warn: fn(&str),
) -> Result<impl FnMut(&Event) + use<>, FileError> {
    let mut board = Board::create(dir, now_ms()).map_err(|error| FileError::of_new(dir, error))?;
    let (events, queue) = mpsc::sync_channel::<(Event, u64)>(WAITING);
    let body = move || {
        // A file that ends within a record is of no use behind that.
        let failed = queue
            .iter()
            .find_map(|(event, now_ms)| board.take(&event, now_ms).err());
        if let Some(error) = failed {
            warn(&format!(
                "warning: the event file for TensorBoard takes no more ({error}): the run goes on without it"
            ));
        }
    };
    let thread = thread::Builder::new()
        .name("annulus-tensorboard".into())
        .spawn(body);
    let mut writing = Writing(
        Some(events),
        Some(thread.map_err(|error| FileError::of_new(dir, error))?),
    );
    Ok(move |event: &Event| writing.send(event, now_ms()))
}

/// The way to the thread that writes, which has written everything when this is dropped.
struct Writing(Option<SyncSender<(Event, u64)>>, Option<thread::JoinHandle<()>>);

impl Writing {
    fn send(&mut self, event: &Event, now_ms: u64) {
        if let (Event::Round(_) | Event::Eval { .. }, Some(events)) = (event, &self.0) {
            let _ = events.try_send((event.clone(), now_ms));
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0 = None;
        let _ = self.1.take().map(thread::JoinHandle::join);
    }
}

/// An event file.
struct Board {
    file: File,
    /// When the last round was written.
    round_ms: Option<u64>,
}

impl Board {
    /// Begins a new file in this folder, at a time in milliseconds since 1970.
    fn create(dir: &Path, now_ms: u64) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        // TensorBoard reads whatever has `tfevents` in its name, in the order of the names.
        let name = format!(
            "events.out.tfevents.{}.{}.annulus",
            now_ms / 1000,
            std::process::id()
        );
        let mut file = File::create_new(dir.join(name))?;
        let version = field_bytes(3, b"brain.Event:2");
        file.write_all(&record(&[field_double(1, seconds(now_ms)), version].concat()))?;
        let round_ms = None;
        Ok(Self { file, round_ms })
    }

    /// Writes what a person would look at as a curve.
    fn take(&mut self, event: &Event, now_ms: u64) -> io::Result<()> {
        match event {
            Event::Round(round) if self.round_ms.is_none_or(|last| now_ms >= last + EVERY_MS) => {
                self.round_ms = Some(now_ms);
                let scalars = [
                    ("train/loss", round.loss),
                    ("run/members", round.members.len() as f32),
                    ("run/samples", round.counted as f32),
                ];
                self.write(round.round, scalars, now_ms)
            }
            Event::Eval { round, loss, metrics } => {
                let metrics = metrics.iter().map(|(name, value)| (name.as_str(), *value));
                let all = [("loss", *loss)].into_iter().chain(metrics);
                let all: Vec<_> = all.map(|(name, value)| (format!("eval/{name}"), value)).collect();
                self.write(
                    *round,
                    all.iter().map(|(tag, value)| (tag.as_str(), *value)),
                    now_ms,
                )
            }
            _ => Ok(()),
        }
    }

    fn write<'a>(
        &mut self,
        step: u64,
        scalars: impl IntoIterator<Item = (&'a str, f32)>,
        now_ms: u64,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let value = [field_bytes(1, tag.as_bytes()), field_float(2, value)].concat();
            summary.extend(field_bytes(1, &value));
        }
        let event = [
            field_double(1, seconds(now_ms)),
            field_varint(2, step),
            field_bytes(5, &summary),
        ];
        // One write for each record, so that a reader sees whole ones.
        self.file.write_all(&record(&event.concat()))
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let (of_length, of_event) = (masked(&length).to_le_bytes(), masked(event).to_le_bytes());
    [&length[..], &of_length, event, &of_event].concat()
}

/// The checksum as records store it.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: a record has a hundred bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

// Fields of a protocol buffer: a number and a wire type, then the value.

fn field_varint(number: u8, mut value: u64) -> Vec<u8> {
    let mut bytes = vec![number << 3];
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn field_double(number: u8, value: f64) -> Vec<u8> {
    [&[number << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn field_float(number: u8, value: f32) -> Vec<u8> {
    [&[number << 3 | 5][..], &value.to_le_bytes()].concat()
}

fn field_bytes(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = field_varint(number, value.len() as u64);
    bytes[0] |= 2;
    bytes.extend(value);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use crate::view::testing::{committed, eval};

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, section B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn a_run_becomes_whole_records() {
        let scratch = Scratch::new();
        let mut board = Board::create(&scratch.0, 5_000).unwrap();
        board.take(&committed(1, &[(1, 64)], 0.5), 5_000).unwrap();
        // Too soon after the one before.
        board.take(&committed(2, &[(1, 64)], 0.5), 5_001).unwrap();
        board.take(&eval(300, 0.25, Some(0.75)), 5_002).unwrap();
        let file = fs::read_dir(&scratch.0).unwrap().next().unwrap().unwrap();
        assert!(file.file_name().to_string_lossy().contains("tfevents"));
        let (bytes, mut rest, mut events) = (fs::read(file.path()).unwrap(), 0, Vec::new());
        while rest < bytes.len() {
            let (head, event) = bytes[rest..].split_at(12);
            let length = u64::from_le_bytes(head[..8].try_into().unwrap()) as usize;
            assert_eq!(record(&event[..length]), bytes[rest..rest + length + 16]);
            events.push(&event[..length]);
            rest += length + 16;
        }
        let [version, round, eval] = events[..] else {
            panic!("{events:?}")
        };
        let holds = |event: &[u8], what: &[u8]| event.windows(what.len()).any(|part| part == what);
        assert!(holds(version, b"brain.Event:2"));
        assert!(holds(round, b"train/loss") && holds(round, &0.5f32.to_le_bytes()));
        // Step 300 as a varint.
        assert!(holds(eval, &[0x10, 0xac, 0x02]) && holds(eval, b"eval/accuracy"));
    }
}
