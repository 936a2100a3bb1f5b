"""A Hugging Face `Trainer` as a member of a run: `from annulus.hf import AnnulusTrainer`."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from .errors import AnnulusError
from .membership import LookAhead, Member, member

#: The run's optimizers by the beginnings of the names that `TrainingArguments.optim` takes.
OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd"}

#: The run's schedules by the names that `TrainingArguments.lr_scheduler_type` takes.
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "linear": "linear",
}


class AnnulusTrainer(Trainer):
    """A `Trainer` that takes part in a run with `annulus.member` until it ends. The rest of an existing script stays:

    ```python
    trainer = AnnulusTrainer(model, args, train_dataset=reviews, annulus={"ticket": "annulus2..."})
    trainer.train()
    ```

    Without a ticket it founds a run with the settings of its `TrainingArguments`, and prints the ticket. A step of the
    trainer is a round of the run, of `per_device_train_batch_size * gradient_accumulation_steps` samples over all members.
    The run has the optimizer and says which samples this member takes; the trainer's own part is at most
    `per_device_train_batch_size` samples at a time.

    Args:
        annulus: arguments of [`annulus.member`][annulus.member], such as `ticket`, `listen` and `out`, and settings of the
            run that win over those of the `TrainingArguments`.

    Raises:
        AnnulusError: an argument asks for what a run does not have.
    """

    def __init__(
        self, model: Any = None, args: Any = None, *more: Any, annulus: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(model, args, *more, **options)
        _refuse(self)
        #: This trainer's part in the run, once it trains.
        self.run: Member | None = None
        self._annulus = dict(annulus or {})
        self._batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        # The run adds up, clips and steps.
        self.args = copy.copy(self.args)
        self.args.gradient_accumulation_steps, self.args.max_grad_norm, self._clip = 1, 0.0, self.args.max_grad_norm
        self.add_callback(_Epochs(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *more: Any, **options: Any) -> Any:
        """Takes part until the run ends, or a callback stops this trainer."""
        if resume_from_checkpoint:
            raise AnnulusError("a run goes on from its own folder: leave resume_from_checkpoint out")
        try:
            return super().train(None, *more, **options)
        finally:
            if self.run is not None:
                self.run.stop()

    def get_train_dataloader(self) -> Any:
        dataset, collate = self.train_dataset, self.data_collator
        if hasattr(dataset, "remove_columns"):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        is_stream = isinstance(dataset, torch.utils.data.IterableDataset)
        length = self._annulus.get("samples") if is_stream else len(dataset)
        if not length:
            raise AnnulusError('how many samples are an epoch of this iterable data set? Pass annulus={"samples": ...}')
        rounds = math.ceil(length / self._batch)
        options = self._annulus if self._annulus.get("ticket") else {**self._settings(rounds), **self._annulus}
        self.run = member(self.model, dataset, collate=collate, **options)
        batches = self.run.loader(
            self.args.train_batch_size,
            workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )
        self._rounds = _Rounds(self, dataset, batches, rounds)
        return self._rounds

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """No norm to log: the gradients are with the run by now."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The run has the optimizer; this one does nothing."""
        self.optimizer = _Idle([p for p in self.model.parameters() if p.requires_grad], {"lr": self.args.learning_rate})
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The run's learning rate, for the log."""
        settings = _schedule(self.args, num_training_steps)
        kind, warmup, floor = settings["schedule"], settings["warmup"], settings.get("floor", 1.0)

        def share(_: int) -> float:
            done = self.state.global_step
            if done < warmup:
                return (done + 1) / (warmup + 1)
            progress = min(1.0, (done - warmup) / max(1, num_training_steps - warmup))
            left = 0.5 * (1 + math.cos(math.pi * progress)) if kind == "cosine" else 1 - progress
            return floor + (1 - floor) * left

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Computes this member's part of a round, of which `inputs` is the first batch. Returns the mean of its losses."""
        assert self.run is not None
        losses, before = [], self.run.contributions
        model.train()
        while inputs is not None:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, self._prepare_inputs(inputs)).mean()
            self.run.backward(loss)
            losses.append(loss.detach())
            inputs = self._rounds.take() if self.run.contributions == before else None
        # Steps follow the samples that the run has counted, of which the newest round may not be told yet. The trainer counts
        # on by one itself, and stops after its last step: not before the run does.
        last = self.state.max_steps - (2 if self._rounds.look_ahead() else 1)
        done = (self.run.latest("round") or {}).get("counted", 0) // self._batch
        self.state.global_step = max(0, min(max(self.state.global_step, done - 1), done, last))
        return torch.stack(losses).mean()

    def set_initial_training_values(self, *given: Any, **named: Any) -> Any:
        """As many epochs as it takes: the run's end ends the training."""
        _, *others = super().set_initial_training_values(*given, **named)
        return sys.maxsize, *others

    def _settings(self, rounds: int) -> dict[str, object]:
        """A run's settings as the arguments say."""
        args = self.args
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * rounds)
        optimizer = next(own for name, own in OPTIMIZERS.items() if _name(args.optim).startswith(name))
        adam = {"beta1": args.adam_beta1, "beta2": args.adam_beta2, "eps": args.adam_epsilon} if optimizer == "adamw" else {}
        schedule = _schedule(args, steps)
        if "schedule" in self._annulus:
            # What else the arguments say belongs to their own schedule.
            schedule = {"warmup": schedule["warmup"]} if schedule["warmup"] else {}
        return {
            "batch": self._batch,
            "rounds": steps,
            "seed": args.seed,
            "optimizer": optimizer,
            "lr": args.learning_rate,
            "weight_decay": args.weight_decay,
            # All but biases and norms.
            "decay": self.get_decay_parameter_names(self.model),
            "clip": self._clip or "off",
            # The trainer has an evaluation set of its own.
            "held_out": 0,
            **schedule,
            **adam,
        }


