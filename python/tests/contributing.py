"""Measures what a contribution costs PyTorch beside its own work: `contributing.py SHAPES`, where SHAPES is JSON.

The process that starts it has the other end of its standard input, in place of the program. It prints a line for each
contribution: seconds of its own work, of loading parameters, and of handing in gradients.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

import torch
from torch import nn

from annulus import membership


class Above(membership._Channel):
    """The channel to the process that has started this one."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=0)
        self._unread = bytearray()


class Measured(membership.Member):
    """A member without a program of its own, which notes how long it copies."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._dataset, self._feed = model, range(9), None
        self._places, self._sum = [], membership._Sum()
        self._owes_sum = self._is_leaving = False
        self._is_trial, self.contributions = True, 0
        self._channel = Above()
        self.loading = self.handing_in = self.computing = 0.0

    def _load(self, fresh: bool) -> None:
        before = time.perf_counter()
        super()._load(fresh)
        self.loading = time.perf_counter() - before

    def _answer(self, loss: float, count: int) -> None:
        seconds = [self.computing, self.loading, time.perf_counter() - self.handing_in]
        print(json.dumps(seconds), flush=True)
        super()._answer(loss, count)

    def _hand_in(self) -> None:
        self.handing_in = time.perf_counter()
        super()._hand_in()

    def compute(self) -> None:
        while (share := self._listen()) is not None:
            before = time.perf_counter()
            loss: Any = sum((parameter * parameter).sum() for parameter in self._model.parameters())
            self._sum.add(loss / 2, len(share))
            self.computing = time.perf_counter() - before


if __name__ == "__main__":
    Measured(nn.ParameterList(torch.zeros(shape) for shape in json.loads(sys.argv[1]))).compute()
