//! Fetches a run's data for a peer that lacks it, into the cache.

use crate::data::cache::{self, Place};
use crate::data::fetch::Guest;
use crate::data::gather::fetch;
use crate::data::provision::{FetchError, News, Source};
use crate::events::{Event, Sink};
use crate::net::identity::Identity;
use crate::net::ticket::Ticket;
use crate::options::Local;
use crate::participant::error::Error;
use crate::participant::run_data::{check_data, find};
use crate::participant::run_setup::RunSetup;
use crate::task_factory::TaskFactory;
use annulus_core::{Digest, Manifest};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

/// Fetches the run's data into the cache, or what is needed first of streamed data, and sets up what computes. Also returns a peer
/// that still answers.
pub(super) async fn fetch_data(
    (ticket, identity): (&Ticket, &Arc<Identity>),
    (first, files): (Source, Digest),
    manifest: &Manifest,
    local: &Local,
    factories: &[TaskFactory],
    sink: Sink<'_>,
) -> Result<(RunSetup, Source), Error> {
    let failed = |why| Error::NotFetched { why };
    let folder = cache::folder().unwrap_or_else(|| local.out.join("data"));
    let place = Place::new(folder, manifest.data);
    let wait = || {
        let message = "waiting for another process on this machine, which fetches the same data".into();
        sink(Event::Warning { message });
    };
    let budget = local.cache.unwrap_or(cache::LIMIT);
    // An outside process reads plain files.
    if manifest.chunk > NonZeroU32::MIN && !local.external {
        // Pieces come and go, so no other peer may rely on them.
        let own = Place::new(local.out.join("data"), manifest.data);
        let fetching = own.fetching(wait).await;
        let fetching = fetching.map_err(|error| failed(FetchError::Here(error.to_string())))?;
        let whole = find(factories, &manifest.task)?.inner;
        let by = (ticket.clone(), identity.clone());
        let data = Guest::supply(by, (first.clone(), files), fetching, budget, whole).await;
        let setup = RunSetup::on_demand(manifest, data.map_err(failed)?, local, factories)?;
        let _ = place.share_with(manifest.run_id(), !local.keep_data);
        return Ok((setup, first));
    }
    let fetching = place.fetching(wait).await;
    let fetching = fetching.map_err(|error| failed(FetchError::Here(error.to_string())))?;
    let setup = |path| {
        let local = Local {
            data: Some(path),
            ..local.clone()
        };
        RunSetup::of(manifest, &local, factories)
    };
    // Another process may have fetched it meanwhile.
    if let Some(path) = place.found()
        && let Ok(setup) = setup(path)
    {
        return Ok((setup, first));
    }
    let (mut told, mut waits) = (None, false);
    let mut tell = |news| match news {
        News::Got { bytes, total } => {
            waits = false;
            // One line per percent is enough.
            let percent = bytes * 100 / total.max(1);
            if told.replace(percent) != Some(percent) {
                sink(Event::Fetch { bytes, total });
            }
        }
        News::Waiting if !waits => {
            waits = true;
            let message = "waiting for the run's data: all that have it are handing it to others".into();
            sink(Event::Warning { message });
        }
        News::Waiting => {}
    };
    let is_it = |path: &Path| check_data(manifest, (path, local.memory), factories);
    let mut store = fetching.into_store(budget, is_it);
    let guest = Guest::new(ticket, identity)?;
    let fetched = fetch(&guest, &mut store, first, files, budget, &mut tell).await;
    guest.leave().await;
    let (path, from) = fetched.map_err(failed)?;
    // Data from a run's members goes to its newcomers, and to nobody else. If this fails, it goes to nobody.
    let _ = place.share_with(manifest.run_id(), !local.keep_data);
    Ok((setup(path)?, from))
}
