//! The samples of a model that came as a file: tensors whose first axis counts them.
//!
//! It knows nothing of models.

use annulus_core::Digest;
use annulus_graph::{HostTensor, Numbers, metadata_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use super::file::SampleFile;
use crate::task::{Dataset, Draw, TaskError};

/// Samples to train on, and some that are held out.
#[derive(Debug)]
pub struct Samples {
    rows: Rows,
    trained: usize,
    held_out: usize,
    /// How those that are held out were chosen, in words.
    chosen: &'static str,
    digest: Digest,
}

/// Where the samples are.
#[derive(Debug)]
enum Rows {
    Memory {
        /// One tensor for each input of the model.
        tensors: Vec<(String, HostTensor)>,
        /// The rows of the tensors to train on, then those that are held out.
        order: Vec<usize>,
    },
    /// In a file, in the order in which they lie there.
    File(SampleFile),
}

/// Which samples are held out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeldOutBy {
    /// Some of each class, drawn by their numbers.
    #[default]
    Draw,
    /// The last ones: where they are later in time, or resemble those before them.
    Last,
}

/// The samples that only evaluate.
#[derive(Clone, Copy, Debug)]
pub enum Evaluated {
    /// A share of all.
    Share(f64, HeldOutBy),
    /// This number at the end. The file says how many.
    Given(usize),
}

/// Most samples that an evaluation looks at: enough for a loss with two digits, a guess.
const MOST_EVALUATED: usize = 2_048;

/// Most chunks of a streamed file that it looks at. Each peer keeps them.
const EVALUATED_CHUNKS: usize = 16;

/// Samples of a streamed file that a model is tried on when it is read, and how long they may take.
const FIRST: usize = 16;
const FIRST_WAIT: Duration = Duration::from_secs(60);

/// Says in the file's metadata how many samples at its end only evaluate.
pub const EVALUATED: &str = "evaluated";

/// How many samples at the end of a file only evaluate, if it says so.
///
/// # Errors
///
/// If it is damaged.
pub fn evaluated(file: &[u8]) -> Result<Option<usize>, TaskError> {
    said_evaluated(metadata_of(file, EVALUATED)?.as_deref())
}

/// The same, by what the file's metadata says of [`EVALUATED`].
///
/// # Errors
///
/// As there.
pub fn said_evaluated(said: Option<&str>) -> Result<Option<usize>, TaskError> {
    let count = said.map(|text| {
        text.parse()
            .map_err(|_| format!("samples.safetensors says {EVALUATED}={text}, which is no number").into())
    });
    count.transpose()
}

impl Evaluated {
    /// As many as the file says, or else a share.
    pub fn of(said: Option<usize>, share: f64, by: HeldOutBy) -> Self {
        said.map_or(Self::Share(share, by), Self::Given)
    }
}

/// Some of the samples.
#[derive(Clone, Debug)]
pub struct Batch {
    /// A tensor for each input of the model.
    pub inputs: Vec<(String, HostTensor)>,
    /// Follows from the samples' numbers: the seed of dropout.
    pub seed: u64,
}

