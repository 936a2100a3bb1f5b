//! The processor at work on a thread of its own: a second worker inside of the tab's worker, with the same program.
//!
//! Burn's CPU backend holds its thread, for seconds if the model is large. Members of the ring ask each other whether they are
//! there, so another thread must answer. `page/worker.js` makes an [`InnerWorker`] in the inner worker, and the outer one sees it
//! through an [`InnerWorkerHandle`]. It must know nothing of the ring.

use crate::device::Gpu;
use crate::js::{bytes, field, object, words};
use crate::run_task::{factories, find, load, load_inner, trainer_options};
use annulus::data::{Data, DataError};
use annulus::device::OpenDevice;
use annulus::task_factory::TaskFactory;
use annulus::trainer::span::{SplitModel, is_of};
use annulus::trainer::{Contribution, Contributor, Share, Worker, WorkerError};
use annulus_core::Manifest;
use annulus_core::interface::{Pass, SpanDone, SpanWork};
use annulus_core::local::LocalRound;
use annulus_core::split::Split;
use bytes::Bytes;
use js_sys::{Array, BigUint64Array, Float32Array, Promise, Uint8Array};
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

const OTHER_MODEL: &str =
    "this page builds another model than the run's: page and run are of different releases";

/// The inner worker's side.
#[wasm_bindgen]
pub struct InnerWorker(Engine);

/// What computes.
enum Engine {
    /// A whole model.
    Whole(Box<dyn Worker>, Contributor),
    /// Spans of one that is split over the members.
    Spans(Box<SplitModel>),
}

#[wasm_bindgen]
impl InnerWorker {
    /// For the run of this encoded manifest, with its data as `{folder, files: [{name, bytes}]}`, or null if the task
    /// makes it itself, or if it is not needed. Where the model is split, these are the files that inner steps need.
    ///
    /// # Errors
    ///
    /// If its model cannot be made here, or is another one here.
    #[wasm_bindgen(constructor)]
    pub fn new(manifest: &[u8], data: JsValue) -> Result<InnerWorker, JsValue> {
        let manifest = Manifest::decode(manifest).map_err(|error| JsValue::from(error.to_string()))?;
        let factories = factories();
        let factory = find(&factories, &manifest).map_err(|failure| JsValue::from(failure.message))?;
        if let Some(split) = &manifest.split {
            let data = unpacked(&data);
            return Ok(Self(Engine::Spans(spans(
                factory,
                &manifest,
                split,
                data.as_ref(),
            )?)));
        }
        let loaded = load(factory, &manifest, unpacked(&data).as_ref());
        let loaded = loaded.map_err(|failure| JsValue::from(failure.message))?;
        let worker = loaded.worker_factory(OpenDevice::cpu(), trainer_options(&manifest))();
        let worker = worker.map_err(|error| JsValue::from(error.to_string()))?;
        if *worker.layout() != manifest.layout {
            return Err(OTHER_MODEL.into());
        }
        Ok(Self(Engine::Whole(worker, Contributor::new(&manifest))))
    }

    /// What comes of a share: `{gradient, loss, samples}`, or `{refused}` if it is not finite, with the tensor's name, or
    /// null for the loss itself. `local` says how to step, if not only gradients are to be summed.
    ///
    /// # Errors
    ///
    /// Any other refusal of a worker.
    pub async fn contribute(
        &mut self,
        params: Float32Array,
        samples: Vec<u64>,
        local: Option<Vec<u8>>,
    ) -> Result<JsValue, JsValue> {
        let local = local.map(|bytes| LocalRound::decode(&bytes)).transpose();
        let share = Share {
            samples,
            // A tab has all data in memory.
            ahead: Vec::new(),
            params: params.to_vec(),
            local: local.map_err(|error| JsValue::from(error.to_string()))?,
        };
        let Engine::Whole(worker, contributor) = &mut self.0 else {
            return Err("the model is split".into());
        };
        let made = contributor.contribute(&mut **worker, share).await;
        told(made.map(|made| {
            object(&[
                ("gradient", Float32Array::from(made.gradient.as_slice()).into()),
                ("loss", made.loss_sum.into()),
                ("samples", made.samples.into()),
            ])
        }))
    }

