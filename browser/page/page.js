// The page: joins the run's model, the worker and the words to the elements of index.html.

import { bytes, count, duration, loss, ordinal, percent, qualities, seconds, short, significant } from "./format.js";
import { asked, fields, told } from "./fields.js";
import { Given } from "./given.js";
import { Run } from "./model.js";
import { hand, paint } from "./picture.js";
import { Plot } from "./plot.js";
import { Ring } from "./ring.js";
import { Session } from "./session.js";
import { Awake, Held, Surroundings, loadPreferences, savePreferences } from "./surroundings.js";
import { Time } from "./time.js";
import { aboutRun, describe, gain, part, ways } from "./words.js";

/** Time between two looks at the serving node, in milliseconds. */
const WATCH_MS = { front: 1000, session: 5000, hidden: 10_000 };
/** Least time between drawings: a fast run has hundreds of rounds a second. */
const DRAW_MS = 250;
const SAMPLE = { length: 400, temperature: 0.8 };
const PATIENCE_MS = 20_000;
/** How long a leaving worker may take: to finish its round, and where the model is split for others to fetch what it holds. */
const LEAVE_MS = { whole: 20_000, split: 60_000 };
const SHOWN_CHANGES = 7;
const SHOWN_LINKS = 24;
const SHOWN_ANSWERS = 11;
const HELP = {
  text: "The model continues your text with what it has learnt so far.",
  row: "This tab answers with what the model has learnt so far. Your values stay here.",
};

