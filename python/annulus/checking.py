"""Compares the gradient that Annulus computes for an exported folder with PyTorch's.

The export holds PyTorch's gradient of a few samples in float64, and how far PyTorch's own float32 is from it. This module
needs no torch, so any machine can check its devices.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from . import program
from .errors import CheckError, ProgramError

REFERENCE = "reference.safetensors"

#: Of other samples. A number that is rounded another way may be on the other side of a ReLU's 0. That happens in few batches,
#: and a wrong operation is wrong in all.
SECOND_REFERENCE = "reference-2.safetensors"

#: How much farther than PyTorch's float32 a device may be from float64. It tolerates models whose gradient is
#: ill-conditioned, and nothing else.
FACTOR = 3.0

#: Distances that are always allowed: float32 rounds in another order. Measured on 14 models: at most 9.5e-7 on the CPU and
#: 1.5e-5 on a software GPU, whose functions round more.
ALWAYS_ALLOWED = {"cpu": 2e-6, "gpu": 2e-5}

#: How the program says that there is no GPU.
NO_GPU = "no GPU found"


@dataclass(frozen=True)
class Measurement:
    """How one device compares with PyTorch in float64."""

    device: str
    #: Distance of the whole gradient, relative to its norm.
    error: float
    #: Relative distance of the loss.
    loss_error: float
    #: The largest `error` that passes.
    allowed: float
    #: The parameter whose gradient is farthest off, and its distance relative to the whole gradient's norm.
    worst: tuple[str, float]

    @property
    def is_close(self) -> bool:
        """Whether gradient and loss agree with PyTorch's."""
        return self.error <= self.allowed and self.loss_error <= self.allowed


def check(folder: str | os.PathLike[str], *, devices: Sequence[str] | None = None) -> list[Measurement]:
    """Compares the loss and the gradient of a few samples on this machine's devices with PyTorch's.

    Args:
        folder: what `export` wrote.
        devices: `cpu`, `gpu` or `gpu:N`. Default: the CPU, and the GPU if there is one.

    Raises:
        CheckError: a device computes something else than PyTorch.
        ProgramError: the program failed, such as on an operation that it does not know.
    """
    path = Path(folder) / REFERENCE
    if not path.is_file():
        raise CheckError(f"{path} is missing: export the model again")
    measured = []
    for device in devices or ("cpu", "gpu"):
        try:
            one = _measured(folder, device, path)
        except ProgramError as error:
            if devices is None and NO_GPU in str(error):
                continue
            raise
        second = Path(folder) / SECOND_REFERENCE
        if not one.is_close and second.is_file():
            one = _measured(folder, device, second)
        measured.append(one)
    for one in measured:
        if not one.is_close:
            raise CheckError(
                f"on {one.device} the gradient is {one.error:.1e} off PyTorch's and the loss {one.loss_error:.1e}, more than "
                f"{one.allowed:.1e}; most of it in {one.worst[0]}. Please report the model's layers"
            )
    return measured


def _measured(folder: str | os.PathLike[str], device: str, path: Path) -> Measurement:
    with safe_open(path, "np") as file:
        facts: dict[str, str] = file.metadata()
    return compare(device, gradient(folder, device, int(facts["samples"])), load_file(path), facts)


def gradient(folder: str | os.PathLike[str], device: str, samples: int) -> dict[str, np.ndarray]:
    """The loss and the gradient of the first samples, as the program computes them on a device."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "gradient.safetensors"
        program.call(["gradient", folder, "--samples", str(samples), "--out", out, "--device", device, "--training"])
        return load_file(out)


def compare(device: str, made: dict[str, np.ndarray], expected: dict[str, np.ndarray], facts: dict[str, str]) -> Measurement:
    """Measures a gradient against the reference."""
    missing = sorted(expected.keys() - made.keys())
    if missing:
        raise CheckError(f"on {device} there is no gradient of {', '.join(missing)}")

    def square(array: np.ndarray) -> float:
        return float(np.sum(np.square(array, dtype=np.float64)))

    norm = sum(map(square, expected.values())) ** 0.5 or 1.0
    apart = {name: square(made[name].reshape(own.shape) - own) ** 0.5 / norm for name, own in expected.items()}
    # A parameter may have the name.
    name = "loss"
    while name in expected:
        name += "_"
    loss, right = float(made[name].reshape(())), float(facts["loss"])
    always = ALWAYS_ALLOWED["cpu" if device == "cpu" else "gpu"]
    return Measurement(
        device,
        error=sum(value**2 for value in apart.values()) ** 0.5,
        loss_error=abs(loss - right) / (abs(right) or 1.0),
        allowed=max(FACTOR * float(facts["torch_error"]), always),
        worst=max(apart.items(), key=lambda item: item[1]),
    )
