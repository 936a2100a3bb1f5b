"""`annulus.member`: PyTorch takes part in a run on this machine's own device, such as a CUDA, ROCm, MPS or XPU card.

The program runs as a child process and does all but the computing. It asks this process for the gradients of some samples,
over a socket in lines of JSON. Parameters and gradients pass through one mapping of shared memory.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.utils.data import DataLoader, Dataset, TensorDataset

from . import program, samples
from .checking import check
from .errors import AnnulusError
from .exporter import WEIGHTS, Decay, Target, write
from .loading import fit
from .objective import Loss
from .run import LEAVE_SECONDS, Run, setting, tell_how_to_join
from .samples import Collate

#: Settings that a peer may change when it goes on with a run.
OWN_SETTINGS = ("checkpoint_every", "eval_every", "keep", "keep_best")

#: The file in a founder's folder with the settings that the run was founded with.
FOUNDED = "founded.json"

#: Threads that copy between a model in memory and the program, and bytes that one copies at a time. Guesses.
COPIERS = 4
COPIED_AT_ONCE = 1 << 24


def member(
    model: torch.nn.Module,
    dataset: Any,
    *,
    ticket: str | None = None,
    loss: Loss = None,
    target: Target = None,
    collate: Collate = None,
    eval_dataset: Any = None,
    decay: Decay = "matrices",
    listen: str | int = 0,
    to: str | Path = "annulus-model",
    out: str | Path = "annulus-member",
    checked: bool = True,
    exported: torch.nn.Module | None = None,
    options: Sequence[str] = (),
    **settings: object,
) -> Member:
    """Takes part in a run with PyTorch's own gradients. The training loop stays yours:

    ```python
    with annulus.member(model, dataset, loss="cross_entropy", batch=64, lr=1e-3) as run:
        for inputs, targets in run.loader(workers=4):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            run.backward(loss)
    ```

    Without a ticket it founds the run: the model and the data set are exported as by `train`, so that others can join with
    `annulus join`, a browser tab or `annulus.member`. If `out` holds a run already, it goes on with that one, whose settings
    stay as they are.

    Args:
        model: the model, on the device that is to compute.
        dataset: a map-style data set, or a tuple or mapping of tensors: the same samples in the same order on all members
            that use PyTorch.
        ticket: the ticket of the run to join.
        loss, target, collate, eval_dataset, decay, to, checked: of a run that is founded here, as in `train`. `collate` also is
            the `collate_fn` of `Member.loader`, unless that is given its own.
        exported: of a run that is founded here, a module to export in place of `model`, with parameters of the same names.
        listen: the port, or `HOST:PORT`.
        out: this member's folder. With the same folder a restarted process goes on as the same member.
        options: further options of `annulus train` or `annulus join`.
        settings: settings of a run that is founded here, such as `rounds=2000, batch=64, optimizer="adamw", lr=1e-3`.

    Raises:
        ExportError, CheckError, ProgramError: see `export`, `check` and `Run`.
        AnnulusError: the model is not the run's, `out` holds a run with other settings, or the system is Windows.
    """
    if os.name == "nt":
        raise AnnulusError("PyTorch takes part on Linux and macOS only so far: use annulus.train or annulus.join here")
    samples.refuse_iterable(dataset)
    folder = Path(out)
    wait_until_free(folder)
    of_run = sorted(setting(name, value) for name, value in settings.items() if name not in OWN_SETTINGS)
    peer = functools.partial(program.peer_command, device="cpu", listen=listen, options=["--external", *options])
    if ticket is not None:
        command = [*peer("join", out=folder), ticket]
    elif (folder / "ledger").exists():
        command = [*peer("resume", out=None), str(folder)]
        refuse_others(of_run, folder)
        settings = {name: value for name, value in settings.items() if name in OWN_SETTINGS}
    else:
        source = model if exported is None else exported
        made = write(
            source,
            None,
            to=to,
            loss=loss,
            dataset=dataset,
            target=target,
            collate=collate,
            eval_dataset=eval_dataset,
            decay=decay,
        )
        if checked:
            with made.explained():
                check(made.folder, devices=["cpu"])
        command = peer("train", out=folder)
        command += ["--task", "graph", "--data", str(made.folder)]
    command += [setting(name, value) for name, value in settings.items()]
    run = Member(command, model, dataset, collate)
    if ticket is None:
        tell_how_to_join(run)
        if not (folder / FOUNDED).exists():
            (folder / FOUNDED).write_text(json.dumps(of_run))
    return run


def refuse_others(settings: list[str], folder: Path) -> None:
    """Raises `AnnulusError` if a run in `folder` was founded with other settings than these. None are those that it has."""
    try:
        founded = json.loads((folder / FOUNDED).read_text())
    except FileNotFoundError:
        return
    if settings and settings != founded:
        raise AnnulusError(
            f"{folder} holds a run with {' '.join(founded) or 'other settings'}, not {' '.join(settings)}: leave the settings "
            "as they were to go on with it, or give another out= for a new run"
        )


class Member(Run):
    """A peer whose gradients this process computes: loop over `loader`, and call `backward` for each batch."""

    def __init__(
        self,
        arguments: Sequence[str],
        model: torch.nn.Module,
        dataset: Any,
        collate: Collate = None,
    ) -> None:
        self._model = model
        self._dataset = _by_number(dataset)
        self._collate = collate
        #: The run's parameters in the model, and their places in the shared memory.
        self._places: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._feed: _Feed | None = None
        self._sum = _Sum()
        #: The samples to compute next, once they are known.
        self._share: list[int] | None = None
        #: Samples of the share that are left, and of the batch that waits for `backward`.
        self._left = self._waiting = 0
        self._owes_sum = self._is_leaving = False
        self._is_trial = True
        #: Sums that this member has handed in, one a round. Those that only try the device out are not counted.
        self.contributions = 0
        self._thread = threading.get_ident()
        self._channel = _Channel()
        super().__init__(arguments, stdin=self._channel.theirs.fileno())

    def loader(self, batch_size: int | None = None, *, workers: int = 0, **options: Any) -> Iterator[Any]:
        """The batches that this member computes, until the run ends. Call `backward` once for each.

        The run decides which samples a member takes, and in which order. At the end the model has the trained parameters, if
        the run is finished.

        Args:
            batch_size: the most samples at once; all of a round's if it is not given.
            workers: processes that read samples ahead, as `num_workers` of a `DataLoader`.
            options: further ones of a `DataLoader`, such as `collate_fn` and `pin_memory`.
        """
        if self._collate is not None:
            options.setdefault("collate_fn", self._collate)
        return self._batches(_Feed(self._dataset, batch_size, workers, options))

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradient of a batch from `loader`. `loss` is the mean over the batch, as everywhere in Annulus.

        After the last batch of this member's share, it hands in the sum, waits for the round's end, and loads the new
        parameters into the model. Leave gradients and optimizers alone: the run has its own optimizer.
        """
        if not self._waiting:
            raise AnnulusError("call run.backward(loss) once for each batch of run.loader()")
        count, self._waiting = self._waiting, 0
        self._sum.add(loss, count)
        self._left -= count
        if self._left == 0:
            self._share = self._listen()

    def watch(self) -> Run:
        """Raises what the peer failed by, once it has ended. Until then only the loop over `loader` moves the run on."""
        if not self.is_over:
            raise AnnulusError("this process computes for the run: loop over run.loader() instead")
        self._raise_if_failed()
        return self

    def _batches(self, feed: _Feed) -> Iterator[Any]:
        self._feed, self._waiting = feed, 0
        if self._share is None:
            self._share = self._listen()
        while self._share is not None:
            share, self._share = self._share, None
            self._left = len(share)
            for count, batch in feed.batches(share):
                self._waiting = count
                yield batch
                if self._waiting:
                    raise AnnulusError("call run.backward(loss) once for each batch of run.loader()")
        self._reader.join()
        self._raise_if_failed()
        if (self.latest("done") or {}).get("finished"):
            self.load_into(self._model)

    def _listen(self) -> list[int] | None:
        """Does what the program asks for, until it asks for gradients: of these samples. None once it has ended."""
        while True:
            request = self._channel.receive()
            if request is None:
                return None
            if request == "take":
                self._hand_in()
            elif "begin" in request:
                self._bind(request["begin"])
            elif "load" in request:
                self._load(request["load"])
            elif "prefetch" in request:
                if self._feed is not None and request["prefetch"] and not self._is_leaving:
                    self._feed.order(request["prefetch"])
            elif not self._is_leaving:
                numbers: list[int] = request["accumulate"]
                return numbers

    def _load(self, fresh: bool) -> None:
        """Begins a new sum, with fresh parameters unless the device is only tried out."""
        self._is_trial = not fresh
        if fresh:
            with torch.no_grad():
                _copy(self._places, self._is_leaving)
        self._clear()

    def _hand_in(self) -> None:
        self._owes_sum = True
        count = self._sum.count
        made = []
        for parameter, place in self._places if count else ():
            gradient = parameter.grad
            if gradient is None:
                place.zero_()
            else:
                made.append((place, gradient.to_dense() if gradient.is_sparse else gradient))
        _copy(made, self._is_leaving)
        loss = float(self._sum.loss)
        self._clear()
        self.contributions += not self._is_trial
        self._answer(loss, count)

    def _answer(self, loss: float, count: int) -> None:
        self._channel.send({"sum": {"loss": loss if math.isfinite(loss) else None, "samples": count}})
        self._owes_sum = False

    def _clear(self) -> None:
        self._sum = _Sum()
        for parameter, _ in self._places:
            parameter.grad = None

    def _begin(self) -> None:
        self._channel.theirs.close()
        request = self._channel.receive()
        if request is None:
            # It has ended, and has said why.
            return
        self._bind(request["begin"])

    def _bind(self, begin: Mapping[str, Any]) -> None:
        """Answers whether this process can compute the run's model."""
        try:
            self._find(begin)
        except (AnnulusError, OSError, RuntimeError) as error:
            self._channel.send({"error": str(error)})
        else:
            self._channel.send({"device": f"PyTorch on {_device_name(self._places[0][0].device)}"})

    def _find(self, begin: Mapping[str, Any]) -> None:
        """Finds the run's parameters in the model."""
        shapes = {tensor["name"]: tensor["shape"] for tensor in begin["tensors"]}
        parameters = fit(self._model, shapes)
        frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
        if frozen:
            raise AnnulusError(f"the run trains {', '.join(frozen)}, which the model has frozen: set requires_grad")
        if len(self._dataset) < begin["samples"]:
            raise AnnulusError(f"the data set has {len(self._dataset)} samples, and the run trains on {begin['samples']}")
        vector = torch.from_file(begin["file"], shared=True, size=begin["elements"], dtype=torch.float32)
        self._places = []
        for tensor in begin["tensors"]:
            parameter, offset = parameters[tensor["name"]], tensor["offset"]
            self._places.append((parameter, vector[offset : offset + parameter.numel()].view(parameter.shape)))
        if begin["data"] is not None:
            _load_others(Path(begin["data"]) / WEIGHTS, self._model, shapes)

    def _finish(self) -> None:
        """Lets the peer end its round: with the part of the share that is computed, and then with none."""
        if threading.get_ident() != self._thread:
            # The loop over the loader goes on until the peer has left.
            return
        self._is_leaving = True
        self._channel.socket.settimeout(LEAVE_SECONDS)
        if self._owes_sum:
            self._answer(0.0, 0)
        self._listen()


