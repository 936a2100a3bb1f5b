"""A model and its loss as one module, as the graph computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .errors import ExportError

#: The name of a loss, a function of the model's outputs and the targets, or None if the model returns its loss.
Loss = str | Callable[[Any, Any], torch.Tensor] | None


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Classes on the last axis, or on the second as PyTorch has them: whichever fits the targets."""
    if targets.is_floating_point() and targets.shape == outputs.shape[:-1]:
        raise ExportError(
            'cross_entropy takes classes, which are integers, and the targets are floats: pass targets.long(), or loss="mse" '
            "if they are numbers"
        )
    if outputs.shape[:-1] == targets.shape and not targets.is_floating_point():
        return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))
    return F.cross_entropy(outputs, targets)


def mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(_like(outputs, targets), targets)


def bce(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(_like(outputs, targets), targets.to(outputs.dtype))


def _like(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One output per sample fits targets without that axis. PyTorch would broadcast one against the other instead."""
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ExportError(
            f"the model returns {_shape(outputs)} and the targets are {_shape(targets)}: give a loss that takes both"
        )
    return outputs


def _shape(tensor: torch.Tensor) -> str:
    return "[" + ", ".join(["N", *map(str, tensor.shape[1:])]) + "]"


LOSSES: dict[str, Callable[[Any, Any], torch.Tensor]] = {"cross_entropy": cross_entropy, "mse": mse, "bce": bce}


class Objective(torch.nn.Module):
    """Takes the inputs of one batch in a fixed order; returns the loss and, if there are any, the logits.

    `keys`: the names by which the model takes its inputs, or None if it takes them by position. `targets`: which inputs are
    targets; none if the model takes them all and returns its loss.
    """

    def __init__(self, model: torch.nn.Module, loss: Loss, keys: Sequence[str] | None, targets: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.keys = None if keys is None else list(keys)
        self.targets = list(targets)
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise ExportError(f"there is no loss {loss!r}: give one of {', '.join(LOSSES)}, or a function")
            self.loss: Callable[[Any, Any], torch.Tensor] | None = LOSSES[loss]
            self.is_plain = True
        else:
            self.loss, self.is_plain = loss, False

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        given = [value for at, value in enumerate(inputs) if at not in self.targets]
        if self.keys is None:
            outputs = self.model(*given)
        else:
            keys = [key for at, key in enumerate(self.keys) if at not in self.targets]
            outputs = self.model(**dict(zip(keys, given, strict=False)))
        logits = _logits(outputs)
        if self.loss is None or not self.targets:
            return _own_loss(outputs), logits
        targets: Any = inputs[self.targets[0]]
        if self.keys is not None and len(self.targets) > 1:
            targets = {self.keys[at]: inputs[at] for at in self.targets}
        loss = self.loss(logits if self.is_plain else outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise ExportError("the loss must be one number, the mean over the samples of a batch")
        return loss, logits


def _logits(outputs: Any) -> torch.Tensor | None:
    """What a model predicts: a tensor, the field `logits` of Hugging Face models, or the first of several outputs."""
    if hasattr(outputs, "logits"):
        outputs = outputs.logits
    elif isinstance(outputs, (list, tuple)):
        outputs = next((one for one in outputs if isinstance(one, torch.Tensor) and one.dim() > 0), None)
    return outputs if isinstance(outputs, torch.Tensor) and outputs.dim() > 0 else None


def _own_loss(outputs: Any) -> torch.Tensor:
    loss = outputs.get("loss") if hasattr(outputs, "get") else getattr(outputs, "loss", outputs)
    if isinstance(loss, (list, tuple)):
        # The logits may come first.
        loss = next((one for one in loss if isinstance(one, torch.Tensor) and one.dim() == 0), None)
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise ExportError(
            'the model returns no loss: pass loss="cross_entropy", "mse", "bce" or a function of outputs and targets. '
            "Hugging Face models return one if the samples have `labels`"
        )
    return loss
