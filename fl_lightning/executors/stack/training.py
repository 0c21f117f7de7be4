"""The steps of one stack of clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.loops.local_optimizers import maximized
from fl_lightning._lightning.stacks.log_replay import Journal
from fl_lightning._lightning.stacks.recording import Entry, Logged
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop
from fl_lightning.clients.state_vector import unshared
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.executors.compiler.capture import CapturedStep, Step
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.filled import WeightedSteps
from fl_lightning.executors.compiler.graph import Stacks
from fl_lightning.executors.compiler.sizes import NotOfSamples
from fl_lightning.executors.stack.batches import StackedBatch, select
from fl_lightning.executors.stack.corrections import StackedCorrections
from fl_lightning.executors.stack.inplace_sgd import InPlaceSgd
from fl_lightning.executors.stack.models import ModelStack
from fl_lightning.executors.stack.optimizer import StackedOptimizer, clip
from fl_lightning.executors.stack.randomness import ClientGenerators, nothing_drawn
from fl_lightning.executors.stack.sources import GatheredBatches, Padded, make_source
from fl_lightning.seeding import Stream, derive_seed

GradientList = list[Tensor | None]


class StepRunner:
    """How a fit's ``training_step`` runs on stacks.

    Args:
        training: Trains clients.
        stacked: The module's loop.
    """

    def __init__(self, training: LocalTraining, stacked: StackedLoop) -> None:
        mixed = "mixed" in str(training.trainer.precision_plugin.precision)
        self.stacked, self.context = stacked, training.trainer.precision_plugin.train_step_context
        self.captured = CapturedStep(stacked, training.vector)
        self.check = Check(self.captured, training.vector, mixed=mixed)
        self.weighted = WeightedSteps(self.captured, self.check)


class StackTraining:
    """Trains the models of some clients at once.

    Args:
        training: Trains clients.
        runner: Runs the steps.
        members: The clients, longest first.
    """

    def __init__(self, training: LocalTraining, runner: StepRunner, members: Sequence[ClientAtWork]) -> None:
        self._training, self._runner = training, runner
        vector, tasks, starts = training.vector, [own.task for own in members], [own.start for own in members]
        seeds = [derive_seed(training.settings.run_seed, Stream.CLIENT, *task.seeds) for task in tasks]
        self._generators = ClientGenerators(seeds, vector.device)
        self._source = make_source(training, tasks, runner.stacked.transfer, self._generators)
        self._models = ModelStack(vector, starts)
        ascending = maximized(training.trainer.optimizers)
        ascends = [id(parameter) in ascending for parameter in vector.parameters]
        self._terms = StackedCorrections([own.correction for own in members], starts, vector, ascends)
        self._optimizer = StackedOptimizer(training.trainer.optimizers[0], vector.parameters)
        self._slots, self._windows = [task.slot for task in tasks], [training.batches.windows(task) for task in tasks]
        self._batch_size = self._source.largest or training.batches.largest(tasks)
        self._is_even = len({task.num_samples for task in tasks}) == len(set(map(len, self._windows))) == 1
        #: What the clients have logged.
        self.journal = Journal()
        self._active = active_clients(list(map(len, self._windows)))
        trainer = training.trainer
        self._accumulate = int(trainer.accumulate_grad_batches)
        self._clip = float(trainer.gradient_clip_val or 0.0), trainer.gradient_clip_algorithm
        self._optimizer.attach(self._models.parameters)
        decays = self._terms.weight_decays
        self._decays = self._optimizer.add_weight_decay(decays) if any(decays) else None
        self._done = [0] * len(tasks)  # batches on which each client has trained
        self._by_step = bool(training.loop.optimizers.by_step)
        one_step = self._accumulate == 1 and not self._clip[0] and self._decays is None
        is_plain = one_step and self._terms.quadratic and self._optimizer.is_plain
        self._sgd = InPlaceSgd(self._optimizer, self._terms) if is_plain else None
        self._steps: dict[Any, tuple[Step, list[Any]]] = {}  # captured, for each kind of batch
        self._weighted: tuple[Step, list[Any]] | None = None
        self._tables: Padded | None = None

    def run(self) -> list[tuple[Tensor, int, list[float]]]:
        """Take all steps; return each client's model, number of steps, and sums of its learning rates, if asked for.

        Raises:
            CannotVectorize: If the clients cannot be trained at once.
        """
        try:
            with nothing_drawn(self._training.vector.device), self._runner.context(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # of vmap, at each call
                self._runner.captured.begin_stack()
                self._weighted = self._find_weighted()
                summed = self._run()
        except CannotVectorize:
            self._source.give_back()
            raise
        vector_of = self._models.vectors()
        return [(vector_of(row), len(self._windows[row]), rates) for row, rates in enumerate(summed)]

    def _run(self) -> list[list[float]]:
        training, optimizer = self._training, self._optimizer
        schedules = training.loop.optimizers
        so_far = [0.0] * len(self._models.parameters)
        summed: list[list[float]] = [[] for _ in self._windows]
        for step, active in enumerate(self._active):
            if self._models.keep(active) or step == 0:
                optimizer.attach(self._models.parameters)
                self._prepare()
            training.loop.stop.poll()
            stepped = self._step(step, active) if self._weighted is None else self._weighted_step(step, active)
            if training.algorithm.needs_summed_lr:
                rates = optimizer.learning_rates()
                so_far = [a + (b if own else 0.0) for a, b, own in zip(so_far, rates, stepped, strict=True)]
                summed[:active] = [so_far] * active
            if schedules.by_step:
                with training.loop.hidden_counters():
                    schedules.step_in_client(step + 1, self._batches_until(step, active))
                optimizer.refresh()
                self._prepare()
        return summed

    def _prepare(self) -> None:
        if self._sgd is not None:
            self._sgd.prepare([parameter.detach() for parameter in self._models.parameters])

    def _batches_until(self, step: int, active: int) -> int:
        """Return the batches that clients have trained on after a step, where schedules count them."""
        if all(config.frequency <= 1 for config in self._training.loop.optimizers.by_step):
            return step + 1
        batches = {sum(windows[: step + 1]) for windows in self._windows[:active]}
        if len(batches) > 1:
            raise CannotVectorize("a learning-rate schedule steps at some batches only, and clients count unequally")
        return batches.pop()

    # ---- steps of batches that are filled up ----

    def _find_weighted(self) -> tuple[Step, list[Any]] | None:
        """Return the weighted step, where clients' batches have unequal sizes and it can be."""
        source = self._source
        if self._is_even or self._accumulate != 1 or self._models.buffers or not isinstance(source, GatheredBatches):
            return None
        self._tables = source.segment(self._active, 0, self._batch_size)
        batch = StackedBatch([table[0] for table in self._tables.tables])
        try:
            return self._runner.weighted.find(batch, source.sizes(), self._models.parameters, self._generators)
        except NotOfSamples:
            source.rewind()
            return None

    def _weighted_step(self, number: int, active: int) -> list[bool]:
        """Take one optimizer step; return which parameters were stepped."""
        assert self._weighted is not None and isinstance(self._source, GatheredBatches)
        step, inputs = self._weighted
        models, size = self._models, self._batch_size
        if self._tables is None or number >= self._tables.end:
            self._tables = self._source.segment(self._active, number, size)
        tables, place = self._tables, number - self._tables.begin
        sizes = tables.sizes[place]
        stacks = Stacks(
            models.parameters,
            [],
            [table[place, :active] for table in tables.tables],
            self._generators.drawing(range(active), sizes, size),
            tables.weights[place, :active],
            self._sgd,
        )
        computed = step.graph.run(stacks, inputs, flat=True)
        kept: list[Any] = []
        for tensor, (one, of_samples) in zip(computed.kept, step.kept, strict=True):
            own = tensor.reshape(active) if one else tensor
            kept.append([own[row, :n] for row, n in enumerate(sizes)] if of_samples else own)
        self._keep(Entry(step.logged, kept, self._slots[:active], [True] * active, sizes=sizes))
        self._runner.stacked.show(active)
        if not computed.stepped:
            self._correct(computed.gradients)
        return [gradient is not None for gradient in computed.gradients]

    # ---- steps of batches as they are ----

    def _step(self, step: int, active: int) -> list[bool]:
        """Take one optimizer step of the first ``active`` clients; return which parameters were stepped."""
        gradients: GradientList = [None] * len(self._models.parameters)
        used: list[set[int]] = [set() for _ in gradients]  # the rows whose batches use each parameter
        for micro in range(max(windows[step] for windows in self._windows[:active])):
            rows = [row for row in range(active) if self._windows[row][step] > micro]
            for index in sorted({self._done[row] for row in rows}):  # unequal with accumulation over epochs
                like = [row for row in rows if self._done[row] == index]
                ends = {row: self._windows[row][step] == micro + 1 for row in like}
                new, stepped = self._gradients(self._source.next(like), ends, index, used)
                if stepped:
                    return [gradient is not None for gradient in new]
                gradients = [_sum(a, b) for a, b in zip(gradients, new, strict=True)]
            for row in rows:
                self._done[row] += 1
        if any(0 < len(rows) < active for rows in used):  # alone, the others would not step it, not even by momentum
            raise CannotVectorize("some clients' batches use a parameter that others of the same step do not use")
        self._correct(gradients)
        return [gradient is not None for gradient in gradients]

    def _gradients(
        self,
        groups: Sequence[tuple[Sequence[int], StackedBatch]],
        ends: dict[int, bool],
        index: int,
        used: list[set[int]],
    ) -> tuple[GradientList, bool]:
        """Return the gradients of the clients' losses on their batches, and whether parameters were stepped by them."""
        models, number = self._models, len(self._windows)
        parts: list[tuple[Sequence[int], list[Tensor | None]]] = []
        for rows, batch in groups:
            whole = len(rows) == number  # which alone is flat: the way to take a step depends on nothing but its form
            stacks = Stacks(
                models.parameters if len(rows) == models.active else [select(p, rows) for p in models.parameters],
                models.buffers if whole else [select(buffer, rows).clone() for buffer in models.buffers],
                batch.tensors,
                self._generators.drawing(rows),
                update=self._sgd if whole else None,
            )
            step, inputs = self._captured(batch, index)
            self._runner.check(step, inputs, stacks, batch, index, rows, flat=whole)
            computed = step.graph.run(stacks, inputs, flat=whole)
            if not whole:
                models.renew_buffers(rows, stacks.buffers)
            steps, slots = [ends[row] for row in rows], [self._slots[row] for row in rows]
            logged = Logged(step.logged.calls, step.logged.metric_calls)
            self._keep(Entry(logged, step.tensors(computed.kept), slots, steps, batch.first))
            self._runner.stacked.show(len(rows))
            if computed.stepped:
                self._done[:number] = [done + 1 for done in self._done]
                return computed.gradients, True
            for own_rows, gradient in zip(used, computed.gradients, strict=True):
                own_rows.update(rows if gradient is not None else ())
            scale = 1 / self._accumulate
            parts.append((rows, [g if g is None or scale == 1 else g * scale for g in computed.gradients]))
        each = zip(models.parameters, *(own for _, own in parts), strict=True)
        return [_joined(parameter, own, [rows for rows, _ in parts]) for parameter, *own in each], False

    def _captured(self, batch: StackedBatch, index: int) -> tuple[Step, list[Any]]:
        """Return the captured step of a batch: captured anew if it depends on its index, or on a rate that changes."""
        key = repr((batch.kind(), *((tensor.shape[1:], tensor.stride()[1:], tensor.dtype) for tensor in batch.tensors)))
        if key not in self._steps:
            found = self._runner.captured(batch, index, short=batch.size() != self._batch_size)
            if found[0].guards.changes:
                return found
            self._steps[key] = found
        return self._steps[key]

    def _keep(self, entry: Entry) -> None:
        """Keep what clients logged."""
        if self._by_step:
            entry.settings = self._optimizer.settings()
        self.journal.add(entry)

    def _correct(self, gradients: GradientList) -> None:
        """Apply local objectives, clipping and the optimizer, in Lightning's order."""
        models, terms = self._models, self._terms
        value, algorithm = self._clip
        if terms or value or not self._optimizer.is_plain:
            # a linear layer's gradient is transposed in memory: to be read more than once it is turned first
            gradients[:] = [None if gradient is None else gradient.contiguous() for gradient in unshared(gradients)]
        if terms:
            terms.correct(models.parameters, gradients)
        if value:
            stepped = self._optimizer.stepped
            clip([g for g, own in zip(gradients, stepped, strict=True) if own and g is not None], value, algorithm)
        if self._decays is not None:
            terms.decay(models.parameters, gradients, self._decays)
        self._optimizer.step(models.parameters, gradients)


def active_clients(lengths: Sequence[int]) -> list[int]:
    """Return for each step how many clients take part, where clients make so many steps each, the longest first."""
    active: list[int] = []
    for number in range(len(lengths), 0, -1):
        active += [number] * (lengths[number - 1] - len(active))
    return active


def _joined(parameter: Tensor, own: Sequence[Tensor | None], rows: Sequence[Sequence[int]]) -> Tensor | None:
    """Return the gradient of a parameter of all models, given those of groups of them."""
    known = [(gradient, members) for gradient, members in zip(own, rows, strict=True) if gradient is not None]
    if not known:
        return None
    if len(known[0][0]) == len(parameter):
        return known[0][0]
    joined = torch.zeros_like(parameter, requires_grad=False)
    for gradient, members in known:
        joined[torch.tensor(members, device=joined.device)] = gradient
    return joined


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
