"""Finds the program of batched products of a training step, if it has one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.recording import Logged
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning._lightning.stand_ins import release_stand_ins
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import UnknownIndex
from fl_lightning.executors.stacked.causes import log_why
from fl_lightning.executors.stacked.guards.effects import SideEffect
from fl_lightning.executors.stacked.program.logs import joint_logs, leaves_needed, log_key
from fl_lightning.executors.stacked.program.plan import Plan, make_plan
from fl_lightning.executors.stacked.program.trace import (
    DEPENDS_ON_SIZE,
    Graph,
    Traced,
    custom_functions,
    trace,
)
from fl_lightning.executors.stacked.randomness import nothing_drawn
from fl_lightning.executors.stacked.tensor_slots import TensorSlots
from fl_lightning.executors.stacked.trials.rehearsal import Rehearsal

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchForm:
    """What batches look like.

    Attributes:
        shapes: The shapes of one sample's tensors.
        dtypes: Their types.
        rebuild: Makes a batch of its tensors.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    rebuild: Callable[[list[Any]], Any]

    def zeros(self, size: int, device: torch.device) -> list[Tensor]:
        """Return a batch of zeros' tensors."""
        forms = zip(self.shapes, self.dtypes, strict=True)
        return [torch.zeros((), dtype=d, device=device).expand(size, *shape) for shape, d in forms]


@dataclass(frozen=True)
class TracedStep:
    """A training step as a program.

    Attributes:
        plan: How it is carried out.
        logged: What it logs.
        tensors: What is logged: numbers of values in the plan's graph, or what is the same on every batch.
        of_samples: Whether each of these has a row for each sample.
        leaves: The numbers of the batch's tensors that are needed for it.
    """

    plan: Plan
    logged: Logged
    tensors: list[int | Tensor]
    of_samples: list[bool]
    leaves: list[int]


class NoProgram(CannotVectorize):
    """A training step turned out not to be a program; its stack has to be trained again, mapped."""


