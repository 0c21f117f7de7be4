"""How asynchronous results are merged: weighted by their staleness."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice, check_interval, check_not_negative, plain
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.asynchronous.staleness import CheckedWeights, Staleness, staleness_function
from fl_lightning.parts.federation import ClientResult, accumulator
from fl_lightning.parts.hyperparameter import Hyperparameter, Scheduled

Division = Literal["count", "weights", "none"]
Examples = Literal["uniform", "samples", "sqrt", "log"]
_EXAMPLES = {"uniform": lambda n: 1.0, "samples": float, "sqrt": math.sqrt, "log": lambda n: math.log10(1 + n)}


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

    merges_buffers = True

    def __init__(self, mixing: Scheduled = 0.6, staleness: Staleness = "polynomial") -> None:
        self._mixing = Hyperparameter(
            "mixing", mixing, partial(check_interval, within="(0, 1]"), "1 replaces the server's model."
        )
        self._weight = staleness_function(staleness)
        self.mixing = self._mixing.at(0)
        self._share(0)
        self._results: list[ClientResult] = []

    @property
    def may_draw(self) -> bool:
        """Whether a class, or the function of staleness, is a user's own."""
        return super().may_draw or isinstance(self._weight, CheckedWeights)

    def on_round_start(self, round_index: int) -> None:
        """Take the round's alpha."""
        self.mixing = self._mixing.at(round_index)

    def update(self, result: ClientResult) -> None:
        """Keep a result until the server moves."""
        self._results.append(result)

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the mixture, float64 of shape ``(size,)``."""
        results, self._results = self._results, []
        if not results:
            return None
        mixture = model.to(accumulator(model))
        for result in results:
            mixture = mixture + self._share(result.staleness) * (result.vector - mixture)
        return mixture

    def _share(self, staleness: int) -> float:
        """Return a, the share of a result in the mixture."""
        weight = self._weight(staleness)
        share = self.mixing * weight
        if share > 1:
            raise ValueError(
                f"`mixing` times `staleness({staleness})` must be at most 1, got {self.mixing:g} * {weight:g}: it is "
                "the share of the client's model, and the server would move beyond that model. Give a smaller "
                "`mixing`, or weights of at most 1."
            )
        return share


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
        TypeError: If ``staleness`` is a function that fails for 0 or for ``average_staleness``.
        ValueError: If an argument is out of its range, or s is 0 at ``average_staleness``.
    """

    merges_buffers = True

    def __init__(
        self,
        staleness: Staleness = "polynomial",
        weighting: Examples = "uniform",
        divide_by: Division = "count",
        average_staleness: float = 0.0,
    ) -> None:
        check_choice("weighting", weighting, tuple(_EXAMPLES))
        check_choice("divide_by", divide_by, ("count", "weights", "none"))
        check_not_negative("average_staleness", average_staleness)
        self.weighting, self.divide_by = weighting, divide_by
        self._decay = staleness_function(staleness)
        usual = plain(average_staleness)
        # a user's function may read a table, whose places are whole numbers
        self._usual = self._decay(int(usual) if usual == int(usual) else usual)  # type: ignore[arg-type]
        if not self._usual:
            raise ValueError(
                f"`average_staleness` must be one at which `staleness` gives a weight greater than 0, got {usual}: all "
                "weights are divided by the one at this staleness. Give a smaller one; 0 is that of a fresh result."
            )
        self._clear()

    @property
    def may_draw(self) -> bool:
        """Whether a class, or the function of staleness, is a user's own."""
        return super().may_draw or isinstance(self._decay, CheckedWeights)

    def _clear(self) -> None:
        self._sum: Tensor | None = None
        self._weights, self._count = 0.0, 0

    def update(self, result: ClientResult) -> None:
        """Add the client's update."""
        examples = _EXAMPLES[self.weighting]
        mean_size = float(self.federation.sizes.mean())
        lateness = self._decay(result.staleness) / self._usual
        weight = lateness * examples(result.num_samples) / examples(mean_size)
        n = len(result.parameters)
        start, vector = (v.to(accumulator(v)) for v in (result.start, result.vector))
        addend = weight * torch.cat([vector[:n] - start[:n], vector[n:]])
        self._sum = addend if self._sum is None else self._sum + addend
        self._weights += weight
        self._count += 1

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the parameters moved by the updates, and the mean of the modules' buffers, shape ``(size,)``."""
        total, weights, count = self._sum, self._weights, self._count
        self._clear()
        if total is None or not weights:
            return None
        n, current = self.federation.num_parameters, model.to(total.dtype)
        divisor = {"count": float(count), "weights": weights, "none": 1.0}[self.divide_by]
        return torch.cat([current[:n] + total[:n] / divisor, total[n:] / weights])


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

    merges_buffers = True

    def __init__(
        self,
        alpha: float = 0.5,
        staleness_at: Literal["receipt", "flush"] = "receipt",
        frequency: Literal["flush", "arrival"] = "flush",
    ) -> None:
        check_interval("alpha", alpha, "It is the exponent of staleness.", within="[0, 1]")
        check_choice("staleness_at", staleness_at, ("receipt", "flush"))
        check_choice("frequency", frequency, ("flush", "arrival"))
        self.alpha, self.staleness_at, self.frequency = plain(alpha), staleness_at, frequency
        self._results: list[ClientResult] = []

    def update(self, result: ClientResult) -> None:
        """Add a client's model."""
        self._results.append(result)

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the weighted mean, float64 of shape ``(size,)``; ``None`` when nothing with a weight was added."""
        weights = self.weights() if any(result.num_samples for result in self._results) else []
        results, self._results = self._results, []
        if not weights:
            return None
        mean = torch.zeros(len(model), dtype=accumulator(model), device=model.device)
        for weight, result in zip(weights, results, strict=True):
            mean.add_(result.vector, alpha=weight)
        return mean

    def weights(self) -> list[float]:
        """Return beta of each result that was added; their sum is 1."""
        totals, so_far = Counter(result.task.client for result in self._results), Counter[int]()
        scores = []
        for result in self._results:
            client = result.task.client
            so_far[client] += 1
            since_receipt = self._results[-1].counter - result.counter
            late = result.staleness if self.staleness_at == "receipt" else result.staleness + since_receipt
            frequency = totals[client] if self.frequency == "flush" else so_far[client]
            scores.append(result.num_samples * math.exp((1 + late) ** -self.alpha / frequency))
        total = sum(scores)
        return [score / total for score in scores]
