"""One unchanged ``training_step`` mapped over a stack of models with ``torch.func``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning._lightning.stacked_loop import Logged, StackedLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.batching import StackedBatch, stack_batches
from fl_lightning.executors.stacked.snapshot import preserved_attributes, preserved_generators
from fl_lightning.executors.stacked.stack import ModelStack, substituted

StepOutcome = tuple[Tensor, Logged, list[Tensor], list[Tensor]]


class MappedStep:
    """Runs ``training_step`` once for all models of a stack.

    Args:
        stacked: Runs the module's ``training_step`` and records what it logs.
        vector: The federated state of the module.
    """

    def __init__(self, stacked: StackedLoop, vector: StateVector) -> None:
        self._stacked = stacked
        self._vector = vector
        self._places = vector.places()
        #: Whether the module draws random numbers when it trains, known after :meth:`check`.
        self.draws = False
        self._randomness: Literal["different", "error"] = "different"

    def __call__(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], batch: StackedBatch, batch_idx: int
    ) -> StepOutcome:
        """Return the losses, shape ``(K,)``, what was logged with values of shape ``(K,)``, and the new buffers.

        Args:
            parameters: Shape ``(K, *shape)`` each.
            buffers: Shape ``(K, *shape)`` each; they may be written to.
            batch: One batch a client.
            batch_idx: Its position in the clients' local training.
        """
        number = len(parameters)

        def one(state: list[Tensor], tensors: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            logged.calls.clear()
            logged.values.clear()
            with substituted(self._places, state):
                loss = self._stacked.training_step(batch.rebuild(tensors), batch_idx)
                after = [spots[0][0][spots[0][1]] for spots in self._places[number:]]
            return loss.reshape(()), logged.values, after

        with self._stacked.recording() as logged:
            mapped = torch.func.vmap(one, randomness=self._randomness)
            versions = [parameter._version for parameter in parameters]
            losses, values, after = mapped([*parameters, *buffers], batch.tensors)
        if versions != [parameter._version for parameter in parameters]:
            raise CannotVectorize("`training_step` changes parameters in place, which a stack of some clients loses")
        return losses, logged, values, after

    # ---- whether it is the same ----

    def check(self, start: Tensor, batch: Any) -> None:
        """Try two models at once, and compare their gradients with those of one model at a time.

        Args:
            start: A model, shape ``(size,)``.
            batch: A client's first batch.

        Raises:
            CannotVectorize: If it fails, leaves something behind in the module, or gives other gradients.
        """
        module = self._vector.module
        models = [start, start * 1.01]
        with preserved_generators(), preserved_attributes(module) as changes:
            self._try(lambda: self._gradients_at_once(models, batch))
            if changed := changes():
                raise CannotVectorize(f"`training_step` changes {changed}, of which there is one for all clients")
            self.draws = self._without_randomness(models, batch) is None
            with _eval_mode(module) if self.draws else nullcontext():
                at_once = self._without_randomness(models, batch)
                if at_once is None:
                    return  # random in any mode: two runs cannot be compared
                for row, model in enumerate(models):
                    alone = self._gradients_alone(model, batch)
                    self._compare(alone, [None if g is None else g[row] for g in at_once])

    def _without_randomness(self, models: Sequence[Tensor], batch: Any) -> list[Tensor | None] | None:
        """Return the gradients; ``None`` if the module draws random numbers."""
        self._randomness = "error"
        try:
            return list(self._gradients_at_once(models, batch))
        except RuntimeError as error:
            if "random" in str(error):
                return None
            raise
        finally:
            self._randomness = "different"

    def _try(self, work: Any) -> list[Tensor | None]:
        try:
            return list(work())
        except CannotVectorize:
            raise
        except Exception as error:  # whatever a layer raises when it is given stacked tensors
            first = str(error).strip().split("\n")[0]
            raise CannotVectorize(
                f"`training_step` fails on stacked models ({type(error).__name__}: {first})"
            ) from error

    def _gradients_at_once(self, models: Sequence[Tensor], batch: Any) -> Sequence[Tensor | None]:
        stack = ModelStack(self._vector, models)
        losses, *_ = self(stack.parameters, stack.buffers, stack_batches([batch] * len(models)), 0)
        return torch.autograd.grad(losses.sum(), stack.parameters, allow_unused=True)

    def _gradients_alone(self, model: Tensor, batch: Any) -> Sequence[Tensor | None]:
        held = self._vector.read()
        self._vector.write(model)
        try:
            with self._stacked.recording():
                loss = self._stacked.training_step(batch, 0)
            return torch.autograd.grad(loss, self._vector.parameters, allow_unused=True)
        finally:
            self._vector.write(held)

    def _compare(self, alone: Sequence[Tensor | None], at_once: Sequence[Tensor | None]) -> None:
        for name, one, other in zip(self._vector.names, alone, at_once, strict=True):
            if one is None and other is None:
                continue
            one, other = (torch.zeros(()) if g is None else g for g in (one, other))
            scale = float(one.abs().max())
            tolerance = 1e-6 if one.dtype is torch.float64 else 2e-3
            if not bool(((one - other).abs() <= tolerance * scale + 1e-7).all()):
                raise CannotVectorize(
                    f"the gradient of {name!r} is another one on stacked models, so the module keeps a reference to "
                    "it outside of its parameters"
                )


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for submodule, training in modes:
            submodule.training = training
