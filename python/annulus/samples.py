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

#: Samples that are read twice, about. A transform that changes every second sample is seen by all but one in 60,000 data sets.
READ_TWICE = 16


#: Makes one batch of a list of samples, as for a `DataLoader`.
Collate = Callable[[list[Any]], Any] | None


def arrays(data: Any, collate: Collate = None) -> tuple[list[np.ndarray], list[str] | None]:
    """All samples of a data set, one array per input, and the names of the inputs if the samples have names.

    `data` is a tuple or a mapping of arrays or tensors, or a map-style data set of tuples or mappings. `collate` turns a
    list of its samples into one batch of equally long samples, as for a `DataLoader`. Of a `DataLoader` the data set is taken.
    """
    data, collate = of_loader(data, collate)
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


def with_evaluation(data: Any, evaluate: Any, collate: Collate) -> tuple[list[np.ndarray], list[str] | None, int]:
    """As `arrays`, with further samples behind them, and how many these are."""
    if evaluate is None:
        return *arrays(data, collate), 0
    data, collate = of_loader(data, collate)
    evaluate, collate = of_loader(evaluate, collate)
    for one in (data, evaluate):
        refuse_iterable(one)
    if collate is not None:
        # It pads all of them to one length.
        return *arrays(torch.utils.data.ConcatDataset([data, evaluate]), collate), len(evaluate)
    (columns, names), (more, others) = arrays(data), arrays(evaluate)
    if len(columns) != len(more) or set(names or ()) != set(others or ()):
        told = [", ".join(keys) if keys else f"{len(held)} entries" for keys, held in ((others, more), (names, columns))]
        raise ExportError(f"the samples of eval_dataset have {told[0]}, and those of training {told[1]}")
    if names is not None and others is not None:
        more = [more[others.index(name)] for name in names]
    for at, (own, other) in enumerate(zip(columns, more, strict=True)):
        told = [f"{held.dtype} {list(held.shape[1:])}" for held in (other, own)]
        if told[0] != told[1]:
            name = names[at] if names else f"entry {at}"
            raise ExportError(f"{name} of eval_dataset is {told[0]} for each sample, and {told[1]} of the samples of training")
    return [np.concatenate(pair) for pair in zip(columns, more, strict=True)], names, len(more[0])


def of_loader(data: Any, collate: Collate) -> tuple[Any, Collate]:
    """The data set of a `DataLoader`, and its own collating function if none is given."""
    if not isinstance(data, torch.utils.data.DataLoader):
        return data, collate
    is_own = data.collate_fn is not torch.utils.data.default_collate
    return data.dataset, collate or (data.collate_fn if is_own else None)


def refuse_random(data: Any) -> None:
    """Fails if some sample is another one when it is read again."""
    data, _ = of_loader(data, None)
    if isinstance(data, (tuple, Mapping)) or hasattr(data, "tensors"):
        return
    refuse_iterable(data)
    for at in range(0, len(data), max(1, len(data) // READ_TWICE)):
        if not _same(data[at], data[at]):
            raise ExportError(
                f"sample {at} is another one when it is read again, as random transforms make it. The export would freeze the "
                "first reading for all epochs. annulus.member reads samples again in each epoch; or pass frozen_samples=True"
            )


def _same(one: Any, other: Any) -> bool:
    """Whether two samples hold the same numbers."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if not isinstance(one, (torch.Tensor, np.ndarray, np.generic, int, float)):
        return True
    pair = [np.asarray(array(value, "")) for value in (one, other)]
    return np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f")


def refuse_iterable(data: Any) -> None:
    """Fails if samples cannot be read by their numbers."""
    refuse_unusable(data)
    if isinstance(data, torch.utils.data.IterableDataset):
        raise ExportError(
            "a data set needs a length and samples by number: Annulus says which member computes which samples. Load an "
            "iterable one into a list first, or take annulus.member with samples="
        )


def refuse_unusable(data: Any) -> None:
    """Fails if samples can be read neither by their numbers nor as a stream."""
    if isinstance(data, torch.utils.data.DataLoader):
        raise ExportError("this is a DataLoader, which has an order of its own: pass its data set, loader.dataset")
    if not isinstance(data, torch.utils.data.IterableDataset) and not hasattr(data, "__getitem__"):
        raise ExportError(
            f"a data set needs a length and samples by number, or to be an IterableDataset, and this is a {type(data).__name__}"
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
