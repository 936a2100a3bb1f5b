//! Plans a run of given machines before it begins: who holds what, how much memory that needs, and how long rounds
//! take. It draws no weights.
//!
//! It plays each way of training together that the settings leave open until the members are at rest. They follow the
//! same rules as in a run, so the plan is what a run of these machines comes to.

use super::error::Error;
use super::run_data::load_new;
use super::run_setup::{SPLIT_COPIES, manifest};
use super::{memory, room, split};
use crate::data::Stock;
use crate::forecast::members::{Peer, Round, Sample};
use crate::net::line::Line;
use crate::options::{Local, NewRun, SplitRun};
use crate::task_factory::{LoadedTask, TaskFactory};
use crate::trainer::span::ModelSteps;
use annulus_core::codec::Codec;
use annulus_core::keepers::rest::Machine as Planned;
use annulus_core::ledger::Head;
use annulus_core::parts::Parts;
use annulus_core::{Layout, Manifest, PeerId, Room};
use std::num::NonZeroU16;
use std::ops::Range;
use std::path::Path;

/// Numbers of lanes to try if none is given: enough for as many holders of a span.
const LANES: [u16; 4] = [1, 2, 4, 8];

/// A machine of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes of memory that it gives to the run.
    pub memory: u64,
    /// Most spans that it holds; none: as many as fit.
    pub spans: Option<NonZeroU16>,
    /// How long it needs for a sample; none: as long as this machine's processor.
    pub sample: Option<Sample>,
    /// Bytes per second of its line.
    pub rate: f64,
}

/// The question.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The run's settings.
    pub run: &'a NewRun,
    /// Whether the settings name a number of lanes.
    pub lanes: bool,
    /// The machines, in the order in which they join. The first one with room founds the run.
    pub machines: &'a [Machine],
    /// Round-trip time in seconds.
    pub round_trip: f64,
}

/// The outcome of some settings.
#[derive(Debug)]
pub struct Way {
    /// The settings that lead to it, beside the given ones.
    pub settings: String,
    /// All settings of the run.
    pub manifest: Manifest,
    /// The steps of each span, if the model is split.
    pub spans: Vec<Range<usize>>,
    /// The members, in the order in which they join.
    pub members: Vec<Held>,
    /// The machines without room for their part.
    pub left_out: Vec<usize>,
    /// How long a round takes.
    pub round: Round,
}

/// A member's part.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Its machine.
    pub machine: usize,
    /// Its spans, if the model is split.
    pub spans: Vec<usize>,
    /// Bytes of memory that it needs.
    pub bytes: u64,
}

/// A model, and the ways to train it.
#[derive(Debug)]
pub struct Plans {
    /// Its parameters.
    pub parameters: u64,
    /// Its steps; none if the task offers none.
    pub steps: Option<usize>,
    /// Bytes of a process that trains the whole model.
    pub whole_bytes: u64,
    /// Bytes of a process that holds only the largest step, if the model can be split.
    pub step_bytes: Option<u64>,
    /// The ways that fit into memory, the one with the shortest rounds first.
    pub ways: Vec<Way>,
}

/// Plans a run. Measures the model's steps on this machine's processor, if the task offers them.
///
/// # Errors
///
/// If there is no such task, its data, model or settings are invalid, or it cannot be split as requested.
pub fn plan(asked: &Asked<'_>, data: Option<&Path>, factories: &[TaskFactory]) -> Result<Plans, Error> {
    let run = asked.run;
    let loaded = load_new(run, (data, None), factories)?;
    let steps = match (loaded.model_steps(run.seed), &run.split) {
        (Ok(model), _) => Some(model),
        (Err(_), SplitRun::Off) => None,
        (Err(error), _) => return Err(error.into()),
    };
    let layout = match &steps {
        Some(model) => model.layout.clone(),
        None => loaded.layout(run.seed)?,
    };
    let planner = Planner::new(asked, &loaded, (layout, steps))?;
    let mut ways = Vec::new();
    let mut refused = None;
    let tried = planner.ways();
    for way in &tried {
        match planner.play(way) {
            Ok(way) => ways.extend(way),
            Err(why) => refused = Some(why),
        }
    }
    // If there are several ways, some need not suit the other settings.
    if let Some(why) = refused.filter(|_| tried.len() == 1) {
        return Err(why);
    }
    ways.sort_by(|a, b| a.round.seconds.total_cmp(&b.round.seconds));
    Ok(Plans {
        parameters: planner.base.layout.len as u64,
        steps: planner.steps.as_ref().map(|(model, _)| model.steps()),
        whole_bytes: planner.whole_bytes(),
        step_bytes: planner.step_bytes()?,
        ways,
    })
}

