//! A tab in the ring, or on its way there: what happens beside its links, and what the volunteer is shown of it.

use crate::answers::{Answers, Question};
use crate::compute::{Compute, Job};
use crate::js;
use crate::link::TabLink;
use crate::model_file::Held;
use crate::page::{Failure, Page, State};
use crate::queue::Queue;
use crate::run_task::failed;
use annulus::events::Event;
use annulus::net::link::LinkEvent;
use annulus::participant::compute::ComputeResult;
use annulus::participant::driver::Driver;
use annulus::participant::event_translator::{EventTranslator, standing_aside};
use annulus::participant::host::Host;
use annulus::trainer::Share;
use annulus_core::interface::SpanWork;
use annulus_core::peer::Event as PeerEvent;
use annulus_core::{Exit, Input, Round, Time};
use futures_lite::future::or;
use std::ops::ControlFlow;
use std::time::Duration;

/// Frames that wait must not keep the loop for longer, in microseconds, from what else the thread has to do.
const LONGEST_TURN: u64 = 20_000;

/// What the volunteer says.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Out of the ring for now.
    Pause,
    /// Back into it.
    Resume,
    /// Out of the ring.
    Leave,
    /// Share of the time that the device may be busy.
    Power(f64),
    /// An answer of the model.
    Ask(Question),
}

/// Why a tab is on its way out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// For good.
    Away,
    /// For now.
    Aside,
    /// The volunteer has changed their mind: to come back at once.
    Back,
}

/// What a tab's participant runs on.
pub struct Tab<'a> {
    compute: &'a Compute,
    answers: &'a Answers,
    commands: &'a Queue<Command>,
    page: &'a Page,
    translator: EventTranslator,
    member: bool,
    /// Whether it stands aside.
    aside: bool,
    since_break: u64,
    /// Why it is on its way out of the ring, if it is.
    pub going: Option<Going>,
    /// What this tab cannot go on with.
    pub broken: Option<Failure>,
}

/// What happens beside the links.
pub enum Happening {
    /// Something was computed.
    Computed(ComputeResult),
    /// The volunteer wants something.
    Command(Command),
}

impl Host for Tab<'_> {
    type Link = TabLink;
    type Happening = Happening;

    fn now(&self) -> Time {
        Time(js::now())
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> {
        js::sleep((duration.as_secs_f64() * 1000.0).ceil())
    }

    async fn give_way(&mut self, busy: bool) {
        if busy || js::now() - self.since_break > LONGEST_TURN {
            js::next_task().await;
            self.since_break = js::now();
        }
    }

    async fn next(&mut self) -> Happening {
        let command = async { Happening::Command(self.commands.next().await) };
        let result = async { Happening::Computed(self.compute.results.next().await) };
        or(command, result).await
    }

    fn on_happening(&mut self, happening: Happening, driver: &mut Driver<TabLink>) -> ControlFlow<Exit> {
        match happening {
            Happening::Computed(result) => self.on_computed(result, driver),
            Happening::Command(command) => return self.on_command(command, driver),
        }
        ControlFlow::Continue(())
    }

    fn compute(&mut self, round: Round, share: Share) {
        self.compute.jobs.push(Job::Contribute { round, share });
    }

    fn compute_span(&mut self, work: Box<SpanWork>, samples: Vec<u64>) {
        self.compute.jobs.push(Job::Span { work, samples });
    }

    fn tell(&mut self, event: PeerEvent, driver: &Driver<TabLink>) {
        for told in self.translator.tell(&event, driver) {
            self.page.event(&told);
        }
        match event {
            PeerEvent::Aside(aside) if aside.peer == driver.peer().me() => {
                (self.member, self.aside) = (false, true);
                self.page.state(State::Aside, &standing_aside(&aside));
            }
            PeerEvent::Outcast { .. } | PeerEvent::Syncing { .. } if self.aside => {}
            PeerEvent::Syncing { bytes, total, .. } if bytes < total => {
                self.page.state(State::Syncing, "fetching the state");
            }
            PeerEvent::Syncing { .. } => self.page.state(State::Following, "waiting to be let in"),
            PeerEvent::Entered | PeerEvent::Continued { .. } => (self.member, self.aside) = (true, false),
            PeerEvent::Outcast { reason, .. } => {
                self.member = false;
                self.page.state(State::Syncing, &reason.to_string());
            }
            PeerEvent::TooSlow { peer, .. } if peer == driver.peer().me() => {
                self.page
                    .state(State::Following, "this line is too slow for the run");
            }
            PeerEvent::NoPlace { .. } => self.page.state(State::Following, "waiting for a place"),
            PeerEvent::Committed(_) if self.member => self.page.state(State::Training, ""),
            _ => {}
        }
    }

    fn on_link(&mut self, event: LinkEvent, driver: &mut Driver<TabLink>) {
        let down = match &event {
            LinkEvent::Down { reason, .. } => Some(reason.to_string()),
            _ => None,
        };
        driver.on_link(event, self.now());
        if let Some(reason) = down.filter(|_| driver.link().count() == 0) {
            self.page.state(State::Reconnecting, &reason);
        }
    }
}

impl<'a> Tab<'a> {
    /// A tab that is not yet in the ring.
    pub fn new(
        compute: &'a Compute,
        answers: &'a Answers,
        commands: &'a Queue<Command>,
        page: &'a Page,
    ) -> Self {
        Self {
            compute,
            answers,
            commands,
            page,
            translator: EventTranslator::default(),
            member: false,
            aside: false,
            since_break: js::now(),
            going: None,
            broken: None,
        }
    }

    fn on_computed(&mut self, result: ComputeResult, driver: &mut Driver<TabLink>) {
        match result {
            ComputeResult::Made(input) => self.feed(input, driver),
            ComputeResult::Refused(input, why) => {
                let message = format!("this tab's contribution does not count: {why}");
                self.page.event(&Event::Warning { message });
                self.feed(input, driver);
            }
            ComputeResult::Failed(input, why) => {
                self.broken = Some(failed(why));
                self.feed(Input::Leave, driver);
                if let Some(input) = input {
                    self.feed(input, driver);
                }
            }
        }
    }

    fn on_command(&mut self, command: Command, driver: &mut Driver<TabLink>) -> ControlFlow<Exit> {
        match command {
            Command::Power(power) => self.compute.power.set(power),
            Command::Resume if self.going == Some(Going::Aside) => self.going = Some(Going::Back),
            Command::Resume => {}
            Command::Ask(question) => {
                let peer = driver.peer();
                let held = Held {
                    params: &peer.state().params,
                    round: peer.head().round,
                    digest: peer.held_digest(),
                };
                self.answers.answer(held, question);
            }
            Command::Pause => {
                if self.going.replace(Going::Aside).is_none() {
                    self.feed(Input::Leave, driver);
                }
            }
            Command::Leave => {
                let again = self.going.replace(Going::Away).is_some();
                self.feed(Input::Leave, driver);
                if again || !self.member {
                    return ControlFlow::Break(Exit::Left);
                }
            }
        }
        ControlFlow::Continue(())
    }
}