class _Rounds(LookAhead):
    """The first batch of each round; `training_step` takes the others. It goes on over all epochs until the run ends."""

    def __init__(self, trainer: AnnulusTrainer, dataset: Any, batches: Iterator[Any], rounds: int) -> None:
        super().__init__(batches)
        self._trainer = trainer
        self._length = rounds
        self.dataset = dataset

    def __len__(self) -> int:
        """Rounds in an epoch."""
        return self._length

    def look_ahead(self) -> bool:
        """Whether there is another batch. If there is none, the trainer stops."""
        if not super().look_ahead():
            self._trainer.control.should_training_stop = True
            return False
        return True


class _Idle(torch.optim.Optimizer):
    """Takes no steps."""

    def step(self, closure: Any = None) -> None: ...


class _Epochs(TrainerCallback):
    """Counts epochs by the run's rounds: a member that has joined was not there for all of them."""

    def __init__(self, trainer: AnnulusTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.epoch = state.global_step / len(self._trainer._rounds)


def _schedule(args: Any, steps: int) -> dict[str, Any]:
    """A run's schedule as the arguments say."""
    kind = _name(args.lr_scheduler_type)
    settings = {"schedule": SCHEDULES[kind], "warmup": 0 if kind == "constant" else args.get_warmup_steps(steps)}
    if SCHEDULES[kind] != "constant":
        given = args.lr_scheduler_kwargs or {}
        settings["floor"] = given.get("min_lr_rate") or given.get("min_lr", 0.0) / (args.learning_rate or 1.0)
    return settings


def _refuse(trainer: Trainer) -> None:
    """Fails if the arguments ask for what a run does not have."""
    args = trainer.args
    problems = []
    if args.world_size > 1:
        problems.append("several processes: start one trainer for each device")
    if args.fp16:
        problems.append("fp16, which needs its loss scaled: use bf16")
    if args.label_smoothing_factor or trainer.compute_loss_func is not None:
        problems.append("loss of the trainer's: let the model return it, since others compute with the exported model")
    optimizer, schedule = _name(args.optim), _name(args.lr_scheduler_type)
    if trainer.optimizer is not None:
        problems.append("optimizer of yours: name one by `optim`")
    if not optimizer.startswith(tuple(OPTIMIZERS)):
        problems.append(f"optimizer {optimizer}: it has {' and '.join(OPTIMIZERS)}")
    if schedule not in SCHEDULES:
        problems.append(f"schedule {schedule}: it has {', '.join(SCHEDULES)}")
    known = {"min_lr", "min_lr_rate"} if schedule == "cosine_with_min_lr" else set()
    unknown = sorted(set(args.lr_scheduler_kwargs or {}) - known)
    if unknown:
        problems.append(f"{', '.join(unknown)} of the schedule {schedule}")
    if problems:
        raise AnnulusError("a run has no " + "; and no ".join(problems))


def _name(choice: Any) -> str:
    """A choice among names, which may be an enumeration's."""
    return str(getattr(choice, "value", choice))
