//! `annulus train --dry-run`: the needs of a run, without starting it.

use crate::cli::human;
use crate::cli::output::LogFormat;
use crate::forecast::members::Round;
use crate::net::line::Line;
use crate::options::{Local, NewRun, Start, Steps, TrainOptions};
use crate::participant::room::{self, SpanNeeds};
use crate::participant::{memory, planning};
use crate::store::ledger_file::bytes_per_round as recorded;
use annulus_core::Manifest;
use annulus_core::codec::Codec;
use annulus_core::optim::Schedule;
use serde_json::json;
use std::num::NonZeroU64;

/// The needs of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The device that would compute, in words.
    device: String,
    /// Parameters of the model.
    parameters: u64,
    /// Tensors that they come in.
    tensors: u64,
    /// Bytes of parameters and optimizer state that a peer alone holds ...
    state_bytes: u64,
    /// ... and each of 2, 4 and 8, where peers keep parts of the optimizer's vectors.
    shared: Option<[u64; 3]>,
    /// The needs of a holder of each span, if the model is split.
    spans: Vec<SpanNeeds>,
    /// A lower bound of a round, if the model is split and a line is given.
    bound: Option<Round>,
    /// Samples in the training set.
    samples: NonZeroU64,
}

impl Plan {
    /// Of a run's manifest, for all peers as this one is to be.
    pub fn of(manifest: &Manifest, local: &Local, device: String) -> Self {
        let spans = manifest.split.iter();
        let line = local.line.as_deref().and_then(|line| line.parse::<Line>().ok());
        let bound = line.and_then(|line| planning::bound(manifest, local, &line));
        Self {
            device,
            parameters: manifest.layout.len as u64,
            tensors: manifest.layout.tensors.len() as u64,
            state_bytes: manifest.member_bytes(1),
            shared: manifest
                .copies
                .map(|_| [2, 4, 8].map(|peers| manifest.member_bytes(peers))),
            spans: spans.flat_map(|of| room::spans(manifest, of).0).collect(),
            bound,
            samples: manifest.samples,
        }
    }
}

/// The learning rate over the run, and how long a gradient may be.
fn tell_rate(run: &NewRun, samples: NonZeroU64) -> String {
    let mut words = vec![format!("lr={}", run.lr)];
    let all = human::plural(run.batches(samples), "step");
    let (warmup, then) = match run.schedule {
        Schedule::Constant => (0, None),
        Schedule::Warmup { steps } => (steps, None),
        Schedule::Cosine { warmup, .. } => (warmup, Some(format!("down a cosine of {all}"))),
        Schedule::Linear { warmup, .. } => (warmup, Some(format!("down a line of {all}"))),
        Schedule::Step { warmup, size, gamma } => {
            let size = human::plural(size.get(), "step");
            (warmup, Some(format!("times {gamma} each {size}")))
        }
        Schedule::OneCycle { .. } => (0, Some(format!("up and down one cycle of {all}"))),
    };
    if warmup > 0 {
        words.push(format!("from zero within {}", human::plural(warmup, "step")));
    }
    words.extend(then);
    if let Some(clip) = run.clip {
        words.push(format!("gradients of at most {clip} (global norm)"));
    }
    words.join(", ")
}

