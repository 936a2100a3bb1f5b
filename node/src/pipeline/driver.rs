//! All stages of a pipeline from one place: hands on what they make, and has them step together.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use annulus_core::optim::clip_scale;

use super::message::{Answer, Order, SharedSum, StageReport, from_bytes};
use super::stage::Stage;
use crate::trainer::span::ModelSteps;

/// Where a stage takes its orders.
pub trait Port {
    /// Tells it; without waiting for what it does.
    ///
    /// # Errors
    ///
    /// If it is gone.
    fn send(&mut self, order: &Order) -> Result<(), PipelineError>;
}

impl Port for Sender<Order> {
    fn send(&mut self, order: &Order) -> Result<(), PipelineError> {
        Sender::send(self, order.clone()).map_err(|_| PipelineError::Gone)
    }
}

/// Why a round cannot be computed. The pipeline is of no use after it.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// A stage has ended.
    #[error("a stage of the pipeline is gone")]
    Gone,
    /// A stage has failed.
    #[error("the pipeline's stage {span} failed: {why}")]
    Stage {
        /// Its number.
        span: usize,
        /// What it said.
        why: String,
    },
    /// Two stages that hold the same tensor have combined it to different bits.
    #[error("two stages that share tensor {0} have different gradients of it")]
    Differ(usize),
}

/// A round's gradient, combined and not yet applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Summed {
    /// Sum of the losses.
    pub loss_sum: f32,
    /// Samples.
    pub samples: usize,
    /// Sum of the squares of the summed gradient, tensor by tensor in the layout's order.
    pub norm_squared: f64,
    /// Seconds from the first forward pass to the last backward pass.
    pub seconds: f64,
}

/// How a gradient moves the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Learning rate.
    pub lr: f32,
    /// Number of the step, from 1.
    pub step: u64,
    /// Largest norm of the mean gradient.
    pub clip: Option<f32>,
}

/// The stages of a model, in their order.
pub struct Pipeline<P: Port> {
    model: Arc<ModelSteps>,
    spans: Vec<Range<usize>>,
    ports: Vec<P>,
    answers: Receiver<(usize, Answer)>,
    /// Bytes that have passed each boundary, forward and backward.
    passed: Vec<[u64; 2]>,
}

impl<P: Port> Pipeline<P> {
    /// Stages that hold these spans of a model, all of its steps in their order, and what they tell, by number.
    ///
    /// # Panics
    ///
    /// If there is not one port for each span.
    pub fn new(
        model: Arc<ModelSteps>,
        spans: Vec<Range<usize>>,
        ports: Vec<P>,
        answers: Receiver<(usize, Answer)>,
    ) -> Self {
        assert_eq!(spans.len(), ports.len(), "a port for each span");
        Self {
            passed: vec![[0; 2]; spans.len().saturating_sub(1)],
            model,
            spans,
            ports,
            answers,
        }
    }

    /// Bytes that have passed each boundary so far, forward and backward.
    pub fn passed(&self) -> &[[u64; 2]] {
        &self.passed
    }

    /// Sums up the gradients over some microbatches, each a list of samples, and combines them.
    ///
    /// # Errors
    ///
    /// If a stage fails or is gone.
    pub fn gradient(&mut self, microbatches: &[Vec<u64>]) -> Result<Summed, PipelineError> {
        let (count, last, start) = (microbatches.len() as u32, self.spans.len() - 1, Instant::now());
        self.tell_all(&Order::Begin { microbatches: count })?;
        for (microbatch, samples) in (0..).zip(microbatches) {
            let order = Order::Forward {
                microbatch,
                samples: samples.clone(),
                input: None,
            };
            self.ports[0].send(&order)?;
        }
        let (mut loss_sum, mut shared, mut left) = (0.0, Vec::new(), self.spans.len());
        let mut seconds = 0.0;
        while left > 0 {
            match self.next()? {
                (
                    span,
                    Answer::Forth {
                        microbatch,
                        activation,
                    },
                ) if span < last => {
                    self.passed[span][0] += activation.bytes.len() as u64;
                    let ends = span + 1 == last;
                    let samples = ends.then(|| microbatches[microbatch as usize].clone());
                    self.ports[span + 1].send(&Order::Forward {
                        microbatch,
                        samples: samples.unwrap_or_default(),
                        input: Some(activation),
                    })?;
                }
                (span, Answer::Back { microbatch, gradient }) => {
                    seconds = start.elapsed().as_secs_f64();
                    if let (Some(gradient), true) = (gradient, span > 0) {
                        self.passed[span - 1][1] += gradient.bytes.len() as u64;
                        self.ports[span - 1].send(&Order::Backward { microbatch, gradient })?;
                    }
                }
                (
                    span,
                    Answer::Summed {
                        loss_sum: own,
                        shared: sums,
                    },
                ) => {
                    loss_sum += own;
                    shared.extend(sums.into_iter().map(|sum| (span, sum)));
                    left -= 1;
                }
                (span, _) => return Err(unexpected(span)),
            }
        }
        Ok(Summed {
            loss_sum,
            samples: microbatches.iter().map(Vec::len).sum(),
            norm_squared: self.combine(&shared)?,
            seconds,
        })
    }

