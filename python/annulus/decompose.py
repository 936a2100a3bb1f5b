"""Operations without a rule of ours, as PyTorch's own decomposition spells them out in simpler ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx


def decomposed(node: fx.Node, rules: Mapping[str, Any]) -> fx.GraphModule | None:
    """A graph whose inputs are the node's input nodes in their order; None if PyTorch has no decomposition of it."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    own: Callable[..., Any] | None = decomposition_table.get(target)
    if own is None and target._can_decompose():
        own = target.decompose
    if own is None:
        return None
    inputs = list(node.all_input_nodes)

    def apply(*values: Any) -> Any:
        by_node = dict(zip(inputs, values, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda value: by_node[value])
        return own(*args, **kwargs)

    values = [value.meta["val"] for value in inputs]
    mode = torch._guards.detect_fake_mode(values)
    if mode is None:
        return None
    # With oneDNN a recurrent layer would become a single operation of it.
    has_onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with mode:
            return make_fx(apply, decomposition_table=_table(frozenset(rules)))(*values)
    except Exception:
        # It looks at values, or at the size of the batch.
        return None
    finally:
        torch._C._set_mkldnn_enabled(has_onednn)


@functools.cache
def _table(rules: frozenset[str]) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of all operations that have no rule."""

    def name(operation: Any) -> str:
        return operation._schema.name.removeprefix("aten::").rstrip("_")

    return {
        op: own for op, own in decomposition_table.items() if isinstance(op, torch._ops.OpOverload) and name(op) not in rules
    }
