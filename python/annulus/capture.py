"""Records a model and its loss as a training graph of PyTorch."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from torch import fx
from torch.nn.modules.module import register_module_forward_pre_hook

from . import draws, experts
from .arithmetic import keep_probability
from .errors import ExportError
from .lowering import HERE
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
            with _quietly(), _recordable():
                program = torch.export.export(module, tensors, dynamic_shapes=dynamic)
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(_why(module, tensors, error)) from error
    draws.rewrite(program, _is_dropout)
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
def _recordable() -> Iterator[None]:
    """Keeps PyTorch's own layers from what cannot be recorded."""
    # A transformer compares its mask with a causal one to choose a faster way, which is a branch on values.
    faster = mock.patch("torch.nn.modules.transformer._detect_is_causal_mask", _is_causal)
    with faster, mock.patch.object(torch._VF, "_pack_padded_sequence", _pack), experts.recordable():
        yield


def _pack(*_: object) -> None:
    told = "packed sequences have a shape that depends on their lengths: pad them, and mask the loss"
    raise ExportError(told + _line_of(traceback.extract_stack()[:-1]))


def _is_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return bool(is_causal)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the listings that PyTorch prints when it cannot record a model."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _why(module: torch.nn.Module, tensors: Sequence[torch.Tensor], error: Exception) -> str:
    """What is wrong with a model that cannot be recorded: with itself, or with what it asks of the recorder."""
    failure = _failure(module, tensors)
    if failure is not None:
        return failure
    told = str(error).strip()
    if (
        "specialized it to be a constant" in told
        or "ConstraintViolation" in type(error).__name__
        or "Constraints violated" in told
    ):
        return (
            "the model or its loss turns the size of the batch into a constant, such as by a matrix of all pairs of "
            "samples, or by len(x) in place of x.shape[0]. Each sample must have a loss of its own" + _line(error)
        )
    if "data-dependent" in told or "Dynamic" in type(error).__name__:
        return (
            "torch.export cannot record a branch or a shape that depends on values: use torch.where, or a mask that keeps "
            "the shape" + _line(error)
        )
    return f"torch.export cannot record the model: {told.splitlines()[0] if told else type(error).__name__}" + _line(error)


def _failure(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> str | None:
    """How a model fails on these samples without a recorder; None if it does not, or cannot be tried."""
    try:
        trial, entered = copy.deepcopy(module), [""]
    except Exception:
        # It has kept tensors of the recorder, such as losses for a log.
        return None
    names = {inner: name for name, inner in trial.named_modules()}
    hook = register_module_forward_pre_hook(lambda inner, _: entered.append(names.get(inner, "")))
    try:
        with torch.no_grad():
            trial(*tensors)
    except Exception as own:
        path = entered[-1].removeprefix(PREFIX)
        shapes = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors)
        told = str(own).strip().split("\n")[0]
        where = f" in {path}" if path and path != "model" else ""
        return f"the model fails on these samples{where}: {type(own).__name__}: {told}. The batch is {shapes}" + _line(own)
    finally:
        hook.remove()
    return None


def _line(error: BaseException) -> str:
    """The user's line that an error comes from."""
    return _line_of(traceback.extract_tb(error.__traceback__))


def _line_of(frames: Sequence[traceback.FrameSummary]) -> str:
    own = [frame for frame in frames if "site-packages" not in frame.filename and not frame.filename.startswith((HERE, "<"))]
    return f"\n  {own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""


def _is_dropout(node: fx.Node) -> bool:
    """Whether an operation draws the zeros and ones of a dropout, which has a rule of its own."""
    later = [user for value in node.users for user in value.users]
    return keep_probability(node) is not None or any(keep_probability(user) is not None for user in later)


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
