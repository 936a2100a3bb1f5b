//! A member's round in a split run: what it computes of each microbatch, what it exchanges with its neighbours, and
//! when all can commit.

use super::Member;
use crate::access::signature::Signed;
use crate::base::id::{Digest, PeerId};
use crate::base::planted::Bug;
use crate::ledger::route::Batch;
use crate::ledger::{Header, Record};
use crate::numeric::optim::Step;
use crate::peer::device::{Asked, Made};
use crate::peer::handover;
use crate::peer::interface::{Event, Output, Pass, SpanDone, SpanWork};
use crate::peer::keeping::{MOST_PENDING, Pending};
use crate::peer::next::{Next, Outcast};
use crate::peer::reason::OutcastReason;
use crate::peer::shared::Shared;
use crate::run::parts::{PartSet, Parts};
use crate::state::flow::{Flow, Given, Name, Task};
use crate::wire::rights::Kind;
use crate::wire::{Message, ViewKey};
use bytes::Bytes;
use std::time::Duration;

/// A member's computation of a round.
#[derive(Debug)]
pub(super) struct Flowing {
    pub flow: Flow,
    /// The attempt whose members exchange tensors. An attempt that is given up as it begins has none.
    attempt: ViewKey,
    /// Compute time of its device in the round.
    compute: Duration,
}

impl Member {
    /// Bytes of activations and gradients that it holds.
    pub fn tensor_bytes(&self) -> usize {
        self.flowing.as_ref().map_or(0, |flowing| flowing.flow.bytes())
    }

    /// Whether this attempt's members compute spans of a model.
    pub(super) fn flows(&self, shared: &Shared) -> bool {
        shared.manifest.split.is_some() && !self.is_null
    }

    /// Whether tensors are exchanged among this attempt's members.
    fn is_routed(&self, shared: &Shared) -> bool {
        let here = |flowing: &Flowing| flowing.attempt == self.view.key;
        self.flows(shared) && self.flowing.as_ref().is_some_and(here)
    }

    /// An attempt begins: asks the neighbours for missing tensors, and continues to compute.
    pub(super) fn begin_flow(&mut self, shared: &mut Shared) -> Next {
        let split = shared.head().split(&shared.manifest);
        let (Some(split), Some(parts)) = (split, Parts::of(&shared.manifest)) else {
            return Next::Stay;
        };
        if self.is_null {
            return Next::Stay;
        }
        let (me, members) = (self.view.me, &self.view.members);
        let batch = Batch::new(&split, &self.allotment.batch);
        let route = shared.head().route(&split, parts, members, batch.lanes());
        let bugs = (
            shared.settings.planted(Bug::DropStash),
            shared.settings.planted(Bug::CountTwice),
        );
        let made = self.contribution.reopen();
        match &mut self.flowing {
            Some(Flowing { flow, attempt, .. }) => {
                made.into_iter().for_each(|gradient| flow.put_back(gradient));
                flow.begin_attempt(route, me);
                *attempt = self.view.key;
            }
            None => {
                self.flowing = Some(Flowing {
                    flow: Flow::new(split.into_owned(), batch, (route, me), bugs),
                    attempt: self.view.key,
                    compute: Duration::ZERO,
                });
            }
        }
        self.agreement.expect(shared);
        let flow = &self.flowing.as_ref().expect("it flows").flow;
        for (span, lane, back, from, have) in flow.wants() {
            let want = Message::Want {
                view: self.view.key,
                span: span as u16,
                lane: lane as u16,
                back,
                have,
            };
            shared.control(self.view.members[from], want);
        }
        self.pump(shared)
    }

    /// Gives an idle device its next task, and hands in the contribution once it is done.
    fn pump(&mut self, shared: &mut Shared) -> Next {
        let routed = self.is_routed(shared);
        let Some(Flowing { flow, compute, .. }) = self.flowing.as_mut().filter(|_| routed) else {
            return Next::Stay;
        };
        if flow.is_done() && self.contribution.made().is_none() && self.contribution.held_until().is_none() {
            let (gradient, weight, loss) = flow.made();
            if flow.refuses {
                shared.tell(Event::NotFinite {
                    round: self.view.key.round,
                });
            }
            let (samples, took) = (flow.samples(), *compute);
            if samples > 0.0 && took > Duration::ZERO {
                // All lanes cost alike, so a member's share says what any would.
                shared.speed.saw(samples, took, samples);
            }
            let made = Made {
                gradient: gradient.into(),
                weight,
                loss,
                compute: took,
                anew: true,
                ..Made::default()
            };
            self.put(made, shared);
            return Next::Stay;
        }
        if shared.device.asked.is_some() {
            return Next::Stay;
        }
        let chain = shared.head().chain;
        let Some(task) = flow.next() else {
            return self.load_ahead(chain, shared);
        };
        let steps = flow.split.span(task.span);
        let (input, gradient, sum) = flow.input(task);
        let positions = flow.positions(task);
        let weights = match shared.device.lacks_span(chain, task.span) {
            true => match self.weights(task.span, shared) {
                Some(weights) => Some(weights),
                None => return Next::Outcast(Outcast::new(OutcastReason::Damaged, None)),
            },
            false => None,
        };
        shared.device.asked = Some(Asked::Span { chain, task });
        self.at_work_since = shared.now;
        shared.out.push_back(Output::Span(Box::new(SpanWork {
            round: self.view.key.round,
            span: task.span,
            steps,
            pass: Pass {
                back: task.back,
                positions,
                weights,
                input,
                gradient,
                sum,
            },
        })));
        Next::Stay
    }

