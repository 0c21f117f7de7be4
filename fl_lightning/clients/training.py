"""The local training of clients on the one module, and what is computed beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning._lightning.evaluation.unlogged import UnloggedTraining
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.progress_bars import with_progress
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning._lightning.loops.hooks import enter_fx
from fl_lightning._lightning.loops.local_optimizers import maximized, maximizes
from fl_lightning.clients.batches import ClientBatches, LocalSettings
from fl_lightning.clients.client_steps import ClientSteps, LossSteps, TermSteps, WalkSteps
from fl_lightning.clients.forward_pass import RecordedPass
from fl_lightning.clients.output_layer import OutputLayer
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.clients.step_counts import StepCounts
from fl_lightning.data import FederatedDataModule
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import ClientResult, OptimizerState, Task, same_values
from fl_lightning.parts.objectives.corrections import ChangedLoss, Correction, Term, Walk
from fl_lightning.seeding import Stream, seed_global_generators
from fl_lightning.vectors import checked_vector

#: Hooks of clients and rounds log under this hook of Lightning: it allows means over a round and runs once in it, so
#: that nothing is emptied.
_LOGS_AS = "on_train_start"


class LocalTraining:
    """Trains one client after another on the module.

    An executor either calls :meth:`train`, or trains several clients in its own way between :meth:`begin` and
    :meth:`finish`.

    Args:
        client_loop: Lightning's part of the clients' training, prepared.
        data: The clients' data.
        algorithm: Gives local objectives and scores.
        settings: How long clients train.
        after_client: Called after each client that was trained.

    Attributes:
        vector: Reads the module's federated state as a vector, and writes it.
        batches: The clients' batches.
        hooks: The hooks of clients that callbacks have.
        counts: Of the first step of the first client that trains here; ``None`` before.
    """

    def __init__(
        self,
        client_loop: ClientLoop,
        data: FederatedDataModule,
        algorithm: Algorithm,
        settings: LocalSettings,
        after_client: Callable[[], None],
    ) -> None:
        self.client_loop = client_loop
        self.data = data
        self.algorithm = algorithm
        self.settings = settings
        self.trainer = client_loop.trainer
        self.vector = StateVector(self.trainer.lightning_module, self.trainer.optimizers)
        self.batches = ClientBatches(self.trainer, data, settings, algorithm)
        self.hooks = ClientHooks(self.trainer, settings)
        self.counts: StepCounts | None = None
        self._after_client = after_client
        self.announce(())

    def prepare_clients(self) -> None:
        """Prepare the training of a round's clients."""
        self.batches.count_anew()
        self.hooks.find()
        self.vector.check_unchanged(self.trainer.optimizers)
        self.vector.note_constant()

    def announce(self, share: Sequence[Task]) -> None:
        """Note the tasks that this process trains next, for the progress bar."""
        self._begun = 0
        self._number = len(share)

    def show(self, tasks: Sequence[Task]) -> None:
        """Show in the progress bar that some of the tasks begin."""
        self._begun = min(self._begun + len(tasks), self._number)
        self.client_loop.show_client(self._begun, self._number)

    # ---- a client ----

    def train(self, task: Task, received: Tensor) -> ClientResult:
        """Train one client that received a model, shape ``(size,)``, and return its result."""
        loop = self.client_loop
        loop.stop.poll()
        client = self._make_client(task, received)
        self.vector.write(client.start)
        loop.begin_client(task.round, self.algorithm.optimizers.of(task))
        self.hooks.on_client_start(client)
        self._ask_parts(client)

        self.show([task])
        steps = self._steps_of(client)
        loop.client_steps = steps
        self.seed(task)
        self._train_batches(task, steps)
        steps.end()

        num_steps, optimizer_state = loop.end_client(task.slot)
        num_steps -= steps.skipped
        model = self.vector.read()
        steps.check_seen(task, model)
        return self.finish(client, model, num_steps, steps.summed_lr, optimizer_state)

    def _train_batches(self, task: Task, steps: ClientSteps) -> None:
        """Train the client whose model the module holds, batch by batch."""
        loop = self.client_loop
        one_pass = self.batches.one_pass(task)
        further_per_step = self.algorithm.batches_per_step(task) - 1
        batches = self.batches.iterate(task)
        batch = None
        try:
            for index, batch in enumerate(batches):
                with self._counting():
                    if steps.takes_steps:
                        further = islice(batches, further_per_step)
                        is_last = (index + 1) % one_pass == 0
                        goes_on = loop.train_batch(batch, index, is_last, further)
                    else:
                        loop.look_at_batch(batch, index)
                        goes_on = True
                if not goes_on:
                    break
                # An error may come from the next batch, whose tensors are not known then.
                batch = None
        except StopIteration:
            # From a hook, or the step: it ends the client, as it ends an epoch in Lightning.
            pass
        except Exception as error:
            tensors = [f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
            shown = ", ".join(tensors[:6]) or None
            error.add_note(f"In round {task.round + 1}, client {task.client}, batch: {shown}.")
            raise

    def begin(self, task: Task, received: Tensor, in_module: Tensor | None = None) -> ClientAtWork:
        """Begin a client that trains in a stack.

        Args:
            task: The client's task.
            received: The model that it receives, shape ``(size,)``.
            in_module: The model that the module holds; ``None`` if that is not known.
        """
        self.client_loop.stop.poll()
        client = self._make_client(task, received)
        if client.start is not in_module:
            self.vector.write(client.start)
        self._ask_parts(client)
        return client

    def _make_client(self, task: Task, received: Tensor) -> ClientAtWork:
        """Return a client that received a model, with the model from which it trains."""
        schedule = self.algorithm.schedule
        start = checked_vector(schedule, "start", schedule.start(task, received), received)
        return ClientAtWork(task, received, start, self)

    def _ask_parts(self, client: ClientAtWork) -> None:
        """Let the sampler score a client, and the objective say how to correct its steps, before its first batch.

        The module holds the model from which the client starts.
        """
        algorithm = self.algorithm
        is_first_training = not client.task.phase
        at_received: AbstractContextManager[None] = nullcontext()
        # A client is scored, and its loss measured, at the model that it received.
        if is_first_training and client.start is not client.received:
            at_received = self.vector.holding(client.received)
        with at_received:
            if is_first_training and algorithm.sampler.scored_at == "received":
                client.score = float(algorithm.sampler.score(client))
            client.correction = algorithm.correction(client)

    def _steps_of(self, client: ClientAtWork) -> ClientSteps:
        """Return what corrects a client's steps."""
        known = (client.start, self.vector, self.algorithm, self.trainer)
        match client.correction:
            case Term() as term:
                return TermSteps(term, *known)
            case ChangedLoss() as changed:
                recorded = RecordedPass(changed, self.vector, self.trainer, self.output_layer, self.quiet)
                return LossSteps(recorded, changed.term, *known)
            case Walk() as walk:
                return WalkSteps(walk, *known)
            case _:
                return ClientSteps(*known)

    def _counting(self) -> AbstractContextManager[Any]:
        if self.counts is not None:
            return nullcontext()
        self.counts = StepCounts()
        return self.counts

    def seed(self, task: Task) -> None:
        """Seed everything that is drawn inside a client."""
        seed_global_generators(self.settings.run_seed, Stream.CLIENT, *task.seeds)

    def finish(
        self,
        client: LocalClient,
        model: Tensor,
        num_steps: int,
        summed_lr: Sequence[float] = (),
        optimizer_state: OptimizerState | None = None,
    ) -> ClientResult:
        """End a client.

        Args:
            client: The client; if :attr:`is_watched`, the module holds its model.
            model: The model after training, shape ``(size,)``.
            num_steps: Optimizer steps that were made.
            summed_lr: Sum of their learning rates, for each parameter tensor, if the objective needs it.
            optimizer_state: What its optimizers hold, if it keeps that.
        """
        sampler = self.algorithm.sampler
        result = ClientResult(
            client.task,
            client.received,
            model,
            num_steps,
            summed_lr,
            score=client.score,
            num_parameters=self.vector.layout.num_parameters,
            optimizer=optimizer_state,
        )
        if sampler.scored_at == "trained" and result.is_finite and not client.task.phase:
            result = replace(result, score=float(sampler.score(client)))
        self.hooks.on_client_end(result, self.vector.read)
        self._after_client()
        return result

    @property
    def is_watched(self) -> bool:
        """Whether anything looks at the module when a client starts or ends."""
        return bool(self.hooks.starts or self.hooks.ends) or self.algorithm.sampler.scored_at == "trained"

    # ---- beside the clients' training ----

    def score(self, tasks: Sequence[Task]) -> dict[int, float]:
        """Return the scores of clients before a draw, each at the model that it receives; call it on all processes.

        Args:
            tasks: A task of each client.
        """
        algorithm = self.algorithm
        federation = algorithm.federation
        # A client is scored on the process that has what it keeps of its own.
        here = [task for task in tasks if task.client % federation.num_ranks == federation.rank]
        scores: dict[int, float] = {}
        with self.vector.preserved():
            for task in with_progress(self.trainer, here, "Scoring clients"):
                received = algorithm.run.round.received_before_draw(task)
                self.vector.write(received)
                scores[task.client] = algorithm.sampler.score(ClientAtWork(task, received, received, self))
                algorithm.chain.on_delivery(task, received)
        known: dict[int, float] = {}
        for share in federation.gather(scores):
            known.update(share)
        return {task.client: known[task.client] for task in tasks}

    @cached_property
    def output_layer(self) -> OutputLayer:
        """Finds the output layer, where an objective asks for it."""
        return OutputLayer(self.trainer.lightning_module, self.vector, self.quiet)

    @cached_property
    def quiet(self) -> UnloggedTraining:
        """Runs the module without a trace."""
        return UnloggedTraining(self.client_loop, self.vector.preserved)


@dataclass
class ClientAtWork:
    """The client whose model the module holds; see :class:`~fl_lightning.parts.LocalClient`.

    Attributes:
        correction: What the local objective asks of its steps; ``None`` for nothing.
    """

    task: Task
    received: Tensor
    start: Tensor
    training: LocalTraining
    score: float | None = None
    correction: Correction | None = None

    def gradients(self, batch_size: int | str | None = "data") -> Iterator[tuple[dict[str, Tensor], int]]:
        """Yield the gradient of each batch that has a loss by parameter name, and the batch's size."""
        size = self._size(batch_size)
        vector = self.training.vector
        ascending = maximized(self.training.trainer.optimizers)
        #: Parameters whose optimizers maximise: what is minimised has the negative gradient.
        turned = [name for name, each in zip(vector.names, vector.parameters, strict=True) if id(each) in ascending]
        for index, gradients in self.training.quiet.gradients(self._batches(size), vector.names):
            for name in turned:
                gradients[name] = -gradients[name]
            yield gradients, self._length(index, size)

    def losses(self, batch_size: int | str | None = "data") -> Iterator[tuple[float, int]]:
        """Yield the loss of each batch that has one, and the batch's size."""
        size = self._size(batch_size)
        sign = -1 if maximizes(self.training.trainer.optimizers) else 1
        for index, loss in self.training.quiet.losses(self._batches(size)):
            yield sign * loss, self._length(index, size)

    def loss(self) -> float:
        """Return the mean loss of the client's samples at the module's weights; NaN if no batch has a loss."""
        total = 0.0
        samples = 0
        for loss, length in self.losses():
            total += length * loss
            samples += length
        return total / samples if samples else float("nan")

    def _size(self, batch_size: int | str | None) -> int | None:
        size = self.training.data.batch_size if batch_size == "data" else batch_size
        assert size is None or isinstance(size, int)
        return size

    def targets(self) -> Tensor:
        """Return the targets of the client's samples, in their stored order."""
        training = self.training
        known = training.batches.stored_targets(self.task.client)
        if known is not None:
            return known.to(training.vector.device)
        return training.quiet.targets(self._batches(training.data.batch_size))

    def _batches(self, size: int | None) -> Iterator[Any]:
        """Seed the draws of the steps to come, and return the client's batches of a size."""
        seed_global_generators(self.training.settings.run_seed, Stream.SCORE, *self.task.seeds)
        return self.training.batches.in_order(self.task.client, size)

    def _length(self, index: int, size: int | None) -> int:
        """Return the number of samples of one of these batches."""
        samples = self.task.num_samples
        return samples if size is None else min(size, samples - index * size)


class ClientHooks:
    """Calls ``on_client_start`` and ``on_client_end`` of the trainer's callbacks.

    What they draw depends on the client and the round alone, as everything does that is drawn for a client.

    Args:
        trainer: The trainer.
        settings: The settings of local training, for the fit's seed.
    """

    def __init__(self, trainer: pl.Trainer, settings: LocalSettings) -> None:
        self._trainer = trainer
        self._settings = settings
        self.find()

    def find(self) -> None:
        """Find the hooks that the callbacks have."""
        callbacks = fit_trainer(self._trainer).callbacks
        #: The callbacks' ``on_client_start``.
        self.starts: list[Any] = []
        #: The callbacks' ``on_client_end``.
        self.ends: list[Any] = []
        for callback in callbacks:
            if hasattr(callback, "on_client_start"):
                self.starts.append(callback.on_client_start)
            if hasattr(callback, "on_client_end"):
                self.ends.append(callback.on_client_end)
        hooks = (*self.starts, *self.ends)
        #: Whether hooks may see in which order clients train; those of the library look at the result alone.
        self.see_order = any(not hook.__module__.startswith("fl_lightning.") for hook in hooks)

    def on_client_start(self, client: LocalClient) -> None:
        """Call the hooks before a client trains."""
        if self.starts:
            self._call(self.starts, 0, client)

    def on_client_end(self, result: ClientResult, model: Callable[[], Tensor]) -> None:
        """Call the hooks after a client has trained.

        Args:
            result: Its result.
            model: Returns the model that the module holds, shape ``(size,)``.

        Raises:
            RuntimeError: If they change the module's weights, which are no longer looked at.
        """
        if not self.ends:
            return
        self._call(self.ends, 1, result)
        if self.see_order and not same_values(model(), result.vector):
            raise RuntimeError(
                "`on_client_end` changed the module's weights, after the client's result was taken. Change weights in "
                "`on_train_batch_end`, or write an `Exchange` whose `upload` changes the result."
            )

    def _call(self, hooks: list[Any], place: int, argument: LocalClient | ClientResult) -> None:
        seed_global_generators(self._settings.run_seed, Stream.HOOKS, *argument.task.seeds, place)
        module = self._trainer.lightning_module
        previous = enter_fx(module, _LOGS_AS)
        for hook in hooks:
            hook(self._trainer, module, argument)
        enter_fx(module, previous)


def notify(trainer: pl.Trainer, hook: str) -> None:
    """Call a hook of rounds on the callbacks that define it."""
    module = trainer.lightning_module
    previous = enter_fx(module, _LOGS_AS)
    for callback in fit_trainer(trainer).callbacks:
        function = getattr(callback, hook, None)
        if function is not None:
            function(trainer, module)
    enter_fx(module, previous)
