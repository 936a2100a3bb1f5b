//! `annulus serve`: a trained model over HTTP.

use super::error::Error;
use super::machine::block_on;
use super::output;
use crate::offline::predict::predictor;
use crate::store::which::Which;
use crate::task_factory::TaskFactory;
use crate::web::predictions::serve;
use std::path::PathBuf;
use tokio::net::TcpListener;

/// Answer rows or pictures over HTTP with a trained model, and show a form to people.
///
/// POST /v1/predict takes rows as JSON, an object or an array of objects by column name, or as CSV with the header Content-Type:
/// text/csv; for pictures, a file with Content-Type: image/png or image/jpeg. GET /v1/schema tells the columns, GET /health whether it is up, and / is a form.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run's folder, or a file that `annulus export` wrote.
    pub model: PathBuf,
    /// Address to listen on. Anybody who reaches it may ask.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    pub listen: String,
    /// The checkpoint to answer with: newest, best (of a run with keep_best=on), or the round after which it was saved.
    #[arg(long, value_name = "ROUND", default_value = "newest")]
    pub round: Which,
    /// The data of the run in the folder, if it is not found here.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  annulus serve runs/table
  annulus serve model.safetensors --listen 0.0.0.0:8080
  curl -d '{\"age\": 41, \"town\": \"Bern\"}' http://localhost:8080/v1/predict
  curl --data-binary @holiday.jpg -H 'Content-Type: image/jpeg' http://localhost:8080/v1/predict
";

/// Serves until the process is stopped.
pub fn run(args: &Args, tasks: &[TaskFactory]) -> Result<(), Error> {
    let model = predictor((&args.model, args.round), args.data.as_deref(), tasks).map_err(Error::of)?;
    let served = block_on(async {
        let listener = TcpListener::bind(&args.listen).await?;
        output::print(&format!("answering at http://{}\n", listener.local_addr()?));
        serve(listener, model).await
    });
    let failed = |error: std::io::Error| Error::failed(format!("cannot serve at {}: {error}", args.listen));
    served.map_err(failed)?.map_err(failed)
}
