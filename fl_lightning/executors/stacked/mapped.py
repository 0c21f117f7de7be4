"""One unchanged ``training_step`` mapped over a stack of models with ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from fl_lightning._lightning.recording import Logged
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning._lightning.stand_ins import stands_in
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.batching import StackedBatch
from fl_lightning.executors.stacked.item import Item
from fl_lightning.executors.stacked.randomness import DrawsApart
from fl_lightning.executors.stacked.stack import substituted

StepOutcome = tuple[Tensor, Logged, list[Tensor]]


class MappedStep:
    """Runs ``training_step`` once for all models of a stack.

    Args:
        stacked: Runs the module's ``training_step`` and records what it logs.
        vector: The federated state of the module.
    """

    def __init__(self, stacked: StackedLoop, vector: StateVector) -> None:
        self._stacked = stacked
        self._places = vector.places()

    def __call__(
        self,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        batch: StackedBatch,
        batch_idx: int,
        draws: DrawsApart | None = None,
    ) -> StepOutcome:
        """Return the losses, shape ``(K,)``, what was logged, with tensors of shape ``(K, ...)``, and the new buffers.

        Args:
            parameters: Shape ``(K, *shape)`` each.
            buffers: Shape ``(K, *shape)`` each; they may be written to.
            batch: One batch a client.
            batch_idx: Its position in the clients' local training.
            draws: Draws random numbers; ``None`` where the module draws none.

        Raises:
            CannotVectorize: If the step fails on stacked tensors.
        """
        number = len(parameters)

        def one(state: list[Tensor], tensors: list[Tensor], zero: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            logged.clear()
            _watched([*state, *tensors])
            with substituted(self._places, state), _OfOneClient(zero):
                loss = self._stacked.training_step(batch.rebuild(tensors), batch_idx)
                after = [spots[0][0][spots[0][1]] for spots in self._places[number:]]
            return loss.reshape(()), list(logged.tensors), after

        with self._stacked.recording() as logged, nullcontext() if draws is None else draws:
            mapped = torch.func.vmap(one, randomness="error" if draws is None else "different")
            versions = [parameter._version for parameter in parameters]
            zeros = torch.zeros(len(parameters[0]), device=parameters[0].device)
            losses, tensors, after = _tried(lambda: mapped([*parameters, *buffers], batch.tensors, zeros))
        if versions != [parameter._version for parameter in parameters]:
            raise CannotVectorize("`training_step` changes parameters in place, which a stack of some clients loses")
        # what is the batch's or the models' own changes before it is read
        held = {tensor.untyped_storage().data_ptr() for tensor in (*batch.tensors, *parameters, *buffers)}
        logged.tensors[:] = [t.clone() if t.untyped_storage().data_ptr() in held else t for t in tensors]
        return losses, logged, after


_FILLED = {
    getattr(torch.Tensor, name)
    for name in ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_")
}


class _OfOneClient(TorchFunctionMode):
    """Makes two things that are done to one client's tensors possible under ``vmap``.

    ``tensor.item()`` returns an :class:`Item`, in double precision, as Python computes with numbers. A new tensor that
    is filled with random numbers becomes one of each client.

    Args:
        zero: A zero of each client.
    """

    def __init__(self, zero: Tensor) -> None:
        super().__init__()
        self._zero = zero

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.item:
            return Item.of(args[0])
        if function in _FILLED and not torch._C._functorch.is_batchedtensor(args[0]):
            args = args[0] + self._zero.to(args[0].dtype), *args[1:]
        return _watched(function(*args, **(kwargs or {})))


def _watched(result: Any) -> Any:
    """Return a result whose tensors are noted: none of one client may be left after the step."""
    for tensor in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(tensor, Tensor) and _functorch.is_batchedtensor(tensor):
            stands_in(tensor, _of_first)
    return result


def _of_first(tensor: Tensor) -> Tensor:
    """Return the first client's values of a tensor under ``vmap``."""
    place = _functorch.maybe_get_bdim(tensor)
    return _functorch.get_unwrapped(tensor).select(place, 0).detach().clone()


def _tried(step: Callable[[], Any]) -> Any:
    """Run a step, whose errors are reasons not to stack; an error of the user's own is raised again in earnest."""
    try:
        return step()
    except CannotVectorize:
        raise
    except Exception as error:  # whatever a layer raises when it is given stacked tensors
        first = str(error).strip().split("\n")[0]
        cause = f"{type(error).__name__}{': ' if first else ''}{first}"
        raise CannotVectorize(f"`training_step` fails on stacked models ({cause})") from error
