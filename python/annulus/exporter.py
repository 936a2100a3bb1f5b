"""Writes a PyTorch model, its loss and its samples as a folder that Annulus trains.

| file | content |
|---|---|
| `model.onnx` | the graph of one training step, forward, and what the program needs to know about it |
| `weights.safetensors` | initial parameters and buffers by their names in the `state_dict` |
| `samples.safetensors` | the samples; the first axis of each tensor counts them |
| `reference.safetensors` | PyTorch's gradient of a few samples, for [`check`][annulus.check]; it is not part of a run |
| `reference-2.safetensors` | the same of one sample less, if the model has operations whose slope jumps, such as ReLU |

Equal models give equal bytes in the first three.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from . import arithmetic, checking, layers, layout, losses, onnx_file, program, reference, samples
from .capture import Captured, capture
from .errors import ExportError, ProgramError
from .lowering import Call, Lowering, Problem, element, fake
from .objective import Loss, Objective
from .version import VERSION

MODEL, WEIGHTS, SAMPLES = "model.onnx", "weights.safetensors", "samples.safetensors"

#: The name of the target, or of several.
Target = str | Sequence[str] | None

#: Which parameters decay: `matrices`, `all`, or their names.
Decay = str | Sequence[str]

#: Samples whose gradient `check` compares.
CHECKED_SAMPLES = 4

#: Operations whose slope jumps.
KINKED = frozenset(
    "abs amax amin clamp clamp_max clamp_min elu hardsigmoid hardswish hardtanh leaky_relu max max_pool1d max_pool2d "
    "maximum min minimum prelu relu relu6 rrelu selu where".split()
)

#: Largest relative difference between the loss of some samples and the loss of the same samples twice, in float64.
MEAN_TOLERANCE = 1e-6

#: The target that PyTorch's cross-entropy leaves out.
IGNORED = -100

RULES = {**arithmetic.rule, **layout.rule, **layers.rule, **losses.rule}


def export(
    model: torch.nn.Module,
    example: Any = None,
    *,
    to: str | os.PathLike[str],
    loss: Loss = None,
    dataset: Any = None,
    target: Target = None,
    collate: samples.Collate = None,
    eval_dataset: Any = None,
    decay: Decay = "matrices",
    frozen_samples: bool = False,
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
        target: of samples that are mappings, the name of the target. Default: `labels` or a similar name. With several names
            the loss gets a mapping of these targets.
        collate: makes a batch from a list of samples, if they need padding.
        eval_dataset: samples that only evaluate. Without it, a run holds some of the data set out.
        decay: the parameters that weight decay is for: `"matrices"`, those with two or more axes; `"all"`; or their names.
        frozen_samples: take a data set whose samples change when they are read again, as they are read first.

    Returns:
        The folder.

    At the end the program reads the folder and computes one step, if it is installed. So what is exported can be trained.

    Raises:
        ExportError: an operation is not supported, the loss is not a mean over the samples, or the samples do not fit.
            The message names all operations that are not supported, the modules that use them, and the lines of your code.
    """
    if dataset is not None and not frozen_samples:
        samples.refuse_random(dataset)
    exported = write(
        model,
        example,
        to=to,
        loss=loss,
        dataset=dataset,
        target=target,
        collate=collate,
        eval_dataset=eval_dataset,
        decay=decay,
    )
    try:
        program.find()
    except ProgramError:
        return exported.folder
    with exported.explained():
        checking.gradient(exported.folder, "cpu", exported.checked)
    return exported.folder


@dataclass(frozen=True)
class Exported:
    """A folder that the program has not read yet."""

    folder: Path
    #: How many of its samples have a reference.
    checked: int
    #: The user's lines by the names of the operations.
    sources: dict[str, str]

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Tells the user's line of code where the program cannot compute an operation."""
        try:
            yield
        except ProgramError as error:
            told = str(error).removeprefix("error: ")
            named = re.search(r"node\s+`([^`]+)`", told)
            source = self.sources.get(re.sub(r"\s+", "", named[1]), "") if named else ""
            raise ExportError(f"Annulus cannot train this model: {told}" + (f"\n  {source}" if source else "")) from None


