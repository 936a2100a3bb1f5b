//! An external worker beside a process that computes a model whose sums are known: sample s pulls each parameter towards s.

use super::*;
use annulus_core::TensorSpec;
use burn::tensor::read_sync;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The requests to the other process, in order.
type Told = Vec<Value>;

/// Two tensors with a gap between their names and places.
fn layout(rule: TensorRule) -> Layout {
    let spec = |name: &str, shape: &[usize], offset, rule| TensorSpec {
        name: name.into(),
        shape: shape.into(),
        offset,
        rule,
    };
    Layout {
        len: 5,
        tensors: vec![
            spec("weight", &[2, 2], 0, TensorRule::StepAndDecay),
            spec("bias", &[1], 4, rule),
        ],
    }
}

/// Computes at the other end of a socket: the loss of sample s is the sum of (p - s)^2 / 2. `change` may change an answer to
/// `take`, or end the process instead.
fn compute(
    socket: UnixStream,
    mut change: impl FnMut(Value) -> Option<String> + Send + 'static,
) -> JoinHandle<Told> {
    thread::spawn(move || {
        let mut told = Vec::new();
        let mut answers = socket.try_clone().unwrap();
        let mut vector = None;
        let (mut params, mut sum, mut loss, mut samples) = ([7.0; 5], [0.0; 5], 0.0, 0);
        for line in BufReader::new(socket).lines() {
            let Ok(line) = line else { break };
            let request: Value = serde_json::from_str(&line).unwrap();
            told.push(request.clone());
            let mut answer = |answer: String| answers.write_all(format!("{answer}\n").as_bytes()).unwrap();
            if let Some(begin) = request.get("begin") {
                let path = begin["file"].as_str().unwrap();
                let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                let found = file.metadata().unwrap();
                assert_eq!((found.len(), found.permissions().mode() & 0o777), (20, 0o600));
                vector = Some(file);
                answer(json!({"device": "abacus"}).to_string());
            } else if let Some(fresh) = request.get("load") {
                if fresh == true {
                    let bytes = bytemuck::cast_slice_mut(&mut params);
                    vector.as_ref().unwrap().read_exact_at(bytes, 0).unwrap();
                }
                (sum, loss, samples) = ([0.0; 5], 0.0, 0);
            } else if let Some(numbers) = request.get("accumulate") {
                for number in numbers.as_array().unwrap() {
                    let target = number.as_u64().unwrap() as f32;
                    for (sum, param) in sum.iter_mut().zip(params) {
                        *sum += param - target;
                        loss += (param - target).powi(2) / 2.0;
                    }
                    samples += 1;
                }
            } else if request == "take" {
                vector
                    .as_ref()
                    .unwrap()
                    .write_all_at(bytemuck::cast_slice(&sum), 0)
                    .unwrap();
                let made = json!({"sum": {"loss": loss, "samples": samples}});
                (sum, loss, samples) = ([0.0; 5], 0.0, 0);
                match change(made) {
                    Some(text) => answer(text),
                    None => break,
                }
            }
        }
        told
    })
}

/// A worker that begins on a line.
fn begin(line: Arc<Line>, layout: Layout) -> Result<External, WorkerError> {
    let folder = tempfile::tempdir().unwrap();
    let facts = Facts {
        samples: 9,
        rows: Arc::new(|sample| sample),
        data: Some(Path::new("data")),
    };
    External::new((layout, Box::new(|| vec![0.5; 5])), facts, line, folder.path())
}

/// A line to `child`, and news of its end.
fn line(child: UnixStream, own: UnixStream) -> (Arc<Line>, mpsc::Receiver<()>) {
    let (ended, end) = mpsc::channel();
    // A test may not wait for the end.
    let line = Line::new(own, move || ended.send(()).unwrap_or_default()).unwrap();
    // Only the process at the other end may keep it open.
    drop(child);
    (Arc::new(line), end)
}

