"""Hugging Face's `Trainer` as a member of a run."""

from __future__ import annotations

import unittest
from typing import Any

try:
    import accelerate  # noqa: F401
    import numpy as np
    import safetensors  # noqa: F401
    import torch
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"the trainer needs {error.name}") from error

import by_trainer
from running import PART, WithMembers

import annulus
from annulus.hf import _schedule


class Trainers(WithMembers):
    def test_two_of_them_train_one_model(self) -> None:
        first = self.script(by_trainer.__file__, str(self.folder / "first"))
        (ticket,) = first.wait_for("ticket")
        ends = [by_trainer.train_to_the_end(self.folder / "second", ticket), first.wait_for("end")]
        (digest, step, score, total, own), (other_digest, other_step, other_score, other_total, other) = ends
        self.assertEqual((digest, total), (other_digest, other_total))
        self.assertEqual((int(step), int(other_step)), (by_trainer.ROUNDS, by_trainer.ROUNDS))
        self.assertGreater(min(float(score), float(other_score)), 0.9)
        # Members get samples by their speed, so one of them may have none in any round, but not both.
        self.assertGreaterEqual(int(own) + int(other), by_trainer.ROUNDS)
        for name in ("first", "second"):
            self.audit(self.folder / name / "run")

    def test_one_computes_beside_a_member_of_ours_until_it_has_done_its_part(self) -> None:
        class Stop(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop |= trainer.run.contributions >= PART

        ours = self.found_ours(by_trainer.classifier(), by_trainer.pad(by_trainer.texts(by_trainer.SAMPLES, 1)))
        trainer = by_trainer.trainer(self.folder, {"ticket": ours.ticket})
        trainer.add_callback(Stop())
        trainer.train()
        self.assert_did_its_part(trainer.run, ours)

    def test_one_alone_counts_steps_and_epochs_as_rounds(self) -> None:
        trainer = by_trainer.trainer(self.folder, {}, max_steps=-1, num_train_epochs=2, save_strategy="epoch", logging_steps=1)
        before = trainer.model.classifier.weight.detach().clone()
        trainer.train()
        rounds = 2 * by_trainer.SAMPLES // by_trainer.BATCH
        self.assertEqual((trainer.state.global_step, trainer.state.epoch), (rounds, 2.0))
        assert trainer.run is not None
        self.assertTrue(trainer.run.is_over)
        done = trainer.run.latest("done") or {}
        self.assertEqual((done["finished"], done["round"]), (True, rounds))
        self.assertEqual((trainer.run.latest("round") or {})["counted"], 2 * by_trainer.SAMPLES)
        self.assertFalse(torch.equal(trainer.model.classifier.weight, before))
        # The trainer's step is at most the run's, whose last rounds may not be told yet before the end.
        first, last = sorted(int(path.name.split("-")[1]) for path in (self.folder / "trainer").glob("checkpoint-*"))
        self.assertIn(first, range(1, rounds // 2 + 1))
        self.assertEqual(last, rounds)
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
        self.assertTrue(rates and all(0 < rate <= 5e-3 for rate in rates), rates)
        self.audit(self.folder / "run")

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

    def test_schedules_are_those_of_transformers(self) -> None:
        cosine, least = {"schedule": "cosine", "warmup": 0}, {"min_lr_rate": 0.2}
        for kind, more, expected in (
            ("linear", {}, {"schedule": "linear", "warmup": 0, "floor": 0.0}),
            ("cosine", {}, {**cosine, "floor": 0.0}),
            ("cosine_with_min_lr", {"lr_scheduler_kwargs": least}, {**cosine, "floor": 0.2}),
            ("constant", {}, {"schedule": "constant", "warmup": 0}),
        ):
            trainer = by_trainer.trainer(self.folder, {}, lr_scheduler_type=kind, warmup_steps=0, **more)
            self.assertEqual(dict(_schedule(trainer.args, 8)), expected)
            ours, theirs = [], []
            optimizer = torch.optim.SGD(trainer.model.parameters(), lr=trainer.args.learning_rate)
            scheduler = trainer.create_scheduler(8, optimizer)
            other = torch.optim.SGD(trainer.model.parameters(), lr=trainer.args.learning_rate)
            reference = transformers.get_scheduler(kind, other, 0, 8, trainer.args.lr_scheduler_kwargs or {})
            for step in range(1, 9):
                trainer.state.global_step = step
                optimizer.step(), other.step(), scheduler.step(), reference.step()
                ours.append(scheduler.get_last_lr()[0])
                theirs.append(reference.get_last_lr()[0])
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-12)
        # Of a warm-up only the steps are the same: transformers begin with a step at a rate of 0.
        trainer = by_trainer.trainer(self.folder, {}, lr_scheduler_type="constant_with_warmup", warmup_steps=3)
        self.assertEqual(_schedule(trainer.args, 8), {"schedule": "constant", "warmup": 3})
        # Settings of the run's own win, with none that belong to the arguments' schedule.
        own = by_trainer.trainer(self.folder, {"schedule": "step", "step_size": 3}, warmup_steps=0)._settings(8)
        self.assertEqual(own.keys() & {"schedule", "warmup", "floor"}, set())
        with self.assertRaisesRegex(annulus.AnnulusError, "no num_cycles of the schedule cosine"):
            by_trainer.trainer(self.folder, {}, lr_scheduler_kwargs={"num_cycles": 2})

    def test_what_decays_is_what_transformers_decay(self) -> None:
        trainer = by_trainer.trainer(self.folder, {}, weight_decay=0.1)
        named = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
        groups = transformers.Trainer.create_optimizer(trainer).param_groups
        decayed = [named[id(parameter)] for group in groups if group["weight_decay"] for parameter in group["params"]]
        self.assertEqual(sorted(trainer._settings(8)["decay"]), sorted(decayed))
        self.assertTrue(decayed and len(decayed) < len(named))


if __name__ == "__main__":
    unittest.main()
