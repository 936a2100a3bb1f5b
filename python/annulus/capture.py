"""Records a model and its loss as a training graph of PyTorch."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx

from .errors import ExportError
from .objective import Objective

#: How the names of the model's parameters begin in the program, which has the loss around the model.
PREFIX = "model."


@dataclass(frozen=True)
class Captured:
    """A training graph of PyTorch, and what its inputs are in the model."""

    program: torch.export.ExportedProgram
    #: By the program's names of parameters and buffers: the model's names, one for tied parameters.
    names: dict[str, str]
    #: The model's names of trained parameters, in the model's order.
    trained: list[str]

    def input_name(self, node: fx.Node) -> str | None:
        """The program's name of the parameter, buffer or constant that an input stands for; None for a sample's tensor."""
        signature = self.program.graph_signature
        return (
            signature.inputs_to_parameters.get(node.name)
            or signature.inputs_to_buffers.get(node.name)
            or signature.inputs_to_lifted_tensor_constants.get(node.name)
        )

    def value(self, name: str) -> torch.Tensor:
        """The value of a parameter, buffer or constant by the program's name."""
        state = self.program.state_dict
        return state[name] if name in state else self.program.constants[name]

    def changed_buffers(self) -> set[str]:
        """The program's names of buffers that the forward pass changes, such as running statistics."""
        changed = set()
        for node in self.program.graph.nodes:
            name = self.program.graph_signature.inputs_to_buffers.get(node.name)
            for user in node.users if name else ():
                target = str(user.target)
                in_place = target.startswith("aten.") and target.split(".")[1].endswith("_") and user.args[0] is node
                if in_place or target.startswith("aten.batch_norm"):
                    changed.add(name)
        return changed


def capture(objective: Objective, batch: Sequence[np.ndarray]) -> Captured:
    """Records the loss of a batch. The size of the batch stays open.

    Raises:
        ExportError: `torch.export` cannot record the model, or there is nothing to train.
    """
    tensors = tuple(torch.from_numpy(column) for column in batch)
    dynamic = (tuple({0: torch.export.Dim.DYNAMIC} for _ in tensors),)
    with _in_training(objective) as module, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, tensors, dynamic_shapes=dynamic)
        except ExportError:
            raise
        except Exception as error:
            told = str(error).strip()
            reason = told.split("\n")[0]
            if "specialized it to be a constant" in told:
                reason = "the model or its loss turns the size of the batch into a constant"
            raise ExportError(
                f"torch.export cannot record the model: {reason}. Control flow that depends on values cannot be exported"
            ) from error
    signature, state = program.graph_signature, program.state_dict
    names: dict[str, str] = {}
    trained: list[str] = []
    first: dict[object, str] = {}
    for name in signature.inputs_to_parameters.values():
        parameter = state[name]
        # Tied parameters share their memory.
        key = (parameter.data_ptr(), parameter.shape) if parameter.numel() else name
        names[name] = first.setdefault(key, name.removeprefix(PREFIX))
        if parameter.requires_grad and not name.startswith(PREFIX):
            raise ExportError(f"the loss has a trained parameter `{name}`: make it a part of the model")
        if parameter.requires_grad and names[name] not in trained:
            trained.append(names[name])
    for name in (*signature.inputs_to_buffers.values(), *signature.inputs_to_lifted_tensor_constants.values()):
        names[name] = name.removeprefix(PREFIX)
    if not trained:
        raise ExportError("no parameter of the model requires a gradient")
    return Captured(program, names, trained)


@contextlib.contextmanager
def _in_training(objective: Objective) -> Iterator[torch.nn.Module]:
    """The module in training mode, on the CPU in float32. Afterwards the model is as it was."""
    model = objective.model
    modes = {module: module.training for module in model.modules()}
    config = getattr(model, "config", None)
    cached = getattr(config, "use_cache", None)
    elsewhere = any(
        tensor.device.type != "cpu" or (tensor.is_floating_point() and tensor.dtype != torch.float32)
        for tensor in [*model.parameters(), *model.buffers()]
    )
    try:
        if not model.training:
            model.train()
        if config is not None and cached:
            # A cache of keys and values is for writing text; it only adds outputs here.
            config.use_cache = False
        objective.training = True
        yield copy.deepcopy(objective).to("cpu", torch.float32) if elsewhere else objective
    finally:
        if config is not None and cached:
            config.use_cache = cached
        for module, mode in modes.items():
            module.training = mode
