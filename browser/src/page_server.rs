//! The peer that serves the page, as it describes itself.

use crate::js;
use annulus::net::hello::{CERTIFICATE, addresses};
use annulus_core::{Contact, PeerId};
use serde::Deserialize;
use wasm_bindgen::prelude::*;
use web_sys::WorkerGlobalScope;

/// What `/peer.json` says.
#[derive(Debug, Deserialize)]
struct Words {
    peer: String,
    certificates: Vec<String>,
    port: u16,
    #[serde(default)]
    addresses: Vec<String>,
}

/// The peer that serves the page.
#[derive(Clone, Debug)]
pub struct PageServer {
    /// Its name.
    pub peer: PeerId,
    certificates: Vec<String>,
    /// The likeliest first.
    addresses: Vec<String>,
}

impl PageServer {
    /// Asks it.
    ///
    /// # Errors
    ///
    /// If it does not answer, or not in these words.
    pub async fn ask() -> Result<Self, String> {
        let text = js::get("/peer.json").await.map_err(|error| js::words(&error))?;
        let words: Words = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let scope: WorkerGlobalScope = js_sys::global()
            .dyn_into()
            .map_err(|_| "this is not a worker".to_owned())?;
        let name = scope.location().hostname();
        let mut addresses = vec![format!("{name}:{}", words.port)];
        if name == "localhost" {
            // It stands for two addresses, of which the node may have but one.
            let loopback = |address: &&String| address.starts_with("127.") || address.starts_with("[::1]");
            let known: Vec<String> = words.addresses.iter().filter(loopback).cloned().collect();
            addresses.splice(0..0, known);
        }
        Ok(Self {
            peer: PeerId::from_hex(&words.peer).ok_or("the name of the page's server makes no sense")?,
            certificates: words.certificates,
            addresses,
        })
    }

    /// The peer that a link names, or else the one that serves the page.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn of(link: &str) -> Result<Self, String> {
        match Self::named(link) {
            Some(named) => Ok(named),
            None => Self::ask().await,
        }
    }

    /// The peer that a link names behind its ticket, `peer=` and `cert=` with `&` between: of a page that no peer serves. The
    /// ticket has its addresses.
    fn named(link: &str) -> Option<Self> {
        let parts = || link.split('&').filter_map(|part| part.split_once('='));
        let all = |key| {
            parts()
                .filter(move |(name, _)| *name == key)
                .map(|(_, value)| value)
        };
        Some(Self {
            peer: PeerId::from_hex(all("peer").next()?)?,
            certificates: all("cert").map(str::to_owned).collect(),
            addresses: Vec::new(),
        })
    }

    /// Where it can be dialled: where the page comes from, then at these addresses.
    pub fn contact(&self, known: &[String]) -> Vec<String> {
        let certificates = self
            .certificates
            .iter()
            .map(|hash| format!("{CERTIFICATE}{hash}"));
        let mut contact: Vec<String> = self.addresses.iter().cloned().chain(certificates).collect();
        for address in addresses(known) {
            if !contact.contains(address) {
                contact.push(address.clone());
            }
        }
        contact.truncate(Contact::LIMIT);
        contact
    }
}
