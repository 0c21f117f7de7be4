"""The forward pass of a client's step, as a loss sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from fl_lightning._lightning.predictions import called, preserved_modes, rule_of
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.data.targets import inputs_of
from fl_lightning.parts.federation import ForwardPass


class RecordedPass:
    """The latest forward pass of a client; see :class:`~fl_lightning.parts.ForwardPass`. Enter it while it trains.

    Args:
        loss: Changes the loss of a pass.
        vector: The federated state of the module.
        trainer: The trainer; its data module says which element of a batch is the target.
    """

    def __init__(self, loss: Callable[[Tensor, ForwardPass], Tensor], vector: StateVector, trainer: pl.Trainer) -> None:
        self._loss, self._vector, self._trainer = loss, vector, trainer
        self.module: nn.Module = trainer.lightning_module
        self.batch: Any = None
        self._last: tuple[Tensor, Tensor] | None = None  # input and output of the last layer that was called

    def __enter__(self) -> None:
        parts = self.module.modules()
        layers = [part for part in parts if hasattr(part, "in_features") and hasattr(part, "out_features")]
        self._hooks = [layer.register_forward_hook(self._note) for layer in layers]

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self._last = args[0].reshape(-1, args[0].shape[-1]), output.reshape(-1, output.shape[-1])

    def change(self, batch: Any, loss: Tensor) -> Tensor:
        """Return the changed loss of a batch."""
        self.batch = batch
        changed = self._loss(loss, self)
        self.batch = self._last = None  # the graph
        return changed

    @property
    def _outputs(self) -> tuple[Tensor, Tensor]:
        if self._last is None:
            raise TypeError(
                "The objective takes features and logits from the last layer that is called and has `in_features` and "
                f"`out_features`, as nn.Linear has, and {type(self.module).__name__} calls none."
            )
        return self._last

    @property
    def target(self) -> Tensor:
        """The batch's targets, shape ``(rows,)``."""
        target: Tensor = rule_of(self._trainer)(self.batch, None)[1]
        return target.flatten()

    @property
    def features(self) -> Tensor:
        """The input of the output layer, shape ``(rows, width)``."""
        return self._outputs[0]

    @property
    def logits(self) -> Tensor:
        """The output of the output layer, shape ``(rows, classes)``."""
        return self._outputs[1]

    def of(self, model: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and logits of another model, shape ``(size,)``, in eval mode and without gradients."""
        last = self._last
        with preserved_modes(self.module), torch.no_grad():
            self.module.eval()
            called(self._trainer.lightning_module, inputs_of(self.batch), self._vector.named(model))
            outputs, self._last = self._outputs, last
        return outputs
