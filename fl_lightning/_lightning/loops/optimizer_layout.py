"""Where what optimizers hold lies in two vectors, so that clients can keep it as they keep other vectors.

Adam on one weight of six values, once it has stepped, holds two tensors and a number::

    state           step = 5          exp_avg, shape (2, 3)     exp_avg_sq, shape (2, 3)
    numbers         1, 1, 1, 5        which states there are, then the numbers
    tensors         12 values         exp_avg, then exp_avg_sq

Optimizers make their state in their first step. So a copy of each takes a step here, along gradients of 0, which shows
what there will be.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten

from fl_lightning.parts.messages import OptimizerState

_HINT = 'Give `optimizer_state="fresh"`, or an optimizer such as torch.optim.AdamW or SGD.'


@dataclass(frozen=True)
class _Entry:
    """A state of a parameter.

    Attributes:
        optimizer: The optimizer.
        parameter: Its parameter.
        name: The state's name, such as ``"exp_avg"``.
        example: A value: a number, or a tensor.
    """

    optimizer: Optimizer
    parameter: nn.Parameter
    name: str
    example: Any

    @property
    def is_number(self) -> bool:
        """Whether the state is one number, which may be in a tensor."""
        return _is_number(self.example)

    def value(self) -> Any:
        """Return the present value; ``None`` if there is none."""
        if self.parameter not in self.optimizer.state:
            return None
        return self.optimizer.state[self.parameter].get(self.name)


class OptimizerLayout:
    """Reads and writes what optimizers hold, and the settings that belong to the client.

    Args:
        optimizers: The module's optimizers, as they were configured.
        settings: Options of optimizers and states of schedules that belong to the client, in any containers; ``None``
            for none.

    Raises:
        ValueError: If an optimizer holds something else than tensors and numbers of its parameters.
    """

    def __init__(self, optimizers: Sequence[Optimizer], settings: Any = None) -> None:
        self._optimizers = optimizers
        self._entries: list[_Entry] = []
        for optimizer in optimizers:
            self._entries += _entries_of(optimizer)
        self._names: dict[Tensor, set[str]] = {}
        for entry in self._entries:
            self._names.setdefault(entry.parameter, set()).add(entry.name)
        self._dtype = torch.float32
        for entry in self._entries:
            if not entry.is_number:
                self._dtype = torch.promote_types(self._dtype, entry.example.dtype)
        self._settings_example, self._settings_tree = tree_flatten(settings)

    def empty(self, settings: Any = None) -> OptimizerState:
        """Return what a client holds before its first step.

        Args:
            settings: The settings with which it begins.
        """
        tensors = [self._of_entry(entry, None) for entry in self._entries if not entry.is_number]
        numbers = [0.0 for _ in self._entries]
        numbers += [0.0 for entry in self._entries if entry.is_number]
        return self._joined(tensors, [*numbers, *self._numbers_in(settings)])

    def read(self, settings: Any = None) -> OptimizerState:
        """Return what the optimizers hold now.

        Args:
            settings: The client's settings.

        Raises:
            ValueError: If an optimizer holds what it did not hold after its first step.
        """
        for optimizer in self._optimizers:
            for parameter, held in optimizer.state.items():
                further = held.keys() - self._names.get(parameter, set())
                if any(held[name] is not None for name in further):
                    raise ValueError(
                        f"{type(optimizer).__name__} must hold the same states from its first step on to be kept, got "
                        f"{sorted(further)} later. {_HINT}"
                    )
        flags: list[float] = []
        numbers: list[float] = []
        tensors: list[Tensor] = []
        for entry in self._entries:
            value = entry.value()
            flags.append(float(value is not None))
            if entry.is_number:
                numbers.append(0.0 if value is None else float(value))
            else:
                tensors.append(self._of_entry(entry, value))
        return self._joined(tensors, [*flags, *numbers, *self._numbers_in(settings)])

    def write(self, held: OptimizerState) -> Any:
        """Let the optimizers hold what a client's held, and return its settings."""
        flags = iter(held.numbers[: len(self._entries)].tolist())
        numbers = iter(held.numbers[len(self._entries) :].tolist())
        for optimizer in self._optimizers:
            optimizer.state.clear()
        start = 0
        for entry in self._entries:
            is_there = next(flags)
            if entry.is_number:
                value = _like(entry.example, next(numbers))
            else:
                length = entry.example.numel()
                piece = held.tensors[start : start + length]
                value = torch.empty_like(entry.example, device=entry.parameter.device)
                value.copy_(piece.view(entry.example.shape))
                start += length
            if is_there:
                entry.optimizer.state[entry.parameter][entry.name] = value
        leaves: list[Any] = []
        for example in self._settings_example:
            leaves.append(_like(example, next(numbers)) if _is_number(example) else example)
        return tree_unflatten(leaves, self._settings_tree)

    def _of_entry(self, entry: _Entry, value: Tensor | None) -> Tensor:
        """Return the values of a state, zeros if there is none, shape ``(num_values,)``."""
        if value is None:
            return torch.zeros(entry.example.numel(), dtype=self._dtype, device=entry.parameter.device)
        return value.detach().to(self._dtype).flatten()

    def _joined(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> OptimizerState:
        joined = torch.cat([torch.zeros(0, dtype=self._dtype), *tensors]) if not tensors else torch.cat(list(tensors))
        return OptimizerState(joined, torch.tensor(numbers, dtype=torch.float64))

    def _numbers_in(self, settings: Any) -> list[float]:
        """Return the numbers of settings.

        Raises:
            ValueError: If they have other containers than those of the fit's start.
        """
        leaves, tree = tree_flatten(settings)
        if tree != self._settings_tree:
            raise ValueError(
                "Schedules by steps must hold the same numbers all the time to be kept, got other ones after a "
                'client\'s training. Give `optimizer_state="fresh"`, or a schedule with interval="epoch".'
            )
        return [float(leaf) for leaf in leaves if _is_number(leaf)]


def _entries_of(optimizer: Optimizer) -> Iterator[_Entry]:
    """Yield the states that an optimizer will have."""
    probe, copies = _probe(optimizer)
    groups = _without_parameters(probe)
    attributes = _attributes(probe)
    name = type(optimizer).__name__
    try:
        probe.step()
    except Exception as error:
        raise ValueError(
            f'`optimizer_state="kept"` needs optimizers that step by gradients alone, got {name}, whose step along '
            f"gradients of 0 failed: {error}. {_HINT}"
        ) from error
    if _without_parameters(probe) != groups or _attributes(probe) != attributes:
        raise ValueError(
            f'`optimizer_state="kept"` needs optimizers whose steps change nothing but their `state`, got {name}. '
            f"{_HINT}"
        )
    for parameter, held in probe.state.items():
        if parameter not in copies:
            raise ValueError(
                f'`optimizer_state="kept"` needs optimizers with states of single parameters, got {name}. {_HINT}'
            )
        for key, value in held.items():
            is_plain = isinstance(value, Tensor) and value.layout is torch.strided and value.is_floating_point()
            if not is_plain and not _is_number(value) and value is not None:
                raise ValueError(
                    f'`optimizer_state="kept"` needs states that are floating-point tensors or numbers, got {key!r} of '
                    f"{name}, {type(value).__name__}. {_HINT}"
                )
            if value is not None:
                # Only its form is needed.
                example = value if _is_number(value) else torch.empty_like(value, device="meta")
                yield _Entry(optimizer, copies[parameter], key, example)


def _probe(optimizer: Optimizer) -> tuple[Optimizer, dict[Tensor, nn.Parameter]]:
    """Return a copy of an optimizer with parameters and gradients of 0, and whose copy each of these parameters is."""
    zeros: dict[int, Any] = {}
    copies: dict[Tensor, nn.Parameter] = {}
    parameter: nn.Parameter
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            zero = torch.zeros_like(parameter, requires_grad=parameter.requires_grad)
            if parameter.requires_grad:
                zero.grad = torch.zeros_like(parameter)
            zeros[id(parameter)] = zero
            copies[zero] = parameter
    probe: Optimizer = type(optimizer).__new__(type(optimizer))
    # Without hooks, and without the `step` that schedules have wrapped.
    bare = vars(SGD([torch.zeros(1)]))
    attributes = vars(probe)
    attributes.update(bare)
    attributes["defaults"] = optimizer.defaults
    for name, value in vars(optimizer).items():
        if name not in bare.keys() - {"state", "param_groups"} and name not in ("step", "_opt_called"):
            attributes[name] = copy.deepcopy(value, zeros)
    return probe, copies


def _without_parameters(optimizer: Optimizer) -> str:
    """Return the options of an optimizer's groups in a text that can be compared."""
    return repr([{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups])


def _attributes(optimizer: Optimizer) -> str:
    """Return an optimizer's other attributes in a text that can be compared."""
    return repr({key: value for key, value in vars(optimizer).items() if key not in ("state", "param_groups")})


def _is_number(value: Any) -> bool:
    """Return whether a value is one number, which may be in a tensor."""
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_complex()
    return isinstance(value, (bool, int, float))


def _like(example: Any, number: float) -> Any:
    """Return a number in the form of an example: a tensor, or an integer if it still is one."""
    if isinstance(example, Tensor):
        return torch.full((), number, dtype=example.dtype, device=example.device)
    if isinstance(example, (bool, int)) and number.is_integer():
        return type(example)(number)
    return number
