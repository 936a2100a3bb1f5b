// The page's words and buttons in each situation. A title is a list of strings and of {soft} parts, which are set back.

import { bytes, count, duration, loss, parameters, percent, plural, qualities, significant } from "./format.js";

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
      title: "You can only watch at this address",
      text: "Browsers give the GPU only to pages over https, and this page came over http. "
        + "Over https your browser first warns about the certificate. Go on if you trust the person who sent you the link.",
      actions: [first({ id: "https", label: "Open over https", href: https }), WATCH],
    };
  }
  if (!transport) {
    return {
      title: "This browser can only watch",
      text: "It lacks WebTransport, which a tab needs to reach the peers. Chrome, Edge, Firefox 114 and Safari 26.4 have it.",
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
      text: `It has ${bytes(data)}, and a tab can hold ${bytes(limit)}. `
        + "Take part with the native program on this machine instead: annulus join, with the same ticket.",
      actions: [first(WATCH)],
    };
  }
  const { gpu, problem: cause } = device ?? {};
  const offer = (name, where, text, ...actions) => ({ name, title: invitation(situation, where), text, cause, actions, settings: Boolean(device) });
  if (spans) {
    return offer("Ready to hold a part", "the processor",
      `The model is split over its members into ${count(spans)} spans. This tab holds and trains a span between the first and the `
      + "last, which needs no samples; the processor computes it. You can leave at any time. The tab then waits, if it can, until others hold its span.",
      first(CPU), WATCH);
  }
  if (!device) return offer("Checking this device", "", "Checking what this device can do …", first({ ...START, disabled: true }), WATCH);
  if (!gpu) {
    return offer("No WebGPU", "the processor",
      "This browser gives the page no GPU. The processor can train instead. It is slower, and you may hear the fan.", first(CPU), WATCH);
  }
  if (gpu.software) {
    return offer("Software GPU", "a software GPU",
      `This browser's GPU (${gpu.name}) is emulated by the processor and too slow to help much. `
      + "If this machine has a real GPU, turn on hardware acceleration in the browser's settings.",
      first(WATCH), CPU, { ...START, label: "Train anyway" });
  }
  return offer("Ready to train", gpu.name,
    `This tab becomes a member of the run: your GPU computes gradients and exchanges them with the others.${
      state ? ` It first fetches ${bytes(state + data)}.` : ""}${
      data === null ? " The peer that serves this page sends no data, so the tab asks the others for it." : ""} You can leave at any time: the others carry on, and no work is lost.`,
    first(START), WATCH);
}

