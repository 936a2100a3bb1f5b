// The page: joins the run's model, the worker and the words to the elements of index.html.

import { bytes, count, duration, percent, seconds, short, significant } from "./format.js";
import { Run } from "./model.js";
import { Plot } from "./plot.js";
import { Ring } from "./ring.js";
import { Session } from "./session.js";
import { Awake, Held, Surroundings, loadPreferences, savePreferences } from "./surroundings.js";
import { describe } from "./words.js";

/** Time between two looks at the serving node, in milliseconds. */
const WATCH_MS = { front: 1000, silent: 3000, session: 5000, hidden: 10_000 };
/** Least time between two drawings: a fast run has hundreds of rounds a second. */
const DRAW_MS = 250;
const SLOW_CHECK_MS = 6000;
/** From how many seconds in the background on that is told, and for how long. */
const AWAY_SECONDS = 5;
const AWAY_TOLD_MS = 10_000;
const SAMPLE = { length: 400, temperature: 0.8 };
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

/** What `describe` needs beside run and session. `mode` is invited, waiting, session or watch. */
const page = {
  mode: "invited",
  secure: window.isSecureContext,
  transport: "WebTransport" in window,
  https: `https://${location.host}${location.pathname}${location.hash}`,
  ticket: readTicket(location.hash),
  device: null,
  slow: false,
  /** Whether the field for a ticket is open. */
  form: false,
  /** Reasons of the surroundings not to train now. */
  holds: new Set(),
  hidden: document.hidden,
  hiddenFor: 0,
};
let pausedByHand = false;
let pauseTold = false;
let hiddenSince = 0;
let waitingBackend = "gpu";
let writing = null;
let drawing = null;
let watchTimer = null;

// The ticket is in the address; the node that serves the page tells of the run; the worker tells of this tab.

/** The worker checks a ticket; here only whether it looks like one. */
function readTicket(link) {
  let text = "";
  try {
    text = decodeURIComponent(link.slice(link.indexOf("#") + 1)).trim();
  } catch {
    return { known: false, problem: "unreadable" };
  }
  if (/^annulus1[0-9a-z]{60,504}$/i.test(text)) return { text, known: true, problem: null };
  return { known: false, problem: !text ? null : /^annulus(?!1)\d/i.test(text) ? "version" : "unreadable" };
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function watch() {
  clearTimeout(watchTimer);
  try {
    run.info ??= await get("peer.json");
    run.takeStatus(await get("status"));
    run.answering = true;
  } catch {
    run.answering = false;
  }
  draw();
  const why = page.hidden ? "hidden" : session.active ? "session" : run.answering ? "front" : "silent";
  clearTimeout(watchTimer);
  watchTimer = setTimeout(watch, WATCH_MS[why]);
}

/** After each message of the worker. */
function heard(message) {
  if (message?.type === "device") page.device = { gpu: message.gpu ?? null, problem: message.problem ?? "" };
  if (message?.type === "event") run.takeEvent(message.event, session.ready?.peer);
  if (message?.type === "text") showText(message);
  // A trainer that fails before the start could not even look at the device.
  if (session.failure && page.mode === "invited") page.mode = "session";
  if (!session.active) run.stop();
  held.set(session.active);
  awake.want(session.state === "training" && preferences.awake);
  draw();
}

// What one may do.

const actions = {
  start: () => start("gpu"),
  "start-cpu": () => start("cpu"),
  retry: () => (session.backend ? start(session.backend) : invite()),
  watch: () => go("watch"),
  invited: invite,
  cancel: invite,
  ticket: openForm,
  leave: () => session.leave(),
  pause: () => hold(true),
  resume: () => hold(false),
  "go-on": () => {
    if (page.holds.has("battery")) preferences.plugged = false;
    if (page.holds.has("metered")) preferences.unmetered = false;
    savePreferences(preferences);
    conditions();
  },
};

$("actions").addEventListener("click", ({ target }) => {
  const button = target.closest("button:not([aria-disabled=true])");
  if (button) actions[button.dataset.action]?.();
});

function go(mode) {
  page.mode = mode;
  page.form = false;
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

function start(backend) {
  waitingBackend = backend;
  page.holds = holds();
  if (page.holds.size) return go("waiting");
  pausedByHand = pauseTold = false;
  go("session");
  run.begin();
  session.start(page.ticket.text, backend, preferences.power);
  watch();
}

function openForm() {
  go("watch");
  page.form = true;
  drawNow();
  $("ticket").focus();
}

$("ticket-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const ticket = readTicket($("ticket").value);
  $("ticket-problem").textContent = ticket.known ? ""
    : ticket.problem === "version" ? "This ticket is of another release." : "This is not a ticket, or not all of it: it starts with annulus1.";
  if (!ticket.known) return $("ticket").focus();
  $("ticket").value = "";
  page.ticket = ticket;
  invite();
  $("title").focus();
});

// Settings and surroundings.

function holds() {
  const reasons = new Set();
  if (preferences.plugged && surroundings.onBattery) reasons.add("battery");
  if (preferences.unmetered && surroundings.metered) reasons.add("metered");
  return reasons;
}

/** After a change of charger, connection or settings. */
function conditions() {
  showSettings();
  page.holds = holds();
  if (page.mode === "waiting" && !page.holds.size) return start(waitingBackend);
  hold(pausedByHand);
}

/** Pauses while the volunteer or the surroundings want it. */
function hold(byHand) {
  pausedByHand = byHand;
  const paused = byHand || page.holds.size > 0;
  if (session.active && paused !== pauseTold) {
    session.tell({ type: paused ? "pause" : "resume" });
    pauseTold = paused;
  }
  draw();
}

function showSettings() {
  $("power").value = Math.round(100 * preferences.power);
  $("power-value").textContent = percent(preferences.power);
  for (const name of ["plugged", "unmetered", "awake"]) $(name).checked = preferences[name];
  $("plugged-row").hidden = !surroundings.tellsCharging;
  $("unmetered-row").hidden = !surroundings.tellsMetered;
  $("awake-row").hidden = !Awake.available;
}

$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings").addEventListener("input", ({ target }) => {
  if (target.id === "power") {
    preferences.power = Math.min(Math.max(Number(target.value) / 100, 0.1), 1);
    session.tell({ type: "power", value: preferences.power });
  } else {
    preferences[target.id] = target.checked;
  }
  savePreferences(preferences);
  awake.want(session.state === "training" && preferences.awake);
  conditions();
});

