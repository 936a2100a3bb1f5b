// The page: joins the run's model, the worker and the words to the elements of index.html.

import { bytes, count, duration, percent, seconds, short, significant } from "./format.js";
import { Run } from "./model.js";
import { Plot } from "./plot.js";
import { Ring } from "./ring.js";
import { Session } from "./session.js";
import { Awake, Held, Surroundings, loadPreferences, savePreferences } from "./surroundings.js";
import { describe } from "./words.js";

/** Time between two looks at the serving node, in milliseconds: in front, in the background, while taking part. */
const WATCH_MS = { front: 1000, hidden: 10_000, session: 5000, silent: 3000, ended: 15_000 };
/** Least time between two drawings: a fast run has hundreds of rounds a second. */
const DRAW_MS = 250;
const SLOW_CHECK_MS = 6000;
/** How long it is said that the tab was in the background, and from how many seconds on. */
const BACK_MS = 10_000;
const BACK_SECONDS = 5;
const SAMPLE_LENGTH = 400;
const SAMPLE_PATIENCE_MS = 20_000;
const SHOWN_CHANGES = 7;

const $ = (id) => document.getElementById(id);
const run = new Run();
const session = new Session(heard);
const surroundings = new Surroundings(conditions);
const awake = new Awake();
const held = new Held();
const ring = new Ring($("ring"));
const plot = new Plot($("plot"), $("loss-reading"));
const preferences = loadPreferences({
  power: 1,
  plugged: false,
  unmetered: true,
  // A phone that darkens its screen stops its tabs; a desktop does not.
  awake: matchMedia("(pointer: coarse)").matches,
});

const page = {
  mode: "invited",
  secure: window.isSecureContext,
  transport: "WebTransport" in window,
  ticket: readTicket(location.hash),
  device: null,
  slow: false,
  pausedByHand: false,
  holds: new Set(),
  hidden: document.hidden,
  hiddenSince: null,
  hiddenFor: 0,
  waitingFor: null,
  drawing: null,
  said: "",
  sampling: null,
};

// What this tab is told: the ticket in the address, the run by the node that serves the page.

/** A ticket's text is checked by the worker; here only whether it looks like one. Gives {text, known, problem}. */
function readTicket(link) {
  let text = link.includes("#") ? link.slice(link.indexOf("#") + 1) : link;
  try {
    text = decodeURIComponent(text).trim();
  } catch {
    return { text: "", known: false, problem: "unreadable" };
  }
  if (!text) return { text: "", known: false, problem: null };
  if (/^annulus1[0-9a-z]{60,504}$/i.test(text)) return { text, known: true, problem: null };
  return { text: "", known: false, problem: /^annulus(?!1)\d/i.test(text) ? "version" : "unreadable" };
}

