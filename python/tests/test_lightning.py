"""Lightning's `Trainer` as a member of a run."""

from __future__ import annotations

import json
import logging
import unittest
import warnings
from types import SimpleNamespace
from typing import Any

try:
    import lightning as L
    import safetensors  # noqa: F401
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"the Lightning strategy needs {error.name}") from error

import by_lightning
from by_lightning import BATCH, ROUNDS, Classifier, Plain
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from running import PART, WithMembers
from taking_part import SAMPLES
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

import annulus
from annulus.lightning import _of_optimizer, _of_schedule


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Points(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return zip(*by_lightning.data(), strict=True)


class Manual(Classifier):
    automatic_optimization = False


class Clipping(Classifier):
    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None: ...


class Scheduled(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Shifted(Classifier):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] + 1, batch[1]]


class Adagrad(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adagrad(self.parameters())


class Settings(unittest.TestCase):
    def of(self, make: Any, interval: str = "step", rounds: int = 20) -> dict[str, object]:
        """The settings for a scheduler, in epochs of ten rounds."""
        optimizer = torch.optim.SGD(Classifier().parameters(), lr=0.1)
        config = SimpleNamespace(scheduler=make(optimizer), interval=interval, frequency=1)
        return _of_schedule([config], rounds, 10)

    def test_schedulers_of_pytorch_become_the_runs_own(self) -> None:
        of = self.of
        self.assertEqual(
            of(lambda o: schedules.StepLR(o, 3, 0.5)), {"schedule": "step", "step_size": 3, "gamma": 0.5, "lr": 0.1}
        )
        self.assertEqual(of(lambda o: schedules.StepLR(o, 3), "epoch")["step_size"], 30)
        line = {"schedule": "linear", "floor": 0.2, "lr": 0.1}
        self.assertEqual(of(lambda o: schedules.LinearLR(o, 1.0, 0.2, 20)), line)
        self.assertEqual(of(lambda o: schedules.LinearLR(o, 0.2, 1.0, 4)), {"schedule": "warmup", "warmup": 4, "lr": 0.1})
        cosine = {"schedule": "cosine", "floor": 0.25, "lr": 0.1}
        self.assertEqual(of(lambda o: schedules.CosineAnnealingLR(o, 20, 0.025)), cosine)
        cycle = of(lambda o: schedules.OneCycleLR(o, 0.4, total_steps=20, pct_start=0.25, cycle_momentum=False))
        self.assertEqual(cycle, {"schedule": "one-cycle", "pct_start": 0.25, "lr": 0.4})

    def test_schedulers_that_are_not_quite_the_same_are_none(self) -> None:
        for make in (
            lambda o: schedules.ExponentialLR(o, 0.9),
            lambda o: schedules.LinearLR(o, 1.0, 0.2, 19),
            lambda o: schedules.LinearLR(o),
            lambda o: schedules.CosineAnnealingLR(o, 10),
            lambda o: schedules.OneCycleLR(o, 0.4, total_steps=20, cycle_momentum=False, div_factor=10),
            lambda o: schedules.OneCycleLR(o, 0.4, total_steps=20, cycle_momentum=False, anneal_strategy="linear"),
            lambda o: schedules.OneCycleLR(o, 0.4, total_steps=20, cycle_momentum=False, three_phase=True),
        ):
            self.assertEqual(self.of(make), {})
        self.assertEqual(self.of(lambda o: schedules.CosineAnnealingLR(o, 2), "epoch"), {})

    def test_groups_may_differ_in_weight_decay_alone(self) -> None:
        module = Classifier()
        named = dict(module.named_parameters())
        everything, problem = _of_optimizer(torch.optim.AdamW(named.values(), weight_decay=0.1), module)
        self.assertEqual((everything["decay"], everything["weight_decay"], problem), (list(named), 0.1, None))
        split = [[p for p in named.values() if p.dim() == axes] for axes in (1, 2)]
        groups = [{"params": split[0], "weight_decay": 0.0}, {"params": split[1], "weight_decay": 0.3}]
        some, problem = _of_optimizer(torch.optim.AdamW(groups), module)
        self.assertEqual(some["decay"], [name for name, p in named.items() if p.dim() == 2])
        self.assertEqual((some["weight_decay"], problem), (0.3, None))
        for other in ({"weight_decay": 0.2}, {"lr": 0.5}):
            _, problem = _of_optimizer(torch.optim.AdamW([{**groups[0], **other}, groups[1]]), module)
            self.assertIn("these parameter groups differ", problem or "")


class Strategies(WithMembers):
    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(3)
        caught = warnings.catch_warnings()
        caught.__enter__()
        self.addCleanup(caught.__exit__, None, None, None)
        # Lightning's advice on readers and logs.
        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def fit(self, module: L.LightningModule, annulus: dict[str, Any] | None = None, **options: Any) -> L.Trainer:
        """A run of one member."""
        loaders = options.pop("loaders", None) or by_lightning.loaders()
        trainer = by_lightning.trainer(self.folder, annulus or {}, **{"enable_checkpointing": False, **options})
        trainer.fit(module, **loaders)
        return trainer

    def assert_refused(self, why: str, *arguments: Any, **options: Any) -> None:
        with self.assertRaisesRegex(annulus.AnnulusError, why):
            self.fit(*arguments, **{"max_steps": 2, **options})
        self.assertFalse((self.folder / "run").exists(), "it began a run")

    def test_two_of_them_train_one_model(self) -> None:
        first = self.script(by_lightning.__file__, str(self.folder / "first"))
        (ticket,) = first.wait_for("ticket")
        ends = [by_lightning.fit_to_the_end(self.folder / "second", ticket), first.wait_for("end")]
        (digest, step, score, total, own), (other_digest, other_step, other_score, other_total, other) = ends
        self.assertEqual((digest, total), (other_digest, other_total))
        self.assertEqual((int(step), int(other_step)), (ROUNDS, ROUNDS))
        self.assertEqual(score, other_score)
        self.assertGreater(float(score), 0.8)
        # Members get samples by their speed, so one of them may have none in any round, but not both.
        self.assertGreaterEqual(int(own) + int(other), ROUNDS)
        for name in ("first", "second"):
            self.audit(self.folder / name / "run")

    def test_one_computes_beside_a_member_of_ours_until_it_has_done_its_part(self) -> None:
        class Stop(L.Callback):
            def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
                trainer.should_stop = trainer.strategy.run.contributions >= PART

        ours = self.found_ours(Classifier(), by_lightning.data(), loss="cross_entropy")
        run = self.fit(Classifier(), {"ticket": ours.ticket}, max_steps=1, callbacks=[Stop()]).strategy.run
        self.assert_did_its_part(run, ours)

    def test_one_alone_takes_its_settings_logs_and_saves(self) -> None:
        module = Classifier(betas=(0.8, 0.95), weight_decay=0.1)
        before = module.net[0].weight.detach().clone()
        # Also of an epoch that is no better than the one before.
        saved = ModelCheckpoint(monitor="accuracy", mode="max", save_top_k=-1, save_last=True)
        logger = CSVLogger(self.folder, name="log", version=0)
        limits = {"max_epochs": 2, "gradient_clip_val": 0.5, "log_every_n_steps": 4}
        trainer = self.fit(module, callbacks=[saved], logger=logger, enable_checkpointing=True, **limits)
        rounds = 2 * SAMPLES // BATCH
        run = trainer.strategy.run
        done = run.latest("done") or {}
        self.assertEqual((done["finished"], done["round"], run.contributions), (True, rounds, rounds))
        self.assertEqual((trainer.global_step, trainer.current_epoch, trainer.max_epochs), (rounds, 2, 2))
        last = run.latest("round") or {}
        self.assertEqual(last["counted"], 2 * SAMPLES)
        self.assertFalse(torch.equal(module.net[0].weight, before))
        manifest = json.loads((self.folder / "run/manifest.json").read_text())
        self.assertEqual((manifest["batch"], manifest["clip"], manifest["schedule"]), (BATCH, 0.5, "constant"))
        adam = {"lr": manifest["lr"], **manifest["optimizer"]["adamw"]}
        wanted = {"lr": 2e-2, "beta1": 0.8, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
        self.assertEqual({name: float(f"{adam[name]:.6g}") for name in wanted}, wanted, adam)
        state = torch.load(saved.last_model_path, weights_only=True)
        self.assertEqual(state["global_step"], rounds)
        self.assertTrue(torch.equal(state["state_dict"]["net.0.weight"], module.net[0].weight))
        rows = (self.folder / "log/version_0/metrics.csv").read_text()
        for name in ("loss_step", "loss_epoch", "mean_loss", "accuracy"):
            self.assertIn(name, rows)
        self.audit(self.folder / "run")

    def test_an_epoch_has_as_many_rounds_as_the_trainer_takes_batches(self) -> None:
        trainer = self.fit(Classifier(), max_epochs=2, max_steps=-1, limit_train_batches=2)
        self.assertEqual(trainer.global_step, 4)

    def test_a_loss_by_name_is_for_a_step_that_cannot_be_exported(self) -> None:
        with self.assertRaisesRegex(annulus.ExportError, "(?s)training_step cannot be exported.* pass loss="):
            self.fit(Plain(), {"export": True}, max_steps=4)
        trainer = self.fit(Plain(), {"loss": "cross_entropy", "rounds": 5}, max_steps=4)
        self.assertEqual(trainer.global_step, 5)

    def test_a_step_that_cannot_be_exported_trains_with_pytorch_alone(self) -> None:
        trainer = self.fit(Plain(), max_steps=4)
        self.assertEqual(((trainer.strategy.run.latest("ready") or {})["task"], trainer.global_step), ("pytorch", 4))

    def test_a_stream_is_trained_on(self) -> None:
        loaders = {"train_dataloaders": DataLoader(Points(), BATCH)}
        trainer = by_lightning.trainer(self.folder, {"samples": SAMPLES}, max_epochs=1)
        trainer.fit(Classifier(), **loaders)
        self.assertEqual(trainer.global_step, SAMPLES // BATCH)

    def test_a_callback_stops_it_and_another_fit_goes_on(self) -> None:
        class Stop(L.Callback):
            def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
                trainer.should_stop = trainer.global_step >= 5

        trainer = self.fit(Classifier(), max_steps=60, callbacks=[Stop()])
        # The trainer's step is at most the run's, whose last rounds may not be told yet.
        self.assertGreaterEqual(trainer.global_step, 5)
        self.assertEqual(trainer.max_steps, 60)
        self.assertFalse((trainer.strategy.run.latest("done") or {})["finished"])
        again = self.fit(Classifier(), max_steps=60)
        self.assertEqual(again.global_step, 60)
        self.assertLessEqual(again.strategy.run.contributions, 60 - 5)
        self.audit(self.folder / "run")

    def test_what_a_run_does_not_have_is_refused_before_it_begins(self) -> None:
        for why, options in (
            ("one device", {"devices": 2}),
            ("precision 16-true", {"precision": "16-true"}),
            ("in place of accumulate_grad_batches", {"accumulate_grad_batches": 2}),
            ("clips by the norm", {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}),
            ("leave overfit_batches out", {"overfit_batches": 2}),
            ("needs an end", {"max_steps": -1, "max_epochs": -1}),
        ):
            self.assert_refused(why, Classifier(), **options)
        for why, module in (
            ("automatic_optimization=False", Manual()),
            ("would change: configure_gradient_clipping", Clipping()),
            ("no such schedule", Scheduled()),
            ("no optimizer Adagrad", Adagrad()),
            ("adamw has no amsgrad", Classifier(amsgrad=True)),
        ):
            self.assert_refused(why, module)
        self.assert_refused("without on_after_batch_transfer", Shifted(), {"loss": "cross_entropy"})
        # All at once.
        self.assert_refused("one device.*in place of.*amsgrad", Classifier(amsgrad=True), devices=2, accumulate_grad_batches=2)

    def test_loaders_that_choose_samples_themselves_are_refused(self) -> None:
        drawn = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
        two = [by_lightning.loaders()["train_dataloaders"] for _ in range(2)]
        for why, loaders in (
            ("Pass samples= to the strategy", {"train_dataloaders": DataLoader(Stream())}),
            ("no sampler of yours", by_lightning.loaders(shuffle=False, sampler=drawn)),
            ("one training loader", {"train_dataloaders": two}),
            ("needs a DataLoader", {"train_dataloaders": [1, 2, 3]}),
        ):
            self.assert_refused(why, Classifier(), loaders=loaders)

    def test_a_checkpoint_is_no_place_to_go_on_from(self) -> None:
        trainer = L.Trainer(
            max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=self.folder
        )
        trainer.fit(Classifier(), **by_lightning.loaders())
        trainer.save_checkpoint(self.folder / "own.ckpt")
        again = by_lightning.trainer(self.folder, {}, max_steps=2)
        with self.assertRaisesRegex(annulus.AnnulusError, "leave ckpt_path out"):
            again.fit(Classifier(), **by_lightning.loaders(), ckpt_path=self.folder / "own.ckpt")


if __name__ == "__main__":
    unittest.main()