def write(
    model: torch.nn.Module,
    example: Any,
    *,
    to: str | os.PathLike[str],
    loss: Loss,
    dataset: Any,
    target: Target,
    collate: samples.Collate,
    eval_dataset: Any = None,
    decay: Decay = "matrices",
) -> Exported:
    """Writes the folder, as `export` does, without the program."""
    if example is None and dataset is None:
        raise ExportError("give an example batch or a data set")
    columns, keys, evaluated = samples.with_evaluation(example if dataset is None else dataset, eval_dataset, collate)
    if example is None:
        batch = [column[:CHECKED_SAMPLES] for column in columns]
    else:
        batch, keys = samples.arrays(example)
    if len(batch) != len(columns):
        raise ExportError(f"the example has {len(batch)} inputs, and the data set has {len(columns)}")
    # A batch of one would be taken for a constant.
    batch = [samples.widened(np.concatenate([column, column]) if len(column) == 1 else column) for column in batch]
    names, places = names_of_inputs(model, keys, len(batch), loss, target)
    captured = capture(Objective(model, loss, keys, places), batch)
    if loss == "cross_entropy" and places:
        _check_classes(captured, columns[places[0]])
    graph = _lower(captured, names, decayed_of(model, captured.trained, decay))
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: samples.array(captured.value(source), name) for name, source in graph.weights.items()}
    save_file(weights, folder / WEIGHTS)
    (folder / MODEL).write_bytes(graph.to_bytes(_offsets(folder / WEIGHTS)))
    # The last ones only evaluate.
    facts = {"evaluated": str(evaluated)} if eval_dataset is not None else None
    save_file({value.name: column for value, column in zip(graph.inputs, columns, strict=True)}, folder / SAMPLES, facts)
    few = [samples.widened(column[: min(CHECKED_SAMPLES, len(column) - evaluated)]) for column in columns]
    exact = _write_reference(captured, few, folder / checking.REFERENCE)
    _check_mean(captured, few, exact.loss)
    # Of one sample less, where the first may stand at a kink.
    fewer = [column[:-1] for column in few]
    (folder / checking.SECOND_REFERENCE).unlink(missing_ok=True)
    if len(fewer[0]) > 0 and _has_kinks(captured):
        _write_reference(captured, fewer, folder / checking.SECOND_REFERENCE)
    return Exported(folder, len(few[0]), graph.sources)


def decayed_of(model: torch.nn.Module, trained: Sequence[str], decay: Decay) -> list[str] | None:
    """The trained parameters that decay; None if they are those with two or more axes."""
    own = dict(model.named_parameters(remove_duplicate=False))
    matrices = [name for name in trained if own[name].dim() > 1]
    if isinstance(decay, str):
        known = {"matrices": matrices, "all": list(trained)}
        if decay not in known:
            raise ExportError(f'decay={decay!r} is not possible: give "matrices", "all", or a list of parameters\' names')
        decayed = known[decay]
    else:
        unknown = [name for name in decay if name not in own]
        if unknown:
            raise ExportError(f"decay= names {', '.join(unknown)}, and the model has no such parameter")
        # Tied ones have several names.
        chosen = {id(own[name]) for name in decay}
        decayed = [name for name in trained if id(own[name]) in chosen]
    return None if decayed == matrices else decayed


def names_of_inputs(
    model: torch.nn.Module, keys: Sequence[str] | None, count: int, loss: Loss, target: Target
) -> tuple[list[str], list[int]]:
    """The names of a model's inputs, and which of them are targets."""
    if isinstance(loss, type):
        raise ExportError(f"the loss is a class: pass an instance, loss={loss.__name__}()")
    if any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()]):
        raise ExportError("the model's tensors have no values, since they are on the device `meta`: load the weights first")
    if keys is None:
        if loss is None:
            _check_inputs(model, count)
            return samples.positional_names(model, count), []
        if count < 2:
            raise ExportError("a sample needs inputs and a target")
        _check_inputs(model, count - 1)
        own = samples.positional_names(model, count - 1)
        return [*own, "target" if "target" not in own else "target_"], [count - 1]
    if loss is None:
        _check_keys(model, keys)
        return list(keys), []
    if target is None:
        target = next((name for name in samples.TARGETS if name in keys), ())
    targets = [target] if isinstance(target, str) else list(target)
    if not targets or not set(targets) <= set(keys):
        raise ExportError(f"which of {', '.join(keys)} is the target? Pass target=, a name or several")
    if len(targets) > 1 and isinstance(loss, str):
        raise ExportError(f"loss={loss!r} takes one target: for {' and '.join(targets)} pass a function of outputs and targets")
    _check_keys(model, [key for key in keys if key not in targets])
    return list(keys), [keys.index(name) for name in targets]


