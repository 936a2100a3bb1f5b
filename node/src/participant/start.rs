//! Starts a participant: assembles task, device, link, peer and disk, and runs them.

use crate::data::fetch::fetch_manifest;
use crate::data::provision::Source;
use crate::events::{Event, Sink};
use crate::net::link::DialError;
use crate::net::ticket::{Secret, Ticket};
use crate::options::{JoinOptions, Local, Meet, NewRun, Start, TrainOptions};
use crate::participant::folder::{Folder, is_folder, ticket_to};
use crate::participant::home::{listen, told_to};
pub use crate::participant::native::Ending;
use crate::participant::native::Participant;
use crate::participant::permission::{LOOK, Permission};
use crate::participant::requests::Requests;
use crate::participant::right::Right;
use crate::participant::run_setup::{Computes, RunSetup};
use crate::participant::{budget, error::Error, initial};
use crate::store::checkpoint::RunWriter;
use crate::store::checkpoint_writer::Destination;
use crate::store::known::Known;
use crate::store::run_dir::{CheckpointError, RunDir};
use crate::task_factory::TaskFactory;
use crate::web::Site;
use annulus_core::config::ManifestError;
use annulus_core::ledger::Head;
use annulus_core::{Contact, DataSource, Manifest, Peer, State, Time};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

mod fetching;
mod meet;
mod packing;

use fetching::fetch_data;
use meet::{Met, take_folder};
use packing::pack;

/// Starts or resumes a run and takes part in it until it ends or `requests` asks this peer to leave. If the folder
/// already holds the same new run, resumes that.
///
/// It changes nothing of the process: cores, signals and the allocator are the caller's.
pub async fn train(
    options: TrainOptions,
    factories: &[TaskFactory],
    requests: &Requests,
    sink: Sink<'_>,
) -> Result<Ending, Error> {
    let local = options.local;
    let (folder, errand) = match options.start {
        Start::New(run) => (Folder::take(&local.out)?, Errand::Begin(run)),
        Start::Meet(run, meet, secret) => (take_folder(&meet, &local.out)?, Errand::Meet(run, meet, secret)),
        Start::Resume(dir) if !is_folder(&dir)? => return Err(CheckpointError::NoRun(dir).into()),
        Start::Resume(dir) => (Folder::take(&dir)?, Errand::Resume),
    };
    take_part(folder, local, &errand, factories, requests, sink).await
}

/// Joins a run and takes part in it until it ends or `requests` asks this peer to leave. If its folder already holds
/// that run, it continues there. It changes nothing of the process either.
pub async fn join(
    options: JoinOptions,
    factories: &[TaskFactory],
    requests: &Requests,
    sink: Sink<'_>,
) -> Result<Ending, Error> {
    let ticket: Ticket = options.ticket.parse()?;
    let folder = match options.numbered {
        true => Folder::take_free(&options.local.out)?,
        false => Folder::take(&options.local.out)?,
    };
    take_part(
        folder,
        options.local,
        &Errand::Join(ticket),
        factories,
        requests,
        sink,
    )
    .await
}

/// Takes part whenever it may compute on this machine, until the run ends or this peer is asked to leave. When it may
/// not, it releases everything, and later comes back as if by the same command.
async fn take_part(
    folder: Folder,
    mut local: Local,
    errand: &Errand,
    factories: &[TaskFactory],
    requests: &Requests,
    sink: Sink<'_>,
) -> Result<Ending, Error> {
    let mut permission = Permission::new(local.when, folder.path())?;
    let mut site = None;
    loop {
        let mut told = told_to(&site, sink);
        if !wait_for(&mut permission, requests, &mut told).await {
            return Ok(Ending::Left);
        }
        drop(told);
        if let Some(site) = site.take() {
            // Its port is needed again.
            site.close().await;
        }
        pack(&folder, &mut local, errand, factories, sink)?;
        let starting = Starting::new(folder.again(), local.clone(), factories, sink);
        let entrance = tokio::select! {
            entrance = starting.go_to(errand) => entrance?,
            () = requests.next() => return Ok(Ending::Left),
            () = permission.withdrawn() => continue,
        };
        let Some(entrance) = entrance else {
            return Ok(Ending::Finished);
        };
        // Nothing interrupts the reading of a large file. If somebody asked meanwhile, no run begins.
        if requests.came().await {
            return Ok(Ending::Left);
        }
        match entrance.take_part(requests, &mut permission).await? {
            Outcome::Over(ending) => return Ok(ending),
            Outcome::Aside(page) => site = page,
        }
    }
}

