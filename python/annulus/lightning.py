"""A Lightning `Trainer` as a member of a run: `from annulus.lightning import AnnulusStrategy`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from .errors import AnnulusError, ExportError
from .membership import LookAhead, Member, member
from .objective import Loss
from .samples import refuse_unusable

#: The run's optimizers by PyTorch's classes.
OPTIMIZERS: dict[type, str] = {
    torch.optim.AdamW: "adamw",
    torch.optim.Adam: "adam",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.SGD: "sgd",
}

#: What a run's optimizers do not have, besides RMSprop's momentum.
ABSENT = ("amsgrad", "centered", "dampening", "maximize")

#: Why a scheduler is refused.
NO_SCHEDULE = (
    "a run has no such schedule: it has StepLR; by step also CosineAnnealingLR, LinearLR from 1 and OneCycleLR with "
    "cycle_momentum=False over all rounds, and LinearLR up to 1 as a warm-up. Or give the strategy schedule="
)

#: Precisions in which the parameters and gradients are the run's own numbers.
PRECISIONS = ("32-true", "bf16-mixed")

#: Hooks of a module that would change what the run does by itself.
HOOKS = ("backward", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad")

#: Hooks that change a batch before `training_step`.
BATCH_HOOKS = ("on_before_batch_transfer", "on_after_batch_transfer")


class AnnulusStrategy(SingleDeviceStrategy):
    """A strategy by which a `Trainer` takes part in a run with `annulus.member` until it ends. The rest stays as it is:

    ```python
    trainer = L.Trainer(max_steps=2000, strategy=AnnulusStrategy(ticket="annulus2..."))
    trainer.fit(module, train_dataloaders=loader)
    ```

    Without a ticket it founds a run and prints the ticket. `max_steps` or `max_epochs`, `gradient_clip_val`, the loader's
    batch size and the optimizer of `configure_optimizers` become the run's settings. A step of the trainer is a round of
    the run. The run has the optimizer, and says which samples this member takes. It computes at most the loader's batch
    size at once.

    Args:
        ticket: the ticket of the run to join.
        loss, target: of a run that is founded here. By default others compute the loss of `training_step`. With a loss, as in
            `annulus.train`, they compute it from the outputs of `forward`; it must be the loss that `training_step` returns.
        options: further arguments of [`annulus.member`][annulus.member], such as `listen` and `out`, and settings of the run
            such as `batch=256`. They win over those of the trainer.

    Raises:
        AnnulusError: when the fit begins, if the trainer or the module asks for what a run does not have.
    """

    def __init__(self, ticket: str | None = None, *, loss: Loss = None, target: str | None = None, **options: Any) -> None:
        super().__init__()
        #: The devices and nodes of the trainer, which sets them.
        self.parallel_devices: list[torch.device] | None = None
        self.num_nodes = 1
        #: This trainer's part in the run, once it fits.
        self.run: Member | None = None
        self._options: dict[str, Any] = {"ticket": ticket, "loss": loss, "target": target, **options}
        self._rounds: _Rounds | None = None
        #: The most samples in a round so far.
        self._most = 1
        #: What `training_step` takes besides the batch.
        self._beside: tuple[Any, ...] = ()
        #: The trainer's own limits while the run's end is the only one.
        self._limits: tuple[Any, ...] | None = None

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0] if self.parallel_devices else super().root_device

    def setup(self, trainer: Trainer) -> None:
        # `configure_optimizers` may ask for the loader already, to count steps.
        self._rounds, self._most = None, 1
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        trainer.fit_loop.setup_data()
        module, rounds = self.lightning_module, self._rounds
        assert module is not None
        settings: dict[str, object] = {}
        problems = _problems(trainer, module, self, rounds)
        if self._options["ticket"] is None:
            settings, unknown = self._settings(trainer)
            problems += unknown
        if problems or rounds is None:
            raise AnnulusError("; ".join(problems))
        # The run has the optimizer and its schedule.
        self.optimizers = [_Idle(optimizer.param_groups) for optimizer in self.optimizers]
        self.lr_scheduler_configs = []
        self.run = self._take_part(trainer, module, rounds.loader, settings)
        rounds.batches = self.run.loader(rounds.loader.batch_size, **_reading(rounds.loader))
        fit, steps = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._limits = fit.min_epochs, fit.max_epochs, steps.min_steps, steps.max_steps
        fit.min_epochs, fit.max_epochs, steps.min_steps, steps.max_steps = 0, -1, None, -1

    def process_dataloader(self, dataloader: object) -> object:
        """Replaces the training loader by the run's. Others stay as they are."""
        assert self.lightning_module is not None
        if not self.lightning_module.trainer.training:
            return dataloader
        if not isinstance(dataloader, DataLoader):
            raise AnnulusError(f"a run needs a DataLoader to train on, not a {type(dataloader).__name__}")
        refuse_unusable(dataloader.dataset)
        if isinstance(dataloader.dataset, IterableDataset) and not self._options.get("samples"):
            raise AnnulusError("how many samples are an epoch of this iterable data set? Pass samples= to the strategy")
        self._rounds = _Rounds(dataloader, self._options)
        return self._rounds

    def training_step(self, batch: Any, *beside: Any) -> Any:
        self._beside = beside
        output = super().training_step(batch, *beside)
        if output is None:
            raise AnnulusError("training_step returned None: a run needs a loss of each batch")
        return output

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Gives the gradient to the run. After the last batch of a round, the module has the next parameters."""
        module = self.lightning_module
        assert self.run is not None and module is not None
        loss = self.precision_plugin.pre_backward(closure_loss, module)
        self.run.backward(loss)
        return self.precision_plugin.post_backward(loss, module)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **_: Any) -> Any:
        """Computes this member's part of a round: the trainer's batch by its closure, and the others if there are more."""
        assert self.run is not None and self._rounds is not None
        before = self.run.contributions
        loss = closure()
        while self.run.contributions == before and (batch := self._rounds.take()) is not None:
            output = self.training_step(self._move(batch), *self._beside)
            self.backward(output["loss"] if isinstance(output, Mapping) else output, optimizer)
        self._count(self.run, self._rounds)
        return loss

    def teardown(self) -> None:
        """Leaves the run, if it has not ended."""
        if self.run is not None:
            self.run.stop()
        module = self.lightning_module
        if self._limits is not None and module is not None:
            fit, steps = module.trainer.fit_loop, module.trainer.fit_loop.epoch_loop
            fit.min_epochs, fit.max_epochs, steps.min_steps, steps.max_steps = self._limits
            self._limits = None
        super().teardown()

    def _take_part(self, trainer: Trainer, module: LightningModule, loader: Any, settings: dict[str, object]) -> Member:
        options = {**settings, **self._options}
        collate = None if loader.collate_fn is default_collate else loader.collate_fn
        # A trainer can be neither copied nor recorded.
        module.trainer = None
        try:
            founds = options["ticket"] is None and options["loss"] is None
            step = _Step(copy.deepcopy(module)) if founds else None
            return member(module, loader.dataset, collate=collate, exported=step, **options)
        except ExportError as error:
            if options["loss"] is not None:
                raise
            raise ExportError(
                f"training_step cannot be exported: {error}. Or leave training_step as it is and pass loss= to the strategy: "
                "then others compute that loss of the outputs of forward"
            ) from error
        finally:
            module.trainer = trainer

    def _settings(self, trainer: Any) -> tuple[dict[str, object], list[str]]:
        """A run's settings as the trainer and the module say, and what neither of them nor the strategy's options say."""
        given, problems = self._options, []
        # The trainer may take fewer batches than the loader has.
        epoch = 0 if self._rounds is None else int(trainer.num_training_batches)
        # The trainer has an evaluation set of its own.
        settings: dict[str, object] = {"held_out": 0, "clip": trainer.gradient_clip_val or "off", "schedule": "constant"}
        if self._rounds is not None:
            settings["batch"] = self._rounds.loader.batch_size
        if "rounds" not in given and "epochs" not in given:
            limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
            if trainer.max_epochs is not None and trainer.max_epochs >= 0:
                limits.append(trainer.max_epochs * epoch)
            if limits:
                settings["rounds"] = min(limits)
            else:
                problems.append("a run needs an end: give the trainer max_steps or max_epochs, or the strategy rounds=")
        # The exported step has the module's hooks, and the exported forward pass has none.
        owners = [trainer.datamodule, self.lightning_module if given["loss"] is not None else None]
        hooks = [name for name in BATCH_HOOKS if any(is_overridden(name, owner) for owner in owners)]
        if hooks:
            problems.append(f"others would compute without {', '.join(hooks)}: change the batch in training_step or forward")
        if "optimizer" not in given:
            made, problem = _of_optimizer(self.optimizers[0], self.lightning_module)
            settings.update(made)
            problems += [problem] if problem else []
        if self.lr_scheduler_configs and "schedule" not in given:
            rounds = {**settings, **given}.get("rounds")
            made = _of_schedule(self.lr_scheduler_configs, rounds or given.get("epochs", 0) * epoch, epoch)
            settings.update(made)
            problems += [] if made else [NO_SCHEDULE]
        return settings, problems

    def _move(self, batch: Any) -> Any:
        """A batch on the device, as the trainer moves its own."""
        module = self.lightning_module
        assert module is not None
        batch = module._on_before_batch_transfer(self.precision_plugin.convert_input(batch))
        return self.batch_to_device(batch)

    def _count(self, run: Member, rounds: _Rounds) -> None:
        """Sets the trainer's step to the run's, and stops the trainer if the run has ended."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        has_ended = not rounds.look_ahead()
        told = run.latest("round") or {"samples": 0, "counted": 0}
        # A round from which a member has dropped out has fewer samples than a batch, and one that waits for members has none.
        self._most = max(self._most, told["samples"])
        done = told["counted"] // self._most
        # While the run goes on, its newest round may not be told yet.
        step = done if has_ended else max(done, min(trainer.global_step + 1, done + 1))
        # The trainer adds the last one itself.
        steps = trainer.fit_loop.epoch_loop
        steps.automatic_optimization.optim_progress.optimizer.step.total.completed = max(0, step - 1)
        steps._batches_that_stepped = max(0, step - 1)
        if has_ended:
            trainer.should_stop = True


