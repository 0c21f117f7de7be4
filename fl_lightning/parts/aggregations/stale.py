"""How asynchronous results are merged: weighted by their staleness."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.aggregations.staleness import Staleness, staleness_weight
from fl_lightning.parts.messages import ClientResult
from fl_lightning.settings import NotNegative, Positive, ScheduledShare, check, check_fields
from fl_lightning.vectors import sum_dtype

Division = Literal["count", "weights", "none"]
Examples = Literal["uniform", "samples", "sqrt", "log"]
#: What a client's number of samples counts.
_EXAMPLES: dict[Examples, Callable[[float], float]] = {
    "uniform": lambda n: 1.0,
    "samples": float,
    "sqrt": math.sqrt,
    "log": lambda n: math.log10(1 + n),
}


@dataclass(eq=False)
class StalenessMixing(Aggregation):
    """Mixes results into the server's model: ``x <- (1 - a) x + a x_new``, ``a = mixing s(d)`` (FedAsync; eq. (24)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        mixing: alpha in (0, 1]; a function of the round makes a schedule.
        staleness: s, a name or a function of d. A weight above 1 is allowed as long as a is at most 1.

    Raises:
        ValueError: If an argument is out of its range, or a of a fresh result is above 1; when a result is merged, if
            its a is: the server would move beyond the client's model.
    """

    mixing: ScheduledShare = 0.6
    staleness: Staleness = "polynomial"
    merges_buffers = True

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        self._share(0)

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor:
        """Return the mixture, float64 of shape ``(size,)``."""
        mixture = model.to(sum_dtype(model))
        for result in results:
            share = self._share(result.staleness)
            mixture = mixture + share * (result.vector - mixture)
        return mixture

    def _share(self, staleness: int) -> float:
        """Return a, the share of a result in the mixture."""
        mixing = self.at("mixing")
        weight = staleness_weight(self.staleness, staleness)
        if mixing * weight > 1:
            raise ValueError(f"`mixing` times `staleness({staleness})` must be at most 1, got {mixing:g} * {weight:g}.")
        return mixing * weight


@dataclass(eq=False)
class StalenessWeightedDeltas(Aggregation):
    """Moves the server by the sum of ``s(d) omega Delta``, divided by the number of results (FedBuff; eq. (27)-(29)).

    ``Delta = w_k - w'`` is the difference between the trained and the received model. Buffers of the module, such as
    running statistics, become the weighted mean of the clients' buffers, because a sum of differences could make a
    variance negative.

    Equations are numbered as in ``docs/references.md``.

    Args:
        staleness: s, a name or a function of d.
        weighting: omega by the size n_k of the client's data: ``"uniform"``, ``"samples"``, ``"sqrt"`` or ``"log"``
            (of base 10, of 1 + n_k), relative to a client of mean size.
        divide_by: ``"count"`` divides the sum by the number of results (Nguyen et al. 2022), ``"weights"`` by the sum
            of ``s omega``, ``"none"`` not at all, as FLSim does.
        average_staleness: s is divided by its value at this staleness; the paper has 0, FLSim 1 by default.

    Raises:
        ValueError: If an argument is out of its range, or s is 0 at ``average_staleness``.
    """

    staleness: Staleness = "polynomial"
    weighting: Examples = "uniform"
    divide_by: Division = "count"
    average_staleness: NotNegative = 0.0
    merges_buffers = True

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        usual = self.average_staleness
        # A user's function may read a table, whose places are whole numbers.
        if usual == int(usual):
            usual = int(usual)
        weight = staleness_weight(self.staleness, usual)
        self._usual: float = check("`staleness` at `average_staleness`", weight, Positive)

    @override
    def weight_of(self, result: ClientResult) -> float:
        """Return ``s(d) omega``."""
        examples = _EXAMPLES[self.weighting]
        lateness = staleness_weight(self.staleness, result.staleness) / self._usual
        return lateness * examples(result.num_samples) / examples(float(self.federation.sizes.mean()))

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        """Return the parameters moved by the updates, and the mean of the modules' buffers, shape ``(size,)``."""
        layout = self.federation.layout
        kind = sum_dtype(model)
        weights = [self.weight_of(result) for result in results]
        if not sum(weights):
            return None
        parameters, buffers = layout.split(model)
        moved = torch.zeros_like(parameters)
        summed = torch.zeros_like(buffers)
        for result, weight in zip(results, weights, strict=True):
            moved = moved + weight * (result.parameters.to(kind) - result.received_parameters.to(kind))
            summed = summed + weight * result.buffers.to(kind)
        divisors = {"count": float(len(results)), "weights": sum(weights), "none": 1.0}
        step = moved / divisors[self.divide_by]
        return layout.joined(parameters.to(kind) + step, summed / sum(weights))


@dataclass(eq=False)
class DynamicWeightMean(Aggregation):
    """The mean of the buffered models with dynamic weights (Gao et al. 2024; eq. (30)-(33)).

    ``beta_b`` is in proportion to ``|D_b| exp(s_b / f_b)``, with ``s_b = (1 + d_b)^-alpha`` and f_b the number of the
    client's results in the buffer.

    Equations are numbered as in ``docs/references.md``.

    Args:
        alpha: Exponent of staleness, in [0, 1].
        staleness_at: ``"receipt"`` counts d when a result arrives, ``"flush"`` when the buffer is full.
        frequency: ``"flush"`` gives all results of a client their final count f, ``"arrival"`` each the count so far.

    Raises:
        ValueError: If an argument is out of its range.
    """

    alpha: Annotated[float, "[0, 1]"] = 0.5
    staleness_at: Literal["receipt", "flush"] = "receipt"
    frequency: Literal["flush", "arrival"] = "flush"
    merges_buffers = True

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        """Return the weighted mean, float64 of shape ``(size,)``; ``None`` if no result has samples."""
        if not any(result.num_samples for result in results):
            return None
        mean = torch.zeros(len(model), dtype=sum_dtype(model), device=model.device)
        for weight, result in zip(self.weights(results), results, strict=True):
            mean.add_(result.vector, alpha=weight)
        return mean

    def weights(self, results: Sequence[ClientResult]) -> list[float]:
        """Return beta of each result; their sum is 1."""
        totals = Counter(result.client for result in results)
        so_far = Counter[int]()
        scores: list[float] = []
        for result in results:
            so_far[result.client] += 1
            staleness = result.staleness
            if self.staleness_at == "flush":
                staleness += results[-1].counter - result.counter
            counts = totals if self.frequency == "flush" else so_far
            freshness = (1 + staleness) ** -self.alpha
            scores.append(result.num_samples * math.exp(freshness / counts[result.client]))
        return [score / sum(scores) for score in scores]
