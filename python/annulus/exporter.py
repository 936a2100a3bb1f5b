"""Writes a PyTorch model, its loss and its samples as a folder that Annulus trains.

| file | content |
|---|---|
| `model.onnx` | the graph of one training step, forward, and what the program needs to know about it |
| `weights.safetensors` | initial parameters and buffers by their names in the `state_dict` |
| `samples.safetensors` | the samples; the first axis of each tensor counts them |
| `reference.safetensors` | PyTorch's gradient of a few samples, for [`check`][annulus.check]; it is not part of a run |

Equal models give equal bytes in the first three.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from . import arithmetic, layers, layout, losses, onnx_file, reference, samples
from .errors import ExportError
from .lowering import Lowering, element, fake
from .objective import Loss, Objective
from .version import VERSION

MODEL, WEIGHTS, SAMPLES, REFERENCE = "model.onnx", "weights.safetensors", "samples.safetensors", "reference.safetensors"

#: Samples whose gradient `check` compares.
CHECKED_SAMPLES = 4

#: Largest relative difference between the loss of some samples and the loss of the same samples twice, in float64.
MEAN_TOLERANCE = 1e-6

PREFIX = "model."

RULES = {**arithmetic.rule, **layout.rule, **layers.rule, **losses.rule}


def export(
    model: torch.nn.Module,
    example: Any = None,
    *,
    to: str | os.PathLike[str],
    loss: Loss = None,
    dataset: Any = None,
    target: str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Path:
    """Writes a folder that `annulus train --task graph --data FOLDER` trains.

    Args:
        model: the model. If it is in evaluation mode, it is exported in training mode, with dropout and batch statistics.
        example: a batch of at least two samples: a tuple (inputs, then the target) or a mapping of names to tensors.
            Without it, the first samples of `dataset` are taken.
        to: the folder. Files of an earlier export are replaced.
        loss: `"cross_entropy"`, `"mse"`, `"bce"` (with logits), or a function of the model's outputs and the targets that
            returns the mean over the batch. None if the model returns its loss, as Hugging Face models do.
        dataset: the samples to train on: a map-style data set, or a tuple or mapping of arrays. Without it, the example.
        target: of samples that are mappings, the name of the target. Default: `labels` or a similar name.
        collate: makes a batch from a list of samples, if they need padding.

    Returns:
        The folder.

    Raises:
        ExportError: an operation is not supported, the loss is not a mean over the samples, or the samples do not fit.
            The message names all operations that are not supported, and the modules that use them.
    """
    if example is None and dataset is None:
        raise ExportError("give an example batch or a data set")
    columns, keys = samples.arrays(example if dataset is None else dataset, collate)
    if example is None:
        batch = [column[:CHECKED_SAMPLES] for column in columns]
    else:
        batch, keys = samples.arrays(example)
    if len(batch) != len(columns):
        raise ExportError(f"the example has {len(batch)} inputs, and the data set has {len(columns)}")
    # A batch of one would be taken for a constant.
    batch = [np.concatenate([column, column]) if len(column) == 1 else column for column in batch]
    names, place = _names(model, keys, len(batch), loss, target)
    captured = _capture(model, Objective(model, loss, keys, place), batch)
    graph = _lower(captured, names)
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: captured.arrays[name] for name in graph.weights}
    save_file(weights, folder / WEIGHTS)
    (folder / MODEL).write_bytes(graph.to_bytes(_offsets(folder / WEIGHTS)))
    save_file(dict(zip(graph.inputs, columns, strict=False)), folder / SAMPLES)
    _write_reference(captured, [column[:CHECKED_SAMPLES] for column in columns], folder / REFERENCE)
    return folder


def _names(
    model: torch.nn.Module, keys: Sequence[str] | None, count: int, loss: Loss, target: str | None
) -> tuple[list[str], int | None]:
    """The names of the inputs, and which of them is the target."""
    if keys is None:
        if loss is None:
            return samples.positional_names(model, count), None
        if count < 2:
            raise ExportError("a sample needs inputs and a target")
        own = samples.positional_names(model, count - 1)
        return [*own, "target" if "target" not in own else "target_"], count - 1
    if loss is None:
        return list(keys), None
    if target is None:
        target = next((name for name in samples.TARGETS if name in keys), None)
    if target not in keys:
        raise ExportError(f"which of {', '.join(keys)} is the target? Pass target=")
    return list(keys), list(keys).index(target)


@dataclass
class _Captured:
    """A training graph of PyTorch, and what its inputs are in the model."""

    program: torch.export.ExportedProgram
    #: By the program's names of trained parameters: the model's name, one for tied parameters.
    trained: dict[str, str]
    #: All parameters and buffers by the model's names, as they are written.
    arrays: dict[str, np.ndarray]


def _capture(model: torch.nn.Module, objective: Objective, batch: Sequence[np.ndarray]) -> _Captured:
    tensors = [torch.from_numpy(column) for column in batch]
    with _in_training(objective) as module:
        dynamic = (tuple({0: torch.export.Dim.DYNAMIC} for _ in tensors),)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.export.export(module, tuple(tensors), dynamic_shapes=dynamic)
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
        state = {**program.state_dict, **program.constants}
        arrays = {_own(name): samples.array(value, name) for name, value in state.items() if isinstance(value, torch.Tensor)}
    signature, trained, first = program.graph_signature, {}, {}
    for name in signature.inputs_to_parameters.values():
        parameter = state[name]
        own = first.setdefault((parameter.data_ptr(), parameter.shape) if parameter.numel() else name, _own(name))
        if not parameter.requires_grad:
            continue
        if not name.startswith(PREFIX):
            raise ExportError(f"the loss has a trained parameter `{name}`: make it a part of the model")
        trained[name] = own
    if not trained:
        raise ExportError("no parameter of the model requires a gradient")
    return _Captured(program, trained, arrays)


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
        if cached:
            # A cache of keys and values is for writing text; it only adds outputs here.
            config.use_cache = False
        objective.training = True
        yield copy.deepcopy(objective).to("cpu", torch.float32) if elsewhere else objective
    finally:
        if cached:
            config.use_cache = cached
        for module, mode in modes.items():
            module.training = mode


def _own(name: str) -> str:
    """A parameter's name in the model, without the module around it."""
    return name.removeprefix(PREFIX)


