//! Enters a run through its meeting place: the same command founds the run, joins it, or continues it.

use super::{Entrance, Entry, Starting, texts};
use crate::net::ticket::{Secret, Ticket};
use crate::options::{Meet, NewRun};
use crate::participant::error::Error;
use crate::participant::folder::Folder;
use crate::participant::meeting::{Held, MeetingFile, Place, is_here, key_of_secret};
use crate::participant::right::Right;
use crate::participant::run_setup::{Means, RunSetup, prepare};
use crate::store::run_dir::RunDir;
use annulus_core::Manifest;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Takes a free folder for a peer, if there can be others at its meeting place: before data is packed or read, which can take
/// long.
pub(super) fn take_folder(meet: &Meet, out: &Path) -> Result<Folder, Error> {
    if let Meet::File(path) = meet {
        MeetingFile::new(path)?;
    }
    Folder::take_free(out)
}

/// The meeting place at which a peer has found its run.
pub(super) struct Met {
    place: Place,
    /// The lock on the file, held until this peer listens.
    held: Option<Held>,
}

impl Met {
    /// Announces this peer to the others.
    pub(super) async fn tell(self, ours: &Ticket) -> Result<Place, Error> {
        match (&self.place, self.held) {
            (_, Some(held)) => held.keep_fresh(ours)?,
            (Place::File(file), None) => file.hold().await?.keep_fresh(ours)?,
            // They find it by its name.
            (Place::Names(_), None) => {}
        }
        Ok(self.place)
    }

    /// Postpones the announcement until this peer is a member: before that it has nothing to offer.
    pub(super) fn later(self) -> Place {
        self.place
    }
}

impl Entrance<'_> {
    fn met_at(self, file: MeetingFile, held: Option<Held>) -> Self {
        self.met(Place::File(file), held)
    }

    fn met(self, place: Place, held: Option<Held>) -> Self {
        Self {
            met: Some(Met { place, held }),
            ..self
        }
    }
}

/// Time between two tries to find somebody.
const ASK_AGAIN: Duration = Duration::from_secs(2);

impl<'a> Starting<'a> {
    /// By a file, or by names and a secret.
    pub(super) async fn meet(
        self,
        run: &NewRun,
        meet: Meet,
        secret: Option<&Path>,
    ) -> Result<Option<Entrance<'a>>, Error> {
        let (names, all_listen_there) = match meet {
            Meet::File(path) => return self.meet_at(MeetingFile::new(&path)?, run).await,
            Meet::Host(name) => (vec![name], false),
            Meet::Names(names) => (names, true),
        };
        let secret = secret.ok_or(Error::NoSecret)?;
        self.meet_by(names, all_listen_there, secret, run).await.map(Some)
    }

    /// If the file has no ticket, founds the run, else joins it. A peer that has taken part before continues. None if
    /// the run is complete.
    async fn meet_at(mut self, file: MeetingFile, run: &NewRun) -> Result<Option<Entrance<'a>>, Error> {
        let run_key = self.folder.run_key();
        let (setup, mut manifest) = self.prepare(run, run_key)?;
        let held = file.hold().await?;
        let Some(ticket) = file.ticket()? else {
            if self.folder.has_run()? {
                // Its own settings hold, whoever founded it.
                manifest.key = RunDir::open(self.folder.path())?.manifest().key;
            }
            let entrance = match self.folder.holds(manifest.run_id())? {
                true => self.go_on(None, Some(setup)).await?,
                false => self.found(setup, manifest, run_key)?,
            };
            return Ok(Some(entrance.met_at(file, Some(held))));
        };
        drop(held);
        manifest.key = ticket.root.key;
        if manifest.run_id() != ticket.root.run {
            return Err(Error::OtherSettings(file.path().to_path_buf()));
        }
        if self.folder.holds(ticket.root.run)? {
            let entrance = self.go_on(Some(ticket), Some(setup)).await?;
            return Ok(Some(entrance.met_at(file, None)));
        }
        let mut waits = false;
        loop {
            if let Some(told) = file.finished(ticket.root.run) {
                self.warn(told);
                return Ok(None);
            }
            let ticket = file.ticket()?.unwrap_or_else(|| ticket.clone());
            let mut known = self.folder.known(ticket.root.run);
            known.ticket_addresses = texts(&ticket);
            match self.ask(&ticket, &known).await {
                Ok((first, _)) => {
                    let (run_key, way) = (None, Entry::Enter(first));
                    let entrance = self.by(way, Arc::new(manifest), setup, Right { ticket, run_key }, known);
                    return Ok(Some(entrance.met_at(file, None)));
                }
                Err(error) if error.barred().is_some() => return Err(error.into()),
                // It was founded here and came to nothing.
                Err(_) if run_key.key().peer() == ticket.root.key => {
                    let held = file.hold().await?;
                    let entrance = self.found(setup, manifest, run_key)?;
                    return Ok(Some(entrance.met_at(file, Some(held))));
                }
                Err(error) if !waits => {
                    waits = true;
                    self.warn(format!(
                        "the run has begun, but none of its members is there ({error}): waiting for one. To begin anew, \
                         remove {}",
                        file.path().display()
                    ));
                }
                Err(_) => {}
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// If nobody answers at these names, continues the run or founds it; otherwise joins. All peers have the run's key,
    /// since it is made from their common secret.
    async fn meet_by(
        self,
        names: Vec<String>,
        all_listen_there: bool,
        secret: &Path,
        run: &NewRun,
    ) -> Result<Entrance<'a>, Error> {
        let run_key = key_of_secret(secret)?;
        let (setup, manifest) = self.prepare(run, run_key)?;
        let port = names[0].rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let place = Place::Names(names);
        let is_host = all_listen_there || place.addresses().await.0.iter().any(is_here);
        let mut entrance = match self.folder.holds(manifest.run_id())? {
            true => self.go_on(None, Some(setup)).await?,
            false => {
                let right = match self.folder.right_in(manifest.run_id()) {
                    Some(kept) => kept.clone(),
                    None => Right::of_founder(run_key, manifest.root())?,
                };
                let known = self.folder.known(manifest.run_id());
                let way = Entry::Look(setup.first_state(&manifest));
                self.by(way, Arc::new(manifest), setup, right, known)
            }
        };
        if let Some(port) = port.filter(|_| is_host) {
            // Others look for it at this port.
            entrance.known.port = port;
        }
        Ok(entrance.met(place, None))
    }

    /// A new run that all peers make alike.
    fn prepare(&self, run: &NewRun, run_key: Secret) -> Result<(RunSetup, Manifest), Error> {
        let (setup, manifest) = prepare(run, run_key.key().peer(), Means::of(&self.local), self.factories)?;
        match setup.time {
            None => Ok((setup, manifest)),
            Some(_) => Err(Error::Settings(
                "--meet does not go with time, since the founder measures how many rounds fit: leave --meet out, and let the others \
                 join with the ticket",
            )),
        }
    }
}
