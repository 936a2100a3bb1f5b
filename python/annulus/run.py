"""A peer that runs as a child process: its ticket, its progress, its end, and the model that it has trained.

This module needs no torch.
"""

from __future__ import annotations

import atexit
import collections
import html
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import program
from .errors import ProgramError

if TYPE_CHECKING:
    import torch

    M = TypeVar("M", bound="torch.nn.Module")

Event = dict[str, Any]

#: Exit codes that are no failure: the run is finished, or the peer left because it was asked to.
ENDED_WELL = (0, 75)

#: Events that are kept for a slow reader of `events`.
KEPT_EVENTS = 4096

#: Seconds that leaving may take before the process is killed; the program itself gives up after 25.
LEAVE_SECONDS = 35.0

#: Seconds between two lines of progress where they are not drawn over each other.
LINE_SECONDS = 10.0

#: Rounds that `Run.history` holds at most; of a longer run it holds every second one, then every fourth.
KEPT_ROUNDS = 20_000


class Run:
    """A peer of a run. Leave it with `stop`, or let `watch` wait for the run's end.

    The peer is a process of its own. It leaves the run when this process ends.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        stdin: int = subprocess.DEVNULL,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._events: collections.deque[tuple[int, Event]] = collections.deque(maxlen=KEPT_EVENTS)
        self._latest: dict[str, Event] = {}
        self._rounds: list[dict[str, Any]] = []
        self._said: collections.deque[str] = collections.deque(maxlen=40)
        self._changed = threading.Condition()
        self._is_over = False
        command = [program.find(), *arguments]
        try:
            # A session of its own, so that Ctrl-C reaches this process alone, which then lets the peer leave.
            self._process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                env={**os.environ, **(variables or {})},
            )
        except OSError as error:
            raise ProgramError(f"cannot run {command[0]}: {error}") from error
        readers = [threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_errors)]
        for reader in readers:
            reader.start()
        self._reader, self._errors = readers
        atexit.register(self.stop)
        self._begin()
        self._wait_for("ready")

    @property
    def ticket(self) -> str:
        """What another peer needs to join: `annulus join TICKET`. Give it only to people you trust with the run."""
        return str(self._latest["ready"].get("ticket") or "")

    @property
    def page(self) -> str | None:
        """The address of the page for browser tabs: for other machines if they can reach this one, else for this one."""
        ready = self._latest["ready"]
        return ready.get("share_url") or ready.get("url")

    @property
    def folder(self) -> Path:
        """The run's folder, with checkpoints and ledger."""
        return Path(self._latest["ready"]["ticket_file"]).parent

    @property
    def is_over(self) -> bool:
        """Whether the peer has ended."""
        return self._is_over

    def latest(self, event: str) -> Event | None:
        """The latest event of a kind, such as `round` or `eval`. The documentation of the JSON log lists their fields."""
        return self._latest.get(event)

    def history(self) -> Any:
        """The rounds so far: number, loss, samples, members, seconds, and scores where the run was evaluated.

        A pandas data frame with a row for each round, or a list of dictionaries if pandas is not installed.
        """
        with self._changed:
            rows = [dict(row) for row in self._rounds]
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def events(self) -> Iterator[Event]:
        """All events after this call, until the peer ends. A slow reader misses some."""
        with self._changed:
            seen = self._events[-1][0] if self._events else 0
        return self._events_after(seen)

    def _events_after(self, seen: int) -> Iterator[Event]:
        while True:
            with self._changed:
                fresh = [entry for entry in self._events if entry[0] > seen]
                if not fresh:
                    if self._is_over:
                        return
                    self._changed.wait()
                    continue
            seen = fresh[-1][0]
            yield from (event for _, event in fresh)

    def watch(self) -> Run:
        """Shows the progress until the run ends. Ctrl-C leaves the run.

        Raises:
            ProgramError: the peer failed.
        """
        show = _painter()
        try:
            while not self._is_over:
                with self._changed:
                    self._changed.wait(1.0)
                show(self, False)
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            show(self, True)
        self._raise_if_failed()
        return self

    def stop(self) -> None:
        """Leaves the run in good order: finishes the round, tells the others, saves the state. Later calls do nothing."""
        atexit.unregister(self.stop)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT)
            self._finish()
            try:
                self._process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reader.join(LEAVE_SECONDS)

    def _begin(self) -> None:
        """Does what the peer needs before it is ready."""

    def _finish(self) -> None:
        """Does what the peer needs after it was asked to leave."""

    def load_into(self, model: M, *, wait: bool = True) -> M:
        """Loads the trained parameters into a model, by their names in its `state_dict`, and returns the model.

        `wait`: first waits for the run's end. Without it, the newest checkpoint is loaded.

        Raises:
            ProgramError: the peer failed, or there is no checkpoint yet.
            AnnulusError: the model has other trained parameters than the run.
        """
        if wait and not self._is_over:
            self.watch()
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "model.safetensors"
            program.call(["export", self.folder, file])
            from .loading import load

            load(file, model)
        return model

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<annulus.Run {progress(self._latest) or 'without a round yet'}>"

    def _repr_html_(self) -> str:
        """In a notebook: the progress, and the curve of the loss."""
        with self._changed:
            rows = [dict(row) for row in self._rounds]
        line = html.escape(progress(self._latest) or "without a round yet")
        return f"<div>{curve(rows)}<div>{line}</div></div>"

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for number, line in enumerate(lines, 1):
                event = parse_event(line)
                if event is not None:
                    with self._changed:
                        self._events.append((number, event))
                        self._latest[event["event"]] = event
                        remember(self._rounds, event)
                        self._changed.notify_all()
        self._process.wait()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line.rstrip())

    def _wait_for(self, event: str) -> None:
        with self._changed:
            try:
                self._changed.wait_for(lambda: self._is_over or event in self._latest)
            except KeyboardInterrupt:
                self.stop()
                raise
        self._raise_if_failed()
        if event not in self._latest:
            raise ProgramError("the peer ended before it was ready")

    def _raise_if_failed(self) -> None:
        if self._is_over and self._process.returncode not in ENDED_WELL:
            self._errors.join(1.0)
            said = "\n".join(self._said)
            raise ProgramError(said or f"annulus ended with code {self._process.returncode}")