/// Waits until it may compute on this machine. Returns false if it was asked to leave instead.
async fn wait_for(permission: &mut Permission, requests: &Requests, sink: Sink<'_>) -> bool {
    let mut told = None;
    while let Some(against) = permission.against() {
        permission.has_saved();
        if told.replace(against) != Some(against) {
            let why = against.to_string();
            sink(Event::Waiting { why });
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = requests.next() => return false,
        }
    }
    true
}

/// The purpose of a start.
enum Errand {
    /// A new run, unless the folder has it already.
    Begin(Box<NewRun>),
    /// A run whose peers meet without tickets.
    Meet(Box<NewRun>, Meet, Option<PathBuf>),
    /// The run in the folder.
    Resume,
    /// The run of a ticket.
    Join(Ticket),
}

/// How a participant's part ended, if nothing failed.
enum Outcome {
    /// For good.
    Over(Ending),
    /// Until it may compute on this machine again. The page stays.
    Aside(Option<Site>),
}

/// A participant before it knows its run.
struct Starting<'a> {
    folder: Folder,
    local: Local,
    factories: &'a [TaskFactory],
    sink: Sink<'a>,
}

/// A participant with everything that it needs to take part.
struct Entrance<'a> {
    starting: Starting<'a>,
    manifest: Arc<Manifest>,
    setup: RunSetup,
    right: Right,
    known: Known,
    way: Entry,
    met: Option<Met>,
}

/// How it enters the run.
enum Entry {
    /// With a new run's first state.
    Found(State),
    /// As the founder of a new run, with its first state, unless it finds others who have founded it.
    Look(State),
    /// From its own record of the run.
    GoOn(Box<(RunWriter, State, Head)>),
    /// Through a member.
    Enter(Source),
}

impl<'a> Starting<'a> {
    fn new(folder: Folder, local: Local, factories: &'a [TaskFactory], sink: Sink<'a>) -> Self {
        let out = folder.path().to_path_buf();
        Self {
            folder,
            local: Local { out, ..local },
            factories,
            sink,
        }
    }