@dataclass
class _Lowered:
    """A graph, ready to be written."""

    nodes: list[onnx_file.Node]
    inputs: list[str]
    shapes: list[onnx_file.Value]
    outputs: list[onnx_file.Value]
    weights: list[str]
    metadata: dict[str, str]

    def to_bytes(self, places: Mapping[str, onnx_file.External]) -> bytes:
        producer = ("annulus", VERSION)
        weights = [places[name] for name in self.weights]
        return onnx_file.model(self.nodes, self.shapes, self.outputs, weights, self.metadata, producer)


def _lower(captured: _Captured, names: Sequence[str]) -> _Lowered:
    program = captured.program
    signature, walk = program.graph_signature, Lowering(RULES)
    taken, given = set(captured.arrays), iter(names)
    mutated = _mutated_buffers(program)
    inputs: list[onnx_file.Value] = []
    bound: dict[str, str] = {}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        parameter = signature.inputs_to_parameters.get(node.name)
        name = (
            parameter
            or signature.inputs_to_buffers.get(node.name)
            or signature.inputs_to_lifted_tensor_constants.get(node.name)
        )
        if name is None:
            own = _free(next(given), taken)
            shape = tuple("N" if at == 0 else int(size) for at, size in enumerate(fake(node).shape))
            inputs.append(onnx_file.Value(own, onnx_file.ELEMENT_TYPES[np.dtype(element(fake(node).dtype)).name], shape))
            walk.bind(node, own, learned=False)
            continue
        own = captured.trained.get(name, _own(name))
        value = None if parameter or name in mutated else {**program.state_dict, **program.constants}[name]
        bound[own] = name
        walk.bind(node, own, learned=name in captured.trained, static=value)
    outputs = walk.run(program.graph, program.graph_module)
    if walk.problems:
        raise ExportError(_tell(walk.problems))
    results = [_free(name, taken) for name, _ in zip(("loss", "logits"), outputs, strict=False)]
    for made, name in zip(outputs, results, strict=False):
        walk.graph.output(made, name)
    nodes = walk.graph.needed_for([*results, *walk.updates.values()])
    used = {name for node in nodes for name in node.inputs}
    out = next(node for node in program.graph.nodes if node.op == "output").args[0]
    sizes = [tuple(size if isinstance(size, int) else "N" for size in fake(value).shape) for value in out if value is not None]
    trained = [name for name in dict.fromkeys(captured.trained.values()) if name in used]
    metadata = {
        "annulus.trained": "\n".join(trained),
        "annulus.inputs": "\n".join(value.name for value in inputs),
        "annulus.loss": results[0],
        **({"annulus.logits": results[1]} if len(results) > 1 else {}),
        "annulus.torch": torch.__version__.split("+")[0],
        "annulus.exporter": VERSION,
    }
    return _Lowered(
        nodes,
        [value.name for value in inputs],
        inputs,
        [onnx_file.Value(name, onnx_file.FLOAT, shape) for name, shape in zip(results, sizes, strict=False)],
        [name for name in bound if name in used],
        metadata,
    )


