"""The automatic choice of an executor."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.clients.step_counts import StepCounts, in_words
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import Executor
from fl_lightning.executors.channels_last import works_with_channels_last
from fl_lightning.executors.machine import LARGE_STEP
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.stack.memory import why_one_fits
from fl_lightning.executors.vectorized import STACKED, VectorizedExecutor
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.settings import Count, check

log = logging.getLogger(__name__)

ExecutorName = Literal["auto", "sequential", "vectorized"]

# Floating-point operations of a client's step on a CPU (see docs/benchmarks.md): below, a stack saves the calls of
# operations, which take most of the time; above, arithmetic takes it, which a stack does not save. A step of products
# of matrices alone has its limit in LARGE_STEP; stacks of other steps call more and slower operations.
_OTHER_STEP = 5e6
_CONVOLVING_STEP = 2e6
#: Models that a stack of such steps needs at least.
_OTHER_MODELS = 8
#: Steps of clients: a process's first stacks take 0.6 to 2.2 s longer, which they save in 1,500 to 5,500 steps. Those
#: of its later fits take 0.2 to 1 s. The choice does not depend on that, so a fit has the same bits in any process.
_WORTH_A_CAPTURE = 3_000


@dataclass(frozen=True)
class Choice:
    """The way to train clients, as a checkpoint holds it.

    Attributes:
        cause: Why clients train one after the other; ``None`` if they are stacked, or before the choice.
        reason: Why they are stacked; empty if they are not.
        channels_last: Whether convolutions train with channels last in memory.
    """

    cause: str | None = None
    reason: str = ""
    channels_last: bool = False


class AutoExecutor(Executor):
    """Chooses by what a client's step computes: the same script makes the same choice on every run.

    The operations of the fit's first client, which trains alone, are counted; nothing is timed. Steps of little
    arithmetic are stacked, if the fit has enough of them and PyTorch can capture ``training_step``. On a CPU
    larger steps train one client after the other, convolutions with channels last in memory unless somebody hooks into
    batches or clients. The choice is part of a checkpoint, so that a resumed run ends as the uninterrupted one.

    To choose yourself, give ``VectorizedExecutor(clients_at_once=...)`` or ``SequentialExecutor(channels_last=...)``.

    Args:
        clients_at_once: Models in a stack at most; ``None`` for as many as fit.
    """

    def __init__(self, clients_at_once: int | None = None) -> None:
        self.clients_at_once = clients_at_once
        self._stacks = VectorizedExecutor(clients_at_once)
        self._sequential = SequentialExecutor()
        #: Why clients are stacked; empty if they are not, or before the choice.
        self.reason = ""

    @property
    def cause(self) -> str | None:
        """Why clients are trained one after the other; ``None`` while they are not, or before the choice."""
        return self._stacks.cause

    @override
    def reset(self) -> None:
        self._take(Choice())

    @override
    def on_fit_start(self, training: LocalTraining, algorithm: Algorithm) -> None:
        self._stacks.on_fit_start(training, algorithm)

    @override
    def on_fit_end(self) -> None:
        self._stacks.on_fit_end()

    @property
    def _has_chosen(self) -> bool:
        return self.cause is not None or bool(self.reason)

    def _take(self, choice: Choice) -> None:
        self._stacks.cause = choice.cause
        self.reason = choice.reason
        self._sequential = SequentialExecutor(choice.channels_last)

    @override
    def describe(self) -> str:
        if self.cause is not None:
            return f"{self._sequential.describe()}: {self.cause}"
        how = self._stacks.describe()
        return f"{how}: {self.reason}" if how == STACKED else how

    @override
    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[ClientResult]:
        if not self._has_chosen:
            first, tasks = self._choose(tasks, training, algorithm)
            yield from first
        if self.reason:
            yield from self._stacks.run(tasks, training, algorithm)
        else:
            yield from self._sequential.run(tasks, training, algorithm)

    @override
    def state_dict(self) -> dict[str, Any]:
        return vars(Choice(self.cause, self.reason, self._sequential.channels_last))

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        choice = Choice(**state)
        if choice.reason:
            self._stacks.load_state_dict({"cause": choice.cause})
        self._take(choice)

    def _choose(
        self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm
    ) -> tuple[list[ClientResult], Sequence[Task]]:
        """Train the first client, choose by what that took, and return its result and the other clients' tasks."""
        first = list(self._sequential.run(tasks[:1], training, algorithm))
        mine: Choice | None = None
        # There are no counts where clients are only looked at, such as with IFCA's models.
        if training.counts is not None:
            log.debug("%s.", str(training.counts).capitalize())
            mine = self._choice(tasks, training, training.counts)
        # Processes must agree: the first that has clients decides.
        known = [choice for choice in algorithm.federation.gather(mine) if choice is not None]
        if known:
            self._take(known[0])
        return first, tasks[1:]

    def _choice(self, tasks: Sequence[Task], training: LocalTraining, counts: StepCounts) -> Choice:
        """Return this process's choice, given what a step of its first client computed."""
        on_cpu = training.vector.device.type == "cpu"
        # Hooks would see another layout of tensors, and what is drawn at random would lie elsewhere.
        may_change_layout = on_cpu and not training.is_watched and not counts.draws
        channels_last = may_change_layout and works_with_channels_last(training, tasks[0])
        models = self._stacks.first_stack(tasks)
        why_not = self._why_not_stacked(tasks, training, models)
        if why_not is None and on_cpu:
            why_not = _loss_of_a_stack(counts, models)
        if why_not is not None:
            return Choice(why_not, channels_last=channels_last)
        reason = f"up to {models} at a time, faster here, same result"
        if on_cpu and training.trainer.world_size > 1:
            reason += ". On CPUs one process is often faster for stacks than several; try both"
        return Choice(reason=reason)

    def _why_not_stacked(self, tasks: Sequence[Task], training: LocalTraining, models: int) -> str | None:
        """Return why clients cannot be stacked, or not with gain on any device, so many models at a time."""
        try:
            self._stacks.check()
        except CannotVectorize as error:
            return str(error)
        steps = _expected_steps(tasks, training)
        if steps < _WORTH_A_CAPTURE:
            return f"some {steps:,.0f} steps are too few to make a stack"
        if models == 1:
            return self._why_single(len(tasks), training)
        return None

    def _why_single(self, clients: int, training: LocalTraining) -> str:
        """Return why this process, with so many clients of a round, has no stack of two."""
        if clients > 1 and self.clients_at_once == 1:
            return "`clients_at_once` is 1"
        if clients > 1:
            return why_one_fits(training)
        if training.trainer.world_size > 1:
            return "a process trains one client of a round"
        return "a round has one client"


