"""The comparison of a captured step, once, with the module itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import logged_type
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.stacked.batching import StackedBatch
from fl_lightning.executors.stacked.capture import CapturedStep, Step
from fl_lightning.executors.stacked.graph import Computed, Stacks
from fl_lightning.seeding import preserved_generators, set_global_states

#: Relative to the largest value.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}
_MIXED = 5e-2  # where a part of the step is computed in half precision


class Check:
    """Takes a step of the first and the last client of some rows as it is, to compare it with that of the stack.

    What ``vmap`` maps wrongly shows here, and so does a hook that a capture has passed over.

    Args:
        captured: The captured steps.
        vector: The federated state of the module, which is put back.
        mixed: Whether a part of the step is computed in half precision.
    """

    def __init__(self, captured: CapturedStep, vector: StateVector, *, mixed: bool) -> None:
        self._captured, self._vector, self._mixed = captured, vector, mixed

    def __call__(
        self,
        step: Step,
        inputs: Sequence[Any],
        stacks: Stacks,
        batch: StackedBatch,
        index: int,
        rows: Sequence[int],
        *,
        flat: bool,
    ) -> None:
        """Compare a step, if its graph has not been compared; nothing changes.

        Args:
            step: The step.
            inputs: Its inputs.
            stacks: What it is taken with.
            batch: The batches.
            index: Their index.
            rows: The clients.
            flat: Whether it is taken as a flat list of operations.

        Raises:
            CannotVectorize: If anything differs.
        """
        if step.graph.checked:
            return
        generators, vector = stacks.draws.generators, self._vector
        copies = replace(stacks, update=None, batch=_copies(stacks.batch), buffers=_copies(stacks.buffers))
        states = [generators.state(row) for row in rows]
        computed = step.graph.run(copies, inputs, flat=flat)
        if generators.steps_draw:
            _check_metrics_draw_nothing(step)
        held = vector.read()
        try:
            for place in sorted({0, len(rows) - 1}):
                own = [tensor[place].detach().reshape(-1) for tensor in (*stacks.parameters, *stacks.buffers)]
                vector.write(torch.cat([part.to(held.dtype) for part in own]))
                single = batch.rebuild([tensor[place].clone() for tensor in stacks.batch])
                with preserved_generators(held.device):
                    set_global_states(states[place], held.device)
                    loss, logged = self._captured.alone(single, index)
                gradients = torch.autograd.grad(loss, vector.parameters, allow_unused=True)
                self._compare(step, computed, place, loss, logged, gradients)
                for one, other in zip(vector.tensors()[len(gradients) :], copies.buffers, strict=True):
                    _same("a buffer", one, other[place], self._bound(loss), 1.0)
        finally:
            vector.write(held)
        generators.rewind(rows, states)
        step.graph.checked = True

    def _bound(self, loss: Tensor) -> float:
        return _MIXED if self._mixed else _TOLERANCES.get(loss.dtype, _MIXED)

    def _compare(
        self,
        step: Step,
        computed: Computed,
        place: int,
        loss: Tensor,
        logged: Sequence[object],
        gradients: Sequence[Tensor | None],
    ) -> None:
        bound = self._bound(loss)
        size = max((float(g.abs().max()) for g in gradients if g is not None and g.numel()), default=0.0)
        _same("the loss", loss, computed.losses[place], bound, 1.0)
        for name, one, other in zip(self._vector.names, gradients, computed.gradients, strict=True):
            if (one is None) != (other is None):
                raise CannotVectorize(f"the gradient of {name!r} is there alone or in a stack only")
            if one is not None and other is not None:
                _same(f"the gradient of {name!r}", one, other[place], bound, size)
        numbers = [call for call in step.logged.calls if isinstance(call.value, int)]
        values = [value for value in logged if isinstance(value, (Tensor, int, float))]
        values = values if len(values) == len(numbers) else []
        tensors = step.tensors(computed.kept)
        for call, value in zip(numbers, values, strict=False):
            dtype = value.dtype if isinstance(value, Tensor) else logged_type()
            if tensors[call.value].dtype != dtype:  # type: ignore[index]
                raise CannotVectorize(f"what is logged as {call.name!r} is of another type in a stack")
            _same(f"what is logged as {call.name!r}", torch.as_tensor(value), tensors[call.value][place], bound, 1.0)  # type: ignore[index]


def _check_metrics_draw_nothing(step: Step) -> None:
    """Raise ``CannotVectorize`` for metric objects whose draws might take turns with those of a step."""
    for part in [part for call in step.logged.metric_calls for part in call.metric.modules()]:
        is_known = not isinstance(part, Metric) or type(part).__module__.startswith("torchmetrics.")
        if not is_known and not getattr(part, "stacks", False):
            raise CannotVectorize(
                f"`training_step` draws random numbers, and the metric object {type(part).__name__} might; if it does "
                "not, set its attribute `stacks = True`"
            )


def _same(what: str, one: Tensor, other: Tensor, bound: float, size: float) -> None:
    """Raise ``CannotVectorize`` if two tensors differ by more than a bound, relative to their size."""
    one, other = one.detach().double().reshape(-1), other.detach().double().reshape(-1)
    if not one.numel():
        return
    most = bound * (float(one.nan_to_num().abs().max()) + (size if size == size else 0.0))
    if not bool((((one - other).abs() <= most) | (one.isnan() & other.isnan()) | (one == other)).all()):
        raise CannotVectorize(f"{what} differs in a stack by {float((one - other).abs().max()):.1g}")


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]