def _painter() -> Callable[[Run, bool], None]:
    """Shows a run's progress: over the last one in a notebook or a terminal, else in a line now and then.

    The second argument says whether it is the last time.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if hasattr(shell, "kernel"):
        from IPython.display import display

        handle = display(_Shown(""), display_id=True)
        return lambda run, _: handle.update(_Shown(run._repr_html_()))
    told = -LINE_SECONDS

    def paint(run: Run, is_last: bool) -> None:
        nonlocal told
        line, now = progress(run._latest), time.monotonic()
        if line and sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="\n" if is_last else "", file=sys.stderr, flush=True)
        elif line and (is_last or now - told >= LINE_SECONDS):
            told = now
            print(line, file=sys.stderr, flush=True)

    return paint


class _Shown:
    """What a notebook shows."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text


def remember(rows: list[dict[str, Any]], event: Event) -> None:
    """Adds a round to a history, or the scores of an evaluation to its round."""
    if event["event"] == "round":
        if len(rows) >= KEPT_ROUNDS:
            del rows[1::2]
        kept = ("round", "loss", "samples", "counted", "seconds")
        rows.append({**{name: event.get(name) for name in kept}, "members": len(event.get("members", []))})
    elif event["event"] == "eval":
        row = next((row for row in reversed(rows) if row["round"] == event.get("round")), None)
        if row is not None:
            row |= {"held_out_loss": event.get("loss"), **(event.get("metrics") or {})}


