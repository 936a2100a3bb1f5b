"""Mixtures of experts of Hugging Face's models, computed in a way that can be recorded.

Those models sort the tokens by their experts, so the shapes depend on values. Here each expert computes each token, and the
weights of those that the router has not chosen are zero. That costs the processor as many times more as there are experts for
each one chosen, and no memory for copies of the weights.
"""

from __future__ import annotations

import contextlib
import sys
from unittest import mock

import torch


def recordable() -> contextlib.AbstractContextManager[object]:
    """Makes these models take `forward` while it is open. Nothing to do if no such model can be there."""
    moe = sys.modules.get("transformers.integrations.moe")
    interface = getattr(moe, "ExpertsInterface", None)
    if interface is None:
        return contextlib.nullcontext()
    return mock.patch.object(interface, "get_interface", lambda *_: forward)


def forward(experts: torch.nn.Module, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What the experts make of `hidden` [tokens, width]: `chosen` and `weights` [tokens, k] say whose results count how much.

    The attributes of `experts` are those that Transformers gives such a module.
    """
    up = "gate_up" if experts.has_gate else "up"
    made = _linear(experts, f"{up}_proj", hidden.unsqueeze(0).expand(experts.num_experts, -1, -1))
    made = experts._apply_gate(made) if experts.has_gate else experts.act_fn(made)
    made = _linear(experts, "down_proj", made)
    if experts.has_post_expert_norm:
        made = experts.post_expert_norm(made)
    is_chosen = chosen.unsqueeze(-1) == torch.arange(experts.num_experts, device=chosen.device)
    share = (is_chosen.to(made.dtype) * weights.to(made.dtype).unsqueeze(-1)).sum(1)
    return (made * share.t().unsqueeze(-1)).sum(0).to(hidden.dtype)


def _linear(experts: torch.nn.Module, name: str, inputs: torch.Tensor) -> torch.Tensor:
    """A linear layer of each expert, for `inputs` [experts, tokens, width]."""
    weight = getattr(experts, name)
    made = inputs @ (weight if experts.is_transposed else weight.transpose(1, 2))
    return made + getattr(experts, f"{name}_bias").unsqueeze(1) if experts.has_bias else made
