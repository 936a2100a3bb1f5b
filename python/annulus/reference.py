"""The loss and the gradient as PyTorch computes them, with dropout off, in any precision.

The graph of `torch.export` runs as it is, so this is the user's model and not our reading of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from .arithmetic import keep_probability
from .capture import Captured
from .draws import draw
from .lowering import Call

#: The arguments that switch dropout off.
OFF: dict[str, dict[str, Any]] = {
    "dropout": {"train": False},
    "feature_dropout": {"train": False},
    "lstm": {"dropout": 0.0},
    "gru": {"dropout": 0.0},
    "scaled_dot_product_attention": {"dropout_p": 0.0},
}


@dataclass(frozen=True)
class Result:
    """What a pass over some samples gives."""

    loss: float
    logits: np.ndarray | None
    #: By the names of trained parameters.
    gradient: dict[str, np.ndarray]

    def distance(self, other: Result) -> float:
        """How far another gradient is from this one: the L2 norm of the difference, relative to this gradient's."""

        def squares(arrays: Iterable[np.ndarray]) -> float:
            return sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays)

        difference = squares(other.gradient[name] - own for name, own in self.gradient.items())
        size = squares(self.gradient.values())
        return float(np.sqrt(difference / size)) if size > 0 else float(np.sqrt(difference))


def compute(captured: Captured, inputs: Sequence[np.ndarray], dtype: torch.dtype, *, batch: int | None = None) -> Result:
    """Runs a captured model forward and backward.

    `batch`: the size of a batch that is here several times, so that each gets the same random numbers.
    """
    module = copy.deepcopy(captured.program.graph_module)
    _without_dropout(module, dtype, batch)
    given = iter(inputs)
    leaves: dict[str, torch.Tensor] = {}
    arguments: list[torch.Tensor] = []
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        source = captured.input_name(node)
        value = torch.from_numpy(next(given)) if source is None else captured.value(source).detach().clone()
        value = value.to(dtype) if value.is_floating_point() else value
        if source is not None and captured.names[source] in captured.trained:
            # Tied parameters have one name, and are one leaf.
            value = leaves.setdefault(captured.names[source], value.requires_grad_())
        arguments.append(value)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        loss, logits = [*fx.Interpreter(module).run(*arguments), None][:2]
    finally:
        torch.set_default_dtype(default)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    dense = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves.values(), gradients, strict=False)]
    return Result(
        loss.item(),
        None if logits is None else logits.detach().numpy(),
        {name: g.numpy() for name, g in zip(leaves, dense, strict=False)},
    )


def _without_dropout(module: fx.GraphModule, dtype: torch.dtype, batch: int | None) -> None:
    """Switches off all that is random, and computes in another type where the graph says float32."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "get_attr":
            inner = getattr(module, node.target)
            if isinstance(inner, fx.GraphModule):
                _without_dropout(inner, dtype, batch)
        if node.op == "call_function" and node.target is draw:
            node.args = (*node.args[:-1], dtype, batch)
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        call = Call(node)
        if call.name.startswith("_assert"):
            graph.erase_node(node)
            continue
        keep = keep_probability(node)
        if keep is not None:
            with graph.inserting_before(node):
                constant = graph.call_function(torch.ops.aten.full_like.default, (call["self"], keep))
            node.replace_all_uses_with(constant)
            if call.in_place:
                call["self"].replace_all_uses_with(constant, delete_user_cb=lambda user, first=constant: first < user)
            graph.erase_node(node)
        else:
            for name, value in OFF.get(call.name, {}).items():
                _set(node, name, value)
            node.args = fx.node.map_aggregate(node.args, lambda value: _wider(value, dtype))
            node.kwargs = fx.node.map_aggregate(node.kwargs, lambda value: _wider(value, dtype))
    module.recompile()


def _set(node: fx.Node, name: str, value: Any) -> None:
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.name == name and at < len(node.args):
            node.update_arg(at, value)
        elif argument.name == name and name in node.kwargs:
            node.update_kwarg(name, value)


def _wider(value: Any, dtype: torch.dtype) -> Any:
    return dtype if value is torch.float32 else value
