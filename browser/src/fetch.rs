//! The run's data, fetched from a native peer into this tab's memory.
//!
//! A tab hands nothing on: nobody can dial it.

use crate::dial::{LocalPeer, Session, Stream, dial, next_chunk};
use crate::js::{self, bytes, object, words};
use crate::page::{Failure, Kind, Page, State};
use crate::run_task::load_inner;
use annulus::data::Data;
use annulus::data::gather::fetch;
use annulus::data::provision::{
    DataDialer, DataStream, FetchError, Here, ListedFile, Listing, News, PIECE, Pace, REST, SILENCE, Source,
    Store, TAB_LIMIT, silent, too_slow,
};
use annulus::events::Event;
use annulus::net::hello::Purpose;
use annulus::net::link::DialError;
use annulus::task::TaskError;
use annulus::task_factory::{LoadedTask, TaskFactory};
use annulus_core::{Digest, Manifest};
use bytes::Bytes;
use std::time::Duration;
use wasm_bindgen_futures::JsFuture;

/// Fetches the data of a run from `first`, or from whom that names: the task with it, the data by itself, and the peer
/// that was there to the last.
///
/// # Errors
///
/// If nobody hands it out, or there is too much of it.
pub async fn fetch_data(
    me: impl Fn() -> LocalPeer,
    (first, files): (Source, Digest),
    factory: &TaskFactory,
    manifest: &Manifest,
    limit: u64,
    page: &Page,
) -> Result<((LoadedTask, Data), Source), Failure> {
    page.state(State::Fetching, "");
    let mut store = Memory {
        factory,
        manifest,
        listing: None,
        files: Vec::new(),
    };
    let mut told = None;
    let mut tell = |news| match news {
        News::Got { bytes, total } => {
            page.state(State::Fetching, "");
            // A message for each percent is enough.
            let percent = bytes * 100 / total.max(1);
            if told.replace(percent) != Some(percent) {
                page.event(&Event::Fetch { bytes, total });
            }
        }
        News::Waiting => page.state(
            State::Fetching,
            "All that have the data are handing it to others. This tab waits for its turn.",
        ),
    };
    let fetched = fetch(
        &Guest { me },
        &mut store,
        first,
        files,
        limit.min(TAB_LIMIT),
        &mut tell,
    )
    .await;
    fetched.map_err(|error| {
        let kind = match error {
            FetchError::TooLarge { .. } => Kind::TooMuchData,
            FetchError::Kept => Kind::NoData,
            FetchError::Nobody(_) => Kind::DataUnreachable,
            FetchError::Here(_) => Kind::Internal,
        };
        Failure::new(kind, error.to_string())
    })
}

/// How a tab reaches peers.
struct Guest<F> {
    me: F,
}

impl<F: Fn() -> LocalPeer> DataDialer for Guest<F> {
    type DataStream = GuestStream;

    async fn dial(&self, source: &Source) -> Result<GuestStream, DialError> {
        let session = dial(&(self.me)(), source.peer, &source.contact.0, Purpose::Data).await?;
        Ok(GuestStream {
            session,
            pace: Pace::default(),
        })
    }

    async fn rest(&self) {
        js::sleep(1000.0 * REST.as_secs_f64()).await;
    }
}

/// A peer that was asked for data.
struct GuestStream {
    session: Session,
    pace: Pace,
}

impl DataStream for GuestStream {
    async fn send(&mut self, message: &[u8]) -> Result<(), String> {
        let written = self.session.control.writer.write_with_chunk(&bytes(message));
        let said = JsFuture::from(written).await;
        said.map(drop).map_err(|error| words(&error))
    }

    async fn receive(&mut self, most: usize) -> Result<Bytes, String> {
        let Stream { reader, rest, .. } = &mut self.session.control;
        if rest.is_empty() {
            let begin = js::now();
            let heard = async { Some(next_chunk(reader).await) };
            let silence = async {
                js::sleep(1000.0 * SILENCE.as_secs_f64()).await;
                None
            };
            let heard = futures_lite::future::or(heard, silence).await;
            let heard = heard.ok_or_else(silent)?;
            let chunk = heard.map_err(|error| words(&error))?;
            *rest = chunk.ok_or_else(|| "it hung up".to_owned())?.to_vec();
            let waited = Duration::from_micros(js::now() - begin);
            if !self.pace.keeps(rest.len(), waited) {
                return Err(too_slow());
            }
        }
        let after = rest.split_off(most.min(rest.len()));
        Ok(std::mem::replace(rest, after).into())
    }
}

impl Drop for GuestStream {
    fn drop(&mut self) {
        self.session.transport.close(&object(&[]));
    }
}

/// The files in memory.
struct Memory<'a> {
    factory: &'a TaskFactory,
    manifest: &'a Manifest,
    listing: Option<Listing>,
    files: Vec<Vec<u8>>,
}

impl Store for Memory<'_> {
    type Whole = (LoadedTask, Data);

    fn wants(&self, name: &str) -> bool {
        self.manifest.split.is_none() || self.factory.inner.is_some_and(|needs| needs(name))
    }

    fn begin(&mut self, listing: &Listing) -> Result<Vec<Here>, String> {
        if self.listing.is_some() {
            // All of it was here and was taken.
            return Ok(vec![Here::default(); listing.files.len()]);
        }
        self.listing = Some(listing.clone());
        let mut missing = Vec::new();
        for ListedFile { size, .. } in &listing.files {
            let mut file = Vec::new();
            let len = usize::try_from(*size).unwrap_or(usize::MAX);
            file.try_reserve_exact(len)
                .map_err(|_| format!("this tab has no room for {size} bytes of data"))?;
            file.resize(len, 0);
            self.files.push(file);
            missing.push(Here {
                missing: (0..size.div_ceil(PIECE)).collect(),
                ..Here::default()
            });
        }
        Ok(missing)
    }

    fn put(&mut self, file: usize, piece: u64, bytes: &[u8]) -> Result<(), String> {
        self.files[file][(piece * PIECE) as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<(LoadedTask, Data), String> {
        let listing = self.listing.clone().ok_or("nothing was begun")?;
        let names = listing.files.into_iter().map(|file| file.name);
        let files = std::mem::take(&mut self.files).into_iter().map(Bytes::from);
        let mut files: Vec<(String, Bytes)> = names.zip(files).collect();
        let data = match (listing.folder, files.pop()) {
            (false, Some((name, bytes))) => Data::file_in_memory(&name, bytes),
            (_, last) => {
                files.extend(last);
                Data::folder_in_memory(files)
            }
        };
        let of_data = |error: TaskError| error.to_string();
        if self.manifest.split.is_some() {
            // These are some of the files, each of which has been checked.
            let loaded = load_inner(self.factory, self.manifest, Some(&data));
            return Ok((loaded.map_err(of_data)?, data));
        }
        let loaded = (self.factory.load)(&self.manifest.task_config, Some(&data)).map_err(of_data)?;
        match loaded.data == self.manifest.data {
            true => Ok((loaded, data)),
            false => Err("the run's files are not the data that its manifest names".into()),
        }
    }
}