def _mutated_buffers(program: torch.export.ExportedProgram) -> set[str]:
    """Buffers that the forward pass changes, such as running statistics."""
    signature, mutated = program.graph_signature, set()
    for node in program.graph.nodes:
        name = signature.inputs_to_buffers.get(node.name)
        if name is not None:
            for user in node.users:
                target = str(user.target)
                in_place = target.startswith("aten.") and target.split(".")[1].endswith("_") and user.args[0] is node
                if in_place or target.startswith("aten.batch_norm"):
                    mutated.add(name)
    return mutated


def _free(name: str, taken: set[str]) -> str:
    """A name that no other value has."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _tell(problems: Mapping[str, set[str]]) -> str:
    lines = [f"  {name} in {', '.join(sorted(modules))}" for name, modules in sorted(problems.items())]
    return "these operations cannot be trained by Annulus yet:\n" + "\n".join(lines)


def _offsets(path: Path) -> dict[str, onnx_file.External]:
    """Where each tensor of a safetensors file lies."""
    types = {"F32": onnx_file.FLOAT, "I64": onnx_file.INT64, "BOOL": onnx_file.BOOL}
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    places = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            places[name] = onnx_file.External(name, types[entry["dtype"]], shape, path.name, 8 + length + start, end - start)
    return places


def _write_reference(captured: _Captured, columns: Sequence[np.ndarray], path: Path) -> None:
    """PyTorch's gradient in float64, and how far its own float32 is from that."""
    exact, single = (
        reference.compute(captured.program, captured.trained, columns, dtype) for dtype in (torch.float64, torch.float32)
    )
    twice = [np.concatenate([column, column]) for column in columns]
    doubled = reference.compute(captured.program, captured.trained, twice, torch.float64)
    if abs(doubled.loss - exact.loss) > MEAN_TOLERANCE * abs(exact.loss):
        raise ExportError(
            f"the loss must be a mean over the samples: it is {exact.loss:.6g} for {len(columns[0])} samples, and "
            f"{doubled.loss:.6g} for the same samples twice"
        )
    tensors = {name: np.asarray(value, np.float32) for name, value in exact.gradient.items()}
    facts = {
        "samples": str(len(columns[0])),
        "loss": repr(exact.loss),
        "torch_error": repr(exact.distance(single)),
        "torch_loss_error": repr(abs(single.loss - exact.loss) / max(abs(exact.loss), 1e-12)),
        "torch": torch.__version__,
    }
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path, facts)
