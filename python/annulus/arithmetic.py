"""Rules for arithmetic, masks, reductions and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from .graph import ANNULUS
from .layout import shape_of
from .lowering import END, Call, Lowering, Name, Rules, Unsupported, element, element_of, fake

rule = Rules()

ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow"}
COMPARISONS = {"eq": "Equal", "le": "LessOrEqual", "ge": "GreaterOrEqual", "lt": "Less", "gt": "Greater"}
LOGIC = {
    "logical_and": "And",
    "logical_or": "Or",
    "bitwise_and": "And",
    "bitwise_or": "Or",
    "__and__": "And",
    "__or__": "Or",
}
UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "neg": "Neg",
    "cos": "Cos",
    "sin": "Sin",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "erf": "Erf",
    "abs": "Abs",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sign": "Sign",
    "sgn": "Sign",
    "tan": "Tan",
    "atan": "Atan",
}


@rule(*ARITHMETIC)
def arithmetic(w: Lowering, c: Call) -> Name:
    left, right = c.get("self"), c.get("other")
    if c.name == "pow":
        right = c["exponent"]
    wanted = element(c.result.dtype)
    if c.get("rounding_mode"):
        return divided(w, c, wanted)
    if wanted is np.bool_:
        kind = {"add": "Or", "mul": "And"}.get(c.name)
        if kind is None:
            raise Unsupported("of booleans")
        return w.graph.add(kind, [w.read(left), w.read(right)])
    return w.graph.add(ARITHMETIC[c.name], [w.read_as(left, wanted), scaled(w, c, right, wanted)])


def divided(w: Lowering, c: Call, wanted: type) -> str:
    """A quotient without a fraction."""
    x, y, is_floor = w.read_as(c["self"], wanted), w.read_as(c["other"], wanted), c.get("rounding_mode") != "trunc"
    if wanted is not np.float32 and not w.is_derived(c.node):
        # The program's integers are divided towards zero, and its remainder is never negative.
        return w.graph.add("Div", [w.graph.add("Sub", [x, w.graph.add("Mod", [x, y])]) if is_floor else x, y])
    quotient = w.graph.add("Div", [x, y])
    if is_floor:
        return w.graph.add("Floor", [quotient])
    size = w.graph.add("Floor", [w.graph.add("Abs", [quotient])])
    return w.graph.add("Mul", [size, w.graph.add("Sign", [quotient])])


@rule("floor_divide")
def floor_divide(w: Lowering, c: Call) -> Name:
    return divided(w, c, element(c.result.dtype))


@rule("remainder")
def remainder(w: Lowering, c: Call) -> Name:
    wanted = element(c.result.dtype)
    return w.graph.add("Mod", [w.read_as(c["self"], wanted), w.read_as(c["other"], wanted)])


@rule("isnan")
def isnan(w: Lowering, c: Call) -> Name:
    x = w.read(c["self"])
    return w.graph.add("Not", [w.graph.add("Equal", [x, x])])


@rule("expm1")
def expm1(w: Lowering, c: Call) -> Name:
    return w.graph.add("Sub", [w.graph.add("Exp", [w.read(c["self"])]), w.graph.constant(1.0)])


@rule("cosh", "sinh")
def hyperbolic(w: Lowering, c: Call) -> Name:
    x, g = w.read(c["self"]), w.graph
    sides = g.add("Exp", [x]), g.add("Exp", [g.add("Neg", [x])])
    both = g.add("Add" if c.name == "cosh" else "Sub", sides)
    return g.add("Mul", [both, g.constant(0.5)])


def scaled(w: Lowering, c: Call, value: Any, wanted: type) -> str:
    """The second operand, times the factor `alpha` that some overloads have."""
    factor = c.get("alpha", 1)
    if factor in (1, None):
        return w.read_as(value, wanted)
    if not isinstance(value, fx.Node):
        return w.graph.constant(value * factor, wanted)
    return w.graph.add("Mul", [w.read_as(value, wanted), w.graph.constant(factor, wanted)])


@rule("rsub")
def reversed_sub(w: Lowering, c: Call) -> Name:
    wanted = element(c.result.dtype)
    return w.graph.add("Sub", [w.read_as(c["other"], wanted), scaled(w, c, c["self"], wanted)])


@rule(*COMPARISONS, "ne")
def comparison(w: Lowering, c: Call) -> Name:
    left, right = c["self"], c["other"]
    kinds = {element_of(left), element_of(right)}
    wanted = np.float32 if np.float32 in kinds else np.int64 if np.int64 in kinds else np.bool_
    if wanted is np.bool_ and c.name not in ("eq", "ne"):
        wanted = np.int64
    names = [w.read_as(left, wanted), w.read_as(right, wanted)]
    if c.name == "ne":
        return w.graph.add("Not", [w.graph.add("Equal", names)])
    return w.graph.add(COMPARISONS[c.name], names)


@rule(*LOGIC)
def logic(w: Lowering, c: Call) -> Name:
    if element(c.result.dtype) is not np.bool_:
        raise Unsupported("of integers, bit by bit")
    return w.graph.add(LOGIC[c.name], [w.read_as(c["self"], np.bool_), w.read_as(c["other"], np.bool_)])


@rule("logical_not", "bitwise_not")
def negation(w: Lowering, c: Call) -> Name:
    if element(c.result.dtype) is not np.bool_:
        raise Unsupported("of integers, bit by bit")
    return w.graph.add("Not", [w.read_as(c["self"], np.bool_)])


@rule(*UNARY)
def unary(w: Lowering, c: Call) -> Name:
    wanted = element(c.result.dtype)
    if c.name == "floor" and keep_probability(c.node) is not None:
        return kept(w, c.result.shape, c["self"], keep_probability(c.node))
    if wanted is not np.float32 and c.name in ("floor", "ceil", "round"):
        return w.read(c["self"])
    return w.graph.add(UNARY[c.name], [w.read_as(c["self"], wanted)])


@rule("rsqrt")
def rsqrt(w: Lowering, c: Call) -> Name:
    return w.graph.add("Reciprocal", [w.graph.add("Sqrt", [w.read(c["self"])])])


@rule("square")
def square(w: Lowering, c: Call) -> Name:
    x = w.read(c["self"])
    return w.graph.add("Mul", [x, x])


@rule("log1p")
def log1p(w: Lowering, c: Call) -> Name:
    return w.graph.add("Log", [w.graph.add("Add", [w.read(c["self"]), w.graph.constant(1.0)])])


@rule("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6")
def clamp(w: Lowering, c: Call) -> Name:
    low, high = c.get("min", c.get("min_val")), c.get("max", c.get("max_val"))
    wanted = element(c.result.dtype)
    value = w.read_as(c["self"], wanted)
    if any(isinstance(bound, fx.Node) for bound in (low, high)):
        for bound, is_larger in ((low, True), (high, False)):
            if bound is not None:
                value = larger(w, value, w.read_as(bound, wanted), wanted, is_larger)
        return value
    if wanted is np.float32:
        bounds = [None if bound is None else w.graph.constant(float(bound)) for bound in (low, high)]
        return w.graph.add("Clip", [value, *bounds])
    for kind, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            value = w.graph.add(kind, [value, w.read_as(bound, wanted)])
    return value


@rule("maximum", "minimum", "max", "min")
def extreme(w: Lowering, c: Call) -> Name:
    is_larger = c.name.startswith("max")
    if c.get("other") is None:
        return over_axis(w, c, is_larger)
    wanted = element(c.result.dtype)
    one, other = w.read_as(c["self"], wanted), w.read_as(c["other"], wanted)
    return larger(w, one, other, np.float32 if w.is_derived(c.node) else wanted, is_larger)


def larger(w: Lowering, one: str, other: str, wanted: type, is_larger: bool) -> str:
    """The larger one of each pair, or the smaller one."""
    if wanted is not np.float32:
        return w.graph.add("Max" if is_larger else "Min", [one, other])
    order = [one, other] if is_larger else [other, one]
    excess = w.graph.add("Relu", [w.graph.add("Sub", order)])
    return w.graph.add("Add" if is_larger else "Sub", [other, excess])


def over_axis(w: Lowering, c: Call, is_larger: bool) -> Name:
    """The largest element of a tensor, or that of an axis and its place."""
    value = w.read(c["self"])
    if c.get("dim") is None:
        return w.graph.add("ReduceMax" if is_larger else "ReduceMin", [value], keepdims=0)
    axis = c["dim"] % fake(c["self"]).dim()
    place = w.graph.add("ArgMax", [value if is_larger else w.graph.add("Neg", [value])], axis=axis)
    found = [w.graph.add("GatherElements", [value, place], axis=axis), place]
    return found if c["keepdim"] else [w.graph.add("Squeeze", [part, w.vector(axis)]) for part in found]


@rule("argmax", "argmin")
def place_of_extreme(w: Lowering, c: Call) -> Name:
    value = w.read(c["self"])
    if c.name == "argmin":
        value = w.graph.add("Neg", [value])
    axis = c.get("dim")
    if axis is None:
        value, axis = w.graph.add("Reshape", [value, w.vector(-1)]), 0
    return w.graph.add("ArgMax", [value], axis=axis % max(fake(c["self"]).dim(), 1), keepdims=int(bool(c.get("keepdim"))))


@rule("amax", "amin")
def extremes(w: Lowering, c: Call) -> Name:
    kind, axes = ("ReduceMax" if c.name == "amax" else "ReduceMin"), c["dim"]
    axes = [axes] if isinstance(axes, int) else list(axes)
    inputs = [w.read(c["self"]), *([w.graph.constant(axes, np.int64)] if axes else [])]
    return w.graph.add(kind, inputs, keepdims=int(bool(c["keepdim"])))


@rule("topk", "sort", "argsort")
def largest(w: Lowering, c: Call) -> Name:
    value = w.read(c["self"])
    axis = c["dim"] % fake(c["self"]).dim()
    count = w.vector(c["k"]) if c.name == "topk" else w.size(value, axis)
    largest = bool(c["largest"] if c.name == "topk" else c["descending"])
    places = w.graph.add("TopPlaces", [value, count], domain=ANNULUS, axis=axis, largest=int(largest))
    if c.name == "argsort":
        return places
    return [w.graph.add("GatherElements", [value, places], axis=axis), places]


@rule("any", "all")
def any_or_all(w: Lowering, c: Call) -> Name:
    value, axes = w.cast(w.read_as(c["self"], np.bool_), np.int64), c.get("dim")
    axes = [] if axes is None else [axes] if isinstance(axes, int) else list(axes)
    inputs = [value, *([w.graph.constant(axes, np.int64)] if axes else [])]
    kind = "ReduceMax" if c.name == "any" else "ReduceMin"
    return w.cast(w.graph.add(kind, inputs, keepdims=int(bool(c.get("keepdim")))), np.bool_)


@rule("prod")
def product(w: Lowering, c: Call) -> Name:
    axis, shape = c.get("dim"), fake(c["self"]).shape
    if axis is None or not isinstance(shape[axis], int) or shape[axis] > 64:
        raise Unsupported("over more than 64 elements")
    axis %= len(shape)
    sizes = w.graph.constant([1] * shape[axis], np.int64)
    parts = w.graph.add_many("Split", [w.read_as(c["self"], element(c.result.dtype)), sizes], shape[axis], axis=axis)
    whole = parts[0]
    for part in parts[1:]:
        whole = w.graph.add("Mul", [whole, part])
    return whole if c.get("keepdim") else w.graph.add("Squeeze", [whole, w.vector(axis)])


# Reductions.


@rule("mean", "sum")
def reduction(w: Lowering, c: Call) -> Name:
    kind = "ReduceMean" if c.name == "mean" else "ReduceSum"
    value, axes = w.read_as(c["self"], element(c.result.dtype)), c.get("dim")
    if axes is None or axes == []:
        return w.graph.add(kind, [value], keepdims=0)
    axes = [axes] if isinstance(axes, int) else list(axes)
    return w.graph.add(kind, [value, w.graph.constant(axes, np.int64)], keepdims=int(bool(c.get("keepdim"))))


@rule("linalg_vector_norm", "norm")
def norm(w: Lowering, c: Call) -> Name:
    if c.get("ord", c.get("p", 2)) not in (2, None):
        raise Unsupported("other than the Euclidean norm")
    x, axes = w.read(c["self"]), c.get("dim")
    inputs = [w.graph.add("Mul", [x, x])]
    if axes:
        inputs.append(w.graph.constant([axes] if isinstance(axes, int) else list(axes), np.int64))
    return w.graph.add("Sqrt", [w.graph.add("ReduceSum", inputs, keepdims=int(bool(c.get("keepdim"))))])


@rule("var")
def variance(w: Lowering, c: Call) -> Name:
    shape, axes = fake(c["self"]).shape, c.get("dim")
    axes = list(range(len(shape))) if axes is None else [axis % len(shape) for axis in axes]
    correction = c.get("correction", 1 if c.get("unbiased", True) else 0)
    count = int(np.prod([shape[axis] for axis in axes]))
    x, over = w.read(c["self"]), w.graph.constant(axes, np.int64)
    centred = w.graph.add("Sub", [x, w.graph.add("ReduceMean", [x, over], keepdims=1)])
    squares = w.graph.add("Mul", [centred, centred])
    mean = w.graph.add("ReduceMean", [squares, over], keepdims=int(bool(c.get("keepdim"))))
    factor = count / (count - (1 if correction is None else correction))
    return mean if factor == 1 else w.graph.add("Mul", [mean, w.graph.constant(float(factor))])


@rule("cumsum")
def cumsum(w: Lowering, c: Call) -> Name:
    value = w.read_as(c["self"], element(c.result.dtype))
    return w.graph.add("CumSum", [value, w.graph.constant(c["dim"], np.int64)])


@rule("diff")
def diff(w: Lowering, c: Call) -> Name:
    if c.get("n", 1) != 1 or c.get("append") is not None:
        raise Unsupported("of higher order")
    axis = c["dim"] % fake(c["self"]).dim()
    wanted = np.int64 if element_of(c["self"]) is np.bool_ else element_of(c["self"])
    value = w.read_as(c["self"], wanted)
    if c.get("prepend") is not None:
        value = w.graph.add("Concat", [w.read_as(c["prepend"], wanted), value], axis=axis)
    return w.graph.add("Sub", [w.sliced(value, axis, 1, END), w.sliced(value, axis, 0, -1)])


# Choosing, and drawing at random.


@rule("where")
def where(w: Lowering, c: Call) -> Name:
    if c.get("self") is None:
        raise Unsupported("whose result's shape follows from the data")
    wanted = element(c.result.dtype)
    return w.graph.add(
        "Where", [w.read_as(c["condition"], np.bool_), w.read_as(c["self"], wanted), w.read_as(c["other"], wanted)]
    )


@rule("masked_fill")
def masked_fill(w: Lowering, c: Call) -> Name:
    wanted = element(c.result.dtype)
    value = c["value"]
    if isinstance(value, (int, float)) and wanted is np.float32:
        # Infinite scores would become NaN in a row that is masked as a whole.
        value = float(np.clip(value, np.finfo(np.float32).min, np.finfo(np.float32).max))
    return w.graph.add("Where", [w.read(c["mask"]), w.read_as(value, wanted), w.read_as(c["self"], wanted)])


@rule("bernoulli")
def bernoulli(w: Lowering, c: Call) -> Name:
    keep = keep_probability(c.node)
    if keep is None:
        raise Unsupported("with a computed probability")
    return kept(w, c.result.shape, c["self"], keep)


def keep_probability(node: fx.Node) -> Any:
    """The probability of a one, if an operation draws zeros and ones: `bernoulli(p)` or `floor(p + rand)`."""
    call = Call(node)
    if call.name == "bernoulli":
        return call["p"] if isinstance(call.get("p"), float) else None
    source = call["self"] if call.name == "floor" else None
    if not isinstance(source, fx.Node) or source.op != "call_function" or Call(source).name != "add":
        return None
    drawn = [value for value in source.args if isinstance(value, fx.Node) and Call(value).name == "rand"]
    numbers = [value for value in source.args if isinstance(value, float)]
    return numbers[0] if drawn and numbers else None


def kept(w: Lowering, shape: Any, like: Any, keep: float) -> str:
    """Zeros and ones. Without dropout they are the number `keep`, so that a division by it gives 1."""
    sizes = shape_of(w, shape, like)
    ones = w.graph.add("ConstantOfShape", [sizes], value=np.array([1], np.float32))
    dropped = w.graph.add("Dropout", [ones, w.graph.constant(1.0 - keep), w.graph.constant(True)])
    return w.graph.add("Mul", [dropped, w.graph.constant(float(keep))])


@rule("rand")
def rand(w: Lowering, c: Call) -> Name:
    users = [user for value in c.node.users for user in value.users]
    if users and all(keep_probability(user) is not None for user in users):
        # Only its shape is read; the operation behind it draws.
        return w.graph.add("ConstantOfShape", [w.dims(c["size"])], value=np.array([0], np.float32))
    raise Unsupported("random numbers other than dropout")


@rule("draw")
def draw(w: Lowering, c: Call) -> Name:
    kind, stream, like, size, _ = c.node.args
    shape = w.dims(size) if like is None else w.graph.add("Shape", [w.read(like)])
    return w.graph.add("Random", [shape], domain=ANNULUS, kind=kind, stream=stream)
