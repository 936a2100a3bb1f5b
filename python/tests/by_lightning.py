"""Founds a run of two members with a Lightning `Trainer`: `by_lightning.py FOLDER`.

It prints the ticket, and at the end what `fit_to_the_end` returns.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from running import LOCAL
from taking_part import classifier, data
from torch.utils.data import DataLoader, TensorDataset

from annulus.lightning import AnnulusStrategy

ROUNDS, BATCH = 150, 32


class Classifier(L.LightningModule):
    """A user's module. It knows nothing of a run."""

    def __init__(self, **adam: Any) -> None:
        super().__init__()
        self.net = classifier()
        self.adam = {"lr": 2e-2, **adam}
        #: As many modules note losses for the end of an epoch.
        self.losses: list[torch.Tensor] = []

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.net(points)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        points, labels = batch
        loss = torch.nn.functional.cross_entropy(self(points), labels)
        self.log("loss", loss, on_epoch=True)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean_loss", torch.stack(self.losses).mean())
        self.losses.clear()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        points, labels = batch
        self.log("accuracy", (self(points).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), **self.adam)


class Plain(Classifier):
    """Its forward pass and loss are for others; its training step cannot be exported."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("same", loss.item())
        return loss


def loaders(size: int = BATCH, **options: Any) -> dict[str, Any]:
    samples = TensorDataset(*data())
    return {
        "train_dataloaders": DataLoader(samples, size, **{"shuffle": True, **options}),
        "val_dataloaders": DataLoader(samples, 128),
    }


def trainer(folder: Path, annulus: dict[str, Any], **options: Any) -> L.Trainer:
    """A script's trainer."""
    torch.set_num_threads(1)
    strategy = AnnulusStrategy(**{"to": folder / "model", "out": folder / "run", **LOCAL, **annulus})
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return L.Trainer(
        **{"accelerator": "cpu", "devices": 1, "default_root_dir": folder / "trainer", **quiet, **options}, strategy=strategy
    )


class Tell(L.Callback):
    """Prints the ticket once there is a run."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        print("ticket", trainer.strategy.run.ticket, flush=True)


def fit_to_the_end(folder: Path, ticket: str | None = None) -> list[str]:
    """Takes part in a run of two members. Each begins with weights of its own: only the founder's count.

    Returns the digest, the trainer's step, the accuracy on its validation set, the sum of the absolute parameters, and the
    number of contributions.
    """
    torch.manual_seed(1 if ticket is None else 2)
    # The run has four times as many samples in a round as this one computes at once.
    annulus = {"min_peers": 2, "batch": BATCH} if ticket is None else {"ticket": ticket}
    own, module = trainer(folder, annulus, max_steps=ROUNDS, callbacks=[Tell()] if ticket is None else []), Classifier()
    own.fit(module, **loaders(BATCH // 4))
    run = own.strategy.run
    done = run.latest("done") or {}
    total = sum(float(parameter.detach().double().abs().sum()) for parameter in module.parameters())
    score = own.callback_metrics["accuracy"].item()
    return [str(each) for each in (done["digest"], own.global_step, score, total, run.contributions)]


if __name__ == "__main__":
    print("end", *fit_to_the_end(Path(sys.argv[1])), flush=True)
