"""One unchanged ``training_step`` mapped over a stack of models with ``torch.func``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map, tree_map_only

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.recording import Logged
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning._lightning.stand_ins import register_stand_in
from fl_lightning._lightning.stopping import interrupts_wait
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.stacked.batching import StackedBatch
from fl_lightning.executors.stacked.causes import SAVED_HOOKS, cause_of, cause_of_step
from fl_lightning.executors.stacked.decisions import DECIDED_BY, Decisions, PerClient
from fl_lightning.executors.stacked.item import Item
from fl_lightning.executors.stacked.randomness import PerClientDraws, mapped_dirichlet
from fl_lightning.executors.stacked.tensor_slots import TensorSlots
from fl_lightning.executors.stacked.unmapped import called_instead

StepOutcome = tuple[Tensor, Logged, list[Tensor]]


class MappedStep:
    """Runs ``training_step`` once for all models of a stack.

    Args:
        stacked: Runs the module's ``training_step`` and records what it logs.
        vector: The federated state of the module.
        always_maps: Whether a stack of one is mapped too, as the second of two clients that are the same. A trial does:
            what is mapped wrongly is seen then, whatever batches its clients have. Else such a step is just taken,
            unless it decides by values.
    """

    def __init__(self, stacked: StackedLoop, vector: StateVector, *, always_maps: bool = False) -> None:
        self._stacked, self._vector = stacked, vector
        self._places = TensorSlots(vector.module, vector.tensors())
        self._always_maps = always_maps
        # torch's advice to report this is not for the user
        warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")

    def __call__(
        self,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        batch: StackedBatch,
        batch_idx: int,
        draws: PerClientDraws | None,
        decisions: Decisions,
    ) -> StepOutcome:
        """Return the losses, shape ``(K,)``, what was logged, with tensors of shape ``(K, ...)``, and the new buffers.

        Args:
            parameters: Shape ``(K, *shape)`` each.
            buffers: Shape ``(K, *shape)`` each; they may be written to.
            batch: One batch a client.
            batch_idx: Its position in the clients' local training.
            draws: Draws random numbers; ``None`` where the module draws none.
            decisions: Decides for all clients where Python decides by a tensor's value.

        Raises:
            BrokenOff: If they do not decide alike, or in a way that was not tried out.
            CannotVectorize: If the step fails on stacked tensors.
        """
        # broken off halfway, it could leave torch's modes behind, and clients' tensors in the module
        with interrupts_wait():
            try:
                return self._outcome(parameters, buffers, batch, batch_idx, draws, decisions)
            except Exception as error:
                failure = error
        try:
            raise failure  # only now: Ctrl-C comes first
        finally:
            del failure  # whose traceback holds this frame

    def names_of(self, parts: Iterable[nn.Module]) -> set[str]:
        """Return the names of parts of the module."""
        own = set(map(id, parts))
        return {name for name, part in self._vector.module.named_modules() if id(part) in own} if own else set()

    def _outcome(
        self,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        batch: StackedBatch,
        batch_idx: int,
        draws: PerClientDraws | None,
        decisions: Decisions,
    ) -> StepOutcome:
        number = len(parameters)

        def one(state: list[Tensor], tensors: list[Tensor], zero: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            logged.clear()
            _watched([*state, *tensors])
            with self._places.substituted(state), _OfOneClient(state[:number], zero, decisions) as client:
                loss = self._stacked.training_step(batch.rebuild(tensors), batch_idx)
                loss, values, after = client.own((loss, list(logged.tensors), self._places.present(number)))
            return loss.reshape(()), values, after

        given = [*parameters, *buffers], batch.tensors, torch.zeros(len(parameters[0]), device=parameters[0].device)
        alone = len(parameters[0]) == 1
        twins = alone and (self._always_maps or decisions.expected)
        if twins:
            given = tree_map(lambda tensor: torch.cat([tensor, tensor]), given)
        versions = [parameter._version for parameter in given[0][:number]]
        with self._stacked.recording() as logged, _drawing(draws, alone, twins):
            if alone and not twins:  # to be mapped costs more than such a step
                losses, tensors, after = _tried(lambda: _of_one(one, *given))
            else:
                mapped = torch.func.vmap(one, randomness="error" if draws is None else "different")
                losses, tensors, after = _tried(lambda: mapped(*given))
        if versions != [parameter._version for parameter in given[0][:number]]:
            raise CannotVectorize("`training_step` changes parameters in place, which a stack of some clients loses")
        if twins:
            losses, tensors, after = tree_map(lambda tensor: tensor[1:], (losses, tensors, after))
        # what is the batch's or the models' own changes before it is read
        held = {_memory(tensor) for tensor in (*given[0], *given[1])}
        logged.tensors[:] = [tensor.clone() if _memory(tensor) in held else tensor for tensor in tensors]
        return losses, logged, after


@contextmanager
def _drawing(draws: PerClientDraws | None, alone: bool, twins: bool) -> Iterator[None]:
    """Let clients draw from their own generators."""
    if draws is None:
        yield
    elif alone and not twins:
        with draws.of_one():
            yield
    else:
        with draws.of_twins() if twins else draws, mapped_dirichlet():
            yield


def _of_one(one: Callable[..., Any], *stacks: Any) -> Any:
    """Call a function of one client's tensors for a stack of one."""
    outcome = one(*tree_map(lambda tensor: tensor[0], stacks))
    return tree_map(lambda tensor: tensor.unsqueeze(0), outcome)