    /// Computes a pass through a span. `work` is `{span, back, weights, input, gradient, sum, samples}`, without weights if they have
    /// not changed, and without samples if it only brings weights. Returns `{output, sum, loss}`, or `{refused}` as above.
    ///
    /// # Errors
    ///
    /// Any other refusal of a device.
    pub async fn pass(&mut self, work: JsValue) -> Result<JsValue, JsValue> {
        let numbers = |name| {
            field(&work, name)
                .dyn_into()
                .map(|all: Float32Array| all.to_vec())
        };
        let samples = BigUint64Array::new(&field(&work, "samples")).to_vec();
        let number = |name| field(&work, name).as_f64().unwrap_or_default();
        let work = SpanWork {
            round: number("round") as u64,
            span: number("span") as usize,
            steps: number("begin") as usize..number("end") as usize,
            pass: Pass {
                back: field(&work, "back").is_truthy(),
                positions: Vec::new(),
                weights: numbers("weights").ok(),
                input: numbers("input").unwrap_or_default(),
                gradient: numbers("gradient").unwrap_or_default(),
                sum: numbers("sum").unwrap_or_default(),
            },
        };
        let done = self.spans()?.pass(work, &samples).await;
        told(done.map(|done| {
            object(&[
                ("output", Float32Array::from(done.output.as_slice()).into()),
                ("sum", Float32Array::from(done.sum.as_slice()).into()),
                ("loss", done.loss.into()),
            ])
        }))
    }

    /// As [`SplitModel::try_out`].
    ///
    /// # Errors
    ///
    /// As there.
    #[wasm_bindgen(js_name = tryOut)]
    pub async fn try_out(&mut self) -> Result<f64, JsValue> {
        let tried = self.spans()?.try_out().await;
        tried.map_err(|error| error.to_string().into())
    }

    fn spans(&mut self) -> Result<&mut SplitModel, JsValue> {
        match &mut self.0 {
            Engine::Spans(spans) => Ok(spans),
            Engine::Whole(..) => Err("the model is not split".into()),
        }
    }
}

/// What computes spans of a run's model.
fn spans(
    factory: &TaskFactory,
    manifest: &Manifest,
    split: &Split,
    data: Option<&Data>,
) -> Result<Box<SplitModel>, String> {
    let loaded = load_inner(factory, manifest, data).map_err(|error| error.to_string())?;
    let model = loaded.model_steps(manifest.seed);
    let model = model.map_err(|error| error.to_string())?;
    if model.layout != manifest.layout || !is_of(split, &model) {
        return Err(OTHER_MODEL.to_owned());
    }
    let (model, make, seed) = (Arc::new(model), loaded.span_factory(), manifest.seed);
    let of = model.clone();
    let make = move |steps| make(&OpenDevice::cpu(), of.clone(), steps, seed);
    Ok(Box::new(SplitModel::new(model, split.clone(), Box::new(make))))
}

/// The result, or the part of it that is not finite.
fn told(made: Result<JsValue, WorkerError>) -> Result<JsValue, JsValue> {
    match made {
        Ok(made) => Ok(made),
        Err(WorkerError::LossNotFinite) => Ok(object(&[("refused", JsValue::NULL)])),
        Err(WorkerError::GradientNotFinite { tensor }) => Ok(object(&[("refused", tensor.into())])),
        Err(error) => Err(error.to_string().into()),
    }
}

/// Data on its way to the inner worker, whose memory is another.
fn packed(data: &Data) -> Result<JsValue, DataError> {
    let files = Array::new();
    for file in data.files_used() {
        let contents = file.contents()?;
        let all = contents.part(0..contents.len())?;
        files.push(&object(&[
            ("name", file.name().into()),
            ("bytes", bytes(&all).into()),
        ]));
    }
    Ok(object(&[
        ("folder", data.is_folder().into()),
        ("files", files.into()),
    ]))
}

fn unpacked(data: &JsValue) -> Option<Data> {
    let files: Array = field(data, "files").dyn_into().ok()?;
    let mut files: Vec<(String, Bytes)> = files
        .iter()
        .map(|file| {
            let bytes = Uint8Array::new(&field(&file, "bytes")).to_vec();
            (field(&file, "name").as_string().unwrap_or_default(), bytes.into())
        })
        .collect();
    if field(data, "folder").is_truthy() {
        return Some(Data::folder_in_memory(files));
    }
    files
        .pop()
        .map(|(name, bytes)| Data::file_in_memory(&name, bytes))
}

