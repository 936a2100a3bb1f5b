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

async function start({ ticket, backend, power }) {
  module ??= import("./annulus.js").then(async (annulus) => {
    await annulus.default({ module_or_path: new URL("annulus_bg.wasm", import.meta.url) });
    return annulus;
  });
  const { Participant } = await module;
  const forward = (json) => post(JSON.parse(json));
  participant = new Participant(ticket, backend, power, { probe, compile }, forward);
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
    case "sample":
      return participant?.write(data.prompt, data.length, data.temperature);
    case "power":
      return started?.then(() => participant?.power(data.value));
  }
};
