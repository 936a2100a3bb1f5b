"""Brings trained parameters back into a PyTorch model."""

from __future__ import annotations

import os

import torch
from safetensors.torch import load_file

from .errors import AnnulusError


def load(file: str | os.PathLike[str], model: torch.nn.Module) -> None:
    """Copies the tensors of a safetensors file into a model of the same names and shapes.

    Raises:
        AnnulusError: a trained parameter is missing from the file, the model lacks one, or shapes differ. The model is then
            as it was.
    """
    trained, state = load_file(file), model.state_dict(keep_vars=True)
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    problems = [f"the run has no {name}" for name in sorted(wanted - trained.keys())]
    for name, tensor in trained.items():
        if name not in state:
            problems.append(f"the model has no {name}")
        # A number without axes is a vector of one there.
        elif state[name].shape != tensor.shape and (state[name].dim(), tensor.numel()) != (0, 1):
            problems.append(f"{name} is {list(state[name].shape)} in the model and {list(tensor.shape)} in the run")
    if problems:
        raise AnnulusError("the trained parameters do not fit the model: " + "; ".join(problems))
    with torch.no_grad():
        for name, tensor in trained.items():
            state[name].copy_(tensor.reshape(state[name].shape))
