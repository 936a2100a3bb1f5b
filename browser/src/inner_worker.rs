//! The processor at work on a thread of its own: a second worker inside of the tab's worker, with the same program.
//!
//! Burn's CPU backend holds its thread, for seconds if the model is large, and members of the ring ask each other whether
//! they are there: who computes must not be who answers. [`InnerWorker`] is what `page/worker.js` makes in the inner worker,
//! [`InnerWorkerHandle`] is how the outer one sees it. It must know nothing of the ring.

use crate::device::Gpu;
use crate::js::{bytes, field, object, words};
use crate::run_task::{factories, find, load, trainer_options};
use annulus::data::{Data, DataError};
use annulus::device::OpenDevice;
use annulus::trainer::{Contribution, Contributor, Share, Worker, WorkerError};
use annulus_core::Manifest;
use annulus_core::local::LocalRound;
use bytes::Bytes;
use js_sys::{Array, BigUint64Array, Float32Array, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

/// The inner worker's side.
#[wasm_bindgen]
pub struct InnerWorker(Box<dyn Worker>, Contributor);

#[wasm_bindgen]
impl InnerWorker {
    /// For the run of this encoded manifest, with its data as `{folder, files: [{name, bytes}]}`, or null if the task
    /// makes it itself.
    ///
    /// # Errors
    ///
    /// If its model cannot be made here, or is another one here.
    #[wasm_bindgen(constructor)]
    pub fn new(manifest: &[u8], data: JsValue) -> Result<InnerWorker, JsValue> {
        let manifest = Manifest::decode(manifest).map_err(|error| JsValue::from(error.to_string()))?;
        let factories = factories();
        let factory = find(&factories, &manifest).map_err(|failure| JsValue::from(failure.message))?;
        let loaded = load(factory, &manifest, unpacked(&data).as_ref());
        let loaded = loaded.map_err(|failure| JsValue::from(failure.message))?;
        let worker = loaded.worker_factory(OpenDevice::cpu(), trainer_options(&manifest))();
        let worker = worker.map_err(|error| JsValue::from(error.to_string()))?;
        if *worker.layout() != manifest.layout {
            return Err(
                "the model made here is not the run's: the page is of another release than the run".into(),
            );
        }
        Ok(Self(worker, Contributor::new(&manifest)))
    }

    /// What comes of a share: `{gradient, loss, samples}`, or `{refused}` if it is not finite, with the tensor's name, or
    /// null for the loss itself. `local` says how to step, if not only gradients are to be summed.
    ///
    /// # Errors
    ///
    /// Whatever else a worker refuses.
    pub async fn contribute(
        &mut self,
        params: Float32Array,
        samples: Vec<u64>,
        local: Option<Vec<u8>>,
    ) -> Result<JsValue, JsValue> {
        let local = local.map(|bytes| LocalRound::decode(&bytes)).transpose();
        let share = Share {
            samples,
            params: params.to_vec(),
            local: local.map_err(|error| JsValue::from(error.to_string()))?,
        };
        match self.1.contribute(&mut *self.0, share).await {
            Ok(made) => Ok(object(&[
                ("gradient", Float32Array::from(made.gradient.as_slice()).into()),
                ("loss", made.loss_sum.into()),
                ("samples", made.samples.into()),
            ])),
            Err(WorkerError::LossNotFinite) => Ok(object(&[("refused", JsValue::NULL)])),
            Err(WorkerError::GradientNotFinite { tensor }) => Ok(object(&[("refused", tensor.into())])),
            Err(error) => Err(error.to_string().into()),
        }
    }
}

/// Data on its way to the inner worker, whose memory is another.
fn packed(data: &Data) -> Result<JsValue, DataError> {
    let files = Array::new();
    for file in data.files_used() {
        files.push(&object(&[
            ("name", file.name().into()),
            ("bytes", bytes(&file.contents()?).into()),
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
        let lost = |reason: String| WorkerError::Device { reason };
        let made = self
            .0
            .contribute(
                Float32Array::from(params.as_slice()),
                BigUint64Array::from(&share.samples[..]),
                share.local.map(|round| Uint8Array::from(&round.encode()[..])),
            )
            .await;
        let made = made.map_err(|error| lost(words(&error)))?;
        let refused = field(&made, "refused");
        if refused.is_null() {
            return Err(WorkerError::LossNotFinite);
        }
        if let Some(tensor) = refused.as_string() {
            return Err(WorkerError::GradientNotFinite { tensor });
        }
        let gradient: Float32Array = field(&made, "gradient")
            .dyn_into()
            .map_err(|_| lost("it answers in other words".to_owned()))?;
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
}
