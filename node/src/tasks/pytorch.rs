//! A PyTorch model that only PyTorch computes: `annulus.member` founds a run with it where the exporter refuses an operation.
//!
//! The data is a folder with one file: what all members share at first, by the names of the state_dict. Its metadata says which
//! tensors are trained, which follow what a forward pass makes of them, and how many samples there are. The samples stay with the
//! members.

use super::init;
use crate::task::{Data, Dataset, Digest, Task, TaskError, TensorRule};
use annulus_graph::{GraphModel, HostTensor, first_values, metadata_of, read_tensors};
use burn::tensor::{Device, Tensor};

/// The file in the folder.
const WEIGHTS: &str = "weights.safetensors";

/// The rate of values that follow. It cancels out: members hand in a change divided by it.
const RATE: f32 = 1.0;

/// A model's parameters without its operations.
pub struct PyTorch {
    /// The trained tensors, then those that follow.
    parameters: Vec<(String, HostTensor)>,
    trained: usize,
    /// The trained tensors that weight decay is for; none: those with two or more axes.
    decayed: Option<Vec<String>>,
    samples: Numbered,
}

/// Samples of which only the number is known here.
pub struct Numbered {
    count: u64,
    digest: Digest,
}

impl Dataset for Numbered {
    type Batch = ();

    fn len(&self) -> u64 {
        self.count
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, _samples: &[u64]) {}
}

impl Task for PyTorch {
    type Model = GraphModel;
    type Dataset = Numbered;
    type Config = ();

    const NAME: &'static str = "pytorch";
    const ABOUT: &'static str = "a PyTorch model that only PyTorch computes, founded by annulus.member";
    const ELSEWHERE: Option<&'static str> = Some(
        "this run's members compute with PyTorch, which this program does not have: take part from Python with \
         annulus.member(model, dataset, ticket=...)",
    );

    fn new(_config: (), data: Option<&Data>) -> Result<Self, TaskError> {
        let data = data.ok_or("give --data FOLDER, which annulus.member has written")?;
        let absent = || format!("{} has no {WEIGHTS}", data.path().display());
        Self::read(&init::bytes(data, WEIGHTS)?.ok_or_else(absent)?)
    }

    fn description(&self) -> String {
        let samples = annulus_table::grouped(self.samples.count);
        format!("{samples} samples to train on, which each member has itself")
    }

    fn dataset(&self) -> &Numbered {
        &self.samples
    }

    fn model(&self, device: &Device) -> GraphModel {
        // The same was made when the task was read.
        GraphModel::of_parameters(&self.parameters, device).expect("parameters that a module can have")
    }

    fn loss(&self, _model: &GraphModel, _batch: (), device: &Device) -> Tensor<1> {
        // Nobody asks: the trainer refuses a task that is computed elsewhere.
        Tensor::full([1], f32::NAN, device)
    }

    fn rule(&self, name: &str) -> Option<TensorRule> {
        let at = self.parameters.iter().position(|(own, _)| own == name)?;
        if at >= self.trained {
            return Some(TensorRule::Mean { rate: RATE });
        }
        let decays = self.decayed.as_ref()?.iter().any(|own| own == name);
        Some(match decays {
            true => TensorRule::StepAndDecay,
            false => TensorRule::Step,
        })
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        let what = "a PyTorch model, by the names and shapes of its state_dict";
        vec![("architecture", what.into())]
    }
}

