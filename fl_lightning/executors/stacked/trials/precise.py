"""One step, of clients alone and of the same clients in a stack.

In single precision small terms of a loss hide behind rounding. In double precision a stack that leaves one out is seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.recording import Logged, TensorPlace
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import StackedBatch
from fl_lightning.executors.stacked.causes import log_why
from fl_lightning.executors.stacked.decisions import Tried
from fl_lightning.executors.stacked.guards.effects import no_effects
from fl_lightning.executors.stacked.guards.nothing_kept import nothing_kept
from fl_lightning.executors.stacked.program.steps import ProgramSteps
from fl_lightning.executors.stacked.program.updates import Gradients
from fl_lightning.executors.stacked.randomness import ClientGenerators
from fl_lightning.executors.stacked.sources import DrawnBatches
from fl_lightning.executors.stacked.stack import ModelStack
from fl_lightning.executors.stacked.step_runners import ClientsStep, Example, make_step_runners
from fl_lightning.seeding import preserved_generators

log = logging.getLogger(__name__)

_TOLERANCE = 1e-5  # of the largest gradient: far above rounding, also where a step computes a part in single precision
_COARSE = 1e-3  # where it returns its loss in single precision
_NOISE = 1e-10  # of the largest gradient: what rounding alone leaves of a gradient that is zero


@contextmanager
def in_double_precision(training: LocalTraining, *, draws: bool, by_program: bool) -> Iterator[PreciseStep | None]:
    """Yield a :class:`PreciseStep` of these arguments; ``None`` if the module has no double precision.

    Nothing that it does is seen outside, nor drawn from global generators.
    """
    try:
        precise = PreciseStep(training, draws=draws, by_program=by_program)
    except Exception as error:  # a device or a layer
        log_why(log, "The module cannot be copied in double precision", error)
        yield None
        return
    with preserved_generators(training.vector.device), no_effects(), nothing_kept():
        yield precise


class StepTrial:
    """Compares gradients, losses, buffers and logged values of one step, of clients alone and in a stack.

    Args:
        training: Trains clients.
        vector: The federated state of a copy of the module.
        stacked: Runs the copy's ``training_step``.
        draws: Whether the module draws random numbers.
        by_program: Whether ``training_step`` is a program on stacks.
        tolerance: Relative to the largest gradient; ``None`` for that of the loss's precision.
    """

    def __init__(
        self,
        training: LocalTraining,
        vector: StateVector,
        stacked: StackedLoop,
        *,
        draws: bool,
        by_program: bool = False,
        tolerance: float | None = None,
    ) -> None:
        self._vector, self._stacked, self._tolerance = vector, stacked, tolerance
        self._steps = make_step_runners(training, vector, stacked)
        self._draws, self._by_program = draws, by_program

    @property
    def tried(self) -> Tried:
        """What mapped steps did."""
        return self._steps.tried

    def compare(self, examples: Sequence[Example]) -> None:
        """Compare a step of each client.

        Raises:
            CannotVectorize: If anything differs.
        """
        for own, batch in self._grouped(examples):
            singles = [batch.rebuild([tensor[place] for tensor in batch.tensors]) for place in range(len(own))]
            alone = self._all_alone(own, singles)
            if alone is None:
                return
            spoil(self._vector.tensors())  # a step that takes the module's own in a stack is seen
            at_once = self._by_the_program(own, singles, batch) if self._by_program else self._mapped(own, batch)
            for found, other in zip(alone, at_once, strict=False):
                self._compare(found, other)

    def _grouped(self, examples: Sequence[Example]) -> Iterator[tuple[list[Example], StackedBatch]]:
        """Yield examples whose batches have one form and one position, and these stacked."""
        for index in dict.fromkeys(example.index for example in examples):
            like = [example for example in examples if example.index == index]
            batches = DrawnBatches([iter([example.batch]) for example in like], None)
            for rows, batch in batches.next(range(len(like))):
                yield [like[row] for row in rows], batch

    def _all_alone(self, examples: Sequence[Example], batches: Sequence[Any]) -> list[list[Tensor]] | None:
        """Return what :meth:`_alone` returns of each example; ``None`` if that cannot be had."""
        return [self._alone(example, batch) for example, batch in zip(examples, batches, strict=True)]

    def _alone(self, example: Example, batch: Any) -> list[Tensor]:
        """Return the gradients, the loss, the buffers after the step, and what was logged."""
        vector = self._vector
        vector.write(example.model.to(vector.dtype))
        example.seed()
        with self._stacked.recording() as logged, torch.enable_grad():
            loss = self._stacked.training_step(batch, example.index)
            gradients = torch.autograd.grad(loss, vector.parameters, allow_unused=True)
        after = [buffer.clone() for buffer in vector.tensors()[len(gradients) :]]
        return [*_filled(gradients, vector.parameters), loss.detach().reshape(()), *after, *_said(logged)]

    def _models(self, examples: Sequence[Example]) -> tuple[ModelStack, ClientGenerators]:
        models = ModelStack(self._vector, [example.model.to(self._vector.dtype) for example in examples])
        return models, ClientGenerators([example.seed for example in examples], self._vector.device)

    def _mapped(self, examples: Sequence[Example], batch: StackedBatch) -> list[list[Tensor]]:
        """Return the same of a mapped step, for each client."""
        models, generators = self._models(examples)
        step = ClientsStep(models, examples[0].index, generators if self._draws else None)
        values: dict[int, list[Tensor]] = {}
        with torch.enable_grad():
            for branch in self._steps.take(step, range(len(examples)), batch):
                found = torch.autograd.grad(branch.losses.sum(), branch.parameters, allow_unused=True)
                gradients = _filled(found, branch.parameters)
                stacked = [*gradients, branch.losses.detach(), *branch.buffers, *_said(branch.logged)]
                values |= {row: [tensor[place] for tensor in stacked] for place, row in enumerate(branch.rows)}
        return [values[row] for row in range(len(examples))]

    def _by_the_program(
        self, examples: Sequence[Example], singles: Sequence[Any], batch: StackedBatch
    ) -> list[list[Tensor]]:
        """Return the gradients of a program's step, for each client."""
        source, programs = DrawnBatches([iter([single]) for single in singles], None), self._steps.programs
        form, size = source.form(), batch.tensors[0].shape[1]
        traced = None if form is None else programs.make(form, size, 0)
        if form is None or traced is None:
            return []
        models, generators = self._models(examples)
        weights, gradients = [parameter.detach() for parameter in models.parameters], Gradients(len(models.parameters))
        program = ProgramSteps(programs, traced, form, source, [len(examples)], size, weights, generators)
        with torch.no_grad():
            program.step(0, weights, gradients)
        return [list(own) for own in zip(*_filled(gradients.values, weights), strict=True)]

    def _compare(self, alone: Sequence[Tensor], at_once: Sequence[Tensor]) -> None:
        """Compare a client's gradients, its loss, and other values, as far as a stack has them."""
        names = self._vector.names
        number, scale = len(names), max(map(largest, alone[: len(names)]))
        tolerance = self._tolerance or (_TOLERANCE if alone[number].dtype is torch.float64 else _COARSE)
        for place, (own, other) in enumerate(zip(map(as_numbers, alone), map(as_numbers, at_once), strict=False)):
            # a gradient that is zero but for rounding, as that of a bias before BatchNorm, is no measure
            bound = tolerance * (largest(own) + (1e-2 * scale if place < number else 1e-3)) + 1e-12
            same = (own == other) | (own.isnan() & other.isnan()) | ((own - other).abs() <= bound)
            if not bool(same.all()):
                what = f"the gradient of {names[place]!r}" if place < number else "the loss, a buffer or a logged value"
                raise CannotVectorize(f"{what} differs in a stack by {largest(own - other):.1g}")


