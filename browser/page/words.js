// What the page says in each situation, and what one may do then: a pure function of the situation.
//
// A title is a list of strings and of {soft} parts, which are set back. The first action is the one to take.

import { bytes, count, duration, parameters, percent, plural } from "./format.js";

const soft = (text) => ({ soft: text });
const WATCH = { id: "watch", label: "Only watch" };
const CPU = { id: "start-cpu", label: "Train on the processor" };
const AGAIN = { id: "retry", label: "Try again" };
const TICKET = { id: "ticket", label: "Use a ticket" };

/**
 * The situation: {mode: "invited"|"watch"|"waiting"|"session", secure, transport, https, ticket: {known, problem},
 * device, slow, session, holds, hiddenFor, hidden, run, picture}. Gives {name, title, text, cause, progress, actions,
 * settings}; `name` is for the tab's title.
 */
export function describe(situation) {
  const { mode, session } = situation;
  const page = { name: "", title: [""], text: "", cause: "", progress: null, actions: [], settings: false };
  if (mode === "session") return { ...page, ...(session.failure ? failed(situation) : taking[session.state](situation)) };
  if (mode === "waiting") return { ...page, ...waiting(situation) };
  if (mode === "watch") return { ...page, ...watching(situation) };
  return { ...page, ...invited(situation) };
}

/** "Train gpt (0.83 M parameters) with 3 others, on Apple M2". */
function invitation({ run }, device) {
  const size = run.info?.parameters ?? run.status?.parameters;
  const title = [soft("Train "), run.task ?? "a model"];
  if (size) title.push(soft(` (${parameters(size)} parameters)`));
  if (run.size) title.push(soft(" with "), plural(run.size, "other", "others"));
  if (device) title.push(soft(run.size ? ", on " : " on "), device);
  return title;
}

function promise({ run }, device) {
  const state = run.info?.state_bytes;
  return `This tab becomes a full member of the run: your ${device} computes, and what it finds is exchanged with the others.`
    + (state ? ` It first fetches ${bytes(state)}.` : "")
    + " Leave whenever you like: the others carry on, and no work is lost.";
}

function invited(situation) {
  const { device, secure, transport, https } = situation;
  if (!secure) {
    return {
      name: "insecure address",
      title: ["This address can only be watched"],
      text: "The page came over plain http, and browsers lend the GPU only to pages that come over https. Open it there to take part. "
        + "Your browser will say that it does not know this machine's certificate; go on if you trust whoever sent you the link.",
      actions: [{ id: "https", label: "Open over https", href: https }, WATCH],
    };
  }
  if (!transport) {
    return {
      name: "browser too old",
      title: ["This browser can only watch"],
      text: "It lacks WebTransport, by which a tab reaches the other peers. Chrome and Edge have it, Firefox since 114, Safari since 26.4.",
      actions: [WATCH],
    };
  }
  if (!device) {
    return {
      name: "checking this device",
      title: invitation(situation),
      text: situation.slow
        ? "Still waiting for the browser to say what this device can do. A first visit loads the trainer; a GPU that sleeps takes a moment."
        : "Looking at what this device can do …",
      actions: [{ id: "start", label: "Start", primary: true, disabled: true }, WATCH],
    };
  }
  if (!device.gpu) {
    return {
      name: "no WebGPU",
      title: invitation(situation, "the processor"),
      text: "This browser gives the page no GPU. The processor can train instead, slower and with some fan; you decide. "
        + "A recent Chrome, Edge, Safari or Firefox with hardware acceleration switched on may find the GPU.",
      cause: device.problem ?? "",
      actions: [{ ...CPU, primary: true }, WATCH],
      settings: true,
    };
  }
  if (device.gpu.software) {
    return {
      name: "software GPU",
      title: invitation(situation, "a software GPU"),
      text: `The GPU that this browser offers (${device.gpu.name}) is the processor in disguise, too slow to be of much help. `
        + "Watching serves you better. If this machine has a real one, switch on hardware acceleration in the browser's settings; the processor by itself is mostly faster than this.",
      cause: device.problem ?? "",
      actions: [{ ...WATCH, primary: true }, CPU, { id: "start", label: "Train all the same" }],
      settings: true,
    };
  }
  return {
    name: "ready",
    title: invitation(situation, device.gpu.name),
    text: promise(situation, "GPU"),
    cause: device.problem ?? "",
    actions: [{ id: "start", label: "Start", primary: true }, WATCH],
    settings: true,
  };
}