def _check_inputs(model: torch.nn.Module, count: int) -> None:
    """Fails if the model's `forward` does not take so many inputs by position."""
    try:
        inspect.signature(model.forward).bind(*range(count))
    except TypeError as error:
        raise ExportError(
            f"the samples give the model {count} input{'' if count == 1 else 's'}, and its forward says: {error}. If the last "
            "entry of a sample is the target, pass loss="
        ) from None


def _check_keys(model: torch.nn.Module, keys: Sequence[str]) -> None:
    """Fails if the model's `forward` does not take inputs of these names."""
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**dict.fromkeys(keys))
    except TypeError as error:
        taken = ", ".join(signature.parameters)
        raise ExportError(
            f"the samples have {', '.join(keys)}, and the model's forward takes {taken}: {error}. Rename the samples' keys"
        ) from None


def _check_classes(captured: Captured, targets: np.ndarray) -> None:
    """Fails if a target is none of the classes that the logits have."""
    logits = next(node for node in captured.program.graph.nodes if node.op == "output").args[0][1]
    if logits is None or targets.dtype.kind not in "iu":
        return
    shape = fake(logits).shape
    classes = shape[-1] if len(shape) == targets.ndim + 1 and [*shape[1:-1]] == [*targets.shape[1:]] else shape[1]
    targets = samples.widened(targets)
    wrong = targets[((targets < 0) & (targets != IGNORED)) | (targets >= classes)]
    if wrong.size:
        raise ExportError(f"a target is {wrong[0]}, and the model returns {classes} logits: classes are 0 to {classes - 1}")


@dataclass(frozen=True)
class _Lowered:
    """A graph, ready to be written."""

    nodes: list[onnx_file.Node]
    inputs: list[onnx_file.Value]
    outputs: list[onnx_file.Value]
    #: The stored tensors by their names, with the program's names.
    weights: dict[str, str]
    metadata: dict[str, str]
    sources: dict[str, str]

    def to_bytes(self, places: Mapping[str, onnx_file.External]) -> bytes:
        weights = [places[name] for name in self.weights]
        return onnx_file.model(self.nodes, self.inputs, self.outputs, weights, self.metadata, ("annulus", VERSION))


def _lower(captured: Captured, names: Sequence[str], decayed: Sequence[str] | None) -> _Lowered:
    """Turns a training graph into an ONNX graph. `names`: those of the inputs."""
    program, walk = captured.program, Lowering(RULES)
    taken, given = set(captured.names.values()), iter(names)
    changed = captured.changed_buffers()
    inputs: list[onnx_file.Value] = []
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        source = captured.input_name(node)
        if source is None:
            inputs.append(_value(_free(next(given), taken), fake(node)))
            walk.bind(node, inputs[-1].name, learned=False)
        else:
            name = captured.names[source]
            is_fixed = node.name not in program.graph_signature.inputs_to_parameters and source not in changed
            static = captured.value(source) if is_fixed else None
            walk.bind(node, name, learned=name in captured.trained, static=static)
    made = walk.run(program.graph, program.graph_module)
    if walk.problems:
        raise ExportError(_tell(walk.problems))
    values = next(node for node in program.graph.nodes if node.op == "output").args[0]
    outputs = []
    for name, inner, value in zip(("loss", "logits"), made, values, strict=False):
        outputs.append(_value(_free(name, taken), fake(value)))
        walk.graph.output(inner, outputs[-1].name)
    nodes = walk.graph.needed_for([*(output.name for output in outputs), *walk.updates.values()])
    used = {name for node in nodes for name in node.inputs}
    metadata = {
        "annulus.trained": "\n".join(name for name in captured.trained if name in used),
        **({} if decayed is None else {"annulus.decayed": "\n".join(name for name in decayed if name in used)}),
        "annulus.inputs": "\n".join(value.name for value in inputs),
        "annulus.torch": torch.__version__.split("+")[0],
        "annulus.exporter": VERSION,
        **{f"annulus.{kind}": output.name for kind, output in zip(("loss", "logits"), outputs, strict=False)},
    }
    weights: dict[str, str] = {}
    for source, name in captured.names.items():
        if name in used:
            weights.setdefault(name, source)
    return _Lowered(nodes, inputs, outputs, weights, metadata, walk.graph.sources)