class _Rounds(LookAhead):
    """The first batch of each round; the strategy takes the others. It goes on over all epochs until the run ends."""

    def __init__(self, loader: DataLoader[Any], options: Mapping[str, Any]) -> None:
        super().__init__(iter(()))
        self.loader = loader
        self._batch, self._samples = options.get("batch"), options.get("samples")

    def __len__(self) -> int:
        """Rounds in an epoch."""
        dataset: Any = self.loader.dataset
        if self._samples is None and self._batch is None:
            return len(self.loader)
        return math.ceil((self._samples or len(dataset)) / (self._batch or self.loader.batch_size))


class _Step(torch.nn.Module):
    """A module whose forward pass is `training_step`, with parameters of the same names."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self._modules, self._parameters, self._buffers = module._modules, module._parameters, module._buffers
        self.training = module.training
        # Not as a part, which would add to the names.
        self.__dict__["_of"] = module

    def forward(self, *columns: torch.Tensor, **named: torch.Tensor) -> Any:
        module: LightningModule = self.__dict__["_of"]
        batch: Any = named or list(columns)
        batch = module.on_after_batch_transfer(module.on_before_batch_transfer(batch, 0), 0)
        takes_number = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        return module.training_step(batch, *([0] if takes_number else []))


class _Idle(torch.optim.Optimizer):
    """Takes no steps, and leaves the gradients to the run."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {})

    def step(self, closure: Any = None) -> Any: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...


