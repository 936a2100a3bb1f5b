//! Packed pictures: one safetensors file with plain bytes, which other tools read and write, too.
//!
//! | tensor | type | shape | meaning |
//! |---|---|---|---|
//! | `pixels` | U8 | pictures, rows, columns, channels | what the run learns from |
//! | `labels` | U16 | pictures | each picture's class, by number |
//! | `parts` | U8 | pictures | 0: to train, 1: to validate, 2: to test |
//!
//! The metadata `pictures` has the [`Facts`] as JSON.

use annulus_table::{Part, Split};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::{self, Display, Formatter};
use std::ops::Range;

/// The name of a file of packed pictures.
pub const FILE: &str = "pictures.safetensors";

/// Longest header of such a file.
const HEADER: usize = 16 << 20;

/// Most classes; a guess.
pub(crate) const MOST_CLASSES: usize = 1_000;

/// Sizes that pictures can be brought to.
pub(crate) const SIZES: std::ops::RangeInclusive<usize> = 8..=512;

/// Why pictures cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImageError(pub String);

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its path in the folder.
    pub file: String,
    /// The problem.
    pub why: String,
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.why)
    }
}

/// What is known of packed pictures beside their pixels. A model file carries it, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The folder's name.
    pub name: String,
    /// The classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// Pixels in each direction.
    pub size: usize,
    /// 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// Of each channel over the training pictures: the mean, of values from 0 to 255.
    pub mean: Vec<f32>,
    /// The standard deviation.
    pub deviation: Vec<f32>,
    /// How pictures were brought to that size, in words.
    #[serde(default)]
    pub resized: String,
    /// How pictures were divided, in words.
    #[serde(default)]
    pub divided: String,
    /// Files that were left out, the first of them by name.
    #[serde(default)]
    pub skipped: (usize, Vec<Fault>),
}

impl Facts {
    /// Bytes of a record.
    pub fn record(&self) -> usize {
        self.size * self.size * self.channels
    }

    fn check(&self) -> Result<(), String> {
        let lengths = [self.mean.len(), self.deviation.len()];
        let ok = (2..=MOST_CLASSES).contains(&self.classes.len())
            && SIZES.contains(&self.size)
            && [1, 3].contains(&self.channels)
            && lengths == [self.channels; 2]
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.deviation.iter().all(|deviation| *deviation > 0.0);
        ok.then_some(())
            .ok_or_else(|| "its facts are out of bounds".into())
    }
}

/// Pictures of one size, their classes and their parts.
#[derive(Clone, Debug)]
pub struct Records {
    /// What is known of them.
    pub facts: Facts,
    /// The pictures of each part.
    pub split: Split,
    /// For each class, its training pictures.
    pub counts: Vec<u64>,
    labels: Vec<u16>,
    bytes: Vec<u8>,
    pixels: Range<usize>,
}

impl Records {
    /// Reads a file. `name` is for messages.
    ///
    /// # Errors
    ///
    /// If it is not a file of packed pictures, or a part has none.
    pub fn read(name: &str, bytes: Vec<u8>) -> Result<Self, ImageError> {
        let read = Self::parse(bytes);
        read.map_err(|why| {
            ImageError(format!(
                "{name} is no file of packed pictures: {why}. Name a folder of pictures, or the {FILE} of a run's folder"
            ))
        })
    }

    fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or("it is too short")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let header = rest.get(..length).filter(|header| header.len() <= HEADER);
        let header: Value = serde_json::from_slice(header.ok_or("its header is too long")?)
            .map_err(|error| format!("its header cannot be read: {error}"))?;
        let facts = &header["__metadata__"]["pictures"];
        let facts: Facts = serde_json::from_str(facts.as_str().ok_or("it says nothing of pictures")?)
            .map_err(|error| format!("its facts cannot be read: {error}"))?;
        facts.check()?;
        let (start, end) = (8 + length, bytes.len());
        // The place of a tensor of this type, with `of_each` bytes for each picture.
        let place = |name: &str, kind: &str, of_each: usize| {
            let tensor = &header[name];
            let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
            let ends = [&tensor["data_offsets"][0], &tensor["data_offsets"][1]].map(number);
            let count = number(&tensor["shape"][0]).filter(|_| tensor["dtype"] == kind)?;
            let [Some(from), Some(until)] = ends else {
                return None;
            };
            let fits = until.checked_sub(from)? == count.checked_mul(of_each)? && until <= end - start;
            fits.then_some((count, start + from..start + until))
        };
        let place = |name, kind, of_each| {
            place(name, kind, of_each)
                .ok_or_else(|| format!("its tensor {name} is missing or has another shape"))
        };
        let (count, pixels) = place("pixels", "U8", facts.record())?;
        let (labelled, labels) = place("labels", "U16", 2)?;
        let (divided, parts) = place("parts", "U8", 1)?;
        if [labelled, divided] != [count; 2] {
            return Err("its tensors have different numbers of pictures".into());
        }
        let labels: Vec<u16> = bytes[labels]
            .as_chunks()
            .0
            .iter()
            .map(|label| u16::from_le_bytes(*label))
            .collect();
        if labels
            .iter()
            .any(|label| usize::from(*label) >= facts.classes.len())
        {
            return Err("a label is no class".into());
        }
        let parts = &bytes[parts];
        let of = |part: Part| -> Vec<usize> { (0..count).filter(|at| parts[*at] == part as u8).collect() };
        let split = Split {
            train: of(Part::Train),
            validation: of(Part::Validation),
            test: of(Part::Test),
        };
        let sizes = [&split.train, &split.validation, &split.test].map(Vec::len);
        if sizes.contains(&0) || sizes.iter().sum::<usize>() != count {
            return Err("a part has no pictures".into());
        }
        let mut counts = vec![0; facts.classes.len()];
        split
            .train
            .iter()
            .for_each(|at| counts[usize::from(labels[*at])] += 1);
        Ok(Self {
            facts,
            split,
            counts,
            labels,
            bytes,
            pixels,
        })
    }

    /// Writes a file: for each picture its class, its part and its record.
    pub fn write(facts: &Facts, labels: &[u16], parts: &[Part], pixels: &[u8]) -> Vec<u8> {
        let (count, size) = (labels.len(), facts.size);
        let facts_text = serde_json::to_string(facts).expect("plain data can be written as JSON");
        let [a, b, c] = [pixels.len(), pixels.len() + 2 * count, pixels.len() + 3 * count];
        let header = json!({
            "__metadata__": {"pictures": facts_text},
            "pixels": {"dtype": "U8", "shape": [count, size, size, facts.channels], "data_offsets": [0, a]},
            "labels": {"dtype": "U16", "shape": [count], "data_offsets": [a, b]},
            "parts": {"dtype": "U8", "shape": [count], "data_offsets": [b, c]},
        });
        let mut header = header.to_string();
        // As other writers do, for readers that map the file.
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let mut out = Vec::with_capacity(8 + header.len() + c);
        out.extend((header.len() as u64).to_le_bytes());
        out.extend(header.as_bytes());
        out.extend(pixels);
        out.extend(labels.iter().flat_map(|label| label.to_le_bytes()));
        out.extend(parts.iter().map(|part| *part as u8));
        out
    }

    /// A hash of the whole file.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.bytes).as_bytes()
    }

    /// A picture's record: row by row, all channels of a pixel together.
    pub fn record(&self, at: usize) -> &[u8] {
        let length = self.facts.record();
        &self.bytes[self.pixels.clone()][at * length..(at + 1) * length]
    }

    /// A picture's class, by number.
    pub fn label(&self, at: usize) -> usize {
        usize::from(self.labels[at])
    }

    /// How many pictures there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none; never so of a file that was read.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// A training picture as a model's input, varied as a seed says.
    pub fn varied(&self, at: usize, seed: u64, augment: crate::Augment, out: &mut Vec<f32>) {
        let Facts { size, channels, .. } = self.facts;
        let variation = augment.pick(seed, size, channels);
        self.facts.input(self.record(at), variation, out);
    }

    /// A picture as a model's input.
    pub fn input(&self, at: usize, out: &mut Vec<f32>) {
        self.facts
            .input(self.record(at), crate::augment::Variation::default(), out);
    }
}

