//! A tab's link and nothing else, for `cargo xtask bench-browser --link` to measure: it sends and counts what the node
//! at the other end says. The measuring is in `node/tests/peers/tab_link.rs`.

#[cfg(target_family = "wasm")]
mod link {
    use annulus::net::link::{Link, LinkEvent, next_event};
    use annulus::net::ticket::Ticket;
    use annulus_browser::links::{LocalPeer, PageServer, TabLink, generate, next_task, now};
    use annulus_core::Lane;
    use bytes::Bytes;
    use serde::Deserialize;
    use wasm_bindgen::prelude::*;

    /// How long frames may be taken without a turn for others, in microseconds: as in a run.
    const TURN: u64 = 20_000;

    /// What the node says on the control lane.
    #[derive(Deserialize)]
    struct Order {
        /// Bytes that the tab is to send on the bulk lane.
        send: usize,
        /// Bytes of each frame.
        frame: usize,
        /// Bytes that come on the bulk lane; once they are here, the tab says so on the control lane.
        expect: usize,
    }

    /// Does what the node says until the link goes down.
    #[wasm_bindgen]
    pub async fn obey(ticket: String) -> Result<(), JsValue> {
        let wrong = |error: String| JsValue::from(error);
        let ticket: Ticket = ticket
            .parse()
            .map_err(|error: annulus::net::ticket::TicketError| wrong(error.to_string()))?;
        let host = PageServer::ask().await.map_err(wrong)?;
        let key = generate();
        let me = LocalPeer {
            admission: ticket.right().admit(key.peer(), ticket.root.run),
            root: ticket.root,
            key,
            instance: getrandom::u64().map_err(|error| wrong(error.to_string()))?,
        };
        let mut link = TabLink::new(me, host.peer, 0);
        link.dial(host.peer, &host.contact(&[]));
        let mut expected = 0;
        let mut since = now();
        while let Some(event) = next_event(&mut link).await {
            match event {
                LinkEvent::Up { .. } => {}
                LinkEvent::Down { .. } => return Ok(()),
                LinkEvent::DialFailed { reason, .. } => return Err(wrong(reason.to_string())),
                LinkEvent::Frame { peer, lane, bytes } => {
                    if lane == Lane::Bulk {
                        expected -= bytes.len();
                    } else {
                        let order: Order =
                            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
                        expected = order.expect;
                        let frame = Bytes::from(vec![0x5a; order.frame]);
                        for _ in 0..order.send / order.frame {
                            link.send(peer, Lane::Bulk, frame.clone().into())
                                .map_err(|error| wrong(error.to_string()))?;
                        }
                    }
                    if expected == 0 && lane == Lane::Bulk {
                        link.send(peer, Lane::Control, Bytes::from_static(b"all").into())
                            .map_err(|error| wrong(error.to_string()))?;
                    }
                }
            }
            if now() - since > TURN {
                next_task().await;
                since = now();
            }
        }
        Ok(())
    }
}

#[cfg(target_family = "wasm")]
fn main() {
    // It knows no task, but wants what a program of this crate begins with.
    annulus_browser::register(Vec::new());
}

#[cfg(not(target_family = "wasm"))]
fn main() -> std::process::ExitCode {
    eprintln!("this program is for a browser: `cargo xtask bench-browser --link` builds and opens its page");
    std::process::ExitCode::FAILURE
}
