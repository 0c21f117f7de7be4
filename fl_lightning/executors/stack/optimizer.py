"""The user's optimizer on a stack of models.

An optimizer that treats every value of a parameter by itself takes the weights of the worked example, shape
``(K, out, in)``, for one larger parameter, and steps all clients at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.loops.overrides import is_plain_sgd, step_plain_sgd

#: Optimizers that add ``weight_decay * parameter`` to the gradient, unless told otherwise.
_COUPLED = (SGD, Adam, Adagrad, Adadelta, Adamax, ASGD, NAdam, RAdam, RMSprop)
#: Optimizers whose fused kernels step a parameter in one pass over memory.
_FUSED = (Adam, AdamW, SGD, Adagrad)
#: Options by which users choose kernels themselves.
_KERNELS = ("foreach", "fused", "capturable", "differentiable")
#: Optimizers that treat every value of a parameter by itself.
_ELEMENTWISE = (*_COUPLED, AdamW, Rprop)


def check_elementwise(optimizer: Optimizer) -> None:
    """Raise ``CannotVectorize`` if an optimizer cannot step a stack of models."""
    if type(optimizer) not in _ELEMENTWISE:
        known = ", ".join(kind.__name__ for kind in _ELEMENTWISE)
        raise CannotVectorize(
            f"the optimizer {type(optimizer).__name__} may look at more than one value of a parameter at a time "
            f"(those known not to: torch.optim's {known})"
        )


class StackedOptimizer:
    """An optimizer with the settings of another, over a stack's leaves, from an empty state.

    Args:
        optimizer: The user's optimizer, over the module's parameters, at the settings from which clients start.
        parameters: The module's trained parameters.
    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        self._number = len(parameters)
        self._origin = optimizer
        # It is stepped here; schedules warn if they are stepped before it.
        vars(optimizer)["_opt_called"] = True
        place_of = {id(parameter): place for place, parameter in enumerate(parameters)}
        #: For each group the places of its parameters.
        self._places: list[list[int]] = []
        for group in optimizer.param_groups:
            known = [id(parameter) for parameter in group["params"] if id(parameter) in place_of]
            self._places.append([place_of[identity] for identity in known])
        self._own = type(optimizer).__new__(type(optimizer))
        attributes = vars(self._own)
        attributes.update(vars(optimizer))
        # Schedules wrap it, bound to the user's optimizer.
        attributes.pop("step", None)
        self._own.state = defaultdict(dict)
        self._own.param_groups = [{} for _ in optimizer.param_groups]
        self._extra_decay = 0.0
        on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
        self._is_fused = on_cpu and _may_be_fused(optimizer)
        self.refresh()

    def refresh(self) -> None:
        """Take the settings that the user's optimizer has now."""
        for group, origin in zip(self._own.param_groups, self._origin.param_groups, strict=True):
            group.update(_settings(origin))
            if self._extra_decay:
                group["weight_decay"] += self._extra_decay
            if self._is_fused:
                group["fused"] = True

    def add_weight_decay(self, decays: Sequence[float]) -> Tensor | None:
        """Add each client's weight decay; return those that have to be added to the gradients, shape ``(K,)``.

        Raises:
            CannotVectorize: If clients have unequal ones and the optimizer does not take weight decay as a gradient.
            ValueError: If it takes none.
        """
        groups = self._origin.param_groups
        if any("weight_decay" not in group for group in groups):
            raise ValueError(
                f'`penalty="weight_decay"` needs an optimizer with weight decay, got {type(self._origin).__name__}. '
                'Use torch.optim.SGD, or `penalty="gradient"`.'
            )
        if len(set(decays)) == 1:
            self._extra_decay = decays[0]
            self.refresh()
            return None
        decoupled = any(group.get("decoupled_weight_decay") for group in groups)
        if decoupled or type(self._origin) not in _COUPLED:
            raise CannotVectorize(f"{type(self._origin).__name__} takes one weight decay, and clients' differ")
        return torch.tensor(decays, dtype=torch.float64)

    def attach(self, leaves: Sequence[Tensor]) -> None:
        """Step these leaves from now on; they are the first rows of those before."""
        state: defaultdict[Any, Any] = defaultdict(dict)
        for group, places in zip(self._own.param_groups, self._places, strict=True):
            # There are none before the first step.
            before: list[Tensor] = group.get("params", [])
            group["params"] = [leaves[place] for place in places]
            for old, new in zip(before, group["params"], strict=False):
                if old in self._own.state:
                    held = self._own.state[old]
                    state[new] = {key: _first_rows(value, old, new) for key, value in held.items()}
        self._own.state = state

    def step(self, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Take one step of all clients at work."""
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        if is_plain_sgd(self._own):
            step_plain_sgd(self._own)
        else:
            self._own.step()
        for leaf in leaves:
            leaf.grad = None

    def settings(self) -> list[dict[str, Any]]:
        """Return the present settings of each of the user's parameter groups."""
        return [_settings(group) for group in self._origin.param_groups]

    @property
    def is_plain(self) -> bool:
        """Whether a step is ``parameter -= lr * (gradient + weight_decay * parameter)`` at the present settings."""
        return is_plain_sgd(self._own, but="weight_decay")

    def learning_rates(self) -> list[float]:
        """Return the present learning rate of each parameter tensor."""
        return self._per_parameter("lr")

    def weight_decays(self) -> list[float]:
        """Return the present weight decay of each parameter tensor."""
        return self._per_parameter("weight_decay")

    def _per_parameter(self, option: str) -> list[float]:
        values = [0.0] * self._number
        for group, places in zip(self._own.param_groups, self._places, strict=True):
            for place in places:
                values[place] = float(group[option])
        return values


def _may_be_fused(optimizer: Optimizer) -> bool:
    """Whether an optimizer has a fused kernel, and its user leaves the choice of kernels to torch."""
    if type(optimizer) not in _FUSED or is_plain_sgd(optimizer, but="weight_decay"):
        return False
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor) or any(group.get(option) for option in _KERNELS):
            return False
        if group["foreach"] is False or group["fused"] is False:
            return False
    return True


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _first_rows(value: Any, old: Tensor, new: Tensor) -> Any:
    """Return what an optimizer holds of ``old`` for its first rows."""
    if isinstance(value, Tensor) and value.shape == old.shape:
        return value[: len(new)]
    return value


def clip(gradients: Sequence[Tensor], value: float, algorithm: str | None) -> None:
    """Clip each client's gradient as Lightning clips one, in place.

    Args:
        gradients: One tensor of shape ``(K, *shape)`` per parameter.
        value: Largest norm, or largest absolute value.
        algorithm: ``"value"``, or ``"norm"`` (also if ``None``).
    """
    if algorithm == "value":
        for gradient in gradients:
            gradient.clamp_(-value, value)
        return
    norms = [torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    scale = (value / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(along(scale, gradient))


def along(per_client: Tensor, tensor: Tensor) -> Tensor:
    """Return one value per client, shape ``(K,)``, to be multiplied with ``tensor``, shape ``(K, ...)``."""
    return per_client.to(tensor.dtype).to(tensor.device).view(-1, *(1,) * (tensor.dim() - 1))