impl Samples {
    /// Samples of a model, of which some are held out. `classes` names the tensor with the class of each, if there is one. `digest`
    /// covers all of the run's data.
    ///
    /// # Errors
    ///
    /// If the tensors do not have the same number of samples.
    pub fn new(
        tensors: Vec<(String, HostTensor)>,
        classes: Option<&str>,
        evaluated: Evaluated,
        digest: Digest,
    ) -> Result<Self, TaskError> {
        let counts = tensors
            .iter()
            .map(|(name, tensor)| (name, tensor.shape().first().copied()));
        let count = check_counts(counts)?;
        let (held_out, by) = match evaluated {
            // Rounds down, so a few samples are all trained on.
            Evaluated::Share(share, by) => ((count as f64 * share) as usize, by),
            Evaluated::Given(last) => (last, HeldOutBy::Last),
        };
        let trained = count
            .checked_sub(held_out)
            .filter(|trained| *trained > 0 || count == 0);
        let trained =
            trained.ok_or("samples.safetensors has no sample to train on; export the model again")?;
        let of_class = tensors.iter().find(|(name, _)| Some(name.as_str()) == classes);
        let class = |row: usize| match of_class.map(|(_, tensor)| tensor.numbers()) {
            Some(Numbers::Integers(all)) if all.len() == count => all[row],
            _ => 0,
        };
        let rows = match by {
            // Drawn too, since an evaluation looks at the first of many.
            HeldOutBy::Last => {
                let last = drawn((trained..count).map(class));
                (0..trained).chain(last.iter().map(|row| trained + row)).collect()
            }
            HeldOutBy::Draw => {
                let mut rows = drawn((0..count).map(class));
                rows.rotate_left(held_out);
                rows[..trained].sort_unstable();
                rows
            }
        };
        Ok(Self {
            rows: Rows::Memory { tensors, order: rows },
            trained,
            held_out,
            chosen: match (evaluated, by, classes) {
                (Evaluated::Given(_), ..) => "as the folder says",
                (_, HeldOutBy::Last, _) => "the last ones",
                (_, HeldOutBy::Draw, Some(_)) => "drawn from each class alike",
                (_, HeldOutBy::Draw, None) => "drawn by their numbers",
            },
            digest,
        })
    }

    /// Samples in a file, of which the last ones are held out.
    ///
    /// # Errors
    ///
    /// If its columns do not have the same number of samples, or there are too few to read them in chunks.
    pub fn streamed(file: SampleFile, evaluated: Evaluated, digest: Digest) -> Result<Self, TaskError> {
        let count = check_counts(
            file.columns()
                .iter()
                .map(|column| (&column.name, Some(column.rows as usize))),
        )?;
        let (held_out, chosen) = match evaluated {
            Evaluated::Share(share, _) => ((count as f64 * share) as usize, "the last ones"),
            Evaluated::Given(last) => (last, "as the folder says"),
        };
        let trained = count.saturating_sub(held_out);
        let chunk = file.chunk().get() as usize;
        let first: Vec<u64> = (0..count.min(FIRST) as u64).collect();
        if !file.have(&first, FIRST_WAIT) {
            return Err(format!(
                "no peer has sent the first samples within {} s",
                FIRST_WAIT.as_secs()
            )
            .into());
        }
        if trained < 2 * chunk {
            let problem = format!(
                "stream=true is for data of many megabytes, and this folder has {trained} samples to train on, fewer than {}: leave \
                 it out",
                2 * chunk
            );
            return Err(problem.into());
        }
        Ok(Self {
            rows: Rows::File(file),
            trained,
            held_out,
            chosen,
            digest,
        })
    }

    /// How many samples there are for what.
    pub fn describe(&self) -> String {
        let grouped = |count: usize| annulus_table::grouped(count as u64);
        match self.held_out() {
            0 => format!("{} samples to train on, none held out", grouped(self.trained)),
            held_out => format!(
                "{} samples to train on and {} held out, {}",
                grouped(self.trained),
                grouped(held_out),
                self.chosen
            ),
        }
    }

    /// How many samples are held out.
    pub fn held_out(&self) -> usize {
        self.held_out
    }

    /// How many of them an evaluation looks at.
    pub fn evaluated(&self) -> usize {
        let most = match &self.rows {
            Rows::Memory { .. } => MOST_EVALUATED,
            // Each peer fetches and keeps them.
            Rows::File(file) => MOST_EVALUATED.min(EVALUATED_CHUNKS * file.chunk().get() as usize),
        };
        self.held_out.min(most)
    }

    /// Of streamed samples: asks for the first of those that are held out, keeps them, and waits for so long at most. Returns
    /// whether they are here.
    pub fn have_held_out(&self, wait: Duration) -> bool {
        let Rows::File(file) = &self.rows else { return true };
        let first = self.trained as u64;
        let rows: Vec<u64> = (first..first + self.evaluated() as u64).collect();
        file.pin(&rows);
        file.have(&rows, wait)
    }

