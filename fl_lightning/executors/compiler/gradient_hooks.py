"""The module's hooks that see gradients, or the models after a step, captured as its training step is.

A norm that is logged, or a gradient that is changed in place, becomes a graph of one client's gradients::

    def on_before_optimizer_step(self, optimizer):
        self.log("norm", self.layer.weight.grad.norm())       # logged("norm", norm(gradient), {})

So does what a hook does with the weights after a step, such as a moving average of them::

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.mul_(0.9).add_(self.layer.weight.detach(), alpha=0.1)

The graph is mapped over clients, whose gradients and weights have shape ``(K, ...)``. Each new graph is
compared once with the hook as it is, of the first and of the last client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Entry
from fl_lightning._lightning.stacks.stacked_loop import AFTER_STEP, StackedLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.compiler.capture import CapturedStep, Step
from fl_lightning.executors.compiler.causes import errors_of_step
from fl_lightning.executors.compiler.check import tolerance
from fl_lightning.executors.compiler.graph import Stacks
from fl_lightning.executors.compiler.told import Unread
from fl_lightning.executors.compiler.traces import same, without_trace
from fl_lightning.executors.stack.batches import select
from fl_lightning.seeding import preserved_generators, set_global_states

#: What some clients' steps have logged, with these clients' rows.
Entries = list[tuple[Sequence[int], Entry]]


class GradientHooks:
    """Runs the module's hooks on the gradients of a stack.

    Args:
        captured: The captured steps.
        stacked: The module's loop.
        vector: The federated state of the module.
    """

    def __init__(self, captured: CapturedStep, stacked: StackedLoop, vector: StateVector) -> None:
        self._captured = captured
        self._stacked = stacked
        self._vector = vector

    @property
    def names(self) -> list[str]:
        """The hooks that the module has now."""
        return self._stacked.captured_hooks

    def run(self, name: str, stacks: Stacks, step: int, steps_so_far: Sequence[int], entries: Entries) -> Entries:
        """Run a hook, which may write to gradients, weights and buffers.

        Args:
            name: The hook.
            stacks: The clients' parameters, buffers and gradients.
            step: The step's number.
            steps_so_far: Of each client, the optimizer steps of all clients up to this one.
            entries: What the clients' steps have logged.

        Returns:
            The entries, with what the hook logs.

        Raises:
            CannotVectorize: If it cannot be captured, or computes something else in a stack.
        """
        arguments: tuple[Any, ...] = ()
        if name == "on_before_optimizer_step":
            arguments = (self._stacked.trainer.optimizers[0],)
        if name == AFTER_STEP:
            arguments = (Unread("outputs"), Unread("batch"), step)
            steps_so_far = [number + 1 for number in steps_so_far]
        try:
            return self._run(name, arguments, stacks, steps_so_far, entries)
        except CannotVectorize as error:
            raise CannotVectorize(str(error).replace("`training_step`", f"`{name}`")) from error

    def _run(
        self, name: str, arguments: tuple[Any, ...], stacks: Stacks, steps_so_far: Sequence[int], entries: Entries
    ) -> Entries:
        found: Entries = []
        for rows, step, inputs in self._captured.of_hook(name, arguments, stacks.gradients, steps_so_far):
            own = stacks
            is_whole = len(rows) == stacks.number
            if not is_whole:
                own = _rows_of(stacks, rows)
            own.steps_so_far = torch.tensor([steps_so_far[row] for row in rows], device=own.parameters[0].device)
            self._check(name, arguments, step, own, inputs)
            kept = step.tensors(step.graph.run_hook(own, inputs))
            if not is_whole:
                _write_rows(stacks, own, rows)
            found += _with_hook(entries, step, kept, rows)
        return found

    def _check(self, name: str, arguments: tuple[Any, ...], step: Step, stacks: Stacks, inputs: Sequence[Any]) -> None:
        """Compare a hook that has not been compared with the module's own, on the first and on the last client."""
        if step.graph.checked:
            return
        generators = stacks.draws.generators
        rows = stacks.draws.rows
        states = [generators.state(row) for row in rows]
        copies = _copied(stacks)
        kept = step.tensors(step.graph.run_hook(copies, inputs))
        vector = self._vector
        held = vector.read()
        try:
            for place in sorted({0, stacks.number - 1}):
                own = [tensor[place].detach().reshape(-1) for tensor in (*stacks.parameters, *stacks.buffers)]
                vector.write(torch.cat([part.to(held.dtype) for part in own]))
                for parameter, gradient in zip(vector.parameters, stacks.gradients, strict=True):
                    parameter.grad = None if gradient is None else gradient[place].clone()
                listeners = self._captured.listeners
                with preserved_generators(held.device), without_trace(vector.module, listeners) as traces:
                    set_global_states(states[place], held.device)
                    with errors_of_step(), self._stacked.counting(stacks.steps_of(place)):
                        getattr(vector.module, name)(*arguments)
                    bound = tolerance(vector.parameters[0].dtype)
                    traces.compare(step.logged, [tensor[place] for tensor in kept], bound)
                self._compare(name, copies, place, bound)
        finally:
            for parameter in vector.parameters:
                parameter.grad = None
            vector.write(held)
        generators.rewind(rows, states)
        step.graph.checked = True

    def _compare(self, name: str, stacks: Stacks, place: int, bound: float) -> None:
        vector = self._vector
        for tensor, stacked in zip(vector.tensors(), (*stacks.parameters, *stacks.buffers), strict=True):
            same(f"a weight after `{name}`", tensor, stacked[place], bound, 1.0)
        for path, parameter, gradient in zip(vector.names, vector.parameters, stacks.gradients, strict=True):
            if gradient is not None and parameter.grad is not None:
                largest = float(parameter.grad.abs().max()) if parameter.grad.numel() else 0.0
                same(f"the gradient of {path!r} after `{name}`", parameter.grad, gradient[place], bound, largest)