class LookAhead:
    """The batches of a loader, of which the next one can be looked for before it is taken."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches
        self._next: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self.take()
        if batch is None:
            raise StopIteration
        return batch

    def take(self) -> Any:
        """The next batch; None if the run has ended."""
        self.look_ahead()
        batch, self._next = self._next, None
        return batch

    def look_ahead(self) -> bool:
        """Whether there is another batch. If there is none, the model has the trained parameters."""
        if self._next is None:
            self._next = next(self.batches, None)
        return self._next is not None


def _copy(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], alone: bool = False) -> None:
    """Copies into the first tensor of each pair. Alone it starts no threads, as Python cannot once it ends.

    PyTorch's threads wait for each other after each tensor, which takes long on a busy processor. Ours do so once.
    """
    blocks, total = [], 0
    for target, source in pairs:
        if not (_is_plain(target) and _is_plain(source) and target.shape == source.shape):
            target.copy_(source)
            continue
        to, of, size = target.data_ptr(), source.data_ptr(), 4 * target.numel()
        blocks += [(to + at, of + at, min(COPIED_AT_ONCE, size - at)) for at in range(0, size, COPIED_AT_ONCE)]
        total += size
        # Autograd must notice, as it does by itself above.
        torch.autograd.graph.increment_version(target)
    if alone or total <= COPIED_AT_ONCE:
        for block in blocks:
            ctypes.memmove(*block)
        return
    with ThreadPoolExecutor(min(COPIERS, os.cpu_count() or 1)) as threads:
        for _ in threads.map(lambda block: ctypes.memmove(*block), blocks):
            pass


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its numbers lie in this process's memory as they do in the program's."""
    is_of_torch = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    in_memory = is_of_torch and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return in_memory and tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.is_neg()