    /// Lets an idle device load the weights of its spans, so that the first microbatch need not wait for that when
    /// it comes.
    fn load_ahead(&mut self, chain: Digest, shared: &mut Shared) -> Next {
        let Some(Flowing { flow, .. }) = &self.flowing else {
            return Next::Stay;
        };
        let lacking = flow
            .own_spans()
            .find(|span| shared.device.lacks_span(chain, *span));
        let Some(span) = lacking else {
            return Next::Stay;
        };
        let steps = flow.split.span(span);
        let Some(weights) = self.weights(span, shared) else {
            return Next::Outcast(Outcast::new(OutcastReason::Damaged, None));
        };
        shared.device.asked = Some(Asked::Weights);
        self.at_work_since = shared.now;
        shared.out.push_back(Output::Span(Box::new(SpanWork {
            round: self.view.key.round,
            span,
            steps,
            pass: Pass {
                weights: Some(weights),
                ..Pass::default()
            },
        })));
        Next::Stay
    }

    /// The weights of a span, for the device. A result from damaged weights would enter everybody's sums.
    fn weights(&self, span: usize, shared: &mut Shared) -> Option<Vec<f32>> {
        let split = shared.head().split(&shared.manifest)?.into_owned();
        let parts = Parts::of(&shared.manifest)?;
        let others = handover::of_others(shared);
        if !handover::is_sound(&split.parts(parts, span), &others, shared) {
            return None;
        }
        let kept = &shared.lineage.state.kept;
        Some(kept.weights_of(&shared.manifest, &split.used(span)))
    }

    /// How long the device has been at its present task, if it has one.
    pub(super) fn at_work_for(&self, shared: &Shared) -> Option<Duration> {
        let busy = matches!(shared.device.asked, Some(Asked::Span { .. } | Asked::Weights));
        busy.then(|| shared.now - self.at_work_since)
    }

    /// The device has finished its task.
    pub(super) fn on_span(&mut self, done: SpanDone, shared: &mut Shared) -> Next {
        if shared.device.asked == Some(Asked::Weights) {
            shared.device.asked = None;
            return self.go_on_computing(shared);
        }
        let asked = shared.device.done(shared.now, done.compute);
        let here = shared.head().chain;
        if let Some(Asked::Span { chain, task }) = asked
            && chain == here
        {
            self.take_done(task, done, shared);
        }
        self.go_on_computing(shared)
    }

    fn go_on_computing(&mut self, shared: &mut Shared) -> Next {
        match self.pump(shared) {
            Next::Stay => self.start_if_ready(shared),
            next => next,
        }
    }

    fn take_done(&mut self, task: Task, done: SpanDone, shared: &mut Shared) {
        let routed = self.is_routed(shared);
        let Some(flowing) = &mut self.flowing else { return };
        flowing.compute += done.compute;
        let given = Given {
            output: done.output,
            sum: done.sum,
            loss: done.loss,
        };
        // A device that gives anything but what it was asked for gives nothing of use.
        let sends = flowing.flow.done(task, given);
        let sends = sends.unwrap_or_else(|_| flowing.flow.refuse(task));
        // In an attempt without samples, or one that was stopped as it began, nobody waits for it. It is asked for
        // again in the next.
        let chain = shared.head().chain;
        for (to, name, data) in sends.into_iter().filter(|_| routed) {
            shared.bulk(self.view.members[to], tensor(chain, name, data));
        }
    }

    /// A member asks for the inputs of its span.
    pub(super) fn on_want(&mut self, from: PeerId, message: Message, shared: &mut Shared) -> Next {
        let Message::Want {
            view,
            span,
            lane,
            back,
            have,
        } = message
        else {
            return Next::Stay;
        };
        if view != self.view.key {
            if self.view.is_before(&view) {
                let known = self.view.contains(from) || shared.lineage.knows(from);
                let want = Message::Want {
                    view,
                    span,
                    lane,
                    back,
                    have,
                };
                shared.early.keep(from, known, want);
            }
            return Next::Stay;
        }
        let chain = shared.head().chain;
        let place = self.view.position(from);
        if !self.is_routed(shared) {
            return Next::Stay;
        }
        let there = self.flowing.as_mut().zip(place).and_then(|(flowing, from)| {
            flowing
                .flow
                .on_want(from, (span.into(), lane.into(), back), &have)
        });
        let Some(there) = there else {
            shared.refused.count(Kind::Want);
            return Next::Stay;
        };
        for (name, data) in there {
            // Once in an attempt, with everything that is there: as much as anybody needs, and no more.
            if !shared.allow(from, data.len(), Kind::Want) {
                break;
            }
            shared.bulk(from, tensor(chain, name, data));
        }
        Next::Stay
    }

