"""Takes part in a run with PyTorch, as a process to be killed: `taking_part.py FOLDER WORKERS [TICKET] [KEY=VALUE ...]`.

It founds a run with these settings, or goes on with the run in its folder, or joins with the ticket. `dropout=0` is the
model's; `kind=unexported` is another model. It prints the ticket, then each round's digest, then the loss of the trained model.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from running import LOCAL
from torch import nn

import annulus

SAMPLES = 512


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points on either side of a curve, the same in every process."""
    draw = torch.Generator().manual_seed(7)
    points = torch.rand(SAMPLES, 2, generator=draw) * 2 - 1
    return points, (points[:, 1] > torch.sin(3 * points[:, 0])).long()


def classifier(dropout: float = 0.1, norm: bool = False) -> nn.Module:
    middle = nn.BatchNorm1d(32) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(2, 32), middle, nn.Dropout(dropout), nn.Linear(32, 2))


class Unexported(nn.Module):
    """What the exporter refuses: a moving mean of its own. It has noise, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(2, 32), nn.BatchNorm1d(32), nn.Linear(32, 2)
        self.register_buffer("mean", torch.zeros(32))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.inner(points))
        x = x + 0.1 * torch.randn_like(x)
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.05)
            self.passes += 1
        return self.outer(torch.tanh(x - self.mean))


def leaves_its_history(event: dict[str, Any]) -> bool:
    """Whether the peer's earlier rounds left the run's history, as on a machine so busy that others took it for dead."""
    return event["event"] == "member" and "most members have gone on without this peer" in (event.get("reason") or "")


def main(folder: Path, workers: int, ticket: str | None, given: dict[str, str]) -> None:
    torch.set_num_threads(1)
    # Each process begins with weights of its own: only the founder's count.
    torch.seed()
    kind, dropout = given.pop("kind", None), float(given.pop("dropout", 0.1))
    model, points = Unexported() if kind == "unexported" else classifier(dropout), data()
    # Members that share a processor slow each other down, and all of them are wanted here.
    settings = {} if ticket else {"batch": 32, "rounds": 100_000, "lr": 5e-3, "stand_aside": "off", **given}
    run = annulus.member(
        model, points, ticket=ticket, loss="cross_entropy", to=folder / "model", out=folder / "run", **LOCAL, **settings
    )
    print("ticket", run.ticket, flush=True)

    def tell() -> None:
        for event in run.events():
            if event["event"] == "round":
                print("round", event["round"], event["digest"], len(event["members"]), flush=True)
            elif leaves_its_history(event):
                print("lineage", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt), run:
        for inputs, targets in run.loader(8, workers=workers):
            run.backward(nn.functional.cross_entropy(model(inputs), targets))
    model.eval()
    print("loss", nn.functional.cross_entropy(model(points[0]), points[1]).item(), flush=True)


if __name__ == "__main__":
    tickets = [word for word in sys.argv[3:] if "=" not in word]
    pairs = [word.split("=", 1) for word in sys.argv[3:] if "=" in word]
    main(Path(sys.argv[1]), int(sys.argv[2]), tickets[0] if tickets else None, dict(pairs))
