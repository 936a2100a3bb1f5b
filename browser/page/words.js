// What the page says in each situation, and what one may do then. A title is a list of strings and of {soft} parts,
// which are set back.

import { bytes, count, duration, loss, parameters, percent, plural, significant } from "./format.js";

const soft = (text) => ({ soft: text });
const first = (action) => ({ ...action, primary: true });
const WATCH = { id: "watch", label: "Only watch" };
const START = { id: "start", label: "Start" };
const CPU = { id: "start-cpu", label: "Train on the processor" };
const AGAIN = { id: "retry", label: "Try again" };
const LEAVE = { id: "leave", label: "Leave" };

/** Gives {name, title, text, cause, progress, actions, settings}; `name` changes with the state, not its numbers. */
export function describe(situation) {
  const words = { watch: watching, waiting, invited, session: partaking }[situation.mode](situation);
  const title = [words.title].flat();
  const name = title.map((part) => part.soft ?? part).join("");
  return { name, text: "", cause: "", actions: [], ...words, title };
}

/** "Train gpt (0.83 M parameters) with 3 others, on Apple M2". */
function invitation({ run }, device) {
  const size = run.info?.parameters;
  return [
    soft("Train "), run.task ?? "a model",
    ...(size ? [soft(` (${parameters(size)} parameters)`)] : []),
    ...(run.size ? [soft(" with "), plural(run.size, "other", "others")] : []),
    ...(device ? [soft(run.size ? ", on " : " on "), device] : []),
  ];
}

function invited(situation) {
  const { device, secure, transport, https, run } = situation;
  if (!secure) {
    return {
      title: "This address can only be watched",
      text: "Browsers lend the GPU only to pages that come over https, and this one came over http. "
        + "Over https, yours will first say that it does not know the certificate; go on if you trust whoever sent you the link.",
      actions: [first({ id: "https", label: "Open over https", href: https }), WATCH],
    };
  }
  if (!transport) {
    return {
      title: "This browser can only watch",
      text: "It lacks WebTransport, by which a tab reaches the peers: Chrome and Edge have it, Firefox from 114, Safari from 26.4.",
      actions: [first(WATCH)],
    };
  }
  const { state_bytes: state = 0, data_bytes: data = 0, tab_data_limit: limit, spans = 0 } = run.info ?? {};
  if (spans > 0 && spans < 3) {
    return {
      title: FAILURES["no-middle"][0],
      text: FAILURES["no-middle"][1],
      actions: [first(WATCH)],
    };
  }
  if (!spans && data > limit) {
    return {
      title: "This run's data is too large for a tab",
      text: `It has ${bytes(data)}, and a tab takes ${bytes(limit)} at most. `
        + "The native program on this machine can take part: annulus join, with the same ticket.",
      actions: [first(WATCH)],
    };
  }
  const { gpu, problem: cause } = device ?? {};
  const offer = (name, where, text, ...actions) => ({ name, title: invitation(situation, where), text, cause, actions, settings: Boolean(device) });
  if (spans) {
    return offer("Ready to hold a part", "the processor",
      `The model is split over its members, into ${count(spans)} spans one after the other. This tab holds and trains what lies between `
      + "the ends: that needs no data, and the processor computes it. Leave whenever you like: it waits until others hold what it did, if they can.",
      first(CPU), WATCH);
  }
  if (!device) return offer("Checking this device", "", "Looking at what this device can do …", first({ ...START, disabled: true }), WATCH);
  if (!gpu) {
    return offer("No WebGPU", "the processor",
      "This browser gives the page no GPU. The processor can train instead: slower, and you may hear the fan.", first(CPU), WATCH);
  }
  if (gpu.software) {
    return offer("Software GPU", "a software GPU",
      `What this browser offers (${gpu.name}) is the processor playing a GPU, too slow to be of much help: better watch. `
      + "If this machine has a real one, switch on hardware acceleration in the browser's settings.",
      first(WATCH), CPU, { ...START, label: "Train all the same" });
  }
  return offer("Ready to train", gpu.name,
    `This tab becomes a full member of the run: your GPU computes, and what it finds is exchanged with the others.${
      state ? ` It first fetches ${bytes(state + data)}.` : ""}${
      data === null ? " The peer that serves this page hands out no data, so the tab asks the others for it." : ""} Leave whenever you like: the others carry on, and no work is lost.`,
    first(START), WATCH);
}