    /// Activations or a gradient have come.
    pub(super) fn on_tensor(&mut self, from: PeerId, message: Message, shared: &mut Shared) -> Next {
        let Message::Tensor {
            chain,
            span,
            back,
            microbatch,
            data,
        } = message
        else {
            return Next::Stay;
        };
        let name = (span.into(), back, microbatch);
        if self.flowing.is_none() || self.flows(shared) && !self.is_routed(shared) {
            return Next::Stay;
        }
        let stale = chain != shared.head().chain && !shared.settings.planted(Bug::TakeAnyTensor);
        let place = self.view.position(from).filter(|_| !stale && self.flows(shared));
        let flowing = self.flowing.as_mut().zip(place);
        let taken = flowing.is_some_and(|(flowing, from)| flowing.flow.on_tensor(from, name, data));
        if !taken {
            shared.refused.count(Kind::Tensor);
            return Next::Stay;
        }
        self.agreement.beside += 1;
        if !self.reduce.is_started() && self.agreement.flush().is_none() {
            self.agreement.saw_piece(from, shared);
        }
        self.go_on_computing(shared)
    }

    /// A member says that it can commit the attempt.
    pub(super) fn on_held(&mut self, from: PeerId, shared: &mut Shared) -> Next {
        if self.agreement.is_frozen(shared) {
            return Next::Stay;
        }
        self.reduce.on_held(from);
        self.agreement.saw_piece(from, shared);
        self.try_commit(shared)
    }

    /// This member can commit, and says so once. Whether all others can too.
    pub(super) fn all_hold(&mut self, shared: &mut Shared) -> bool {
        if self.reduce.says_held() {
            self.agreement.hold();
            let view = self.view.key;
            for other in self.view.others() {
                shared.bulk(other, Message::Held { view });
            }
        }
        self.reduce.all_hold()
    }

    /// The attempt was stopped, and all that are left can commit it.
    pub(super) fn commit_held(&mut self, shared: &mut Shared) -> Next {
        let Some(headers) = self.reduce.headers() else {
            return Next::Stay;
        };
        let record = self.record(headers);
        self.commit(record, shared)
    }

    /// Steps all kept parts, weights and moments, by the held sums. A member that finds changed parts leaves like
    /// one that was excluded: others have those parts, and it steps its other parts once it knows that the round
    /// was committed.
    pub(super) fn step_spans(&mut self, record: Record, step: &Step, shared: &mut Shared) -> Next {
        let me = shared.me();
        let stay = record.headers.iter().filter(|h| h.peer != me && !h.leaving);
        let kept = |h: &Signed<Header>| h.keeps.kept.without(&h.keeps.drops);
        let others = stay.fold(PartSet::default(), |all, h| all.or(&kept(h)));
        let all = shared.lineage.state.kept.set();
        if !handover::is_sound(&all, &others, shared) {
            return Next::Outcast(Outcast::new(OutcastReason::Damaged, None));
        }
        let held = self.reduce.take_held();
        let kept = &mut shared.lineage.state.kept;
        kept.step_weights(&shared.manifest, step, &held);
        self.applied(record, shared.now, shared)
    }

    /// This peer is not a member of the attempt any more, or the attempt is given up here. Others may commit it, so
    /// this peer keeps the sums that it holds until the round is over.
    pub(crate) fn keep_pending(&mut self, shared: &mut Shared) {
        let forgets = shared.settings.planted(Bug::ForgetPending);
        if !self.flows(shared) || !self.reduce.holds_sums() || forgets {
            return;
        }
        let Some(headers) = self.reduce.headers() else {
            return;
        };
        let record = self.record(headers);
        let head = shared.head();
        if shared.check_said(&record).is_err() {
            return;
        }
        let Some(step) = shared.plan(&record, &self.reduce.gathered) else {
            return;
        };
        let mut after = head.clone();
        after.apply(&record, &shared.manifest);
        let held = self.reduce.take_held();
        let pending = &mut shared.keeping.pending;
        if pending.len() == MOST_PENDING {
            pending.pop_front();
        }
        pending.push_back(Pending {
            stepped: after.stepped,
            step,
            held,
        });
    }
}

fn tensor(chain: Digest, (span, back, microbatch): Name, data: Bytes) -> Message {
    Message::Tensor {
        chain,
        span: span as u16,
        back,
        microbatch,
        data,
    }
}
