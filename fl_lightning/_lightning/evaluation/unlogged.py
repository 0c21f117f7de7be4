"""Losses, gradients and steps beside the clients' training: nothing is logged and no hook runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from itertools import count
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning._lightning.evaluation.attributes import Attributes, Held
from fl_lightning._lightning.evaluation.predictions import joined, preserved_modes, read_batch, rule_of
from fl_lightning._lightning.logs.client_log import unnoticed
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning.functional import called_with


class UnloggedTraining:
    """Runs ``training_step`` without a trace in logs, metrics, progress or hooks.

    Args:
        loop: The clients' loop, prepared.
        preserved: Keeps the module's weights and buffers while it is entered.
    """

    def __init__(self, loop: ClientLoop, preserved: Callable[[], AbstractContextManager[None]]) -> None:
        self._loop = loop
        self._preserved = preserved
        self._module = loop.trainer.lightning_module

    def gradients(self, batches: Iterable[Any], names: Sequence[str]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield each batch's place and gradient by parameter name, in eval mode; the next batch overwrites it.

        Batches for which ``training_step`` returns None are skipped.

        Args:
            batches: Batches as the data module gives them.
            names: The trained parameters.
        """
        parameters = dict(self._module.named_parameters())
        with unnoticed(self._module), self._eval_mode():
            for index, batch in enumerate(batches):
                _clear(parameters.values())
                if self._backward(batch, index):
                    yield index, {name: _gradient(parameters[name]) for name in names}
            _clear(parameters.values())

    def losses(self, batches: Iterable[Any]) -> Iterator[tuple[int, float]]:
        """Yield each batch's place and loss, in eval mode; batches without a loss are skipped.

        Args:
            batches: Batches as the data module gives them.
        """
        self._check_automatic()
        with unnoticed(self._module), self._eval_mode(), torch.no_grad():
            for index, batch in enumerate(batches):
                output = self._loop.stepper.training_step(self._loop._transfer(batch), index)
                if output is not None:
                    yield index, float(output if isinstance(output, Tensor) else output["loss"])

    def train(self, steps: Iterable[Sequence[Any]]) -> None:
        """Train as a client does, with clipping, from fresh optimizers at the round's learning rates.

        Args:
            steps: The batches of each optimizer step.
        """
        loop = self._loop
        trainer = loop.trainer
        optimizer: Optimizer = trainer.optimizers[0]
        index = count()
        with loop.optimizers.as_for_clients(), unnoticed(self._module):
            for batches in steps:
                optimizer.zero_grad()
                share = 1 / int(trainer.accumulate_grad_batches)
                if not any([self._backward(batch, next(index), share) for batch in batches]):
                    continue
                trainer.precision_plugin._clip_gradients(
                    self._module, optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
                )
                optimizer.step()

    def loss_of_step(
        self, values: Mapping[str, Tensor], batch: Any, index: int, begin: list[dict[str, Held]] | None = None
    ) -> Tensor | None:
        """Return the loss of ``training_step``; ``None`` if it returns none. Modes and gradients are the caller's.

        What the step writes to tensors is written to ``values``, if they have it; attributes are put back.

        Args:
            values: Parameters and buffers by name, in the place of the module's own.
            batch: The batch, where the step gets it.
            index: Its place.
            begin: The attributes with which the step begins, as :attr:`attributes` read them; ``None`` for the present.
        """
        named = {f"module.{name}": value for name, value in values.items()}
        args = (batch, index) if self._loop.stepper.takes_index else (batch,)
        before = self.attributes.read()
        if begin is not None:
            self.attributes.write(begin)
        try:
            with unnoticed(self._module), self._loop.trainer.precision_plugin.train_step_context():
                output = called_with(self._step, named, args)
        finally:
            if begin is not None:
                # The step may have replaced lists, which get their content back here.
                self.attributes.write(begin)
            self.attributes.write(before)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        return loss if isinstance(loss, Tensor) else None

    @cached_property
    def attributes(self) -> Attributes:
        """The attributes of the module that are no tensors."""
        return Attributes(self._module)

    @cached_property
    def _step(self) -> _Step:
        return _Step(self._module)

    def predictions(self, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
        """Return the module's predictions and the targets of batches, in eval mode."""
        with unnoticed(self._module), self._eval_mode(), torch.no_grad():
            loop = self._loop
            return joined([read_batch(loop.trainer, self._module, loop._transfer(batch)) for batch in batches])

    def targets(self, batches: Iterable[Any]) -> Tensor:
        """Return the targets of batches."""
        loop = self._loop
        read = rule_of(loop.trainer)
        return torch.cat([read(loop._transfer(batch), None)[1] for batch in batches])

    def _check_automatic(self) -> None:
        if not self._module.automatic_optimization:
            raise ValueError(
                f"{type(self._module).__name__} optimises manually, so a loss or gradient cannot be had without "
                "training. Importance scores, q-FedAvg, SCAFFOLD's option 1 and the central twin need automatic "
                "optimisation."
            )

    def _backward(self, batch: Any, index: int, share: float = 1.0) -> bool:
        """Add a share of a batch's gradient; return whether it has a loss."""
        loop = self._loop
        self._check_automatic()
        with torch.enable_grad():
            output = loop.stepper.training_step(loop._transfer(batch), index)
            if output is None:
                return False
            loss = output if isinstance(output, Tensor) else output["loss"]
            (loss if share == 1 else loss * share).backward()
            return True

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Set eval mode; put back the modes, and what steps change, such as queues, counters and teachers."""
        # cuDNN has no backward pass for recurrent layers in eval mode.
        recurrent = any(isinstance(part, nn.RNNBase) for part in self._module.modules())
        with (
            preserved_modes(self._module),
            self._preserved(),
            torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled and not recurrent),
        ):
            self._module.eval()
            yield


def _clear(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


class _Step(nn.Module):
    """``training_step`` as a forward pass."""

    def __init__(self, module: pl.LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module.training_step(*args)


def _gradient(parameter: Tensor) -> Tensor:
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return gradient if gradient.layout is torch.strided else gradient.to_dense()
