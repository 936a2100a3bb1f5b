// The worker: loads the participant and hands messages to and fro. What they mean is said in page.js.

import { compile, probe } from "./gpu.js";

let participant = null;
/** Fulfilled once there is a participant: what the page says before is not lost. */
let started = null;
let module = null;

function post(message) {
  self.postMessage(message);
}

// A participant that has crashed cannot say so itself.
function crashed(reason) {
  post({ type: "failed", kind: "internal", message: `the participant stopped: ${reason?.message ?? reason}` });
}
self.addEventListener("unhandledrejection", (event) => crashed(event.reason));
self.addEventListener("error", (event) => crashed(event.message));

function load() {
  module ??= import("./annulus.js").then(async (annulus) => {
    await annulus.default({ module_or_path: new URL("annulus_bg.wasm", import.meta.url) });
    return annulus;
  });
  return module;
}

async function start({ ticket, backend, power, name = "" }) {
  // Both now, while who serves the page is there: it may be gone when the run's data has been fetched.
  const [{ Participant }] = await Promise.all([load(), backend === "cpu" ? inner() : null]);
  const forward = (json, bytes) => self.postMessage({ ...JSON.parse(json), bytes }, bytes ? [bytes.buffer] : []);
  participant = new Participant(ticket, backend, power, name, { probe, compile, innerWorker }, forward);
}

// The processor computes in a second worker inside of this one, so that this one can answer the others meanwhile. What
// is asked of it, once it has loaded the program.
let asking = null;

function inner() {
  asking ??= begin();
  return asking;
}

async function begin() {
  const worker = new Worker(import.meta.url, { type: "module", name: "annulus computing" });
  const waiting = [];
  const fail = (problem) => waiting.splice(0).forEach(({ reject }) => reject(new Error(problem)));
  worker.onmessage = ({ data }) => (data.type === "failed" ? fail(data.message) : waiting.shift()?.resolve(data.result));
  worker.onerror = (event) => fail(event.message || "its worker could not be loaded");
  const ask = (message, transfer = []) =>
    new Promise((resolve, reject) => {
      waiting.push({ resolve, reject });
      worker.postMessage(message, transfer);
    });
  await ask({ type: "load" });
  return ask;
}

async function innerWorker(view, data) {
  // The view is of the program's memory as it is during this call.
  const manifest = view.slice();
  const ask = await inner();
  const buffers = data?.files.map(({ bytes }) => bytes.buffer) ?? [];
  await ask({ type: "calculate", manifest, data }, [manifest.buffer, ...buffers]);
  return {
    contribute: (params, samples, local) => ask({ type: "contribute", params, samples, local }, [params.buffer]),
    pass: (work) => ask({ type: "pass", work }, buffersOf(work)),
    tryOut: () => ask({ type: "try-out" }),
  };
}

// Numbers change hands and are not copied.
function buffersOf(message) {
  return Object.values(message ?? {}).filter(ArrayBuffer.isView).map(({ buffer }) => buffer);
}

// In that second worker.
let calculating = null;

function answer(promise) {
  promise.then(
    (result) => self.postMessage({ result }, buffersOf(result)),
    (error) => post({ type: "failed", message: String(error?.message ?? error) }),
  );
}

self.onmessage = async ({ data }) => {
  switch (data.type) {
    case "check":
      return post({ type: "device", ...(await probe()) });
    case "start":
      started = start(data).catch(crashed);
      return started;
    case "pause":
      return started?.then(() => participant?.pause());
    case "resume":
      return started?.then(() => participant?.resume());
    case "leave":
      return participant ? participant.leave() : post({ type: "state", state: "left", detail: "" });
    case "load":
      return answer(load().then(() => null));
    case "calculate":
      calculating = load().then(({ InnerWorker }) => new InnerWorker(data.manifest, data.data));
      return answer(calculating.then(() => null));
    case "contribute":
      return answer(calculating.then((made) => made.contribute(data.params, data.samples, data.local)));
    case "pass":
      return answer(calculating.then((made) => made.pass(data.work)));
    case "try-out":
      return answer(calculating.then((made) => made.tryOut()));
    case "sample":
      return participant?.write(data.prompt, data.length, data.temperature);
    case "predict":
      return participant?.predict(data.row);
    case "file":
      return participant?.file();
    case "power":
      return started?.then(() => participant?.power(data.value));
  }
};