const $ = (id) => document.getElementById(id);
const run = new Run();
const session = new Session(heard);
const surroundings = new Surroundings(conditions);
const awake = new Awake();
const held = new Held();
const given = new Given();
const ring = new Ring($("ring"));
const plot = new Plot($("plot"));
const time = new Time($("time"));
const preferences = loadPreferences({
  power: 1,
  name: "",
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
  // All of its browsers name this vendor, and no other one does.
  webkit: navigator.vendor.startsWith("Apple"),
  get https() {
    return `https://${location.host}${location.pathname}${location.hash}`;
  },
  ticket: null,
  /** Whether no peer serves this page: the link says whom to dial. */
  apart: false,
  device: null,
  against: null,
  hidden: document.hidden,
};
let pausedByHand = false;
let asleep = false;
let pauseTold = false;
let waitingBackend = "gpu";
/** A timer while an answer of the model is on its way. */
let asking = null;
/** What is wrong with the last answer; null before the first. */
let askProblem = null;
let drawing = null;
let drawn = -Infinity;
let watchTimer = null;

/** The worker checks a ticket, and behind it whom to dial; here only whether it looks like one. */
function readTicket(hash) {
  const text = hash.slice(1);
  const known = /^annulus2[0-9a-z]{200,1272}(&(peer|cert)=[0-9a-f]{64}){0,4}(&title=[\w.~%-]{1,1000})?$/i.test(text);
  return { text, known, problem: Boolean(text) && !known };
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function watch() {
  clearTimeout(watchTimer);
  if (page.apart) return draw();
  try {
    run.info ??= await get("peer.json").catch(() => null);
    run.takeStatus(await get("status"));
    run.machine = await get("pause").catch(() => null);
    run.answering = true;
  } catch {
    run.answering = false;
  }
  draw();
  const why = page.hidden ? "hidden" : session.active || !run.answering ? "session" : "front";
  clearTimeout(watchTimer);
  watchTimer = setTimeout(watch, WATCH_MS[why]);
}

/** After each message of the worker. */
function heard(message) {
  if (message?.type === "device") page.device = { gpu: message.gpu ?? null, problem: message.problem ?? "" };
  if (message?.type === "event") {
    const before = run.own?.samples ?? 0;
    run.takeEvent(message.event, session.ready?.peer);
    given.add(session.ready?.run, (run.own?.samples ?? 0) - before);
  }
  if (message?.type === "file") showFile(message);
  if (message?.type === "text") showText(message);
  if (message?.type === "answer") showAnswer(message);
  // A trainer that fails before the start could not even look at the device.
  if (session.failure && page.mode === "invited") page.mode = "session";
  if (!session.active) {
    run.stop();
    given.save();
  }
  held.set(session.active);
  awake.want(session.state === "training" && preferences.awake);
  draw();
}

// The actions.

const actions = {
  start: () => start("gpu"),
  "start-cpu": () => start("cpu"),
  retry: () => (session.backend ? start(session.backend) : invite()),
  watch: () => go("watch"),
  invited: invite,
  cancel: invite,
  leave: () => session.leave(run.info?.spans > 0 ? LEAVE_MS.split : LEAVE_MS.whole),
  download: () => session.worker?.postMessage({ type: "file" }),
  ask: () => (session.schema ? $("inputs").querySelector("input, select, textarea") : $("prompt"))?.focus(),
  picture: () => {
    const picture = run.picture(session.ready?.peer);
    const words = part({ run, picture, name: preferences.name });
    paint({ members: picture.members, mine: picture.mine, ...words }).toBlob((blob) => hand(blob, "annulus.png", true));
  },
  pause: () => hold(true),
  resume: () => hold(false),
  "go-on": () => {
    preferences[page.against === "battery" ? "plugged" : "unmetered"] = false;
    conditions();
  },
};

$("actions").addEventListener("click", ({ target }) => {
  const button = target.closest("button:not([aria-disabled=true])");
  if (button) actions[button.dataset.action]?.();
});

$("machine-button").addEventListener("click", async () => {
  if (!run.machine?.may) return;
  const answer = await fetch(run.machine.paused ? "unpause" : "pause", { method: "POST" }).catch(() => null);
  put("said", answer?.ok ? "" : "That did not work.");
  watch();
});

function go(mode) {
  page.mode = mode;
  draw();
}

function arrive() {
  page.ticket = readTicket(location.hash);
  page.apart = page.ticket.text.includes("&peer=");
  const said = new URLSearchParams(page.ticket.text).get("title");
  if (page.apart && said) run.info = { title: said };
  if (page.ticket.known) invite();
  else go("watch");
}

/** Shows the invitation, and looks at the device where that has not happened. */
function invite() {
  if (session.active) return;
  session.reset();
  go("invited");
  if (page.secure && page.transport && !page.webkit && !page.device) session.check();
}

function start(backend) {
  waitingBackend = backend;
  page.against = against();
  if (page.against) return go("waiting");
  pausedByHand = pauseTold = false;
  go("session");
  run.begin();
  session.start(page.ticket.text, backend, preferences.power, preferences.name);
  watch();
}

// Settings and surroundings.

/** The obstacle to training now, or null. */
function against() {
  if (preferences.plugged && surroundings.onBattery) return "battery";
  return preferences.unmetered && surroundings.metered ? "metered" : null;
}

/** After a change of charger, connection or settings. */
function conditions() {
  savePreferences(preferences);
  showSettings();
  awake.want(session.state === "training" && preferences.awake);
  page.against = against();
  if (page.mode === "waiting" && !page.against) return start(waitingBackend);
  hold(pausedByHand);
}

function hold(byHand) {
  pausedByHand = byHand;
  const paused = byHand || asleep || page.against !== null;
  if (session.active && paused !== pauseTold) {
    session.tell({ type: paused ? "pause" : "resume" });
    pauseTold = paused;
  }
  draw();
}

function showSettings() {
  $("power").value = Math.round(100 * preferences.power);
  $("power-value").textContent = percent(preferences.power);
  if (document.activeElement !== $("name")) $("name").value = preferences.name;
  for (const name of ["plugged", "unmetered", "awake"]) $(name).checked = preferences[name];
  $("plugged-row").hidden = surroundings.onBattery === null;
  $("unmetered-row").hidden = surroundings.metered === null;
  $("awake-row").hidden = !Awake.available;
}

$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings").addEventListener("input", ({ target }) => {
  if (target.id === "power") {
    preferences.power = Math.min(Math.max(Number(target.value) / 100, 0.1), 1);
    session.tell({ type: "power", value: preferences.power });
  } else if (target.id === "name") {
    preferences.name = target.value.trim();
  } else {
    preferences[target.id] = target.checked;
  }
  conditions();
});

