"""`annulus.train`: from a model and samples to a run, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import program
from .checking import check
from .exporter import write
from .objective import Loss
from .run import Run, setting, tell_how_to_join


def train(
    model: torch.nn.Module,
    dataset: Any,
    *,
    loss: Loss = None,
    target: str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    eval_dataset: Any = None,
    device: str = "auto",
    listen: str | int = 0,
    to: str | Path = "annulus-model",
    out: str | Path | None = None,
    checked: bool = True,
    options: Sequence[str] = (),
    **settings: object,
) -> Run:
    """Starts a run that trains a model on a data set. Others join it with the ticket that is printed.

    The model is exported, its gradient is compared with PyTorch's, and a peer starts as a child process. The call returns
    when the peer is ready; `Run.watch` shows the progress, and `Run.load_into` waits for the end and loads the result.

    Args:
        model, dataset, loss, target, collate: as in `export`.
        eval_dataset: samples that only evaluate. Without it, a tenth of the data set is held out; see the setting `held_out`.
        device: `auto`, `cpu`, `gpu` or `gpu:N`.
        listen: the port, or `HOST:PORT`. Name one that others can reach.
        to: the folder for the exported model and samples.
        out: the folder for checkpoints. The default is the program's.
        checked: compare the gradient on this machine's devices first.
        options: further options of `annulus train`, such as `["--no-announce"]`.
        settings: settings of the run, such as `rounds=2000, batch=64, optimizer="adamw", lr=1e-3`.

    Raises:
        ExportError, CheckError, ProgramError: see `export`, `check` and `Run`.
    """
    exported = write(model, None, to=to, loss=loss, dataset=dataset, target=target, collate=collate, evaluate=eval_dataset)
    if exported.held_out is not None:
        settings = {"held_out": exported.held_out, "held_out_by": "last", **settings}
    if checked:
        with exported.explained():
            check(exported.folder, devices=None if device == "auto" else [device.removesuffix("+f16")])
    command = program.peer_command("train", device=device, listen=listen, out=out, options=options)
    pairs = [setting(name, value) for name, value in settings.items()]
    run = Run([*command, "--task", "graph", "--data", str(exported.folder), *pairs])
    tell_how_to_join(run)
    return run
