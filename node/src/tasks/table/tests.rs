//! The table task as a whole: learning, equality of both ways to compute, metadata.

use super::*;
use crate::device::OpenDevice;
use crate::task::Dataset;
use crate::task_factory::TaskFactory;
use crate::tasks::testing::{assert_pruned, by_adam, weights_file};
use crate::trainer::{Trainer, TrainerOptions, Worker};
use std::sync::Arc;

/// Rows whose class depends on two numbers together and on neither alone, and whose number on a town, too.
fn csv(rows: usize) -> String {
    let mut text = String::from("x,y,town,same,height\n");
    for at in 0..rows {
        let (x, y) = (
            (at * 37 % 101) as f64 / 50.0 - 1.0,
            (at * 59 % 103) as f64 / 51.0 - 1.0,
        );
        let town = ["Bern", "Bonn", "Basel"][at * 7 % 3];
        let same = if x * y > 0.0 { "yes" } else { "no" };
        let height = 100.0 + 40.0 * x * y + if town == "Bern" { 30.0 } else { 0.0 };
        text += &format!("{x},{y},{town},{same},{height}\n");
    }
    text
}

fn task(target: &str, other: &str, model: annulus_table::Model) -> Arc<TableTask> {
    let data = Data::file_in_memory("t.csv", csv(1200));
    let options = Options {
        model,
        ..options(target, other)
    };
    Arc::new(TableTask::new(options, Some(&data)).unwrap())
}

fn options(target: &str, other: &str) -> Options {
    Options {
        target: target.into(),
        columns: [(other.to_owned(), annulus_table::Kind::Ignore)].into(),
        ..Options::default()
    }
}

fn with(options: Options) -> Arc<TableTask> {
    let data = Data::file_in_memory("t.csv", csv(1200));
    Arc::new(TableTask::new(options, Some(&data)).unwrap())
}

