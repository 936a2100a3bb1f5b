"""The README's lines of Python run as they are printed."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path

try:
    import safetensors  # noqa: F401
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"the README's lines need {error.name}") from error

from running import WithProgram

import annulus

README = Path(__file__).parents[2] / "README.md"


class Readme(WithProgram):
    command, word = "train", "--log-tickets"

    def test_its_lines_train_a_model(self) -> None:
        block = re.search(r"```python\n(import annulus.*?)```", README.read_text(), re.DOTALL)
        assert block is not None
        names: dict[str, object] = {}
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        torch.manual_seed(0)
        exec(block[1], names)
        run, model, samples = names["run"], names["model"], names["samples"]
        assert isinstance(run, annulus.Run) and isinstance(model, torch.nn.Module) and isinstance(samples, tuple)
        done = run.latest("done")
        assert done is not None
        self.assertTrue(done["finished"])
        loss = torch.nn.functional.cross_entropy(model(samples[0]), samples[1]).item()
        # It tells the two arms of the spiral apart; a fresh model's loss is 0.7.
        self.assertLess(loss, 0.1)


if __name__ == "__main__":
    unittest.main()
