"""Founds a run of PyTorch members: with an export where the exporter takes the model, else with its first values alone."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from . import samples
from .checking import check
from .errors import AnnulusError, CheckError, ExportError
from .exporter import CHECKED_SAMPLES, WEIGHTS, Decay, Target, decayed_of, names_of_inputs, write
from .objective import Loss, Objective
from .samples import Collate

#: How far the loss of samples may be from that of the same samples twice, relative to it: rounding, in float32 and in halves. A
#: contrastive loss is off by a third.
MEAN_TOLERANCE, MEAN_TOLERANCE_OF_HALVES = 1e-3, 3e-2

#: What a run without an export is, for the line that says so.
MEANS = "so all members need PyTorch and this model: no browser tab and no `annulus join` can take part"


def found(
    model: torch.nn.Module,
    dataset: Any,
    *,
    export: bool | None,
    length: int | None,
    to: Path,
    loss: Loss,
    target: Target,
    collate: Collate,
    eval_dataset: Any,
    decay: Decay,
    checked: bool,
) -> tuple[str, Path]:
    """Writes what a run is founded with; the program's task, and the folder. `length`: samples of an epoch of a stream."""
    refused: Exception | None = None
    if isinstance(dataset, IterableDataset):
        if export:
            raise ExportError("an iterable data set cannot be exported, since others could not read it: leave export out")
        if not length or length < 1:
            raise AnnulusError("how many samples are an epoch of this iterable data set? Pass samples=")
    elif length is not None:
        raise AnnulusError("samples= is the length of an iterable data set, and this one has samples by number: leave it out")
    elif export is not False:
        try:
            of_data = {"target": target, "collate": collate, "eval_dataset": eval_dataset, "decay": decay}
            made = write(model, None, to=to, loss=loss, dataset=dataset, **of_data)
            if checked:
                with made.explained():
                    check(made.folder, devices=["cpu"])
            return "graph", made.folder
        except (ExportError, CheckError) as error:
            if export:
                raise
            refused = error
    if eval_dataset is not None:
        told = "without an export nobody evaluates eval_dataset: leave it out, and evaluate in your loop"
        raise AnnulusError(f"{told}. The exporter says: {refused}" if refused else told)
    following = _norms(model)
    try:
        following = _try(model, by_number(dataset), loss, target, collate)
    except _NoMean:
        raise
    except Exception as error:
        # The mistake is probably the user's, of which the exporter tells more. A loop of the user's own may still work.
        if refused is not None:
            raise refused from error
        print(f"only running statistics of norms are shared, since the model does not run by itself: {error}", file=sys.stderr)
    _write(model, following, decay, length or len(by_number(dataset)), to)
    if refused is not None:
        print(f"founding without an export, {MEANS}. The exporter says: {' '.join(str(refused).split())}", file=sys.stderr)
    return "pytorch", to


class _NoMean(ExportError):
    """The loss is no mean over the samples, which no run can train."""


