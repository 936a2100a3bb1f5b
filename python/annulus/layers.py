"""Rules for layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from .graph import ANNULUS
from .layout import backwards, reshaped
from .lowering import Call, Lowering, Missing, Name, Refused, Rules, Unsupported, fake

rule = Rules()

# Activations. Those that ONNX has under another name, or that few readers know, are spelled out in simple operations.


@rule("silu")
def silu(w: Lowering, c: Call) -> Name:
    return w.graph.add("Swish", [w.read(c["self"])], domain=ANNULUS)


@rule("gelu")
def gelu(w: Lowering, c: Call) -> Name:
    return w.graph.add("Gelu", [w.read(c["self"])], approximate=c["approximate"])


@rule("softplus")
def softplus(w: Lowering, c: Call) -> Name:
    if c["beta"] != 1:
        raise Unsupported("with a factor")
    return w.graph.add("Softplus", [w.read(c["self"])])


@rule("log_sigmoid")
def log_sigmoid(w: Lowering, c: Call) -> Name:
    negative = w.graph.add("Neg", [w.read(c["self"])])
    return w.graph.add("Neg", [w.graph.add("Softplus", [negative])])


@rule("mish")
def mish(w: Lowering, c: Call) -> Name:
    x = w.read(c["self"])
    return w.graph.add("Mul", [x, w.graph.add("Tanh", [w.graph.add("Softplus", [x])])])


@rule("hardsigmoid")
def hardsigmoid(w: Lowering, c: Call) -> Name:
    return w.graph.add("HardSigmoid", [w.read(c["self"])], alpha=1 / 6, beta=0.5)


@rule("hardswish")
def hardswish(w: Lowering, c: Call) -> Name:
    return w.graph.add("HardSwish", [w.read(c["self"])])


@rule("leaky_relu")
def leaky_relu(w: Lowering, c: Call) -> Name:
    return w.graph.add("LeakyRelu", [w.read(c["self"])], alpha=float(c["negative_slope"]))


@rule("elu")
def elu(w: Lowering, c: Call) -> Name:
    if c["scale"] != 1 or c["input_scale"] != 1:
        raise Unsupported("with factors")
    return w.graph.add("Elu", [w.read(c["self"])], alpha=float(c["alpha"]))


@rule("prelu")
def prelu(w: Lowering, c: Call) -> Name:
    x, weight, rank, g = w.read(c["self"]), w.read(c["weight"]), fake(c["self"]).dim(), w.graph
    if rank > 2:
        weight = g.add("Reshape", [weight, g.constant([-1] + [1] * (rank - 2), np.int64)])
    below = g.add("Relu", [g.add("Neg", [x])])
    return g.add("Sub", [g.add("Relu", [x]), g.add("Mul", [below, weight])])


@rule("glu")
def glu(w: Lowering, c: Call) -> Name:
    axis = c["dim"] % c.result.dim()
    half = c.result.shape[axis]
    sizes = w.graph.constant([half, half], np.int64)
    value, gate = w.graph.add_many("Split", [w.read(c["self"]), sizes], 2, axis=axis)
    return w.graph.add("Mul", [value, w.graph.add("Sigmoid", [gate])])


@rule("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(w: Lowering, c: Call) -> Name:
    kind = "LogSoftmax" if "log" in c.name else "Softmax"
    return w.graph.add(kind, [w.read_as(c["self"], np.float32)], axis=c["dim"] % c.result.dim())


# Products.


@rule("linear")
def linear(w: Lowering, c: Call) -> Name:
    inputs = [w.read(c["input"]), w.read(c["weight"]), w.read(c["bias"])]
    return w.graph.add("Linear", inputs, domain=ANNULUS, outputs_first=1)


@rule("addmm")
def addmm(w: Lowering, c: Call) -> Name:
    if c["beta"] != 1 or c["alpha"] != 1:
        raise Unsupported("with factors")
    inputs = [w.read(c["mat1"]), w.read(c["mat2"]), w.read(c["self"])]
    return w.graph.add("Linear", inputs, domain=ANNULUS, outputs_first=0)


@rule("matmul", "bmm", "mm", "mv", "dot")
def matmul(w: Lowering, c: Call) -> Name:
    factors = c["self"], next(c[name] for name in ("other", "mat2", "vec", "tensor") if c.get(name) is not None)
    names, g, dropped = [w.read_as(factor, np.float32) for factor in factors], w.graph, []
    # A vector is a row on the left, and a column on the right.
    for at, axis in ((0, -2), (1, -1)):
        if fake(factors[at]).dim() == 1:
            names[at] = g.add("Unsqueeze", [names[at], w.vector(at)])
            dropped.append(axis)
    product = g.add("MatMul", names)
    return g.add("Squeeze", [product, g.constant(dropped, np.int64)]) if dropped else product


@rule("baddbmm")
def baddbmm(w: Lowering, c: Call) -> Name:
    product = w.graph.add("MatMul", [w.read(c["batch1"]), w.read(c["batch2"])])
    if c["alpha"] != 1:
        product = w.graph.add("Mul", [product, w.graph.constant(float(c["alpha"]))])
    if c["beta"] == 0:
        return product
    addend = w.read(c["self"])
    if c["beta"] != 1:
        addend = w.graph.add("Mul", [addend, w.graph.constant(float(c["beta"]))])
    return w.graph.add("Add", [addend, product])


@rule("bilinear")
def bilinear(w: Lowering, c: Call) -> Name:
    # x W y for the matrix W of each output: [.., inputs] by [inputs, outputs * others], times y.
    g, (outputs, inputs, others) = w.graph, fake(c["weight"]).shape
    weight = g.add("Transpose", [w.read(c["weight"])], perm=[1, 0, 2])
    weight = g.add("Reshape", [weight, g.constant([inputs, outputs * others], np.int64)])
    made = g.add("MatMul", [w.read(c["input1"]), weight])
    made = reshaped(w, made, [*c.result.shape, others])
    made = g.add("Mul", [made, g.add("Unsqueeze", [w.read(c["input2"]), g.constant([-2], np.int64)])])
    made = g.add("ReduceSum", [made, g.constant([-1], np.int64)], keepdims=0)
    return made if c["bias"] is None else g.add("Add", [made, w.read(c["bias"])])


@rule("cdist")
def distances(w: Lowering, c: Call) -> Name:
    if c["p"] != 2:
        raise Unsupported("other than Euclidean")
    one, other = (w.graph.add("Unsqueeze", [w.read(c[f"x{n}"]), w.graph.constant([-1 - n], np.int64)]) for n in (1, 2))
    apart = w.graph.add("Sub", [one, other])
    squares = w.graph.add("ReduceSum", [w.graph.add("Mul", [apart, apart]), w.graph.constant([-1], np.int64)], keepdims=0)
    # At 0 the slope of the root is infinite, and PyTorch takes 0.
    return w.graph.add("Sqrt", [w.graph.add("Clip", [squares, w.graph.constant(1e-30)])])


@rule("scaled_dot_product_attention")
def attention(w: Lowering, c: Call) -> Name:
    rank, g = fake(c["query"]).dim(), w.graph
    inputs = [w.read(c[name]) for name in ("query", "key", "value")]
    if rank == 3:
        inputs = [g.add("Unsqueeze", [value, w.vector(1)]) for value in inputs]
    elif rank != 4:
        raise Unsupported(f"with {rank} axes")
    mask = c.get("attn_mask")
    inputs.append(w.read(mask))
    if w.is_derived(mask):
        hidden = [g.constant(value) for value in (0.0, float(np.finfo(np.float32).min))]
        inputs[3] = g.add("Where", [inputs[3], *hidden])
    if rank == 3 and mask is not None and fake(mask).dim() == 3:
        inputs[3] = g.add("Unsqueeze", [inputs[3], w.vector(1)])
    attributes: dict[str, Any] = {"is_causal": int(bool(c.get("is_causal")))}
    if c.get("scale") is not None:
        attributes["scale"] = float(c["scale"])
    # ONNX's operation has no dropout.
    domain = ANNULUS if c.get("dropout_p") else ""
    if domain:
        attributes["dropout_p"] = float(c["dropout_p"])
    result = g.add("Attention", inputs, domain=domain, **attributes)
    return g.add("Squeeze", [result, w.vector(1)]) if rank == 3 else result


# Convolutions and pooling.


def spread(value: Any, axes: int) -> list[int]:
    """One number for all axes, or one for each."""
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values


@rule("conv1d", "conv2d", "conv3d")
def convolution(w: Lowering, c: Call) -> Name:
    axes = fake(c["input"]).dim() - 2
    stride, dilation = spread(c["stride"], axes), spread(c["dilation"], axes)
    if c["padding"] == "valid":
        pads = [0] * (2 * axes)
    elif c["padding"] == "same":
        totals = [d * (size - 1) for d, size in zip(dilation, fake(c["weight"]).shape[2:], strict=False)]
        pads = [total // 2 for total in totals] + [total - total // 2 for total in totals]
    else:
        pads = spread(c["padding"], axes) * 2
    inputs = [w.read(c["input"]), w.read(c["weight"]), w.read(c["bias"])]
    return w.graph.add("Conv", inputs, strides=stride, pads=pads, dilations=dilation, group=c["groups"])


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(w: Lowering, c: Call) -> Name:
    axes = fake(c["input"]).dim() - 2
    attributes = {
        "strides": spread(c["stride"], axes),
        "pads": spread(c["padding"], axes) * 2,
        "output_padding": spread(c["output_padding"], axes),
        "dilations": spread(c["dilation"], axes),
        "group": c["groups"],
    }
    inputs = [w.read(c["input"]), w.read(c["weight"]), w.read(c["bias"])]
    return w.graph.add("ConvTranspose", inputs, **attributes)


@rule("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d")
def pooling(w: Lowering, c: Call) -> Name:
    axes = 2 if c.name.endswith("2d") else 1
    kernel = spread(c["kernel_size"], axes)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": spread(c["stride"] or kernel, axes),
        "pads": spread(c["padding"], axes) * 2,
        "ceil_mode": int(bool(c["ceil_mode"])),
    }
    if c.name.startswith("max"):
        return w.graph.add("MaxPool", [w.read(c["self"])], dilations=spread(c["dilation"], axes), **attributes)
    if c.get("divisor_override"):
        raise Unsupported("with a divisor of its own")
    count = int(bool(c["count_include_pad"]))
    return w.graph.add("AveragePool", [w.read(c["self"])], count_include_pad=count, **attributes)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def adaptive_pooling(w: Lowering, c: Call) -> Name:
    value, shape = w.read(c["self"]), fake(c["self"]).shape
    axes = 2 if c.name.endswith("2d") else 1
    wanted = [size if own is None else own for own, size in zip(spread(c["output_size"], axes), shape[-axes:], strict=False)]
    if all(size == 1 for size in wanted):
        return w.graph.add("GlobalAveragePool", [value])
    # Each axis is a product with a constant matrix, whose rows hold the share of each place.
    rank = len(shape)
    for axis, outputs in zip(range(rank - axes, rank), wanted, strict=False):
        shares = w.graph.constant(pooling_matrix(shape[axis], outputs))
        turned = list(range(rank))
        turned[axis], turned[-1] = turned[-1], turned[axis]
        if axis != rank - 1:
            value = w.graph.add("Transpose", [value], perm=turned)
        value = w.graph.add("MatMul", [value, shares])
        if axis != rank - 1:
            value = w.graph.add("Transpose", [value], perm=turned)
    return value


@rule("adaptive_max_pool1d", "adaptive_max_pool2d")
def adaptive_maxima(w: Lowering, c: Call) -> list[Name]:
    value, shape = w.read(c["self"]), fake(c["self"]).shape
    axes = 2 if c.name.endswith("2d") else 1
    places = spread(c["output_size"], axes)
    for axis, outputs in zip(range(len(shape) - axes, len(shape)), places, strict=True):
        if outputs is None or outputs == shape[axis]:
            continue
        axis_of = w.graph.constant([axis], np.int64)
        parts = [
            w.graph.add("ReduceMax", [w.sliced(value, axis, start, end, 1), axis_of], keepdims=1)
            for start, end in pooling_ranges(shape[axis], outputs)
        ]
        value = w.graph.add("Concat", parts, axis=axis) if outputs > 1 else parts[0]
    # Nothing that trains takes the places of the maxima.
    return [value, None]


def pooling_ranges(inputs: int, outputs: int) -> list[tuple[int, int]]:
    """The input places of each output place, by PyTorch's rule."""
    return [(at * inputs // outputs, -(-(at + 1) * inputs // outputs)) for at in range(outputs)]


def pooling_matrix(inputs: int, outputs: int) -> np.ndarray:
    """The share of each input place (rows) in each output place (columns), by PyTorch's rule of ranges."""
    matrix: np.ndarray = np.zeros((inputs, outputs), np.float32)
    for at, (start, end) in enumerate(pooling_ranges(inputs, outputs)):
        matrix[start:end, at] = 1 / (end - start)
    return matrix


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d")
def upsample(w: Lowering, c: Call) -> Name:
    before, after = fake(c["input"] if "input" in c._arguments else c["self"]).shape, c.result.shape
    factors = [1.0, 1.0, *(new / old for new, old in zip(after[2:], before[2:], strict=False))]
    value = w.read(c["input"] if "input" in c._arguments else c["self"])
    if "nearest" in c.name:
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        corners = "align_corners" if c["align_corners"] else "half_pixel"
        how = {"mode": "linear", "coordinate_transformation_mode": corners}
    return w.graph.add("Resize", [value, None, w.graph.constant(factors, np.float32)], **how)


# Norms and dropout.


@rule("batch_norm")
def batch_norm(w: Lowering, c: Call) -> Name:
    if c["running_mean"] is None:
        raise Refused("without running statistics: use group norm")
    if c["momentum"] is None:
        raise Refused("with momentum=None: set a number")
    channels = fake(c["input"]).shape[1]
    scale = w.read(c["weight"]) or w.graph.constant(np.ones(channels, np.float32))
    shift = w.read(c["bias"]) or w.graph.constant(np.zeros(channels, np.float32))
    statistics = [w.read(c["running_mean"]), w.read(c["running_var"])]
    training = bool(c["training"])
    outputs = w.graph.add_many(
        "BatchNormalization",
        [w.read(c["input"]), scale, shift, *statistics],
        3 if training else 1,
        training_mode=int(training),
        momentum=1.0 - c["momentum"],
        epsilon=float(c["eps"]),
    )
    w.updates.update(zip(statistics, outputs[1:], strict=False))
    return outputs[0]


@rule("instance_norm")
def instance_norm(w: Lowering, c: Call) -> Name:
    if c["running_mean"] is not None:
        raise Refused("with running statistics")
    channels = fake(c["input"]).shape[1]
    scale = w.read(c["weight"]) or w.graph.constant(np.ones(channels, np.float32))
    shift = w.read(c["bias"]) or w.graph.constant(np.zeros(channels, np.float32))
    inputs = [w.read(c["input"]), scale, shift]
    return w.graph.add("GroupNormalization", inputs, num_groups=channels, epsilon=float(c["eps"]))


@rule("group_norm")
def group_norm(w: Lowering, c: Call) -> Name:
    channels = fake(c["input"]).shape[1]
    scale = w.read(c["weight"]) or w.graph.constant(np.ones(channels, np.float32))
    shift = w.read(c["bias"]) or w.graph.constant(np.zeros(channels, np.float32))
    inputs = [w.read(c["input"]), scale, shift]
    return w.graph.add("GroupNormalization", inputs, num_groups=c["num_groups"], epsilon=float(c["eps"]))


@rule("layer_norm", "rms_norm")
def last_axes_norm(w: Lowering, c: Call) -> Name:
    shape = list(c["normalized_shape"])
    scale = w.read(c["weight"]) or w.graph.constant(np.ones(shape, np.float32))
    inputs = [w.read(c["input"]), scale, w.read(c.get("bias"))]
    kind = "LayerNormalization" if c.name == "layer_norm" else "RMSNormalization"
    # Without a number RMSNorm takes the type's machine epsilon.
    epsilon = float(np.finfo(np.float32).eps) if c["eps"] is None else float(c["eps"])
    return w.graph.add(kind, inputs, axis=-len(shape), epsilon=epsilon)


@rule("dropout")
def dropout(w: Lowering, c: Call) -> Name:
    value = w.read(c.get("input", c.get("self")))
    if not c["train"] or c["p"] == 0:
        return value
    return w.graph.add("Dropout", [value, w.graph.constant(float(c["p"])), w.graph.constant(True)])


@rule("feature_dropout")
def feature_dropout(w: Lowering, c: Call) -> Name:
    """Whole channels are dropped: dropout of ones, one per channel."""
    value = w.read(c.get("input", c.get("self")))
    if not c["train"] or c["p"] == 0:
        return value
    shape = c.result.shape
    sizes = w.sizes_like(value, [shape[0], shape[1]] + [1] * (len(shape) - 2))
    ones = w.graph.add("ConstantOfShape", [sizes], value=np.array([1], np.float32))
    mask = w.graph.add("Dropout", [ones, w.graph.constant(float(c["p"])), w.graph.constant(True)])
    return w.graph.add("Mul", [value, mask])


# Recurrent layers.


@rule("lstm", "gru")
def recurrent(w: Lowering, c: Call) -> Name:
    if "batch_sizes" in c._arguments:
        raise Refused("of packed sequences: pad them")
    states = c["hx"] if isinstance(c["hx"], (list, tuple)) else [c["hx"]]
    if not all(isinstance(state, fx.Node) and state.op == "call_function" and Call(state).name == "zeros" for state in states):
        raise Unsupported("with an initial state of its own")
    if c.name == "lstm" and any(user.args[1] == 2 and user.users for user in c.node.users):
        raise Unsupported("with the final cell state")
    directions = 2 if c["bidirectional"] else 1
    each = 4 if c["has_biases"] else 2
    if len(c["params"]) != each * directions * c["num_layers"]:
        raise Unsupported("with projections")
    g, value = w.graph, w.read(c["input"])
    steps = fake(c["input"]).shape[1 if c["batch_first"] else 0]
    if not isinstance(steps, int):
        raise Unsupported("with time on the first axis: use batch_first=True")
    if c["batch_first"]:
        value = g.add("Transpose", [value], perm=[1, 0, 2])
    last: list[str] = []
    for layer in range(c["num_layers"]):
        outputs = []
        for direction in range(directions):
            at = each * (directions * layer + direction)
            weights = [w.read(weight) for weight in c["params"][at : at + each]]
            if not c["has_biases"]:
                rows = fake(c["params"][at]).shape[0]
                weights += [g.constant(np.zeros(rows, np.float32))] * 2
            source = backwards(w, value, 0, steps) if direction else value
            made = g.add("Recurrent", [source, *weights], domain=ANNULUS, kind=c.name)
            last.append(w.sliced(made, 0, steps - 1, steps))
            outputs.append(backwards(w, made, 0, steps) if direction else made)
        value = g.add("Concat", outputs, axis=2) if directions == 2 else outputs[0]
        if c["dropout"] and c["train"] and layer + 1 < c["num_layers"]:
            value = g.add("Dropout", [value, g.constant(float(c["dropout"])), g.constant(True)])
    if c["batch_first"]:
        value = g.add("Transpose", [value], perm=[1, 0, 2])
    hidden = g.add("Concat", last, axis=0) if len(last) > 1 else last[0]
    return [value, hidden, Missing("the final cell state")]
