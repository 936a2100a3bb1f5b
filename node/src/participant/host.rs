//! The event loop of every participant: native, in a tab, or in a benchmark. It feeds the driver and carries out what
//! it asks for. Hosts differ, but the order of turns does not.

use super::driver::{Driver, Todo};
use crate::net::link::{Link, LinkEvent, next_event};
use crate::trainer::Share;
use annulus_core::interface::SpanWork;
use annulus_core::peer::Event;
use annulus_core::{Digest, Exit, Input, Round, Time};
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The environment of a participant: a clock, a device, a listener, and events beside those of the link. Neither it nor
/// its futures need be [`Send`]: a browser's are not.
pub trait Host {
    /// How it reaches others.
    type Link: Link;
    /// Events beside those of the link: a command, a contribution, a written file.
    type Happening;

    /// The time of a monotonic clock.
    fn now(&self) -> Time;

    /// Waits at least this long.
    fn sleep(duration: Duration) -> impl Future<Output = ()>;

    /// Lets the thread's other tasks run, before each turn of the loop: immediately if the peer is in the middle of
    /// long work, else if incoming frames would leave them no time.
    fn give_way(&mut self, busy: bool) -> impl Future<Output = ()>;

    /// The next event. Dropping the future loses none.
    fn next(&mut self) -> impl Future<Output = Self::Happening>;

    /// Translates an event for the peer, or ends the loop at once.
    fn on_happening(
        &mut self,
        happening: Self::Happening,
        driver: &mut Driver<Self::Link>,
    ) -> ControlFlow<Exit>;

    /// Starts to make a contribution, as [`Todo::Compute`] says. The result comes as an event.
    fn compute(&mut self, round: Round, share: Share);

    /// Starts a pass through a span, as [`Todo::Span`] says. The result comes as an event.
    fn compute_span(&mut self, work: Box<SpanWork>, samples: Vec<u64>);

    /// Starts to read a lineage's parts from the disk, as [`Todo::Restore`] says. The result comes as an event. Only
    /// called if the peer was told that there are some.
    fn restore(&mut self, _stepped: Digest) {}

    /// Reports an event. The peer is as it was right after the event.
    fn tell(&mut self, event: Event, driver: &Driver<Self::Link>);

    /// The link has an event for the driver.
    fn on_link(&mut self, event: LinkEvent, driver: &mut Driver<Self::Link>) {
        driver.on_link(event, self.now());
    }

    /// Feeds the driver an input.
    fn feed(&mut self, input: Input, driver: &mut Driver<Self::Link>) {
        driver.handle(input, self.now());
    }
}

/// The input that ended a wait of the loop.
enum Turn<H> {
    Host(H),
    Link(Option<LinkEvent>),
    Time,
}

/// Lets a peer take part until it is done, its host ends it, or its link has stopped for good.
pub async fn run<H: Host>(host: &mut H, driver: &mut Driver<H::Link>) -> Exit {
    loop {
        while let Some(todo) = driver.next_todo() {
            match todo {
                Todo::Compute { round, share } => host.compute(round, share),
                Todo::Span { work, samples } => host.compute_span(work, samples),
                Todo::Restore { stepped } => host.restore(stepped),
                Todo::Event(event) => host.tell(event, driver),
                Todo::Exit(exit) => return exit,
            }
        }
        let busy = driver.is_busy();
        host.give_way(busy).await;
        if busy {
            driver.handle(Input::Tick, host.now());
            continue;
        }
        let wake = driver.peer().wake_at().unwrap_or(Time(u64::MAX / 2));
        let now = host.now();
        // Before anything else, or a stream of frames would delay it.
        if wake <= now {
            host.feed(Input::Tick, driver);
            continue;
        }
        match next(host, driver.link(), (wake - now).min(LONGEST_SLEEP)).await {
            Turn::Host(happening) => {
                if let ControlFlow::Break(exit) = host.on_happening(happening, driver) {
                    return exit;
                }
            }
            Turn::Link(Some(event)) => host.on_link(event, driver),
            Turn::Link(None) => return Exit::Left,
            Turn::Time => host.feed(Input::Tick, driver),
        }
    }
}

/// Timers need not support longer times.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Waits for the first event. If both are ready, the host's goes before the link's, which may never end.
async fn next<H: Host>(host: &mut H, link: &mut H::Link, wait: Duration) -> Turn<H::Happening> {
    let mut happening = pin!(host.next());
    let mut event = pin!(next_event(link));
    let mut time = pin!(H::sleep(wait));
    std::future::poll_fn(|context| {
        if let Poll::Ready(happening) = happening.as_mut().poll(context) {
            return Poll::Ready(Turn::Host(happening));
        }
        if let Poll::Ready(event) = event.as_mut().poll(context) {
            return Poll::Ready(Turn::Link(event));
        }
        time.as_mut().poll(context).map(|()| Turn::Time)
    })
    .await
}