async function fetchJson(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function watch() {
  clearTimeout(page.watching);
  try {
    if (!run.info) run.takeInfo(await fetchJson("peer.json"));
    run.takeStatus(await fetchJson("status"));
    run.answering = true;
  } catch {
    run.answering = false;
  }
  draw();
  const complete = run.status?.target > 0 && run.status.counted >= run.status.target;
  const pause = page.hidden ? WATCH_MS.hidden : complete ? WATCH_MS.ended : session.active ? WATCH_MS.session
    : run.answering ? WATCH_MS.front : WATCH_MS.silent;
  page.watching = setTimeout(watch, pause);
}

/** After each message of the worker. */
function heard(message) {
  if (message?.type === "device") {
    page.device = { gpu: message.gpu ?? null, problem: message.problem ?? null };
  } else if (message?.type === "event") {
    run.takeEvent(message.event, session.ready?.peer);
  } else if (message?.type === "text") {
    showText(message);
  } else if (message?.type === "failed" && page.mode !== "session") {
    // The trainer could not even look at the device.
    page.mode = "session";
  }
  held.set(session.active);
  awake.want(session.state === "training" && preferences.awake);
  draw();
}

// What the volunteer does.

const actions = {
  start: () => start("gpu"),
  "start-cpu": () => start("cpu"),
  watch: () => go("watch"),
  invited: () => invite(),
  ticket: () => openTicketForm(),
  pause: () => {
    page.pausedByHand = true;
    applyHolds();
  },
  resume: () => {
    page.pausedByHand = false;
    applyHolds();
  },
  leave: () => session.leave(),
  retry: () => (session.backend ? start(session.backend) : invite()),
  restart: () => start(session.backend ?? "gpu"),
  cancel: () => go("invited"),
  "go-on": () => {
    if (page.holds.has("battery")) preferences.plugged = false;
    if (page.holds.has("metered")) preferences.unmetered = false;
    savePreferences(preferences);
    showSettings();
    conditions();
  },
};

function start(backend) {
  if (!page.ticket.known) return openTicketForm();
  page.pausedByHand = false;
  page.holds = holdsNow();
  if (page.holds.size) {
    page.waitingFor = backend;
    return go("waiting");
  }
  page.mode = "session";
  run.begin();
  session.start(page.ticket.text, backend, preferences.power, false);
  watch();
}

function go(mode) {
  page.mode = mode;
  draw();
}

/** Shows the invitation, and looks at the device where that has not happened. */
function invite() {
  if (session.active) return;
  session.reset();
  go("invited");
  if (!page.secure || !page.transport || page.device) return;
  session.check();
  setTimeout(() => {
    page.slow = true;
    draw();
  }, SLOW_CHECK_MS);
}

/** Reasons of the surroundings not to train now. */
function holdsNow() {
  const holds = new Set();
  if (preferences.plugged && surroundings.onBattery) holds.add("battery");
  if (preferences.unmetered && surroundings.metered) holds.add("metered");
  return holds;
}

/** After a change of charger, connection or settings. */
function conditions() {
  showSettings();
  page.holds = holdsNow();
  if (page.mode === "waiting" && !page.holds.size) return start(page.waitingFor);
  applyHolds();
}

function applyHolds() {
  const paused = page.pausedByHand || page.holds.size > 0;
  if (session.active && paused !== page.told) session.tell({ type: paused ? "pause" : "resume" });
  page.told = session.active && paused;
  draw();
}

function openTicketForm() {
  page.mode = "watch";
  draw();
  $("ticket-form").hidden = false;
  $("ticket").focus();
}

$("ticket-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const ticket = readTicket($("ticket").value);
  $("ticket-problem").textContent = ticket.known ? ""
    : ticket.problem === "version" ? "This ticket is of another release." : "This is not a ticket, or not all of it: it starts with annulus1.";
  if (!ticket.known) return $("ticket").focus();
  $("ticket").value = "";
  $("ticket-form").hidden = true;
  page.ticket = ticket;
  invite();
});

$("actions").addEventListener("click", (event) => {
  const id = event.target.closest("button")?.dataset.action;
  if (id && event.target.closest("button").getAttribute("aria-disabled") !== "true") actions[id]?.();
});

// Settings.

function showSettings() {
  const shown = Math.round(100 * preferences.power);
  $("power").value = shown;
  $("power-value").textContent = `${shown} %`;
  $("power").setAttribute("aria-valuetext", `${shown} percent`);
  $("plugged").checked = preferences.plugged;
  $("unmetered").checked = preferences.unmetered;
  $("awake").checked = preferences.awake;
  $("plugged-row").hidden = !surroundings.tellsCharging;
  $("unmetered-row").hidden = !surroundings.tellsMetered;
  $("awake-row").hidden = !Awake.available;
}

$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings").addEventListener("input", () => {
  const power = Math.min(Math.max(Number($("power").value) / 100, 0.1), 1);
  if (power !== preferences.power) session.tell({ type: "power", value: power });
  preferences.power = power;
  preferences.plugged = $("plugged").checked;
  preferences.unmetered = $("unmetered").checked;
  preferences.awake = $("awake").checked;
  savePreferences(preferences);
  awake.want(session.state === "training" && preferences.awake);
  conditions();
});

// The tab itself: hidden, put aside, opened anew.

