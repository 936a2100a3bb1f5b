"""Random numbers other than dropout's, such as the noise of variational and diffusion models.

The program draws them by a counter, so that all members have the same ones and a replay draws them again. Each operation that
draws becomes a call of `draw` with a stream of its own, and simple arithmetic. An evaluation has the seed 0, as the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

aten = torch.ops.aten


def draw(
    kind: str,
    stream: int,
    like: torch.Tensor | None,
    size: Sequence[int] | None,
    dtype: torch.dtype,
    batch: int | None = None,
) -> torch.Tensor:
    """What the program draws with the seed 0: `uniform` from 0 to below 1, or `normal`.

    `batch`: if the first axis counts the samples of several such batches, each gets the same numbers.
    """
    shape = tuple(like.shape if like is not None else size or ())
    if batch is not None and shape and shape[0] > batch and shape[0] % batch == 0:
        once = draw(kind, stream, None, (batch, *shape[1:]), dtype)
        return once.repeat(shape[0] // batch, *[1] * (len(shape) - 1))
    if any(isinstance(length, torch.SymInt) for length in shape) or isinstance(like, torch._subclasses.FakeTensor):
        return torch.empty(shape, dtype=dtype)
    with np.errstate(over="ignore"):
        start = scrambled(scrambled(np.array([stream + 1], np.uint64)))
        bits = scrambled(start + np.arange(int(np.prod(shape)), dtype=np.uint64))
    if kind == "uniform":
        drawn = (bits >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    else:
        one, other = ((bits >> np.uint64(32)) + np.uint64(1)) / 2.0**32, (bits & np.uint64(0xFFFFFFFF)) / 2.0**32
        drawn = (np.sqrt(-2.0 * np.log(one)) * np.cos(2 * np.pi * other)).astype(np.float32)
    return torch.from_numpy(drawn.reshape(shape)).to(dtype)


def scrambled(counter: np.ndarray) -> np.ndarray:
    """SplitMix64: from a counter to bits that look random."""
    z = counter * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class _Rewriter:
    """Replaces the operations of one graph that draw."""

    def __init__(self, first: int) -> None:
        self.streams = first

    def rewrite(self, root: torch.nn.Module, kept: Callable[[fx.Node], bool]) -> None:
        for node in list(root.graph.nodes):
            if node.op == "get_attr" and isinstance(getattr(root, node.target), fx.GraphModule):
                self.rewrite(getattr(root, node.target), kept)
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            name = node.target._schema.name.removeprefix("aten::")
            if name.rstrip("_") not in DRAWING or kept(node):
                continue
            with root.graph.inserting_before(node):
                value = DRAWING[name.rstrip("_")](self, root.graph, _arguments(node))
                if value is None:
                    continue
                wanted = node.meta["val"].dtype
                if value.meta["val"].dtype != wanted:
                    value = self.call(root.graph, aten._to_copy.default, value, dtype=wanted)
                if name.endswith("_"):
                    value = self.call(root.graph, aten.copy_.default, node.args[0], value)
            node.replace_all_uses_with(value)
            root.graph.erase_node(node)
        root.recompile()

    def call(self, graph: fx.Graph, target: Callable[..., Any], *arguments: Any, **options: Any) -> fx.Node:
        """Adds an operation, with the shape and type of its result."""
        made = graph.call_function(target, arguments, options)
        args, kwargs = fx.node.map_arg((arguments, options), lambda value: value.meta["val"])
        tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor)]
        mode = torch._guards.detect_fake_mode(tensors) if tensors else None
        if mode is None:
            mode = next(node.meta["val"].fake_mode for node in graph.nodes if _is_fake(node.meta.get("val")))
        with mode:
            made.meta["val"] = target(*args, **kwargs)
        return made

    def drawn(self, graph: fx.Graph, kind: str, given: dict[str, Any]) -> fx.Node:
        """Uniform or normal numbers in the shape that an operation asks for."""
        like = given.get("self", given.get("mean"))
        like = like if isinstance(like, fx.Node) else None
        size = None if like is not None else given.get("size")
        made = self.call(graph, draw, kind, self.streams, like, size, torch.float32)
        self.streams += 1
        return made


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch._subclasses.FakeTensor)


def _arguments(node: fx.Node) -> dict[str, Any]:
    given = {}
    for at, argument in enumerate(node.target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given[argument.name] = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, default)
    return given


def _uniform(r: _Rewriter, g: fx.Graph, c: dict[str, Any]) -> fx.Node:
    made = r.drawn(g, "uniform", c)
    low, high = c.get("from", 0.0), c.get("to", 1.0)
    if (low, high) == (0.0, 1.0):
        return made
    return r.call(g, aten.add.Tensor, r.call(g, aten.mul.Tensor, made, high - low), low)


def _normal(r: _Rewriter, g: fx.Graph, c: dict[str, Any]) -> fx.Node:
    shape = dict(c)
    if not isinstance(c.get("self", c.get("mean")), fx.Node) and isinstance(c.get("std"), fx.Node):
        shape["self"] = c["std"]
    made = r.drawn(g, "normal", shape)
    mean, std = c.get("mean", 0.0), c.get("std", 1.0)
    if isinstance(std, fx.Node) or std != 1.0:
        made = r.call(g, aten.mul.Tensor, made, std)
    return r.call(g, aten.add.Tensor, made, mean) if isinstance(mean, fx.Node) or mean != 0.0 else made


def _integers(r: _Rewriter, g: fx.Graph, c: dict[str, Any]) -> fx.Node:
    low = c.get("low") or 0
    made = r.call(g, aten.mul.Tensor, r.drawn(g, "uniform", c), float(c["high"] - low))
    return r.call(g, aten.add.Tensor, r.call(g, aten._to_copy.default, made, dtype=torch.int64), low)


def _exponential(r: _Rewriter, g: fx.Graph, c: dict[str, Any]) -> fx.Node:
    # Of 1 - u, which is never 0.
    kept = r.call(g, aten.rsub.Scalar, r.drawn(g, "uniform", c), 1.0)
    return r.call(g, aten.div.Tensor, r.call(g, aten.neg.default, r.call(g, aten.log.default, kept)), c["lambd"])


def _bernoulli(r: _Rewriter, g: fx.Graph, c: dict[str, Any]) -> fx.Node | None:
    chance = c.get("p") if c.get("p") is not None else c["self"]
    if not isinstance(chance, fx.Node):
        return None
    return r.call(g, aten.lt.Tensor, r.drawn(g, "uniform", {"self": chance}), chance)


def _permutation(r: _Rewriter, g: fx.Graph, c: dict[str, Any]) -> fx.Node:
    return r.call(g, aten.argsort.default, r.drawn(g, "uniform", {"size": [c["n"]]}))


#: How each operation that draws follows from uniform or normal numbers; None leaves it as it is.
DRAWING: dict[str, Callable[[_Rewriter, fx.Graph, dict[str, Any]], fx.Node | None]] = {
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "randn": _normal,
    "randn_like": _normal,
    "normal": _normal,
    "randint": _integers,
    "randint_like": _integers,
    "exponential": _exponential,
    "bernoulli": _bernoulli,
    "randperm": _permutation,
}


def rewrite(program: torch.export.ExportedProgram, kept: Callable[[fx.Node], bool]) -> None:
    """Replaces all operations of a program that draw, except those that are kept."""
    _Rewriter(0).rewrite(program.graph_module, kept)


def is_draw(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is draw