/// The text of a dry run.
pub(super) fn tell_plan(plan: &Plan, options: &TrainOptions, format: LogFormat) -> String {
    let parameters = plan.parameters;
    let state = plan.state_bytes;
    let run = match &options.start {
        Start::New(run) | Start::Meet(run, ..) => Some(run.as_ref()),
        Start::Resume(_) => None,
    };
    let codec = run.map_or(Codec::F32, NewRun::codec);
    // With feedback a peer also keeps what rounding took in the last round and in this one.
    let local_steps = run.is_some_and(|run| run.local_steps != Steps::None);
    let feedback = if codec.has_feedback(local_steps) { 8 } else { 0 };
    let memory = state + memory::beside_state(parameters) + feedback * parameters;
    let vector = codec.encoded_len(parameters as usize) as u64;
    let steps = run.map_or(1, |run| match run.local_steps {
        Steps::Fixed(steps) => steps.get(),
        Steps::None | Steps::Auto => 1,
    });
    let rounds = run.map(|run| run.batches(plan.samples).div_ceil(steps.into()));
    if format == LogFormat::Json {
        let plan = json!({
            "task": run.map(|run| &run.task),
            "device": plan.device,
            "parameters": parameters,
            "tensors": plan.tensors,
            "samples": plan.samples,
            "rounds": rounds,
            "state_bytes": state,
            "memory_bytes": memory,
            "shared_state_bytes": plan.shared.map(|[two, four, eight]| json!({"2": two, "4": four, "8": eight})),
            "round_bytes": {"2": sent(2, vector), "4": sent(4, vector), "8": sent(8, vector)},
            "ledger_round_bytes": {"1": recorded(1), "2": recorded(2), "4": recorded(4), "8": recorded(8)},
            "spans": plan.spans.iter().map(|span| json!({
                "steps": [span.steps.start, span.steps.end],
                "parameters": span.parameters,
                "memory_bytes": span.bytes,
                "share": span.share,
            })).collect::<Vec<_>>(),
            "bound": plan.bound,
        });
        return format!("{plan}\n");
    }
    let mut lines = Vec::new();
    if let (Some(run), Some(rounds)) = (run, rounds) {
        lines.push((
            "task",
            format!("{}, {} samples", run.task, human::grouped(plan.samples.get())),
        ));
        lines.push((
            "rounds",
            format!(
                "{} of {} samples",
                human::grouped(rounds),
                human::grouped(u64::from(run.batch.get()) * u64::from(steps))
            ),
        ));
        lines.push((
            "optimizer",
            format!("{}, {}", run.optimizer, tell_rate(run, plan.samples)),
        ));
        if let Some(local) = run.local() {
            let steps = local
                .steps
                .map_or("as many as exchanges ask for".into(), |steps| steps.to_string());
            let steps = format!(
                "{steps} between two exchanges, then {}, lr={}",
                local.outer, local.outer_lr
            );
            lines.push(("local steps", steps));
        }
    }
    lines.push(("device", plan.device.clone()));
    lines.push((
        "parameters",
        format!(
            "{} in {}",
            human::grouped(parameters),
            human::plural(plan.tensors, "tensor")
        ),
    ));
    match plan.spans.is_empty() {
        true => lines.extend(tell_whole(plan, memory, codec)),
        false => lines.extend(tell_spans(&plan.spans)),
    }
    lines.push(("ledger", grows(recorded) + "; keep_ledger=SIZE bounds it"));
    lines.push(("log", grows(logged) + ", with --log-format json"));
    if let Some(bound) = &plan.bound {
        lines.push(("bound", format!("a round takes at least {bound}")));
    }
    lines
        .iter()
        .map(|(name, text)| format!("{name:<11}{text}\n"))
        .collect()
}

/// About how many bytes a round adds to the log in JSON. Measured: 436, 535 and 624 with one, two and three members.
fn logged(members: u64) -> u64 {
    340 + 95 * members
}

/// How something grows, from the bytes that a round adds to it with some members.
fn grows(bytes: impl Fn(u64) -> u64) -> String {
    let (one, more) = (bytes(1), bytes(2) - bytes(1));
    let day = size(one * 24 * 3600);
    format!(
        "{one} bytes a round of one peer, {more} more for each other; {day} a day at one such round a second"
    )
}

/// Memory and traffic of each peer that holds a whole model.
fn tell_whole(plan: &Plan, memory: u64, codec: Codec) -> Vec<(&'static str, String)> {
    let (state, parameters) = (plan.state_bytes, plan.parameters);
    let mut lines = vec![(
        "memory",
        format!(
            "{} on each peer ({} of it shared state, {:.1} bytes a parameter), apart from activations",
            size(memory),
            size(state),
            state as f64 / parameters.max(1) as f64
        ),
    )];
    if let Some(shared) = plan.shared {
        // The sums of what it keeps are held until a round is over.
        let [two, four, eight] = shared.map(|shared| size(shared + memory - state));
        lines.push(("", format!("{two} on each of 2 peers, {four} of 4, {eight} of 8")));
    }
    let vector = codec.encoded_len(parameters as usize) as u64;
    let [two, four, eight] = [2, 4, 8].map(|peers| size(sent(peers, vector)));
    lines.push((
        "traffic",
        format!("each peer sends per round: {two} of 2 peers, {four} of 4, {eight} of 8"),
    ));
    lines
}

