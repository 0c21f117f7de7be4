"""Differential privacy of single training samples: DP-SGD inside clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from fl_lightning._lightning.evaluation.predictions import preserved_modes
from fl_lightning._lightning.evaluation.unlogged import UnloggedTraining
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.loops.local_optimizers import unscale_before_hooks
from fl_lightning._lightning.trainer_callbacks import check_alone
from fl_lightning.data import FederatedDataModule
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchanges.privacy.accounting import (
    check_installed,
    check_nothing_spent,
    epsilon_of_clients,
    warn_of_large_delta,
)
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.part import walk
from fl_lightning.parts.samples import is_mean_of_samples, not_a_mean
from fl_lightning.seeding import global_states, preserved_generators, set_global_states
from fl_lightning.settings import NotNegative, Positive, Probability, check, to_number


class ExamplePrivacy(Callback):
    """DP-SGD inside clients (Abadi et al. 2016): each sample's gradient is clipped, and their sum gets noise.

    The gradient of a batch becomes ``(sum_i g_i min(1, clip / |g_i|) + N(0, (z clip)^2)) / n``, with the gradients of
    single samples by ``torch.func`` through the module's own ``training_step``. It runs before the other callbacks,
    because the aggregation callback may add a local objective's term to the private gradient.

    The loss must be a mean over samples of losses of single samples. On each batch the mean of the samples' gradients
    is compared with the batch's own gradient; a step with dropout runs once more for that, without it.

    The guarantee protects a single sample against everyone who sees what clients send, including the server. Two
    federations are neighbours if one sample of one is left empty in the other. A sample is in one batch of each local
    epoch, so an epoch is one Gaussian mechanism. ``fed/example_epsilon`` counts the local epochs of the client that
    trained most often. The accounting claims no gain from shuffling batches or drawing clients, because no published
    analysis covers both together.

    Args:
        clip: Largest norm of a sample's gradient, greater than 0.
        noise_multiplier: z, at least 0.
        delta: Probability with which the guarantee may fail, in (0, 1); well below 1 over the number of samples.

    Raises:
        ModuleNotFoundError: If dp-accounting is not installed.
        ValueError: If an argument is out of its range; when the fit begins, for a module, data or an algorithm for
            which the figure would not be right.

    Example:
        >>> privacy = ExamplePrivacy(clip=1.0, noise_multiplier=1.0, delta=1e-3)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[privacy, FedAvg(2)])
        >>> trainer.fit(module, datamodule=data)
        >>> privacy.spent  # epsilon
    """

    def __init__(self, clip: float, *, noise_multiplier: float, delta: float) -> None:
        check("`clip`", clip, Positive)
        check("`noise_multiplier`", noise_multiplier, NotNegative)
        check("`delta`", delta, Probability)
        check_installed()
        self.clip = to_number(clip)
        self.noise_multiplier = to_number(noise_multiplier)
        self.delta = to_number(delta)
        #: How often each client went through its data, by the noise multiplier of then.
        self._epochs: dict[float, Counter[int]] = {}
        #: The clients of the present round, and how often each went through its data.
        self._new: list[tuple[int, int]] = []
        #: The batch of the step that is to be taken, and its number.
        self._batch: tuple[Any, int] | None = None
        #: The number of rounds that are counted.
        self._rounds = 0
        #: Sums of the parameters that the last fit left.
        self._left: list[float] = []

    @property
    def spent(self) -> float:
        """Epsilon so far, of a sample of the client that trained most often; see :func:`epsilon_of_clients`."""
        return epsilon_of_clients(self._epochs, self.delta)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Start to count if the fit begins with its first round; a checkpoint's state comes later.

        Raises:
            ValueError: If the trainer has another such callback.
        """
        why = "gradients would be clipped and get noise twice, and neither epsilon would be right"
        check_alone(self, ExamplePrivacy, trainer, "callbacks for the privacy of samples", why)
        # Its gradient replaces the batch's own one, so what others add to gradients must come later.
        fit = fit_trainer(trainer)
        fit.callbacks = [self, *(each for each in fit.callbacks if each is not self)]
        if stage == "fit" and trainer.current_epoch == 0:
            if self._left == _sums(pl_module):
                check_nothing_spent("ExamplePrivacy", self.spent)
            self._epochs = {}
            self._rounds = 0

    # ---- unsupported modules, data and algorithms ----

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that the figure will be right.

        Raises:
            ValueError: If it would not be.
        """
        self._check(trainer, pl_module)
        unscale_before_hooks(trainer.optimizers)
        samples = int(_loop_of(trainer).data.client_sizes.sum())
        warn_of_large_delta("ExamplePrivacy", self.delta, samples, "samples")

    def _check(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        reason = self._reason(trainer, module)
        if reason:
            raise ValueError(f"ExamplePrivacy would log a wrong epsilon for this run: {reason}")

    def _reason(self, trainer: pl.Trainer, module: pl.LightningModule) -> str:
        """Return why the figure would be wrong; the empty string if it will be right."""
        algorithms = [getattr(callback, "algorithm", None) for callback in fit_trainer(trainer).callbacks]
        if not any(isinstance(algorithm, Algorithm) for algorithm in algorithms):
            return "it needs an aggregation callback, such as FedAvg(), beside it in `Trainer(callbacks=[...])`."
        algorithm = _loop_of(trainer).algorithm
        objective = algorithm.objective
        sampler = algorithm.sampler
        schedule = algorithm.schedule
        if _reads_data(objective) or sampler.sends_scores or schedule.sends_choice:
            return (
                f"with {type(objective).__name__}, {type(sampler).__name__} and {type(schedule).__name__} clients send "
                "more of their data than noised gradients, or may. Use FedAvg, FedProx or FedDyn, without a sampler "
                "that asks for scores."
            )
        if _loop_of(trainer).data.changes is not None:
            return "the clients' samples change from round to round. Leave out `changes` of the data module."
        if self._rounds != trainer.current_epoch:
            return (
                f"{trainer.current_epoch - self._rounds} of the {trainer.current_epoch} rounds before the checkpoint "
                "ran without it. Resume a run that had it from the first round."
            )
        if any(isinstance(each, _BatchNorm) for each in module.modules()):
            return "BatchNorm mixes the samples of a batch. Use GroupNorm."
        if not module.automatic_optimization or trainer.accumulate_grad_batches != 1:
            return "it needs automatic optimisation, and a step for each batch."
        # The integer 1 is one batch, and the number 1.0 is all of them.
        limit = trainer.limit_train_batches
        is_limited = isinstance(limit, int) or limit != 1.0
        if is_limited or getattr(fit_trainer(trainer).datamodule, "sampler", None) is not None:
            return "a sample must be in one batch of each local epoch. Leave out `sampler` and `limit_train_batches`."
        return ""

    # ---- steps ----

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the batch for the step."""
        self._batch = batch, batch_idx

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Replace the gradient by a private one.

        Raises:
            ValueError: If this is not the batch's only step: each would give away more; or if the loss is no mean over
                samples.
            RuntimeError: If ``training_step`` cannot be mapped over samples.
        """
        if self._batch is None:
            raise ValueError(
                "ExamplePrivacy would log a wrong epsilon for this run: the optimizer takes more than one gradient of "
                "a batch, as LBFGS and some `optimizer_step`s do. Use an optimizer that takes one, such as SGD or Adam."
            )
        batch, batch_idx = self._batch
        self._batch = None
        parameters = {}
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                parameters[name] = parameter
        quiet = _loop_of(trainer).training.quiet
        try:
            gradients = _of_samples(quiet, parameters, batch, batch_idx)
        except RuntimeError as error:
            raise RuntimeError(
                "ExamplePrivacy needs a `training_step` that torch.func can map over single samples: without "
                f"`.item()`, branches on values, and layers that change buffers. {error}"
            ) from error
        norms = _norms(gradients)
        is_finite = norms.isfinite()
        are_finite = bool(is_finite.all())
        if are_finite:
            is_exact = trainer.precision in ("32-true", "64-true")
            of_batch = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
            if not _agree(of_batch, gradients, norms, is_exact):
                # Dropout draws other numbers for the samples than for their batch, so both are compared without it.
                states = global_states(pl_module.device)
                with preserved_modes(pl_module), preserved_generators(pl_module.device):
                    pl_module.eval()
                    of_samples = _of_samples(quiet, parameters, batch, batch_idx)
                    set_global_states(states, pl_module.device)
                    of_batch = _of_batch(quiet, parameters, batch, batch_idx)
                if not _agree(of_batch, of_samples, _norms(of_samples), is_exact):
                    raise not_a_mean("ExamplePrivacy")
        # A norm of 0 gives the share 1.
        shares = (self.clip / norms).clamp(max=1.0)
        if not are_finite:
            # One sample without a finite gradient must not decide what becomes of its client.
            shares = shares.where(is_finite, torch.zeros_like(norms))
            gradients = {name: gradient.nan_to_num() for name, gradient in gradients.items()}
        for name, parameter in parameters.items():
            total = torch.tensordot(shares, gradients[name], dims=1)
            noise = self.noise_multiplier * self.clip * torch.randn_like(total)
            parameter.grad = (total + noise) / len(shares)

    # ---- accounts ----

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin a round, and check again: the sampler or a setting may have been changed since the last one."""
        self._check(trainer, pl_module)
        self._new = []

    def on_client_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, result: ClientResult) -> None:
        """Note how often the client went through its data.

        Raises:
            ValueError: If training changed buffers, which would reach the server without noise.
        """
        loop = _loop_of(trainer)
        if result.changes_buffers and loop.algorithm.buffers != "server":
            raise ValueError(
                "ExamplePrivacy would log a wrong epsilon for this run: training changes buffers of the module, such "
                'as running statistics. Give `buffers="server"`, which drops the clients\' buffers, or use layers '
                "without statistics, such as GroupNorm."
            )
        client = result.task.client
        epochs = result.task.work
        if epochs is None:
            epochs = loop.settings.full_work
        if loop.settings.local_steps is not None:
            # The work is a number of steps.
            epochs = math.ceil(epochs / loop.data.num_client_batches(client))
        self._new.append((client, epochs))

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the round up."""
        for of_process in _loop_of(trainer).gather_objects(self._new):
            for client, epochs in of_process:
                counts = self._epochs.setdefault(self.noise_multiplier, Counter())
                counts[client] += epochs
        self._new = []
        self._rounds = trainer.current_epoch + 1

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note which model the fit left."""
        self._left = _sums(pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log epsilon and its delta."""
        several = trainer.world_size > 1
        pl_module.log("fed/example_epsilon", self.spent, prog_bar=True, sync_dist=several)
        pl_module.log("fed/example_delta", self.delta, sync_dist=several)

    def state_dict(self) -> dict[str, Any]:
        """Return what was spent."""
        epochs = {noise: dict(counts) for noise, counts in self._epochs.items()}
        return {"epochs": epochs, "rounds": self._rounds, "epsilon": self.spent, "delta": self.delta}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what a checkpoint's run has spent."""
        self._epochs = {noise: Counter(counts) for noise, counts in state_dict["epochs"].items()}
        self._rounds = state_dict["rounds"]


class _LocalWork(Protocol):
    full_work: int
    local_steps: int | None


class _Training(Protocol):
    quiet: UnloggedTraining


class _Loop(Protocol):
    """The attributes that are read here of a federated fit's loop, which a room above makes."""

    algorithm: Algorithm
    data: FederatedDataModule
    settings: _LocalWork
    training: _Training

    def gather_objects(self, mine: object) -> list[Any]: ...


def _loop_of(trainer: pl.Trainer) -> _Loop:
    return cast(_Loop, trainer.fit_loop)


def _reads_data(objective: LocalObjective) -> bool:
    """Whether more of the data than gradients of ``training_step`` may reach the server."""
    if objective.vectors_sent > 1 or objective.sends_loss or objective.sends_numbers:
        return True
    objectives = [part for part in walk(objective) if isinstance(part, LocalObjective)]
    return not all(part.uses_gradients_alone for part in objectives)


def _sums(module: nn.Module) -> list[float]:
    return [float(parameter.detach().double().sum()) for parameter in module.parameters()]


def _of_samples(
    quiet: UnloggedTraining, parameters: Mapping[str, nn.Parameter], batch: Any, batch_idx: int
) -> dict[str, Tensor]:
    """Return each sample's gradient of the loss by parameter name, shape ``(n, *shape)``."""
    leaves, structure = pytree.tree_flatten(batch)

    def loss(values: dict[str, Tensor], leaves_of_sample: list[Tensor]) -> Tensor:
        batch_of_one = pytree.tree_unflatten([leaf.unsqueeze(0) for leaf in leaves_of_sample], structure)
        found = quiet.loss_of_step(values, batch_of_one, batch_idx)
        assert found is not None
        return found

    values = {name: parameter.detach() for name, parameter in parameters.items()}
    # The samples lie along the first dimension of the leaves, and share the parameters.
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="different")
    found: dict[str, Tensor] = gradients(values, leaves)
    return found