function watching({ run, picture, ticket, secure, transport, https }) {
  const actions = ticket.known ? [first({ id: "invited", label: "Take part" })]
    : secure ? [] : [{ id: "https", label: "Open over https to take part", href: https }];
  if (ticket.problem) return { ...UNREADABLE, actions };
  if (run.answering === false) {
    return {
      title: run.status ? "No answer from this page's peer" : "Nobody answers here",
      text: "The peer that serves this page cannot be reached. The run may well go on without it. Asking again.",
      actions,
    };
  }
  if (!run.status) return { title: "Looking at the run …", actions };
  if (run.status.phase === "waiting") {
    return { title: "This page's peer takes a break", text: `It is out of the ring: ${run.status.waiting}. The others carry on${
      run.machine?.paused ? "" : ", and it comes back by itself"}.`, actions };
  }
  if (run.status.phase === "done") return { title: "The run is complete", text: summary(picture) };
  return {
    name: "Watching",
    title: [soft("Watching "), run.task ?? "the run", ...(run.size ? [soft(" learn with "), plural(run.size, "peer", "peers")] : [])],
    text: (picture.left > 0 ? `About ${duration(picture.left)} to go. ` : "")
      + (ticket.known || !secure || !transport ? "" : "To take part with this tab, open an invitation link: it ends in a ticket, #annulus2…"),
    actions,
  };
}

const BECAUSE = {
  battery: ["this device is not plugged in", { id: "go-on", label: "Train on battery too" }],
  metered: ["the connection is metered", { id: "go-on", label: "Train on this connection too" }],
};

function waiting(situation) {
  const [why, goOn] = BECAUSE[situation.against ?? "battery"];
  return {
    name: "Waiting",
    title: invitation(situation, situation.device?.gpu?.name),
    text: `Waiting, because ${why}. Training starts by itself when that changes.`,
    actions: [goOn, { id: "cancel", label: "Cancel" }],
    settings: true,
  };
}

/** One entry for each state of an active worker: title, text, progress, what one may do beside leaving. */
const STATES = {
  connecting: () => ["Connecting", "Reaching the members that the ticket names.", {}],
  fetching: ({ session: { fetch } }) => ["Fetching the run's data", "It stays in this tab's memory, and is checked before use. The others train on meanwhile.",
    fetch?.total > 0 ? { value: fetch.bytes / fetch.total, text: `${bytes(fetch.bytes)} of ${bytes(fetch.total)}` } : {}],
  checking: ({ run }) => run.info?.spans ? ["Preparing a part of the model", "The processor tries out how fast it computes it. The others train on meanwhile.", {}]
    : ["Checking the device", "Each program is tried first, and its results are compared: a device that errs must not join.", {}],
  syncing: ({ session: { sync } }) => ["Fetching the model", "The others train on meanwhile; nobody waits for this tab.",
    sync?.total > 0 ? { value: sync.bytes / sync.total, text: `${bytes(sync.bytes)} of ${bytes(sync.total)}` } : {}],
  following: ({ run }) => run.info?.spans ? ["Following the run", "This tab enters the ring, and then fetches the part of the model that it is to hold.", {}]
    : ["Following the run", "The model is here. This tab catches up on what was committed since, and then enters the ring.", {}],
  aside: () => ["Standing aside", "The run would be slower with this tab, so it does not train for now. It keeps a copy of the model, and is tried again by itself.", {}],
  training: ({ picture, deviceWords }) => picture.split && !picture.counted
    ? ["Waiting for others", "Training begins when somebody holds each part of the model.", null, { id: "pause", label: "Pause" }]
    : [["Training", ...(deviceWords ? [soft(` on ${deviceWords}`)] : [])],
      picture.progress === null || !picture.live ? "The first round is under way."
        : `${percent(picture.progress)} of the run is done${picture.left > 0 ? `, about ${duration(picture.left)} to go` : ""}.`,
      null, { id: "pause", label: "Pause" }],
  paused: ({ against }) => {
    const [why, goOn] = BECAUSE[against] ?? [];
    return ["Paused", why ? `Because ${why}. The others carry on, and this tab goes on by itself when that changes.`
      : "This device rests. The others carry on.", null, goOn ?? first({ id: "resume", label: "Resume" })];
  },
  reconnecting: () => ["Reconnecting", "The connection broke, and the others carry on. This tab looks for them, and goes on from where the run is by then.", {}],
};