/// Bytes that a peer sends for a vector of `vector` bytes.
fn sent(peers: u64, vector: u64) -> u64 {
    2 * (peers - 1) * vector / peers
}

/// The needs of a holder of each span.
fn tell_spans(spans: &[SpanNeeds]) -> Vec<(&'static str, String)> {
    let tell = |(at, span): (usize, &SpanNeeds)| {
        let name = if at == 0 { "spans" } else { "" };
        let text = format!(
            "{:<8}{:>14} parameters, {:>6} of the computing, about {} on who holds it",
            format!("{}..{}", span.steps.start, span.steps.end),
            human::grouped(span.parameters),
            human::percent(span.share, 1),
            size(span.bytes)
        );
        (name, text)
    };
    spans.iter().enumerate().map(tell).collect()
}

fn size(bytes: u64) -> String {
    human::bytes(bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::super::LocalArgs;
    use super::*;
    use crate::cli::settings;
    use crate::task_factory::TaskFactory;
    use annulus_core::invitation::Role;

    #[test]
    fn a_plan_adds_up() {
        let plan = Plan {
            device: "CPU".into(),
            parameters: 101_770,
            tensors: 4,
            state_bytes: 12 * 101_770,
            shared: None,
            spans: Vec::new(),
            bound: None,
            samples: 60_000.try_into().unwrap(),
        };
        let local = LocalArgs {
            name: None,
            page_copy: None,
            data: None,
            keep_data: false,
            cache: None,
            out: None,
            device: "cpu".into(),
            listen: "0".into(),
            line: None,
            slower: 1.0,
            sample_at_least: None,
            external: false,
            sample_takes: None,
            advertise: Vec::new(),
            no_port_mapping: false,
            no_announce: false,
            code_role: Role::Contribute,
            page: None,
            host: Vec::new(),
            no_page: true,
            typed: Vec::new(),
            tls_cert: None,
            tls_key: None,
            power: 1.0,
            memory: None,
            spans: None,
            gpu_memory: None,
            cores: None,
            leave_within: 25,
            hours: None,
            only_plugged_in: false,
            only_idle: false,
            nice: 10,
            log_format: LogFormat::Text,
            log_tickets: false,
            tensorboard: None,
        };
        let settings = settings::read(
            None,
            &["codec=f16".into()],
            (None, None),
            &[TaskFactory::for_tests("digits", &[], || serde_json::Value::Null)],
        )
        .unwrap();
        let options = TrainOptions {
            local: local.to_local("out".into(), &settings),
            start: Start::New(Box::new(settings.run)),
        };
        let text = tell_plan(&plan, &options, LogFormat::Text);
        assert_eq!(
            text,
            "task       digits, 60,000 samples\n\
             rounds     4,688 of 64 samples\n\
             optimizer  adam, lr=0.001, gradients of at most 10 (global norm)\n\
             device     CPU\n\
             parameters 101,770 in 4 tensors\n\
             memory     69.8 MB on each peer (1.22 MB of it shared state, 12.0 bytes a parameter), apart from activations\n\
             traffic    each peer sends per round: 204 kB of 2 peers, 305 kB of 4, 356 kB of 8\n\
             ledger     215 bytes a round of one peer, 165 more for each other; 18.6 MB a day at one such round a second; \
             keep_ledger=SIZE bounds it\n\
             log        435 bytes a round of one peer, 95 more for each other; 37.6 MB a day at one such round a second, with \
             --log-format json\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&tell_plan(&plan, &options, LogFormat::Json)).unwrap();
        assert_eq!(json["rounds"], 4688);
        assert_eq!(json["round_bytes"]["2"], 203_542);
        assert_eq!(json["state_bytes"], 3 * 4 * 101_770);
    }
}
