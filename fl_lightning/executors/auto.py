"""Which executor trains a fit's clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.arguments import check_choice
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import CannotVectorize, Executor
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.stacked.memory_format import channels_last
from fl_lightning.executors.stacked.timing import StepTiming
from fl_lightning.executors.vectorized import VectorizedExecutor
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Task

ExecutorName = Literal["auto", "sequential", "vectorized"]

_SLOW_STEP = 0.01  # seconds; on a CPU such a step is bound by arithmetic, which a stack does not save
_MARGIN = 1.1  # a stack must be faster by this factor: two runs should choose alike
_THREADS_MARGIN = 1.25  # and several threads by this: they take cores from others


@dataclass(frozen=True)
class ExecutorChoice:
    """What was chosen.

    Attributes:
        executor: ``"sequential"`` or ``"vectorized"``.
        cause: Why.
        threads: Torch's threads; ``None`` where they stay as they are.
        channels_last: Whether convolutions train with channels last in memory.
    """

    executor: str
    cause: str
    threads: int | None = None
    channels_last: bool = False


class AutoExecutor(Executor):
    """Measures a step of one client and of a stack on the fit's first clients, and goes on with what is faster.

    Where there are convolutions, a client's step is measured with channels last in memory, too, unless somebody hooks
    into batches or clients: only ``training_step`` may see weights in that layout.

    Clients are trained one after the other where a stack cannot train them, and where the module draws random numbers
    when it trains, as for dropout: masks would depend on what the clock said. The choice is part of a checkpoint, so
    that a resumed run ends as the uninterrupted one.

    Args:
        clients_at_once: Models in a stack at most; ``None`` for as many as fit.
    """

    def __init__(self, clients_at_once: int | None = None) -> None:
        self._vectorized = VectorizedExecutor(clients_at_once)
        self._sequential = SequentialExecutor()
        #: What was chosen; ``None`` before the first round.
        self.choice: ExecutorChoice | None = None
        self._threads_before: int | None = None

    def reset(self) -> None:
        """Forget the choice."""
        self.choice = None
        self._vectorized.reset()

    def on_fit_start(self, clients: LocalTraining, algorithm: Algorithm) -> None:
        """Prepare both ways, and go on as an earlier part of the run chose."""
        self._clients = clients
        self._vectorized.on_fit_start(clients, algorithm)
        self._threads_before = torch.get_num_threads()
        if self.choice is not None and self.choice.threads is not None:
            torch.set_num_threads(self.choice.threads)

    def on_fit_end(self) -> None:
        """Give torch its threads back."""
        if self._threads_before is not None and self.choice is not None and self.choice.threads is not None:
            torch.set_num_threads(self._threads_before)
        self._threads_before = None

    def run(self, tasks: Sequence[Task], clients: LocalTraining, algorithm: Algorithm) -> None:
        """Train the clients of the tasks and give each result to the algorithm."""
        if self.choice is None:
            self._choose(tasks, algorithm)
        choice = self.choice or ExecutorChoice("sequential", "")
        executor: Executor = self._vectorized if choice.executor == "vectorized" else self._sequential
        with channels_last(clients.vector.module) if choice.channels_last else nullcontext():
            executor.run(tasks, clients, algorithm)

    def state_dict(self) -> dict[str, Any]:
        """Return what was chosen, and the verdict on stacks."""
        choice = None if self.choice is None else vars(self.choice).copy()
        return {"choice": choice, "vectorized": self._vectorized.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the choice of a checkpoint's run."""
        choice = state.get("choice")
        self.choice = None if choice is None else ExecutorChoice(**choice)
        self._vectorized.load_state_dict(state.get("vectorized") or {})

    def _choose(self, tasks: Sequence[Task], algorithm: Algorithm) -> None:
        threads = adjustable_threads() if self._clients.vector.device.type == "cpu" else None
        if threads is not None:
            torch.set_num_threads(1)
        mine = self._measure(tasks, algorithm, threads) if tasks else None
        # processes must agree: the first that has clients decides
        known = [choice for choice in algorithm.federation.gather(mine) if choice is not None]
        if not known:
            return
        self.choice = choice = known[0]
        if choice.threads is not None:
            torch.set_num_threads(choice.threads)
        if choice.executor == "sequential":
            self._vectorized.forget_trial()
        manner = "at once" if choice.executor == "vectorized" else "one after the other"
        manner += ", channels last in memory" if choice.channels_last else ""
        manner += "" if choice.threads is None else f", {choice.threads} thread(s)"
        rank_zero_info(f'executor="auto": clients are trained {manner} ({choice.cause}).')

    def _measure(self, tasks: Sequence[Task], algorithm: Algorithm, threads: int | None) -> ExecutorChoice:
        """Return the choice of this process, made with one thread unless the user set another number."""
        vectorized, on_cpu = self._vectorized, self._clients.vector.device.type == "cpu"
        alone = ExecutorChoice("sequential", "", None if threads is None else 1)
        try:
            vectorized.check_statically()
            timing = vectorized.timing(tasks)
            timing.load(algorithm.start(tasks[0]))
            seconds = timing.seconds_alone()
            # whoever looks at a client's model sees the layout that the user gave it
            if not self._clients.is_watched:
                last = timing.seconds_channels_last()
                if last * _MARGIN < seconds:
                    seconds, alone = last, replace(alone, channels_last=True)
            if seconds > _SLOW_STEP and on_cpu:
                return self._with_threads(timing, seconds, alone, threads)
            vectorized.check(tasks[0], algorithm)
        except CannotVectorize as error:
            return replace(alone, cause=f"not vectorised: {error}")
        except Exception as error:  # a mistake of the user's is reported where it is made in earnest
            return replace(alone, cause=f"a step fails when it is tried out: {type(error).__name__}")
        if vectorized.draws:
            return replace(alone, cause="the module draws random numbers, and executors draw them differently")
        if timing.models == 1:
            return replace(alone, cause="one client at a time")
        at_once = timing.seconds_at_once()
        times = f"{1e6 * seconds:.0f} us alone, {1e6 * at_once:.0f} us in a stack of {timing.models}"
        faster = at_once * _MARGIN < seconds
        chosen = replace(alone, executor="vectorized", channels_last=False) if faster else alone
        return replace(chosen, cause=f"a client's step takes {times}")

    def _with_threads(
        self, timing: StepTiming, seconds: float, alone: ExecutorChoice, threads: int | None
    ) -> ExecutorChoice:
        """Return the choice for steps that arithmetic bounds: how many threads, if that is open."""
        cause = f"a client's step takes {1e3 * seconds:.0f} ms, which arithmetic bounds"
        if threads is None or self._clients.trainer.world_size > 1:
            return replace(alone, cause=cause)
        torch.set_num_threads(threads)
        several = timing.seconds_channels_last() if alone.channels_last else timing.seconds_alone()
        torch.set_num_threads(1)
        faster = several * _THREADS_MARGIN < seconds
        cause = f"{cause}, and {1e3 * several:.0f} ms with {threads} threads"
        return replace(alone, cause=cause, threads=threads if faster else 1)


