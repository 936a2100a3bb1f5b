//! Dials a peer that may be at any of several addresses.

use crate::net::addresses::dialable;
use crate::net::connection::LEFT;
use crate::net::handshake::dial_error;
use crate::net::hello;
use crate::net::identity::TLS_NAME;
use crate::net::link::DialError;
use crate::net::transport::{Configs, Path, peer_at};
use annulus_core::{Contact, PeerId};
use quinn::{Connection, Endpoint};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Each further address is dialled this long after the one before it.
const DIAL_STAGGER: Duration = Duration::from_millis(250);

/// Connects over QUIC to the first address that answers. Attempts start shortly after each other.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    configs: &Configs,
    addresses: Vec<String>,
    expected: Option<PeerId>,
) -> Result<Connection, DialError> {
    let mut unusable = vec![];
    let mut attempts = JoinSet::new();
    let mut started: u32 = 0;
    for address in hello::addresses(&addresses) {
        let resolved: Vec<SocketAddr> = match tokio::net::lookup_host(address).await {
            Ok(resolved) => resolved.flat_map(dialable).take(Contact::LIMIT).collect(),
            Err(error) => {
                unusable.push(format!("{address} ({error})"));
                continue;
            }
        };
        for to in resolved {
            let (endpoint, config, wait) = (
                endpoint.clone(),
                configs.client(Path::to(to)),
                DIAL_STAGGER * started,
            );
            started += 1;
            attempts.spawn(async move {
                sleep(wait).await;
                let connecting = endpoint
                    .connect_with(config, to, TLS_NAME)
                    .map_err(|error| DialError::NoAddress(format!("{to} ({error})")))?;
                let connection = connecting.await.map_err(|error| match dial_error(error) {
                    DialError::Unreachable(why) => DialError::Unreachable(format!("{to} ({why})")),
                    error => error,
                })?;
                Ok((connection, to))
            });
        }
    }
    if started == 0 {
        let why = if unusable.is_empty() {
            "none was given".to_owned()
        } else {
            unusable.join(", ")
        };
        return Err(DialError::NoAddress(why));
    }
    let (mut silent, mut told) = (vec![], None);
    while let Some(attempt) = attempts.join_next().await {
        // The attempts neither panic nor are aborted while this set lives.
        let Ok(attempt) = attempt else { continue };
        match attempt {
            Ok((connection, to)) => match peer_at(&connection) {
                Some(peer) if expected.is_none_or(|expected| expected == peer) => {
                    return Ok(connection);
                }
                Some(peer) => {
                    connection.close(LEFT.into(), b"");
                    told = Some(DialError::AnotherPeer(peer));
                }
                None => silent.push(format!("{to} (no certificate)")),
            },
            Err(DialError::Unreachable(why) | DialError::NoAddress(why)) => silent.push(why),
            Err(error) => told = told.or(Some(error)),
        }
    }
    silent.extend(unusable);
    Err(told.unwrap_or_else(|| DialError::Unreachable(silent.join(", "))))
}