// The tab itself: hidden, put aside, back again, at another address.

document.addEventListener("visibilitychange", () => {
  page.hidden = document.hidden;
  session.tell({ type: "hidden", value: page.hidden });
  if (page.hidden) {
    hiddenSince = Date.now();
  } else {
    const away = (Date.now() - hiddenSince) / 1000;
    page.hiddenFor = away >= AWAY_SECONDS ? away : 0;
    setTimeout(() => {
      page.hiddenFor = 0;
      draw();
    }, AWAY_TOLD_MS);
    watch();
  }
  drawNow();
});
window.addEventListener("pagehide", () => session.tell({ type: "leave" }));
document.addEventListener("freeze", () => session.tell({ type: "leave" }));
document.addEventListener("resume", back);
window.addEventListener("pageshow", ({ persisted }) => persisted && back());
window.addEventListener("hashchange", () => {
  if (session.active) return;
  page.ticket = readTicket(location.hash);
  if (page.ticket.known) invite();
  else go("watch");
});

/** The tab was put to sleep and left the run before. */
function back() {
  session.sleep();
  watch();
}

// Text.

$("sample-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!session.canSample || writing) return;
  const prompt = $("prompt").value;
  session.worker.postMessage({ type: "sample", prompt, ...SAMPLE });
  showText({ prompt, text: "", done: false });
});

/** Shows a sample: `text` is all of it so far, without the prompt. */
function showText({ prompt, text, done }) {
  clearTimeout(writing);
  writing = done ? null : setTimeout(() => {
    writing = null;
    put("sample-help", "The trainer does not answer; it may be busy. Try again in a moment.");
    drawNow();
  }, SAMPLE_PATIENCE_MS);
  $("written").replaceChildren(make("span", "given", prompt), text);
  $("written").hidden = false;
  if (done) put("said", prompt + text);
  drawSample();
}

// Drawing.

function draw() {
  drawing ??= setTimeout(drawNow, DRAW_MS);
}

function drawNow() {
  clearTimeout(drawing);
  drawing = null;
  const picture = run.picture(session.active ? session.ready?.peer : null);
  const deviceWords = session.ready?.device ?? (session.backend === "cpu" ? "the processor" : page.device?.gpu?.name);
  drawWords(describe({ ...page, run, session, picture, deviceWords }));
  if (page.hidden) return;
  ring.draw(picture);
  plot.draw(picture);
  $("legend-evaluation").hidden = !picture.evaluations.length;
  $("legend-mine").hidden = picture.since === null;
  drawFacts(picture);
  drawChanges(picture);
  drawSample();
  const name = run.info?.run ?? run.status?.run;
  put("run", name ? `Run ${short(name)}` : "");
  put("version", run.info?.version ? `Annulus ${run.info.version}` : "");
}

/** Makes an element. */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

