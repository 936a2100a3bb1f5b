//! The loop of every participant, native, in a tab or of a benchmark: feeds the driver and does what it asks for. What a
//! host is differs; when it has its turn does not.

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

/// What a participant runs on: a clock, a device, somebody to tell, and what comes from beside the link. Neither it nor its
/// futures need be [`Send`]: a browser's are not.
pub trait Host {
    /// How it reaches others.
    type Link: Link;
    /// What happens beside the link: a command, a contribution, a file that was written.
    type Happening;

    /// The time, on a clock that never goes back.
    fn now(&self) -> Time;

    /// Waits for so long, at least.
    fn sleep(duration: Duration) -> impl Future<Output = ()>;

    /// Lets the thread's other tasks have their turn, before each turn of the loop: at once if the peer is in the middle of
    /// something long, else where frames that keep coming would leave them none.
    fn give_way(&mut self, busy: bool) -> impl Future<Output = ()>;

    /// The next happening. Dropping the future loses none.
    fn next(&mut self) -> impl Future<Output = Self::Happening>;

    /// Something happened: what it means for the peer, or that the loop is to end at once.
    fn on_happening(
        &mut self,
        happening: Self::Happening,
        driver: &mut Driver<Self::Link>,
    ) -> ControlFlow<Exit>;

    /// Starts to make a contribution, as [`Todo::Compute`] says. It comes back as a happening.
    fn compute(&mut self, round: Round, share: Share);

    /// Starts to compute a pass through a span, as [`Todo::Span`] says. It comes back as a happening.
    fn compute_span(&mut self, work: Box<SpanWork>, samples: Vec<u64>);

    /// Starts to read from the disk what is there of a lineage, as [`Todo::Restore`] says. It comes back as a happening. Who has
    /// told the peer of nothing is not asked.
    fn restore(&mut self, _stepped: Digest) {}

    /// Tells the world. The peer is as it was right after the event.
    fn tell(&mut self, event: Event, driver: &Driver<Self::Link>);

    /// The link has something for the driver.
    fn on_link(&mut self, event: LinkEvent, driver: &mut Driver<Self::Link>) {
        driver.on_link(event, self.now());
    }

    /// Feeds the driver.
    fn feed(&mut self, input: Input, driver: &mut Driver<Self::Link>) {
        driver.handle(input, self.now());
    }
}

/// What the loop waits for.
enum Turn<H> {
    Host(H),
    Link(Option<LinkEvent>),
    Time,
}

/// Lets a peer take part until it is done, or its host wants no more, or its link has stopped for good.
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
        // Before anything else, or frames that keep coming would keep it from being seen.
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

/// Timers need not know of a longer one.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Waits for whatever comes first; of what is there at once, the host's goes before the link's, which may never end.
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
