//! Training steps in a tab as the product makes them, for `cargo xtask bench-browser` to time beside other frameworks.
//!
//! Parameters travel to the GPU and gradients back in each step, and the step itself is the shared optimizer's, in WASM:
//! what a participant does in a round, without the network. It also gives the page the model's initial parameters and the
//! batches, so that all frameworks begin with the same bits. It must not know the others.

#[cfg(target_family = "wasm")]
mod bench {
    use annulus::device::OpenDevice;
    use annulus::task::{Dataset, Task};
    use annulus::tasks::digits::Digits;
    use annulus::tasks::gpt::Gpt;
    use annulus::trainer::{Trainer, TrainerOptions, Worker};
    use annulus_core::optim::Optimizer;
    use serde_json::json;
    use std::fmt::Display;
    use std::sync::Arc;
    use wasm_bindgen::prelude::*;

    /// Batches that the steps go through again and again.
    const BATCHES: u64 = 8;
    const IMAGES: u64 = 64;
    const WINDOWS: u64 = 4;
    const CONTEXT: usize = 64;

    fn problem(error: impl Display) -> JsValue {
        error.to_string().into()
    }

    /// The GPU, opened once.
    #[wasm_bindgen]
    pub struct Machine(OpenDevice);

    #[wasm_bindgen]
    impl Machine {
        /// Opens it.
        pub async fn open(name: String, software: bool) -> Result<Machine, JsValue> {
            annulus_browser::webgpu(&name, software)
                .await
                .map(Machine)
                .map_err(problem)
        }

        /// The digits' perceptron 784-128-10.
        pub fn mlp(&self, lr: f32) -> Result<Bench, JsValue> {
            let config = serde_json::from_value(json!({"train": BATCHES * IMAGES, "test": 1}));
            let task = Arc::new(Digits::new(config.map_err(problem)?, None).map_err(problem)?);
            let mut batches = Vec::new();
            for batch in 0..BATCHES {
                let samples: Vec<u64> = (batch * IMAGES..(batch + 1) * IMAGES).collect();
                let images = task.dataset().batch(&samples);
                batches.push(Batch {
                    samples,
                    floats: images.pixels,
                    integers: images.labels,
                });
            }
            self.bench(task, batches, lr)
        }

        /// A transformer of 2 layers, 4 heads and width 64, on 4 windows of 64 bytes and the byte after each.
        pub fn gpt(&self, lr: f32) -> Result<Bench, JsValue> {
            let config = json!({"layers": 2, "heads": 4, "width": 64, "context": CONTEXT, "bias": false});
            let config = serde_json::from_value(config).map_err(problem)?;
            let task = Arc::new(Gpt::new(config, None).map_err(problem)?);
            let mut batches = Vec::new();
            for batch in 0..BATCHES {
                // Any places will do.
                let start = |window| (batch * WINDOWS + window) * 997 % task.dataset().len();
                let samples: Vec<u64> = (0..WINDOWS).map(start).collect();
                let mut integers = Vec::new();
                for start in &samples {
                    task.dataset().text().read(*start, CONTEXT + 1, &mut integers);
                }
                batches.push(Batch {
                    samples,
                    floats: Vec::new(),
                    integers,
                });
            }
            self.bench(task, batches, lr)
        }
    }

    impl Machine {
        fn bench<T: Task>(&self, task: Arc<T>, batches: Vec<Batch>, lr: f32) -> Result<Bench, JsValue> {
            let worker = Trainer::new(task, &self.0, TrainerOptions::default()).map_err(problem)?;
            let optimizer = Optimizer::parse("sgd").map_err(problem)?;
            Ok(Bench {
                params: worker.init(),
                worker: Box::new(worker),
                optimizer,
                lr,
                steps: 0,
                batches,
            })
        }
    }

    struct Batch {
        samples: Vec<u64>,
        floats: Vec<f32>,
        integers: Vec<i32>,
    }

    /// A model in training.
    #[wasm_bindgen]
    pub struct Bench {
        worker: Box<dyn Worker>,
        params: Vec<f32>,
        optimizer: Optimizer,
        lr: f32,
        steps: u64,
        batches: Vec<Batch>,
    }

    #[wasm_bindgen]
    impl Bench {
        /// How many batches there are.
        pub fn batches(&self) -> usize {
            self.batches.len()
        }

        /// The parameters' tensors in their order, as JSON: `[{name, shape}]`.
        pub fn layout(&self) -> String {
            let tensors = self.worker.layout().tensors.iter();
            let tensors: Vec<_> = tensors
                .map(|tensor| json!({"name": tensor.name, "shape": tensor.shape}))
                .collect();
            json!(tensors).to_string()
        }

        /// The parameters, one tensor after the other.
        pub fn params(&self) -> Vec<f32> {
            self.params.clone()
        }

        /// Images of a batch, if the task has any.
        pub fn floats(&self, batch: usize) -> Vec<f32> {
            self.batches[batch].floats.clone()
        }

        /// Labels or tokens of a batch.
        pub fn integers(&self, batch: usize) -> Vec<i32> {
            self.batches[batch].integers.clone()
        }

        /// One step; the mean loss before it.
        pub async fn step(&mut self, batch: usize) -> Result<f32, JsValue> {
            let samples = &self.batches[batch].samples;
            // As in a round, what comes back is in an allocation that holds the parameters first.
            let made = self
                .worker
                .gradient(self.params.clone(), samples)
                .await
                .map_err(problem)?;
            self.steps += 1;
            let weight = made.samples as f32;
            let step = self.optimizer.step(self.lr, self.steps, 1.0 / weight);
            self.optimizer
                .apply(&step, &mut self.params, &mut [], &made.gradient, false);
            Ok(made.loss_sum / weight)
        }
    }
}

#[cfg(target_family = "wasm")]
fn main() {
    // No page is served: this is for what it does to panics, which say nothing otherwise.
    annulus_browser::register(Vec::new());
}

#[cfg(not(target_family = "wasm"))]
fn main() -> std::process::ExitCode {
    eprintln!("this program is for a browser: `cargo xtask bench-browser` builds and runs it");
    std::process::ExitCode::FAILURE
}