function partaking(situation) {
  const { session, picture, hidden } = situation;
  if (session.state === "failed") return failed(session);
  if (session.state === "left") {
    return {
      title: "You have left the run",
      text: `The others carry on. ${thanks(picture)}`,
      cause: session.detail,
      actions: [first({ ...AGAIN, label: "Join again" }), WATCH],
      settings: true,
    };
  }
  if (session.state === "ended") {
    return { title: "The run is complete", text: `${summary(picture, session.done)} ${thanks(picture)}`, cause: session.detail };
  }
  const [title, text, progress, action] = (STATES[session.state] ?? STATES.connecting)(situation);
  return {
    ...(hidden ? { name: `${[title].flat()[0]} in the background` } : {}),
    title,
    text,
    progress,
    cause: `${session.detail}${hidden ? " This tab is in the background, where browsers slow it down." : ""}`,
    actions: session.leaving ? [{ id: "leaving", label: picture.split ? "Leaving when others hold its part …" : "Leaving after this round …", disabled: true }] : [action, LEAVE].filter(Boolean),
    settings: true,
  };
}

function summary(picture, done) {
  const evaluation = done ?? picture.evaluations.at(-1) ?? picture;
  return `${count(picture.round)} rounds, ${count(picture.counted)} samples, each counted once; loss ${loss(evaluation.loss)}`
    + (Number.isFinite(evaluation.accuracy) ? `; ${percent(evaluation.accuracy)} right.` : ".");
}

function thanks({ samples, counted }) {
  return samples ? `This tab worked through ${count(samples)} samples, ${percent(samples / counted)} of all. Thank you.` : "";
}

const UNREADABLE = {
  title: "This ticket is not readable",
  text: "The link was cut short or mistyped, or another release of Annulus made it. Ask for it again; until then you can watch.",
};

/** "2 direct, 1 relayed"; the words are those of docs/status.md, and index.html explains them. */
export function ways(links) {
  const many = (way) => [links.filter(({ link }) => link === way).length, way];
  const there = ["direct", "mapped", "punched", "relayed"].map(many).filter(([number]) => number);
  return there.map(([number, way]) => `${count(number)} ${way}`).join(", ");
}

/** "1.9 times as fast as this tab alone, 1.2 kB sent for each sample". */
export function gain({ time, timeIsMine, sampleBytes, members }) {
  const alone = timeIsMine ? "this tab" : "this peer";
  return [
    ...(time.speed_up > 0 && members.length > 1 ? [`${significant(time.speed_up, 2)} times as fast as ${alone} alone`] : []),
    ...(Number.isFinite(sampleBytes) && members.length > 1 ? [`${bytes(sampleBytes)} sent for each sample`] : []),
  ].join(", ");
}

/** One entry for each kind of failure: title, text, what one may do; the worker's own words follow as the cause. */
const FAILURES = {
  ticket: [UNREADABLE.title, UNREADABLE.text],
  refused: ["The run refused this ticket", "It belongs to another run or another release. Ask whoever invited you for a new link."],
  unreachable: ["Nobody answers", "None of the members that the ticket names could be reached. They may have stopped, or this network blocks UDP.", AGAIN],
  kernel: ["A GPU program does not work here", "The browser or its driver could not run one of the programs that training needs, so the tab stays out.", CPU, AGAIN],
  "wrong-results": ["This device gets wrong results", "So the tab stays out, and the run takes no harm. An update of the browser or the driver may help.", CPU],
  "gpu-lost": ["The GPU was taken away", "The others carry on, and what this tab was working on is handed out again.", AGAIN, CPU],
  "too-large": ["This model is too large for a tab", "The native program on this machine can take part: annulus join, with the same ticket."],
  "no-middle": ["This run has no part for a tab", "Its model is split over its members, and tabs hold only what lies between the ends, of which there is nothing. "
    + "The native program on this machine can take part: annulus join, with the same ticket."],
  "no-data": ["This run keeps its data", "Its members hand it to nobody. Whoever has the files can take part with the native program: annulus join, with the same ticket and --data.", AGAIN],
  "data-unreachable": ["The run's data cannot be had", "No member could hand it out. They may have stopped, or lack the files themselves by now.", AGAIN],
  "too-much-data": ["This run's data is too large for this tab", "The native program on this machine can take part: annulus join, with the same ticket."],
  "other-page": ["This page does not know the run", "The page and the run are of different programs or releases. Open the page of a peer that the run's own program started."],
  internal: ["The trainer has stopped", "Something in this tab went wrong. The run is unharmed; the others carry on.", AGAIN],
};

function failed({ failure, backend, detail }) {
  const [title, text, ...others] = FAILURES[failure?.kind] ?? FAILURES.internal;
  const [best, ...rest] = [...others, WATCH].filter((action) => action !== CPU || backend !== "cpu");
  return { title, text, cause: failure?.message ?? detail, actions: [first(best), ...rest] };
}
