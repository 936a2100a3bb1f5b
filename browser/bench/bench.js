// Times training steps of Annulus and of other frameworks in one tab, on one adapter, in turns.
//
// All begin with the parameters that Annulus draws and see its batches. Each step uploads its batch and reads the loss.

import init, { Machine } from "./annulus.js";
import { probe } from "./gpu.js";
import * as jax from "./jax.js";
import { adapters, meter } from "./meter.js";
import * as tensorflow from "./tensorflow.js";

const WORKLOADS = {
  mlp: { lr: 0.1, shape: { batch: 64, inputs: 784, classes: 10 } },
  gpt: { lr: 0.1, shape: { batch: 4, layers: 2, heads: 4, width: 64, context: 64, vocabulary: 256 } },
};

// Steps whose losses are compared, from the same parameters on; and how far they may be apart.
const COMPARED = 8;
const TOLERANCE = 1e-3;

const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
};

const words = (error) => String(error?.stack ?? error?.message ?? error).split("\n").slice(0, 3).join(" | ");

// What the frameworks are given of a workload of ours.
function beginning(ours, { lr, shape }) {
  const flat = ours.params();
  let offset = 0;
  const tensors = JSON.parse(ours.layout()).map(({ name, shape: dims }) => {
    const size = dims.reduce((a, b) => a * b, 1);
    const values = flat.slice(offset, (offset += size));
    return { name, dims, values };
  });
  const batches = Array.from({ length: ours.batches() }, (_, i) => {
    const [floats, integers] = [ours.floats(i), ours.integers(i)];
    return shape.context ? windows(integers, shape) : { floats, integers };
  });
  return { start: { tensors, lr, shape }, batches };
}

// Windows with the token after each, as tokens and the tokens that follow them.
function windows(integers, { batch, context }) {
  const [inputs, targets] = [new Int32Array(batch * context), new Int32Array(batch * context)];
  for (let i = 0; i < batch; i++) {
    const window = integers.subarray(i * (context + 1), (i + 1) * (context + 1));
    inputs.set(window.subarray(0, context), i * context);
    targets.set(window.subarray(1), i * context);
  }
  return { inputs, targets };
}

// First steps: losses, and the time that the first took, in which kernels are compiled.
async function first(contestant, count) {
  const began = performance.now();
  contestant.losses = [await contestant.step()];
  contestant.first_ms = performance.now() - began;
  while (contestant.losses.length < count) contestant.losses.push(await contestant.step());
  const asks = [];
  for (let i = 0; i < 3; i++) asks.push(await meter(contestant.step));
  // The machine may have been at something else in one of them.
  contestant.asks = asks.sort((a, b) => a.host_ms + a.wait_ms - b.host_ms - b.wait_ms)[0];
}

async function block(contestant, milliseconds) {
  const began = performance.now();
  let [steps, took] = [0, 0];
  do {
    await contestant.step();
    steps += 1;
    took = performance.now() - began;
  } while (took < milliseconds);
  contestant.rates.push((steps * 1000) / took);
}

function contestant(name, adapter, model, batches) {
  let next = 0;
  return { name, adapter, rates: [], step: () => model.step(batches[next++ % batches.length]) };
}

async function workload(name, machine, frameworks, { rounds, milliseconds }) {
  const { lr, shape } = WORKLOADS[name];
  const ours = machine.value[name](lr);
  const { start, batches } = beginning(ours, { lr, shape });
  const indices = batches.map((_, index) => index);
  const entered = [contestant("annulus", machine.adapter, ours, indices)];
  const failed = [];
  for (const { name: framework, adapter, value, problem } of frameworks) {
    try {
      if (problem) throw problem;
      entered.push(contestant(framework, adapter, value[name](start), batches));
    } catch (error) {
      failed.push({ name: framework, problem: words(error) });
    }
  }
  const running = [];
  for (const one of entered) {
    try {
      await first(one, COMPARED);
      running.push(one);
      console.log(`${name}: ${one.name}: losses ${one.losses.map((loss) => loss.toFixed(5)).join(" ")}`);
    } catch (error) {
      // Without ours there is nothing to compare with.
      if (one === entered[0]) throw new Error(`${one.name}: ${words(error)}`);
      failed.push({ name: one.name, problem: words(error) });
    }
  }
  // In turns, and each round begins with another: what else the machine does comes over all of them.
  for (let round = 0; round < rounds; round++) {
    for (let turn = 0; turn < running.length; turn++) {
      await block(running[(round + turn) % running.length], milliseconds);
    }
  }
  const [reference] = running;
  const results = running.map(({ step, rates, ...one }) => {
    const apart = one.losses.map((loss, i) => Math.abs(loss - reference.losses[i]) / Math.abs(reference.losses[i]));
    return {
      ...one,
      steps_per_second: median(rates),
      ours_over_it: median(rates.map((rate, round) => reference.rates[round] / rate)),
      rates,
      losses_apart: Math.max(...apart),
      losses_match: apart.every((value) => value <= TOLERANCE),
    };
  });
  return { name, shape, lr, tolerance: TOLERANCE, results, failed };
}

async function opened(name, open) {
  try {
    const [value, [adapter]] = await adapters(open);
    return { name, adapter, value };
  } catch (problem) {
    return { name, problem };
  }
}

self.bench = async (options) => {
  const { gpu, problem } = await probe();
  if (!gpu) throw new Error(problem);
  await init({ module_or_path: new URL("annulus_bg.wasm", import.meta.url) });
  const machine = await opened("annulus", () => Machine.open(gpu.name, gpu.software));
  if (machine.problem) throw new Error(words(machine.problem));
  const frameworks = [
    await opened("TensorFlow.js", tensorflow.open),
    await opened("jax-js", jax.open),
  ];
  const workloads = [];
  for (const name of Object.keys(WORKLOADS)) workloads.push(await workload(name, machine, frameworks, options));
  return { adapter: gpu.name, software: gpu.software, browser: navigator.userAgent, ...options, workloads };
};
