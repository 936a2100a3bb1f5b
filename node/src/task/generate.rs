//! What a trained model can write: [`Generate`], for tasks that have it.

use std::pin::Pin;

use burn::module::Module;
use burn::tensor::Device;

use super::error::TaskError;

/// Writes text with a trained model: what `annulus sample` prints, and a tab's page shows while the model learns.
pub trait Generate<M: Module> {
    /// Goes on after a prompt: hands text out as it comes, `emit(text).await`. `model` is on `device`, without autodiff;
    /// numbers are read back by `into_data_async().await`, as a tab must not wait in any other way. Write it as
    /// `Box::pin(async move { ... })`.
    ///
    /// # Errors
    ///
    /// If the prompt makes no sense or the device gives up.
    fn generate<'a>(
        &'a self,
        model: &'a M,
        prompt: &'a Prompt,
        device: &'a Device,
        emit: Emit<'a>,
    ) -> Generating<'a>;

    /// Whether it takes the run's own data to write, such as a vocabulary that was found in them. If not, the task is made
    /// without data where these are no longer at hand.
    fn needs_data(&self) -> bool {
        true
    }
}

/// Takes pieces of text, one after the other: the next is asked for once the future is done.
pub type Emit<'a> = &'a mut dyn FnMut(&str) -> Pin<Box<dyn Future<Output = ()>>>;

/// What [`Generate::generate`] is at.
pub type Generating<'a> = Pin<Box<dyn Future<Output = Result<(), TaskError>> + 'a>>;

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The text to go on from.
    pub text: String,
    /// How many tokens.
    pub tokens: usize,
    /// Below 1 the likely becomes likelier; 0 always takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are chosen from; 0: all.
    pub top_k: usize,
    /// Picks one of the texts.
    pub seed: u64,
}
