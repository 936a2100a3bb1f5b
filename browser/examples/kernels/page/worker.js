// The worker: runs all checks as soon as it is loaded. It replaces the product's.

import { compile } from "./gpu.js";
import init, { check } from "./annulus.js";

// What has crashed cannot say so itself.
function failed(reason) {
  self.postMessage({ type: "failed", message: String(reason?.message ?? reason) });
}
self.addEventListener("unhandledrejection", (event) => failed(event.reason));
self.addEventListener("error", (event) => failed(event.message));

await init({ module_or_path: new URL("annulus_bg.wasm", import.meta.url) });
await check(compile, (json) => self.postMessage(JSON.parse(json))).catch(failed);