/// A worker, and the process that computes for it.
fn pair(
    change: impl FnMut(Value) -> Option<String> + Send + 'static,
) -> (External, JoinHandle<Told>, mpsc::Receiver<()>) {
    let (own, child) = UnixStream::pair().unwrap();
    let there = compute(child.try_clone().unwrap(), change);
    let (line, end) = line(child, own);
    (begin(line, layout(TensorRule::Step)).unwrap(), there, end)
}

fn honest(answer: Value) -> Option<String> {
    Some(answer.to_string())
}

#[test]
fn the_other_process_sums_what_it_is_asked_for() {
    let (mut worker, there, _end) = pair(honest);
    assert_eq!((worker.device_name(), worker.deterministic()), ("abacus", false));
    let params = vec![1.0, 2.0, 3.0, 4.0, 5.0];
    let address = params.as_ptr();
    let made = worker.contribute(params, &[1, 4]).unwrap();
    assert_eq!(made.gradient, [-3.0, -1.0, 1.0, 3.0, 5.0]);
    assert_eq!((made.loss_sum, made.samples), (22.5, 2));
    assert_eq!(made.gradient.as_ptr(), address);

    // Sums over several calls, from the same parameters, and none.
    worker.accumulate(&[1]).unwrap();
    // The sample 4 in the second epoch of nine.
    worker.accumulate(&[4 + 9]).unwrap();
    let again = read_sync(worker.take()).unwrap();
    assert_eq!((&again.gradient, again.loss_sum), (&made.gradient, made.loss_sum));
    let nothing = worker.contribute(vec![1.0; 5], &[]).unwrap();
    assert_eq!(
        (nothing.gradient, nothing.loss_sum, nothing.samples),
        (vec![0.0; 5], 0.0, 0)
    );

    // Zeros try the device out: it keeps the parameters that it has.
    let trial = worker.contribute(vec![0.0; 5], &[0]).unwrap();
    assert_eq!(trial.gradient, [1.0; 5]);
    assert!(worker.load(vec![0.0; 4]).is_err());
    drop(worker);

    let told = there.join().unwrap();
    let begin = &told[0]["begin"];
    assert_eq!(
        (&begin["elements"], &begin["samples"], &begin["data"]),
        (&json!(5), &json!(9), &json!("data"))
    );
    assert_eq!(
        begin["tensors"][1],
        json!({"name": "bias", "shape": [1], "offset": 4})
    );
    // Nobody finds the vector any more.
    assert!(!Path::new(begin["file"].as_str().unwrap()).exists());
    let expected = [
        json!({"prefetch": [1, 4]}),
        json!({"load": true}),
        json!({"accumulate": [1, 4]}),
        json!("take"),
    ];
    assert_eq!(told[1..5], expected);
}