document.addEventListener("visibilitychange", () => {
  page.hidden = document.hidden;
  session.tell({ type: "hidden", value: page.hidden });
  if (page.hidden) {
    page.hiddenSince = performance.now();
  } else {
    const away = (performance.now() - (page.hiddenSince ?? performance.now())) / 1000;
    page.hiddenFor = away >= BACK_SECONDS ? away : 0;
    setTimeout(() => {
      page.hiddenFor = 0;
      draw();
    }, BACK_MS);
    watch();
  }
  drawNow();
});
window.addEventListener("pagehide", () => session.tell({ type: "leave" }));
document.addEventListener("freeze", () => session.tell({ type: "leave" }));
document.addEventListener("resume", () => wake());
window.addEventListener("pageshow", (event) => {
  if (event.persisted) wake();
});
window.addEventListener("hashchange", () => {
  if (session.active) return;
  page.ticket = readTicket(location.hash);
  page.ticket.known ? invite() : go("watch");
});

function wake() {
  session.sleep();
  watch();
}

// Text.

$("sample-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!session.canSample || page.sampling) return;
  const prompt = $("prompt").value;
  session.worker.postMessage({ type: "sample", prompt, length: SAMPLE_LENGTH, temperature: Number($("temperature").value) });
  $("written").setAttribute("aria-busy", "true");
  showText({ prompt, text: "", done: false });
});
$("temperature").addEventListener("input", () => {
  $("temperature-value").textContent = Number($("temperature").value).toFixed(1);
});

/** Shows a sample: `text` is all of it so far, without the prompt. */
function showText({ prompt, text, done }) {
  clearTimeout(page.sampling);
  page.sampling = done ? null : setTimeout(() => {
    page.sampling = null;
    $("written").setAttribute("aria-busy", "false");
    $("sample-help").textContent = "The trainer has not answered; it may be busy. Try again in a moment.";
    draw();
  }, SAMPLE_PATIENCE_MS);
  const given = document.createElement("span");
  given.className = "given";
  given.textContent = prompt;
  $("written").replaceChildren(given, text);
  $("written").hidden = false;
  $("written").setAttribute("aria-busy", String(!done));
  if (done) announce(`${prompt}${text}`);
  drawSample();
}

// Drawing.

function draw() {
  if (page.drawing === null) page.drawing = setTimeout(drawNow, page.drawn ? DRAW_MS : 0);
}

function drawNow() {
  clearTimeout(page.drawing);
  page.drawing = null;
  page.drawn = true;
  const mine = page.mode === "session" && session.active ? session.ready?.peer ?? null : null;
  const picture = run.picture(mine);
  const words = describe({
    ...page,
    run,
    session,
    picture,
    https: `https://${location.host}${location.pathname}${location.hash}`,
    device_words: session.ready?.device ?? (session.backend === "cpu" ? "the processor" : page.device?.gpu?.name),
  });
  drawWords(words);
  if (page.hidden) return;
  ring.draw(picture);
  $("ring-text").textContent = ringText(picture);
  plot.draw(picture);
  $("legend-evaluation").hidden = !picture.evaluations.length;
  $("legend-mine").hidden = picture.since === null;
  drawFacts(picture);
  drawChanges(picture);
  drawMembers(picture);
  drawSample();
  drawFooter();
}

function drawWords(words) {
  document.title = words.name ? `${words.name[0].toUpperCase()}${words.name.slice(1)} · Annulus` : "Annulus";
  const title = $("title");
  const key = JSON.stringify(words.title);
  if (title.dataset.key !== key) {
    title.dataset.key = key;
    title.replaceChildren(...words.title.map((part) => {
      if (typeof part === "string") return part;
      const span = document.createElement("span");
      span.className = "soft";
      span.textContent = part.soft;
      return span;
    }));
  }
  setText($("text"), words.text);
  setText($("cause"), words.cause);
  $("text").hidden = !words.text;
  $("cause").hidden = !words.cause;
  $("progress").hidden = !words.progress;
  if (words.progress) {
    if (Number.isFinite(words.progress.value)) $("progress-bar").value = words.progress.value;
    else $("progress-bar").removeAttribute("value");
    setText($("progress-text"), words.progress.text ?? "");
    $("progress-text").hidden = !words.progress.text;
  }
  $("settings").hidden = !words.settings;
  setText($("power-help"), `The share of the time that the ${session.backend === "cpu" || (page.device && !page.device.gpu) ? "processor" : "GPU"} may be busy.`);
  if (page.mode !== "watch") $("ticket-form").hidden = true;
  drawActions(words.actions);
  document.body.dataset.state = page.mode === "session" ? session.state ?? "failed" : page.mode;
  // The name changes with the state alone, not with its numbers.
  if (page.said !== words.name) {
    page.said = words.name;
    announce([title.textContent, words.text, words.cause].filter(Boolean).join(". "));
  }
}

