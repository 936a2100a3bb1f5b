"""Models and losses as people write them train, and agree with PyTorch."""

from __future__ import annotations

import tempfile
import unittest
import warnings
from pathlib import Path

try:
    import torch  # noqa: F401
    from safetensors import safe_open  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"exports need {error.name}") from error

import as_written
from running import WithProgram


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


def add_test(name: str) -> None:
    setattr(AsWritten, f"test_{name}", lambda self: self.look_at(name))


for _name in as_written.CASES:
    add_test(_name)

if __name__ == "__main__":
    unittest.main()
