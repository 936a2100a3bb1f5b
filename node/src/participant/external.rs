//! Fits what computes to a peer's options: a limit on GPU memory, or the process that started this one in the device's place.

use super::error::Error;
use super::requests::Requests;
use super::run_setup::RunSetup;
use crate::options::Local;
#[cfg(unix)]
use crate::trainer::external::Line;
use annulus_core::Manifest;
#[cfg(unix)]
use std::os::{fd::AsFd, unix::net::UnixStream};
#[cfg(unix)]
use std::sync::{Arc, Mutex};
#[cfg(unix)]
use std::time::Duration;

impl RunSetup {
    /// Fits what computes to a peer's options.
    pub fn suit(&mut self, local: &Local, manifest: &Manifest, requests: &Requests) -> Result<(), Error> {
        self.limit_memory(local.gpu_memory, manifest)?;
        match local.external {
            true => self.compute_elsewhere(local, manifest, requests),
            false => Ok(()),
        }
    }

    /// Has the process at the other end of standard input compute.
    #[cfg(unix)]
    fn compute_elsewhere(
        &mut self,
        local: &Local,
        manifest: &Manifest,
        requests: &Requests,
    ) -> Result<(), Error> {
        use super::run_setup::Computes;
        use crate::trainer::external::{External, Facts};

        let Computes::Whole(whole) = &mut self.computes else {
            return Err(Error::Setting(
                "--external does not go with a split model: leave it out, and compute on this machine's device".into(),
            ));
        };
        let line = line(requests, local.leave_within).map_err(|error| {
            Error::Setting(format!(
                "--external needs a Unix socket as standard input, whose other end computes, and this is none ({error}). \
                 annulus.member of the Python package starts it so"
            ))
        })?;
        let data = self
            .files
            .as_ref()
            .map(|files| files.plain(&local.out.join("data")));
        let data = data.transpose().map_err(|error| Error::Task(error.into()))?;
        let facts = Facts {
            samples: manifest.samples.get(),
            rows: whole.rows.clone(),
            data: data.as_deref(),
        };
        let factory = whole.worker_factory.clone();
        let init = move || factory().expect("one was made before").init();
        let model = (manifest.layout.clone(), Box::new(init) as _);
        whole.worker = Box::new(External::new(model, facts, line, &local.out)?);
        Ok(())
    }

    #[cfg(not(unix))]
    fn compute_elsewhere(&mut self, _: &Local, _: &Manifest, _: &Requests) -> Result<(), Error> {
        Err(Error::Setting(
            "--external works on Linux and macOS only: compute on this machine's device instead".into(),
        ))
    }
}

/// The line to the process at the other end of standard input: one for this process, however often the peer pauses. If it ends,
/// the peer is asked to leave, and once more after `limit`, since nobody else is there to ask.
#[cfg(unix)]
fn line(requests: &Requests, limit: Duration) -> std::io::Result<Arc<Line>> {
    static LINE: Mutex<Option<Arc<Line>>> = Mutex::new(None);

    let mut kept = LINE.lock().expect("opening a line does not panic");
    if let Some(line) = &*kept {
        return Ok(line.clone());
    }
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    // Only a socket has another end.
    socket.peer_addr()?;
    let requests = requests.clone();
    let line = Line::new(socket, move || {
        requests.ask();
        std::thread::sleep(limit);
        requests.ask();
    })?;
    Ok(kept.insert(Arc::new(line)).clone())
}