impl PyTorch {
    fn read(file: &[u8]) -> Result<Self, TaskError> {
        let unfit = |why: &dyn std::fmt::Display| format!("{WEIGHTS}: {why}");
        let said = |key| metadata_of(file, key).map_err(|error| unfit(&error));
        let tensors = read_tensors(file).map_err(|error| unfit(&error))?;
        let [trained, following] =
            [said("annulus.trained")?, said("annulus.follows")?].map(Option::unwrap_or_default);
        let [trained, following] = [&trained, &following].map(|names| names.lines().collect::<Vec<_>>());
        if trained.is_empty() {
            return Err(unfit(&"its metadata names no trained tensor").into());
        }
        let count = said("annulus.samples")?
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| unfit(&"its metadata has no annulus.samples, the number of samples"))?;
        let names = || trained.iter().chain(&following).copied();
        let shape = |name: &str| {
            let found = tensors.iter().find(|(own, _)| own == name);
            found.map_or(&[] as &[usize], |(_, tensor)| tensor.shape())
        };
        let values = first_values(names().map(|name| (name, shape(name))), &tensors);
        let values = values.map_err(|error| unfit(&error))?;
        let parameters: Vec<_> = names().map(str::to_owned).zip(values).collect();
        // Also tells of a tensor that no module can have.
        GraphModel::of_parameters(&parameters, &Device::flex()).map_err(|error| unfit(&error))?;
        Ok(Self {
            trained: trained.len(),
            parameters,
            decayed: said("annulus.decayed")?.map(|names| names.lines().map(str::to_owned).collect()),
            samples: Numbered {
                count,
                digest: Digest::of(file),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::OpenDevice;
    use crate::task_factory::TaskFactory;
    use crate::trainer::{TrainerOptions, WorkerError};
    use safetensors::tensor::{Dtype, TensorView};
    use std::collections::HashMap;

    /// A folder with a matrix, a scale without axes, a running mean and a counter.
    fn folder(trained: &str, follows: &str, samples: &str) -> Data {
        let numbers: Vec<f32> = (0..6).map(|number| number as f32).collect();
        let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let floats: &[u8] = bytemuck::cast_slice(&numbers);
        let tensors = [
            ("b.running", view(Dtype::F32, &[2], &floats[16..24])),
            ("a.weight", view(Dtype::F32, &[2, 3], floats)),
            ("a.scale", view(Dtype::F32, &[], &floats[4..8])),
            ("b.count", view(Dtype::I64, &[], &[0; 8])),
        ];
        let metadata = [("trained", trained), ("follows", follows), ("samples", samples)];
        let metadata = metadata.map(|(key, value)| (format!("annulus.{key}"), value.to_owned()));
        let file = safetensors::serialize(tensors, Some(HashMap::from(metadata))).unwrap();
        Data::folder_in_memory(vec![(WEIGHTS.to_owned(), file.into())])
    }

    #[test]
    fn the_founder_may_say_what_decays() {
        let mut task = PyTorch::new((), Some(&folder("a.weight\na.scale", "b.running", "40"))).unwrap();
        let rules = |task: &PyTorch| ["a.weight", "a.scale", "b.running"].map(|name| task.rule(name));
        let follows = Some(TensorRule::Mean { rate: RATE });
        assert_eq!(rules(&task), [None, None, follows]);
        task.decayed = Some(vec!["a.scale".into()]);
        let (step, decays) = (Some(TensorRule::Step), Some(TensorRule::StepAndDecay));
        assert_eq!(rules(&task), [step, decays, follows]);
    }

    #[test]
    fn what_is_trained_and_what_follows_has_a_place_and_nothing_computes() {
        let task = TaskFactory::of::<PyTorch>();
        let loaded = (task.load)("null", Some(&folder("a.weight\na.scale", "b.running", "40"))).unwrap();
        assert_eq!((loaded.samples.get(), (loaded.rows)(7)), (40, 7));
        let mut worker = loaded.worker_factory(OpenDevice::cpu(), TrainerOptions::default())().unwrap();
        let tensors = &worker.layout().tensors;
        let tensors: Vec<_> = tensors
            .iter()
            .map(|tensor| (&*tensor.name, &*tensor.shape, tensor.rule))
            .collect();
        assert_eq!(
            tensors,
            [
                ("a.weight", &[2, 3][..], TensorRule::StepAndDecay),
                ("a.scale", &[1], TensorRule::Step),
                ("b.running", &[2], TensorRule::Mean { rate: RATE }),
            ]
        );
        let params = worker.init();
        assert_eq!(params, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 4.0, 5.0]);
        let why = worker.contribute(params, &[0]).unwrap_err();
        assert!(matches!(why, WorkerError::Elsewhere(_)), "{why}");
        assert!(
            why.to_string()
                .contains("annulus.member(model, dataset, ticket=...)")
        );
    }

    #[test]
    fn a_folder_that_does_not_fit_is_refused() {
        for (trained, follows, samples, told) in [
            ("", "", "40", "names no trained tensor"),
            ("a.weight\nc", "", "40", "`c` is missing"),
            ("a.weight", "b.count", "40", "`b.count` is made of integers"),
            ("a.weight", "", "many", "no annulus.samples"),
        ] {
            let Err(why) = PyTorch::new((), Some(&folder(trained, follows, samples))) else {
                panic!("{trained} {follows} {samples}")
            };
            assert!(why.to_string().contains(told), "{why}");
        }
        assert!(PyTorch::new((), None).is_err());
    }
}
