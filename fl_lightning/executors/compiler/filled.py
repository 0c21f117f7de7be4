"""Steps of clients whose batches have unequal sizes: batches are filled up, and means over samples weighted.

Of clients whose batches have 4 and 2 samples, with the worked example::

    x of shape (2, 4, in), weights [[1/4, 1/4, 1/4, 1/4], [1/2, 1/2, 0, 0]]
    loss = (weights * mse_loss(prediction, y, reduction="none")).sum()

That is the same where a step treats each sample by itself, and its loss and logged numbers are means over them. The
graph tells both (``samples``, ``rows``), and that the steps of shorter batches differ from it in the number of samples
alone (``sizes``). Values are compared once besides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fl_lightning._lightning.stacks.recording import Logged, TensorPlace
from fl_lightning.executors.compiler.capture import CapturedStep, Step
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.graph import Computed, Stacks
from fl_lightning.executors.compiler.number_of_clients import FEW, DependsOnNumber
from fl_lightning.executors.compiler.samples import weighted_graph
from fl_lightning.executors.compiler.sizes import NotOfSamples, Sizes, check_inputs, find_sizes, sizes_by_shapes
from fl_lightning.executors.stack.batches import StackedBatch
from fl_lightning.executors.stack.randomness import ClientGenerators

#: How far values may differ, relative to the largest.
_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}
_BOUND_OF_HALF = 5e-2


class _Short(NamedTuple):
    """The step of batches of one size, as it is.

    Attributes:
        size: The samples of these batches.
        batch: The batches.
        step: Their captured step.
        inputs: Its inputs.
    """

    size: int
    batch: StackedBatch
    step: Step
    inputs: list[Any]


class WeightedSteps:
    """The weighted steps of a fit.

    Args:
        captured: The captured steps.
        check: Compares them with the module.
    """

    def __init__(self, captured: CapturedStep, check: Check) -> None:
        self._captured = captured
        self._check = check
        #: By the step of whole batches; ``None`` where there is none.
        self._weighted: dict[Step, Step | None] = {}
        #: Where the graphs of whole batches have the number of samples.
        self._sizes: dict[Step, Sizes] = {}
        #: Steps of whole and of shorter batches whose graphs have been compared.
        self._compared: set[tuple[Step, Step]] = set()
        #: Whether a weighted step computes what a step of shorter batches computes.
        self._proven: dict[tuple[Step, Step], bool] = {}
        #: Steps of whole batches, and sizes whose step depends on nothing but what that of whole batches does.
        self._settled: set[tuple[Step, int]] = set()

    def find(
        self, batch: StackedBatch, sizes: Collection[int], parameters: list[Tensor], generators: ClientGenerators
    ) -> tuple[Step, list[Any]]:
        """Return the weighted step for some batches, and its inputs.

        Args:
            batch: The first batches, filled up to B samples, shape ``(K, B, ...)``.
            sizes: All sizes of batches that come.
            parameters: The clients' parameters, shape ``(K, ...)`` each.
            generators: The clients' generators, which stay as they are.

        Raises:
            NotOfSamples: If there is none.
            CannotVectorize: If a step cannot be captured.
        """
        # A list that serves any number of clients is compared for as few as it is traced for.
        number = min(FEW, len(parameters[0]))
        batch = StackedBatch([tensor[:number] for tensor in batch.tensors])
        parameters = [parameter.detach()[:number].requires_grad_() for parameter in parameters]
        largest = batch.tensors[0].shape[1]
        whole, inputs = self._captured(batch, 0)
        shorts: list[_Short] = []
        of_any_size = len({*sizes} - {largest}) > 1
        for size in {largest, *sizes}:
            if (whole, size) not in self._settled:
                short = self._capture_short(batch, size, of_any_size)
                if size < largest:
                    self._compare(whole, inputs, short, largest)
                shorts.append(short)
        if whole not in self._weighted:
            self._weighted[whole] = self._weigh(whole, inputs, largest)
        weighted = self._weighted[whole]
        if weighted is None:
            raise NotOfSamples
        for short in shorts:
            if (weighted, short.step) not in self._proven:
                stacks = Stacks(parameters, [], batch.tensors, generators.drawing(range(number)))
                self._proven[weighted, short.step] = self._prove(weighted, inputs, short, stacks)
            if not self._proven[weighted, short.step]:
                raise NotOfSamples
            if short.step.dependence.guards <= whole.dependence.guards:
                self._settled.add((whole, short.size))
        return weighted, inputs

    def _capture_short(self, batch: StackedBatch, size: int, of_any_size: bool) -> _Short:
        """Return the step of the first samples of some batches, whose graph may be one of shorter ones of any size."""
        short = StackedBatch([tensor[:, :size] for tensor in batch.tensors])
        is_short = size < batch.tensors[0].shape[1]
        step, inputs = self._captured(short, 0, short=is_short, of_any_size=is_short and of_any_size)
        if step.dependence.changes:
            raise NotOfSamples
        return _Short(size, short, step, inputs)

    def _compare(self, whole: Step, inputs: Sequence[Any], short: _Short, largest: int) -> None:
        """Note where a graph has the number of samples, as a shorter batch tells; all of them must tell the same."""
        check_inputs(inputs, short.step.source, short.inputs)
        # One graph may serve shorter batches of several sizes.
        if (whole, short.step) in self._compared:
            return
        sizes = find_sizes(whole.source, short.step.source, short.inputs, largest)
        known = self._sizes.get(whole)
        if known is None:
            self._sizes[whole] = sizes
            self._weighted.pop(whole, None)
        elif known != sizes:
            raise NotOfSamples
        self._compared.add((whole, short.step))

    def _weigh(self, whole: Step, inputs: Sequence[Any], size: int) -> Step | None:
        try:
            sizes = self._sizes.get(whole) or sizes_by_shapes(whole.source, size)
            graph = weighted_graph(whole.source, inputs, size, sizes)
            return self._captured.read(graph, whole.dependence)
        except NotOfSamples:
            return None

    def _prove(self, weighted: Step, inputs: Sequence[Any], short: _Short, stacks: Stacks) -> bool:
        """Whether the weighted step of filled-up batches computes what the step of shorter batches computes.

        Args:
            weighted: The weighted step.
            inputs: Its inputs.
            short: The step of shorter batches.
            stacks: The clients' tensors, with whole batches.
        """
        number, largest = stacks.batch[0].shape[:2]
        rows = range(number)
        generators = stacks.draws.generators
        # A step may write to its batch.
        alone = replace(stacks, batch=[tensor.clone() for tensor in short.batch.tensors])
        self._check(short.step, short.inputs, alone, short.batch, 0, rows, flat=False)
        states = [generators.state(row) for row in rows]
        expected = short.step.graph.run(alone, short.inputs, flat=False)
        generators.rewind(rows, states)
        weighted.graph.checked = True
        parameter = stacks.parameters[0]
        weights = torch.zeros(number, largest, dtype=parameter.dtype, device=parameter.device)
        weights[:, : short.size] = 1 / short.size
        places = torch.arange(largest, device=weights.device)
        # Samples of weight 0 are any others, or the last one again.
        for chosen in (places, places.clamp(max=short.size - 1)):
            batch = [tensor[:, chosen] for tensor in stacks.batch]
            draws = generators.drawing(rows, [short.size] * number, largest)
            filled = replace(stacks, batch=batch, weights=weights, draws=draws)
            try:
                found = weighted.graph.run(filled, inputs, flat=True)
            except DependsOnNumber:
                return False
            finally:
                generators.rewind(rows, states)
            if not _agree(weighted, found, short, expected):
                return False
        return True


def _agree(weighted: Step, found: Computed, short: _Short, expected: Computed) -> bool:
    """Whether a weighted step, and one of shorter batches, have logged and computed the same."""
    pairs = [(found.losses, expected.losses), *zip(found.gradients, expected.gradients, strict=True)]
    for place, other_place in zip(_places(weighted.logged), _places(short.step.logged), strict=True):
        kept = found.kept[place]
        if weighted.kept[place].of_samples:
            kept = kept[:, : short.size]
        pairs.append((kept, expected.kept[other_place]))
    bound = _BOUNDS.get(found.losses.dtype, _BOUND_OF_HALF)
    return all(_are_close(one, other, bound) for one, other in pairs if one is not None and other is not None)


def _places(logged: Logged) -> list[int]:
    """Return the places of the tensors that are logged, and given to metric objects."""
    places = [call.value for call in logged.calls if isinstance(call.value, int)]
    for call in logged.metric_calls:
        places += [leaf.place for leaf in call.leaves if isinstance(leaf, TensorPlace)]
    return places


def _are_close(one: Tensor, other: Tensor, bound: float) -> bool:
    """Whether two tensors of as many values are the same, but for a bound relative to the largest value."""
    if one.numel() != other.numel():
        return False
    one = one.double().reshape(-1)
    other = other.double().reshape(-1)
    largest = float(other.nan_to_num().abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=bound, atol=bound * (1e-3 + largest), equal_nan=True)