def curve(rows: Sequence[Mapping[str, Any]], width: int = 480, height: int = 120) -> str:
    """The losses of rounds, and those of evaluations, as a drawing; nothing of fewer than two rounds."""
    lines = []
    for name, colour in (("loss", "currentColor"), ("held_out_loss", "#d33")):
        told = ((row["round"], row.get(name)) for row in rows)
        points = [(at, value) for at, value in told if isinstance(value, (int, float)) and math.isfinite(value)]
        step = max(1, len(points) // width)
        lines.append((points[::step], colour))
    every = [point for points, _ in lines for point in points]
    if len(every) < 2:
        return ""
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*every, strict=True))

    def place(point: tuple[float, float]) -> str:
        x = (point[0] - left) / (right - left or 1) * (width - 8) + 4
        y = (high - point[1]) / (high - low or 1) * (height - 8) + 4
        return f"{x:.1f},{y:.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(map(place, points))}"/>'
        for points, colour in lines
        if points
    )
    title = f"loss from {high:.4g} to {low:.4g}, rounds {left} to {right}"
    return f'<svg width="{width}" height="{height}" role="img"><title>{title}</title>{drawn}</svg>'


def parse_event(line: str) -> Event | None:
    """One line of the JSON log; None if it is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def progress(latest: dict[str, Event]) -> str:
    """One line on how far a run is."""
    done, round_, ready = latest.get("done"), latest.get("round"), latest.get("ready", {})
    if done is not None:
        parts = ["finished" if done.get("finished") else "left", f"after round {done.get('round')}"]
        loss = "held-out loss" if done.get("held_out") else "loss"
        named = {loss: done.get("loss"), **done.get("metrics", {})}
        parts += [f"{name} {value:.4g}" for name, value in named.items() if value is not None]
        return ", ".join(parts)
    if round_ is None:
        return ""
    parts = [f"round {round_['round']}"]
    if ready.get("target"):
        parts.append(f"{100 * round_['counted'] / ready['target']:.0f} %")
    if round_.get("loss") is not None:
        parts.append(f"loss {round_['loss']:.4f}")
    members = len(round_.get("members", []))
    parts.append(f"{members} member{'' if members == 1 else 's'}")
    if round_.get("seconds"):
        parts.append(f"{round_['samples'] / round_['seconds']:.0f} samples/s")
    return ", ".join(parts)


def setting(name: str, value: object) -> str:
    """A setting as the program reads it."""
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def tell_how_to_join(run: Run) -> None:
    """Prints how others join a run."""
    ready = run.latest("ready") or {}
    how = (
        f'annulus.member(model, dataset, ticket="{run.ticket}")'
        if ready.get("task") == "pytorch"
        else f"annulus join {run.ticket}"
    )
    print(f"join from another machine: {how}", file=sys.stderr)
    if run.page and ready.get("takes_tabs"):
        print(f"join from a browser tab:   {run.page}", file=sys.stderr)


def resume(
    folder: str | Path,
    *,
    device: str | None = None,
    listen: str | int = 0,
    options: Sequence[str] = (),
    **settings: object,
) -> Run:
    """Goes on with a run that was started or joined in a folder, from its last checkpoint, with its settings.

    Args:
        folder: the run's folder, such as `run.folder`.
        device: `auto`, `cpu`, `gpu` or `gpu:N`. Default: what the folder keeps.
        listen: the port, or `HOST:PORT`.
        options: further options of `annulus resume`.
        settings: settings of this peer, such as `eval_every=100`.

    Raises:
        ProgramError: the program is missing, or there is no run in the folder.
    """
    command = program.peer_command("resume", device=device, listen=listen, out=None, options=options)
    run = Run([*command, os.fspath(folder), *(setting(name, value) for name, value in settings.items())])
    tell_how_to_join(run)
    return run


def join(
    ticket: str,
    *,
    device: str = "auto",
    listen: str | int = 0,
    out: str | Path | None = None,
    wait: bool = True,
    options: Sequence[str] = (),
) -> Run:
    """Joins a run and computes for it. Needs neither torch nor the model nor the samples.

    Args:
        ticket: what `train` printed, or `@FILE` for a file that holds it.
        device: `auto`, `cpu`, `gpu` or `gpu:N`.
        listen: the port, or `HOST:PORT`.
        out: the folder for checkpoints.
        wait: shows the progress until the run ends. Without it, returns once the peer is ready.
        options: further options of `annulus join`, such as `["--power", "0.5"]`.

    Raises:
        ProgramError: the program is missing, or the run cannot be joined.
    """
    command = program.peer_command("join", device=device, listen=listen, out=out, options=options)
    run = Run([*command, ticket])
    return run.watch() if wait else run