/// Trains by Adam with its usual settings, and gives the tensors.
fn train(task: &Arc<TableTask>, steps: usize) -> (Trainer<TableTask>, Vec<f32>, Tensors) {
    let mut worker = Trainer::new(Arc::clone(task), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    let order: Vec<u64> = (0..task.dataset().len()).collect();
    let params = by_adam(&mut worker, 3e-3, order.chunks(64).cycle().take(steps));
    let tensors = Tensors::of(worker.layout(), &params);
    (worker, params, tensors)
}

fn tested(task: &TableTask, tensors: &Tensors) -> Judged {
    let finished = task.finish(tensors).unwrap().unwrap();
    let (_, test) = finished.metadata.iter().find(|(key, _)| *key == "test").unwrap();
    serde_json::from_str(test).unwrap()
}

fn metric(metrics: &[annulus_table::metrics::Metric], name: &str) -> f64 {
    metrics.iter().find(|metric| metric.name == name).unwrap().value
}

#[test]
fn networks_learn_what_a_linear_model_cannot() {
    use annulus_table::Model::{Linear, Mlp};
    let classes = task("same", "height", Mlp);
    let (mut worker, params, tensors) = train(&classes, 250);
    let test = tested(&classes, &tensors);
    println!("{:?}", test.metrics);
    assert!(metric(&test.metrics, "auc") > 0.97);
    assert!((0.4..0.6).contains(&metric(&test.constant, "auc")));
    assert!(metric(&test.linear, "auc") < 0.7);
    let eval = worker.score(params).unwrap().unwrap();
    assert!(eval.metrics["accuracy"] > 0.85 && eval.loss < 0.5, "{eval:?}");

    let linear = task("same", "height", Linear);
    assert!(metric(&tested(&linear, &train(&linear, 50).2).metrics, "auc") < 0.7);

    let numbers = task("height", "same", Mlp);
    let test = tested(&numbers, &train(&numbers, 250).2);
    println!("{:?}", test.metrics);
    assert!(metric(&test.metrics, "rmse") < 0.35 * metric(&test.linear, "rmse"));
    assert!(metric(&test.linear, "rmse") < metric(&test.constant, "rmse"));
}

/// The loops that predict give what Burn's layers give, up to rounding.
#[test]
fn a_model_file_predicts_as_the_model_does() {
    let task = task("height", "same", annulus_table::Model::Mlp);
    let (worker, params, tensors) = train(&task, 20);
    let device = Device::flex();
    let model = crate::trainer::model_of(&*task, &params, &device);
    let rows = &task.data.table.rows.test;
    let (inputs, ..) = task.tensors(task.data.of(rows), &device);
    let width = task.data.features.width();
    let flat: Vec<f32> = inputs.to_data().try_to_vec().unwrap();
    let network = network(&task.plans, 1, &tensors).unwrap();
    assert_eq!(network.members.len(), 8);
    for (member, outputs) in network
        .members
        .iter()
        .zip(model.forward(&task.plans, inputs, None))
    {
        let found: Vec<f32> = outputs.to_data().try_to_vec().unwrap();
        for (row, found) in flat.chunks(width).zip(found) {
            let expected = member.outputs(row)[0];
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
    }
    drop(worker);

    // The metadata is enough for a predictor.
    let mut metadata: BTreeMap<String, String> = BTreeMap::new();
    let finished = task.finish(&tensors).unwrap().unwrap();
    let all = task.metadata().into_iter().chain(finished.metadata);
    metadata.extend(all.map(|(key, value)| (key.to_owned(), value)));
    let factory = TaskFactory::of::<TableTask>();
    let predictor = (factory.predictor)(&metadata, &tensors).unwrap().unwrap();
    let out = predictor
        .predict("new.csv", b"town,y,x\nBern,0.5,0.5\n")
        .unwrap()
        .text;
    assert!(
        out.starts_with("town,y,x,height_predicted\nBern,0.5,0.5,"),
        "{out}"
    );
    // While the run goes on, it answers as the file would.
    let live = task.live(&tensors).unwrap().unwrap();
    assert_eq!(
        live.predict("new.csv", b"town,y,x\nBern,0.5,0.5\n").unwrap().text,
        out
    );
    metadata.remove("weights");
    let told = (factory.predictor)(&metadata, &tensors)
        .err()
        .unwrap()
        .to_string();
    assert!(told.contains("says nothing of its weights"), "{told}");
}

#[test]
fn rare_classes_weigh_more_if_wished_and_the_digest_tells() {
    let data = Data::file_in_memory("t.csv", csv(300));
    let of = |class_weights| {
        let options = Options {
            target: "town".into(),
            class_weights,
            ..Options::default()
        };
        TableTask::new(options, Some(&data)).unwrap()
    };
    let (off, balanced) = (
        of(annulus_table::ClassWeights::Off),
        of(annulus_table::ClassWeights::Balanced),
    );
    assert_ne!(off.dataset().digest(), balanced.dataset().digest());
    assert_eq!(
        off.dataset().digest(),
        of(annulus_table::ClassWeights::Off).dataset().digest()
    );
    let sum = |task: &TableTask| {
        let all: Vec<u64> = (0..task.dataset().len()).collect();
        task.dataset().batch(&all).targets.iter().sum::<f32>() / all.len() as f32
    };
    assert!((sum(&off) - 1.0).abs() < 1e-5 && (sum(&balanced) - 1.0).abs() < 1e-4);
}

#[test]
fn without_a_file_or_a_target_there_is_advice() {
    let told = TableTask::new(Options::default(), None)
        .err()
        .unwrap()
        .to_string();
    assert!(told.contains("--data FILE.csv target=COLUMN"), "{told}");
    let data = Data::file_in_memory("t.csv", csv(20));
    let told = TableTask::new(Options::default(), Some(&data))
        .err()
        .unwrap()
        .to_string();
    assert!(
        told.contains("target=NAME. Its columns: x, y, town, same, height"),
        "{told}"
    );
}

/// Trials share a vector and batches, and nothing else: each gets the gradient that it gets alone, over the number of usual networks.
#[test]
fn a_trial_learns_as_it_would_alone() {
    let search = with(Options {
        trials: Some(9),
        ..options("height", "same")
    });
    let alone = search
        .plans
        .iter()
        .position(|plan| plan.l2 > 0.0 && plan.dropout == 0.0);
    let at = alone.expect("such a trial");
    let plan = &search.plans[at];
    let units: Vec<String> = plan.hidden.iter().map(usize::to_string).collect();
    let one = with(Options {
        hidden: units.join("-"),
        bins: plan.bins,
        rate: plan.rate,
        l2: plan.l2,
        ..options("height", "same")
    });
    let mut all = Trainer::new(search.clone(), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    let mut single = Trainer::new(one, &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    let params = all.init();
    let prefix = format!("members.{at}.");
    let own: Vec<std::ops::Range<usize>> = all
        .layout()
        .tensors
        .iter()
        .filter(|tensor| tensor.name.starts_with(&prefix))
        .map(|tensor| tensor.offset..tensor.offset + tensor.len())
        .collect();
    let of = |vector: &[f32]| {
        own.iter()
            .flat_map(|range| vector[range.clone()].to_vec())
            .collect::<Vec<f32>>()
    };
    let samples: Vec<u64> = (0..64).collect();
    let expected = single.contribute(of(&params), &samples).unwrap().gradient;
    let found = of(&all.contribute(params, &samples).unwrap().gradient);
    let size = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
    assert!(size > 0.01, "{size}");
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found * 8.0 - expected).abs() < 1e-4 * size, "{found} {expected}");
    }
}

#[test]
fn dropout_draws_alike_everywhere_and_otherwise_in_each_epoch() {
    let one = |dropout, l2| {
        with(Options {
            hidden: "64-32".into(),
            dropout,
            l2,
            ..options("height", "same")
        })
    };
    let task = one(0.25, 0.0);
    let (data, count) = (task.dataset(), task.dataset().len());
    let kept = |draws: &[u64]| crate::task::batch_of(data, 7, draws).kept;
    assert_eq!(kept(&[5, 9]), [kept(&[5]), kept(&[9])].concat());
    assert_ne!(kept(&[5]), kept(&[5 + count]));
    assert_ne!(kept(&[5]), kept(&[6]));
    let all = kept(&(0..200).collect::<Vec<u64>>());
    assert_eq!(all.len(), 200 * 96);
    assert!(
        all.iter()
            .all(|kept| *kept == 0.0 || (*kept - 4.0 / 3.0).abs() < 1e-6)
    );
    let mean = all.iter().sum::<f32>() / all.len() as f32;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");

    // Gradients differ from those without, and from epoch to epoch; validation uses all units.
    let plain = one(0.0, 0.0);
    let gradient = |task: &Arc<TableTask>, draws: &[u64]| {
        let mut worker =
            Trainer::new(Arc::clone(task), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
        let params = worker.init();
        (
            worker.contribute(params.clone(), draws).unwrap(),
            worker.score(params).unwrap().unwrap(),
        )
    };
    let ((first, score), (again, _)) = (gradient(&task, &[5, 6, 7]), gradient(&task, &[5, 6, 7]));
    assert_eq!(first, again);
    assert_ne!(gradient(&task, &[5 + count, 6 + count, 7 + count]).0, first);
    let (without, plain_score) = gradient(&plain, &[5, 6, 7]);
    assert_ne!(without, first);
    assert_eq!(score, plain_score);

    // The penalty: its gradient is twice the weights.
    let (pulled, _) = gradient(&one(0.0, 0.5), &[5]);
    let (free, _) = gradient(&plain, &[5]);
    let worker = Trainer::new(plain.clone(), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    let tensor = worker
        .layout()
        .tensors
        .iter()
        .find(|tensor| tensor.name == "members.0.layers.1.weight");
    let tensor = tensor.unwrap();
    for at in tensor.offset..tensor.offset + tensor.len() {
        let more = pulled.gradient[at] - free.gradient[at];
        assert!((more - worker.init()[at]).abs() < 1e-4, "{more}");
    }
}

/// The first trial of a search is the model of a run without trials, whatever the others are.
#[test]
fn the_usual_networks_learn_in_a_search_as_without_one() {
    for (target, ignored) in [("same", "height"), ("height", "same")] {
        let alone = task(target, ignored, annulus_table::Model::Mlp);
        let search = with(Options {
            trials: Some(5),
            ..options(target, ignored)
        });
        let trainer = |task| Trainer::new(task, &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
        let (mut alone, mut search) = (trainer(alone), trainer(search));
        let (params, all) = (alone.init(), search.init());
        let usual = params.len();
        assert!(all.len() > usual);
        assert_eq!(all[..usual], params);
        let samples: Vec<u64> = (0..100).collect();
        let expected = alone.contribute(params, &samples).unwrap().gradient;
        let found = search.contribute(all, &samples).unwrap();
        assert!(expected.iter().any(|value| *value != 0.0));
        assert_eq!(found.gradient[..usual], expected, "{target}");
    }
}

#[test]
fn a_search_ranks_its_trials_in_the_file_and_the_report() {
    let search = with(Options {
        trials: Some(6),
        ..options("same", "height")
    });
    let (_, _, tensors) = train(&search, 200);
    let finished = search.finish(&tensors).unwrap().unwrap();
    println!("{}", finished.report);
    let (_, trials) = finished
        .metadata
        .iter()
        .find(|(key, _)| *key == "trials")
        .unwrap();
    let trials: Vec<annulus_table::Trial> = serde_json::from_str(trials).unwrap();
    // The usual networks are among them, and a better trial joins them.
    let usual = trials.iter().find(|trial| trial.settings.is_empty()).unwrap();
    assert!(usual.number == 1 && usual.share > 0.1, "{trials:?}");
    assert!(trials.is_sorted_by(|a, b| a.loss <= b.loss), "{trials:?}");
    let best: String = trials[0].settings.iter().map(|word| format!(" {word}")).collect();
    assert!(
        finished
            .report
            .starts_with("trials by their loss on 120 validation rows")
    );
    assert!(finished.report.contains(&format!(
        "the best alone: annulus train --data t.csv columns.height=ignore target=same{best}\ntest (120 rows): "
    )));
    assert!(finished.card.contains("\n## Search\n"));
    // A run without trials has no ranking.
    let members = task("same", "height", annulus_table::Model::Mlp);
    let (_, _, tensors) = train(&members, 1);
    assert!(
        !members
            .finish(&tensors)
            .unwrap()
            .unwrap()
            .report
            .contains("trials")
    );
}

#[test]
fn half_of_the_hidden_units_can_be_taken_out_and_learnt_further() {
    let task = task("same", "height", annulus_table::Model::Mlp);
    let metadata = task
        .metadata()
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    let pruning = TableTask::pruning(&task.data.options, &metadata, 0.5)
        .unwrap()
        .unwrap();
    let data = Data::file_in_memory("t.csv", csv(1200));
    let smaller = Arc::new(TableTask::new(pruning.config.clone(), Some(&data)).unwrap());
    assert_eq!(smaller.plans[2].hidden, [64, 32]);
    assert_pruned(&task, &pruning.units, &smaller);
    let linear = Options {
        model: annulus_table::Model::Linear,
        ..task.data.options.clone()
    };
    assert_eq!(TableTask::pruning(&linear, &metadata, 0.5).unwrap(), None);

    // A run that starts from the smaller model.
    let trainer = Trainer::new(smaller.clone(), &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    let params = vec![0.5; trainer.layout().len];
    let weights = weights_file(trainer.layout(), &params);
    let files = [
        ("table.csv", csv(1200).into_bytes()),
        ("start.safetensors", weights),
    ];
    let files = files
        .map(|(name, bytes)| (name.to_owned(), bytes.into()))
        .to_vec();
    let folder = Data::folder_in_memory(files);
    let config = Options {
        init: "start.safetensors".into(),
        ..pruning.config
    };
    let further = Arc::new(TableTask::new(config.clone(), Some(&folder)).unwrap());
    assert_ne!(further.dataset().digest(), smaller.dataset().digest());
    let trainer = Trainer::new(further, &OpenDevice::cpu(), TrainerOptions::default()).unwrap();
    assert_eq!(trainer.init(), params);
    let told = TableTask::new(config, Some(&data))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        told.contains("with the table as table.csv, and the weights beside it"),
        "{told}"
    );
}