function watching({ run, picture, ticket, secure, transport, https }) {
  const actions = ticket.known ? [first({ id: "invited", label: "Take part" })]
    : secure ? [] : [{ id: "https", label: "Open over https to take part", href: https }];
  if (ticket.problem) return { ...UNREADABLE, actions };
  if (run.answering === false) {
    return {
      title: run.status ? "No answer from this page's peer" : "Nobody answers here",
      text: "The peer that serves this page does not answer. The run may go on without it. Trying again …",
      actions,
    };
  }
  if (!run.status) return { title: "Looking at the run …", actions };
  if (run.status.phase === "waiting") {
    return { title: "This page's peer takes a break", text: `It left the ring: ${run.status.waiting}. The others carry on${
      run.machine?.paused ? "" : ", and it comes back by itself"}.`, actions };
  }
  if (run.status.phase === "done") return { title: "The run is complete", text: summary(picture) };
  return {
    name: "Watching",
    title: [soft("Watching "), run.task ?? "the run", ...(run.size ? [soft(" learn with "), plural(run.size, "peer", "peers")] : [])],
    text: (picture.left > 0 ? `About ${duration(picture.left)} left. ` : "")
      + (ticket.known || !secure || !transport ? "" : "To take part with this tab, open an invitation link, which ends in a ticket (#annulus2…)."),
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

/** One entry for each state of an active worker: title, text, progress, and the action beside leaving. */
const STATES = {
  connecting: () => ["Connecting", "Connecting to the members that the ticket names.", {}],
  fetching: ({ session: { fetch } }) => ["Fetching the run's data", "It stays in this tab's memory and is checked before use. The others train on meanwhile.",
    fetch?.total > 0 ? { value: fetch.bytes / fetch.total, text: `${bytes(fetch.bytes)} of ${bytes(fetch.total)}` } : {}],
  checking: ({ run }) => run.info?.spans ? ["Preparing a part of the model", "The tab measures how fast the processor computes it. The others train on meanwhile.", {}]
    : ["Checking the device", "Each GPU program is tested first: a device with wrong results must not join.", {}],
  syncing: ({ session: { sync } }) => ["Fetching the model", "The others train on meanwhile. Nobody waits for this tab.",
    sync?.total > 0 ? { value: sync.bytes / sync.total, text: `${bytes(sync.bytes)} of ${bytes(sync.total)}` } : {}],
  following: ({ run }) => run.info?.spans ? ["Following the run", "This tab enters the ring, and then fetches its part of the model.", {}]
    : ["Following the run", "The model is here. This tab applies the rounds since then, and enters the ring.", {}],
  // Without a bar: drawing a moving one takes a sixth of a processor core, for minutes.
  aside: () => ["Standing aside", "The run would be slower with this tab, so it does not train for now. It keeps a copy of the model, and is tried again by itself.", null],
  training: ({ picture, deviceWords }) => picture.split && !picture.counted
    ? ["Waiting for others", "Training begins when each part of the model has a holder.", null, { id: "pause", label: "Pause" }]
    : [["Training", ...(deviceWords ? [soft(` on ${deviceWords}`)] : [])],
      picture.progress === null || !picture.live ? "The first round is under way."
        : `${percent(picture.progress)} of the run is done${picture.left > 0 ? `, about ${duration(picture.left)} left` : ""}.`,
      null, { id: "pause", label: "Pause" }],
  paused: ({ against }) => {
    const [why, goOn] = BECAUSE[against] ?? [];
    return ["Paused", why ? `Because ${why}. The others carry on, and this tab goes on by itself when that changes.`
      : "This device rests. The others carry on.", null, goOn ?? first({ id: "resume", label: "Resume" })];
  },
  reconnecting: () => ["Reconnecting", "The connection broke, and the others carry on. This tab looks for them and catches up with the run.", {}],
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
    actions: session.leaving ? [{ id: "leaving", label: picture.split ? "Leaving once others hold its part …" : "Leaving after this round …", disabled: true }] : [action, LEAVE].filter(Boolean),
    settings: true,
  };
}

function summary(picture, done) {
  const evaluation = done ?? picture.evaluations.at(-1) ?? picture;
  return `${count(picture.round)} rounds, ${count(picture.counted)} samples, each counted once; ${[`loss ${loss(evaluation.loss)}`, ...qualities(evaluation.metrics)].join("; ")}.`;
}

function thanks({ samples, counted }) {
  return samples ? `This tab worked through ${count(samples)} samples, ${percent(samples / counted)} of all. Thank you.` : "";
}

const UNREADABLE = {
  title: "This ticket is not readable",
  text: "The link is incomplete or mistyped, or it comes from another release of Annulus. Ask for it again. Until then you can watch.",
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

/** One entry for each kind of failure: title, text, actions. The worker's own words follow as the cause. */
const FAILURES = {
  ticket: [UNREADABLE.title, UNREADABLE.text],
  refused: ["The run refused this ticket", "It belongs to another run or another release. Ask the person who invited you for a new link."],
  unreachable: ["Nobody answers", "No member that the ticket names could be reached. They may have stopped, or this network may block UDP.", AGAIN],
  kernel: ["A GPU program does not work here", "The browser or its driver could not run one of the programs that training needs, so the tab did not join.", CPU, AGAIN],
  "wrong-results": ["This device gets wrong results", "The tab did not join, so the run is not harmed. An update of the browser or the driver may help.", CPU],
  "gpu-lost": ["The GPU was taken away", "The others carry on, and they compute this tab's samples again.", AGAIN, CPU],
  "too-large": ["This model is too large for a tab", "Take part with the native program on this machine instead: annulus join, with the same ticket."],
  "no-middle": ["This run has no part for a tab", "Its model is split over its members, and a tab can only hold a span between the first and the last. This model has none. "
    + "Take part with the native program on this machine instead: annulus join, with the same ticket."],
  "no-data": ["This run keeps its data", "Its members do not send it. If you have the files, take part with the native program: annulus join, with the same ticket and --data.", AGAIN],
  "data-unreachable": ["The run's data could not be fetched", "No member could send it. They may have stopped, or may lack the files themselves.", AGAIN],
  "too-much-data": ["This run's data is too large for this tab", "Take part with the native program on this machine instead: annulus join, with the same ticket."],
  "other-page": ["This page does not know the run", "The page and the run come from different programs or releases. Open the page of a peer that runs the same program as the run."],
  internal: ["The trainer has stopped", "Something went wrong in this tab. The run is not harmed, and the others carry on.", AGAIN],
};

function failed({ failure, backend, detail }) {
  const [title, text, ...others] = FAILURES[failure?.kind] ?? FAILURES.internal;
  const [best, ...rest] = [...others, WATCH].filter((action) => action !== CPU || backend !== "cpu");
  return { title, text, cause: failure?.message ?? detail, actions: [first(best), ...rest] };
}