#[test]
fn the_other_process_is_asked_for_rows_of_its_data_set() {
    let (own, child) = UnixStream::pair().unwrap();
    let there = compute(child.try_clone().unwrap(), honest);
    let (line, _end) = line(child, own);
    let facts = Facts {
        samples: 3,
        rows: Arc::new(|sample| [0, 2, 7][sample as usize]),
        data: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let init = Box::new(|| vec![0.5; 5]);
    let mut worker = External::new((layout(TensorRule::Step), init), facts, line, folder.path()).unwrap();
    worker.contribute(vec![0.0; 5], &[1, 2, 3]).unwrap();
    drop(worker);
    let told = there.join().unwrap();
    assert_eq!(told[0]["begin"]["samples"], 8);
    assert!(told.contains(&json!({"accumulate": [2, 7, 0]})), "{told:?}");
}

#[test]
fn a_sum_may_have_fewer_samples_and_no_more() {
    let (mut worker, _there, _end) = pair(|_| Some(json!({"sum": {"loss": 1.5, "samples": 1}}).to_string()));
    let made = worker.contribute(vec![1.0; 5], &[2, 3, 4]).unwrap();
    assert_eq!((made.loss_sum, made.samples), (1.5, 1));
    // Of no sample nothing counts, whatever the file holds.
    let (mut worker, _there, _end) = pair(|_| Some(json!({"sum": {"loss": 1.5, "samples": 0}}).to_string()));
    let made = worker.contribute(vec![1.0; 5], &[2, 3, 4]).unwrap();
    assert_eq!(
        (made.gradient, made.loss_sum, made.samples),
        (vec![0.0; 5], 0.0, 0)
    );
    let (mut worker, _there, _end) = pair(|_| Some(json!({"sum": {"loss": 1.5, "samples": 4}}).to_string()));
    assert!(worker.contribute(vec![1.0; 5], &[2, 3, 4]).is_err());
}

#[test]
fn sums_that_are_not_finite_are_told_apart_from_failures() {
    let lost = json!({"sum": {"loss": null, "samples": 1}}).to_string();
    let (mut worker, _there, _end) = pair(move |_| Some(lost.clone()));
    assert_eq!(
        worker.contribute(vec![1.0; 5], &[2]),
        Err(WorkerError::LossNotFinite)
    );
    let (mut worker, _there, _end) = pair(|_| Some(json!({"sum": {"loss": 1.0, "samples": 1}}).to_string()));
    let mut params = vec![1.0; 5];
    params[4] = f32::INFINITY;
    let tensor = "bias".to_owned();
    assert_eq!(
        worker.contribute(params, &[2]),
        Err(WorkerError::GradientNotFinite { tensor })
    );
}

#[test]
fn what_the_other_process_says_of_an_error_is_told() {
    for (says, told) in [
        (
            json!({"error": "out of memory"}).to_string(),
            "says: out of memory",
        ),
        ("what?".to_owned(), "which is no answer"),
        (json!({"device": "x"}).to_string(), "answers something else"),
        // Longer than any answer.
        ("x".repeat(LONGEST_ANSWER as usize), "has ended"),
    ] {
        let (mut worker, _there, _end) = pair(move |_| Some(says.clone()));
        let why = worker.contribute(vec![1.0; 5], &[2]).unwrap_err().to_string();
        assert!(why.contains(told), "{why}");
    }
}

#[test]
fn the_end_of_the_other_process_is_noticed_at_work_and_at_rest() {
    let (mut worker, there, end) = pair(|_| None);
    let why = worker.contribute(vec![1.0; 5], &[2]).unwrap_err().to_string();
    assert!(why.contains("has ended: start it again"), "{why}");
    there.join().unwrap();
    end.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(worker.contribute(vec![1.0; 5], &[2]).is_err());

    let (own, child) = UnixStream::pair().unwrap();
    let mut held = child.try_clone().unwrap();
    held.write_all(b"{\"device\": \"x\"}\n").unwrap();
    let (line, end) = line(child, own);
    let _worker = begin(line, layout(TensorRule::Step)).unwrap();
    assert!(end.try_recv().is_err());
    drop(held);
    end.recv_timeout(Duration::from_secs(20)).unwrap();
}

#[test]
fn the_other_process_is_told_which_tensors_follow_the_batches() {
    let (own, child) = UnixStream::pair().unwrap();
    let there = compute(child.try_clone().unwrap(), honest);
    let (line, _end) = line(child, own);
    drop(begin(line, layout(TensorRule::Mean { rate: 0.25 })).unwrap());
    let told = there.join().unwrap();
    let tensors = &told[0]["begin"]["tensors"];
    assert_eq!(
        (tensors[0].get("follows"), tensors[1].get("follows")),
        (None, Some(&json!(0.25)))
    );
}

#[test]
fn after_a_pause_the_same_process_goes_on() {
    let (own, child) = UnixStream::pair().unwrap();
    let there = compute(child.try_clone().unwrap(), honest);
    let (line, _end) = line(child, own);
    for _ in 0..2 {
        let mut worker = begin(line.clone(), layout(TensorRule::Step)).unwrap();
        let made = worker.contribute(vec![1.0; 5], &[3]).unwrap();
        assert_eq!(made.gradient, [-2.0; 5]);
    }
    drop(line);
    assert_eq!(there.join().unwrap().len(), 2 * 5);
}

#[test]
fn a_vector_of_several_parts_is_copied_whole() {
    let file = tempfile::tempfile().unwrap();
    let values: Vec<f32> = (0..2 * SMALLEST_PART + 7).map(|value| value as f32).collect();
    write(&file, &values).unwrap();
    let mut back = vec![0.0; values.len()];
    let largest = read(&file, &mut back).unwrap();
    assert!(back == values);
    assert_eq!(f32::from_bits(largest), values[values.len() - 1]);
    // In the last part, and of the other sign.
    for wrong in [f32::NEG_INFINITY, -f32::NAN] {
        file.write_all_at(&wrong.to_le_bytes(), 4 * (values.len() - 3) as u64)
            .unwrap();
        assert!(read(&file, &mut back).unwrap() >= INFINITE);
    }
    assert!(read(&file, &mut vec![0.0; values.len() + 1]).is_err());
}

/// The parameters of GPT-2 small, by PyTorch. Run it alone, with `--ignored --nocapture time_of_a_contribution`, and with
/// `ANNULUS_PYTHON` naming an interpreter that has torch.
#[test]
#[ignore = "a measurement"]
fn time_of_a_contribution() {
    let (width, layers) = (768, 12);
    let mut shapes = vec![vec![50_257, width], vec![1024, width]];
    for _ in 0..layers {
        shapes.extend([vec![width], vec![width], vec![3 * width, width], vec![3 * width]]);
        shapes.extend([vec![width, width], vec![width], vec![width], vec![width]]);
        shapes.extend([
            vec![4 * width, width],
            vec![4 * width],
            vec![width, 4 * width],
            vec![width],
        ]);
    }
    shapes.extend([vec![width], vec![width]]);
    let mut len = 0;
    let tensors = shapes.iter().enumerate().map(|(number, shape)| {
        let offset = len;
        len += shape.iter().product::<usize>();
        TensorSpec {
            name: number.to_string(),
            shape: shape.clone(),
            offset,
            rule: TensorRule::Step,
        }
    });
    let tensors = tensors.collect();
    let (own, child) = UnixStream::pair().unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let python = std::env::var_os("ANNULUS_PYTHON").unwrap_or("python3".into());
    let mut process = std::process::Command::new(python)
        .arg(package.join("tests/contributing.py"))
        .arg(serde_json::to_string(&shapes).unwrap())
        .env("PYTHONPATH", &package)
        .stdin(std::os::fd::OwnedFd::from(child))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = Line::new(own, || {}).unwrap();
    let facts = Facts {
        samples: 9,
        rows: Arc::new(|sample| sample),
        data: None,
    };
    let model = (Layout { len, tensors }, Box::new(Vec::new) as _);
    let folder = tempfile::tempdir().unwrap();
    let mut worker = External::new(model, facts, Arc::new(line), folder.path()).unwrap();
    let mut params = vec![0.5; len];
    let mut beside = Vec::new();
    for turn in 0..24 {
        let before = std::time::Instant::now();
        let made = worker.contribute(params, &[1, 2]).unwrap();
        let all = before.elapsed().as_secs_f64();
        // The loss is half the sum of squares.
        assert!(made.gradient[0] == 1.0 && made.gradient[len - 1] == 1.0);
        params = made.gradient;
        params.fill(0.5);
        let [own, load, hand_in]: [f64; 3] = serde_json::from_str(&told.next().unwrap().unwrap()).unwrap();
        if turn >= 4 {
            beside.push([all - own, load, hand_in, all - own - load - hand_in]);
        }
    }
    drop(worker);
    process.wait().unwrap();
    let names = [
        "beside its own work",
        "PyTorch loads",
        "PyTorch hands in",
        "this process",
    ];
    for (part, name) in names.iter().enumerate() {
        let mut seconds: Vec<f64> = beside.iter().map(|one| one[part]).collect();
        seconds.sort_by(f64::total_cmp);
        println!(
            "{name}: median {:.0} ms, least {:.0}, most {:.0}",
            seconds[10] * 1e3,
            seconds[0] * 1e3,
            seconds[19] * 1e3
        );
    }
}