function announce(text) {
  $("said").textContent = text;
}

function drawActions(wanted) {
  const box = $("actions");
  const focused = box.contains(document.activeElement);
  const known = new Map([...box.children].map((element) => [element.dataset.action, element]));
  const elements = wanted.map((action) => {
    const element = known.get(action.id) ?? document.createElement(action.href ? "a" : "button");
    element.dataset.action = action.id;
    setText(element, action.label);
    element.className = action.primary ? "button primary" : "button";
    if (action.href) element.href = action.href;
    else element.type = "button";
    element.setAttribute("aria-disabled", String(Boolean(action.disabled)));
    return element;
  });
  if (elements.length !== box.children.length || elements.some((element, i) => element !== box.children[i])) {
    box.replaceChildren(...elements);
    box.hidden = !elements.length;
    // Whoever works by keyboard stays where they were, at what has taken the place of the button.
    if (focused && !box.contains(document.activeElement)) (elements[0] ?? $("title")).focus({ preventScroll: true });
  }
}

function ringText({ members, mine, live, share }) {
  if (!members.length) return "";
  if (mine && live && share > 0) return `This tab computes ${percent(share)} of each round.`;
  if (mine) return "This tab is not in the ring yet.";
  return "The peers in ring order, each as long as its share of the work.";
}

/** The figures: [key, name, value, note]. */
function facts(picture) {
  const { live, mine } = picture;
  const traffic = [bytes(picture.received), `received${live ? " by this tab" : " by this page's peer"}; ${bytes(picture.sent)} sent`];
  const done = [picture.progress === null ? "–" : percent(Math.min(picture.progress, 1)),
    picture.target ? `${count(picture.counted)} of ${count(picture.target)} samples` : `${count(picture.counted)} samples`];
  const state = ["digest", "State", picture.digest, Number.isFinite(picture.round) ? `digest after round ${count(picture.round)}, equal on all members` : ""];
  if (live || mine) {
    return [
      ["share", "This tab's samples", count(picture.samples ?? 0),
        picture.samples && picture.share !== null ? `${percent(picture.share)} of each round` : "none yet"],
      ["round", "A round takes", seconds(picture.seconds ?? NaN), picture],
      ["traffic", "Traffic", ...traffic],
      ["done", "Run", ...done],
      ["left", "To go", picture.left === null ? "–" : duration(picture.left), Number.isFinite(picture.rate) ? `at ${significant(picture.rate, 3)} samples a second` : ""],
      state,
    ];
  }
  return [
    ["done", "Run", ...done],
    ["left", "To go", picture.left === null ? "–" : duration(picture.left), Number.isFinite(picture.elapsed) ? `after ${duration(picture.elapsed)}` : ""],
    ["rate", "Speed", Number.isFinite(picture.rate) ? significant(picture.rate, 3) : "–", "samples a second, all peers together"],
    ["members", "Members", picture.members.length ? count(picture.members.length) : "–", "anyone may leave at any moment"],
    ["traffic", "Traffic", ...traffic],
    state,
  ];
}

function drawFacts(picture) {
  const list = $("facts");
  const known = new Map([...list.children].map((element) => [element.dataset.fact, element]));
  const rows = facts(picture).map(([key, name, value, note]) => {
    let row = known.get(key);
    if (!row) {
      row = document.createElement("div");
      row.dataset.fact = key;
      row.append(document.createElement("dt"), document.createElement("dd"), document.createElement("dd"));
      if (key === "digest") row.children[1].append(copyButton());
      if (key === "round") row.children[2].append(split());
      row.children[2].className = "note";
    }
    setText(row.children[0], name);
    if (key === "digest") {
      const button = row.querySelector("button");
      button.hidden = !value;
      button.dataset.value = value ?? "";
      setText(button.firstChild, short(value, 12));
      button.setAttribute("aria-label", `Copy the digest, ${short(value, 12)}`);
    } else {
      setText(row.children[1], value);
    }
    if (key === "round") drawSplit(row.children[2], note);
    else setText(row.children[2], note);
    return row;
  });
  if (rows.length !== list.children.length || rows.some((row, i) => row !== list.children[i])) list.replaceChildren(...rows);
}