def _problems(trainer: Any, module: LightningModule, strategy: AnnulusStrategy, rounds: _Rounds | None) -> list[str]:
    """What the trainer, the module and the loader ask for and a run does not have."""
    problems = []
    if len(strategy.parallel_devices or ()) > 1 or strategy.num_nodes > 1:
        problems.append("a member has one device: set devices=1 and num_nodes=1, and start one trainer for each device")
    if not module.automatic_optimization:
        problems.append("a run has the optimizer: automatic_optimization=False leaves it to the module")
    if strategy.precision_plugin.precision not in PRECISIONS:
        problems.append(f"precision {strategy.precision_plugin.precision}: take {' or '.join(PRECISIONS)}")
    if trainer.accumulate_grad_batches > 1 or any(isinstance(c, GradientAccumulationScheduler) for c in trainer.callbacks):
        problems.append("a run adds up gradients by itself: give the strategy batch= in place of accumulate_grad_batches")
    if trainer.ckpt_path:
        problems.append("a run goes on from its own folder: leave ckpt_path out")
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm not in (None, "norm"):
        problems.append("a run clips by the norm: gradient_clip_algorithm must be norm")
    if trainer.overfit_batches:
        problems.append("a run trains on the whole data set: leave overfit_batches out")
    if trainer.reload_dataloaders_every_n_epochs:
        problems.append("a run has one data set: leave reload_dataloaders_every_n_epochs out")
    hooks = [name for name in HOOKS if is_overridden(name, module)]
    if hooks:
        problems.append(f"the run does what these methods of the module would change: {', '.join(hooks)}")
    if rounds is None:
        problems.append("there is no batch to train on")
    elif trainer.train_dataloader is not rounds:
        problems.append("a run has one training loader")
    else:
        sampler = rounds.loader.sampler
        is_plain = type(sampler) in (RandomSampler, SequentialSampler) or isinstance(rounds.loader.dataset, IterableDataset)
        if rounds.loader.batch_size is None or not is_plain:
            problems.append("the run draws the samples: give the training loader batch_size= and no sampler of yours")
    return problems