    /// Has all combine their gradients with what others have of the same tensors; the sum of all squares.
    fn combine(&mut self, shared: &[(usize, SharedSum)]) -> Result<f64, PipelineError> {
        for (span, steps) in self.spans.iter().enumerate() {
            let tensors = self.model.tensors_of(steps.clone());
            let needed = shared
                .iter()
                .filter(|(from, sum)| *from != span && tensors.contains(&sum.of.tensor));
            let shared = needed.map(|(_, sum)| sum.clone()).collect();
            self.ports[span].send(&Order::Combine { shared })?;
        }
        let mut by_tensor = BTreeMap::new();
        for _ in 0..self.spans.len() {
            match self.next()? {
                (_, Answer::Norms { squares }) => {
                    for (tensor, square) in squares {
                        let before = by_tensor.insert(tensor, square);
                        if before.is_some_and(|before| before.to_bits() != square.to_bits()) {
                            return Err(PipelineError::Differ(tensor));
                        }
                    }
                }
                (span, _) => return Err(unexpected(span)),
            }
        }
        Ok(by_tensor.values().sum())
    }

    /// Steps all parameters by the mean of the gradient that was summed up last.
    ///
    /// # Errors
    ///
    /// If a stage fails or is gone.
    pub fn apply(&mut self, summed: &Summed, update: &Update) -> Result<(), PipelineError> {
        let mean = 1.0 / summed.samples as f32;
        let clipped = update.clip.map_or(1.0, |most| {
            clip_scale(summed.norm_squared.sqrt() * f64::from(mean), most)
        });
        self.tell_all(&Order::Apply {
            lr: update.lr,
            step: update.step,
            scale: mean * clipped,
        })?;
        for _ in 0..self.spans.len() {
            match self.next()? {
                (_, Answer::Applied) => {}
                (span, _) => return Err(unexpected(span)),
            }
        }
        Ok(())
    }

    /// All parameters, or the gradient that was combined and not applied, as the model's flat vector. It takes the memory of
    /// the whole model.
    ///
    /// # Errors
    ///
    /// If a stage fails or is gone.
    pub fn export(&mut self, gradient: bool) -> Result<Vec<f32>, PipelineError> {
        let mut flat = vec![0.0; self.model.layout.len];
        self.tell_all(&Order::Export { gradient })?;
        for _ in 0..self.spans.len() {
            let (span, Answer::Exported { bytes }) = self.next()? else {
                return Err(PipelineError::Gone);
            };
            let tensors = self.model.tensors_of(self.spans[span].clone());
            let specs = tensors.iter().map(|tensor| &self.model.layout.tensors[*tensor]);
            let count = specs.clone().map(annulus_core::TensorSpec::len).sum();
            let values = from_bytes(&bytes, count).ok_or_else(|| unexpected(span))?;
            let mut rest = &values[..];
            for spec in specs {
                let (own, behind) = rest.split_at(spec.len());
                flat[spec.offset..spec.offset + spec.len()].copy_from_slice(own);
                rest = behind;
            }
        }
        Ok(flat)
    }

    /// What each stage has measured since the last time.
    ///
    /// # Errors
    ///
    /// If a stage fails or is gone.
    pub fn report(&mut self) -> Result<Vec<StageReport>, PipelineError> {
        self.tell_all(&Order::Report)?;
        let mut reports = vec![StageReport::default(); self.spans.len()];
        for _ in 0..self.spans.len() {
            match self.next()? {
                (span, Answer::Report(report)) => reports[span] = report,
                (span, _) => return Err(unexpected(span)),
            }
        }
        Ok(reports)
    }

    fn tell_all(&mut self, order: &Order) -> Result<(), PipelineError> {
        self.ports.iter_mut().try_for_each(|port| port.send(order))
    }

    fn next(&mut self) -> Result<(usize, Answer), PipelineError> {
        match self.answers.recv() {
            Ok((span, Answer::Failed(why))) => Err(PipelineError::Stage { span, why }),
            Ok(answer) => Ok(answer),
            Err(_) => Err(PipelineError::Gone),
        }
    }
}

fn unexpected(span: usize) -> PipelineError {
    PipelineError::Stage {
        span,
        why: "it says what it was not asked".into(),
    }
}

/// A pipeline whose stages are threads of this process.
pub fn in_threads(
    model: Arc<ModelSteps>,
    spans: Vec<Range<usize>>,
    stages: Vec<Stage>,
) -> Pipeline<Sender<Order>> {
    let (say, answers) = mpsc::channel();
    let start = |(span, stage): (usize, Stage)| {
        let (port, orders) = mpsc::channel();
        let say = say.clone();
        thread::spawn(move || {
            let begin = Instant::now();
            let now_us = || begin.elapsed().as_micros() as u64;
            stage.serve(&orders, &now_us, |answer| say.send((span, answer)).is_ok());
        });
        port
    };
    let ports = stages.into_iter().enumerate().map(start).collect();
    Pipeline::new(model, spans, ports, answers)
}