class PreciseStep(StepTrial):
    """Compares one step in double precision.

    Args:
        training: Trains clients on a copy of the module, which is of no other use any more.
        draws: Whether the module draws random numbers.
        by_program: Whether ``training_step`` is a program on stacks.
    """

    def __init__(self, training: LocalTraining, *, draws: bool, by_program: bool) -> None:
        module: Any = training.vector.module.double()
        stacked = StackedLoop(training.loop, training.corrector, module)
        super().__init__(training, StateVector(module, training.vector), stacked, draws=draws, by_program=by_program)

    def is_noise(self, name: str, example: Example, where: Tensor) -> bool:
        """Whether a parameter's gradient is zero but for rounding at some places; False if that cannot be found out."""
        [(_, batch)] = self._grouped([example])
        try:
            alone = self._alone(example, batch.rebuild([tensor[0] for tensor in batch.tensors]))
        except Exception as error:
            log_why(log, "A step cannot be taken in double precision", error)
            return False
        gradients = dict(zip(self._vector.names, alone, strict=False))
        return largest(gradients[name][where]) <= _NOISE * max(map(largest, gradients.values()))

    def _grouped(self, examples: Sequence[Example]) -> Iterator[tuple[list[Example], StackedBatch]]:
        for own, batch in super()._grouped(examples):
            batch.tensors = [t.double() if t.is_floating_point() else t for t in batch.tensors]
            yield own, batch

    def _all_alone(self, examples: Sequence[Example], batches: Sequence[Any]) -> list[list[Tensor]] | None:
        try:
            return super()._all_alone(examples, batches)
        except CannotVectorize:
            raise
        except Exception as error:  # it computes with tensors of another precision
            log_why(log, "A step cannot be taken in double precision", error)
            return None


def _filled(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, like, strict=True)]


def _said(logged: Logged) -> list[Tensor]:
    """Return the values of logged numbers, and what metric objects were given."""
    places = [call.value for call in logged.calls if isinstance(call.value, int)]
    places += [leaf.place for call in logged.metric_calls for leaf in call.leaves if isinstance(leaf, TensorPlace)]
    return [logged.tensors[place].double().clone() for place in places]  # a parameter itself may be logged


def spoil(tensors: Iterable[Tensor]) -> None:
    """Make a module's own tensors useless: a step that takes them in another way than from the stack is then seen."""
    with torch.no_grad():
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))


def as_numbers(tensor: Tensor) -> Tensor:
    """Return a tensor whose values can be subtracted, as those of a mask or of unsigned numbers cannot."""
    return tensor if tensor.is_floating_point() else tensor.double()


def of_rounding(types: Sequence[torch.dtype], weights: Sequence[Tensor], apart: float) -> str:
    """Return why weights of two or three digits may end so far apart; nothing if that is no matter of rounding.

    Args:
        types: Each parameter's type.
        weights: Their values after a client's training.
        apart: The largest difference.
    """
    coarse = [(dtype, values) for dtype, values in zip(types, weights, strict=True) if torch.finfo(dtype).bits < 32]
    if not coarse or apart > 2 * max(torch.finfo(dtype).eps * largest(values) for dtype, values in coarse):
        return ""
    return (
        f"weights in {coarse[0][0]} are rounded at every step, and a stack adds numbers up in another order. With "
        'weights in torch.float32, as `precision="bf16-mixed"` leaves them, clients may be stacked'
    )


def largest(tensor: Tensor) -> float:
    """Return the largest finite absolute value; 0 of an empty tensor."""
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0