def adjustable_threads() -> int | None:
    """Return torch's number of threads if it is the default of several, ``None`` if the user has set it.

    With all cores small networks train more slowly even on an idle machine, and many times more slowly on a busy one.
    """
    if any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
        return None
    cores = os.cpu_count() or 1
    present = torch.get_num_threads()
    return present if present > 1 and present in (cores, cores // 2) else None


def make_executor(executor: ExecutorName | Executor, clients_at_once: int | None = None) -> Executor:
    """Return the executor of a name; an executor as it is.

    Raises:
        TypeError: If it is neither.
        ValueError: If the name is unknown.
    """
    if isinstance(executor, Executor):
        return executor
    if not isinstance(executor, str):
        hint = f" Call it: {executor.__name__}()." if isinstance(executor, type) else ""
        raise TypeError(
            f"`executor` must be one of {', '.join(map(repr, _NAMES))}, or an Executor of fl_lightning.executors, got "
            f"{executor!r}.{hint}"
        )
    check_choice("executor", executor, tuple(_NAMES))
    return SequentialExecutor() if executor == "sequential" else _NAMES[executor](clients_at_once)


_NAMES: dict[str, Any] = {
    "auto": AutoExecutor,
    "sequential": SequentialExecutor,
    "vectorized": VectorizedExecutor,
}