_FILLED = {
    getattr(torch.Tensor, name)
    for name in ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_")
}
_IN_PLACE = {
    value
    for name, value in vars(torch._C.TensorBase).items()
    if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
} - _FILLED


class _OfOneClient(TorchFunctionMode):
    """Lets a step see one client's tensors under ``vmap`` as it sees them without.

    ``tensor.item()`` returns an :class:`Item`, in double precision, as Python computes with numbers. Where Python
    decides by a tensor's value, all clients must decide alike. A new tensor that is filled with random numbers, or
    changed in place by what each client has, becomes one of each client. Parameters are parameters, and whether a
    tensor requires gradients is what it is for one client. An operation that fails does so for all clients at once, so
    a step that catches the exception, such as that of a matrix that cannot be inverted, has to see clients one by one.

    Args:
        parameters: Those of the client.
        zero: A zero of each client.
        decisions: Decides where Python decides by a tensor's value.
    """

    def __init__(self, parameters: Sequence[Tensor], zero: Tensor, decisions: Decisions) -> None:
        super().__init__()
        self._parameters, self._zero, self._decisions = set(map(id, parameters)), zero, decisions
        self._filled: dict[int, tuple[Tensor, Tensor]] = {}  # by id: what was filled, and what stands for it
        self._new: dict[int, Tensor] = {}  # by id: made in this step of no other tensor
        self._seen: dict[int, Tensor] = {}  # by id: those of them that something else may see, such as a view
        for parameter in parameters:
            parameter._is_param = True  # what `isinstance(_, nn.Parameter)` asks for

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.own((args, kwargs))
        if function is torch.Tensor.item:
            return Item.of(args[0], self._decisions)
        if function is torch.Tensor.__repr__:
            raise CannotVectorize("`training_step` turns a tensor into text, which has the values of one client")
        if function == _REQUIRES_GRAD:
            return _requires_grad(args[0])
        if function == _IS_LEAF and id(args[0]) in self._parameters:
            return True
        if function == _GRAD and id(args[0]) in self._parameters:
            raise CannotVectorize("`training_step` reads or clears gradients, which a stack keeps elsewhere")
        try:
            kwargs = kwargs or {}
            if function in DECIDED_BY:
                return self._decide(DECIDED_BY[function](*args, **kwargs))
            if function in _FILLED and not _functorch.is_batchedtensor(args[0]):
                return _watched(self._fill(function, *args, **kwargs))
            if function in _IN_PLACE and self._is_alone(args[0]) and _is_any_batched(args, kwargs):
                return _watched(self._fill(function, *args, **kwargs))
            result = _watched(called_instead(function, args, kwargs)(*args, **kwargs))
            self._note(result, args, kwargs)
            return result
        except CannotVectorize:
            raise
        except Exception as error:
            raise CannotVectorize(cause_of(function, error)) from error

    def own(self, values: Any) -> Any:
        """Return values with what stands for tensors in their places."""
        return tree_map_only(Tensor, self._standing_for, values) if self._filled else values

    def _standing_for(self, tensor: Tensor) -> Tensor:
        return self._filled.get(id(tensor), (tensor, tensor))[1]

    def _decide(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return self._decisions([value])
        values = PerClient.of(value, "decides by a tensor's value").values
        if value.numel() != 1:
            return bool(values[0])  # which raises what it raises for one client
        return self._decisions(values.reshape(-1).tolist())

    def _fill(self, function: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor._is_view() or id(tensor) in self._seen:
            raise CannotVectorize(f"{function.__name__} fills a tensor of which there is a view, for all clients")
        own = tensor + self._zero.to(tensor.dtype)
        result = function(own, *args, **kwargs)
        self._filled[id(tensor)] = tensor, own
        return result

    def _note(self, result: Any, args: Any, kwargs: Any) -> None:
        """Note a new tensor, and those that something else may see now, which would miss their changes."""
        is_shared = isinstance(result, Tensor) and not _functorch.is_functorch_wrapped_tensor(result)
        if not self._new and not is_shared:
            return
        given = [value for value in _one_by_one((*args, *kwargs.values())) if isinstance(value, Tensor)]
        if is_shared and not given:
            self._new[id(result)] = result
        for tensor in given:
            if self._is_alone(tensor) and _may_see(result, tensor):
                self._seen[id(tensor)] = tensor

    def _is_alone(self, tensor: Any) -> bool:
        """Whether a tensor is new and nothing else may see its changes."""
        return id(tensor) in self._new and id(tensor) not in self._seen


_VALUES = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout)

#: Getters are other objects each time, but equal.
_REQUIRES_GRAD, _IS_LEAF, _GRAD = (
    vars(torch._C.TensorBase)[name].__get__ for name in ("requires_grad", "is_leaf", "grad")
)


def _one_by_one(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values, and those in lists and tuples among them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def _may_see(result: Any, tensor: Tensor) -> bool:
    """Whether the result of a call may change with a tensor that was given: a view, an array, an iterator."""
    if isinstance(result, (list, tuple)):
        return any(_may_see(part, tensor) for part in result)
    if not isinstance(result, Tensor):
        return not isinstance(result, _VALUES)
    if result is tensor or _functorch.is_functorch_wrapped_tensor(result):
        return False
    return result.layout is not torch.strided or _memory(result) == _memory(tensor)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_any_batched(args: Any, kwargs: Any) -> bool:
    return any(isinstance(value, Tensor) and _functorch.is_batchedtensor(value) for value in tree_iter((args, kwargs)))


def _requires_grad(tensor: Tensor) -> bool:
    while _functorch.is_batchedtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def _watched(result: Any) -> Any:
    """Return a result whose tensors are noted: none of one client may be left after the step."""
    for tensor in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(tensor, Tensor) and _functorch.is_functorch_wrapped_tensor(tensor):
            register_stand_in(tensor, _of_first)
    return result


def _of_first(tensor: Tensor) -> Tensor:
    """Return the first client's values of a tensor under ``vmap``."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        place = _functorch.maybe_get_bdim(tensor) if _functorch.is_batchedtensor(tensor) else None
        tensor = _functorch.get_unwrapped(tensor)
        tensor = tensor if place is None else tensor.select(place, 0)
    return tensor.detach().clone()


def _tried(step: Callable[[], Any]) -> Any:
    """Run a step, whose errors are reasons not to stack; an error of the user's own is raised again without a stack."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(SAVED_HOOKS):
            return step()
    except CannotVectorize:
        raise
    except Exception as error:  # whatever a layer raises when it is given stacked tensors
        raise CannotVectorize(cause_of_step(error)) from error
