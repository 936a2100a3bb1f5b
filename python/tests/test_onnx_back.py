"""A trained model in its own ONNX file, read by the `onnx` package and computed by ONNX Runtime."""

from __future__ import annotations

import shutil
import unittest
from pathlib import Path

try:
    import numpy as np
    import onnx
    import onnxruntime
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    raise unittest.SkipTest(f"trained ONNX files are tested with {error.name}") from error

from running import WithProgram

from annulus import program
from annulus.run import Run

#: A small model of convolutions, and one batch, as the exporter wrote them once.
FIXTURES = Path(__file__).parents[2] / "graph" / "tests" / "fixtures"
#: Everything stays on this machine, and one thread computes.
LOCAL = ["--device", "cpu", "--listen", "127.0.0.1:0", "--no-announce", "--no-port-mapping"]


class Back(WithProgram):
    command, word = "train", "--log-tickets"

    def setUp(self) -> None:
        super().setUp()
        reference = load_file(FIXTURES / "cnn.safetensors")
        self.batch = {name[6:]: value for name, value in reference.items() if name.startswith("input.")}

    def test_another_program_computes_the_trained_models_loss(self) -> None:
        data = self.folder / "exported"
        data.mkdir()
        shutil.copy(FIXTURES / "cnn.annulus.onnx", data / "model.onnx")
        save_file(self.batch, data / "samples.safetensors")
        before = self.loss(data)
        command = ["train", "--log-format", "json", "--log-tickets", *LOCAL, "--out", str(self.folder / "run")]
        settings = ["--task", "graph", "--data", str(data), "rounds=20", "batch=4", "held_out=0", "lr=1e-2"]
        run = Run([*command, *settings])
        self.addCleanup(run.stop)
        self.assertTrue(run.watch().is_over)
        program.call(["export", str(run.folder), str(data / "model.onnx")])
        after = self.loss(data)
        self.assertLess(after, before)
        file = str(data / "model.onnx")
        onnx.checker.check_model(file, full_check=True)
        (loss, *_) = onnxruntime.InferenceSession(file).run(None, self.batch)
        np.testing.assert_allclose(loss.item(), after, rtol=1e-5)

    def loss(self, data: Path) -> float:
        """Ours, of the model in a folder."""
        out = self.folder / "gradient.safetensors"
        program.call(["gradient", str(data), "--samples", "4", "--out", str(out), "--device", "cpu"])
        return load_file(out)["loss"].item()


if __name__ == "__main__":
    unittest.main()