// The tab: hidden, put to sleep, awake again, at another address.

document.addEventListener("visibilitychange", () => {
  page.hidden = document.hidden;
  if (!page.hidden) watch();
  drawNow();
});
window.addEventListener("pagehide", () => given.save());
window.addEventListener("pagehide", ({ persisted }) => (persisted ? sleep(true) : session.tell({ type: "leave" })));
document.addEventListener("freeze", () => sleep(true));
document.addEventListener("resume", () => sleep(false));
window.addEventListener("pageshow", ({ persisted }) => persisted && sleep(false));
window.addEventListener("hashchange", () => session.active || arrive());

/** The browser puts the tab to sleep: it is out of the ring until it wakes. */
function sleep(now) {
  asleep = now;
  hold(pausedByHand);
  if (!asleep) watch();
}

// Questions to the model.

$("sample-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = $("prompt").value;
  if (ask({ type: "sample", prompt, ...SAMPLE })) showText({ prompt, text: "", done: false });
});

$("predict-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (ask({ type: "predict", row: asked(event.target) })) wait(false);
});

/** Asks the worker, unless it has no model or another question; says whether it did. */
function ask(question) {
  const free = session.canAsk && !asking;
  if (free) session.worker.postMessage(question);
  return free;
}

/** Shows whether an answer is still on its way, and what is wrong with it. */
function wait(done, problem) {
  clearTimeout(asking);
  askProblem = problem ?? "";
  const silent = "The trainer does not answer; it may be busy. Try again in a moment.";
  asking = done ? null : setTimeout(wait, PATIENCE_MS, true, silent);
  drawAsk();
}

/** Shows a sample: `text` is all of it so far, without the prompt. */
function showText({ prompt, text, done, problem }) {
  $("written").replaceChildren(make("span", "given", prompt), text);
  $("written").hidden = false;
  if (done) put("said", prompt + text);
  wait(done, problem);
}

/** Hands the model to the volunteer. */
function showFile({ bytes: model, problem }) {
  if (!model) return put("said", problem);
  const name = `${run.task ?? "model"}-${short(session.ready?.run)}.safetensors`;
  hand(new Blob([model], { type: "application/octet-stream" }), name, false);
  put("said", `${name} is among your downloads.`);
}

/** Shows what is predicted for a row. */
function showAnswer({ answer, problem }) {
  const pairs = answer ? told(answer).slice(0, SHOWN_ANSWERS) : [];
  $("answer").replaceChildren(...pairs.map(([name, value]) => make("div", "", make("dt", "", name), make("dd", "", value))));
  $("answer").hidden = !answer;
  put("said", pairs.map((pair) => pair.join(": ")).join(", "));
  wait(true, problem);
}

// Drawing.

function draw() {
  drawing ??= setTimeout(drawNow, drawn + DRAW_MS - performance.now());
}

function drawNow() {
  clearTimeout(drawing);
  drawing = null;
  drawn = performance.now();
  const picture = run.picture(session.active || session.state === "ended" ? session.ready?.peer : null);
  const deviceWords = session.ready?.device ?? (session.backend === "cpu" ? "the processor" : page.device?.gpu?.name);
  drawWords(describe({ ...page, run, session, picture, given, deviceWords }), picture.split);
  put("about", aboutRun(run));
  if (page.hidden) return;
  ring.draw(picture);
  plot.draw(picture);
  const [last] = picture.evaluations.slice(-1);
  const aside = last ? `, on held-out data ${[loss(last.loss), ...qualities(last.metrics)].join(", ")}` : "";
  put("loss-reading", Number.isFinite(picture.loss) && loss(picture.loss) + aside);
  $("legend-evaluation").hidden = !last;
  $("legend-mine").hidden = picture.since === null;
  drawNewest(picture);
  drawFacts(picture);
  drawTime(picture);
  drawLinks(picture);
  drawMachine();
  drawChanges(picture);
  drawAsk();
  const name = run.info?.run ?? run.status?.run;
  put("run", name && `Run ${short(name)}`);
}

