"""`annulus.train`: from a model and samples to a run, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import program, samples
from .checking import check
from .errors import AnnulusError, ProgramError
from .exporter import Decay, Target, write
from .objective import Loss
from .run import Run, setting, tell_how_to_join


def train(
    model: torch.nn.Module,
    dataset: Any,
    *,
    loss: Loss = None,
    target: Target = None,
    collate: samples.Collate = None,
    eval_dataset: Any = None,
    decay: Decay = "matrices",
    frozen_samples: bool = False,
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
        model, dataset, loss, target, collate, eval_dataset, decay, frozen_samples: as in `export`. Without `eval_dataset`, a
            tenth of the data set is held out; see the setting `held_out`.
        device: `auto`, `cpu`, `gpu` or `gpu:N`.
        listen: the port, or `HOST:PORT`. Name one that others can reach.
        to: the folder for the exported model and samples.
        out: the folder for checkpoints, `runs/graph` if it is not given. If it holds this very run, the run goes on.
        checked: compare the gradient on this machine's devices first.
        options: further options of `annulus train`, such as `["--no-announce"]`.
        settings: settings of the run, such as `rounds=2000, batch=64, optimizer="adamw", lr=1e-3`.

    Raises:
        ExportError, CheckError, ProgramError: see `export`, `check` and `Run`.
    """
    if eval_dataset is not None and "held_out" in settings:
        raise AnnulusError("eval_dataset= gives the samples that evaluate, so none are held out: leave held_out= out")
    if not frozen_samples:
        samples.refuse_random(dataset)
    exported = write(
        model,
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
        with exported.explained():
            check(exported.folder, devices=None if device == "auto" else [device.removesuffix("+f16")])
    command = program.peer_command("train", device=device, listen=listen, out=out, options=options)
    pairs = [setting(name, value) for name, value in settings.items()]
    try:
        run = Run([*command, "--task", "graph", "--data", str(exported.folder), *pairs])
    except ProgramError as error:
        if "holds another run" not in str(error):
            raise
        folder = str(out or "runs/graph")
        raise ProgramError(
            f"{folder} holds another run, or the same one with other settings, samples or weights: go on with it by "
            f"annulus.resume({folder!r}), or give out= another folder"
        ) from None
    tell_how_to_join(run)
    return run