def _copied(stacks: Stacks) -> Stacks:
    return replace(
        stacks,
        parameters=[tensor.clone() for tensor in stacks.parameters],
        buffers=[tensor.clone() for tensor in stacks.buffers],
        gradients=[None if gradient is None else gradient.clone() for gradient in stacks.gradients],
    )


def _rows_of(stacks: Stacks, rows: Sequence[int]) -> Stacks:
    """Return copies of some rows."""
    chosen = replace(
        stacks,
        parameters=[select(tensor, rows) for tensor in stacks.parameters],
        buffers=[select(tensor, rows) for tensor in stacks.buffers],
        gradients=[None if gradient is None else select(gradient, rows) for gradient in stacks.gradients],
        draws=stacks.draws.generators.drawing([stacks.draws.rows[row] for row in rows]),
    )
    return _copied(chosen)


def _write_rows(stacks: Stacks, own: Stacks, rows: Sequence[int]) -> None:
    """Write what a hook may have changed back to the rows."""
    tensors = (*stacks.parameters, *stacks.buffers, *stacks.gradients)
    for tensor, values in zip(tensors, (*own.parameters, *own.buffers, *own.gradients), strict=True):
        if tensor is not None and values is not None:
            tensor[list(rows)] = values


def _with_hook(entries: Entries, step: Step, kept: Sequence[Tensor], rows: Sequence[int]) -> Entries:
    """Return the entries of some clients, with what a hook has logged; entries of others are left out."""
    place_of = {row: place for place, row in enumerate(rows)}
    found: Entries = []
    for members, entry in entries:
        own = [row for row in members if row in place_of]
        if own:
            of_hook = [tensor[[place_of[row] for row in own]] for tensor in kept]
            part = entry
            if len(own) < len(members):
                part = entry.of([place for place, row in enumerate(members) if row in place_of])
            found.append((own, part.with_hook(step.logged, of_hook)))
    return found