def _value(name: str, like: torch.Tensor) -> onnx_file.Value:
    """An input or output with the type and shape of a fake tensor; `N` is the size of the batch."""
    shape = tuple(size if isinstance(size, int) else "N" for size in like.shape)
    return onnx_file.Value(name, onnx_file.ELEMENT_TYPES[np.dtype(element(like.dtype)).name], shape)


def _free(name: str, taken: set[str]) -> str:
    """A name that no other value has."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


#: What to write instead of an operation, by how its name begins.
INSTEAD = {
    "aten.index (by a mask": "keep the shape: torch.where(mask, x, 0), or multiply by the mask and divide by its sum",
    "aten.index_put (by a mask": "torch.where(mask, values, x)",
    "aten.masked_select": "keep the shape: multiply by the mask and divide by its sum",
    "aten.nonzero": "torch.where(mask, x, 0), which keeps the shape",
    "aten.unique": "compute it before training, as a column of the samples",
    "aten.one_hot": "pass num_classes=",
    "aten.lstm (of packed": "pad the sequences, and mask the loss",
    "aten.gru (of packed": "pad the sequences, and mask the loss",
    "aten.fft": "compute the transform before training, as a column of the samples",
    "aten._fft": "compute the transform before training, as a column of the samples",
    "aten.multinomial": "Gumbel noise and argmax: (logits - torch.log(-torch.log(torch.rand_like(logits)))).argmax(-1)",
}


def _tell(problems: Mapping[str, Problem]) -> str:
    lines = []
    for name, problem in sorted(problems.items()):
        lines.append(f"  {name} in {', '.join(sorted(problem.modules))}")
        instead = next((advice for start, advice in INSTEAD.items() if name.startswith(start)), None)
        lines += [f"    {line}" for line in (problem.source, instead and f"instead: {instead}") if line]
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


def _write_reference(captured: Captured, columns: Sequence[np.ndarray], path: Path) -> reference.Result:
    """PyTorch's gradient in float64, and how far its own float32 is from that."""
    exact = reference.compute(captured, columns, torch.float64)
    single = reference.compute(captured, columns, torch.float32)
    if not np.isfinite(exact.loss):
        raise ExportError(f"the loss of the first {len(columns[0])} samples is {exact.loss}")
    tensors = {name: np.asarray(value, np.float32) for name, value in exact.gradient.items()}
    facts = {
        "samples": str(len(columns[0])),
        "loss": repr(exact.loss),
        "torch_error": repr(exact.distance(single)),
        "torch_loss_error": repr(abs(single.loss - exact.loss) / max(abs(exact.loss), 1e-12)),
        "torch": torch.__version__,
    }
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path, facts)
    return exact


def _check_mean(captured: Captured, columns: Sequence[np.ndarray], loss: float) -> None:
    """Refuses a loss that is no mean over the samples."""
    twice = [np.concatenate([column, column]) for column in columns]
    doubled = reference.compute(captured, twice, torch.float64, batch=len(columns[0]))
    if abs(doubled.loss - loss) > MEAN_TOLERANCE * abs(loss):
        raise ExportError(
            f"the loss must be a mean over the samples: it is {loss:.6g} for {len(columns[0])} samples, and "
            f"{doubled.loss:.6g} for the same samples twice"
        )


def _has_kinks(captured: Captured) -> bool:
    """Whether a number that is rounded another way may choose another slope, as at a ReLU's 0."""
    nodes = captured.program.graph_module.graph.nodes
    return any(Call(node).name in KINKED for node in nodes if isinstance(node.target, torch._ops.OpOverload))