/** Sets the text of the element of this id, or of this element, where it differs; hides it when empty. */
function put(target, text) {
  const element = typeof target === "string" ? $(target) : target;
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

function drawWords({ name, title, text, cause, progress, actions: wanted, settings }) {
  const heading = title.map((part) => (part.soft ? make("span", "soft", part.soft) : part));
  const shown = make("h1", "", ...heading);
  if ($("title").innerHTML !== shown.innerHTML) $("title").replaceChildren(...shown.childNodes);
  put("text", text);
  put("cause", cause);
  $("progress").hidden = !progress;
  if (progress?.value >= 0) $("progress-bar").value = progress.value;
  else $("progress-bar").removeAttribute("value");
  put("progress-text", progress?.text ?? "");
  $("settings").hidden = !settings;
  const processor = session.backend === "cpu" || (page.device && !page.device.gpu);
  put("power-help", `The share of the time that the ${processor ? "processor" : "GPU"} may be busy.`);
  $("ticket-form").hidden = !page.form;
  drawActions(wanted);
  document.body.dataset.state = page.mode === "session" ? session.state ?? "" : page.mode;
  if (document.title === `${name} · Annulus`) return;
  document.title = `${name} · Annulus`;
  put("said", [name, text, cause].filter(Boolean).join(". "));
}

function drawActions(wanted) {
  const box = $("actions");
  const focused = box.contains(document.activeElement);
  const known = new Map([...box.children].map((element) => [element.dataset.action, element]));
  const elements = wanted.map(({ id, label, href, primary, disabled }) => {
    const element = known.get(id) ?? make(href ? "a" : "button", "");
    element.dataset.action = id;
    element.className = primary ? "button primary" : "button";
    element.setAttribute("aria-disabled", Boolean(disabled));
    if (href) element.href = href;
    put(element, label);
    return element;
  });
  if (elements.length === known.size && elements.every((element, i) => element === box.children[i])) return;
  box.replaceChildren(...elements);
  box.hidden = !elements.length;
  // Whoever works by keyboard goes on at what has taken the button's place.
  if (focused && !box.contains(document.activeElement)) (elements[0] ?? $("title")).focus({ preventScroll: true });
}

function drawFacts(picture) {
  const { live, mine, samples, share, progress, counted, target, left, rate, elapsed, round, digest, compute, reduce } = picture;
  const part = Boolean(mine);
  const [received, sent] = picture.traffic;
  const pace = rate === null || rate === undefined ? "" : `${significant(rate, 3)} samples a second`;
  const facts = {
    own: part && [count(samples ?? 0), samples ? `${percent(share ?? 0)} of each round` : "none yet"],
    round: part && [seconds(picture.seconds), compute + reduce > 0 ? `${seconds(compute)} computing, ${seconds(reduce)} exchanging` : ""],
    done: [progress === null ? "–" : percent(progress), target ? `${count(counted)} of ${count(target)} samples` : `${count(counted)} samples`],
    left: [left === null ? "–" : duration(left), part ? pace : elapsed > 0 ? `after ${duration(elapsed)}` : ""],
    speed: !part && [pace ? significant(rate, 3) : "–", "samples a second, all peers together"],
    traffic: [bytes(received), `received${live && part ? "" : " by this page's peer"}; ${bytes(sent)} sent`],
    digest: [short(digest, 12), Number.isFinite(round) ? `digest after round ${count(round)}, the same on all` : ""],
  };
  for (const [id, fact] of Object.entries(facts)) {
    $(`fact-${id}`).hidden = !fact;
    if (!fact) continue;
    const [, value, note] = $(`fact-${id}`).children;
    put(id === "digest" ? $("digest") : value, fact[0]);
    put(id === "round" ? $("split-text") : note, fact[1]);
  }
  $("copy").hidden = !digest;
  $("copy").dataset.value = digest ?? "";
  $("split").hidden = !(compute + reduce > 0);
  $("split").firstChild.style.inlineSize = `${(100 * compute) / (compute + reduce)}%`;
  put("ring-text", !picture.members.length ? ""
    : !part ? "The peers in ring order, each as long as its share of the work."
      : live && share !== null ? `This tab computes ${percent(share)} of each round.` : "This tab is not in the ring yet.");
}

$("copy").addEventListener("click", async () => {
  let said = "Copied";
  try {
    await navigator.clipboard.writeText($("copy").dataset.value);
  } catch {
    said = "Not allowed";
  }
  put("copy-word", said);
  put("said", said);
  setTimeout(put, 1600, "copy-word", "Copy");
});

const CHANGES = { joined: "joined", left: "left", failed: "fell silent", evicted: "was left behind" };

function drawChanges({ changes, mine }) {
  const shown = changes.slice(-SHOWN_CHANGES).reverse();
  const list = $("changes");
  const key = shown.map((change) => change.key).join() + mine;
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...shown.map(({ peer, change, round, reason }) => {
    const who = peer === mine ? make("b", "mine", "This tab") : make("b", "", short(peer, 4));
    const what = change === "warning" ? [reason] : [who, ` ${CHANGES[change] ?? change}${reason ? `: ${reason}` : ""}`];
    return make("li", "", make("span", "", ...what), make("span", "when", round === null ? "" : `round ${count(round)}`));
  }));
  if (!shown.length) list.append(make("li", "when", "Nobody has come or gone yet."));
}

function drawSample() {
  const writes = run.task === "gpt" && page.mode === "session" && !session.failure && session.state !== "left";
  $("sample-section").hidden = !writes;
  const ready = session.canSample;
  $("write").setAttribute("aria-disabled", !ready || writing !== null);
  put("write", writing ? "Writing …" : "Write on");
  $("written").setAttribute("aria-busy", writing !== null);
  if (!ready || writing || $("written").hidden) {
    put("sample-help", !ready ? "As soon as the model is here, it can be asked." : writing ? "" : "The model goes on from your words, with what it has learnt so far.");
  }
}

showSettings();
if (page.ticket.known) invite();
else page.mode = "watch";
watch();
drawNow();
