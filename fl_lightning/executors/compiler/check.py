"""The comparison of a captured step, once, with the module itself.

The loss, gradients, buffers, logs and calls of metric objects that the graph of the worked example gives for the first
and for the last client are compared with those of ``training_step`` as it is, on these clients' weights and batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.log_replay import NO_LOSS
from fl_lightning._lightning.stacks.recording import Keeper, Listener
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.compiler.capture import CapturedStep, Step
from fl_lightning.executors.compiler.causes import errors_of_step
from fl_lightning.executors.compiler.graph import Stacks
from fl_lightning.executors.compiler.traces import same, without_trace
from fl_lightning.executors.stack.batches import StackedBatch
from fl_lightning.seeding import preserved_generators, set_global_states

#: How far values may differ, relative to the largest.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}
#: The same where a part of the step is computed in half precision.
_MIXED = 5e-2


def tolerance(dtype: torch.dtype) -> float:
    """Return how far values of a type may differ, relative to the largest."""
    return _TOLERANCES.get(dtype, _MIXED)


class Check:
    """Takes a step of the first and the last client of some rows as it is, to compare it with that of the stack.

    What ``vmap`` maps wrongly shows here, and so does a hook that a capture has passed over.

    Args:
        captured: The captured steps.
        vector: The federated state of the module, which is put back.
        mixed: Whether a part of the step is computed in half precision.
    """

    def __init__(self, captured: CapturedStep, vector: StateVector, *, mixed: bool) -> None:
        self._captured = captured
        self._vector = vector
        self._mixed = mixed

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
        generators = stacks.draws.generators
        states = [generators.state(row) for row in rows]
        # A step writes to buffers, and may write to its batch.
        batch_copies = [tensor.clone() for tensor in stacks.batch]
        buffers = [tensor.clone() for tensor in stacks.buffers]
        copies = replace(stacks, update=None, batch=batch_copies, buffers=buffers)
        computed = step.graph.run(copies, inputs, flat=flat)
        if generators.steps_draw:
            _check_metrics_draw_nothing(step)
        shared = [value for value in inputs if isinstance(value, Tensor) and value.requires_grad]
        kept = step.tensors(computed.kept)
        vector = self._vector
        held = vector.read()
        try:
            for place in sorted({0, len(rows) - 1}):
                own = [tensor[place].detach().reshape(-1) for tensor in (*stacks.parameters, *stacks.buffers)]
                # Whole numbers among the buffers may be larger than a narrow type of the parameters can hold.
                vector.write(torch.cat([part.to(held.dtype) for part in own]))
                single = batch.rebuild([tensor[place].clone() for tensor in stacks.batch])
                with (
                    preserved_generators(held.device),
                    without_trace(vector.module, self._captured.listeners) as traces,
                ):
                    set_global_states(states[place], held.device)
                    with errors_of_step():
                        loss = self._captured.alone(single, index, stacks.steps_of(place))
                    if loss is None:
                        raise CannotVectorize(NO_LOSS)
                    bound = self._bound(loss)
                    with self._captured.context_of_steps():
                        traces.compare(step.logged, [tensor[place] for tensor in kept], bound)
                same("the loss", loss, computed.losses[place], bound, 1.0)
                self._compare_gradients(loss, shared, computed.gradients, place, bound)
                of_module = vector.tensors()[len(vector.parameters) :]
                for buffer, stacked in zip(of_module, buffers, strict=True):
                    same("a buffer", buffer, stacked[place], bound, 1.0)
        finally:
            vector.write(held)
        generators.rewind(rows, states)
        step.graph.checked = True

    def _bound(self, loss: Tensor) -> float:
        return _MIXED if self._mixed else tolerance(loss.dtype)

    def _compare_gradients(
        self, loss: Tensor, shared: Sequence[Tensor], stacked: Sequence[Tensor | None], place: int, bound: float
    ) -> None:
        """Compare the gradients of a client's loss with those at a place of a stack; ``shared`` tensors have none."""
        vector = self._vector
        number = len(vector.parameters)
        gradients = torch.autograd.grad(loss, [*vector.parameters, *shared], allow_unused=True)
        if any(gradient is not None for gradient in gradients[number:]):
            raise CannotVectorize(
                "`training_step` computes with a tensor that requires gradients and is not a parameter of the module, "
                "so its `.grad` would not be there after a stack"
            )
        # Embeddings may have sparse gradients alone, and dense ones in a stack.
        alone = [None if gradient is None else gradient.to_dense() for gradient in gradients[:number]]
        largest = 0.0
        for gradient in alone:
            if gradient is not None and gradient.numel():
                largest = max(largest, float(gradient.abs().max()))
        for name, one, other in zip(vector.names, alone, stacked, strict=True):
            if (one is None) != (other is None):
                raise CannotVectorize(f"the gradient of {name!r} is there alone or in a stack only")
            if one is not None and other is not None:
                same(f"the gradient of {name!r}", one, other[place], bound, largest)


def _check_metrics_draw_nothing(step: Step) -> None:
    """Raise ``CannotVectorize`` for metric objects whose draws might take turns with those of a step."""
    for call in step.logged.metric_calls:
        if isinstance(call.metric, (Keeper, Listener)):
            continue
        for part in call.metric.modules():
            is_known = not isinstance(part, Metric) or type(part).__module__.startswith("torchmetrics.")
            if not is_known and not getattr(part, "stacks", False):
                raise CannotVectorize(
                    f"`training_step` draws random numbers, and the metric object {type(part).__name__} might; if it "
                    "does not, set its attribute `stacks = True`"
                )