def _expected_steps(tasks: Sequence[Task], training: LocalTraining) -> float:
    """Return how often clients call ``training_step`` here in the whole fit, if all rounds are as this one."""
    trainer = training.trainer
    steps = sum(map(training.batches.number, tasks))
    if trainer.max_epochs in (None, -1):
        return math.inf * steps
    return (trainer.max_epochs - trainer.current_epoch) * steps


def _loss_of_a_stack(counts: StepCounts, models: int) -> str | None:
    """Return why, on a CPU, a stack of so many models is slower than one client after the other; ``None`` if not."""
    if counts.only_matrices:
        most = LARGE_STEP
    elif counts.convolves:
        most = _CONVOLVING_STEP
    else:
        most = _OTHER_STEP
    if counts.flops >= most:
        return f"{counts}, and stacks are faster below {in_words(most)}"
    if not counts.only_matrices and models < _OTHER_MODELS:
        return f"{models} at a time are too few for a stack to be faster ({_OTHER_MODELS} needed)"
    return None


#: Executors by name: each is made from the largest number of clients at once.
_NAMED: dict[str, Callable[[int | None], Executor]] = {
    "auto": AutoExecutor,
    "sequential": lambda _: SequentialExecutor(),
    "vectorized": VectorizedExecutor,
}


def make_executor(executor: ExecutorName | Executor, clients_at_once: int | None = None) -> Executor:
    """Return the executor of a name; an executor as it is.

    ``"auto"`` means what the environment variable ``FL_LIGHTNING_EXECUTOR`` names, if it is set.

    Raises:
        TypeError: If it is neither.
        ValueError: If the name is unknown, or ``clients_at_once`` has no effect on the executor.
    """
    if clients_at_once is not None and (executor == "sequential" or isinstance(executor, Executor)):
        way = f"VectorizedExecutor({clients_at_once})"
        if executor == "sequential":
            way = '"vectorized" or "auto"'
        raise ValueError(
            f"`clients_at_once` has no effect with executor={executor!r}, got {clients_at_once}. Leave it out, or "
            f"give executor={way}."
        )
    if not isinstance(executor, str):
        check("`executor`", executor, Executor)
        return executor
    check("`executor`", executor, ExecutorName)
    if clients_at_once is not None:
        check("`clients_at_once`", clients_at_once, Count)
    name: str = executor
    if name == "auto":
        name = os.environ.get("FL_LIGHTNING_EXECUTOR", "auto")
        check("`FL_LIGHTNING_EXECUTOR`", name, ExecutorName)
    return _NAMED[name](clients_at_once)
