// The page's words and buttons in each situation. A title is a list of strings and of {soft} parts, which are set back.

import { bytes, count, duration, loss, ordinal, parameters, percent, plural, qualities, significant } from "./format.js";

const soft = (text) => ({ soft: text });
const first = (action) => ({ ...action, primary: true });
const WATCH = { id: "watch", label: "Only watch" };
const START = { id: "start", label: "Start" };
const CPU = { id: "start-cpu", label: "Train on the processor" };
const AGAIN = { id: "retry", label: "Try again" };
const LEAVE = { id: "leave", label: "Leave" };
const DOWNLOAD = { id: "download", label: "Download the model" };
const ASK = { id: "ask", label: "Ask the model" };
const PICTURE = { id: "picture", label: "A picture of your part" };
/** Stock tasks in words; one's own go by their names. */
const TASKS = { gpt: "a language model", digits: "a reader of digits", table: "a model of a table", images: "a namer of pictures" };

/** Gives {name, title, text, cause, progress, actions, settings}; `name` changes with the state, not its numbers. */
export function describe(situation) {
  const words = { watch: watching, waiting, invited, session: partaking }[situation.mode](situation);
  const title = [words.title].flat();
  const name = title.map((part) => part.soft ?? part).join("");
  return { name, text: "", cause: "", actions: [], ...words, title };
}

/** What the run trains: "a language model". */
function kind(run) {
  return TASKS[run.task] ?? run.task ?? "a model";
}

/** What the run is about: "To read to my children. It is a language model of 0.83 M parameters." */
export function aboutRun(run) {
  const size = run.info?.parameters;
  const what = run.title && run.task && `It is ${kind(run)}${size ? ` of ${parameters(size)} parameters` : ""}.`;
  return [run.about, what].filter(Boolean).join(" ");
}

/** "Train a language model (0.83 M parameters) with 3 others, on Apple M2". */
function invitation({ run }, device) {
  const size = run.info?.parameters;
  return [
    soft("Train "), run.title || kind(run),
    ...(size && !run.title ? [soft(` (${parameters(size)} parameters)`)] : []),
    ...(run.size ? [soft(" with "), plural(run.size, "other", "others")] : []),
    ...(device ? [soft(run.size ? ", on " : " on "), device] : []),
  ];
}

function invited(situation) {
  const { device, secure, transport, webkit, https, run, given } = situation;
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
      text: "It lacks WebTransport, which a tab needs to reach the peers. Chrome, Edge and Firefox have had it since 2024.",
      actions: [first(WATCH)],
    };
  }
  if (webkit) {
    return {
      title: "This browser can only watch",
      text: "Safari, and every browser on an iPhone or iPad, stops receiving after 16 MB from a peer, "
        + "so a tab would freeze within minutes. Take part with Chrome, Edge or Firefox on a computer, or with Chrome on Android.",
      cause: "WebKit bug 319818",
      actions: [first(WATCH)],
    };
  }
  if (run.info?.task === "pytorch") {
    const [title, text] = FAILURES.elsewhere;
    return { title, text, actions: [first(WATCH)] };
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
  const before = given.to(run.info?.run);
  const thanked = before ? ` This browser has already given it ${count(before)} samples.` : "";
  const offer = (name, where, text, ...actions) => ({
    name,
    title: invitation(situation, where),
    text: text + thanked,
    cause,
    // A page that no peer serves has nothing to watch.
    actions: situation.apart ? actions.filter((action) => action.id !== WATCH.id).map((action, i) => (i ? action : first(action))) : actions,
    settings: Boolean(device),
  });
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

function watching({ run, picture, ticket, secure, transport, apart, https }) {
  const actions = ticket.known ? [first({ id: "invited", label: "Take part" })]
    : secure ? [] : [{ id: "https", label: "Open over https to take part", href: https }];
  if (ticket.problem) return { ...UNREADABLE, actions };
  if (apart) {
    return {
      title: "Take part in a run",
      text: "This copy of the page shows the run as soon as this tab takes part.",
      actions,
    };
  }
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
  if (run.status.phase === "done") {
    return { title: "The run is complete", text: `${summary(picture)} Its members have the model: ask one of them for it.`, actions };
  }
  return {
    name: "Watching",
    title: [soft("Watching "), run.title || (run.task ? kind(run) : "the run"), ...(run.size ? [soft(" learn with "), plural(run.size, "peer", "peers")] : [])],
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
  training: ({ run, picture, deviceWords }) => picture.split && !picture.counted
    ? ["Waiting for others", "Training begins when each part of the model has a holder.", null, { id: "pause", label: "Pause" }]
    : [["Training", ...(run.title ? [` ${run.title}`] : []), ...(deviceWords ? [soft(` on ${deviceWords}`)] : [])],
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
      text: `The others carry on. ${thanks(situation)}`,
      cause: session.detail,
      actions: [first({ ...AGAIN, label: "Join again" }), ...(picture.samples ? [PICTURE] : []), WATCH],
      settings: true,
    };
  }
  if (session.state === "ended") {
    return {
      title: "The run is complete",
      text: `${summary(picture, session.done)} ${thanks(situation)}`,
      cause: session.detail,
      actions: [...(picture.split ? [] : [first(DOWNLOAD), ...(session.generates || session.schema ? [ASK] : [])]), ...(picture.samples ? [PICTURE] : [])],
    };
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

function thanks({ run, given, picture: { samples, counted, rank } }) {
  if (!samples) return "";
  const { samples: all, runs } = given.all;
  return [
    `This tab worked through ${count(samples)} samples, ${percent(samples / counted)} of all`,
    rank ? `, which makes it the ${ordinal(rank[0])} of ${count(rank[1])}. Thank you.` : ". Thank you.",
    all > samples ? ` This browser has given ${count(all)} samples to ${plural(runs, "run", "runs")} so far.` : "",
  ].join("");
}

/** The words of the picture: one large line, and others below. */
export function part({ run, name, picture: { samples, counted, rank, members } }) {
  const share = `${percent(samples / counted)} of ${run.title || kind(run)}`;
  return {
    large: `${count(samples)} samples`,
    lines: [
      `${name || "This browser"} computed ${share}${rank ? `, the ${ordinal(rank[0])} of ${count(rank[1])} helpers` : ""}.`,
      `${plural(members.length, "machine trains", "machines train")} it together, with Annulus.`,
    ],
  };
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
  revoked: ["Your invitation was taken back", "A member of the run has revoked the ticket in this link. Ask the person who invited you for a new one."],
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
  elsewhere: ["This run's members compute with PyTorch", "A tab cannot. Take part from Python on this machine instead: annulus.member(model, dataset, ticket=...), with the same ticket."],
  internal: ["The trainer has stopped", "Something went wrong in this tab. The run is not harmed, and the others carry on.", AGAIN],
};

function failed({ failure, backend, detail }) {
  const revoked = failure?.kind === "refused" && failure.message.includes("revoked");
  const [title, text, ...others] = FAILURES[revoked ? "revoked" : failure?.kind] ?? FAILURES.internal;
  const [best, ...rest] = [...others, WATCH].filter((action) => action !== CPU || backend !== "cpu");
  return { title, text, cause: failure?.message ?? detail, actions: [first(best), ...rest] };
}
