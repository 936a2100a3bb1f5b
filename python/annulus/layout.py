"""Rules for layout: shapes, parts of tensors, looking up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import fx

from .graph import ANNULUS
from .lowering import END, Call, Lowering, Name, Refused, Rules, Unsupported, element, element_of, fake

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
    if c.name == "detach" and w.is_learned(source):
        return w.graph.add("Detach", [name], domain=ANNULUS)
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
    # The program has no empty tensors, and PyTorch ignores empty vectors here.
    parts = [value for value in c["tensors"] if 0 not in [size for size in fake(value).shape if isinstance(size, int)]]
    axis = c.get("dim", 0) % c.result.dim()
    return w.graph.add("Concat", [w.read_as(value, wanted) for value in parts], axis=axis)


@rule("stack")
def stack(w: Lowering, c: Call) -> Name:
    axis = c.get("dim", 0) % c.result.dim()
    wanted = element(c.result.dtype)
    parts = [w.graph.add("Unsqueeze", [w.read_as(value, wanted), w.vector(axis)]) for value in c["tensors"]]
    return w.graph.add("Concat", parts, axis=axis)


@rule("split", "chunk", "split_with_sizes", "unbind", "unsafe_chunk", "unsafe_split")
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


@rule("unfold")
def unfold(w: Lowering, c: Call) -> Name:
    axis, size, step = c["dimension"] % fake(c["self"]).dim(), c["size"], c["step"]
    length, rank = fake(c["self"]).shape[axis], c.result.dim()
    if not isinstance(length, int):
        raise Unsupported("the axis of the batch")
    places = np.arange(0, length - size + 1, step)[:, None] + np.arange(size)
    windows = w.graph.add("Gather", [w.read(c["self"]), w.graph.constant(places)], axis=axis)
    # Each window's elements come last.
    order = [at for at in range(rank) if at != axis + 1] + [axis + 1]
    return w.graph.add("Transpose", [windows], perm=order)


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


@rule("select_scatter")
def select_scatter(w: Lowering, c: Call) -> Name:
    axis = c["dim"] % c.result.dim()
    return w.with_entry(w.read(c["self"]), c.result, axis, c["index"], w.read(c["src"]))


@rule("slice_scatter")
def slice_scatter(w: Lowering, c: Call) -> Name:
    if c["step"] != 1:
        raise Unsupported("a range with gaps")
    axis = c["dim"] % c.result.dim()
    return w.with_range(w.read(c["self"]), c.result, axis, c["start"], c["end"], w.read(c["src"]))


@rule("pad", "constant_pad_nd")
def pad(w: Lowering, c: Call) -> Name:
    # Pairs of lengths before and behind, from the last axis to the first; ONNX wants them from the first axis on.
    lengths, rank, value = list(c["pad"]), c.result.dim(), w.read(c["self"])
    before, behind = ([0] * (rank - len(lengths) // 2) + lengths[start::2][::-1] for start in (0, 1))
    mode, shape = c.get("mode", "constant"), fake(c["self"]).shape
    for axis in range(rank):
        first, last = before[axis], behind[axis]
        if mode != "constant" and (first or last):
            if not isinstance(shape[axis], int):
                raise Unsupported("the axis of the batch")
            places = PLACES[mode](np.arange(-first, shape[axis] + last), shape[axis])
            value = w.graph.add("Gather", [value, w.graph.constant(places, np.int64)], axis=axis)
        elif first < 0 or last < 0:
            value = w.sliced(value, axis, max(-first, 0), min(last, 0) or END)
    if mode != "constant":
        return value
    widths = [max(width, 0) for width in before + behind]
    inputs = [value, w.graph.constant(widths, np.int64), w.graph.constant(c.get("value") or 0, element(c.result.dtype))]
    return w.graph.add("Pad", inputs, mode="constant") if any(widths) else value


#: Which place of an axis stands at each place of the wider one, by the way of padding.
PLACES: dict[str, Any] = {
    "reflect": lambda at, size: size - 1 - np.abs(size - 1 - np.abs(at)),
    "replicate": lambda at, size: np.clip(at, 0, size - 1),
    "circular": lambda at, size: at % size,
}


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


@rule("embedding_bag")
def embedding_bag(w: Lowering, c: Call) -> Name:
    # Rows of equal length, which PyTorch lays out one after the other.
    source, starts = c["indices"], c["offsets"]
    step = Call(starts).get("step") if isinstance(starts, fx.Node) and Call(starts).name == "arange" else None
    if not isinstance(step, int) or c["per_sample_weights"] is not None:
        raise Refused("of bags of several lengths, or with weights: pad them, and use an embedding")
    rows = w.graph.add("Gather", [w.read(c["weight"]), w.graph.add("Reshape", [w.read(source), w.dims([-1, step])])], axis=0)
    kind = ("ReduceSum", "ReduceMean", "ReduceMax")[c["mode"]]
    return [w.graph.add(kind, [rows, w.vector(1)], keepdims=0), None, None, None]


@rule("gather")
def gather(w: Lowering, c: Call) -> Name:
    return w.graph.add("GatherElements", [w.read(c["self"]), w.read(c["index"])], axis=c["dim"] % fake(c["self"]).dim())


@rule("index", "_unsafe_index")
def index(w: Lowering, c: Call) -> Name:
    indices = list(c["indices"])
    axes = [at for at, value in enumerate(indices) if value is not None]
    if any(fake(indices[axis]).dtype == torch.bool for axis in axes):
        raise Refused("by a mask, so that the result's shape follows from the data")
    source, sizes = w.read(c["self"]), list(fake(c["self"]).shape)
    if len(axes) == 1:
        return w.graph.add("Gather", [source, w.read(indices[axes[0]])], axis=axes[0])
    # The axes that are indexed come first.
    order = axes + [axis for axis in range(len(sizes)) if axis not in axes]
    if order != sorted(order):
        source = w.graph.add("Transpose", [source], perm=order)
    sizes = [sizes[axis] for axis in order]
    chosen = [indices[axis] for axis in axes]
    if element_of(c["self"]) is not np.float32:
        made = w.graph.add("Index", [source, *(w.read(value) for value in chosen)], domain=ANNULUS)
    else:
        flat = reshaped(w, source, [whole(sizes[: len(axes)]), *sizes[len(axes) :]])
        made = w.graph.add("Gather", [flat, joint_place(w, chosen, sizes)], axis=0)
    if axes[-1] - axes[0] + 1 == len(axes) and axes[0] > 0:
        # Neighbours are replaced where they were; what the indices give has these axes.
        given = c.result.dim() - (len(sizes) - len(axes))
        back = [*range(given, given + axes[0]), *range(given), *range(given + axes[0], c.result.dim())]
        made = w.graph.add("Transpose", [made], perm=back)
    return made


def whole(sizes: list[Any]) -> Any:
    """The product of these sizes, or -1 if one of them follows from the batch."""
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else -1


def joint_place(w: Lowering, indices: list[Any], sizes: list[Any]) -> str:
    """Several indices into leading axes as one into these axes laid out as one."""
    place = w.read(indices[0])
    for value, size in zip(indices[1:], sizes[1:], strict=False):
        if not isinstance(size, int):
            raise Unsupported("the axis of the batch")
        place = w.graph.add("Mul", [place, w.graph.constant(size, np.int64)])
        place = w.graph.add("Add", [place, w.read(value)])
    return place


# Sums by index, and writing by index.


def summed(w: Lowering, c: Call, into: str, added: str, index: str) -> str:
    return w.graph.add("ScatterElements", [into, index, added], axis=c["dim"] % c.result.dim(), reduction="add")


def like(w: Lowering, value: str, number: float) -> str:
    """A tensor of the same shape, of one number."""
    return w.graph.add("ConstantOfShape", [w.graph.add("Shape", [value])], value=np.array([number], np.float32))


@rule("scatter_add", "scatter", "scatter_reduce")
def scatter(w: Lowering, c: Call) -> Name:
    into, index = w.read(c["self"]), w.read(c["index"])
    source = c.get("src") if c.get("src") is not None else c["value"]
    reduce = "sum" if c.name == "scatter_add" else c.get("reduce") or "none"
    if reduce not in ("sum", "mean", "none", "add"):
        raise Unsupported(f"reduce={reduce!r}")
    ones = like(w, index, 1.0)
    if isinstance(source, fx.Node) and fake(source).dim():
        if [*map(str, fake(source).shape)] != [*map(str, fake(c["index"]).shape)]:
            raise Unsupported("of fewer indices than elements")
        added = w.read_as(source, np.float32)
    else:
        added = w.graph.add("Mul", [ones, w.read_as(source, np.float32)])
    if reduce in ("sum", "add") and c.get("include_self", True):
        return summed(w, c, into, added, index)
    nothing = like(w, into, 0.0)
    total, count = summed(w, c, nothing, added, index), summed(w, c, nothing, ones, index)
    if c.get("include_self", True) and reduce == "mean":
        total, count = w.graph.add("Add", [total, into]), w.graph.add("Add", [count, w.graph.constant(1.0)])
    # Of several that are written to one place PyTorch takes any.
    some = w.graph.add("Clip", [count, w.graph.constant(1.0)])
    made = total if reduce in ("sum", "add") else w.graph.add("Div", [total, some])
    return w.graph.add("Where", [w.graph.add("Greater", [count, w.graph.constant(0.0)]), made, into])


@rule("index_add")
def index_add(w: Lowering, c: Call) -> Name:
    added = w.read_as(c["source"], np.float32)
    if c["alpha"] != 1:
        added = w.graph.add("Mul", [added, w.graph.constant(float(c["alpha"]))])
    axis = c["dim"] % c.result.dim()
    return w.graph.add("IndexAdd", [w.read(c["self"]), w.read(c["index"]), added], domain=ANNULUS, axis=axis)


@rule("index_put", "_unsafe_index_put")
def index_put(w: Lowering, c: Call) -> Name:
    into, indices = w.read_as(c["self"], np.float32), [value for value in c["indices"] if value is not None]
    if element_of(c["self"]) is not np.float32 or len(indices) != len(c["indices"]):
        raise Refused("of integers, or of another axis than the first")
    values, sizes = w.read_as(c["values"], np.float32), list(c.result.shape)
    if fake(indices[0]).dtype == torch.bool:
        if fake(c["values"]).numel() != 1 or len(indices) > 1:
            raise Refused("by a mask, so that the number of values follows from the data")
        lacking = list(range(fake(indices[0]).dim(), len(sizes)))
        mask = w.read(indices[0])
        mask = w.graph.add("Unsqueeze", [mask, w.graph.constant(lacking, np.int64)]) if lacking else mask
        return w.graph.add("Where", [mask, values, into])
    rest = sizes[len(indices) :]
    flat = reshaped(w, into, [whole(sizes[: len(indices)]), *rest])
    place = joint_place(w, indices, sizes)
    # One value for each place.
    wide = w.graph.add("Shape", [w.graph.add("Gather", [flat, place], axis=0)])
    values = reshaped(w, w.graph.add("Expand", [values, wide]), [-1, *rest])
    place = w.graph.add("Reshape", [place, w.vector(-1)])

    def added(to: str, what: str) -> str:
        return w.graph.add("IndexAdd", [to, place, what], domain=ANNULUS, axis=0)

    if c["accumulate"]:
        made = added(flat, values)
    else:
        nothing = like(w, flat, 0.0)
        count = added(nothing, like(w, values, 1.0))
        some = w.graph.add("Clip", [count, w.graph.constant(1.0)])
        written = w.graph.add("Div", [added(nothing, values), some])
        made = w.graph.add("Where", [w.graph.add("Greater", [count, w.graph.constant(0.0)]), written, flat])
    return reshaped(w, made, sizes)


@rule("one_hot")
def one_hot(w: Lowering, c: Call) -> Name:
    count = c["num_classes"]
    if count < 0:
        raise Refused("without num_classes=")
    ids = w.graph.add("Unsqueeze", [w.read(c["self"]), w.vector(-1)])
    return w.cast(w.graph.add("Equal", [ids, w.graph.constant(np.arange(count))]), np.int64)