    /// Prepares to take part. None if the run is complete.
    async fn go_to(self, errand: &Errand) -> Result<Option<Entrance<'a>>, Error> {
        match errand {
            Errand::Begin(run) => self.begin(run).await.map(Some),
            Errand::Meet(run, meet, secret) => self.meet(run, meet.clone(), secret.as_deref()).await,
            Errand::Resume => self.resume().await.map(Some),
            Errand::Join(ticket) => self.join(ticket.clone()).await.map(Some),
        }
    }

    /// A new run, unless it has begun here.
    async fn begin(mut self, run: &NewRun) -> Result<Entrance<'a>, Error> {
        let run_key = self.folder.run_key();
        let made = (run_key.key().peer(), self.folder.begun()?);
        let (setup, manifest) = budget::prepare(run, made, &self.local, self.factories)?;
        match self.folder.holds(manifest.run_id())? {
            true => self.go_on(None, Some(setup)).await,
            false => {
                self.describe(&setup);
                self.found(setup, manifest, run_key)
            }
        }
    }

    /// The run in the folder.
    async fn resume(self) -> Result<Entrance<'a>, Error> {
        if self.folder.has_run()? {
            return self.go_on(None, None).await;
        }
        // A peer that joined with a ticket and never had a complete state can still get it. A founder has nobody to
        // ask.
        match self.folder.came_by() {
            Some(ticket) => self.enter(ticket).await,
            // Opening it tells what is missing.
            None => Err(RunDir::open(&self.local.out)
                .map_or_else(|error| error, |_| CheckpointError::NoRun(self.local.out))
                .into()),
        }
    }

    /// The run of a ticket.
    async fn join(self, ticket: Ticket) -> Result<Entrance<'a>, Error> {
        match self.folder.holds(ticket.root.run)? {
            true => self.go_on(Some(ticket), None).await,
            false => self.enter(ticket).await,
        }
    }

    /// A new run.
    fn found(self, setup: RunSetup, manifest: Manifest, run_key: Secret) -> Result<Entrance<'a>, Error> {
        let run = manifest.run_id();
        // It may have begun here before and come to nothing; then the tickets of that time still work.
        let right = match self.folder.right_in(run) {
            Some(kept) => kept.clone(),
            None => Right::of_founder(run_key, manifest.root())?,
        };
        let known = self.folder.known(run);
        let way = Entry::Found(setup.first_state(&manifest));
        Ok(self.by(way, Arc::new(manifest), setup, right, known))
    }

    /// A run that has begun here, from its last checkpoint. Others do the same, and those that are behind follow.
    async fn go_on(mut self, ticket: Option<Ticket>, setup: Option<RunSetup>) -> Result<Entrance<'a>, Error> {
        let (writer, loaded) = RunWriter::open_in(self.folder.lock.clone())?;
        let manifest = Arc::new(loaded.manifest);
        for message in loaded.warnings {
            self.warn(message);
        }
        self.warn(format!(
            "going on with the run in {} after round {}. For another run name another folder with --out",
            self.local.out.display(),
            loaded.head.round
        ));
        let run = manifest.run_id();
        let mut known = self.folder.known(run);
        known.meet(self.folder.identity.peer(), loaded.head.members.iter());
        if let Some(ticket) = &ticket {
            known.ticket_addresses = texts(ticket);
        }
        let right = self.right(ticket, &manifest)?;
        let setup = match setup {
            Some(setup) => setup,
            None => {
                let ticket = ticket_to(&known, &right.ticket);
                self.set_up(&manifest, &ticket, &known, None).await?.0
            }
        };
        let way = Entry::GoOn(Box::new((writer, loaded.state, loaded.head)));
        Ok(self.by(way, manifest, setup, right, known))
    }

    /// This peer's rights in the run that has begun here: those in its folder, or those of a new ticket.
    fn right(&mut self, ticket: Option<Ticket>, manifest: &Manifest) -> Result<Right, Error> {
        let (root, kept) = (manifest.root(), self.folder.right_in(manifest.run_id()).cloned());
        let run_key = Some(self.folder.run_key()).filter(|key| key.key().peer() == root.key);
        match (ticket.or(kept.map(|right| right.ticket)), run_key) {
            (Some(ticket), run_key) => Ok(Right { ticket, run_key }),
            (None, Some(run_key)) => {
                self.warn(
                    "its ticket is gone: it hands on a new one. Those from before let people in".into(),
                );
                Ok(Right::of_founder(run_key, root)?)
            }
            (None, None) => Err(Error::NoTicket(self.local.out.clone())),
        }
    }

    /// A run of others.
    async fn enter(mut self, ticket: Ticket) -> Result<Entrance<'a>, Error> {
        let mut known = self.folder.known(ticket.root.run);
        known.ticket_addresses = texts(&ticket);
        let (first, manifest) = self.ask(&ticket, &known).await?;
        let manifest = Arc::new(Manifest::decode(&manifest)?);
        if manifest.root() != ticket.root {
            return Err(ManifestError::Unusable("it is not the one that the ticket names").into());
        }
        let (setup, sponsor) = self.set_up(&manifest, &ticket, &known, Some(&first)).await?;
        let way = Entry::Enter(sponsor.unwrap_or(first));
        let run_key = None;
        Ok(self.by(way, manifest, setup, Right { ticket, run_key }, known))
    }

    /// It is ready.
    fn by(
        self,
        way: Entry,
        manifest: Arc<Manifest>,
        setup: RunSetup,
        right: Right,
        known: Known,
    ) -> Entrance<'a> {
        Entrance {
            starting: self,
            manifest,
            setup,
            right,
            known,
            way,
            met: None,
        }
    }

    /// Sets up what computes. Fetches the data if it is not here, and then also returns a peer that still answers.
    async fn set_up(
        &mut self,
        manifest: &Manifest,
        ticket: &Ticket,
        known: &Known,
        first: Option<&Source>,
    ) -> Result<(RunSetup, Option<Source>), Error> {
        let found = RunSetup::of(manifest, &self.local, self.factories);
        let (missing, files) = match (found, manifest.data_source) {
            (
                Err(error @ (Error::NoData(_) | Error::OtherData { .. } | Error::Task(_))),
                DataSource::Given { files },
            ) if self.local.data.is_none() => (error, files),
            (found, _) => return Ok((found?, None)),
        };
        let first = match first {
            Some(first) => first.clone(),
            None => self.ask(ticket, known).await.map_err(|_| missing)?.0,
        };
        let (setup, from) = fetch_data(
            (ticket, &self.folder.identity),
            (first, files),
            manifest,
            &self.local,
            self.factories,
            self.sink,
        )
        .await?;
        Ok((setup, Some(from)))
    }

    /// A peer that answers, and the run's manifest.
    async fn ask(&self, ticket: &Ticket, known: &Known) -> Result<(Source, Bytes), DialError> {
        let others = known.contacts().map(|(_, contact)| contact);
        fetch_manifest(ticket, others, &self.folder.identity).await
    }

    /// Tells what the task made of the data, if it tells anything.
    fn describe(&mut self, setup: &RunSetup) {
        if !setup.description.is_empty() {
            let description = setup.description.clone();
            (self.sink)(Event::Data { description });
        }
    }

    fn warn(&mut self, message: String) {
        (self.sink)(Event::Warning { message });
    }
}

