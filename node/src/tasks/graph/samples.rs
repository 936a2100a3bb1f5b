//! The samples of a model that came as a file: tensors whose first axis counts them.
//!
//! It knows nothing of models.

use annulus_core::Digest;
use annulus_graph::{HostTensor, Numbers, metadata_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

use crate::task::{Dataset, TaskError};

/// Samples to train on, and some that are held out.
#[derive(Debug)]
pub struct Samples {
    /// One tensor for each input of the model.
    tensors: Vec<(String, HostTensor)>,
    /// The rows of the tensors to train on, then those that are held out.
    rows: Vec<usize>,
    trained: usize,
    /// How those that are held out were chosen, in words.
    chosen: &'static str,
    digest: Digest,
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

/// Says in the file's metadata how many samples at its end only evaluate.
const EVALUATED: &str = "evaluated";

/// How many samples at the end of a file only evaluate, if it says so.
///
/// # Errors
///
/// If it is damaged.
pub fn evaluated(file: &[u8]) -> Result<Option<usize>, TaskError> {
    let said = metadata_of(file, EVALUATED)?;
    let count = said.map(|text| {
        text.parse()
            .map_err(|_| format!("samples.safetensors says {EVALUATED}={text}, which is no number").into())
    });
    count.transpose()
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
        let mut counts = tensors
            .iter()
            .map(|(name, tensor)| (name, tensor.shape().first().copied()));
        let Some((first, Some(count))) = counts.next() else {
            return Err("samples.safetensors has no sample; export the model with a data set".into());
        };
        if let Some((name, other)) = counts.find(|(_, other)| *other != Some(count)) {
            let other = other.unwrap_or(0);
            let problem =
                format!("samples.safetensors has {count} samples of `{first}`, but {other} of `{name}`");
            return Err(problem.into());
        }
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
            tensors,
            rows,
            trained,
            chosen: match (evaluated, by, classes) {
                (Evaluated::Given(_), ..) => "as the folder says",
                (_, HeldOutBy::Last, _) => "the last ones",
                (_, HeldOutBy::Draw, Some(_)) => "drawn from each class alike",
                (_, HeldOutBy::Draw, None) => "drawn by their numbers",
            },
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
        self.rows.len() - self.trained
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
        let rows: Vec<usize> = numbers.iter().map(|number| self.rows[*number]).collect();
        let inputs = self.tensors.iter().map(|(name, tensor)| {
            let mut shape = tensor.shape().to_vec();
            let each: usize = shape[1..].iter().product();
            shape[0] = numbers.len();
            let places = rows.iter().flat_map(|row| row * each..(row + 1) * each);
            let picked = HostTensor::new(shape, tensor.numbers().pick(places));
            (name.clone(), picked.expect("as many numbers as the shape says"))
        });
        let mut hasher = blake3::Hasher::new();
        for number in &numbers {
            hasher.update(&(*number as u64).to_le_bytes());
        }
        let mut seed = [0; 8];
        hasher.finalize_xof().fill(&mut seed);
        Batch {
            inputs: inputs.collect(),
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

    fn row(&self, sample: u64) -> u64 {
        self.rows[sample as usize] as u64
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

    #[test]
    fn of_samples_in_the_order_of_their_classes_each_class_is_trained_on_and_held_out() {
        let classes: Vec<i64> = (0..1000).map(|row| row / 100).collect();
        let samples = samples(classes.clone(), 0.1, HeldOutBy::Draw);
        let mut held_out = samples.rows[900..].to_vec();
        let of = |class: i64| held_out.iter().filter(|row| classes[**row] == class).count();
        assert_eq!((0..10).map(of).collect::<Vec<_>>(), [10; 10]);
        // Also among the first that are looked at.
        let first: BTreeMap<i64, ()> = held_out[..30].iter().map(|row| (classes[*row], ())).collect();
        assert_eq!(first.len(), 10);
        assert!(samples.rows[..900].is_sorted() && samples.row(0) < 3);
        held_out.extend(&samples.rows[..900]);
        held_out.sort_unstable();
        assert_eq!(held_out, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_last_samples_are_held_out_if_asked_and_none_of_a_few() {
        let last = samples(vec![0; 50], 0.1, HeldOutBy::Last);
        let mut rows = last.rows.clone();
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
        assert!(samples.rows[..20].iter().copied().eq(0..20));
        assert_eq!(samples.rows[20..30].iter().filter(|row| **row < 30).count(), 5);
        assert!(given(40).is_err() && given(41).is_err());
    }
}
