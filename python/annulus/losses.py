"""Rules for losses."""

from __future__ import annotations

import numpy as np

from .lowering import Call, Lowering, Name, Rules, Unsupported, element_of, fake

rule = Rules()


MEAN, SUM = 1, 2


def reduced(w: Lowering, c: Call, value: str) -> str:
    """Applies the argument `reduction`."""
    kind = {MEAN: "ReduceMean", SUM: "ReduceSum"}.get(c["reduction"])
    return w.graph.add(kind, [value], keepdims=0) if kind else value


@rule("cross_entropy_loss")
def cross_entropy(w: Lowering, c: Call) -> Name:
    if c["reduction"] != MEAN or w.is_derived(c["target"]):
        raise Unsupported("with another reduction than the mean")
    if element_of(c["target"]) is np.float32:
        return soft_cross_entropy(w, c)
    share = float(c["label_smoothing"])
    if c["weight"] is not None:
        if share:
            raise Unsupported("with class weights and label smoothing at once")
        return weighted_cross_entropy(w, c)
    logits, target, ignored = w.read(c["self"]), w.read(c["target"]), c["ignore_index"]
    loss = w.graph.add("SoftmaxCrossEntropyLoss", [logits, target], ignore_index=ignored, reduction="mean")
    if share == 0:
        return loss
    # A share of the loss is the mean over all classes, over the targets that are not ignored.
    g = w.graph
    means = g.add("ReduceMean", [g.add("LogSoftmax", [logits], axis=1), w.vector(1)], keepdims=0)
    counted = w.cast(g.add("Not", [g.add("Equal", [target, g.constant(ignored, np.int64)])]), np.float32)
    total = g.add("ReduceSum", [g.add("Mul", [means, counted])], keepdims=0)
    uniform = g.add("Neg", [g.add("Div", [total, g.add("ReduceSum", [counted], keepdims=0)])])
    parts = [g.add("Mul", [part, g.constant(factor)]) for part, factor in ((loss, 1 - share), (uniform, share))]
    return g.add("Add", parts)


def weighted_cross_entropy(w: Lowering, c: Call) -> str:
    """The mean, weighted by the targets' classes: a matrix with each target's weight in its class's column."""
    weight, g = w.static(c["weight"]), w.graph
    if weight is None:
        raise Unsupported("with class weights that are trained")
    weight = np.array(weight, np.float32)
    if 0 <= c["ignore_index"] < len(weight):
        weight[c["ignore_index"]] = 0
    across = [1, -1] + [1] * (fake(c["self"]).dim() - 2)
    targets = g.add("Unsqueeze", [w.read(c["target"]), w.vector(1)])
    classes = g.constant(np.arange(len(weight)).reshape(across))
    is_class = w.cast(g.add("Equal", [targets, classes]), np.float32)
    weights = g.add("Mul", [is_class, g.constant(weight.reshape(across))])
    picked = g.add("Mul", [g.add("LogSoftmax", [w.read(c["self"])], axis=1), weights])
    sums = [g.add("ReduceSum", [value], keepdims=0) for value in (picked, weights)]
    return g.add("Neg", [g.add("Div", sums)])


def soft_cross_entropy(w: Lowering, c: Call) -> str:
    """Targets that are probabilities."""
    if c["weight"] is not None or c["label_smoothing"]:
        raise Unsupported("with probabilities and class weights or label smoothing at once")
    logs = w.graph.add("LogSoftmax", [w.read(c["self"])], axis=1)
    picked = w.graph.add("Mul", [logs, w.read(c["target"])])
    sums = w.graph.add("ReduceSum", [picked, w.vector(1)], keepdims=0)
    return w.graph.add("Neg", [w.graph.add("ReduceMean", [sums], keepdims=0)])


@rule("nll_loss_nd", "nll_loss", "nll_loss2d")
def nll_loss(w: Lowering, c: Call) -> Name:
    if c["reduction"] != MEAN or c["weight"] is not None or w.is_derived(c["target"]):
        raise Unsupported("with another reduction than the mean, or with class weights")
    inputs = [w.read(c["self"]), w.read(c["target"])]
    return w.graph.add("NegativeLogLikelihoodLoss", inputs, ignore_index=c["ignore_index"], reduction="mean")


@rule("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")
def distance(w: Lowering, c: Call) -> Name:
    g = w.graph
    difference = g.add("Sub", [w.read(c["self"]), w.read_as(c["target"], np.float32)])
    if c.name == "mse_loss":
        return reduced(w, c, g.add("Mul", [difference, difference]))
    size = g.add("Abs", [difference])
    bend = float(c.get("delta", c.get("beta", 0.0)))
    if c.name == "l1_loss" or bend == 0:
        return reduced(w, c, size)
    # With n = min(|d|, bend) it is n (|d| - n / 2): a parabola up to the bend, and a line beyond it.
    near = g.add("Sub", [size, g.add("Relu", [g.add("Sub", [size, g.constant(bend)])])])
    value = g.add("Mul", [near, g.add("Sub", [size, g.add("Mul", [near, g.constant(0.5)])])])
    if c.name == "smooth_l1_loss":
        value = g.add("Mul", [value, g.constant(1 / bend)])
    return reduced(w, c, value)


@rule("binary_cross_entropy_with_logits")
def binary_cross_entropy(w: Lowering, c: Call) -> Name:
    if c["weight"] is not None:
        raise Unsupported("with weights of samples")
    g, x, y = w.graph, w.read(c["self"]), w.read_as(c["target"], np.float32)
    if c["pos_weight"] is None:
        value = g.add("Sub", [g.add("Softplus", [x]), g.add("Mul", [x, y])])
        return reduced(w, c, value)
    # (1 - y) x + (1 + (p - 1) y) softplus(-x)
    one = g.constant(1.0)
    negatives = g.add("Mul", [g.add("Sub", [one, y]), x])
    factor = g.add("Add", [one, g.add("Mul", [g.add("Sub", [w.read(c["pos_weight"]), one]), y])])
    positives = g.add("Mul", [factor, g.add("Softplus", [g.add("Neg", [x])])])
    return reduced(w, c, g.add("Add", [negatives, positives]))