function make(tag, className, ...children) {
  const element = Object.assign(document.createElement(tag), { className });
  element.append(...children);
  return element;
}

/** Fills an element again if its content has changed. */
function once(element, what, children) {
  const key = JSON.stringify(what);
  if (element.shown !== key) element.replaceChildren(...children());
  element.shown = key;
}

/** Sets an element's text where it differs, and hides it when empty. */
function put(target, text) {
  const element = typeof target === "string" ? $(target) : target;
  if (element.textContent !== (text || "")) element.textContent = text || "";
  element.hidden = !text;
}

function drawWords({ name, title, text, cause, progress, actions: wanted, settings }, split) {
  once($("title"), title, () => title.map((part) => (part.soft ? make("span", "soft", part.soft) : part)));
  put("text", text);
  put("cause", cause);
  $("progress").hidden = !progress;
  if (progress?.value >= 0) $("progress-bar").value = progress.value;
  else $("progress-bar").removeAttribute("value");
  put("progress-text", progress?.text);
  $("settings").hidden = !settings;
  $("name-row").hidden = session.active;
  put("power-help", `Fraction of time that the ${session.backend === "cpu" || page.device?.gpu === null || split ? "processor" : "GPU"} may work.`);
  drawActions(wanted);
  document.body.dataset.state = session.state;
  if (document.title === `${name} · Annulus`) return;
  document.title = `${name} · Annulus`;
  put("said", [name, text, cause].filter(Boolean).join(". "));
}

function drawActions(wanted) {
  const box = $("actions");
  const focused = box.contains(document.activeElement) && document.activeElement.dataset.action;
  once(box, wanted, () => wanted.map(({ id, label, href, primary, disabled }) => {
    const element = make(href ? "a" : "button", primary ? "button primary" : "button", label);
    element.dataset.action = id;
    element.setAttribute("aria-disabled", Boolean(disabled));
    if (href) element.href = href;
    return element;
  }));
  // Keyboard focus stays on the same button or moves to the one in its place, but never to Leave.
  if (focused && !box.contains(document.activeElement)) {
    (box.querySelector(`[data-action=${focused}]`) ?? box.querySelector(":not([data-action=leave])") ?? $("title")).focus();
  }
}

/** What the model says now: a text, or how often it is right. */
function drawNewest({ sample, evaluations }) {
  const accuracy = evaluations.at(-1)?.metrics?.accuracy;
  const right = Number.isFinite(accuracy) && `${percent(accuracy)} right on samples that it has never seen.`;
  const text = sample?.text.trim() || right;
  $("newest-section").hidden = !text;
  put("newest-title", sample ? "The model writes now" : "The model is now");
  put("newest-reading", text && `after round ${count((sample ?? evaluations.at(-1)).round)}`);
  put("newest", text);
  // At the end, questions to the model are what is left to do here.
  if (session.state === "ended" && $("newest-section").nextElementSibling !== $("pair")) $("newest-section").after($("pair"));
}

function drawFacts(picture) {
  const { live, mine, samples, share, progress, counted, target, left, rate, round, digest, compute, reduce } = picture;
  const [received, sent] = picture.traffic;
  const split = compute + reduce > 0;
  const facts = {
    own: mine && !picture.split && [count(samples ?? 0), samples ? `${percent(share ?? 0)} of each round${
      picture.rank ? `, ${ordinal(picture.rank[0])} of ${count(picture.rank[1])}` : ""}` : "none yet"],
    round: mine && [seconds(picture.seconds), split && `${seconds(compute)} computing, ${seconds(reduce)} exchanging`],
    done: [percent(progress ?? NaN), `${count(counted)}${target ? ` of ${count(target)}` : ""} samples`],
    left: [duration(left), Number.isFinite(rate) && `at ${significant(rate)} samples a second`],
    traffic: [bytes(received), `received, ${bytes(sent)} sent`],
    digest: [short(digest, 12), digest && `digest after round ${count(round)}, the same on all`],
  };
  for (const [id, fact] of Object.entries(facts)) {
    $(`fact-${id}`).hidden = !fact;
    if (fact) ["value", "note"].forEach((part, i) => put($(`fact-${id}`).querySelector(`.${part}`), fact[i]));
  }
  $("copy").dataset.value = digest ?? "";
  $("copy").disabled = !digest;
  put("ring-text", !picture.members.length ? ""
    : picture.split ? "The peers in ring order. Each holds a part of the model."
    : !session.active || !mine ? "The peers in ring order, each as long as its share of the work."
      : session.state === "paused" ? "This tab is out of the ring until it resumes."
        : live && share !== null ? `This tab computes ${percent(share)} of each round.` : "This tab is not in the ring yet.");
}