def _try(
    model: torch.nn.Module,
    dataset: Any,
    loss: Loss,
    target: Target,
    collate: Collate,
) -> list[str]:
    """Runs a few samples. Returns the names of the buffers that follow what a forward pass makes of them.

    Raises:
        ExportError: the loss is not a mean over the samples.
    """
    if isinstance(dataset, IterableDataset):
        rows = list(itertools.islice(dataset, CHECKED_SAMPLES))
    else:
        rows = [dataset[at] for at in range(min(CHECKED_SAMPLES, len(dataset)))]
    batch = (collate or default_collate)(rows)
    keys = list(batch) if isinstance(batch, Mapping) else None
    values = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    _, places = names_of_inputs(model, keys, len(values), loss, target)
    objective = Objective(model, loss, keys, places)
    device = next(model.parameters()).device
    values = tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, values)
    twice = tree_map(lambda value: torch.cat([value, value]) if isinstance(value, torch.Tensor) else value, values)
    halves = any(parameter.dtype != torch.float32 for parameter in model.parameters())
    tolerance = MEAN_TOLERANCE_OF_HALVES if halves else MEAN_TOLERANCE

    def losses(training: bool) -> tuple[float, float, list[str]]:
        draws = _SameDraws()
        with _as_it_was(model, training), draws:
            once = objective(*values)[0].item()
            changed = [name for name, buffer in model.named_buffers() if _follows(buffer) and not _same(buffer, before[name])]
        with _as_it_was(model, training), draws.again():
            return once, objective(*twice)[0].item(), changed

    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    once, doubled, changed = losses(True)
    if abs(doubled - once) > tolerance * abs(once):
        told = (
            "the loss must be a mean over the samples, each of which has a loss of its own: it is "
            f"{once:.6g} for {len(rows)} samples, and {doubled:.6g} for the same twice"
        )
        # Some devices draw dropout in a way that cannot be repeated.
        try:
            once, doubled, _ = losses(False)
        except Exception as error:
            raise _NoMean(told) from error
        if abs(doubled - once) > tolerance * abs(once):
            raise _NoMean(told)
    return changed


class _SameDraws(TorchDispatchMode):
    """Notes random numbers, and gives each half of a doubled batch those that the batch had."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[torch.Tensor] = []
        self._next: Iterator[torch.Tensor] | None = None

    def again(self) -> _SameDraws:
        self._next = iter(self._noted)
        return self

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in op.tags or not isinstance(made, torch.Tensor):
            return made
        if self._next is None:
            self._noted.append(made.clone())
        elif (noted := next(self._next, None)) is not None:
            if made.shape == noted.shape:
                made.copy_(noted)
            elif noted.dim() and made.shape == (2 * len(noted), *noted.shape[1:]):
                made.copy_(torch.cat([noted, noted]))
        return made


@contextlib.contextmanager
def _as_it_was(model: torch.nn.Module, training: bool) -> Iterator[None]:
    """Lets a model run without a trace: its modes, its buffers and the random numbers stay as they are."""
    modes = {module: module.training for module in model.modules()}
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    if training != model.training:
        model.train(training)
    try:
        with torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


def _follows(buffer: torch.Tensor) -> bool:
    """Whether a buffer that changes is shared. Counters stay each member's own."""
    return buffer.is_floating_point()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _norms(model: torch.nn.Module) -> list[str]:
    """The running statistics of a model's norms. Refuses those that weigh a batch by how many there were."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            if module.momentum is None:
                raise ExportError(f"{name} has momentum=None, by which each member would count its own batches: set a number")
            found += [f"{name}.{own}".lstrip(".") for own in ("running_mean", "running_var")]
    return found


def _write(model: torch.nn.Module, following: list[str], decay: Decay, length: int, to: Path) -> None:
    """Writes the first values of a model: what is trained, what follows, and what stays as the founder has it."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ExportError("no parameter of the model requires a gradient")
    tensors = {
        name: samples.array(tensor, name)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if not tensor.is_complex()
    }
    facts = {
        "annulus.trained": "\n".join(trained),
        "annulus.follows": "\n".join(following),
        "annulus.samples": str(length),
        "annulus.torch": torch.__version__.split("+")[0],
    }
    decayed = decayed_of(model, trained, decay)
    if decayed is not None:
        facts["annulus.decayed"] = "\n".join(decayed)
    to.mkdir(parents=True, exist_ok=True)
    save_file(tensors, to / WEIGHTS, facts)


class _Columns(Dataset[dict[str, Any]]):
    """A mapping of tensors as a data set."""

    def __init__(self, columns: Mapping[str, torch.Tensor]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: column[number] for name, column in self._columns.items()}


def by_number(data: Any) -> Any:
    """Samples by their numbers, from all that `export` takes. A stream stays one."""
    if isinstance(data, tuple):
        return TensorDataset(*map(torch.as_tensor, data))
    if isinstance(data, Mapping):
        return _Columns({name: torch.as_tensor(column) for name, column in data.items()})
    return data
