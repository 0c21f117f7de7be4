"""The trial that a stack must pass: real clients trained both ways, from their first to their last step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from fl_lightning._lightning.batch_notes import Witness
from fl_lightning._lightning.cannot_vectorize import CannotVectorize, ChangesModule, describe_error
from fl_lightning._lightning.copies import WatchedTrainer
from fl_lightning._lightning.log_replay import Journal
from fl_lightning._lightning.metric_replay import MetricStates, metric_states
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.hooks import StartedClient, alike
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.causes import BY_ANOTHER_WAY
from fl_lightning.executors.stacked.changes.module_state import ModuleState
from fl_lightning.executors.stacked.changes.object_state import ObjectState
from fl_lightning.executors.stacked.changes.outside import Outside
from fl_lightning.executors.stacked.changes.through_trainer import ThroughTrainer
from fl_lightning.executors.stacked.corrections import CorrectionState
from fl_lightning.executors.stacked.decisions import Tried
from fl_lightning.executors.stacked.guards.effects import no_effects
from fl_lightning.executors.stacked.optimizer import StackedOptimizer
from fl_lightning.executors.stacked.program.maker import NoProgram
from fl_lightning.executors.stacked.randomness import ClientGenerators
from fl_lightning.executors.stacked.sources import WitnessedBatches, draws_nothing
from fl_lightning.executors.stacked.stack import Stack
from fl_lightning.executors.stacked.step_runners import Example, make_step_runners
from fl_lightning.executors.stacked.training import StackTraining
from fl_lightning.executors.stacked.trials.hook_trial import HookTrial
from fl_lightning.executors.stacked.trials.metric_trial import MetricsAlone, compare_metrics
from fl_lightning.executors.stacked.trials.numbers import compare_logs, compare_steps
from fl_lightning.executors.stacked.trials.precise import in_double_precision, largest, of_rounding, spoil
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.seeding import preserved_generators

#: Relative to how far training moves a tensor: rounding stays far below, another function far above.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-3}
_MIXED = 5e-2


class Trial:
    """Trains the first clients of a fit normally, one after the other, and the same clients as a stack on a copy.

    Compared are weights, buffers, logged values, metric objects, numbers of steps, and the module's state of any other
    kind. Nothing of the copy comes back: neither logs, nor counters, nor random numbers, nor reads of the data.

    Args:
        training: Trains clients.
        programs: Whether ``training_step`` may be a program.

    Raises:
        CannotVectorize: If the module cannot be copied.

    Attributes:
        trained: Whether all clients were trained normally.
        prepares: Whether ``on_client_start`` sets weights or learning rates, known after :meth:`train`.
        draws: Whether the module draws random numbers, known after :meth:`compare`.
        jointly: Whether metric objects may be given all clients' batches at once, known after :meth:`compare`.
        by_program: Whether ``training_step`` is a program on all stacks, known after :meth:`compare`.
    """

    def __init__(self, training: LocalTraining, *, programs: bool) -> None:
        self._training = training
        self._copy, self._watched = copy_of(training)
        module: Any = self._copy.vector.module
        spoil(self._copy.vector.tensors())
        stacked = StackedLoop(training.loop, training.corrector, module)
        self._steps = make_step_runners(training, self._copy.vector, stacked)
        self._done: list[_Done] = []
        self._programs = programs
        self.trained, self.prepares, self.draws, self.jointly, self.by_program = False, False, False, True, True
        #: Tasks that have not been trained.
        self.left: Sequence[Task] = []

    def train(self, tasks: Sequence[Task], witnesses: Sequence[Task], algorithm: Algorithm) -> Iterator[ClientResult]:
        """Train clients normally, one after the other, and yield their results.

        Args:
            tasks: The clients.
            witnesses: Those of them that are compared.
            algorithm: Gives the models from which they start.

        Raises:
            CannotVectorize: If that changes the module beside its federated state, or what clients share; the clients
                are trained even so.
        """
        training, self.left = self._training, tasks
        state, data = ModuleState(training.vector), training.data
        reads = ObjectState(*(data.client_dataset(task.client) for task in witnesses), data.source_collate_fn, data)
        rates = ObjectState(*training.loop.optimizers.functions_of_rates())
        hooks = HookTrial(training)
        kept: str | None = None
        for place, task in enumerate(tasks):
            self.left = tasks[place:]
            begun = hooks.begin(task, algorithm.start(task))
            if task in witnesses:
                before, correction = metric_states(training.vector.module), CorrectionState(begun.correction)
                with training.loop.witnessed() as witness:
                    result = training.go_on(begun, at_once=True)
                kept = kept or correction.changed()
                self._done.append(_Done(begun, result, witness, before))
            else:
                result = training.go_on(begun, at_once=True)
            yield result
            self.left = tasks[place + 1 :]
            hooks.end(task)
        self.trained, self.prepares = True, hooks.prepares
        hooks.check()
        if kept is not None:
            raise CannotVectorize(kept)
        if read := reads.changed():
            raise CannotVectorize(
                f"reading the data, or `training_step`, changes `{read}`, of which there is one for all clients"
            )
        if changed := rates.changed():
            raise CannotVectorize(
                f"a learning-rate schedule changes `{changed}`, of which there is one for all clients"
            )
        if any(done.witness.batches_changed for done in self._done):
            raise CannotVectorize("`training_step` changes its batch in place")
        if changed := state.changed():
            raise ChangesModule(f"{hooks.names} changes {changed}, of which there is one for all clients")

    def compare(self) -> None:
        """Train the same clients as a stack of copies, and compare.

        Raises:
            CannotVectorize: If anything differs.
        """
        vector = self._training.vector
        held, outside = vector.read(), Outside(ModuleState(self._copy.vector))
        spoil(vector.tensors())  # a step that takes the module's own, such as from the optimizer, is seen
        given = ThroughTrainer(self._watched)
        try:
            with given.looked_at():
                try:
                    self._compare_both()
                    self._compare_precisely()
                except Exception:  # whatever a module raises on stacked tensors
                    _refuse_changes(given)  # which are the cause
                    raise
                _refuse_changes(given)
        finally:
            vector.write(held)
            outside.put_back()

    def _compare_both(self) -> None:
        self._compare()
        if self.by_program and self._watched.reads_rates:  # they may change from step to step, a program does not
            self._programs = False
            self._compare()

    def _compare_precisely(self) -> None:
        """Compare a step of each client in double precision: at the weights to which it has come, which differ."""
        found = [done for done in self._done if done.witness.batches and bool(done.result.vector.isfinite().all())]
        with in_double_precision(self._copy, draws=self.draws, by_program=self.by_program) as precise:
            if precise is not None:
                precise.compare([self._example(done) for done in found])

    def _example(self, done: _Done) -> Example:
        return Example(partial(self._training.seed, done.begun.task), done.result.vector, done.witness.batches[0])

    def _is_noise(self, name: str, done: _Done, where: Tensor) -> bool:
        """Whether a parameter's gradient is zero but for rounding at some places."""
        with in_double_precision(self._copy, draws=self.draws, by_program=False) as precise:
            return precise is not None and precise.is_noise(name, self._example(done), where)

    def _compare(self) -> None:
        vector, journal = self._copy.vector, Journal()
        state = ModuleState(vector)
        with preserved_generators(vector.device):
            for members in self._alike():
                length = len(journal)
                try:
                    self._compare_stack(members, journal)
                except NoProgram:  # once a fit at most
                    journal.cut(length)
                    self._compare_stack(members, journal)
            self._compare_metrics(journal)
        self._training.loop.optimizers.reset(self._done[0].begun.task.round)
        if changed := state.changed():
            raise CannotVectorize(f"`training_step` changes {changed} of a stack")
        if not self._training.trainer.barebones:  # then nothing is logged
            compare_logs([done.witness for done in self._done], journal, self._tolerance)

    @property
    def tried(self) -> Tried:
        """What mapped steps did, known after :meth:`compare`."""
        return self._steps.tried

    @property
    def reads_round(self) -> bool:
        """Whether the stacked ``training_step`` read the round's number, known after :meth:`compare`."""
        return bool(self._watched.reads_round)

    def _alike(self) -> list[list[_Done]]:
        """Return the clients whose optimizers have the same options together, the longest first."""
        batches = self._training.batches
        if any(len(done.witness.batches) != batches.number(done.begun.task) for done in self._done):
            raise CannotVectorize("clients end their training before their last batch")
        longest_first = sorted(self._done, key=lambda done: -len(batches.windows(done.begun.task)))
        return alike(longest_first, lambda done: done.begun)

    def _compare_stack(self, members: Sequence[_Done], journal: Journal) -> None:
        training, vector = self._training, self._copy.vector
        first = members[0].begun
        training.loop.optimizers.reset(first.task.round)
        if first.options is not None:
            training.loop.optimizers.set_options(first.options)
        seeds = [partial(training.seed, member.begun.task) for member in members]
        generators = ClientGenerators(seeds, vector.device)
        drew = not draws_nothing(training, first.task, self._steps.stacked.transfers_plainly)
        source = WitnessedBatches([done.witness for done in members], generators, drew=drew)
        stack = Stack.of(training, vector, [done.begun for done in members], source, generators)
        optimizer = StackedOptimizer(training.trainer.optimizers[0], training.vector.parameters)
        seeds[0]()
        with no_effects():
            stack_training = StackTraining(self._copy, self._steps, stack, optimizer, journal, self._programs)
            summed = stack_training.run()
        self.draws, self.by_program = self.draws or stack_training.drew, self.by_program and stack_training.by_program
        if stack_training.lost > sum(member.witness.lost for member in members):  # by weights that are hidden
            raise CannotVectorize(BY_ANOTHER_WAY)
        vector_of = stack.models.vectors()
        for row, member in enumerate(members):
            self._compare_models(member, vector_of(row))
            compare_steps(member.result, len(stack.windows[row]), summed[row])

    @property
    def _is_mixed(self) -> bool:
        return str(self._training.trainer.precision_plugin.precision) not in ("32-true", "64-true")

    @property
    def _tolerance(self) -> float:
        return _MIXED if self._is_mixed else _TOLERANCES.get(self._training.vector.parameters[0].dtype, _MIXED)

    def _compare_models(self, done: _Done, stacked: Tensor) -> None:
        vector, optimizer = self._training.vector, self._training.trainer.optimizers[0]
        models = [vector.views(model) for model in (done.result.start, done.result.vector, stacked)]
        moves = [largest(after - start) for start, after, _ in zip(*models, strict=True)]
        # a tensor that hardly moves (a bias before BatchNorm, say) is moved by rounding alone
        floor = 1e-2 * max(moves[: len(vector.parameters)], default=0.0)
        for name, move, start, alone, at_once in zip(vector.tensor_names, moves, *models, strict=True):
            bound = self._tolerance * (max(move, floor) + 1e-6 * largest(start))
            apart = (alone - at_once).abs()
            same = (alone == at_once) | (alone.isnan() & at_once.isnan()) | (apart <= bound)
            if not bool(same.all()):
                if bool((at_once.isnan() & ~alone.isnan()).any()):
                    raise CannotVectorize(BY_ANOTHER_WAY)
                if name in vector.names and not isinstance(optimizer, SGD) and self._is_noise(name, done, ~same):
                    raise CannotVectorize(
                        f"a gradient of {name!r} is zero but for rounding, as that of a bias before normalisation, "
                        f"and {type(optimizer).__name__} makes whole steps of it. Leave it out, as by `bias=False`, or "
                        "take SGD"
                    )
                types = [parameter.dtype for parameter in vector.parameters]
                cause = of_rounding(types, models[1][: len(types)], largest(apart)) or self._unkept
                raise CannotVectorize(
                    f"{name!r} differs by {largest(apart):.1g} after a client's training in a stack, where training "
                    f"moves it by {move:.1g}: {cause}"
                )

    @property
    def _unkept(self) -> str:
        """The likely cause of a difference: something that is not kept for each client."""
        if self._watched.reads_rates:
            return "the step reads or sets something of the optimizer, of which there is one for all clients"
        order = ", such as the order in which random numbers are drawn" if self.draws else ""
        unkept = f"the step depends on something that a stack does not keep for each client{order}"
        return f"{unkept}; or it rounds more coarsely than its weights, as `torch.autocast` does"

    def _compare_metrics(self, journal: Journal) -> None:
        copy, origin = self._copy.vector, self._training.vector
        clients = [MetricsAlone(done.begun.task.slot, done.metrics_before, done.witness.metrics) for done in self._done]
        with self._training.trainer.precision_plugin.train_step_context():
            self.jointly = compare_metrics(clients, journal, copy, origin, self._done[0].begun.model, self._is_mixed)


@dataclass
class _Done:
    """A client that was trained normally."""

    begun: StartedClient
    result: ClientResult
    witness: Witness
    metrics_before: MetricStates


def _refuse_changes(given: ThroughTrainer) -> None:
    if changed := given.changed():
        raise CannotVectorize(f"`training_step` changes {changed}, of which there is one for all clients")


def copy_of(training: LocalTraining) -> tuple[LocalTraining, WatchedTrainer]:
    """Return the clients' training on a copy of the module, and the trainer that the copy sees.

    Raises:
        CannotVectorize: If the module cannot be copied.
    """
    try:
        return training.on_a_copy()
    except CannotVectorize:
        raise
    except Exception as error:  # whatever a module's attributes raise when they are copied
        raise CannotVectorize(f"the module cannot be copied to try it out ({describe_error(error)})") from error
