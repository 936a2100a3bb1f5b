//! `annulus serve`: a trained model over HTTP.

use super::error::Error;
use super::machine::block_on;
use super::output;
use crate::offline::predict::{Answering, answering};
use crate::offline::present::save_present;
use crate::participant::run_setup::Means;
use crate::store::which::Which;
use crate::task_factory::TaskFactory;
use crate::web::bearer::Token;
use crate::web::completions::Writer;
use crate::web::hosts::Hosts;
use crate::web::predictions::{Askers, Model, serve};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::net::{TcpListener, lookup_host};

/// Answer rows, pictures or prompts over HTTP with a trained model, and show a form to people.
///
/// POST /v1/predict takes rows as JSON, an object or an array of objects by column name, or as CSV with the header Content-Type:
/// text/csv; for pictures, a file with Content-Type: image/png or image/jpeg. A language model answers POST /v1/completions as
/// OpenAI's API has it, at once or as a stream. GET /v1/schema tells the columns, GET /health whether it is up, and / is a form.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder, or a file that `annulus export` wrote.
    pub model: PathBuf,
    /// Address to listen on. One that other machines can reach needs --token.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    pub listen: String,
    /// File with the token that requests must carry, in the header Authorization: Bearer TOKEN. If there is no such file, it is
    /// made with a random token, which is printed once.
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// The checkpoint to answer with: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
    /// The data of the run in the folder, if it is not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where a language model computes: auto, cpu, gpu or gpu:N. Predictions need no device.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
}

const EXAMPLES: &str = "\
Examples:
  annulus serve runs/table
  annulus serve model.safetensors --listen 0.0.0.0:8080 --token token.txt
  curl -d '{\"age\": 41, \"town\": \"Bern\"}' http://localhost:8080/v1/predict
  curl --data-binary @holiday.jpg -H 'Content-Type: image/jpeg' http://localhost:8080/v1/predict
  curl -d '{\"prompt\": \"Once\", \"max_tokens\": 100}' http://localhost:8080/v1/completions
";

/// Serves until the process is stopped.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let given = Means {
        data: args.data.as_deref(),
        device: &args.device,
        memory: None,
    };
    save_present(&args.model, args.round).map_err(Error::of)?;
    let model = match answering((&args.model, args.round), given, tasks).map_err(Error::of)? {
        Answering::Predicts(model) => Model::Rows(model),
        Answering::Writes { worker, task } => {
            let writer = Writer::start(worker, task);
            Model::Texts(writer.map_err(|error| Error::failed(format!("cannot start a thread: {error}")))?)
        }
    };
    let failed = |error: std::io::Error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => {
                "; another program has that port, so name another, or 0 for any: --listen 127.0.0.1:0"
            }
            ErrorKind::AddrNotAvailable => {
                "; this machine has no such address: use 127.0.0.1, or 0.0.0.0 for all that it has"
            }
            ErrorKind::PermissionDenied => {
                "; the system keeps ports below 1024 for its own services, so take one from 1024 on"
            }
            _ => "; write HOST:PORT, such as --listen 127.0.0.1:8080",
        };
        Error::failed(format!("cannot serve at {}: {error}{advice}", args.listen))
    };
    block_on(async {
        let addresses: Vec<SocketAddr> = lookup_host(&args.listen).await.map_err(failed)?.collect();
        let (askers, made) = askers(args, &addresses)?;
        let listener = TcpListener::bind(&*addresses).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        output::print(&format!("answering at http://{address}\n"));
        if let Some(made) = made {
            output::print(&format!("token: {made}\n"));
        }
        serve(listener, model, askers).await.map_err(failed)
    })
    .map_err(failed)?
}

/// The requests to answer, and the text of their token if it is new.
fn askers(args: &Args, addresses: &[SocketAddr]) -> Result<(Askers, Option<String>), Error> {
    let within = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
    match &args.token {
        Some(file) => {
            let (token, made) = Token::of_file(file).map_err(Error::of)?;
            Ok((Askers::Token(token), made))
        }
        None if addresses.iter().all(within) => Ok((Askers::Hosts(Hosts::only_here([&args.listen])), None)),
        None => Err(Error::usage(format!(
            "other machines can reach {}, and without a token all of them may ask the model: add --token FILE, or listen on \
             127.0.0.1",
            args.listen
        ))),
    }
}
