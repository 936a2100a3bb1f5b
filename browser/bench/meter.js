// What a framework asks of WebGPU, seen from outside: the browser's own functions, wrapped while one step runs.

const counted = [
  ["GPUComputePassEncoder", "dispatchWorkgroups", (count) => (count.dispatches += 1)],
  ["GPUComputePassEncoder", "dispatchWorkgroupsIndirect", (count) => (count.dispatches += 1)],
  ["GPUQueue", "submit", (count) => (count.submits += 1)],
  ["GPUDevice", "createBuffer", (count, { mappedAtCreation, size }) => {
    count.buffers += 1;
    if (mappedAtCreation) count.uploaded += size;
  }],
  ["GPUQueue", "writeBuffer", (count, _buffer, _offset, data, from, size) => {
    const unit = data.BYTES_PER_ELEMENT ?? 1;
    count.uploaded += size === undefined ? data.byteLength - (from ?? 0) * unit : size * unit;
  }],
];

// {dispatches, submits, buffers, uploaded, read, host_ms, wait_ms}: bytes uploaded and read; the time until the last
// result was asked for, and from there to the end of the step.
export async function meter(step) {
  const count = { dispatches: 0, submits: 0, buffers: 0, uploaded: 0, read: 0, host_ms: 0, wait_ms: 0 };
  const undo = [];
  const wrap = (type, method, seen) => {
    const prototype = globalThis[type].prototype;
    const original = prototype[method];
    prototype[method] = function (...args) {
      seen.call(this, count, ...args);
      return original.apply(this, args);
    };
    undo.push(() => (prototype[method] = original));
  };
  let asked = 0;
  for (const [type, method, seen] of counted) wrap(type, method, seen);
  wrap("GPUBuffer", "mapAsync", function (count, mode, from, size) {
    if (!(mode & GPUMapMode.READ)) return;
    count.read += size ?? this.size - (from ?? 0);
    asked = performance.now();
  });
  const start = performance.now();
  try {
    await step();
  } finally {
    undo.forEach((restore) => restore());
  }
  count.host_ms = asked - start;
  count.wait_ms = performance.now() - asked;
  return count;
}

// The adapters that devices are made from while something runs, by what the browser calls them.
export async function adapters(run) {
  const seen = new Set();
  const prototype = GPUAdapter.prototype;
  const original = prototype.requestDevice;
  prototype.requestDevice = function (...args) {
    const { vendor, architecture, device, description } = this.info;
    seen.add(description || device || [vendor, architecture].filter(Boolean).join(" "));
    return original.apply(this, args);
  };
  try {
    return [await run(), [...seen]];
  } finally {
    prototype.requestDevice = original;
  }
}