function copyButton() {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.title = "Copy the whole digest";
  button.append(document.createElement("code"), document.createElement("span"));
  button.lastChild.textContent = "Copy";
  button.addEventListener("click", async () => {
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(button.dataset.value);
    } catch {
      said = "Not allowed";
    }
    button.lastChild.textContent = said;
    announce(said);
    setTimeout(() => (button.lastChild.textContent = "Copy"), 1600);
  });
  return button;
}

/** A bar of two parts, computing and exchanging, with its legend. */
function split() {
  const box = document.createElement("span");
  box.className = "split";
  box.append(document.createElement("span"), document.createElement("span"));
  box.firstChild.className = "bar";
  box.firstChild.append(document.createElement("i"));
  return box;
}

function drawSplit(note, { compute, reduce }) {
  const [bar, words] = note.firstChild.children;
  const known = Number.isFinite(compute) && Number.isFinite(reduce) && compute + reduce > 0;
  bar.hidden = !known;
  if (known) bar.firstChild.style.inlineSize = `${(100 * compute) / (compute + reduce)}%`;
  setText(words, known ? `${seconds(compute)} computing, ${seconds(reduce)} exchanging` : "");
}

const CHANGES = { joined: "joined", left: "left", failed: "fell silent", evicted: "was left behind" };

function drawChanges({ changes, mine }) {
  const shown = changes.slice(-SHOWN_CHANGES).reverse();
  const key = shown.map((change) => change.key).join() + mine;
  const list = $("changes");
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...shown.map(({ peer, change, round, reason }) => {
    const item = document.createElement("li");
    const when = document.createElement("span");
    when.className = "when";
    when.textContent = Number.isFinite(round) ? `round ${count(round)}` : "";
    const what = document.createElement("span");
    if (change === "warning") {
      what.textContent = reason;
    } else {
      const who = document.createElement("b");
      who.textContent = peer === mine ? "This tab" : short(peer, 4);
      if (peer === mine) who.className = "mine";
      what.append(who, ` ${CHANGES[change] ?? change}${reason ? `: ${reason}` : ""}`);
    }
    item.append(what, when);
    return item;
  }));
  if (!shown.length) {
    const item = document.createElement("li");
    item.className = "none";
    item.textContent = "Nobody has come or gone yet.";
    list.append(item);
  }
}

function drawMembers({ members, mine }) {
  $("members").hidden = !members.length;
  setText($("members-title"), members.length === 1 ? "The one member" : `All ${members.length} members, in ring order`);
  if (!$("members").open) return;
  const total = members.reduce((sum, { weight }) => sum + weight, 0);
  const counted = members.some(({ samples }) => Number.isFinite(samples));
  $("members-samples").hidden = !counted;
  $("members-rows").replaceChildren(...members.map(({ peer, weight, samples }) => {
    const row = document.createElement("tr");
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = peer === mine ? "This tab" : short(peer, 12);
    const cells = [percent(total ? weight / total : 0), ...(counted ? [count(samples ?? NaN)] : [])].map((value) => {
      const cell = document.createElement("td");
      cell.textContent = value;
      return cell;
    });
    row.append(name, ...cells);
    return row;
  }));
}
$("members").addEventListener("toggle", draw);

function drawSample() {
  const writes = run.task === "gpt" && page.mode === "session" && !session.failure && session.state !== "left";
  $("sample-section").hidden = !writes;
  if (!writes) return;
  const can = session.canSample && !page.sampling;
  $("write").setAttribute("aria-disabled", String(!can));
  setText($("write"), page.sampling ? "Writing …" : "Write on");
  if (session.canSample && page.sampling) setText($("sample-help"), "");
  else if (!session.canSample) setText($("sample-help"), "As soon as the model is here, it can be asked.");
  else if ($("written").hidden) setText($("sample-help"), "The model goes on from your words, with what it has learnt so far.");
}

function drawFooter() {
  const name = run.info?.run ?? run.status?.run;
  setText($("run"), name ? `Run ${short(name)}` : "");
  setText($("version"), run.info?.version ? `Annulus ${run.info.version}` : "");
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

showSettings();
if (page.ticket.known) invite();
else page.mode = "watch";
watch();
drawNow();
