"""Many clients at once: their models stacked, their captured training steps mapped over the stack."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.executors.base import Executor
from fl_lightning.executors.compiler.causes import cause_of
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.stack.memory import clients_that_fit
from fl_lightning.executors.stack.optimizer import check_elementwise
from fl_lightning.executors.stack.randomness import ClientGenerators
from fl_lightning.executors.stack.sources import DrawnBatches
from fl_lightning.executors.stack.training import StackTraining, StepRunner
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.part import Part, walk
from fl_lightning.settings import Count, check
from fl_lightning.signatures import is_user_defined

log = logging.getLogger(__name__)

#: How clients train that are stacked.
STACKED = "in stacks"
#: Attributes of a fit, which are not pickled.
_OF_FIT = ("_training", "_stacked", "_runner")


class VectorizedExecutor(Executor):
    """Trains several clients at once; falls back to one after the other, with one message, where that cannot be.

    Args:
        clients_at_once: Models in a stack at most; ``None`` for as many as fit.
    """

    def __init__(self, clients_at_once: int | None = None) -> None:
        check("`clients_at_once`", 1 if clients_at_once is None else clients_at_once, Count)
        self.clients_at_once = clients_at_once
        self._sequential = SequentialExecutor()
        #: How clients train, once they have.
        self._manner = ""
        #: Whether they were stacked before the checkpoint.
        self._were_stacked = False
        #: Why clients are trained one after the other; ``None`` while they are not.
        self.cause: str | None = None

    def reset(self) -> None:
        """Stack clients again."""
        self.cause = None

    def on_fit_start(self, training: LocalTraining, algorithm: Algorithm) -> None:
        """Forget the steps of an earlier fit."""
        self._training = training
        self._stacked = StackedLoop(training.client_loop)
        self._runner: StepRunner | None = None
        self._manner = ""

    def describe(self) -> str:
        """Return how clients train, and why they are not stacked; nothing before the first stack."""
        return self._manner if self.cause is None else f"{self._sequential.describe()}: {self.cause}"

    def on_fit_end(self) -> None:
        """Let go of the captured steps."""
        self._runner = None

    def state_dict(self) -> dict[str, Any]:
        """Return why clients are not stacked: a resumed run stacks them as little."""
        return {"cause": self.cause}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the cause of a checkpoint's run."""
        self.cause = state["cause"]
        self._were_stacked = self.cause is None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: nothing of a fit but how clients train."""
        return {key: value for key, value in vars(self).items() if key not in _OF_FIT}

    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[ClientResult]:
        """Train the clients of the tasks and yield their results."""
        # A client that is only looked at, as with the models of IFCA, takes no step.
        stepping = [task for task in tasks if training.batches.number(task)]
        if self.cause is None and tasks:
            try:
                self.check()
                self._measure(stepping)
            except CannotVectorize as error:
                self.give_up(error)
        trained: set[Task] = set()
        if self.cause is None:
            for chunk in self._chunks(stepping):
                # A stack before this one may have failed.
                if self.cause is None and len(chunk) > 1:
                    yield from self._train(chunk, algorithm)
                    trained.update(chunk)
        if stepping and not self._manner:
            self._manner = "one after the other: a stack would have one model"
        rest = [task for task in tasks if task not in trained]
        yield from self._sequential.run(rest, training, algorithm)

    def check(self) -> None:
        """Raise ``CannotVectorize`` for what can be told without trying."""
        training = self._training
        check_parts(training.algorithm)
        self._stacked.check()
        check_elementwise(training.trainer.optimizers[0])
        if training.algorithm.optimizers.keeps:
            raise CannotVectorize("clients keep what their optimizers hold, and count steps of their own")
        if training.hooks.see_order:
            raise CannotVectorize(
                "a callback has a user-defined `on_client_start` or `on_client_end`, which sees one client at a time"
            )

    def give_up(self, error: Exception) -> None:
        """Train clients one after the other from now on; the error's traceback goes to the debug log."""
        log.debug("Clients are not stacked", exc_info=error)
        self.cause = cause_of(error)
        if self._were_stacked:
            rank_zero_warn(
                f"Clients were trained in stacks before the checkpoint, and are not now: {self.cause}. The last digits "
                "differ from those of a run without a break. What a step makes once belongs in `__init__`."
            )

    def _measure(self, tasks: Sequence[Task]) -> None:
        """Draw the first client's batches, to train on them later, where nothing else tells how large a sample is.

        Raises:
            CannotVectorize: If the data need one model at a time.
        """
        training = self._training
        if self.clients_at_once or len(tasks) < 2 or training.batches.bytes_per_sample is not None:
            return
        generators = ClientGenerators(training.settings.run_seed, [tasks[0].seeds], training.vector.device)
        DrawnBatches(training, tasks[:1], lambda batch: batch, generators).give_back()

    def first_stack(self, tasks: Sequence[Task]) -> int:
        """Return how many of the tasks would train at once."""
        return len(next(self._chunks(tasks)))

    def _chunks(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Yield tasks that train at once, in their order: of one round, whose learning rates they share."""
        by_round: dict[int, list[Task]] = {}
        for task in tasks:
            by_round.setdefault(task.round, []).append(task)
        for members in by_round.values():
            most = self.clients_at_once or clients_that_fit(self._training, members)
            for start in range(0, len(members), most):
                yield members[start : start + most]

    def _train(self, tasks: Sequence[Task], algorithm: Algorithm) -> Iterator[ClientResult]:
        """Train clients at once, or, if that fails, one after the other."""
        training = self._training
        training.show(tasks)
        begun: list[ClientAtWork] = []
        held: Tensor | None = None
        for task in tasks:
            member = training.begin(task, algorithm.received(task), held)
            held = member.start
            begun.append(member)
        try:
            results = self._train_stack(sorted(begun, key=self._order))
        except (CannotVectorize, torch.OutOfMemoryError) as error:
            # A user's mistake is raised again without a stack; what a correction has counted, it counts again.
            self.give_up(error)
            for member in begun:
                yield training.train(member.task, member.received)
            return
        # Parts of a user's own may hold the module, and look at its weights.
        is_watched = training.is_watched or bool(user_defined_parts(algorithm))
        for member in begun:
            model, steps, summed_lr = results[member.task]
            if is_watched:
                training.vector.write(model)
            yield training.finish(member, model, steps, summed_lr)

    def _train_stack(self, members: Sequence[ClientAtWork]) -> dict[Task, tuple[Tensor, int, list[float]]]:
        """Train a stack; return each client's model, its number of steps and the sums of its learning rates."""
        training = self._training
        tasks = [member.task for member in members]
        training.client_loop.begin_client(tasks[0].round)
        if self._runner is None:
            self._runner = StepRunner(training, self._stacked)
        stack = StackTraining(training, self._runner, members)
        self._stacked.begin_stack()
        trained = stack.run(partial(check_kept_is_unread, training.algorithm))
        results = dict(zip(tasks, trained, strict=True))
        by_slot = {task.slot: task for task in tasks}
        stack.journal.tell(training.client_loop, lambda slot: training.seed(by_slot[slot]))
        self._manner = STACKED
        return results

    def _order(self, member: ClientAtWork) -> tuple[int, int]:
        """Return the key that puts the longest client first; neighbours' last batches have one size."""
        batch_size = self._training.data.batch_size
        last = member.task.num_samples
        if batch_size is not None:
            last = (last - 1) % batch_size
        steps = len(self._training.batches.windows(member.task))
        return -steps, -last


#: Methods of parts that are called when a client starts.
_AT_START = {"sent", "start", "download", "correction"}
#: Methods that are called when it has been trained.
_AT_END = {"score", "loss_of", "on_client_end", "on_delivery", "upload", "play"}


def check_parts(algorithm: Algorithm) -> None:
    """Raise ``CannotVectorize`` if a user-defined part could hand something from one client to the next.

    Such a part works when a client starts and when one ends, and does not say ``stacks = True``.
    """
    for part in user_defined_parts(algorithm):
        own = _defined_by_user(part)
        if own & _AT_START and own & _AT_END and not part.stacks:
            raise CannotVectorize(
                f"{type(part).__name__} works when a client starts and when one ends, and may hand something to the "
                "next client; if it does not, set its attribute `stacks = True`"
            )


def check_kept_is_unread(algorithm: Algorithm, kept: Collection[str]) -> None:
    """Raise ``CannotVectorize`` if a user-defined part could read what steps keep of one client when that one ends.

    Args:
        algorithm: The algorithm.
        kept: The names of attributes in which steps keep something, of all clients of a stack before the first ends.
    """
    if not kept:
        return
    for part in user_defined_parts(algorithm):
        if _defined_by_user(part) & _AT_END and not part.stacks:
            raise CannotVectorize(
                f"`training_step` sets `self.{min(kept)}`, which {type(part).__name__} may read when a client ends; if "
                "it does not, set its attribute `stacks = True`"
            )


def _defined_by_user(part: Part) -> set[str]:
    """Return the names of what the user's own classes of a part define."""
    own: set[str] = set()
    for kind in type(part).__mro__:
        if is_user_defined(kind):
            own.update(vars(kind))
    return own


def user_defined_parts(algorithm: Algorithm) -> list[Part]:
    """Return the parts of an algorithm whose classes do not come with the library."""
    return [part for part in walk(*algorithm.parts.values()) if is_user_defined(type(part))]
