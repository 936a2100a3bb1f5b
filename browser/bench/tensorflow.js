// The models in TensorFlow.js, on its WebGPU backend. Each is {step(batch): the loss before the step}.

import "@tensorflow/tfjs-backend-webgpu";
// Nothing calls them by name, so a bundler would leave them out.
import "@tensorflow/tfjs-core/dist/register_all_gradients";
import * as tf from "@tensorflow/tfjs-core";

const EPSILON = 1e-5;

export async function open() {
  if (!(await tf.setBackend("webgpu"))) throw new Error("TensorFlow.js does not start its WebGPU backend");
  await tf.ready();
  return { mlp: (start) => model(mlp, start), gpt: (start) => model(gpt, start) };
}

function model(loss, { tensors, lr, shape }) {
  const p = {};
  for (const { name, dims, values } of tensors) p[name] = tf.variable(tf.tensor(values, dims, "float32"));
  const constants = { mask: shape.context && tf.keep(causal(shape.context)) };
  const optimizer = tf.train.sgd(lr);
  const variables = Object.values(p);
  return {
    async step(batch) {
      const value = tf.tidy(() => optimizer.minimize(() => loss(p, batch, shape, constants), true, variables));
      const [mean] = await value.data();
      value.dispose();
      return mean;
    },
  };
}

function crossEntropy(logits, labels, classes) {
  return tf.losses.softmaxCrossEntropy(tf.oneHot(tf.tensor1d(labels, "int32"), classes), logits);
}

function mlp(p, { floats, integers }, { batch, inputs, classes }) {
  const x = tf.tensor2d(floats, [batch, inputs]);
  const hidden = tf.relu(tf.add(tf.matMul(x, p["hidden.weight"]), p["hidden.bias"]));
  return crossEntropy(tf.add(tf.matMul(hidden, p["output.weight"]), p["output.bias"]), integers, classes);
}

// 0 where a token may look, and what makes a weight vanish where it may not.
function causal(length) {
  const mask = new Float32Array(length * length);
  for (let i = 0; i < length; i++) mask.fill(-1e9, i * length + i + 1, (i + 1) * length);
  return tf.tensor2d(mask, [length, length]);
}

function norm(x, gamma) {
  const { mean, variance } = tf.moments(x, -1, true);
  return tf.mul(tf.mul(tf.sub(x, mean), tf.rsqrt(tf.add(variance, EPSILON))), gamma);
}

function gelu(x) {
  return tf.mul(tf.mul(x, 0.5), tf.add(tf.erf(tf.mul(x, Math.SQRT1_2)), 1));
}

function gpt(p, { inputs, targets }, { batch, layers, heads, width, context, vocabulary }, { mask }) {
  const rows = batch * context;
  const perHead = width / heads;
  const headsFirst = (x) => tf.transpose(tf.reshape(x, [batch, context, heads, perHead]), [0, 2, 1, 3]);
  const tokens = tf.gather(p["tokens.weight"], tf.tensor1d(inputs, "int32"));
  const placed = tf.add(tf.reshape(tokens, [batch, context, width]), p["positions.weight"]);
  let x = tf.reshape(placed, [rows, width]);
  for (let layer = 0; layer < layers; layer++) {
    const at = (name) => p[`blocks.${layer}.${name}`];
    const qkv = tf.matMul(norm(x, at("norm_1.gamma")), at("attention.qkv.weight"));
    const [q, k, v] = tf.split(qkv, 3, 1).map(headsFirst);
    const scores = tf.add(tf.mul(tf.matMul(q, k, false, true), 1 / Math.sqrt(perHead)), mask);
    const taken = tf.transpose(tf.matMul(tf.softmax(scores), v), [0, 2, 1, 3]);
    x = tf.add(x, tf.matMul(tf.reshape(taken, [rows, width]), at("attention.output.weight")));
    const up = gelu(tf.matMul(norm(x, at("norm_2.gamma")), at("mlp.up.weight")));
    x = tf.add(x, tf.matMul(up, at("mlp.down.weight")));
  }
  const logits = tf.matMul(norm(x, p["norm.gamma"]), p["tokens.weight"], false, true);
  return crossEntropy(logits, targets, vocabulary);
}