impl Facts {
    /// Appends a record as a model reads it: channel by channel, with mean 0 and deviation 1 over the training pictures.
    pub(crate) fn input(&self, record: &[u8], variation: crate::augment::Variation, out: &mut Vec<f32>) {
        for (channel, (mean, deviation)) in self.mean.iter().zip(&self.deviation).enumerate() {
            variation.places(self.size, |place| {
                let value = f32::from(record[place * self.channels + channel]);
                out.push((value - mean) / deviation);
            });
        }
    }

    /// Mean and deviation of each channel of these records, from exact sums.
    pub fn measure<'a>(channels: usize, records: impl Iterator<Item = &'a [u8]>) -> (Vec<f32>, Vec<f32>) {
        let mut sums = vec![(0u64, 0u64, 0u64); channels];
        for record in records {
            for pixel in record.chunks_exact(channels) {
                for ((count, sum, squares), value) in sums.iter_mut().zip(pixel) {
                    let value = u64::from(*value);
                    *count += 1;
                    *sum += value;
                    *squares += value * value;
                }
            }
        }
        let of = |(count, sum, squares): &(u64, u64, u64)| {
            let count = (*count).max(1) as f64;
            let mean = *sum as f64 / count;
            let variance = *squares as f64 / count - mean * mean;
            // Pictures of one colour have none.
            (
                mean as f32,
                if variance > 1e-6 {
                    variance.sqrt() as f32
                } else {
                    1.0
                },
            )
        };
        sums.iter().map(of).unzip()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Sixteen pictures of 8 x 8 in two classes, which differ in brightness.
    pub(crate) fn file() -> Vec<u8> {
        let pixels: Vec<u8> = (0..16 * 64)
            .map(|at| (at / 64 % 2 * 100 + at % 64) as u8)
            .collect();
        let labels: Vec<u16> = (0..16).map(|at| at % 2).collect();
        let parts: Vec<Part> = (0..16)
            .map(|at| [Part::Train, Part::Train, Part::Validation, Part::Test][at / 4])
            .collect();
        let (mean, deviation) = Facts::measure(1, pixels.chunks(64).take(8));
        let facts = Facts {
            name: "lamps".into(),
            classes: vec!["off".into(), "on".into()],
            size: 8,
            channels: 1,
            mean,
            deviation,
            resized: "each is 8 x 8".into(),
            divided: "split by draw".into(),
            skipped: (0, Vec::new()),
        };
        Records::write(&facts, &labels, &parts, &pixels)
    }

    #[test]
    fn what_was_written_is_read() {
        let records = Records::read("lamps", file()).unwrap();
        assert_eq!((records.len(), records.facts.record()), (16, 64));
        assert_eq!((records.label(1), records.record(3)[5]), (1, 105));
        assert_eq!(records.split.validation, [8, 9, 10, 11]);
        assert_eq!(records.counts, [4, 4]);
        let mut input = Vec::new();
        (0..8).for_each(|at| records.input(at, &mut input));
        let mean = input.iter().sum::<f32>() / input.len() as f32;
        let square = input.iter().map(|x| x * x).sum::<f32>() / input.len() as f32;
        assert!(
            mean.abs() < 1e-4 && (square - 1.0).abs() < 1e-4,
            "{mean} {square}"
        );
    }

    #[test]
    fn damaged_files_are_refused_in_words() {
        let good = file();
        let told = |bytes: &[u8]| Records::read("x", bytes.to_vec()).map(drop);
        for length in [0, 7, 8, 100, good.len() - 1] {
            let error = told(&good[..length]).unwrap_err().to_string();
            assert!(error.starts_with("x is no file of packed pictures: "), "{error}");
        }
        let mut bad = good.clone();
        *bad.last_mut().unwrap() = 3;
        assert!(
            told(&bad)
                .unwrap_err()
                .to_string()
                .contains("a part has no pictures")
        );
        bad = good.clone();
        let labels = good.len() - 3 * 16;
        bad[labels] = 2;
        assert!(
            told(&bad)
                .unwrap_err()
                .to_string()
                .contains("a label is no class")
        );
        // Any byte of the header may be anything.
        let header = 8 + usize::from(good[0]) + 256 * usize::from(good[1]);
        for at in 0..header {
            bad = good.clone();
            bad[at] ^= 0x11;
            let _ = told(&bad);
        }
    }
}
