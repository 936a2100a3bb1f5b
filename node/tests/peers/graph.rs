//! A model that comes as a file is trained by peers of which one has the file: real processes, each as if on a machine of
//! its own.

use crate::common::*;
use crate::exported::{exported, fixture};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A peer that has an exported folder trains it for some rounds with one that has no file. Both have left then, with equal
/// digests and a record that passes the audit and the replay. Returns the exported folder and the peer without a file.
fn trained_by_two(folder: &Folder, model: &str, settings: &[&str], rounds: u64) -> (PathBuf, Node) {
    let data = exported(&folder.0, model, 20);
    let [first, second] = ["first", "second"].map(|name| {
        let home = folder.0.join(format!("{name}-home"));
        std::fs::create_dir_all(&home).expect("a folder");
        home
    });
    let path = data.display().to_string();
    let args = ["train", "--device", "cpu", "--task", "graph", "--data", &path];
    let args = [&args[..], &["rounds=1000000", "lr=1e-2"], settings].concat();
    let mut founder = Node::start_in("founder", folder.join("founder"), &first, &args);
    let ticket = founder.ticket();
    let args = ["join", &ticket, "--device", "cpu"];
    let mut joined = Node::start_in("joined", folder.join("joined"), &second, &args);
    joined.members(2);
    joined.rounds(rounds);
    assert!(joined.leave(), "{}", joined.errors());
    assert!(founder.leave(), "{}", founder.errors());
    assert!(assert_equal(&[&founder, &joined]) >= 10);
    assert_audited(&founder);
    let (good, text) = replay(&joined);
    assert!(good, "{text}");
    (data, joined)
}

/// The scores of a peer's model.
fn scores(node: &Node) -> Value {
    let eval = run(&["eval", &node.dir, "--device", "cpu", "--json"]);
    assert!(eval.status.success(), "{eval:?}");
    serde_json::from_slice(&eval.stdout).expect("JSON")
}

/// The gradient of an exported folder's first samples, and their loss: a safetensors file.
fn gradient(folder: &Folder, data: &Path, samples: &str) -> Vec<u8> {
    let (data, out) = (data.display().to_string(), folder.join("gradient.safetensors"));
    let args = ["gradient", &data, "--samples", samples, "--out", &out];
    let done = run(&[&args[..], &["--device", "cpu"]].concat());
    assert!(done.status.success(), "{done:?}");
    std::fs::read(&out).expect("a gradient")
}

/// The loss in such a file.
fn loss_in(gradient: &[u8]) -> f32 {
    let tensors = SafeTensors::deserialize(gradient).expect("safetensors");
    let loss = tensors.tensor("loss").expect("the loss").data().to_vec();
    f32::from_le_bytes(loss.try_into().expect("one float"))
}

/// Writes a peer's model into a file.
fn export(node: &Node, file: &Path) {
    let export = run(&["export", &node.dir, &file.display().to_string()]);
    assert!(export.status.success(), "{export:?}");
}

#[test]
fn a_peer_without_files_trains_a_model_from_a_file() {
    let _turn = beside();
    let folder = Folder::new("graph");
    let (data, joined) = trained_by_two(&folder, "mlp", &["batch=16"], 10);
    let scores = scores(&joined);
    // The file has no output of logits, from which accuracy follows.
    assert!(
        scores["loss"].is_number() && scores["metrics"]["accuracy"].is_null(),
        "{scores}"
    );

    // The export has PyTorch's names and shapes, and goes back beside the model.
    let weights = data.join("weights.safetensors");
    export(&joined, &weights);
    let file = std::fs::read(&weights).expect("an export");
    let tensors = SafeTensors::deserialize(&file).expect("safetensors");
    let reference = fixture("mlp.safetensors");
    let reference = SafeTensors::deserialize(&reference).expect("safetensors");
    let params = reference
        .iter()
        .filter_map(|(name, view)| Some((name.strip_prefix("param.")?.to_owned(), view.shape().to_vec())));
    let params: Vec<(String, Vec<usize>)> = params.collect();
    assert_eq!(tensors.len(), params.len());
    for (name, shape) in params {
        assert_eq!(
            tensors.tensor(&name).expect("a parameter").shape(),
            shape,
            "{name}"
        );
    }

    // The trained model's loss is smaller than that of the fresh model.
    let trained = loss_in(&gradient(&folder, &data, "8"));
    std::fs::remove_file(&weights).expect("there");
    let fresh = loss_in(&gradient(&folder, &data, "8"));
    assert!(trained < fresh, "{trained}, before training {fresh}");
}