def _of_schedule(configs: Sequence[Any], rounds: int, epoch: int) -> dict[str, object]:
    """A run's settings for a scheduler of PyTorch's; none if the run has no such schedule. `epoch`: its rounds."""
    config = configs[0]
    if len(configs) > 1 or config.frequency != 1 or config.scheduler.last_epoch > 0:
        return {}
    scheduler, by_epoch = config.scheduler, config.interval == "epoch"
    group = scheduler.optimizer.param_groups[0]
    kind, lr = type(scheduler), group.get("initial_lr", group["lr"])
    made: dict[str, object] = {}
    if kind is schedules.StepLR:
        size = scheduler.step_size * (epoch if by_epoch else 1)
        made = {"schedule": "step", "step_size": size, "gamma": scheduler.gamma}
    elif by_epoch:
        # The rate would stay during an epoch.
        return {}
    elif kind is schedules.CosineAnnealingLR and scheduler.T_max == rounds:
        made = {"schedule": "cosine", "floor": scheduler.eta_min / lr}
    elif kind is schedules.LinearLR and scheduler.start_factor == 1 and scheduler.total_iters == rounds:
        made = {"schedule": "linear", "floor": scheduler.end_factor}
    elif kind is schedules.LinearLR and scheduler.end_factor == 1:
        steps = scheduler.total_iters
        if math.isclose(scheduler.start_factor * (steps + 1), 1):
            made = {"schedule": "warmup", "warmup": steps}
    elif kind is schedules.OneCycleLR and scheduler.total_steps == rounds and not scheduler.cycle_momentum:
        # Its phases tell the rest of its arguments.
        phases, lr = scheduler._schedule_phases, group["max_lr"]
        share = (phases[0]["end_step"] + 1) / rounds
        usual = schedules.OneCycleLR(
            torch.optim.SGD([torch.zeros(1)], lr=1.0), lr, total_steps=rounds, pct_start=share, cycle_momentum=False
        )
        rates = usual.optimizer.param_groups[0]
        same = all(math.isclose(rates[name], group[name]) for name in ("initial_lr", "min_lr"))
        if len(phases) == 2 and scheduler._anneal_func_type == "cos" and same:
            made = {"schedule": "one-cycle", "pct_start": share}
    return {**made, "lr": float(lr)} if made else {}


def _of_optimizer(optimizer: torch.optim.Optimizer, module: Any) -> tuple[dict[str, object], str | None]:
    """A run's settings for an optimizer of a module's parameters, or why there are none."""
    pass_one = "pass optimizer=, lr= and the like to the strategy"
    kind = OPTIMIZERS.get(type(optimizer))
    if kind is None:
        return {}, f"a run has no optimizer {type(optimizer).__name__}: {pass_one}"
    apart = ("params", "weight_decay")
    first, *others = [{name: value for name, value in group.items() if name not in apart} for group in optimizer.param_groups]
    decays = {group["weight_decay"] for group in optimizer.param_groups}
    if any(other != first for other in others) or len(decays - {0}) > 1:
        return {}, f"a run has one learning rate and one weight decay, and these parameter groups differ: {pass_one}"
    absent = [name for name in ABSENT if first.get(name)]
    if kind == "rmsprop" and first["momentum"]:
        absent.append("momentum")
    if absent:
        return {}, f"a run's {kind} has no {', '.join(absent)}: {pass_one}"
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    settings: dict[str, object] = {
        # A scheduler may have changed it already.
        "lr": float(first.get("initial_lr", first["lr"])),
        "weight_decay": max(decays),
        "decay": [name for name, parameter in module.named_parameters() if id(parameter) in decayed] or "matrices",
    }
    if kind in ("adam", "adamw"):
        beta1, beta2 = first["betas"]
        settings.update(beta1=float(beta1), beta2=float(beta2), eps=first["eps"])
    elif kind == "rmsprop":
        settings.update(alpha=first["alpha"], eps=first["eps"])
    elif first["momentum"]:
        kind = "nesterov" if first["nesterov"] else "momentum"
        settings["momentum"] = first["momentum"]
    return {"optimizer": kind, **settings}, None


def _reading(loader: DataLoader[Any]) -> dict[str, Any]:
    """How a loader reads, for `Member.loader`."""
    return {
        "workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
    }
