"""Hugging Face's `Trainer` as a member of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from typing import Any

try:
    import accelerate  # noqa: F401
    import safetensors  # noqa: F401
    import torch
    import transformers  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"the trainer needs {error.name}") from error

import by_trainer

import annulus
from annulus import program


class Trainers(unittest.TestCase):
    def setUp(self) -> None:
        try:
            told = program.call(["join", "--help"])
        except annulus.ProgramError as error:
            self.skipTest(f"members need the program: {error}")
        if "--external" not in told:
            self.skipTest("members need a program of this version")
        scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def start(self, name: str, *ticket: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, by_trainer.__file__, str(self.folder / name), *ticket],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(annulus.__file__).parents[1])},
        )
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def read(self, process: subprocess.Popen[str], first: str) -> list[str]:
        """The words of the line that begins with this word."""
        assert process.stdout is not None
        words = next((line.split() for line in process.stdout if line.startswith(first)), None)
        assert words is not None, f"it ended without {first}"
        return words[1:]

    def audit(self, name: str) -> dict[str, Any]:
        report = json.loads(program.call(["inspect", self.folder / name / "run", "--json"]).splitlines()[-1])
        self.assertTrue(report["audit"]["sound"], report)
        return report

    def test_two_of_them_train_one_model(self) -> None:
        first = self.start("first")
        second = self.start("second", *self.read(first, "ticket"))
        ends = [self.read(process, "end") for process in (first, second)]
        (digest, step, score, total, own), (other_digest, other_step, other_score, other_total, other) = ends
        self.assertEqual((digest, total), (other_digest, other_total))
        self.assertEqual((int(step), int(other_step)), (by_trainer.ROUNDS, by_trainer.ROUNDS))
        self.assertGreater(min(float(score), float(other_score)), 0.9)
        self.assertGreater(min(int(own), int(other)), by_trainer.ROUNDS // 2)
        for name in ("first", "second"):
            self.audit(name)

    def test_one_alone_counts_steps_and_epochs_as_rounds(self) -> None:
        trainer = by_trainer.trainer(self.folder, {}, max_steps=-1, num_train_epochs=2, save_strategy="epoch")
        before = trainer.model.classifier.weight.detach().clone()
        trainer.train()
        rounds = 2 * by_trainer.SAMPLES // by_trainer.BATCH
        self.assertEqual((trainer.state.global_step, trainer.state.epoch), (rounds, 2.0))
        assert trainer.run is not None
        self.assertTrue(trainer.run.is_over)
        done = trainer.run.latest("done") or {}
        self.assertEqual((done["finished"], done["round"]), (True, rounds))
        last = trainer.run.latest("round") or {}
        self.assertEqual(last["counted"], 2 * by_trainer.SAMPLES)
        self.assertFalse(torch.equal(trainer.model.classifier.weight, before))
        saved = sorted(path.name for path in (self.folder / "trainer").glob("checkpoint-*"))
        self.assertEqual(saved, [f"checkpoint-{rounds}", f"checkpoint-{rounds // 2}"])
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
        self.assertTrue(rates and all(0 < rate <= 5e-3 for rate in rates), rates)
        self.audit(".")

    def test_what_a_run_does_not_have_is_refused_at_once(self) -> None:
        for options, why in (
            ({"lr_scheduler_type": "polynomial"}, "no schedule polynomial"),
            ({"optim": "adafactor"}, "no optimizer adafactor"),
            ({"label_smoothing_factor": 0.1}, "no loss of the trainer's"),
        ):
            with self.assertRaisesRegex(annulus.AnnulusError, why):
                by_trainer.trainer(self.folder, {}, **options)
        with self.assertRaisesRegex(annulus.AnnulusError, "from its own folder"):
            by_trainer.trainer(self.folder, {}).train(resume_from_checkpoint=True)

    def test_a_linear_schedule_becomes_a_cosine_with_a_warning(self) -> None:
        trainer = by_trainer.trainer(self.folder, {}, lr_scheduler_type="linear")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            settings = trainer._settings(8)
        self.assertEqual(settings["schedule"], "cosine")
        self.assertIn("cosine to a tenth", str(told[-1].message))


if __name__ == "__main__":
    unittest.main()
