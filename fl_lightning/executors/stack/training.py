"""The training of one stack of clients: from their models to their results, one optimizer step after the other.

The worked example, with clients of 9, 8 and 4 samples in batches of 4::

    step 0    3 clients, batches of 4, 4 and 4 samples
    step 1    2 clients, batches of 4 and 4 samples
    step 2    1 client, a batch of 1 sample
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.log_replay import Journal
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.executors.compiler.capture import CapturedStep
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.filled import WeightedSteps
from fl_lightning.executors.compiler.gradient_hooks import GradientHooks
from fl_lightning.executors.compiler.schedule_functions import ScheduleFunctions
from fl_lightning.executors.compiler.sizes import NotOfSamples
from fl_lightning.executors.stack.batches import StackedBatch
from fl_lightning.executors.stack.models import ModelStack
from fl_lightning.executors.stack.randomness import ClientGenerators, nothing_drawn
from fl_lightning.executors.stack.sources import GatheredBatches, active_clients, make_source
from fl_lightning.executors.stack.steps import FilledSteps, GroupedSteps, StackAtWork, StackSteps
from fl_lightning.executors.stack.update import StackUpdate
from fl_lightning.parts.messages import Task


class StepRunner:
    """How a fit's ``training_step`` runs on stacks.

    Args:
        training: Trains clients.
        stacked: The module's loop.
    """

    def __init__(self, training: LocalTraining, stacked: StackedLoop) -> None:
        precision = training.trainer.precision_plugin
        self.stacked = stacked
        self.captured = CapturedStep(stacked, training.vector, ordered=not training.algorithm.schedule.asynchronous)
        self.check = Check(self.captured, training.vector, mixed="mixed" in str(precision.precision))
        self.weighted = WeightedSteps(self.captured, self.check)
        self.hooks = GradientHooks(self.captured, stacked, training.vector)
        self.schedule_functions = ScheduleFunctions(stacked, self.captured.kept_names)


class StackTraining:
    """Trains the models of some clients at once.

    Args:
        training: Trains clients.
        runner: Runs the steps.
        members: The clients, longest first.
    """

    def __init__(self, training: LocalTraining, runner: StepRunner, members: Sequence[ClientAtWork]) -> None:
        self._training = training
        self._runner = runner
        tasks = [member.task for member in members]
        seeds = [task.seeds for task in tasks]
        generators = ClientGenerators(training.settings.run_seed, seeds, training.vector.device)
        self._source = make_source(training, tasks, runner.stacked.transfer, generators)
        models = ModelStack(training.vector, [member.start for member in members])
        windows = [training.batches.windows(task) for task in tasks]
        #: What the clients have logged.
        self.journal = Journal()
        self._stack = StackAtWork(
            models=models,
            update=StackUpdate(training, members, models, runner.hooks.names),
            hooks=runner.hooks,
            generators=generators,
            slots=[task.slot for task in tasks],
            windows=windows,
            batch_size=self._source.largest or training.batches.largest(tasks),
            journal=self.journal,
            loop=runner.stacked,
            steps_before=_steps_before(runner.stacked.steps_so_far, tasks, windows),
            keeps_settings=bool(training.client_loop.optimizers.by_step),
        )
        lengths = [len(own) for own in windows]
        self._active = active_clients(lengths)
        self._is_even = len(set(lengths)) == 1 and len({task.num_samples for task in tasks}) == 1
        self._accumulate = int(training.trainer.accumulate_grad_batches)

    def run(self, check_kept: Callable[[Collection[str]], None]) -> list[tuple[Tensor, int, list[float]]]:
        """Take all steps; return each client's model, number of steps, and sums of its learning rates, if asked for.

        Args:
            check_kept: Raises ``CannotVectorize`` if steps may not keep something in attributes of these names.

        Raises:
            CannotVectorize: If the clients cannot be trained at once.
        """
        try:
            with nothing_drawn(self._training.vector.device), warnings.catch_warnings():
                # `vmap` warns at each call of some functions.
                warnings.filterwarnings("ignore", "There is a performance drop")
                self._runner.captured.begin_stack()
                summed_rates = self._take_all(self._way())
            kept = self._runner.captured.kept_names()
            check_kept(kept)
            self._source.check_reads(kept)
            self.journal.check_conditions()
        except CannotVectorize:
            self._source.give_back()
            raise
        models = self._stack.models.vectors()
        steps = map(len, self._stack.windows)
        return list(zip(models, steps, summed_rates, strict=True))

    def _way(self) -> StackSteps:
        """Return how the stack takes its steps: filled up where clients' batches have unequal sizes and it can be."""
        stack = self._stack
        runner = self._runner
        source = self._source
        grouped = GroupedSteps(stack, runner.captured, runner.check, source, self._accumulate)
        if self._is_even or self._accumulate != 1 or stack.models.buffers or not isinstance(source, GatheredBatches):
            return grouped
        batch = StackedBatch([table[0] for table in source.at(0).tables])
        try:
            step, inputs = runner.weighted.find(batch, source.sizes(), stack.models.parameters, stack.generators)
        except NotOfSamples:
            return grouped
        return FilledSteps(stack, step, inputs, source)

    def _take_all(self, steps: StackSteps) -> list[list[float]]:
        """Take all steps; return the sums of each client's learning rates, where they are asked for."""
        training = self._training
        stack = self._stack
        schedules = training.client_loop.optimizers
        so_far = [0.0] * len(stack.models.parameters)
        summed: list[list[float]] = [[] for _ in stack.windows]
        for step, active in enumerate(self._active):
            if stack.models.keep(active) or step == 0:
                stack.update.attach()
            training.client_loop.stop.poll()
            stepped = steps.take(step, active)
            if training.algorithm.needs_summed_lr:
                rates = stack.update.learning_rates()
                so_far = [
                    total + (rate if own else 0.0) for total, rate, own in zip(so_far, rates, stepped, strict=True)
                ]
                summed[:active] = [so_far] * active
            if schedules.by_step:
                with training.client_loop.hidden_counters(), self._runner.schedule_functions.checked():
                    schedules.step_in_client(step + 1, self._batches_until(step, active))
                stack.update.refresh()
        return summed

    def _batches_until(self, step: int, active: int) -> int:
        """Return the batches that clients have trained on after a step, where schedules count them."""
        if all(config.frequency <= 1 for config in self._training.client_loop.optimizers.by_step):
            return step + 1
        batches = {sum(windows[: step + 1]) for windows in self._stack.windows[:active]}
        if len(batches) > 1:
            raise CannotVectorize("a learning-rate schedule steps at some batches only, and clients count unequally")
        return batches.pop()


def _steps_before(first: int, tasks: Sequence[Task], windows: Sequence[list[int]]) -> list[int]:
    """Return how many optimizer steps all clients have made before each of a stack's begins, one after the other.

    Args:
        first: The steps before the stack.
        tasks: The clients' tasks.
        windows: For each client the number of batches of each of its steps.
    """
    before = [0] * len(tasks)
    for row in sorted(range(len(tasks)), key=lambda row: tasks[row].slot):
        before[row] = first
        first += len(windows[row])
    return before
