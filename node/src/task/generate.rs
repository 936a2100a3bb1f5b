//! Text generation with a trained model: [`Generate`], for tasks that support it.

use std::pin::Pin;

use burn::module::Module;
use burn::tensor::Device;

use super::error::TaskError;

/// Generates text with a trained model: `annulus sample` prints it, and a tab's page shows it while the model learns.
///
/// ```
/// use annulus::Generate;
/// use annulus::burn::nn::Linear;
/// use annulus::burn::tensor::{Device, Tensor};
/// use annulus::task::{Emit, Generating, Prompt};
///
/// /// Writes the number that the model gives for the prompt's length.
/// struct Numbers;
///
/// impl Generate<Linear> for Numbers {
///     fn generate<'a>(
///         &'a self,
///         model: &'a Linear,
///         prompt: &'a Prompt,
///         device: &'a Device,
///         emit: Emit<'a>,
///     ) -> Generating<'a> {
///         Box::pin(async move {
///             let length = prompt.text.len() as f32;
///             let number = model.forward(Tensor::<2>::from_floats([[length]], device));
///             let number = number.into_data_async().await?;
///             emit(&format!("{number}")).await;
///             Ok(())
///         })
///     }
/// }
/// ```
pub trait Generate<M: Module> {
    /// Continues a prompt, and emits text as it is generated: `emit(text).await`. `model` is on `device`, without
    /// autodiff. Read numbers back by `into_data_async().await`, since a tab must not block. Write the body as
    /// `Box::pin(async move { ... })`.
    ///
    /// # Errors
    ///
    /// If the prompt makes no sense or the device fails.
    fn generate<'a>(
        &'a self,
        model: &'a M,
        prompt: &'a Prompt,
        device: &'a Device,
        emit: Emit<'a>,
    ) -> Generating<'a>;

    /// Whether it needs the run's own data, such as a vocabulary from it. If not, the task is made without data where
    /// it is no longer available.
    fn needs_data(&self) -> bool {
        true
    }
}

/// Receives pieces of text, one after the other. Wait for the future before the next one.
pub type Emit<'a> = &'a mut dyn FnMut(&str) -> Pin<Box<dyn Future<Output = ()>>>;

/// A [`Generate::generate`] in progress.
pub type Generating<'a> = Pin<Box<dyn Future<Output = Result<(), TaskError>> + 'a>>;

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The text to continue.
    pub text: String,
    /// How many tokens.
    pub tokens: usize,
    /// Divides the logits: below 1 likely tokens become likelier, and 0 always takes the likeliest.
    pub temperature: f64,
    /// Samples from this many of the likeliest tokens; 0: from all.
    pub top_k: usize,
    /// Seed of the random choices.
    pub seed: u64,
}
