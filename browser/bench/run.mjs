// Runs bench.html in Chromium and prints what it measured.
//
// usage: node run.mjs SITE WORK [--json]; `cargo xtask bench-browser` calls it.
// SITE holds annulus.js and gpu.js, WORK the node_modules of package.json.

import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const [site, work, ...options] = process.argv.slice(2).map((word, i) => (i < 2 ? path.resolve(word) : word));
const json = options.includes("--json");
const here = path.dirname(fileURLToPath(import.meta.url));
const modules = path.join(work, "node_modules");
const require = createRequire(path.join(work, "package.json"));

// This must end, whatever a browser does.
const LONGEST_MS = 15 * 60 * 1000;
const MEASURE = { rounds: 5, milliseconds: 1500 };

const QUIET = [
  "--headless=new",
  "--no-sandbox",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--enable-unsafe-webgpu",
  "--enable-features=Vulkan",
  "--use-angle=vulkan",
  "--disable-vulkan-surface",
];
const SOFTWARE = ["--use-vulkan=swiftshader", "--use-webgpu-adapter=swiftshader"];

const say = (line) => (json ? console.error(line) : console.log(line));

function chromium() {
  const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
  const folders = (process.env.PATH ?? "").split(path.delimiter);
  const known = [
    process.env.ANNULUS_CHROMIUM,
    ...folders.flatMap((folder) => names.map((name) => path.join(folder, name))),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
  ];
  return known.find((file) => file && fs.existsSync(file));
}

// Linux says whether there is a GPU; elsewhere there is one as a rule.
function mayHaveGpu() {
  if (process.platform !== "linux") return true;
  const nodes = fs.existsSync("/dev/dri") ? fs.readdirSync("/dev/dri") : [];
  return nodes.some((name) => name.startsWith("renderD")) || fs.existsSync("/dev/nvidia0");
}

async function bundle() {
  const esbuild = require("esbuild");
  const built = await esbuild.build({
    entryPoints: [path.join(here, "bench.js")],
    bundle: true,
    format: "esm",
    minify: true,
    external: ["./annulus.js", "./gpu.js"],
    nodePaths: [modules],
    logLevel: "error",
    write: false,
  });
  return built.outputFiles[0].contents;
}

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm" };

function serve(script) {
  const server = http.createServer((request, response) => {
    const name = path.basename(new URL(request.url, "http://localhost").pathname);
    const file = path.join(name === "bench.html" ? here : site, name);
    const found = name === "bench.js" ? script : fs.existsSync(file) && fs.readFileSync(file);
    response.writeHead(found ? 200 : 404, { "content-type": TYPES[path.extname(name)] ?? "text/plain" });
    response.end(found || "");
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

async function measured(executablePath, args, url) {
  const { chromium: driver } = require("playwright-core");
  const browser = await driver.launch({ executablePath, headless: false, args });
  const timer = setTimeout(() => browser.close(), LONGEST_MS);
  try {
    const page = await browser.newPage();
    page.on("console", (message) => say(`  ${message.type() === "error" ? "error: " : ""}${message.text()}`));
    page.on("pageerror", (error) => say(`  error: ${error.message}`));
    await page.goto(url);
    await page.waitForFunction(() => self.bench);
    return { chromium: browser.version(), ...(await page.evaluate((options) => self.bench(options), MEASURE)) };
  } finally {
    clearTimeout(timer);
    await browser.close();
  }
}

function versions() {
  const version = (name) => JSON.parse(fs.readFileSync(path.join(modules, name, "package.json"))).version;
  return { "TensorFlow.js": version("@tensorflow/tfjs-core"), "jax-js": version("@jax-js/jax") };
}

function print(result) {
  const { adapter, software, chromium: version, load } = result;
  console.log(`\n${adapter}${software ? " (a program, no GPU)" : ""}, Chromium ${version}, ${os.cpus().length} cores`);
  console.log(`load average ${load.before.toFixed(1)} before, ${load.after.toFixed(1)} after`);
  console.log(`medians of ${result.rounds} alternating blocks of ${result.milliseconds / 1000} s or one step`);
  for (const { name, results, failed, tolerance } of result.workloads) {
    console.log(`\n${name.padEnd(20)}  steps/s  ours is   first step  dispatches  up KiB  read KiB  host ms  wait ms  losses`);
    for (const one of results) {
      const title = `${one.name} ${result.versions[one.name] ?? ""}`.trim();
      const { dispatches, uploaded, read, host_ms, wait_ms } = one.asks;
      const apart = one.losses_apart.toExponential(0);
      const columns = [
        title.padEnd(20),
        one.steps_per_second.toFixed(2).padStart(8),
        `${one.ours_over_it.toFixed(2)}x`.padStart(8),
        `${(one.first_ms / 1000).toFixed(2)} s`.padStart(12),
        String(dispatches).padStart(11),
        (uploaded / 1024).toFixed(0).padStart(7),
        (read / 1024).toFixed(0).padStart(9),
        host_ms.toFixed(1).padStart(8),
        wait_ms.toFixed(1).padStart(8),
        one.losses_match ? ` match (${apart})` : ` DIFFER by ${apart}, more than ${tolerance}`,
      ];
      console.log(columns.join(" "));
      if (one.adapter !== results[0].adapter) console.log(`    on another adapter: ${one.adapter}`);
    }
    failed.forEach((one) => console.log(`  ${one.name} does not run: ${one.problem}`));
  }
}

const executable = chromium();
if (!executable) {
  say("skipped: no Chromium found (ANNULUS_CHROMIUM=PATH says where it is)");
} else {
  const server = await serve(await bundle());
  const url = `http://127.0.0.1:${server.address().port}/bench.html`;
  try {
    const before = os.loadavg()[0];
    const args = mayHaveGpu() ? QUIET : [...QUIET, ...SOFTWARE];
    const found = await measured(executable, args, url);
    const load = { before, after: os.loadavg()[0] };
    const result = { ...found, load, cores: os.cpus().length, versions: versions() };
    if (json) console.log(JSON.stringify(result));
    else print(result);
  } finally {
    server.close();
  }
}
