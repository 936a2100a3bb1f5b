"""Brings trained parameters back into a PyTorch model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import torch
from safetensors.torch import load_file

from .errors import AnnulusError


def load(file: str | os.PathLike[str], model: torch.nn.Module) -> None:
    """Copies the tensors of a safetensors file into a model of the same names and shapes.

    Raises:
        AnnulusError: a trained parameter is missing from the file, the model lacks one, or shapes differ. The model is then
            as it was.
    """
    trained = load_file(file)
    places = fit(model, {name: tensor.shape for name, tensor in trained.items()})
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(trained[name].reshape(place.shape))


def fit(model: torch.nn.Module, shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """A model's own tensors by the names that a run trains, tied ones under any of their names. Buffers may be among them.

    Raises:
        AnnulusError: the run lacks a trained parameter, the model lacks one, or shapes differ.
    """
    state = {**dict(model.named_buffers()), **model.state_dict(keep_vars=True)}
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    problems = [f"the run has no {name}" for name in sorted(wanted - shapes.keys())]
    for name, shape in shapes.items():
        if name not in state:
            problems.append(f"the model has no {name}")
        # A number without axes is a vector of one there.
        elif state[name].shape != torch.Size(shape) and (state[name].dim(), math.prod(shape)) != (0, 1):
            problems.append(f"{name} is {list(state[name].shape)} in the model and {list(shape)} in the run")
    if problems:
        raise AnnulusError("the trained parameters do not fit the model: " + "; ".join(problems))
    return {name: state[name] for name in shapes}
