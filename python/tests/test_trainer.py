"""Hugging Face's `Trainer` as a member of a run."""

from __future__ import annotations

import unittest
import warnings

try:
    import accelerate  # noqa: F401
    import safetensors  # noqa: F401
    import torch
    import transformers  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"the trainer needs {error.name}") from error

import by_trainer
from running import WithScripts

import annulus


class Trainers(WithScripts):
    script = by_trainer.__file__

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
