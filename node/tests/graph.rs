//! A model that comes as a file is trained by peers of which one has the file: real processes, each as if on a machine of
//! its own.

mod common;

use common::*;
use safetensors::tensor::{SafeTensors, TensorView};
use std::path::{Path, PathBuf};

/// A file of the models that PyTorch's package has exported.
fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../graph/tests/fixtures");
    std::fs::read(folder.join(name)).expect("a fixture")
}

/// An exported folder: a model, and its few samples many times over.
fn exported(folder: &Path, name: &str, times: usize) -> PathBuf {
    let path = folder.join("exported");
    std::fs::create_dir_all(&path).expect("a folder");
    std::fs::write(path.join("model.onnx"), fixture(&format!("{name}.annulus.onnx"))).expect("writable");
    let reference = fixture(&format!("{name}.safetensors"));
    let tensors = SafeTensors::deserialize(&reference).expect("safetensors");
    let inputs = tensors.iter().filter_map(|(name, view)| {
        let mut shape = view.shape().to_vec();
        shape[0] *= times;
        Some((
            name.strip_prefix("input.")?,
            view.dtype(),
            shape,
            view.data().repeat(times),
        ))
    });
    let inputs: Vec<_> = inputs.collect();
    let views = inputs.iter().map(|(name, dtype, shape, bytes)| {
        (
            *name,
            TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"),
        )
    });
    let samples = safetensors::serialize(views, None).expect("safetensors");
    std::fs::write(path.join("samples.safetensors"), samples).expect("writable");
    path
}

#[test]
fn a_peer_without_files_trains_a_model_from_a_file() {
    let _alone = alone();
    let folder = Folder::new("graph");
    let data = exported(&folder.0, "mlp", 20).display().to_string();
    let [first, second] = ["first", "second"].map(|name| {
        let home = folder.0.join(format!("{name}-home"));
        std::fs::create_dir_all(&home).expect("a folder");
        home
    });
    let args = ["train", "--device", "cpu", "--task", "graph", "--data", &data];
    let settings = ["batch=16", "rounds=1000000", "lr=1e-2"];
    let args = [&args[..], &settings].concat();
    let mut founder = Node::start_in("founder", folder.join("founder"), &first, &args);
    let ticket = founder.ticket();
    founder.rounds(3);
    let args = ["join", &ticket, "--device", "cpu"];
    let mut joined = Node::start_in("joined", folder.join("joined"), &second, &args);
    joined.members(2);
    joined.rounds(10);
    assert!(joined.leave(), "{}", joined.errors());
    assert!(founder.leave(), "{}", founder.errors());
    assert!(assert_equal(&[&founder, &joined]) >= 10);
    assert_audited(&founder);
    let replay = run(&["replay", &joined.dir]);
    assert!(replay.status.success(), "{replay:?}");
    let eval = run(&["eval", &joined.dir, "--device", "cpu", "--json"]);
    assert!(eval.status.success(), "{eval:?}");
    let scores: serde_json::Value = serde_json::from_slice(&eval.stdout).expect("JSON");
    // The file has no output of logits, from which accuracy follows.
    assert!(
        scores["loss"].is_number() && scores["metrics"]["accuracy"].is_null(),
        "{scores}"
    );

    // The export has PyTorch's names and shapes, and goes back beside the model.
    let weights = PathBuf::from(&data).join("weights.safetensors");
    let export = run(&["export", &joined.dir, &weights.display().to_string()]);
    assert!(export.status.success(), "{export:?}");
    let file = std::fs::read(&weights).expect("an export");
    let trained = SafeTensors::deserialize(&file).expect("safetensors");
    let reference = fixture("mlp.safetensors");
    let reference = SafeTensors::deserialize(&reference).expect("safetensors");
    let params = reference
        .iter()
        .filter_map(|(name, view)| Some((name.strip_prefix("param.")?.to_owned(), view.shape().to_vec())));
    let params: Vec<(String, Vec<usize>)> = params.collect();
    assert_eq!(trained.len(), params.len());
    for (name, shape) in params {
        assert_eq!(
            trained.tensor(&name).expect("a parameter").shape(),
            shape,
            "{name}"
        );
    }

    // A gradient of the trained model is smaller than one of the fresh model.
    let loss = |weights: bool| {
        if !weights {
            std::fs::remove_file(PathBuf::from(&data).join("weights.safetensors")).expect("there");
        }
        let out = folder.join("gradient.safetensors");
        let done = run(&[
            "gradient",
            &data,
            "--samples",
            "8",
            "--out",
            &out,
            "--device",
            "cpu",
        ]);
        assert!(done.status.success(), "{done:?}");
        let file = std::fs::read(&out).expect("a gradient");
        let tensors = SafeTensors::deserialize(&file).expect("safetensors");
        let loss = tensors.tensor("loss").expect("the loss").data().to_vec();
        let expected = reference
            .iter()
            .filter(|(name, _)| name.starts_with("grad."))
            .count();
        assert!(tensors.len() > expected, "{:?}", tensors.names());
        f32::from_le_bytes(loss.try_into().expect("one float"))
    };
    let (trained, fresh) = (loss(true), loss(false));
    assert!(trained < fresh, "{trained}, before training {fresh}");
}