impl Entrance<'_> {
    /// Opens link, page and record, and runs the peer.
    async fn take_part(self, requests: &Requests, permission: &mut Permission) -> Result<Outcome, Error> {
        let Self {
            starting,
            manifest,
            mut setup,
            mut right,
            mut known,
            way,
            met,
        } = self;
        let Starting {
            folder, local, sink, ..
        } = starting;
        setup.suit(&local, &manifest, requests)?;
        let initial = match &setup.computes {
            Computes::Whole(_) => None,
            Computes::Spans { drawing, .. } => {
                Some(initial::drawn(&local.out, drawing, manifest.seed).map_err(Error::File)?)
            }
        };
        let mut home = listen(&folder.identity, &local, &manifest, &right, &setup, known.port).await?;
        let former = ticket_to(&known, &right.ticket);
        home.begin_with(initial);
        right.ticket.addrs = home.dialable();
        known.port = home.port();
        folder.keep(&right, &known, local.kept.as_deref())?;
        let meeting = match (met, &way) {
            (None, _) => None,
            (Some(met), Entry::Enter(_)) => Some(met.later()),
            (Some(met), _) => Some(met.tell(&right.ticket).await?),
        };
        let door = home.door.take();
        let (site, link, settings) = home.open(&local, &manifest, &right, &setup, sink)?;
        let mut told = told_to(&site, sink);
        let start = Instant::now();
        let new = || Destination::New(folder.lock.clone());
        let begins = matches!(way, Entry::Found(_) | Entry::Look(_));
        let warm = !matches!(way, Entry::Found(_));
        let mut looks = None;
        let (mut peer, record) = match way {
            Entry::Found(state) => (Peer::found(manifest.clone(), settings, state, Time(0)), new()),
            Entry::Look(state) => {
                let head = Head::unfounded(&manifest);
                (
                    Peer::resume(manifest.clone(), settings, state, head, Time(0)),
                    new(),
                )
            }
            Entry::GoOn(record) => {
                let (mut writer, state, head) = *record;
                let peer = Peer::resume(manifest.clone(), settings, state, head, Time(0));
                // A peer that may not go on alone waits for one that may.
                if let Some(founder) = peer.founder() {
                    writer.resume(founder.clone())?;
                }
                looks = Some(former);
                (peer, Destination::Open(Box::new(writer)))
            }
            Entry::Enter(Source { peer, contact }) => {
                let peer = Peer::join(manifest.clone(), settings, peer, &contact, Time(0));
                (peer, new())
            }
        };
        for (other, contact) in known.contacts() {
            peer.know(other, &contact);
        }
        let mut node = Participant::new(
            peer, link, manifest, setup, local, record, known, requests, permission, start, &mut told,
        );
        node.keep(folder.identity.clone(), right.clone());
        if begins {
            node.begin_record();
        }
        if warm {
            // Its speed is needed when it enters a run, which may also happen to one that goes on alone.
            node.warm();
        }
        if looks.is_some() {
            node.resume_record();
        }
        match (meeting, looks) {
            (Some(place), _) => node.meet_at(place, right.ticket, folder.identity.clone()),
            (None, Some(ticket)) => node.look_for(ticket, folder.identity.clone()),
            (None, None) => {}
        }
        if let Some((door, news)) = door {
            node.be_found(door, news);
        }
        let ending = node.run().await?;
        drop(told);
        Ok(ending.map_or(Outcome::Aside(site), Outcome::Over))
    }
}

/// A ticket's addresses, as text.
fn texts(ticket: &Ticket) -> Vec<String> {
    let addresses = ticket.addrs.iter().take(Contact::LIMIT);
    addresses.map(ToString::to_string).collect()
}