function watching(situation) {
  const { run, picture, ticket, secure, transport } = situation;
  const may = secure && transport;
  const actions = ticket.known
    ? [{ id: "invited", label: "Take part", primary: true }]
    : may ? [{ ...TICKET, primary: Boolean(ticket.problem) }]
      : secure ? [] : [{ id: "https", label: "Open over https to take part", href: situation.https }];
  const problem = ticket.problem;
  if (problem) {
    return {
      name: "ticket not readable",
      title: [problem === "version" ? "This ticket is of another version" : "This ticket is not readable"],
      text: problem === "version"
        ? "It was made by another release of Annulus than the one that serves this page. Ask for a new link; until then you can watch."
        : "The link was cut short or mistyped. Ask for it again, or paste the ticket; until then you can watch.",
      actions,
    };
  }
  if (run.answering === false) {
    return {
      name: "no answer",
      title: [run.status ? "No answer from this page's peer" : "Nobody answers here"],
      text: "The peer that serves this page has stopped or cannot be reached. The run may well go on without it. Asking again every few seconds.",
      actions,
    };
  }
  if (!run.status) return { name: "watching", title: ["Looking at the run …"], actions };
  if (picture.progress >= 1) {
    return { name: "run complete", title: ["The run is complete"], text: summary(picture), actions: [] };
  }
  return {
    name: "watching",
    title: [soft("Watching "), run.task ?? "the run", ...(run.size ? [soft(" learn with "), plural(run.size, "peer", "peers")] : [])],
    text: `${ticket.known || !may ? "" : "To take part with this tab, open an invitation link or paste a ticket. "}`
      + (picture.left !== null && picture.left > 0 ? `About ${duration(picture.left)} to go.` : "Each arc of the ring is a peer, as long as its share of the work."),
    actions,
  };
}

const BECAUSE = {
  battery: { name: "on battery", why: "this device is not plugged in", go: "Train on battery too" },
  metered: { name: "metered connection", why: "the connection is metered", go: "Train on this connection too" },
};

function waiting({ holds, run, device }) {
  const hold = BECAUSE[[...holds][0]] ?? BECAUSE.battery;
  return {
    name: `waiting, ${hold.name}`,
    title: invitation({ run }, device?.gpu?.name),
    text: `Waiting, because ${hold.why}. Training starts by itself when that changes.`,
    actions: [{ id: "go-on", label: hold.go }, { id: "cancel", label: "Cancel" }],
    settings: true,
  };
}

const LEAVE = { id: "leave", label: "Leave" };
const PAUSE = { id: "pause", label: "Pause" };

/** One entry for each state of a worker that has not failed. */
const taking = {
  connecting: (situation) => ({
    name: "connecting",
    title: ["Connecting"],
    text: "Reaching the members that the ticket names.",
    progress: {},
    ...common(situation, [LEAVE]),
  }),
  checking: (situation) => ({
    name: "checking",
    title: ["Checking the device"],
    text: `Every program that will run on this ${situation.session.backend === "cpu" ? "processor" : "GPU"} is tried first and its results compared: a device that errs must not join.`,
    progress: {},
    ...common(situation, [LEAVE]),
  }),
  syncing: (situation) => {
    const { sync } = situation.session;
    const known = sync?.total > 0;
    return {
      name: "syncing",
      title: ["Fetching the model"],
      text: "The others train on meanwhile; nobody waits for this tab.",
      progress: known ? { value: sync.bytes / sync.total, text: `${bytes(sync.bytes)} of ${bytes(sync.total)}` } : {},
      ...common(situation, [LEAVE]),
    };
  },
  following: (situation) => ({
    name: "following",
    title: ["Following the run"],
    text: "The model is here. This tab replays what was committed since, and enters the ring at the next round.",
    progress: {},
    ...common(situation, [LEAVE]),
  }),
  training: (situation) => ({
    name: situation.hidden ? "training in the background" : "training",
    title: ["Training", ...(situation.device_words ? [soft(` on ${situation.device_words}`)] : [])],
    text: progress(situation),
    ...common(situation, [PAUSE, LEAVE]),
  }),
  paused: (situation) => {
    const reason = [...situation.holds].find((hold) => BECAUSE[hold]);
    const hold = BECAUSE[reason];
    return {
      name: hold ? `paused, ${hold.name}` : "paused",
      title: ["Paused"],
      text: hold
        ? `Because ${hold.why}. The others carry on, and this tab goes on by itself when that changes.`
        : "The GPU rests. The others carry on, and this tab stays up to date.",
      ...common(situation, [hold ? { id: "go-on", label: hold.go } : { id: "resume", label: "Resume", primary: true }, LEAVE]),
    };
  },
  reconnecting: (situation) => ({
    name: "reconnecting",
    title: ["Reconnecting"],
    text: "The connection broke, and the others carry on. This tab tries to find them again, and takes up where the run is by then.",
    progress: {},
    ...common(situation, [LEAVE]),
  }),
  left: (situation) => ({
    name: "left",
    title: [situation.session.asleep ? "The browser put this tab to sleep" : "You have left the run"],
    text: (situation.session.asleep ? "So it left the run, and the others carry on. " : "The others carry on. ") + thanks(situation.picture),
    cause: situation.session.detail,
    actions: [{ id: "restart", label: "Join again", primary: true }, WATCH],
    settings: true,
  }),
  ended: (situation) => ({
    name: "run complete",
    title: ["The run is complete"],
    text: [summary(situation.picture, situation.session.done), thanks(situation.picture)].filter(Boolean).join(" "),
    cause: situation.session.detail,
    actions: [],
  }),
};