#[test]
fn members_share_the_running_statistics_of_batch_norm() {
    let _alone = alone();
    let folder = Folder::new("batch-norm");
    let data = exported(&folder.0, "tabular", 20).display().to_string();
    let homes = ["first", "second"].map(|name| {
        let home = folder.0.join(format!("{name}-home"));
        std::fs::create_dir_all(&home).expect("a folder");
        home
    });
    let args = ["train", "--device", "cpu", "--task", "graph", "--data", &data];
    let settings = ["batch=24", "rounds=1000000", "lr=1e-2", "held_out=0.5"];
    let args = [&args[..], &settings].concat();
    let mut founder = Node::start_in("founder", folder.join("founder"), &homes[0], &args);
    let ticket = founder.ticket();
    let args = ["join", &ticket, "--device", "cpu"];
    let mut joined = Node::start_in("joined", folder.join("joined"), &homes[1], &args);
    joined.members(2);
    joined.rounds(100);
    assert!(joined.leave(), "{}", joined.errors());
    assert!(founder.leave(), "{}", founder.errors());
    assert!(assert_equal(&[&founder, &joined]) >= 10);
    assert_audited(&founder);
    let replay = run(&["replay", &joined.dir]);
    assert!(replay.status.success(), "{replay:?}");

    // The export has the buffers under PyTorch's names, and they have moved.
    let weights = PathBuf::from(&data).join("weights.safetensors");
    let export = run(&["export", &joined.dir, &weights.display().to_string()]);
    assert!(export.status.success(), "{export:?}");
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
    let eval = run(&["eval", &joined.dir, "--device", "cpu", "--json"]);
    assert!(eval.status.success(), "{eval:?}");
    let scores: serde_json::Value = serde_json::from_slice(&eval.stdout).expect("JSON");
    let expected = scores["loss"].as_f64().expect("a number");
    let out = folder.join("gradient.safetensors");
    let args = [
        "gradient",
        &data,
        "--samples",
        "6",
        "--out",
        &out,
        "--device",
        "cpu",
    ];
    let done = run(&args);
    assert!(done.status.success(), "{done:?}");
    let file = std::fs::read(&out).expect("a gradient");
    let tensors = SafeTensors::deserialize(&file).expect("safetensors");
    let loss = tensors.tensor("loss").expect("the loss").data().to_vec();
    let loss = f64::from(f32::from_le_bytes(loss.try_into().expect("one float")));
    assert!(
        (loss - expected).abs() < 1e-4 * expected.abs(),
        "{loss}, not {expected}"
    );
}

#[test]
fn the_gradient_of_a_file_is_pytorchs() {
    let folder = Folder::new("gradient");
    let data = exported(&folder.0, "cnn", 1).display().to_string();
    let reference = fixture("cnn.safetensors");
    let reference = SafeTensors::deserialize(&reference).expect("safetensors");
    let out = folder.join("gradient.safetensors");
    let samples = reference.tensor("input.x").expect("x").shape()[0].to_string();
    let done = run(&[
        "gradient",
        &data,
        "--samples",
        &samples,
        "--out",
        &out,
        "--device",
        "cpu",
    ]);
    assert!(done.status.success(), "{done:?}");
    let file = std::fs::read(&out).expect("a gradient");
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
    let empty = folder.join("empty");
    std::fs::create_dir_all(&empty).expect("a folder");
    let refused = run(&["gradient", &empty, "--out", &out]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("no model.onnx"),
        "{said}"
    );
}