class _Sum:
    """The losses and gradients of some samples. The gradients are in the parameters."""

    def __init__(self) -> None:
        self.count = 0
        self.loss: torch.Tensor | float = 0.0

    def add(self, loss: torch.Tensor, count: int) -> None:
        if loss.dim() != 0:
            raise AnnulusError(f"the loss must be one number, the mean over the batch; it has the shape {list(loss.shape)}")
        # If this is interrupted, some of the gradients are in the parameters, and none of the sum can be used.
        before, self.count = self.count, 0
        (loss * count).backward()
        self.count = before + count
        # Stays on the device, which need not be waited for.
        self.loss = self.loss + loss.detach().float() * count


class _Channel:
    """Lines of JSON to and from the program, whose standard input is the other end."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self._unread = bytearray()
        # The program must see this process end. Forked ones, as of a DataLoader, may live on for some seconds.
        for end in (self.socket, self.theirs):
            os.register_at_fork(after_in_child=_closing(weakref.ref(end)))

    def receive(self) -> Any:
        """The next request; None if the program has ended."""
        while (end := self._unread.find(b"\n")) < 0:
            try:
                part = self.socket.recv(1 << 16)
            except OSError:
                part = b""
            if not part:
                return None
            self._unread += part
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return json.loads(line)

    def send(self, answer: Mapping[str, Any]) -> None:
        try:
            self.socket.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            # It has ended, as the next request tells.
            pass


def _closing(end: weakref.ref[socket.socket]) -> Callable[[], None]:
    def close() -> None:
        held = end()
        if held is not None:
            held.close()

    return close


class _Feed:
    """Reads the samples of one share after the other, with the same processes.

    A `DataLoader` asks its sampler ahead of time, and the next share is known only after the round. So each share is an epoch
    of a loader whose workers stay.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int | None, workers: int, options: dict[str, Any]) -> None:
        self._batch_size = batch_size
        self._batches: list[list[int]] = []
        self._ordered: list[int] | None = None
        self._reading: Iterator[Any] = iter(())
        # Both are read anew in each epoch.
        self._loader = DataLoader(dataset, batch_sampler=self, num_workers=workers, persistent_workers=workers > 0, **options)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def order(self, numbers: list[int]) -> None:
        """Starts to read these samples."""
        size = self._batch_size or len(numbers)
        self._batches = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        self._reading = iter(self._loader)
        self._ordered = numbers

    def batches(self, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        """The batches of these samples, each with its number of samples."""
        if self._ordered != numbers:
            self.order(numbers)
        self._ordered = None
        # The next share may be ordered before the caller has come back from the last batch.
        reading = self._reading
        for batch in self._batches:
            yield len(batch), next(reading)


class _Columns(Dataset[dict[str, Any]]):
    """A mapping of tensors as a data set."""

    def __init__(self, columns: Mapping[str, torch.Tensor]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: column[number] for name, column in self._columns.items()}


def _by_number(data: Any) -> Any:
    """Samples by their numbers, from all that `export` takes."""
    if isinstance(data, tuple):
        return TensorDataset(*map(torch.as_tensor, data))
    if isinstance(data, Mapping):
        return _Columns({name: torch.as_tensor(column) for name, column in data.items()})
    return data


def _load_others(file: Path, model: torch.nn.Module, trained: Mapping[str, Any]) -> None:
    """Loads what the run does not train, such as frozen parameters: all members must compute the same model."""
    if not file.is_file():
        return
    state = model.state_dict(keep_vars=True)
    with safe_open(file, "pt") as stored, torch.no_grad():
        for name in stored.keys() - trained.keys():
            place = state.get(name)
            # Those that the member has quantized stay.
            if place is not None and list(place.shape) == stored.get_slice(name).get_shape():
                place.copy_(stored.get_tensor(name))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def wait_until_free(folder: Path) -> None:
    """Waits while the program of a process that was killed leaves its run: it holds the folder's lock until then."""
    import fcntl

    until = time.monotonic() + LEAVE_SECONDS
    try:
        lock = (folder / "lock").open("rb+")
    except OSError:
        return
    with lock:
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.1)
            else:
                return
