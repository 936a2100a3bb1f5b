// What the page's scripts know of the GPU. It must know nothing of the run.

// Adapters that are programs: right, but slower than the CPU itself. Browsers say so in different places, if at all.
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|softpipe|basic render|warp/i;

// The adapter; asked for more than once, since a GPU process that has just started answers null.
async function request() {
  for (let attempt = 0; attempt < 4; attempt++) {
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (adapter) return adapter;
    await new Promise((resolve) => setTimeout(resolve, 150 * (attempt + 1)));
  }
  return null;
}

// {gpu: null | {name, software, limits}, problem: null | text}
export async function probe() {
  const none = (problem) => ({ gpu: null, problem });
  if (!self.isSecureContext) {
    return none("Browsers give the GPU only to pages over https or from this machine.");
  }
  if (!navigator.gpu) return none("This browser has no WebGPU.");
  let adapter;
  try {
    adapter = await request();
  } catch (error) {
    return none(`This browser refuses the GPU: ${error.message}`);
  }
  if (!adapter) return none("This browser finds no GPU that it can use.");
  const { vendor, architecture, device, description } = adapter.info ?? {};
  const name = description || device || [vendor, architecture].filter(Boolean).join(" ") || "a GPU without a name";
  const software =
    Boolean(adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter) ||
    SOFTWARE.test([vendor, architecture, device, description].join(" "));
  const limits = {
    binding_bytes: adapter.limits.maxStorageBufferBindingSize,
    buffer_bytes: adapter.limits.maxBufferSize,
  };
  return { gpu: { name, software, limits }, problem: null };
}

// Compiles WGSL texts on a device of their own; null, or {name, problem} of the first in their order that fails.
// A browser that skips what it cannot compile says so only to who asks.
export async function compile(names, texts) {
  const adapter = await request();
  if (!adapter) throw new Error("the GPU is gone");
  const device = await adapter.requestDevice();
  // Every failure is looked at below; none needs a line in the console too.
  device.onuncapturederror = (event) => event.preventDefault?.();
  const one = async (name, code) => {
    const module = device.createShaderModule({ code });
    try {
      await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "main" } });
      return null;
    } catch (error) {
      const { messages } = await module.getCompilationInfo();
      const first = messages.find((message) => message.type === "error");
      return { name, problem: first ? `line ${first.lineNum}: ${first.message}` : error.message };
    }
  };
  const results = await Promise.all(names.map((name, index) => one(name, texts[index])));
  device.destroy();
  return results.find(Boolean) ?? null;
}
