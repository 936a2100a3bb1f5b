"""Models and losses as people write them train, and agree with PyTorch."""

from __future__ import annotations

import copy
import tempfile
import unittest
import warnings
from pathlib import Path

try:
    import torch
    from safetensors import safe_open  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"exports need {error.name}") from error

import as_written
from running import LOCAL, WithProgram

import annulus

#: Of the six steps.
RATE = 0.05


class AsWritten(WithProgram):
    """Each is exported, and its loss and gradient by the program are PyTorch's."""

    command, word = "gradient", "--samples"

    def look_at(self, name: str) -> None:
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as scratch:
            try:
                as_written.try_out(name, Path(scratch))
            except ImportError as error:
                self.skipTest(f"{name} needs {error.name}")

    def test_six_steps_end_where_pytorch_ends(self) -> None:
        warnings.simplefilter("ignore")
        for name in ("mingpt", "lstm_decoder_of_an_encoder", "switch_transformer_with_balance", "straight_through"):
            with self.subTest(name):
                case = as_written.make(name)
                whole, columns = as_written.objective_of(case)
                expected = copy.deepcopy(whole).train()
                optimizer = torch.optim.SGD(expected.parameters(), lr=RATE)
                for _ in range(6):
                    optimizer.zero_grad()
                    expected(*columns)[0].backward()
                    optimizer.step()
                before = {key: value.clone() for key, value in case.model.state_dict().items()}
                settings = {"held_out": 0, "batch": len(columns[0]), "rounds": 6, "optimizer": "sgd", "lr": RATE}
                run = annulus.train(
                    case.model,
                    case.samples,
                    loss=case.loss,
                    device="cpu",
                    to=self.folder / name,
                    out=self.folder / f"{name}-run",
                    **LOCAL,
                    **{**settings, "clip": "off"},
                )
                trained = run.load_into(case.model).state_dict()
                own = expected.model.state_dict()
                moved = sum(float(((own[key] - before[key]) ** 2).sum()) for key in own)
                apart = sum(float(((own[key] - trained[key]) ** 2).sum()) for key in own)
                self.assertLess(apart, 1e-8 * moved)


def add_test(name: str) -> None:
    setattr(AsWritten, f"test_{name}", lambda self: self.look_at(name))


for _name in as_written.CASES:
    add_test(_name)

if __name__ == "__main__":
    unittest.main()