    /// Some of the held-out samples.
    pub fn test(&self, numbers: Range<usize>) -> Batch {
        self.pick(numbers.map(|number| self.trained + number).collect())
    }

    /// The first samples, at most this many.
    pub fn first(&self, count: usize) -> Batch {
        self.pick((0..count.min(self.trained)).collect())
    }

    /// The samples with these numbers: those to train on, then those that are held out.
    fn pick(&self, numbers: Vec<usize>) -> Batch {
        let inputs = match &self.rows {
            Rows::Memory { tensors, order } => {
                let rows: Vec<usize> = numbers.iter().map(|number| order[*number]).collect();
                let pick = |(name, tensor): &(String, HostTensor)| {
                    let mut shape = tensor.shape().to_vec();
                    let each: usize = shape[1..].iter().product();
                    shape[0] = numbers.len();
                    let places = rows.iter().flat_map(|row| row * each..(row + 1) * each);
                    let picked = HostTensor::new(shape, tensor.numbers().pick(places));
                    (name.clone(), picked.expect("as many numbers as the shape says"))
                };
                tensors.iter().map(pick).collect()
            }
            Rows::File(file) => file.rows(&numbers.iter().map(|number| *number as u64).collect::<Vec<_>>()),
        };
        let mut hasher = blake3::Hasher::new();
        for number in &numbers {
            hasher.update(&(*number as u64).to_le_bytes());
        }
        let mut seed = [0; 8];
        hasher.finalize_xof().fill(&mut seed);
        Batch {
            inputs,
            seed: u64::from_le_bytes(seed),
        }
    }
}

impl Dataset for Samples {
    type Batch = Batch;