/** What the states of taking part have in common. */
function common({ session, hidden, hiddenFor }, actions) {
  const notes = [session.detail];
  if (hidden) notes.push("This tab is in the background, where browsers slow it down.");
  else if (hiddenFor) notes.push(`This tab was in the background for ${duration(hiddenFor)}, where browsers slow it down.`);
  return {
    cause: notes.filter(Boolean).join(" "),
    actions: session.leaving ? [{ id: "leaving", label: "Leaving after this round …", disabled: true }] : actions,
    settings: true,
  };
}

function progress({ picture }) {
  const parts = [];
  if (picture.progress !== null) parts.push(`${percent(picture.progress)} of the run is done`);
  if (picture.left > 0) parts.push(`about ${duration(picture.left)} to go`);
  const line = parts.length ? `${parts.join(", ")}.` : "The first round is under way.";
  return picture.live && picture.weight === null ? `${line} This tab enters the ring with the next round.` : line;
}

function summary(picture, done = null) {
  const loss = done?.loss ?? picture.evaluations[picture.evaluations.length - 1]?.loss ?? picture.loss;
  const accuracy = done?.accuracy ?? picture.evaluations[picture.evaluations.length - 1]?.accuracy;
  const parts = [`${count(picture.round)} rounds, ${count(picture.counted)} samples, each counted once`];
  if (Number.isFinite(loss)) parts.push(`loss ${loss.toFixed(3)}`);
  if (Number.isFinite(accuracy)) parts.push(`${(100 * accuracy).toFixed(1)} % right`);
  return `${parts.join("; ")}.`;
}

function thanks({ samples, counted, target }) {
  if (!samples) return "";
  const part = samples / (counted || target || samples);
  return `This tab worked through ${count(samples)} samples, ${percent(part)} of all. Thank you.`;
}

/** One entry for each kind of failure; the worker's own words follow as the cause. */
const FAILURES = {
  ticket: () => ({
    name: "ticket not readable",
    title: ["This ticket is not readable"],
    text: "The link was cut short or mistyped. Ask for it again, or paste the ticket.",
    actions: [TICKET, WATCH],
  }),
  refused: () => ({
    name: "ticket refused",
    title: ["The run refused this ticket"],
    text: "It belongs to another run, or to another version. Ask whoever invited you for a new link.",
    actions: [TICKET, WATCH],
  }),
  unreachable: () => ({
    name: "nobody answers",
    title: ["Nobody answers"],
    text: "None of the members that the ticket names could be reached. They may have stopped, or something between here and there blocks UDP, as some company and hotel networks do.",
    actions: [AGAIN, WATCH],
  }),
  kernel: ({ session }) => ({
    name: "GPU program failed",
    title: ["A GPU program does not work here"],
    text: "This browser or its driver could not run one of the programs that training needs, so the tab stays out.",
    actions: session.backend === "cpu" ? [AGAIN, WATCH] : [CPU, AGAIN, WATCH],
  }),
  "wrong-results": ({ session }) => ({
    name: "wrong results",
    title: [session.backend === "cpu" ? "This processor gets wrong results" : "This GPU gets wrong results"],
    text: "What it computed differs from what must come out. The tab stays out, so that the run takes no harm. An update of the browser or the driver may help.",
    actions: session.backend === "cpu" ? [WATCH] : [CPU, WATCH],
  }),
  "gpu-lost": () => ({
    name: "GPU lost",
    title: ["The GPU was taken away"],
    text: "The system reset it or gave it to something else. The others carry on, and what this tab was working on is handed out again.",
    actions: [AGAIN, CPU, WATCH],
  }),
  "too-large": () => ({
    name: "model too large",
    title: ["This model is too large for a tab"],
    text: "It does not fit into the memory that the browser grants. The native program on this machine can take part: annulus join, with the same ticket.",
    actions: [WATCH],
  }),
  "no-data": () => ({
    name: "data not here",
    title: ["This run needs data that a tab cannot get"],
    text: "It trains on files that each member holds itself. Whoever has them can take part with the native program: annulus join, with the same ticket and --data.",
    actions: [WATCH],
  }),
  internal: () => ({
    name: "stopped",
    title: ["The trainer has stopped"],
    text: "Something went wrong in this tab that should not. The run is unharmed; the others carry on.",
    actions: [AGAIN, WATCH],
  }),
};

function failed(situation) {
  const { session } = situation;
  const words = (FAILURES[session.failure.kind] ?? FAILURES.internal)(situation);
  const [first, ...rest] = words.actions;
  return { ...words, cause: session.failure.message, actions: [{ ...first, primary: true }, ...rest] };
}
