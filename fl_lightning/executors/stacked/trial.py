"""The trial that a stack must pass: real clients trained both ways, from their first to their last step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.logging import Witness
from fl_lightning._lightning.stacked_loop import SilentStackedLoop
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.batching import by_shape, stack_batches, windows
from fl_lightning.executors.stacked.corrections import StackedCorrections
from fl_lightning.executors.stacked.fused import FusedStep
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.module_state import ModuleState
from fl_lightning.executors.stacked.optimizer import StackedOptimizer
from fl_lightning.executors.stacked.snapshot import preserved_attributes, preserved_generators
from fl_lightning.executors.stacked.sources import Groups
from fl_lightning.executors.stacked.stack import ModelStack
from fl_lightning.executors.stacked.training import StackTraining, Steps
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import ClientResult, Task
from fl_lightning.parts.objectives import Correction

#: Relative to how far training moves a tensor: rounding stays far below, another function far above.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-3}
_MIXED = 5e-2


class Trial:
    """Trains the first clients of a fit one after the other, in earnest, and the same clients as a stack on a copy.

    Compared are weights, buffers, logged values, numbers of steps, and the module's state of any other kind. Nothing
    of the copy comes back: neither logs, nor counters, nor random numbers, nor reads of the data.

    Args:
        clients: Trains clients.

    Raises:
        CannotVectorize: If the module cannot be copied.
    """

    def __init__(self, clients: LocalTraining) -> None:
        self._clients = clients
        try:
            self._copy = clients.on_a_copy()
        except CannotVectorize:
            raise
        except Exception as error:  # whatever a module's attributes raise when they are copied
            raise CannotVectorize(
                f"the module cannot be copied to try it out ({type(error).__name__}: {_first_line(error)})"
            ) from error
        module: Any = self._copy.vector.module
        self.stacked = SilentStackedLoop(clients.loop, clients.corrector, module)
        vector = self._copy.vector
        #: How ``training_step`` of the copy runs on stacks.
        self.steps = Steps(self.stacked, MappedStep(self.stacked, vector), FusedStep(self.stacked, vector))
        self._done: list[tuple[ClientResult, Witness, Correction | None]] = []
        #: Whether all clients were trained in earnest.
        self.trained = False

    @property
    def copy(self) -> LocalTraining:
        """The clients' training on the copy."""
        return self._copy

    def train(self, tasks: Sequence[Task], algorithm: Algorithm) -> None:
        """Train clients one after the other, in earnest.

        Raises:
            CannotVectorize: If that changes the module beside its federated state; the clients are trained even so.
        """
        clients = self._clients
        state = ModuleState(clients.vector)
        for task in tasks:
            with clients.loop.witnessed() as witness:
                result = clients.train(task, algorithm.start(task))
            algorithm.receive(result)
            self._done.append((result, witness, clients.last_correction))
        self.trained = True
        if changed := state.changed():
            raise CannotVectorize(f"`training_step` changes {changed}, of which there is one for all clients")

    def compare(self) -> None:
        """Train the same clients as a stack of copies, and compare.

        Raises:
            CannotVectorize: If anything differs.
        """
        clients, tasks = self._clients, [result.task for result, _, _ in self._done]
        lengths = [self._windows(task, witness) for task, (_, witness, _) in zip(tasks, self._done, strict=True)]
        order = sorted(range(len(tasks)), key=lambda row: -len(lengths[row]))
        self._done = [self._done[row] for row in order]
        starts = [result.start for result, _, _ in self._done]
        loop = clients.loop
        loop.optimizers.reset(tasks[0].round)
        optimizer = StackedOptimizer(clients.trainer.optimizers[0], clients.vector.parameters)
        vector = self._copy.vector
        stack = ModelStack(vector, starts)
        corrections = StackedCorrections([correction for _, _, correction in self._done], starts, vector)
        source = _Replayed([witness.batches for _, witness, _ in self._done])
        state = ModuleState(vector)
        with preserved_generators(), preserved_attributes(vector.module), self._copy.quiet.unnoticed():
            training = StackTraining(
                self._copy, self.steps, stack, [lengths[row] for row in order], source, corrections, optimizer
            )
            summed = training.run()
            changed = state.changed()
        loop.optimizers.reset(tasks[0].round)
        if changed:
            raise CannotVectorize(f"`training_step` changes {changed} of a stack")
        vector_of = stack.vectors()
        for row, (result, _, _) in enumerate(self._done):
            self._compare_models(result, vector_of(row))
            self._compare_steps(result, len(lengths[order[row]]), summed[row])
        self._compare_logs()

    def _windows(self, task: Task, witness: Witness) -> list[int]:
        batches = self._clients.batches
        if len(witness.batches) != batches.number(task):
            raise CannotVectorize("clients end their training before their last batch")
        return windows(batches.number(task), batches.one_pass(task), int(self._clients.trainer.accumulate_grad_batches))

    @property
    def _tolerance(self) -> float:
        mixed = str(self._clients.trainer.precision_plugin.precision) not in ("32-true", "64-true")
        return _MIXED if mixed else _TOLERANCES.get(self._clients.vector.parameters[0].dtype, _MIXED)

    def _compare_models(self, result: ClientResult, stacked: Tensor) -> None:
        vector = self._clients.vector
        models = [vector.views(model) for model in (result.start, result.vector, stacked)]
        moves = [_largest(after - start) for start, after, _ in zip(*models, strict=True)]
        # a tensor that hardly moves (a bias before BatchNorm, say) is moved by rounding alone
        floor = 1e-2 * max(moves[: len(vector.parameters)], default=0.0)
        for name, move, start, alone, at_once in zip(vector.tensor_names, moves, *models, strict=True):
            bound = self._tolerance * (max(move, floor) + 1e-6 * _largest(start))
            apart = (alone - at_once).abs()
            same = (alone == at_once) | (alone.isnan() & at_once.isnan()) | (apart <= bound)
            if not bool(same.all()):
                raise CannotVectorize(
                    f"{name!r} differs by {_largest(apart):.1g} after a client's training in a stack, where training "
                    f"moves it by {move:.1g}: the step depends on something that a stack does not keep for each client"
                )

    def _compare_steps(self, result: ClientResult, steps: int, summed_lr: Sequence[float]) -> None:
        if result.num_steps != steps:
            raise CannotVectorize(f"a client makes {result.num_steps} steps alone, and {steps} in a stack")
        pairs = zip(result.summed_lr, summed_lr, strict=False)
        if any(abs(alone - at_once) > 1e-6 * max(abs(alone), 1e-12) for alone, at_once in pairs):
            raise CannotVectorize("a client's learning rates are others in a stack")

    def _compare_logs(self) -> None:
        alone: dict[Any, tuple[int, float]] = {}
        for _, witness, _ in self._done:
            for key, (count, total) in witness.heard.items():
                before = alone.get(key, (0, 0.0))
                alone[key] = before[0] + count, before[1] + total
        at_once = self.stacked.heard
        for key in {**alone, **at_once}:
            (n, a), (m, b) = alone.get(key, (0, 0.0)), at_once.get(key, (0, 0.0))
            if n != m or not (abs(a - b) <= 10 * self._tolerance * (abs(a) + 1e-3 * n) or (a != a and b != b)):
                raise CannotVectorize(f"what is logged as {key[1]!r} is another value in a stack")


class _Replayed:
    """Batches that clients have trained on before."""

    def __init__(self, batches: Sequence[Sequence[Any]]) -> None:
        self._batches = [iter(own) for own in batches]

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``."""
        drawn = [(row, next(self._batches[row])) for row in rows]
        return [(members, stack_batches(batches)) for members, batches in by_shape(drawn)]


def _largest(tensor: Tensor) -> float:
    """Return the largest finite absolute value; 0 of an empty tensor."""
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