/// The shortest time of a split run's round, if all peers are like this one.
pub fn bound(manifest: &Manifest, local: &Local, line: &Line) -> Option<Round> {
    let split = manifest.split.as_ref()?;
    let sample = local.sample_takes.map(|takes| Sample::Acted(takes.as_secs_f64()));
    let machine = Machine {
        memory: memory::likes(local.memory),
        spans: local.spans,
        sample: None,
        rate: line.mbit * 1e6 / 8.0,
    };
    let sample = sample.unwrap_or_else(|| Sample::measured(split));
    let planned = planned(&machine, sample, room_of(manifest, &machine)?);
    let peers = usize::from(manifest.min_peers.get()).max(split.spans.len());
    let head = Head::at_rest(manifest, &vec![planned; peers]);
    let peer = Peer {
        sample,
        rate: machine.rate,
    };
    let of_all = || Round::of(manifest, &head, &vec![peer; peers], line.round_trip.as_secs_f64());
    head.all_train(manifest).then(of_all)
}

/// A machine as the members of a run would know it.
fn planned(machine: &Machine, sample: Sample, room: Room) -> Planned {
    Planned {
        speed: (1e3 / sample.seconds()).clamp(1.0, 1e12) as u64,
        room,
        line: (machine.rate / 1e3) as u32,
    }
}

/// A way to try.
struct Tried {
    run: NewRun,
    settings: String,
}

struct Planner<'a> {
    asked: &'a Asked<'a>,
    /// The run's manifest, for the whole model.
    base: Manifest,
    /// The model's steps, and their costs.
    steps: Option<(ModelSteps, Vec<u32>)>,
}

impl<'a> Planner<'a> {
    fn new(
        asked: &'a Asked<'a>,
        loaded: &LoadedTask,
        (layout, steps): (Layout, Option<ModelSteps>),
    ) -> Result<Self, Error> {
        let steps = match steps {
            Some(model) => {
                let costs = model.evened(&loaded.step_costs()?);
                Some((model, costs))
            }
            None => None,
        };
        let files = loaded.files.clone().map(Stock::new);
        let of = (loaded, files.as_ref());
        // Settings of a split run are checked with its cut.
        let whole = NewRun {
            copies: asked.run.copies.filter(|_| asked.run.split == SplitRun::Off),
            ..asked.run.clone()
        };
        Ok(Self {
            base: manifest(&whole, PeerId([0; 32]), of, (layout, None))?,
            asked,
            steps,
        })
    }

