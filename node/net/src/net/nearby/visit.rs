//! Joins by code: the exchange between the two ends of a connection made only for this.
//!
//! It has its own application protocol in TLS. Both ends show certificates, whose keys are their names; the joiner's
//! need not be the name that it takes part under later. On one stream the joiner sends its version and its share of the
//! exchange, the host its share, the joiner its proof, and the host the sealed ticket, all with fixed lengths. Anything
//! else closes the connection, with a [`Refusal`] if the host closes it.

use super::code::Code;
use super::door::Door;
use super::pake::{Exchange, Names, PROOF, SEALED, SHARE, Side};
use crate::net::config::HANDSHAKE_TIMEOUT;
use crate::net::connect::connect;
use crate::net::connection::LEFT;
use crate::net::handshake::{LocalPeer, canonical, dial_error};
use crate::net::hello::{VERSION, addresses};
use crate::net::identity::Identity;
use crate::net::link::{DialError, Refusal};
use crate::net::ticket::Ticket;
use crate::net::transport::{Configs, dialling_endpoint, peer_at};
use annulus_core::{Contact, PeerId};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// Label for the value that is unique to a session, as TLS exports it to both ends.
const SESSION: &[u8] = b"EXPORTER-annulus-1-code";

/// How long to wait for the last packets.
const CLOSING: Duration = Duration::from_millis(200);

/// The host's end: admits a peer that knows the door's code.
///
/// # Errors
///
/// Why it does not.
pub(crate) async fn receive(
    me: &LocalPeer,
    door: Option<&Door>,
    connection: &Connection,
) -> Result<(), Refusal> {
    let door = door.ok_or(Refusal::NoCode)?;
    let joiner = peer_at(connection).ok_or(Refusal::BadHandshake)?;
    let tried = door.approach(Instant::now())?;
    let lost = |_| Refusal::BadHandshake;
    let (mut send, mut recv) = connection.accept_bi().await.map_err(lost)?;
    if read::<2>(&mut recv).await? != VERSION.to_le_bytes() {
        return Err(Refusal::AnotherVersion);
    }
    let theirs = read::<SHARE>(&mut recv).await?;
    let names = Names {
        joiner,
        host: me.peer,
    };
    let (exchange, ours) = Exchange::begin(Side::Host, &tried.code, names);
    let session = session(connection).ok_or(Refusal::BadHandshake)?;
    let agreed = exchange.finish(&theirs, &session).ok_or(Refusal::BadHandshake)?;
    write(&mut send, &ours).await?;
    let proof = read::<PROOF>(&mut recv).await?;
    let from = canonical(connection.remote_address()).ip();
    door.judge(tried, agreed.is_proven_by(&proof), from, Instant::now())?;

    let contact = me.contact();
    let addrs = addresses(&contact.0).filter_map(|address| address.parse().ok());
    // With a clock before 1970 the ticket has expired everywhere else.
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ticket = door.ticket(addrs.take(Contact::LIMIT).collect(), since_1970.as_secs());
    let ticket = ticket.ok_or(Refusal::NoCode)?;
    write(&mut send, &agreed.seal(&ticket.to_string())).await?;
    // The joiner closes when it has read everything.
    connection.closed().await;
    Ok(())
}

/// Refuses a peer with a reason that the other end can show to its user.
pub(crate) fn refuse(connection: &Connection, refusal: Refusal) {
    connection.close(VarInt::from_u32(refusal.code()), refusal.to_string().as_bytes());
}

/// The joiner's end: gets a ticket from a member at one of these addresses that shows this code.
///
/// # Errors
///
/// If nobody answers, or the code is wrong.
pub async fn enter(at: &[SocketAddr], code: &Code) -> Result<Ticket, DialError> {
    // This name is used only here: the ticket is for whoever holds it.
    let identity = Identity::generate();
    let configs = Configs::for_code(&identity, HANDSHAKE_TIMEOUT);
    let endpoint = dialling_endpoint()
        .map_err(|error| DialError::NoAddress(format!("no UDP socket can be had: {error}")))?;
    let visit = async {
        let texts = at.iter().map(ToString::to_string).collect();
        let connection = connect(&endpoint, &configs, texts, None).await?;
        let there = peer_at(&connection).ok_or(DialError::Unproven)?;
        let got = ask((identity.peer(), there), code, &connection).await;
        connection.close(VarInt::from_u32(LEFT), b"");
        let mut ticket = got?;
        // The address where the member was found works again later.
        let found = canonical(connection.remote_address());
        ticket.addrs.retain(|address| *address != found);
        ticket.addrs.insert(0, found);
        ticket.addrs.truncate(Contact::LIMIT);
        Ok::<_, DialError>(ticket)
    };
    let entered = timeout(HANDSHAKE_TIMEOUT, visit).await;
    let _ = timeout(CLOSING, endpoint.wait_idle()).await;
    entered.unwrap_or_else(|_| Err(DialError::Unreachable("no answer in time".to_owned())))
}

/// Asks for a ticket over a connection.
async fn ask(
    (joiner, host): (PeerId, PeerId),
    code: &Code,
    connection: &Connection,
) -> Result<Ticket, DialError> {
    let broken = |why: &str| DialError::Broken(why.to_owned());
    let (exchange, ours) = Exchange::begin(Side::Joiner, code, Names { joiner, host });
    let session = session(connection).ok_or_else(|| broken("TLS gives nothing to tell sessions apart"))?;
    let talk = async {
        let (mut send, mut recv) = connection.open_bi().await.map_err(|_| Refusal::BadHandshake)?;
        write(&mut send, &VERSION.to_le_bytes()).await?;
        write(&mut send, &ours).await?;
        let agreed = exchange.finish(&read::<SHARE>(&mut recv).await?, &session);
        let agreed = agreed.ok_or(Refusal::BadHandshake)?;
        write(&mut send, &agreed.proof()).await?;
        Ok((agreed, read::<SEALED>(&mut recv).await?))
    };
    let talked: Result<_, Refusal> = talk.await;
    let Ok((agreed, sealed)) = talked else {
        // The close has the reason, and may arrive shortly after the stream's end.
        let closed = timeout(CLOSING, connection.closed()).await;
        return Err(closed.map_or_else(|_| broken("the answer makes no sense"), dial_error));
    };
    let text = agreed.open(sealed).ok_or(DialError::Unproven)?;
    text.parse::<Ticket>()
        .map_err(|error| broken(&format!("what came is no ticket ({error})")))
}

/// A value that is unique to a session, equal at both ends and known to nobody else.
fn session(connection: &Connection) -> Option<[u8; 32]> {
    let mut unique = [0; 32];
    connection
        .export_keying_material(&mut unique, SESSION, b"")
        .ok()?;
    Some(unique)
}

async fn read<const N: usize>(recv: &mut RecvStream) -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    let read = recv.read_exact(&mut bytes).await;
    read.map(|()| bytes).map_err(|_| Refusal::BadHandshake)
}

async fn write(send: &mut SendStream, bytes: &[u8]) -> Result<(), Refusal> {
    send.write_all(bytes).await.map_err(|_| Refusal::BadHandshake)
}

#[cfg(test)]
mod tests;
