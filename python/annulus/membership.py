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
from torch.utils.data import IterableDataset

from . import founding, program
from .errors import AnnulusError
from .exporter import WEIGHTS, Decay, Target
from .feeding import Cut, Feed, feed
from .loading import fit
from .objective import Loss
from .run import LEAVE_SECONDS, Run, setting, tell_how_to_join
from .samples import Collate, refuse_unusable

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
    export: bool | None = None,
    exported: torch.nn.Module | None = None,
    samples: int | None = None,
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

    Without a ticket it founds the run. If the model can be exported as by `train`, others join with `annulus join`, a browser
    tab or `annulus.member`. If it cannot, a line says why, and others join with `annulus.member` only. If `out` holds a run
    already, it goes on with that one, whose settings stay as they are.

    Args:
        model: the model, on the device that is to compute.
        dataset: a map-style data set, or a tuple or mapping of tensors: the same samples in the same order on all members
            that use PyTorch. Of an iterable data set a member takes the next samples; shard it yourself.
        ticket: the ticket of the run to join.
        loss, target, collate, eval_dataset, decay, to, checked: of a run that is founded here, as in `train`. `collate` also is
            the `collate_fn` of `Member.loader`, unless that is given its own.
        export: of a run that is founded here: True insists on an export, False never tries.
        exported: of a run that is founded here, a module to export in place of `model`, with parameters of the same names.
        samples: of a run that is founded here with an iterable data set, how many samples are an epoch.
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
    refuse_unusable(dataset)
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
        of_data = {"loss": loss, "target": target, "collate": collate, "eval_dataset": eval_dataset, "decay": decay}
        task, made = founding.found(source, dataset, export=export, length=samples, to=Path(to), checked=checked, **of_data)
        if task == "pytorch":
            settings = without_held_out(settings)
        command = [*peer("train", out=folder), "--task", task, "--data", str(made)]
    command += [setting(name, value) for name, value in settings.items()]
    run = Member(command, model, dataset, collate)
    if ticket is None:
        tell_how_to_join(run)
        if not (folder / FOUNDED).exists():
            (folder / FOUNDED).write_text(json.dumps(of_run))
    return run


def without_held_out(settings: dict[str, object]) -> dict[str, object]:
    """The settings of a run without an export, in which nobody evaluates held-out samples."""
    if settings.get("held_out"):
        raise AnnulusError("without an export nobody evaluates held-out samples: leave held_out out, and evaluate in your loop")
    return {name: value for name, value in settings.items() if name not in ("held_out", "held_out_by")}


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
        self._dataset = founding.by_number(dataset)
        self._collate = collate
        #: The run's parameters in the model, and their places in the shared memory.
        self._places: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._following = _Following([])
        self._feed: Feed | None = None
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
        return self._batches(feed(self._dataset, Cut(batch_size, doubles=bool(self._following)), workers, options))

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradient of a batch from `loader`. `loss` is the mean over the batch, as everywhere in Annulus.

        After the last batch of this member's share, it hands in the sum, waits for the round's end, and loads the new
        parameters into the model. Leave gradients and optimizers alone: the run has its own optimizer.
        """
        if not self._waiting:
            raise AnnulusError("call run.backward(loss) once for each batch of run.loader()")
        count, self._waiting = self._waiting, 0
        self._sum.add(loss, count, self._following)
        self._left -= count
        if self._left == 0:
            self._share = self._listen()

    def watch(self) -> Run:
        """Raises what the peer failed by, once it has ended. Until then only the loop over `loader` moves the run on."""
        if not self.is_over:
            raise AnnulusError("this process computes for the run: loop over run.loader() instead")
        self._raise_if_failed()
        return self

    def _batches(self, feed: Feed) -> Iterator[Any]:
        self._feed, self._waiting = feed, 0
        if self._share is None:
            self._share = self._listen()
        while self._share is not None:
            share, self._share = self._share, None
            self._left = len(share)
            for count, batch in feed.batches(share, self._is_trial):
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
                _copy([*self._places, *self._following.places()], self._is_leaving)
        self._clear()

    def _hand_in(self) -> None:
        self._owes_sum = True
        count = self._sum.count
        made = self._following.sums() if count else []
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
        self._following.begin()
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
        own = fit(self._model, shapes)
        following = {tensor["name"]: tensor["follows"] for tensor in begin["tensors"] if "follows" in tensor}
        frozen = [name for name, tensor in own.items() if name not in following and not tensor.requires_grad]
        if frozen:
            raise AnnulusError(f"the run trains {', '.join(frozen)}, which the model has frozen: set requires_grad")
        is_stream = isinstance(self._dataset, IterableDataset)
        if not is_stream and len(self._dataset) < begin["samples"]:
            raise AnnulusError(f"the data set has {len(self._dataset)} samples, and the run trains on {begin['samples']}")
        vector = torch.from_file(begin["file"], shared=True, size=begin["elements"], dtype=torch.float32)
        places = {
            tensor["name"]: vector[tensor["offset"] :][: own[tensor["name"]].numel()].view(own[tensor["name"]].shape)
            for tensor in begin["tensors"]
        }
        self._places = [(own[name], place) for name, place in places.items() if name not in following]
        self._following = _Following([(own[name], places[name], rate) for name, rate in following.items()])
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

    def add(self, loss: torch.Tensor, count: int, following: _Following) -> None:
        if loss.dim() != 0:
            raise AnnulusError(f"the loss must be one number, the mean over the batch; it has the shape {list(loss.shape)}")
        # If this is interrupted, some of the gradients are in the parameters, and none of the sum can be used.
        before, self.count = self.count, 0
        (loss * count).backward()
        following.add(count)
        self.count = before + count
        # Stays on the device, which need not be waited for.
        self.loss = self.loss + loss.detach().float() * count


class _Following:
    """Buffers that follow the batches, such as batch norm's running mean, and the sum of how the batches would change them.

    A batch changes a buffer in place. Each begins from the value that the members share, whatever the size of a batch.
    """

    def __init__(self, tensors: Sequence[tuple[torch.Tensor, torch.Tensor, float]]) -> None:
        self._buffers = [buffer for buffer, _, _ in tensors]
        self._places = [place for _, place, _ in tensors]
        self._rates = [rate for _, _, rate in tensors]
        self.begin()

    def __len__(self) -> int:
        return len(self._buffers)

    def places(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The buffers, and their places in the shared memory."""
        return list(zip(self._buffers, self._places, strict=True))

    def sums(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The places in the shared memory, and the sums."""
        return list(zip(self._places, self._sums, strict=True))

    def begin(self) -> None:
        """Begins a new sum."""
        self._shared = [buffer.clone() for buffer in self._buffers]
        self._sums = [torch.zeros_like(buffer, dtype=torch.float32) for buffer in self._buffers]

    @torch.no_grad()
    def add(self, count: int) -> None:
        """Adds the change by a batch of so many samples, and takes it back."""
        if self._buffers:
            # Not in place, so that whoever is interrupted here has no difference in a buffer.
            pair = ([tensor.float() for tensor in tensors] for tensors in (self._buffers, self._shared))
            changes = torch._foreach_sub(*pair)
            torch._foreach_mul_(changes, [count / rate for rate in self._rates])
            torch._foreach_add_(self._sums, changes)
            torch._foreach_copy_(self._buffers, self._shared)


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
