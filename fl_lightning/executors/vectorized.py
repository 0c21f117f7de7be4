"""Many clients at once: their models stacked, their training steps mapped over the stack."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize, ChangesModule
from fl_lightning._lightning.log_replay import Journal
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.checks import Count, check
from fl_lightning.clients.hooks import StartedClient, alike
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import Executor
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.stacked.causes import log_why, reason
from fl_lightning.executors.stacked.changes.circumstances import Circumstances
from fl_lightning.executors.stacked.changes.shared_state import SharedState
from fl_lightning.executors.stacked.client_ends import ClientEnds
from fl_lightning.executors.stacked.memory import clients_that_fit
from fl_lightning.executors.stacked.optimizer import StackedOptimizer, check_elementwise
from fl_lightning.executors.stacked.parts import check_parts
from fl_lightning.executors.stacked.program.maker import NoProgram
from fl_lightning.executors.stacked.randomness import ClientGenerators
from fl_lightning.executors.stacked.results import Results, Trained
from fl_lightning.executors.stacked.sources import draws_nothing, make_source
from fl_lightning.executors.stacked.stack import Stack
from fl_lightning.executors.stacked.step_runners import make_step_runners
from fl_lightning.executors.stacked.training import StackTraining
from fl_lightning.executors.stacked.trials.rehearsal import Rehearsal
from fl_lightning.executors.stacked.trials.trial import Trial
from fl_lightning.executors.stacked.trials.verdict import Verdict
from fl_lightning.executors.stacked.trials.way_trial import WayTrial
from fl_lightning.executors.stacked.trials.witnesses import WITNESSES, first_witnesses, with_neighbour
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Task

log = logging.getLogger(__name__)

#: Yields results as they come, and returns the tasks that are left.
_ResultsAndLeft = Generator[ClientResult, None, list[Task]]


class VectorizedExecutor(Executor):
    """Trains several clients at once; falls back to one after the other, with one message, where that cannot be.

    Args:
        clients_at_once: Models in a stack at most; ``None`` for as many as fit.
    """

    def __init__(self, clients_at_once: int | None = None) -> None:
        check("`clients_at_once`", 1 if clients_at_once is None else clients_at_once, Count)
        self.clients_at_once = clients_at_once
        self._sequential = SequentialExecutor()
        #: The findings of the trials.
        self.verdict = Verdict()

    @property
    def cause(self) -> str | None:
        """Why clients are trained one after the other; ``None`` while they are not."""
        return self.verdict.cause

    @property
    def _stacks(self) -> bool:
        """Whether clients are trained in stacks: a trial has been passed."""
        return self.cause is None and self.verdict.proven > 0

    def reset(self) -> None:
        """Forget the trial's verdict."""
        self.verdict = Verdict()

    def on_fit_start(self, training: LocalTraining, algorithm: Algorithm) -> None:
        """Prepare the steps of a fit's module."""
        self._training = training
        stacked = StackedLoop(training.loop, training.corrector)
        rehearsal = Rehearsal(training)
        self._steps = make_step_runners(training, training.vector, stacked, rehearsal, WayTrial(rehearsal))
        self._round: int | None = None
        self._forgave_a_change = False  # a trial has changed the module
        self._mapped, self._batches = 0, 0  # mapped steps of the round, and their clients' batches
        #: Clients of a mapped step in the last round without a trial, in the mean; infinite if there was none.
        self.clients_of_step = math.inf
        self._circumstances: Circumstances | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the trial's verdict, which decides on roundings."""
        return self.verdict.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the verdict of a checkpoint's run."""
        self.verdict = Verdict.from_state(state)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: nothing of a fit but the trial's verdict."""
        return {key: vars(self)[key] for key in ("clients_at_once", "_sequential", "verdict")}

    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[ClientResult]:
        """Train the clients of the tasks and yield their results."""
        rest, self._steps.tried = list(tasks), self.verdict.tried
        self._look_for_changes()
        if self.cause is None and rest and not self.verdict.proven:
            rest = yield from self._prove(rest, first_witnesses(rest, training.batches.windows), algorithm)
        while self._stacks and self.verdict.proven < math.inf and any(map(self._is_longer, rest)):
            rest = yield from self._prove_longer(rest, algorithm)
        self._mapped, self._batches = 0, 0
        left = yield from self._train_all(rest, algorithm)
        if self._mapped and len(rest) == len(tasks):
            self.clients_of_step = self._batches / self._mapped
        yield from self._sequential.run(left, training, algorithm)

    def _train_all(self, tasks: Sequence[Task], algorithm: Algorithm) -> _ResultsAndLeft:
        """Train clients in stacks; return those that are left from where that fails, in their own order."""
        journal, trained = Journal(self.verdict.jointly), set[Task]()
        for chunk in self._chunks(tasks) if self._stacks else ():
            if self._stacks:
                yield from self._train(chunk, algorithm, journal)
                trained.update(chunk)
        journal.tell(self._training.loop)
        return [task for task in tasks if task not in trained]

    # ---- the trial ----

    def _look_for_changes(self) -> None:
        """Ask for a new trial if what the module does may be another thing in this round."""
        verdict, round_index = self.verdict, self._training.trainer.current_epoch
        if round_index == self._round or self.cause is not None:
            return
        self._round = round_index
        now = Circumstances(self._training)
        if self._circumstances is None:  # the first round of a fit, which may go on from an earlier one
            changed = (other := now.changed_since(verdict.circumstances)) is not None
            if changed and verdict.proven:
                rank_zero_info(
                    f"Stacks are tested again, because {other} has changed since the last fit. So the results may "
                    "differ from those of one single fit in the last digits."
                )
        else:
            changed = now.difference(self._circumstances) is not None
        verdict.renewed = verdict.renewed + 1 if changed else 0
        if changed or self._circumstances is None:
            self._circumstances, verdict.circumstances = now, now.fingerprints
        if changed or verdict.each_round:
            self._ask_again()

    def _is_longer(self, task: Task) -> bool:
        """Whether a client has more batches than any client of the trials."""
        return self._training.batches.number(task) > self.verdict.proven

    def _prove_longer(self, tasks: list[Task], algorithm: Algorithm) -> _ResultsAndLeft:
        """Train the first client that is longer than all before both ways, with a neighbour; return the others.

        What a module does only in steps that no client has reached before is seen so.
        """
        places = with_neighbour(tasks, next(place for place, task in enumerate(tasks) if self._is_longer(task)))
        left, rest = (yield from self._train_all(tasks[: places[0]], algorithm)), tasks[places[0] :]
        if not self._stacks:
            return left + rest
        return (yield from self._prove(rest, [place - places[0] for place in places], algorithm))

    def _prove(self, tasks: list[Task], places: Sequence[int], algorithm: Algorithm) -> _ResultsAndLeft:
        """Train the first clients, those at the places both ways; return the others."""
        first, rest = tasks[: places[-1] + 1], tasks[places[-1] + 1 :]
        witnesses = [tasks[place] for place in places]
        if len(witnesses) < WITNESSES and not self._stacks:
            return tasks
        if len(witnesses) < WITNESSES:
            yield from self._sequential.run(first, self._training, algorithm)
            return rest
        try:
            self.check()
            trial = Trial(self._training, programs=self.verdict.programs)
        except CannotVectorize as error:
            self.give_up(reason(error), error)
            return tasks
        try:
            yield from trial.train(first, witnesses, algorithm)
            trial.compare()
        except Exception as error:
            if isinstance(error, ChangesModule) and not self._forgave_a_change:
                # what a first step makes and keeps, perhaps: then the next clients change nothing
                self._forgave_a_change = True
                self._circumstances = now = Circumstances(self._training)
                self.verdict.circumstances = now.fingerprints
                places = first_witnesses(rest, self._training.batches.windows) if rest else ()
                return (yield from self._prove(rest, places, algorithm)) if rest else rest
            if not isinstance(error, CannotVectorize) and not trial.trained:
                raise  # it would be raised without a trial, too
            self.give_up(reason(error), error)
            return [*trial.left, *rest]
        longest = math.inf if trial.by_program else max(map(self._training.batches.number, witnesses))
        self.verdict.add(trial, longest)
        return rest

    @property
    def tries_each_round(self) -> bool:
        """Whether every round has a trial."""
        return self.verdict.each_round or self.verdict.renewed > 1

    def give_up(self, cause: str, error: Exception | None = None) -> None:
        """Train clients one after the other from now on, and say why; the error's traceback goes to the debug log."""
        if error is not None:
            log_why(log, "Clients are not stacked", error)
        who = "From now on clients" if self._stacks else "Clients"
        self.verdict = Verdict(cause=cause)
        rank_zero_info(f"{who} are trained one after the other, not stacked: {cause}.")

    def check(self) -> None:
        """Raise ``CannotVectorize`` for what can be told without trying."""
        check_parts(self._training.algorithm)
        self._steps.stacked.check()
        check_elementwise(self._training.trainer.optimizers[0])

    def first_stack(self, tasks: Sequence[Task]) -> int:
        """Return how many of the tasks would train at once."""
        return len(next(self._chunks(tasks)))

    def _chunks(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Yield tasks that train at once: of one round, whose learning rates they share, and of like lengths."""
        in_order = self._training.hooks.see_order
        if not in_order:
            rounds = list(dict.fromkeys(task.round for task in tasks))
            tasks = sorted(tasks, key=lambda task: rounds.index(task.round))
        for _, own in groupby(tasks, key=lambda task: task.round):
            members = list(own)
            most = self.clients_at_once or clients_that_fit(self._training, members)
            if len(members) > most and not in_order:
                members.sort(key=lambda task: (-self._training.batches.number(task), task.slot))
            for start in range(0, len(members), most):
                yield members[start : start + most]

    def _train(self, tasks: Sequence[Task], algorithm: Algorithm, journal: Journal) -> Iterator[ClientResult]:
        """Train clients at once, or, if that fails, one after the other."""
        training = self._training
        training.show(tasks)
        begun = self._begin(tasks, algorithm)
        results = Results(training, algorithm, journal, late=not self.verdict.prepares)
        for members in alike(begun, lambda client: client):
            length = len(journal)
            if self._stacks and members[0].progress is None:
                try:
                    results.add(self._train_alike(members, journal))
                    continue
                except (SIGTERMException, KeyboardInterrupt):
                    raise
                except NoProgram:  # once a fit at most; the next round tries out mapped steps
                    self.verdict.proven, self.verdict.programs = 0, False
                except Exception as error:  # a mistake of the user's own is raised again without a stack
                    self.give_up(reason(error), error)
                journal.cut(length)
            results.add_untrained(members)
        yield from results.hand_in()
        if results.late_change is not None:
            self._ask_again()
        yield from self._sequential.run(tasks[len(begun) :], training, algorithm)

    def _ask_again(self) -> None:
        """Train clients one after the other until another trial has been passed, the next time."""
        self.verdict.proven = 0
        self._steps.forget()

    def _begin(self, tasks: Sequence[Task], algorithm: Algorithm) -> list[StartedClient]:
        """Begin clients; call ``on_client_start`` where it may set what they train from.

        Returns:
            The clients; only the first one, which has to be trained alone, if the hooks change what the next ones have
            in common with it.
        """
        training, hooks = self._training, self.verdict.prepares
        begun: list[StartedClient] = []
        held: Tensor | None = None
        ground = SharedState(training, tasks) if hooks else None
        for task in tasks:
            begun.append(training.begin(task, algorithm.start(task), held, hooks=hooks))
            held = None if hooks else begun[-1].model
            found = None if ground is None else ground.changed(task)
            if found is not None and len(begun) == 1:
                self._ask_again()
                break
            if found is not None:
                raise RuntimeError(
                    f"A callback's `on_client_start` changes {found} for some clients only, which clients that train "
                    'at once share. Give the aggregation `executor="sequential"`.'
                )
        return begun

    def _train_alike(self, members: Sequence[StartedClient], journal: Journal) -> Trained:
        """Train clients whose optimizers have the same options."""
        training, stacked = self._training, self._steps.stacked
        training.loop.on_client_start(members[0].task.round)
        if members[0].options is not None:
            training.loop.optimizers.set_options(members[0].options)
        ordered = sorted(members, key=self._order)
        tasks = [member.task for member in ordered]
        plain = stacked.transfers_plainly
        generators = None
        if self.verdict.draws or not draws_nothing(training, tasks[0], plain):
            generators = ClientGenerators([partial(training.seed, task) for task in tasks], training.vector.device)
        source = make_source(training, tasks, stacked.transfer, plain, generators)
        stack = Stack.of(training, training.vector, ordered, source, generators if self.verdict.draws else None)
        optimizer = StackedOptimizer(training.trainer.optimizers[0], training.vector.parameters)
        stacked.begin_stack()
        training.seed(tasks[0])
        as_program = math.isinf(self.verdict.proven)
        looked_at = training.hooks.read_logged_values
        ends = ClientEnds(training.loop.optimizers, optimizer, training.vector.parameters) if looked_at else None
        stack_training = StackTraining(training, self._steps, stack, optimizer, journal, as_program, ends)
        if as_program and not stack_training.by_program:
            raise NoProgram("`training_step` was a program in the trial and is none now")
        trained = Trained(ordered, stack, stack_training.run(), ends)
        self._mapped, self._batches = self._mapped + stack_training.mapped, self._batches + stack_training.batches
        return trained

    def _order(self, member: StartedClient) -> tuple[int, int, int]:
        """Return the key that puts the longest client first; neighbours' last batches have one size."""
        size, samples = self._training.data.batch_size, member.task.num_samples
        last = samples if size is None else (samples - 1) % size
        return -len(self._training.batches.windows(member.task)), -last, member.task.slot