function drawTime(picture) {
  const { time: shares, timeIsMine } = picture;
  $("time-section").hidden = !shares;
  if (!shares) return;
  put("time-title", timeIsMine ? "Where this tab\u2019s time goes" : "Where the time of this page\u2019s peer goes");
  put("time-reading", gain(picture));
  put("time-compute", `${percent(shares.compute)} computing`);
  put("time-hidden", `${percent(shares.hidden)} exchanging meanwhile`);
  put("time-exchange", `${percent(shares.exchange)} waiting for the exchange`);
  time.draw(shares, timeIsMine);
}

$("copy").addEventListener("click", async ({ currentTarget }) => {
  const said = await navigator.clipboard?.writeText(currentTarget.dataset.value).then(() => "Copied", () => null) ?? "Not allowed";
  put("copy-word", said);
  put("said", said);
  setTimeout(put, 1600, "copy-word", "Copy");
});

/** A peer's name in a list. */
function who(peer, mine) {
  const own = peer === mine;
  return make("b", own ? "mine" : run.names.has(peer) ? "called-so" : "", own ? "This tab" : run.called(peer));
}

function drawLinks({ links, mine, server }) {
  const shown = links.slice(0, SHOWN_LINKS);
  $("links-section").hidden = !shown.length;
  put("links-peer", server ? ` (${run.called(server)})` : "");
  put("links-reading", ways(links) + (links.length > shown.length ? `; the first ${SHOWN_LINKS}` : ""));
  once($("links"), [shown.map(({ peer, link }) => [run.called(peer), link]), mine], () => shown.map(({ peer, link }) =>
    make("li", "", make("span", "", who(peer, mine)),
      make("span", "when", link))));
}

function drawMachine() {
  const { may, paused } = run.machine ?? {};
  $("machine-section").hidden = !may;
  if (!may) return;
  put("machine-button", paused ? "Resume the peer" : "Pause the peer");
  put("machine-text", paused ? "It has left the ring and freed its device. Resume it here, or with annulus unpause."
    : "When paused, it leaves the ring after its round and frees its device. The others carry on, and no work is lost.");
}

const CHANGES = { failed: "failed", evicted: "was put out" };

function drawChanges({ changes, mine }) {
  const shown = changes.slice(-SHOWN_CHANGES).reverse();
  once($("changes"), [shown, shown.map(({ peer }) => run.called(peer)), mine], () => shown.length ? shown.map(({ peer, change, round, reason }) => {
    const what = change === "warning" ? [reason] : [who(peer, mine), ` ${CHANGES[change] ?? change}${reason ? `: ${reason}` : ""}`];
    return make("li", "", make("span", "", ...what), make("span", "when", round ? `round ${count(round)}` : ""));
  }) : [make("li", "when", "No peer has come or gone yet.")]);
}

function drawAsk() {
  const { generates, schema, canAsk } = session;
  $("ask-section").hidden = !(generates || schema) || page.mode !== "session" || ["left", "failed"].includes(session.state);
  $("sample-form").hidden = !generates;
  $("predict-form").hidden = !schema;
  once($("inputs"), schema, () => fields(schema?.inputs ?? []));
  for (const id of ["write", "predict"]) $(id).setAttribute("aria-disabled", !canAsk || asking !== null);
  put("write", asking ? "Writing …" : "Continue");
  $("written").setAttribute("aria-busy", asking !== null);
  put("ask-help", canAsk ? askProblem ?? (schema ? HELP.row : HELP.text) : "You can ask the model as soon as it is here.");
}

conditions();
arrive();
watch();
drawNow();