class ProgramMaker:
    """Traces a module's training step once a round.

    It is traced for each size of a batch that comes: where anything but the size differs, it is no program.

    Args:
        stacked: Runs the module's ``training_step`` and records what it logs.
        vector: The federated state of the module.
        precision: The trainer's precision, such as ``"32-true"``.
        rehearsal: Tries batches of other sizes on a copy of the module; ``None`` if it is one already.
    """

    def __init__(self, stacked: StackedLoop, vector: StateVector, precision: str, rehearsal: Rehearsal | None) -> None:
        self._stacked, self._vector, self._rehearsal = stacked, vector, rehearsal
        self._places = TensorSlots(vector.module, vector.tensors())
        self._possible = precision in ("32-true", "64-true") and len(vector.tensors()) == len(vector.parameters)
        self._step: TracedStep | None = None
        self._key: Any = None  # what batches looked like
        self._round: int | None = None
        self._logs: Any = None
        # what the step was first traced for, and the sizes for which it has been found to be the same
        self._form: BatchForm | None = None
        self._first: Any = None
        self._first_size = 0
        self._sizes: set[int] = set()

    def forget(self) -> None:
        """Trace the step anew: the module may be another one now."""
        self._round = None

    def make(self, form: BatchForm, size: int, round_index: int) -> TracedStep | None:
        """Return the step, ``None`` if it is no program.

        Args:
            form: What batches look like.
            size: Samples of a batch.
            round_index: The round: within one, a step is taken to be the same one.
        """
        if not self._possible or torch.is_anomaly_enabled():  # torch looks for anomalies in its own backward pass
            return None
        key = form.shapes, form.dtypes, size
        if self._step is None or self._key != key or self._round != round_index:
            try:
                [(graph, loss, logged)] = self._record(form, [size])
                if self._step is None or self._key != key or not self._is_same(graph, logged, size):
                    self._step = self._make(form, size, graph, loss, logged)
            except SideEffect:
                raise
            except Exception as error:  # whatever a training step raises that is asked for its values
                log_why(log, "`training_step` is no program of batched products", error)
                self._possible, self._step = False, None
            self._key, self._round = key, round_index
        return self._step

    def check_sizes(self, sizes: set[int]) -> None:
        """Make sure that the step does the same for batches of these sizes.

        Raises:
            NoProgram: If it does not; from now on it is no program.
            SideEffect: If it has side effects.
        """
        new = sorted(sizes - self._sizes)
        if not new:
            return
        try:
            for size, (other, loss, logged) in zip(new, self._record_apart(new), strict=True):
                plan, first = self._first
                _check_plan(plan, other, loss, self._first_size, size)
                joint_logs(first, logged, self._first_size, size)
        except SideEffect:
            raise
        except Exception as error:
            self.refuse(DEPENDS_ON_SIZE, error)
        self._sizes.update(new)

    def refuse(self, cause: str, error: Exception | None = None) -> NoReturn:
        """Note that the step is no program.

        Raises:
            NoProgram: Always.
        """
        self._possible, self._step = False, None
        raise NoProgram(cause) from error

    def _is_same(self, graph: Graph, logged: Logged, size: int) -> bool:
        """Whether the step is the one that was traced before."""
        traced = self._step
        assert traced is not None
        try:
            traced.plan.graph.check_like(graph, size, size)
        except CannotVectorize:
            return False
        return bool(self._logs == log_key(logged))

    def _make(self, form: BatchForm, size: int, graph: Graph, loss: int, logged: Logged) -> TracedStep:
        other = size - 1 if size > 1 else 2
        [(again, loss_again, logged_again)] = self._record(form, [other])
        plan = make_plan(graph, loss)
        _check_plan(plan, again, loss_again, size, other)
        self._logs = log_key(logged)
        calls, tensors, of_samples = joint_logs(logged, logged_again, size, other)
        self._form, self._first, self._first_size, self._sizes = form, (plan, logged), size, {size, other}
        if self._vector.parameters[0].dtype not in (torch.float32, torch.float64):
            raise CannotVectorize("weights in half precision")
        leaves = leaves_needed(plan, [value for value in tensors if isinstance(value, int)], size)
        leaves_needed(plan, [plan.source, plan.target], size)  # they may be computed, too
        joint = Logged(calls, logged.metric_calls, [])
        return TracedStep(plan, joint, tensors, of_samples, sorted(leaves | {plan.target}))

    def _record_apart(self, sizes: Sequence[int]) -> list[_Recorded]:
        """Trace sizes that no trial has seen."""
        form = self._form
        assert form is not None
        if self._rehearsal is None:
            return self._record(form, sizes)

        def record(stacked: StackedLoop, copy: LocalTraining) -> list[_Recorded]:
            return _record(stacked, copy.vector, TensorSlots(copy.vector.module, copy.vector.tensors()), form, sizes)

        found, watched = self._rehearsal(record)
        if watched.reads_round or watched.reads_rates:
            raise CannotVectorize("`training_step` reads something of the trainer for some sizes of batches")
        return found

    def _record(self, form: BatchForm, sizes: Sequence[int]) -> list[_Recorded]:
        return _record(self._stacked, self._vector, self._places, form, sizes)


_Recorded = tuple[Graph, int, Logged]


def _record(
    stacked: StackedLoop, vector: StateVector, places: TensorSlots, form: BatchForm, sizes: Sequence[int]
) -> list[_Recorded]:
    """Return what steps on zeros compute, the numbers of their losses, and what they log."""

    def step(weights: list[Traced], tensors: list[Traced]) -> Tensor:
        with places.substituted(weights), torch.enable_grad():
            return stacked.training_step(form.rebuild(list(tensors)), UnknownIndex.given())

    found: list[_Recorded] = []
    with nothing_drawn(vector.device):
        for size in sizes:
            with stacked.recording() as logged:
                graph, loss = trace(vector.parameters, form.zeros(size, vector.device), step)
            if not isinstance(loss, Traced) or custom_functions(loss):
                raise CannotVectorize("the loss is none of the traced tensors, or has gradients of its own")
            release_stand_ins(logged.tensors)
            found.append((graph, loss.number, logged))
    return found


def _check_plan(plan: Plan, other: Graph, loss: int, size: int, other_size: int) -> None:
    """Raise ``CannotVectorize`` if the trace for another size of a batch has another plan."""
    plan.graph.check_like(other, size, other_size)
    if not make_plan(other, loss).is_like(plan):
        raise CannotVectorize(DEPENDS_ON_SIZE)
