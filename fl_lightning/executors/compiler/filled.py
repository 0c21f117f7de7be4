"""Steps of clients whose batches have unequal sizes: batches are filled up, and means over samples weighted.

That is the same where a step treats each sample by itself, and its loss and logged numbers are means over them. The
graph tells both (``samples``, ``rows``), and that the steps of shorter batches differ from it in the number of samples
alone (``sizes``). Values are compared once besides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.stacks.recording import Logged, TensorPlace
from fl_lightning.executors.compiler.capture import CapturedStep, Step
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.graph import Computed, DependsOnNumber, Stacks
from fl_lightning.executors.compiler.samples import weighted_graph
from fl_lightning.executors.compiler.sizes import NotOfSamples, Sizes, find_sizes
from fl_lightning.executors.stack.batches import StackedBatch
from fl_lightning.executors.stack.randomness import ClientGenerators

_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}


class WeightedSteps:
    """The weighted steps of a fit.

    Args:
        captured: The captured steps.
        check: Compares them with the module.
    """

    def __init__(self, captured: CapturedStep, check: Check) -> None:
        self._captured, self._check = captured, check
        self._steps: dict[Step, Step | None] = {}
        self._sizes: dict[Step, Sizes] = {}
        self._proven: dict[tuple[Step, Step], bool] = {}
        self._settled = set[tuple[Step, int]]()  # sizes whose step depends on nothing but what the whole one does

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
        size = batch.tensors[0].shape[1]
        whole, inputs = self._captured(batch, 0)
        captured: list[tuple[int, StackedBatch, Step, list[Any]]] = []
        for own in sorted({size, *sizes}, reverse=True):
            if (whole, own) in self._settled:
                continue
            short = StackedBatch([tensor[:, :own] for tensor in batch.tensors])
            other, others = self._captured(short, 0, short=own < size)
            if other.guards.changes:
                raise NotOfSamples
            if own < size:
                self._note(whole, find_sizes(whole.source, inputs, other.source, others, size))
            captured.append((own, short, other, others))
        if whole not in self._steps:
            self._steps[whole] = self._weigh(whole, inputs, size)
        step = self._steps[whole]
        if step is None:
            raise NotOfSamples
        for own, short, other, others in captured:
            if (step, other) not in self._proven:
                stacks = Stacks(parameters, [], batch.tensors, generators.drawing(range(len(parameters[0]))))
                step = self._steps[whole] = _with_sizes(step, other, size, own)
                self._proven[step, other] = self._prove(step, inputs, other, others, stacks, short, generators)
            if not self._proven[step, other]:
                raise NotOfSamples
            if other.guards.guards <= whole.guards.guards:
                self._settled.add((whole, own))
        return step, inputs

    def _note(self, whole: Step, sizes: Sizes) -> None:
        """Note where a graph has the number of samples, as a shorter batch tells; all of them must tell the same."""
        known = self._sizes.get(whole)
        if known is None:
            self._sizes[whole] = sizes
            self._steps.pop(whole, None)
        elif known != sizes:
            raise NotOfSamples

    def _weigh(self, whole: Step, inputs: Sequence[Any], size: int) -> Step | None:
        try:
            return self._captured.read(weighted_graph(whole, inputs, size, self._sizes.get(whole)), whole.guards)
        except NotOfSamples:
            return None

    def _prove(
        self,
        step: Step,
        inputs: Sequence[Any],
        short: Step,
        others: Sequence[Any],
        stacks: Stacks,
        batch: StackedBatch,
        generators: ClientGenerators,
    ) -> bool:
        """Whether the weighted step of filled-up batches computes what the step of shorter batches computes."""
        number, size = batch.tensors[0].shape[:2]
        rows, largest = range(number), stacks.batch[0].shape[1]
        alone = replace(stacks, batch=[tensor.clone() for tensor in batch.tensors])
        self._check(short, others, alone, batch, 0, rows, flat=False)
        states = [generators.state(row) for row in rows]
        theirs = short.graph.run(alone, others, flat=False)
        generators.rewind(rows, states)
        weights = torch.zeros_like(stacks.parameters[0].detach().reshape(number, -1)[:, :1]).repeat(1, largest)
        weights[:, :size] = 1 / size
        step.graph.checked = True
        places = torch.arange(largest, device=weights.device)
        for chosen in (places, places.clamp(max=size - 1)):  # samples of weight 0: any others, or the last one again
            draws = generators.drawing(rows, [size] * number, largest)
            filled = replace(stacks, batch=[t[:, chosen] for t in stacks.batch], weights=weights, draws=draws)
            try:
                mine = step.graph.run(filled, inputs, flat=True)
            except DependsOnNumber:
                return False
            finally:
                generators.rewind(rows, states)
            if not _agree(step, mine, short, theirs, size):
                return False
        return True


def _with_sizes(step: Step, short: Step, size: int, own: int) -> Step:
    """Return a step without the ``batch_size`` of logged values where that is the number of a batch's samples."""
    calls = []
    for one, other in zip(step.logged.calls, short.logged.calls, strict=False):
        options = dict(one.options)
        if options.get("batch_size") == size != own and (
            other.weight is not None or other.options["batch_size"] == own
        ):
            del options["batch_size"]
        calls.append(replace(one, options=options))
    return replace(step, logged=replace(step.logged, calls=calls)) if calls != step.logged.calls else step


def _agree(step: Step, mine: Computed, short: Step, theirs: Computed, size: int) -> bool:
    ours, other = step.logged, short.logged
    same = [len(_places(each)) for each in (ours, other)], [len(each.calls) for each in (ours, other)]
    if any(one != two for one, two in same):
        return False
    for one, two in zip(ours.calls, other.calls, strict=True):
        sizes = {call.options.get("batch_size") for call in (one, two)} if "batch_size" in one.options else {None}
        if one.weight is not None or len(sizes) > 1 or not one.logs_as(two) or one.reduction != "mean":
            return False
    pairs = [(mine.losses, theirs.losses), *zip(mine.gradients, theirs.gradients, strict=True)]
    for place, other_place in zip(_places(ours), _places(other), strict=True):
        a, b = mine.kept[place], theirs.kept[other_place]
        pairs.append((a[:, :size] if step.kept[place][1] else a, b))
    bound = _BOUNDS.get(mine.losses.dtype, 5e-2)
    return all(_close(a, b, bound) for a, b in pairs)


def _places(logged: Logged) -> list[int]:
    """Return the places of the tensors that are logged, and given to metric objects."""
    leaves = [leaf for call in logged.metric_calls for leaf in call.leaves if isinstance(leaf, TensorPlace)]
    return [*(call.value for call in logged.calls if isinstance(call.value, int)), *(leaf.place for leaf in leaves)]


def _close(one: Tensor | None, other: Tensor | None, bound: float) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape:
        return one.numel() == other.numel() and _close(one.reshape(-1), other.reshape(-1), bound)
    largest = float(other.nan_to_num().abs().max()) if other.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=bound, atol=bound * (1e-3 + largest), equal_nan=True)
