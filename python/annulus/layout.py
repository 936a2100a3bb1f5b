"""Rules for layout: shapes, parts of tensors, looking up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from .graph import ANNULUS
from .lowering import END, Call, Lowering, Name, Rules, Unsupported, element, element_of, fake

rule = Rules()


def same_shape(c: Call) -> bool:
    """Whether the result has the shape of the argument; sizes that follow from the batch are compared as formulas."""
    return [*map(str, fake(c["self"]).shape)] == [*map(str, c.result.shape)]


def reshaped(w: Lowering, value: str, shape: Any) -> str:
    """A value in another shape. The reader computes the one size that follows from the batch."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) > 1:
        raise Unsupported("to a shape with two sizes that follow from the batch")
    return w.graph.add("Reshape", [value, w.graph.constant(sizes, np.int64)], allowzero=1)


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as")
def view(w: Lowering, c: Call) -> Name:
    if isinstance(c.get("dtype"), torch.dtype):
        raise Unsupported("bits as another type")
    value = w.read(c["self"])
    return value if same_shape(c) else reshaped(w, value, c.result.shape)


@rule(
    "contiguous",
    "clone",
    "detach",
    "alias",
    "lift_fresh_copy",
    "lift_fresh",
    "to",
    "_to_copy",
    "type_as",
    "float",
    "copy",
)
def same_values(w: Lowering, c: Call) -> Name:
    source = c["src"] if c.name == "copy" else c["self"]
    name = w.read_as(source, element(c.result.dtype))
    if c.name == "copy" and list(fake(source).shape) != list(c.result.shape):
        return w.graph.add("Expand", [name, shape_of(w, c.result.shape, c["self"])])
    return name


def shape_of(w: Lowering, shape: Any, like: Any) -> str:
    """The shape of a result as a tensor. `like` is a value with the batch on its first axis, where that is needed."""
    if all(isinstance(size, int) for size in shape):
        return w.graph.constant(list(shape), np.int64)
    if isinstance(shape[0], int) or not all(isinstance(size, int) for size in shape[1:]):
        raise Unsupported("of a shape that follows from the batch")
    return w.sizes_like(w.read(like), shape)


@rule("permute")
def permute(w: Lowering, c: Call) -> Name:
    rank = fake(c["self"]).dim()
    return w.graph.add("Transpose", [w.read(c["self"])], perm=[axis % rank for axis in c["dims"]])


@rule("transpose", "swapaxes", "t", "numpy_T", "mT", "adjoint")
def transpose(w: Lowering, c: Call) -> Name:
    rank = fake(c["self"]).dim()
    one, other = c.get("dim0", c.get("axis0")), c.get("dim1", c.get("axis1"))
    if one is None:
        one, other = rank - 2, rank - 1
    axes = list(range(rank))
    axes[one % rank], axes[other % rank] = axes[other % rank], axes[one % rank]
    return w.graph.add("Transpose", [w.read(c["self"])], perm=axes)


@rule("movedim")
def movedim(w: Lowering, c: Call) -> Name:
    rank = fake(c["self"]).dim()

    def as_list(axes: Any) -> list[int]:
        return [axis % rank for axis in ([axes] if isinstance(axes, int) else axes)]

    source, target = as_list(c["source"]), as_list(c["destination"])
    rest = iter(axis for axis in range(rank) if axis not in source)
    axes = [source[target.index(at)] if at in target else next(rest) for at in range(rank)]
    return w.graph.add("Transpose", [w.read(c["self"])], perm=axes)


@rule("unsqueeze")
def unsqueeze(w: Lowering, c: Call) -> Name:
    return w.graph.add("Unsqueeze", [w.read(c["self"]), w.vector(c["dim"] % c.result.dim())])


