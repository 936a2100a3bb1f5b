"""Samples as named arrays whose first axis counts them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .errors import ExportError

#: The names by which data sets call their targets.
TARGETS = ("labels", "label", "targets", "target", "y")

#: Samples that are read at a time.
CHUNK = 1024


def arrays(data: Any, collate: Callable[[list[Any]], Any] | None = None) -> tuple[list[np.ndarray], list[str] | None]:
    """All samples of a data set, one array per input, and the names of the inputs if the samples have names.

    `data` is a tuple or a mapping of arrays or tensors, or a map-style data set of tuples or mappings. `collate` turns a
    list of its samples into one batch of equally long samples, as for a `DataLoader`. Of a `DataLoader` the data set is taken.
    """
    if isinstance(data, torch.utils.data.DataLoader):
        is_own = data.collate_fn is not torch.utils.data.default_collate
        data, collate = data.dataset, collate or (data.collate_fn if is_own else None)
    refuse_iterable(data)
    if collate is None:
        tensors = getattr(data, "tensors", data)
        if isinstance(tensors, Mapping):
            return _same_length([array(value, name) for name, value in tensors.items()]), list(tensors)
        if isinstance(tensors, tuple):
            return _same_length([array(value, f"input {at}") for at, value in enumerate(tensors)]), None
    if len(data) == 0:
        raise ExportError("the data set is empty")
    batches, names = [], None
    # A collating function pads to the longest sample that it sees, so it must see all.
    step = len(data) if collate else CHUNK
    for start in range(0, len(data), step):
        rows = [data[at] for at in range(start, min(start + step, len(data)))]
        columns, names = _columns(collate(rows) if collate else rows, collate is not None)
        batches.append(columns)
    return _same_length([np.concatenate(parts) for parts in zip(*batches, strict=False)]), names


def refuse_iterable(data: Any) -> None:
    """Fails if samples cannot be read by their numbers."""
    if isinstance(data, torch.utils.data.DataLoader):
        raise ExportError("this is a DataLoader, which has an order of its own: pass its data set, loader.dataset")
    if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__getitem__"):
        raise ExportError(
            "a data set needs a length and samples by number: Annulus says which member computes which samples. "
            "Load an iterable one into a list first"
        )


def _columns(rows: Any, is_batch: bool) -> tuple[list[np.ndarray], list[str] | None]:
    """The inputs of some samples, each as one array."""
    first = rows if is_batch else rows[0]
    names: list[str] | None = list(first) if isinstance(first, Mapping) else None
    keys: Sequence[Any] = names if names is not None else range(len(first)) if isinstance(first, (tuple, list)) else ()
    if not keys:
        raise ExportError(
            f"a sample is a tuple (inputs, then the target) or a mapping, but this data set has {type(first).__name__}"
        )
    if is_batch:
        return [array(rows[key], str(key)) for key in keys], names
    columns = []
    for key in keys:
        values = [array(row[key], str(key)) for row in rows]
        if len({value.shape for value in values}) > 1:
            raise ExportError(
                f"samples differ in the shape of {key!r}, {values[0].shape} and others: pad them to one, or pass collate="
            )
        columns.append(np.stack(values))
    return columns, names


def array(value: Any, name: str) -> np.ndarray:
    """A value as float32, int64, bool, or the bytes that pictures are made of."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    made = np.asarray(value)
    if made.dtype.kind == "f":
        return np.asarray(made, np.float32, order="C")
    if made.dtype == np.uint8:
        return np.asarray(made, order="C")
    if made.dtype.kind in "iu":
        return np.asarray(made, np.int64, order="C")
    if made.dtype.kind == "b":
        return np.asarray(made, order="C")
    raise ExportError(f"{name} of the samples holds {type(value).__name__}: turn it into numbers, or leave it out")


def widened(column: np.ndarray) -> np.ndarray:
    """Bytes as int64, which the model sees."""
    return column.astype(np.int64) if column.dtype == np.uint8 else column


def _same_length(columns: list[np.ndarray]) -> list[np.ndarray]:
    lengths = {len(column) if column.ndim else None for column in columns}
    if None in lengths or len(lengths) != 1:
        raise ExportError("all inputs need as many samples: their first axes differ")
    return columns


def positional_names(model: torch.nn.Module, count: int) -> list[str]:
    """Names for inputs that a model takes by position: those of its `forward`, or x0, x1 and so on."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in kinds]
    return names[:count] if len(names) >= count else [f"x{at}" for at in range(count)]