    /// All ways that the settings leave open.
    fn ways(&self) -> Vec<Tried> {
        let (run, machines) = (self.asked.run, self.asked.machines.len());
        let mut ways = Vec::new();
        if run.split == SplitRun::Off {
            ways.push((run.copies, SplitRun::Off, run.lanes));
            if run.copies.is_none() && machines > 1 {
                ways.push((Some(SPLIT_COPIES), SplitRun::Off, run.lanes));
            }
        }
        let steps = self.steps.as_ref().map_or(0, |(model, _)| model.steps());
        let spans: Vec<SplitRun> = match &run.split {
            SplitRun::Off if run.codec() != Codec::F32 => Vec::new(),
            SplitRun::Off | SplitRun::Auto => {
                let counts =
                    (2..=steps.min(machines.max(2))).filter_map(|count| NonZeroU16::new(count as u16));
                counts.map(SplitRun::Spans).collect()
            }
            given => vec![given.clone()],
        };
        for split in spans {
            let lanes = LANES
                .into_iter()
                .filter(|lanes| usize::from(*lanes) <= 2 * machines);
            let lanes: Vec<NonZeroU16> = match self.asked.lanes {
                true => vec![run.lanes],
                false => lanes.filter_map(NonZeroU16::new).collect(),
            };
            ways.extend(lanes.into_iter().map(|lanes| (run.copies, split.clone(), lanes)));
        }
        let tried = |(copies, split, lanes): (Option<NonZeroU16>, SplitRun, NonZeroU16)| Tried {
            settings: settings(&split, copies, lanes),
            run: NewRun {
                copies,
                split,
                lanes,
                ..run.clone()
            },
        };
        ways.into_iter().map(tried).collect()
    }

    /// Plays a way until its members are at rest; none if it does not fit into memory.
    fn play(&self, tried: &Tried) -> Result<Option<Way>, Error> {
        let run = &tried.run;
        let split = match (&run.split, &self.steps) {
            (SplitRun::Off, _) | (_, None) => None,
            (_, Some((model, costs))) => Some(split::cut_by(run, model, costs, None)?),
        };
        let manifest = Manifest {
            copies: run.copies.or(split.as_ref().map(|_| SPLIT_COPIES)),
            split,
            ..self.base.clone()
        };
        let manifest = Manifest {
            topology: run
                .topology
                .or(manifest.copies.map(|_| annulus_core::Topology::Direct)),
            ..manifest
        };
        manifest.check()?;
        let rooms: Vec<Option<Room>> = self
            .asked
            .machines
            .iter()
            .map(|m| room_of(&manifest, m))
            .collect();
        let has_room = |at: &usize| rooms[*at].is_some();
        let mut order: Vec<usize> = (0..rooms.len()).filter(has_room).collect();
        // The founder of a run of whole models has all of the optimizer's vectors at first.
        let founds =
            |at: &usize| manifest.split.is_some() || self.asked.machines[*at].memory >= self.whole_bytes();
        let Some(first) = order.iter().position(founds) else {
            return Ok(None);
        };
        order[..=first].rotate_right(1);
        loop {
            let Some(way) = self.at_rest(tried, &manifest, (&order, &rooms)) else {
                return Ok(None);
            };
            let is_too_small = |held: &&Held| held.bytes > self.asked.machines[held.machine].memory;
            let Some(small) = way
                .members
                .iter()
                .rev()
                .find(is_too_small)
                .map(|held| held.machine)
            else {
                return Ok(Some(way));
            };
            // Spans were compared with the room of machines before, so this member has all weights.
            order.retain(|at| *at != small);
            if order.is_empty() {
                return Ok(None);
            }
        }
    }

    /// The outcome for members in this order; none if such a run would wait for more.
    fn at_rest(
        &self,
        tried: &Tried,
        manifest: &Manifest,
        (order, rooms): (&[usize], &[Option<Room>]),
    ) -> Option<Way> {
        let sample = |at: &usize| self.sample(*at, manifest);
        let as_known = |at: &usize| {
            let room = rooms[*at].unwrap_or_default();
            planned(&self.asked.machines[*at], sample(at), room)
        };
        let planned: Vec<Planned> = order.iter().map(as_known).collect();
        let head = Head::at_rest(manifest, &planned);
        if !head.all_train(&Manifest {
            min_peers: NonZeroU16::MIN,
            ..manifest.clone()
        }) {
            return None;
        }
        let peer = |at: &usize| Peer {
            sample: sample(at),
            rate: self.asked.machines[*at].rate,
        };
        let peers: Vec<Peer> = order.iter().map(peer).collect();
        let split = head.split(manifest);
        let left_out = |at: &usize| !order.contains(at);
        Some(Way {
            settings: tried.settings.clone(),
            spans: split.iter().flat_map(|split| split.spans()).collect(),
            members: self.held(manifest, &head, order),
            left_out: (0..self.asked.machines.len()).filter(left_out).collect(),
            round: Round::of(manifest, &head, &peers, self.asked.round_trip),
            manifest: manifest.clone(),
        })
    }

