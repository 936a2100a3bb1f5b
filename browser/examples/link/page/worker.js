// The worker: makes a link to the node that serves the page, and obeys. It replaces the product's.

import init, { obey } from "./annulus.js";

function failed(reason) {
  self.postMessage({ type: "failed", message: String(reason?.message ?? reason) });
}
self.addEventListener("unhandledrejection", (event) => failed(event.reason));
self.addEventListener("error", (event) => failed(event.message));

self.onmessage = async ({ data }) => {
  await init({ module_or_path: new URL("annulus_bg.wasm", import.meta.url) });
  await obey(data).catch(failed);
};