    fn len(&self) -> u64 {
        self.trained as u64
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Batch {
        self.pick(samples.iter().map(|sample| *sample as usize).collect())
    }

    fn have(&self, draws: &[Draw], wait: Duration) -> bool {
        let Rows::File(file) = &self.rows else { return true };
        file.have(&draws.iter().map(|draw| draw.sample).collect::<Vec<_>>(), wait)
    }

    fn chunk(&self) -> NonZeroU32 {
        match &self.rows {
            Rows::Memory { .. } => NonZeroU32::MIN,
            Rows::File(file) => file.chunk(),
        }
    }

    fn row(&self, sample: u64) -> u64 {
        match &self.rows {
            Rows::Memory { order, .. } => order[sample as usize] as u64,
            Rows::File(_) => sample,
        }
    }

    fn intact(&self) -> Result<(), TaskError> {
        match &self.rows {
            Rows::Memory { .. } => Ok(()),
            Rows::File(file) => file.intact(),
        }
    }
}

/// The number of samples, if it is the same of each input.
fn check_counts<'a>(
    mut counts: impl Iterator<Item = (&'a String, Option<usize>)>,
) -> Result<usize, TaskError> {
    let Some((first, Some(count))) = counts.next() else {
        return Err("samples.safetensors has no sample; export the model with a data set".into());
    };
    match counts.find(|(_, other)| *other != Some(count)) {
        None => Ok(count),
        Some((name, other)) => {
            let other = other.unwrap_or(0);
            let problem =
                format!("samples.safetensors has {count} samples of `{first}`, but {other} of `{name}`");
            Err(problem.into())
        }
    }
}

/// Rows in an order that looks random, is the same everywhere, and has in each stretch about as much of each class as there is in all.
fn drawn(classes: impl Iterator<Item = i64>) -> Vec<usize> {
    let mut of_class = BTreeMap::<i64, Vec<([u8; 8], usize)>>::new();
    for (row, class) in classes.enumerate() {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(b"annulus held out\0")
            .update(&(row as u64).to_le_bytes());
        let mut key = [0; 8];
        hasher.finalize_xof().fill(&mut key);
        of_class.entry(class).or_default().push((key, row));
    }
    let mut placed = Vec::new();
    for mut rows in of_class.into_values() {
        rows.sort_unstable();
        let count = rows.len() as f64;
        // Where in the whole each would lie if its class were spread evenly.
        let spread = rows.into_iter().enumerate();
        placed.extend(spread.map(|(at, (key, row))| ((at as f64 + 0.5) / count, key, row)));
    }
    placed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    placed.into_iter().map(|(.., row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(classes: Vec<i64>, share: f64, by: HeldOutBy) -> Samples {
        let count = classes.len();
        let classes = HostTensor::new(vec![count], Numbers::Integers(classes)).unwrap();
        let tensors = vec![("y".to_owned(), classes)];
        Samples::new(tensors, Some("y"), Evaluated::Share(share, by), Digest([0; 32])).unwrap()
    }

    fn order(samples: &Samples) -> &[usize] {
        match &samples.rows {
            Rows::Memory { order, .. } => order,
            Rows::File(_) => panic!("in memory"),
        }
    }

    #[test]
    fn of_samples_in_the_order_of_their_classes_each_class_is_trained_on_and_held_out() {
        let classes: Vec<i64> = (0..1000).map(|row| row / 100).collect();
        let samples = samples(classes.clone(), 0.1, HeldOutBy::Draw);
        let mut held_out = order(&samples)[900..].to_vec();
        let of = |class: i64| held_out.iter().filter(|row| classes[**row] == class).count();
        assert_eq!((0..10).map(of).collect::<Vec<_>>(), [10; 10]);
        // Also among the first that are looked at.
        let first: BTreeMap<i64, ()> = held_out[..30].iter().map(|row| (classes[*row], ())).collect();
        assert_eq!(first.len(), 10);
        assert!(order(&samples)[..900].is_sorted() && samples.row(0) < 3);
        held_out.extend(&order(&samples)[..900]);
        held_out.sort_unstable();
        assert_eq!(held_out, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_last_samples_are_held_out_if_asked_and_none_of_a_few() {
        let last = samples(vec![0; 50], 0.1, HeldOutBy::Last);
        let mut rows = order(&last).to_vec();
        rows[45..].sort_unstable();
        assert_eq!((last.held_out(), rows), (5, (0..50).collect()));
        assert_eq!(samples(vec![0; 9], 0.1, HeldOutBy::Draw).held_out(), 0);
    }

    #[test]
    fn a_file_may_say_which_of_its_samples_evaluate() {
        let number = [0; 8];
        let file = |metadata: Option<&str>| {
            let view =
                safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![1], &number).unwrap();
            let said = metadata.map(|text| [(EVALUATED.to_owned(), text.to_owned())].into());
            safetensors::serialize([("y", view)], said).unwrap()
        };
        assert_eq!(evaluated(&file(None)).unwrap(), None);
        assert_eq!(evaluated(&file(Some("7"))).unwrap(), Some(7));
        assert!(evaluated(&file(Some("-7"))).is_err());
        // In the order of their classes, of which the first half has all.
        let given = |last: usize| {
            let classes: Vec<i64> = (0..40).map(|row| row % 20 / 10).collect();
            let classes = HostTensor::new(vec![40], Numbers::Integers(classes)).unwrap();
            Samples::new(
                vec![("y".to_owned(), classes)],
                Some("y"),
                Evaluated::Given(last),
                Digest([0; 32]),
            )
        };
        let samples = given(20).unwrap();
        assert_eq!(
            samples.describe(),
            "20 samples to train on and 20 held out, as the folder says"
        );
        assert!(order(&samples)[..20].iter().copied().eq(0..20));
        assert_eq!(order(&samples)[20..30].iter().filter(|row| **row < 30).count(), 5);
        assert!(given(40).is_err() && given(41).is_err());
    }
}