    /// How long a machine needs for a sample.
    fn sample(&self, at: usize, manifest: &Manifest) -> Sample {
        let given = self.asked.machines[at].sample;
        given.unwrap_or_else(|| {
            manifest
                .split
                .as_ref()
                .map_or(Sample::Computed(1.0), Sample::measured)
        })
    }

    /// The members' parts, and the memory that they need.
    fn held(&self, manifest: &Manifest, head: &Head, order: &[usize]) -> Vec<Held> {
        let of = |(machine, member): (&usize, &annulus_core::ledger::Member)| {
            let (mut spans, mut bytes) = (Vec::new(), self.whole_bytes());
            let parts = Parts::of(manifest);
            match (head.split(manifest), parts) {
                (Some(split), Some(parts)) => {
                    let (needs, (takes, base)) = (split.needs(parts), room::spans(manifest, &split));
                    spans = (0..needs.len())
                        .filter(|span| member.keeper.holds(*span, &needs))
                        .collect();
                    bytes = base + spans.iter().map(|span| takes[*span].bytes - base).sum::<u64>();
                }
                (_, Some(parts)) => {
                    // Updates are the weights, so the last round is not held besides; but the sums of own parts are.
                    let shared = 4 * manifest.layout.len as u64 + manifest.moments_bytes();
                    let own = shared * member.keeper.kept.len() as u64 / parts.count().max(1) as u64;
                    bytes = bytes.saturating_sub(shared) + own;
                }
                _ => {}
            }
            Held {
                machine: *machine,
                spans,
                bytes,
            }
        };
        order.iter().zip(&head.members).map(of).collect()
    }

    fn whole_bytes(&self) -> u64 {
        let base = &self.base;
        memory::of_whole(base.layout.len as u64, &base.optimizer, base.moments)
    }

    fn step_bytes(&self) -> Result<Option<u64>, Error> {
        let Some((model, costs)) = &self.steps else {
            return Ok(None);
        };
        let run = NewRun {
            split: SplitRun::Cut(vec![NonZeroU16::MIN; model.steps()]),
            lanes: NonZeroU16::MIN,
            ..self.asked.run.clone()
        };
        let split = split::cut_by(&run, model, costs, None)?;
        let (spans, _) = room::spans(&self.base, &split);
        Ok(spans.iter().map(|span| span.bytes).max())
    }
}

/// The room of a machine; none if it cannot hold its part.
fn room_of(manifest: &Manifest, machine: &Machine) -> Option<Room> {
    let most = machine.spans.map_or(u16::MAX, NonZeroU16::get);
    match &manifest.split {
        None => Some(Room::default()),
        Some(split) => room::room(manifest, split, machine.memory, (most, false)).ok(),
    }
}

/// The settings of a way.
fn settings(split: &SplitRun, copies: Option<NonZeroU16>, lanes: NonZeroU16) -> String {
    let copies = copies.map(|copies| format!("copies={copies}"));
    let split = match split {
        SplitRun::Off => return copies.unwrap_or_default(),
        SplitRun::Auto => "auto".to_owned(),
        SplitRun::Spans(count) => count.to_string(),
        SplitRun::Cut(steps) => {
            let steps: Vec<String> = steps.iter().map(NonZeroU16::to_string).collect();
            steps.join("+")
        }
    };
    let words = [
        Some(format!("split={split}")),
        copies,
        Some(format!("lanes={lanes}")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
