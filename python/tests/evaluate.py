"""Runs an exported graph with the `onnx` package's reference evaluator, with dropout off.

The evaluator is slow, knows no gradients, and was written by others: a check of what the exporter means by its files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_attention import Attention as StandardAttention
from safetensors.numpy import load_file


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Linear(OpRun):
    op_domain = "annulus"

    def _run(self, x: Any, weight: Any, bias: Any = None, outputs_first: int = 0) -> Any:
        y = x @ (weight.T if outputs_first else weight)
        return (y if bias is None else y + bias,)


class Detach(OpRun):
    op_domain = "annulus"

    def _run(self, x: Any) -> Any:
        return (x,)


class Swish(OpRun):
    op_domain = "annulus"

    def _run(self, x: Any, **_: Any) -> Any:
        return (x * sigmoid(x),)


class Index(OpRun):
    op_domain = "annulus"

    def _run(self, x: Any, *indices: Any) -> Any:
        return (x[indices],)


class Attention(OpRun):
    op_domain = "annulus"

    def _run(self, *inputs: Any, is_causal: int = 0, scale: Any = None, **_: Any) -> Any:
        # The evaluator also passes the attributes of ONNX's operation of this name.
        made = StandardAttention.eval(*inputs, is_causal=is_causal or 0, scale=scale)
        return (made[0] if isinstance(made, tuple) else made,)


class Recurrent(OpRun):
    op_domain = "annulus"

    def _run(self, x: Any, weight: Any, back: Any, bias: Any, back_bias: Any, kind: str = "lstm") -> Any:
        hidden = cell = np.zeros((x.shape[1], back.shape[1]), np.float32)
        outputs = []
        for row in x:
            ahead, behind = row @ weight.T + bias, hidden @ back.T + back_bias
            if kind == "lstm":
                enter, forget, new, leave = np.split(ahead + behind, 4, axis=1)
                cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
                hidden = sigmoid(leave) * np.tanh(cell)
            else:
                (reset, keep, new), (reset_back, keep_back, new_back) = np.split(ahead, 3, 1), np.split(behind, 3, 1)
                new = np.tanh(new + sigmoid(reset + reset_back) * new_back)
                keep = sigmoid(keep + keep_back)
                hidden = (1 - keep) * new + keep * hidden
            outputs.append(hidden)
        return (np.stack(outputs).astype(np.float32),)


def evaluate(folder: Path, samples: int) -> list[np.ndarray]:
    """The outputs for the first samples: loss, and logits if there are any."""
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        if node.op_type == "Dropout":
            # Without its last input the operation passes its input on.
            del node.input[2:]
    inputs = {name: array[:samples] for name, array in load_file(folder / "samples.safetensors").items()}
    evaluator = ReferenceEvaluator(model, new_ops=[Detach, Linear, Swish, Index, Attention, Recurrent])
    return evaluator.run(None, inputs)