#[test]
fn members_share_the_running_statistics_of_batch_norm() {
    let _turn = beside();
    let folder = Folder::new("batch-norm");
    let (data, joined) = trained_by_two(
        &folder,
        "tabular",
        &["batch=24", "held_out=0.5", "held_out_by=last"],
        100,
    );

    // The export has the buffers under PyTorch's names, and they have moved.
    let weights = data.join("weights.safetensors");
    export(&joined, &weights);
    let file = std::fs::read(&weights).expect("an export");
    let trained = SafeTensors::deserialize(&file).expect("safetensors");
    let reference = fixture("tabular.safetensors");
    let reference = SafeTensors::deserialize(&reference).expect("safetensors");
    for (name, view) in reference.iter() {
        if let Some(name) = name.strip_prefix("buffer.") {
            let own = trained.tensor(name).expect("a buffer");
            assert_eq!(own.shape(), view.shape(), "{name}");
            let first = f32::from_le_bytes(own.data()[..4].try_into().expect("a float"));
            assert!(first != 0.0 && first != 1.0, "{name} is still {first}");
        }
    }

    // They load back beside the model: outside of training the loss is that of the run's own evaluation, whose samples are
    // these six again and again.
    let expected = scores(&joined)["loss"].as_f64().expect("a number");
    let assert_evaluated = |what: &str| {
        let loss = f64::from(loss_in(&gradient(&folder, &data, "6")));
        let off = (loss - expected).abs() / expected.abs();
        assert!(off < 1e-4, "{what}: {loss}, not {expected}");
    };
    assert_evaluated("weights beside the model");

    // The model's own file takes them up, so that it needs no other.
    std::fs::remove_file(&weights).expect("there");
    let model = data.join("model.onnx");
    export(&joined, &model);
    assert_evaluated("weights in the model");
    let digits = folder.join("digits");
    let args = ["train", "--device", "cpu", "rounds=3", "train=500", "test=100"];
    let done = run(&[&args[..], &["--listen", "127.0.0.1:0", "--out", &digits]].concat());
    assert!(done.status.success(), "{done:?}");
    let refused = refusal(&["export", &digits, &folder.join("digits.onnx")]);
    assert!(refused.contains("came as no ONNX file"), "{refused}");
}

#[test]
fn the_gradient_of_a_file_is_pytorchs() {
    let _turn = beside();
    let folder = Folder::new("gradient");
    let data = exported(&folder.0, "cnn", 1);
    let reference = fixture("cnn.safetensors");
    let reference = SafeTensors::deserialize(&reference).expect("safetensors");
    let samples = reference.tensor("input.x").expect("x").shape()[0].to_string();
    let file = gradient(&folder, &data, &samples);
    let tensors = SafeTensors::deserialize(&file).expect("safetensors");
    let floats = |bytes: &[u8]| {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect::<Vec<_>>()
    };
    let (mut off, mut whole) = (0.0, 0.0);
    for (name, expected) in reference.iter() {
        let Some(name) = name.strip_prefix("grad.") else {
            continue;
        };
        let found = tensors.tensor(name).expect("a gradient");
        assert_eq!(found.shape(), expected.shape(), "{name}");
        for (a, b) in floats(found.data()).iter().zip(floats(expected.data())) {
            off += f64::from(a - b).powi(2);
            whole += f64::from(b).powi(2);
        }
    }
    assert!((off / whole).sqrt() < 2e-6, "off by {:e}", (off / whole).sqrt());
    let (empty, out) = (folder.join("empty"), folder.join("none.safetensors"));
    std::fs::create_dir_all(&empty).expect("a folder");
    let refused = run(&["gradient", &empty, "--out", &out]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("no model.onnx"),
        "{said}"
    );
}
