"""The steps of one stack of clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.log_replay import Journal
from fl_lightning._lightning.logged_values import Entry
from fl_lightning.clients.state_vector import unshared
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.client_ends import ClientEnds
from fl_lightning.executors.stacked.guards.nothing_kept import nothing_kept
from fl_lightning.executors.stacked.optimizer import StackedOptimizer, clip
from fl_lightning.executors.stacked.program.steps import ProgramSteps
from fl_lightning.executors.stacked.program.updates import Gradients, InPlaceSgd
from fl_lightning.executors.stacked.randomness import nothing_drawn
from fl_lightning.executors.stacked.sources import Groups
from fl_lightning.executors.stacked.stack import Stack
from fl_lightning.executors.stacked.step_runners import Branch, ClientsStep, StepRunners

GradientList = list[Tensor | None]


class StackTraining:
    """Trains the models of a stack.

    Args:
        training: Trains clients.
        steps: How ``training_step`` runs.
        stack: The clients.
        optimizer: Steps them.
        journal: Keeps what they log.
        programs: Whether their steps may be a program.
        ends: Keeps what hooks find in the optimizer and the gradients; ``None`` if there is none that looks.
    """

    def __init__(
        self,
        training: LocalTraining,
        steps: StepRunners,
        stack: Stack,
        optimizer: StackedOptimizer,
        journal: Journal,
        programs: bool,
        ends: ClientEnds | None = None,
    ) -> None:
        self._training, self._steps, self._stack, self._optimizer = training, steps, stack, optimizer
        self._models, self._windows, self._terms, self._journal = stack.models, stack.windows, stack.terms, journal
        self._active = active_clients(list(map(len, stack.windows)))
        self._ends, self._ending = ends, range(0)  # the rows that take their last step
        if ends is not None and not all(optimizer.stepped):
            raise CannotVectorize(
                "a callback may look at the gradients of parameters that the optimizer does not step, which add up"
            )
        trainer = training.trainer
        self._accumulate = int(trainer.accumulate_grad_batches)
        self._clip = float(trainer.gradient_clip_val or 0.0), trainer.gradient_clip_algorithm
        optimizer.attach(stack.models.parameters)
        decays = stack.terms.weight_decays
        self._decays = optimizer.add_weight_decay(decays) if any(decays) else None
        self._done = [0] * len(stack.windows)  # batches on which each client has trained
        #: Whether the module has drawn random numbers.
        self.drew = False
        #: Losses of mapped steps on a copy that are not a number.
        self.lost = 0
        #: Mapped steps, and batches on which they were taken.
        self.mapped, self.batches = 0, 0
        self._by_step = bool(training.loop.optimizers.by_step)
        self._settings: list[Any] = []  # of the optimizer, at the steps of which nothing has been kept
        self._program = self._make_program() if programs else None

    @property
    def by_program(self) -> bool:
        """Whether the steps are those of a program."""
        return self._program is not None

    def run(self) -> list[list[float]]:
        """Take all steps; return each client's sum of learning rates for each parameter, if that is asked for.

        Raises:
            CannotVectorize: If the clients cannot be trained at once.
        """
        with nothing_kept(), nothing_drawn(self._training.vector.device), self._terms.unchanged():
            return self._run()

    def _run(self) -> list[list[float]]:
        training, optimizer = self._training, self._optimizer
        schedules = training.loop.optimizers
        counts_lr = training.algorithm.needs_summed_lr
        so_far = [0.0] * len(self._models.parameters)
        summed: list[list[float]] = [[] for _ in self._windows]
        for step, (active, next_active) in enumerate(zip(self._active, [*self._active[1:], 0], strict=True)):
            if self._models.keep(active):
                optimizer.attach(self._models.parameters)
            training.loop.stop.poll()
            self._ending = range(next_active, active)
            stepped = self._step(step, active) if self._program is None else self._program_step(step)
            if counts_lr:
                rates = optimizer.learning_rates()
                so_far = [a + (b if own else 0.0) for a, b, own in zip(so_far, rates, stepped, strict=True)]
                summed[:active] = [so_far] * active
            if schedules.by_step:
                with training.loop.hidden_counters():
                    schedules.step_in_client(step + 1, self._batches_until(step, active))
                optimizer.refresh()
            if self._ends is not None and self._ending:
                self._ends.keep_state(self._ending)
        return summed

    def _batches_until(self, step: int, active: int) -> int:
        """Return the batches that clients have trained on after a step, where schedules count them."""
        if all(config.frequency <= 1 for config in self._training.loop.optimizers.by_step):
            return step + 1
        batches = {sum(windows[: step + 1]) for windows in self._windows[:active]}
        if len(batches) > 1:
            raise CannotVectorize("a learning-rate schedule steps at some batches only, and clients count unequally")
        return batches.pop()

    # ---- by a program ----

    def _make_program(self) -> ProgramSteps | None:
        """Return the program of the stack's steps, ``None`` if they have to be mapped."""
        training, stack = self._training, self._stack
        form = stack.source.form() if self._accumulate == 1 else None
        size, round_index = stack.batch_size, training.trainer.current_epoch
        with nothing_kept():
            traced = None if form is None else self._steps.programs.make(form, size, round_index)
        if form is None or traced is None or (traced.plan.draws and not self._may_draw()):
            return None
        self.drew = traced.plan.draws
        used = traced.plan.parameters_used()
        self._stepped = [own and place in used for place, own in enumerate(self._optimizer.stepped)]
        parameters = [parameter.detach() for parameter in self._models.parameters]
        at_once = self._terms.quadratic and not self._clip[0] and self._decays is None and self._optimizer.is_plain
        self._sgd = InPlaceSgd(self._optimizer, self._terms) if at_once else None
        self._weights: list[Tensor] = []
        return ProgramSteps(
            self._steps.programs, traced, form, stack.source, self._active, size, parameters, stack.generators
        )

    def _may_draw(self) -> bool:
        """Whether a program may draw from the clients' generators, which are on the CPU."""
        return self._stack.generators is not None and self._training.vector.device.type == "cpu"

    def _program_step(self, step: int) -> list[bool]:
        """Take one optimizer step of the clients at work; return which parameters were stepped."""
        program, models, sgd = self._program, self._models, self._sgd
        assert program is not None
        if self._ends is not None and self._ending:  # their gradients are looked at
            sgd = None
        changed = not self._weights or len(self._weights[0]) != models.active
        if changed:
            self._weights = [parameter.detach() for parameter in models.parameters]
        if sgd is not None and (changed or self._by_step):
            sgd.prepare(self._weights)
        gradients = Gradients(len(self._weights))
        if self._by_step:
            self._settings.append(self._optimizer.settings())
        with torch.no_grad():
            program.step(step, self._weights, sgd or gradients)
        if sgd is None:
            self._correct(gradients.values)
        self._steps.stacked.show(models.active)
        if step + 1 == program.segment_end:
            settings, self._settings = self._settings, []
            for entry, own in zip_longest(program.logged(self._stack.slots), settings):
                entry.settings = own
                self._journal.add(entry)
        return self._stepped if sgd is not None else [g is not None for g in gradients.values]

    # ---- by a mapped step ----

    def _step(self, step: int, active: int) -> list[bool]:
        """Take one optimizer step of the first ``active`` clients; return which parameters were stepped."""
        gradients: GradientList = [None] * len(self._models.parameters)
        used: list[set[int]] = [set() for _ in gradients]  # the rows whose batches use each parameter
        for micro in range(max(windows[step] for windows in self._windows[:active])):
            rows = [row for row in range(active) if self._windows[row][step] > micro]
            for index in sorted({self._done[row] for row in rows}):  # unequal with accumulation over epochs
                like = [row for row in rows if self._done[row] == index]
                ends = [self._windows[row][step] == micro + 1 for row in like]
                new = self._gradients(self._stack.source.next(like), ends, index, used)
                gradients = [_sum(a, b) for a, b in zip(gradients, new, strict=True)]
                self._steps.stacked.show(len(like))
            for row in rows:
                self._done[row] += 1
        if any(0 < len(rows) < active for rows in used):  # alone, the others would not step it, not even by momentum
            raise CannotVectorize("some clients' batches use a parameter that others of the same step do not use")
        self._correct(gradients)
        return [gradient is not None for gradient in gradients]

    def _gradients(self, groups: Groups, ends: Sequence[bool], index: int, used: list[set[int]]) -> GradientList:
        """Return the gradients of the clients' losses on their batches of a number: one pass for each shape and way."""
        models, taken = self._models, list[Branch]()
        total = torch.zeros((), device=models.parameters[0].device)
        steps = dict(zip(sorted(row for rows, _ in groups for row in rows), ends, strict=True))
        tries = self._steps.tries
        step = ClientsStep(models, index, self._stack.generators)
        for members, batch in groups:
            for branch in self._steps.take(step, members, batch):
                if self._steps.rehearsal is None:
                    self.lost += int(branch.losses.isnan().sum())
                rows, logged = branch.rows, branch.logged
                self._keep(Entry(logged, logged.tensors, self._slots(rows), [steps[row] for row in rows], batch.first))
                self.drew, self.batches = self.drew or branch.drew, self.batches + len(rows)
                taken.append(branch)
                total = total + branch.losses.sum()
        self.mapped += self._steps.tries - tries
        scaled = total / self._accumulate if self._accumulate > 1 else total
        wanted = [parameter for branch in taken for parameter in branch.parameters]
        found = iter(torch.autograd.grad(scaled, wanted, allow_unused=True))
        of_branches: list[GradientList] = [[next(found) for _ in branch.parameters] for branch in taken]
        for branch, own_gradients in zip(taken, of_branches, strict=True):
            for own_rows, gradient in zip(used, own_gradients, strict=True):
                own_rows.update(branch.rows if gradient is not None else ())
        for branch in taken:
            models.renew_buffers(branch.rows, branch.buffers)
        each = zip(models.parameters, *of_branches, strict=True)
        return [_joined(parameter, own, [branch.rows for branch in taken]) for parameter, *own in each]

    def _slots(self, rows: Sequence[int]) -> list[int]:
        return [self._stack.slots[row] for row in rows]

    def _keep(self, entry: Entry) -> None:
        """Keep what clients logged."""
        if self._by_step:
            entry.settings = self._optimizer.settings()
        self._journal.add(entry)

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
        if self._ends is not None and self._ending:
            self._ends.keep_gradients(gradients, self._ending)
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