@rule("squeeze")
def squeeze(w: Lowering, c: Call) -> Name:
    shape, axes = fake(c["self"]).shape, c.get("dim")
    axes = range(len(shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    axes = [axis % len(shape) for axis in axes if isinstance(shape[axis], int) and shape[axis] == 1]
    return w.graph.add("Squeeze", [w.read(c["self"]), w.graph.constant(axes, np.int64)]) if axes else w.read(c["self"])


@rule("expand")
def expand(w: Lowering, c: Call) -> Name:
    shape, sizes = fake(c["self"]).shape, list(c["size"])
    lead = len(sizes) - len(shape)
    # A size of 1 leaves an axis as it is.
    sizes = [1 if at >= lead and keeps(size, shape[at - lead]) else size for at, size in enumerate(sizes)]
    if all(isinstance(size, int) and size == 1 for size in sizes) and lead == 0:
        return w.read(c["self"])
    return w.graph.add("Expand", [w.read(c["self"]), w.dims(sizes)])


def keeps(size: Any, own: Any) -> bool:
    """Whether an expansion to this size leaves an axis as it is."""
    return (isinstance(size, int) and size == -1) or (not isinstance(own, int) or own != 1)


@rule("expand_as")
def expand_as(w: Lowering, c: Call) -> Name:
    return w.graph.add("Expand", [w.read(c["self"]), w.graph.add("Shape", [w.read(c["other"])])])


@rule("broadcast_tensors")
def broadcast_tensors(w: Lowering, c: Call) -> Name:
    # Every later operation broadcasts by itself, except indexing, which broadcasts its indices too.
    return [w.read(value) for value in c["tensors"]]


@rule("repeat")
def repeat(w: Lowering, c: Call) -> Name:
    counts, lead = list(c["repeats"]), c.result.dim() - fake(c["self"]).dim()
    value = w.read(c["self"])
    if lead:
        value = w.graph.add("Unsqueeze", [value, w.graph.constant(list(range(lead)), np.int64)])
    return w.graph.add("Tile", [value, w.dims(counts)])


@rule("repeat_interleave")
def repeat_interleave(w: Lowering, c: Call) -> Name:
    count, axis = c["repeats"], c.get("dim")
    if not isinstance(count, int) or axis is None:
        raise Unsupported("by a tensor of counts")
    axis %= fake(c["self"]).dim()
    value = w.graph.add("Unsqueeze", [w.read(c["self"]), w.vector(axis + 1)])
    wide = [1] * (c.result.dim() + 1)
    wide[axis + 1] = count
    value = w.graph.add("Expand", [value, w.graph.constant(wide, np.int64)])
    return reshaped(w, value, c.result.shape)


@rule("cat", "concat", "concatenate")
def concatenate(w: Lowering, c: Call) -> Name:
    wanted = element(c.result.dtype)
    # PyTorch ignores empty vectors here.
    parts = [value for value in c["tensors"] if list(fake(value).shape) != [0]]
    axis = c.get("dim", 0) % c.result.dim()
    return w.graph.add("Concat", [w.read_as(value, wanted) for value in parts], axis=axis)


@rule("stack")
def stack(w: Lowering, c: Call) -> Name:
    axis = c.get("dim", 0) % c.result.dim()
    wanted = element(c.result.dtype)
    parts = [w.graph.add("Unsqueeze", [w.read_as(value, wanted), w.vector(axis)]) for value in c["tensors"]]
    return w.graph.add("Concat", parts, axis=axis)


@rule("split", "chunk", "split_with_sizes", "unbind")
def split(w: Lowering, c: Call) -> Name:
    axis = c.get("dim", 0) % fake(c["self"]).dim()
    if c.name == "unbind":
        sizes = [1] * len(c.result)
    else:
        sizes = [part.shape[axis] for part in c.result]
    if not all(isinstance(size, int) for size in sizes):
        raise Unsupported("the axis of the batch")
    parts = w.graph.add_many("Split", [w.read(c["self"]), w.graph.constant(sizes, np.int64)], len(sizes), axis=axis)
    return [w.graph.add("Squeeze", [part, w.vector(axis)]) for part in parts] if c.name == "unbind" else parts


@rule("slice")
def slice_(w: Lowering, c: Call) -> Name:
    axis = c["dim"] % fake(c["self"]).dim()
    start, end = (0 if c["start"] is None else c["start"]), (END if c["end"] is None else c["end"])
    if isinstance(start, int) and isinstance(end, int) and start == 0 and end >= END and c["step"] == 1:
        return w.read(c["self"])
    return w.sliced(w.read(c["self"]), axis, start, end, c["step"])


@rule("narrow")
def narrow(w: Lowering, c: Call) -> Name:
    start, length = c["start"], c["length"]
    if not isinstance(start, int) or not isinstance(length, int):
        raise Unsupported("a range that follows from the batch")
    return w.sliced(w.read(c["self"]), c["dim"] % fake(c["self"]).dim(), start, start + length)


@rule("select")
def select(w: Lowering, c: Call) -> Name:
    return w.graph.add("Gather", [w.read(c["self"]), w.read(c["index"])], axis=c["dim"] % fake(c["self"]).dim())


@rule("index_select")
def index_select(w: Lowering, c: Call) -> Name:
    return w.graph.add("Gather", [w.read(c["self"]), w.read(c["index"])], axis=c["dim"] % fake(c["self"]).dim())


@rule("flip")
def flip(w: Lowering, c: Call) -> Name:
    value = w.read(c["self"])
    for axis in c["dims"]:
        value = backwards(w, value, axis % c.result.dim(), c.result.shape[axis])
    return value


def backwards(w: Lowering, value: str, axis: int, size: Any) -> str:
    """An axis in the opposite order."""
    if not isinstance(size, int):
        raise Unsupported("the axis of the batch")
    return w.graph.add("Gather", [value, w.graph.constant(list(range(size))[::-1], np.int64)], axis=axis)


@rule("roll")
def roll(w: Lowering, c: Call) -> Name:
    value, shape = w.read(c["self"]), c.result.shape
    if not c["dims"]:
        raise Unsupported("of all axes at once")
    for shift, axis in zip(c["shifts"], c["dims"], strict=False):
        axis %= len(shape)
        if not isinstance(shape[axis], int):
            raise Unsupported("the axis of the batch")
        at = -shift % shape[axis]
        parts = [w.sliced(value, axis, at, END), w.sliced(value, axis, 0, at)]
        value = w.graph.add("Concat", parts, axis=axis) if at else value
    return value


@rule("pad", "constant_pad_nd")
def pad(w: Lowering, c: Call) -> Name:
    if c.get("mode", "constant") != "constant":
        raise Unsupported(f"mode={c['mode']!r}")
    # Pairs of lengths before and behind, from the last axis to the first; ONNX wants them from the first axis on.
    lengths, rank = list(c["pad"]), c.result.dim()
    before, behind = ([0] * (rank - len(lengths) // 2) + lengths[start::2][::-1] for start in (0, 1))
    wanted = element(c.result.dtype)
    inputs = [
        w.read(c["self"]),
        w.graph.constant(before + behind, np.int64),
        w.graph.constant(c.get("value") or 0, wanted),
    ]
    return w.graph.add("Pad", inputs, mode="constant")


# Numbers that follow from shapes.


@rule("sym_size")
def sym_size(w: Lowering, c: Call) -> Name:
    rank = fake(c["self"]).dim()
    axis = c["dim"] % rank
    return w.graph.add("Squeeze", [w.size(w.read(c["self"]), axis), w.vector(0)])


@rule("sym_mul", "sym_add", "sym_sub", "sym_floordiv")
def sym_arithmetic(w: Lowering, c: Call) -> Name:
    kind = {"sym_mul": "Mul", "sym_add": "Add", "sym_sub": "Sub", "sym_floordiv": "Div"}[c.name]
    return w.graph.add(kind, [w.read(value) for value in c.node.args])


@rule("arange")
def arange(w: Lowering, c: Call) -> Name:
    wanted = element(c.result.dtype)
    start, step = c.get("start", 0), c.get("step", 1)
    return w.graph.add(
        "Range",
        [
            w.read_as(0 if start is None else start, wanted),
            w.read_as(c["end"], wanted),
            w.read_as(1 if step is None else step, wanted),
        ],
    )


FILLED = ("zeros", "ones", "full", "scalar_tensor", "empty", "new_zeros", "new_ones", "new_full", "new_empty")


@rule(*FILLED, *(f"{name}_like" for name in ("zeros", "ones", "full", "empty")), "fill", "zero")
def filled(w: Lowering, c: Call) -> Name:
    """A tensor of one number. What `empty` returns is overwritten before anybody reads it."""
    value = 1 if "ones" in c.name else c.get("fill_value", c.get("value", c.get("s")))
    if isinstance(value, fx.Node):
        raise Unsupported("with a computed number")
    wanted = element(c.result.dtype)
    size = c.get("size")
    if size is not None:
        shape = w.dims(size)
    elif c.name == "scalar_tensor":
        return w.graph.constant(value, wanted)
    else:
        shape = w.graph.add("Shape", [w.read(c["self"])])
    return w.graph.add("ConstantOfShape", [shape], value=np.array([value or 0], wanted))


# Choosing and looking up.


@rule("embedding")
def embedding(w: Lowering, c: Call) -> Name:
    ids = w.read(c["indices"])
    rows = w.graph.add("Gather", [w.read(c["weight"]), ids], axis=0)
    padding = c.get("padding_idx", -1)
    if padding < 0:
        return rows
    # The row of the padding is used as it is, and gets no gradient.
    is_padding = w.graph.add("Equal", [ids, w.graph.constant(padding, element_of(c["indices"]))])
    is_padding = w.graph.add("Unsqueeze", [is_padding, w.graph.constant([-1], np.int64)])
    return w.graph.add("Where", [is_padding, w.graph.add("Detach", [rows], domain=ANNULUS), rows])


@rule("gather")
def gather(w: Lowering, c: Call) -> Name:
    return w.graph.add("GatherElements", [w.read(c["self"]), w.read(c["index"])], axis=c["dim"] % fake(c["self"]).dim())


@rule("index")
def index(w: Lowering, c: Call) -> Name:
    indices = list(c["indices"])
    axes = [at for at, value in enumerate(indices) if value is not None]
    if any(fake(indices[axis]).dtype == torch.bool for axis in axes):
        raise Unsupported("by a mask, so that the result's shape follows from the data")
    source = w.read(c["self"])
    if len(axes) == 1:
        return w.graph.add("Gather", [source, w.read(indices[axes[0]])], axis=axes[0])
    if axes != list(range(len(axes))):
        raise Unsupported("by several tensors that do not begin with the first axis")
    if element_of(c["self"]) is not np.float32:
        return w.graph.add("Index", [source, *(w.read(value) for value in indices)], domain=ANNULUS)
    # As one index into the leading axes laid out as one.
    sizes = fake(c["self"]).shape
    place = w.read(indices[0])
    for axis in axes[1:]:
        if not isinstance(sizes[axis], int):
            raise Unsupported("the axis of the batch")
        place = w.graph.add("Mul", [place, w.graph.constant(sizes[axis], np.int64)])
        place = w.graph.add("Add", [place, w.read(indices[axis])])
    return w.graph.add("Gather", [reshaped(w, source, [-1, *sizes[len(axes) :]]), place], axis=0)