def _of_batch(
    quiet: UnloggedTraining, parameters: Mapping[str, nn.Parameter], batch: Any, batch_idx: int
) -> dict[str, Tensor]:
    """Return the batch's gradient of the loss by parameter name."""
    values = {name: parameter.detach().clone().requires_grad_() for name, parameter in parameters.items()}
    with torch.enable_grad():
        loss = quiet.loss_of_step(values, batch, batch_idx)
        assert loss is not None
        gradients = torch.autograd.grad(loss, list(values.values()), materialize_grads=True)
    return dict(zip(values, gradients, strict=True))


def _agree(batch: Mapping[str, Tensor], samples: Mapping[str, Tensor], norms: Tensor, exact: bool) -> bool:
    """Return whether a batch's gradient is the mean of its samples' gradients.

    Args:
        batch: The batch's gradient.
        samples: The samples' gradients, shape ``(n, *shape)`` each.
        norms: Their norms, shape ``(n,)``.
        exact: Whether the gradients are computed in full precision.
    """
    mean = {name: gradient.mean(0) for name, gradient in samples.items()}
    return is_mean_of_samples(batch, mean, float(norms.mean()), exact=exact)


def _norms(samples: Mapping[str, Tensor]) -> Tensor:
    """Return the norm of each sample's gradient, shape ``(n,)``."""
    squares = [gradient.reshape(len(gradient), -1).square().sum(1) for gradient in samples.values()]
    return torch.stack(squares).sum(0).sqrt()
