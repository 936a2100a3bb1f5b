// The models in jax-js, on its WebGPU backend: one compiled function for a whole step. Each is {step(batch): the loss
// before the step}. Functions of jax-js take their arguments away; `.ref` keeps one for another use.

import { defaultDevice, init, jit, nn, numpy as np, scipySpecial, valueAndGrad } from "@jax-js/jax";

const EPSILON = 1e-5;

export async function open() {
  const devices = await init("webgpu");
  if (!devices.includes("webgpu")) throw new Error("jax-js does not start its WebGPU backend");
  defaultDevice("webgpu");
  return { mlp: (start) => model(mlp, start), gpt: (start) => model(gpt, start) };
}

function model(loss, { tensors, lr, shape }) {
  let params = Object.fromEntries(
    tensors.map(({ name, dims, values }) => [name, np.array(values).reshape(dims)]),
  );
  const update = jit((params, inputs, labels) => {
    const kept = Object.fromEntries(Object.entries(params).map(([name, value]) => [name, value.ref]));
    const [mean, gradients] = valueAndGrad((p) => loss(p, inputs, labels, shape))(kept);
    const next = Object.entries(params).map(([name, value]) => [name, value.sub(gradients[name].mul(lr))]);
    return [mean, Object.fromEntries(next)];
  });
  return {
    async step(batch) {
      const integers = (values) => np.array(values, { dtype: np.int32 });
      const inputs = shape.inputs
        ? np.array(batch.floats).reshape([shape.batch, shape.inputs])
        : integers(batch.inputs);
      const [mean, next] = update(params, inputs, integers(shape.inputs ? batch.integers : batch.targets));
      params = next;
      return (await mean.data())[0];
    },
  };
}

function crossEntropy(logits, labels, classes) {
  const right = nn.oneHot(labels, classes).mul(nn.logSoftmax(logits, -1)).sum(-1);
  return right.mean().mul(-1);
}

function mlp(p, images, labels, { classes }) {
  const hidden = nn.relu(np.dot(images, p["hidden.weight"]).add(p["hidden.bias"]));
  return crossEntropy(np.dot(hidden, p["output.weight"]).add(p["output.bias"]), labels, classes);
}

function norm(x, gamma) {
  return nn.standardize(x, -1, { epsilon: EPSILON }).mul(gamma);
}

function gelu(x) {
  return x.ref.mul(0.5).mul(scipySpecial.erf(x.mul(Math.SQRT1_2)).add(1));
}

function gpt(p, inputs, targets, { batch, layers, heads, width, context, vocabulary }) {
  const rows = batch * context;
  // A product with one-hot rows: jit of jax-js 0.1.25 refuses the scatter that is the gradient of picking rows.
  const tokens = np.dot(nn.oneHot(inputs, vocabulary), p["tokens.weight"].ref);
  let x = tokens.reshape([batch, context, width]).add(p["positions.weight"]).reshape([rows, width]);
  for (let layer = 0; layer < layers; layer++) {
    const at = (name) => p[`blocks.${layer}.${name}`];
    const qkv = np.dot(norm(x.ref, at("norm_1.gamma")), at("attention.qkv.weight"));
    const [q, k, v] = np.split(qkv, 3, 1).map((part) => part.reshape([batch, context, heads, width / heads]));
    const taken = nn.dotProductAttention(q, k, v, { isCausal: true }).reshape([rows, width]);
    x = x.add(np.dot(taken, at("attention.output.weight")));
    const up = gelu(np.dot(norm(x.ref, at("norm_2.gamma")), at("mlp.up.weight")));
    x = x.add(np.dot(up, at("mlp.down.weight")));
  }
  const logits = np.dot(norm(x, p["norm.gamma"]), np.transpose(p["tokens.weight"]));
  return crossEntropy(logits, targets, vocabulary);
}
