//! A participant in a browser tab: the same protocol, trainer and kernels as natively, over WebTransport and WebGPU.
//!
//! Everything runs in a dedicated worker, so that the page stays quick and a hidden tab goes on. A page for a task of one's
//! own is a program of one line, `annulus_browser::main!(MyTask);`, built by `cargo xtask browser`.
//!
//! Read in this order: `participant` (a tab's way through a run), `tab` (what its participant runs on), `run_task` (what it
//! trains), `link` and `dial` (WebTransport), `compute`, `device`, and `page/` for what the volunteer sees. Outside of a browser this crate is empty.

#[cfg(target_family = "wasm")]
mod answers;
#[cfg(target_family = "wasm")]
mod compute;
#[cfg(target_family = "wasm")]
mod device;
#[cfg(target_family = "wasm")]
mod dial;
#[cfg(target_family = "wasm")]
mod fetch;
#[cfg(target_family = "wasm")]
mod identity;
#[cfg(target_family = "wasm")]
mod inner_worker;
#[cfg(target_family = "wasm")]
mod js;
#[cfg(target_family = "wasm")]
mod link;
#[cfg(target_family = "wasm")]
mod model_file;
#[cfg(target_family = "wasm")]
mod page;
#[cfg(target_family = "wasm")]
mod page_server;
#[cfg(target_family = "wasm")]
mod participant;
#[cfg(target_family = "wasm")]
mod queue;
#[cfg(target_family = "wasm")]
mod run_task;
#[cfg(target_family = "wasm")]
mod tab;
#[cfg(target_family = "wasm")]
mod text_generator;
#[cfg(target_family = "wasm")]
mod worker;

#[cfg(target_family = "wasm")]
pub use device::{open_gpu, webgpu};
#[cfg(target_family = "wasm")]
pub use worker::register;

/// A tab's links without a run over them: what the example `link` measures.
#[cfg(target_family = "wasm")]
pub mod links {
    pub use crate::dial::LocalPeer;
    pub use crate::identity::generate;
    pub use crate::js::{next_task, now};
    pub use crate::link::TabLink;
    pub use crate::page_server::PageServer;
}

pub use annulus::task_factory::TaskFactory;

/// The program of a page for these tasks.
///
/// ```
/// # use annulus::tasks::digits::Digits as MyTask;
/// annulus_browser::main!(MyTask);
/// ```
#[macro_export]
macro_rules! main {
    ($($task:ty),+ $(,)?) => {
        #[cfg(target_family = "wasm")]
        fn main() {
            $crate::register(vec![$($crate::TaskFactory::of::<$task>()),+]);
        }

        #[cfg(not(target_family = "wasm"))]
        fn main() -> std::process::ExitCode {
            // So that a task that does not fit is seen here too.
            let _: Vec<$crate::TaskFactory> = vec![$($crate::TaskFactory::of::<$task>()),+];
            eprintln!("this program is for a browser: `cargo xtask browser` builds the page, and every peer serves it");
            std::process::ExitCode::FAILURE
        }
    };
}
