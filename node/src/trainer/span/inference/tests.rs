//! A model in runs of steps against the same as a whole, and what of it is in memory together.

use super::*;
use crate::device::{self, DeviceChoice};
use crate::task::Dataset;
use crate::tasks::gpt::Gpt;
use crate::tasks::gpt::config::GptConfig;
use crate::tasks::gpt::presets::Preset;
use crate::trainer::{Trainer, TrainerOptions, Worker};
use burn::tensor::read_sync;
use std::future::ready;

/// A small language model in eight steps, its parameters, and what evaluates it. `space` is told what the largest step takes for a
/// batch of 128 samples, and what all together take.
fn model(space: impl Fn(u64, u64) -> Space) -> (Arc<Gpt>, Vec<f32>, InSteps<Gpt>) {
    let config = GptConfig {
        preset: Preset::Pico,
        layers: 6,
        context: 16,
        eval_windows: 300,
        // Nothing is dropped out where nothing is trained.
        dropout: 0.3,
        ..GptConfig::default()
    };
    let task = Arc::new(Gpt::new(config, None).unwrap());
    let model = Arc::new(ModelSteps::of(&*task, 7).unwrap());
    let params: Vec<f32> = (0..model.layout.len)
        .map(|i| (i as f32 * 0.37).sin() * 0.2)
        .collect();
    let on_disk = params.clone();
    let weights: Weights = Box::new(move |range| Ok(on_disk[range].to_vec()));
    let sizes = Sizes::of(&model, 128);
    let (largest, whole) = needs(&sizes);
    let space = space(largest, whole);
    let device = device::open(DeviceChoice::Cpu).unwrap();
    let steps = InSteps::new(task.clone(), &device, model, space, weights);
    (task, params, steps)
}

/// The memory that the largest of the eight steps needs, and that all together need.
fn needs(sizes: &Sizes) -> (u64, u64) {
    let steps = (0..8).map(|step| sizes.need(&(step..step + 1), 0));
    (steps.max().unwrap(), sizes.need(&(0..8), 0))
}

fn within(limit: u64) -> Space {
    Space {
        limit: Some(limit),
        likes: limit,
        base: 0,
    }
}

fn trainer(task: &Arc<Gpt>) -> Trainer<Gpt> {
    let device = device::open(DeviceChoice::Cpu).unwrap();
    Trainer::new(task.clone(), &device, TrainerOptions::default()).unwrap()
}

#[test]
fn a_model_in_runs_of_steps_scores_and_writes_what_it_does_as_a_whole() {
    let prompt = Prompt {
        text: "the".into(),
        tokens: 30,
        temperature: 0.9,
        top_k: 0,
        seed: 5,
    };
    let written = |write: &mut dyn FnMut(Emit<'_>)| {
        let mut text = String::new();
        write(&mut |piece| {
            text.push_str(piece);
            Box::pin(ready(()))
        });
        text
    };
    let (task, params, _) = model(|_, whole| within(whole));
    let mut whole = trainer(&task);
    let scores = whole.score(params).unwrap().unwrap();
    let text = written(&mut |emit| read_sync(whole.generate(&prompt, emit)).unwrap());
    assert_eq!(text.chars().count(), 30);
    let (mut evaluated, mut wrote) = (Vec::new(), Vec::new());
    for share in [1.0, 0.7, 0.4, 0.0] {
        let part = |one, whole: u64| within(one + ((whole - one) as f64 * share) as u64);
        let (_, _, mut steps) = model(part);
        evaluated.push(steps.to_evaluate().unwrap().unwrap());
        assert_eq!(
            read_sync(steps.evaluate()).unwrap(),
            scores,
            "in {evaluated:?} runs"
        );
        // A token takes less than a batch of windows.
        let (one, whole) = needs(&Sizes::of(&steps.model, 1));
        steps.space = part(one, whole);
        wrote.push(steps.to_write().unwrap().unwrap());
        let again = written(&mut |emit| read_sync(steps.write(&prompt, emit)).unwrap());
        assert_eq!(again, text, "in {wrote:?} runs");
    }
    assert!(evaluated[0] == 1 && evaluated[1] > 1, "{evaluated:?}");
    assert!(
        wrote.is_sorted() && wrote[0] == 1 && wrote[1] > 1 && wrote[3] > wrote[1],
        "{wrote:?}"
    );
}

#[test]
fn no_more_goes_on_together_than_fits_and_a_step_without_room_is_named() {
    let (_, _, mut steps) = model(|_, whole| within(whole));
    let sizes = Sizes::of(&steps.model, 1);
    let limit = sizes.need(&(0..8), 0) / 2;
    steps.space = within(limit);
    let plan = steps.plan(1, 100).unwrap();
    let (_, at_once) = plan.batches;
    assert!(at_once > 1 && plan.runs.len() > 1, "{plan:?}");
    for run in &plan.runs {
        assert!(
            sizes.need(run, 0) + at_once as u64 * sizes.boundary <= limit,
            "{plan:?}"
        );
    }
    // A machine without any limit takes at least one step.
    let one = sizes.need(&(3..4), 0);
    let likes = Space {
        limit: None,
        ..within(one - 1)
    };
    assert!(sizes.runs(likes).unwrap().contains(&(3..4)));
    let refused = sizes.runs(within(one - 1)).unwrap_err().to_string();
    assert!(
        refused.contains("of this model's 8") && refused.contains("--memory"),
        "{refused}"
    );
}

#[test]
fn what_weights_cannot_be_read_ends_it() {
    let (task, _, steps) = model(|_, whole| within(whole));
    let device = device::open(DeviceChoice::Cpu).unwrap();
    let weights: Weights = Box::new(|_| Err("the disk is gone".into()));
    let mut steps = InSteps::new(task.clone(), &device, steps.model, within(u64::MAX), weights);
    assert_eq!(steps.to_evaluate().unwrap(), Some(1));
    let error = read_sync(steps.evaluate()).unwrap_err().to_string();
    assert_eq!(error, "the disk is gone");
    assert!(task.dataset().len() > 0);
}