#[wasm_bindgen]
extern "C" {
    /// The inner worker, as `page/worker.js` hands it out.
    type JsInnerWorker;
    #[wasm_bindgen(method, catch)]
    async fn contribute(
        this: &JsInnerWorker,
        params: Float32Array,
        samples: BigUint64Array,
        local: Option<Uint8Array>,
    ) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn pass(this: &JsInnerWorker, work: &JsValue) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch, js_name = tryOut)]
    async fn try_out(this: &JsInnerWorker) -> Result<JsValue, JsValue>;
}

/// The outer worker's side.
pub struct InnerWorkerHandle(JsInnerWorker);

impl InnerWorkerHandle {
    /// Starts it for a run.
    ///
    /// # Errors
    ///
    /// If the browser has no workers inside of workers, or as [`InnerWorker::new`].
    pub async fn start(gpu: &Gpu, manifest: &Manifest, data: Option<&Data>) -> Result<Self, String> {
        let data = data.map(packed).transpose().map_err(|error| error.to_string())?;
        let started: Promise = gpu.inner_worker(&manifest.encode(), data.unwrap_or(JsValue::NULL));
        let inner = JsFuture::from(started).await.map_err(|error| words(&error))?;
        Ok(Self(inner.unchecked_into()))
    }

    /// As [`Contributor::contribute`].
    ///
    /// # Errors
    ///
    /// As there; whatever is not about numbers is a failure of the device.
    pub async fn contribute(&self, share: Share) -> Result<Contribution, WorkerError> {
        let mut params = share.params;
        let made = self
            .0
            .contribute(
                Float32Array::from(params.as_slice()),
                BigUint64Array::from(&share.samples[..]),
                share.local.map(|round| Uint8Array::from(&round.encode()[..])),
            )
            .await;
        let made = heard(made)?;
        let gradient = numbers(&made, "gradient")?;
        if gradient.length() as usize != params.len() {
            return Err(WorkerError::WrongLength {
                expected: params.len(),
                found: gradient.length() as usize,
            });
        }
        gradient.copy_to(&mut params);
        Ok(Contribution {
            gradient: params,
            loss_sum: field(&made, "loss").as_f64().unwrap_or(f64::NAN) as f32,
            samples: field(&made, "samples").as_f64().unwrap_or_default() as u32,
        })
    }

    /// As [`SplitModel::pass`].
    ///
    /// # Errors
    ///
    /// As there; whatever is not about numbers is a failure of the device.
    pub async fn pass(&self, work: SpanWork, samples: &[u64]) -> Result<SpanDone, WorkerError> {
        let array = |values: &[f32]| JsValue::from(Float32Array::from(values));
        let pass = &work.pass;
        let work = object(&[
            ("round", (work.round as f64).into()),
            ("span", (work.span as u32).into()),
            ("begin", (work.steps.start as u32).into()),
            ("end", (work.steps.end as u32).into()),
            ("back", pass.back.into()),
            ("weights", pass.weights.as_deref().map_or(JsValue::NULL, array)),
            ("input", array(&pass.input)),
            ("gradient", array(&pass.gradient)),
            ("sum", array(&pass.sum)),
            ("samples", BigUint64Array::from(samples).into()),
        ]);
        let done = heard(self.0.pass(&work).await)?;
        Ok(SpanDone {
            output: numbers(&done, "output")?.to_vec(),
            sum: numbers(&done, "sum")?.to_vec(),
            loss: field(&done, "loss").as_f64().unwrap_or_default() as f32,
            ..SpanDone::default()
        })
    }

    /// As [`SplitModel::try_out`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn try_out(&self) -> Result<f64, WorkerError> {
        let share = heard(self.0.try_out().await)?;
        share.as_f64().ok_or_else(|| lost("it answers in other words"))
    }
}

/// The inner worker's answer, unless it is a refusal.
fn heard(answer: Result<JsValue, JsValue>) -> Result<JsValue, WorkerError> {
    let answer = answer.map_err(|error| lost(words(&error)))?;
    let refused = field(&answer, "refused");
    if refused.is_null() {
        return Err(WorkerError::LossNotFinite);
    }
    match refused.as_string() {
        Some(tensor) => Err(WorkerError::GradientNotFinite { tensor }),
        None => Ok(answer),
    }
}

fn numbers(answer: &JsValue, name: &str) -> Result<Float32Array, WorkerError> {
    let numbers = field(answer, name).dyn_into();
    numbers.map_err(|_| lost("it answers in other words"))
}

fn lost(reason: impl Into<String>) -> WorkerError {
    let reason = reason.into();
    WorkerError::Device { reason }
}
