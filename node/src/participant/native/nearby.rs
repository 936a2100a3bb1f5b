//! Lets peers without a ticket find this one on the local network, and informs the user.

use super::{NativeHost, Participant};
use crate::events::Event;
use crate::net::nearby::announcement::Announcement;
use crate::net::nearby::door::{Door, GUESSES, News};
use crate::net::nearby::multicast::{Announcer, Mute};
use annulus_core::Peer;
use annulus_net::files::write_private;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

/// The file in the folder with the current code, for its owner.
const CODE: &str = "code";

/// A member's announcement and code.
pub(super) struct Nearby {
    door: Arc<Door>,
    news: UnboundedReceiver<News>,
    /// The announcement, or why there is none; none before it was tried.
    announcer: Option<Result<Announcer, Mute>>,
    /// The file with the code, while it is valid.
    file: Option<PathBuf>,
}

impl Nearby {
    /// Starts to announce the run, once this peer can admit others. Returns an event for the user, if there is one.
    fn begin(&mut self, peer: &Peer, at: SocketAddr, folder: &Path) -> Option<Event> {
        let is_member = peer.head().members.iter().any(|member| member.peer == peer.me());
        if self.announcer.is_some() || !is_member {
            return None;
        }
        let told = announcement(peer, &self.door);
        match self.announcer.insert(Announcer::start(at, told)) {
            Ok(_) => {
                self.file = Some(folder.join(CODE));
                let role = self.door.role();
                Some(self.told(format!("whoever has the code comes in with the role {role}")))
            }
            // This was requested.
            Err(Mute::Alone) => None,
            Err(why) => Some(Event::Nearby {
                code: None,
                why: format!("nobody on this network is told of the run: {why}"),
            }),
        }
    }

    /// The event that shows the code.
    fn told(&self, why: String) -> Event {
        let code = self.door.code().to_string();
        if let Some(file) = &self.file {
            // A peer that cannot announce itself shows its code here.
            let _ = write_private(file, format!("{code}\n").as_bytes());
        }
        Event::Nearby {
            code: Some(code),
            why,
        }
    }
}

impl Drop for Nearby {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // It admits nobody any more.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Participant<'_> {
    /// Lets others on the network find the run and join by a door.
    pub fn be_found(&mut self, door: Arc<Door>, news: UnboundedReceiver<News>) {
        self.host.nearby = Some(Nearby {
            door,
            news,
            announcer: None,
            file: None,
        });
    }
}

impl NativeHost<'_> {
    /// Updates the announcement, and tells the user what has happened at the door.
    pub(super) fn tell_nearby(&mut self, peer: &Peer, at: SocketAddr) {
        let Some(nearby) = &mut self.nearby else {
            return;
        };
        let mut events: Vec<Event> = nearby.begin(peer, at, &self.local.out).into_iter().collect();
        if let Some(Ok(announcer)) = &mut nearby.announcer {
            announcer.update(peer.head().members.len(), Instant::now());
        }
        while let Ok(news) = nearby.news.try_recv() {
            events.push(nearby.told(in_words(news)));
        }
        events.into_iter().for_each(|event| (self.sink)(event));
    }

    /// Withdraws the announcement.
    pub(super) async fn leave_nearby(&mut self) {
        let announcer = self.nearby.take().and_then(|mut nearby| nearby.announcer.take());
        if let Some(Ok(announcer)) = announcer {
            // If this fails, others forget it by themselves.
            let _ = tokio::task::spawn_blocking(move || announcer.end()).await;
        }
    }
}

fn announcement(peer: &Peer, door: &Door) -> Announcement {
    let (run, members) = (peer.manifest().run_id(), peer.head().members.len());
    Announcement::new(run, &peer.manifest().task, peer.me(), members, door.code().tag())
}

fn in_words(news: News) -> String {
    match news {
        News::Entered(from) => format!("{from} had the code, and was let in"),
        News::Wrong(from, left) => {
            format!("{from} tried a wrong code; after {left} more there is another")
        }
        News::Closed(from, pause) => format!(
            "{GUESSES} wrong codes were tried, the last by {from}: now there is another, and none is taken for {}",
            minutes(pause)
        ),
        News::UsedUp => "the former code has let in as many as one may: now there is another".into(),
    }
}

fn minutes(time: Duration) -> String {
    match time.as_secs() / 60 {
        1 => "a minute".into(),
        minutes => format!("{minutes} minutes"),
    }
}
