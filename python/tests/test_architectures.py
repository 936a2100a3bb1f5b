"""Exports small models of many architectures, and compares what the files compute with PyTorch."""

from __future__ import annotations

import tempfile
import unittest
import warnings
from pathlib import Path

try:
    import onnx
    import torch  # noqa: F401
    from safetensors import safe_open
except ImportError as error:
    raise unittest.SkipTest(f"exports need {error.name}") from error

import evaluate
import models

import annulus
from annulus import program

#: Relative difference of the loss that rounding explains; the evaluator computes in float32.
TOLERANCE = 2e-5


def has_program() -> bool:
    """Whether the program is here and can compute a gradient."""
    try:
        return "--samples" in program.call(["gradient", "--help"])
    except annulus.ProgramError:
        return False


class Architectures(unittest.TestCase):
    """Each model's loss by the reference evaluator, and its gradient by the program where that is built."""

    with_program = has_program()

    def look_at(self, name: str) -> None:
        warnings.simplefilter("ignore")
        try:
            case = models.make(name)
        except ImportError as error:
            self.skipTest(f"{name} needs {error.name}")
        with tempfile.TemporaryDirectory() as scratch:
            folder = case.export(Path(scratch))
            onnx.checker.check_model(folder / "model.onnx", full_check=False)
            with safe_open(folder / "reference.safetensors", "np") as file:
                facts = file.metadata()
            if case.evaluated:
                loss = float(evaluate.evaluate(folder, int(facts["samples"]))[0])
                expected = float(facts["loss"])
                self.assertLess(abs(loss - expected), TOLERANCE * abs(expected), "the reference evaluator's loss")
            if self.with_program:
                annulus.check(folder, devices=["cpu"])

    def test_the_fixture(self) -> None:
        if not self.with_program:
            self.skipTest("the fixture's gradient needs the program: build it, and set ANNULUS_PROGRAM")
        annulus.check(Path(__file__).parent / "fixtures/nanogpt", devices=["cpu"])


def add_test(name: str) -> None:
    setattr(Architectures, f"test_{name}", lambda self: self.look_at(name))


for _name in models.CASES:
    add_test(_name)

if __name__ == "__main__":
    unittest.main()
