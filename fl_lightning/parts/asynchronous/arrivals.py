"""How the server takes what arrives: one result at a time, or a buffer of them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice, check_count, check_not_negative
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.asynchronous.staleness import Staleness, StalenessFunction, staleness_function
from fl_lightning.parts.client_states import accumulator
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.hyperparameter import Hyperparameter, Scheduled

Division = Literal["count", "weights", "none"]
Examples = Literal["uniform", "samples", "sqrt", "log"]
_EXAMPLES = {"uniform": lambda n: 1.0, "samples": float, "sqrt": math.sqrt, "log": lambda n: math.log10(1 + n)}


@dataclass(frozen=True)
class Arrival:
    """A client's answer.

    Attributes:
        client: The client.
        num_samples: Size n_k of its data set.
        start: The model that it received, shape ``(size,)``.
        vector: Its model, shape ``(size,)``.
        staleness: d: how far the server's counter went on since the client received its model.
        counter: The server's counter now.
    """

    client: int
    num_samples: int
    start: Tensor
    vector: Tensor
    staleness: int
    counter: int


class ArrivalRule(Aggregation):
    """Collects arrivals until the server moves."""

    #: Arrivals that make the server move.
    buffer_size = 1
    _num_parameters = 0
    _mean_size = 1.0

    def begin(self, federation: Federation) -> None:
        """Start empty."""
        self._num_parameters = federation.num_parameters
        self._mean_size = float(federation.sizes.mean())
        self.clear()

    @property
    @abstractmethod
    def occupancy(self) -> int:
        """Results that are held."""

    @abstractmethod
    def holds(self, client: int) -> bool:
        """Return whether a result of the client is held."""

    @abstractmethod
    def add(self, arrival: Arrival, model: Tensor) -> None:
        """Take an arrival, given the server's present model, which is not to be written to."""

    @abstractmethod
    def clear(self) -> None:
        """Forget what is held."""


class StalenessMixing(ArrivalRule):
    """Moves the server at each arrival: ``x <- (1 - a) x + a x_new`` with ``a = mixing s(d)`` (FedAsync; eq. (24)).

    Args:
        mixing: alpha in (0, 1]; a function of the round makes a schedule.
        staleness: s, a name or a function of d.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, mixing: Scheduled = 0.6, staleness: Staleness = "polynomial") -> None:
        self._mixing = Hyperparameter("mixing", mixing, _check_mixing)
        self._weight = staleness_function(staleness)
        self.mixing = self._mixing.at(0)
        self._target: Tensor | None = None

    def begin_round(self, round_index: int) -> None:
        """Take the round's alpha."""
        self.mixing = self._mixing.at(round_index)

    @property
    def occupancy(self) -> int:
        """Return 1 between an arrival and the server's move."""
        return int(self._target is not None)

    def holds(self, client: int) -> bool:
        """Return false: nothing is held."""
        return False

    def add(self, arrival: Arrival, model: Tensor) -> None:
        """Mix the client's model with the server's."""
        current = model.to(accumulator(model))
        self._target = current + self.mixing * self._weight(arrival.staleness) * (arrival.vector - current)

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the mixture."""
        target, self._target = self._target, None
        return target

    def clear(self) -> None:
        """Forget the last arrival."""
        self._target = None


class DeltaBuffer(ArrivalRule):
    """Adds ``s(d) omega Delta`` to a buffer and moves the server when K are in it (FedBuff; eq. (27)-(29)).

    ``Delta = w_k - w'`` is the way from the received to the trained model. Buffers of the module, such as running
    statistics, become the mean of the clients' with the same weights: a sum of differences could make a variance
    negative.

    Args:
        buffer_size: K.
        staleness: s, a name or a function of d.
        weighting: omega by the size n_k of the client's data: ``"uniform"``, ``"samples"``, ``"sqrt"`` or ``"log"``
            (of base 10, of 1 + n_k), relative to that of the mean size.
        divide_by: ``"count"`` divides the sum by the number of results, K in a full buffer (Nguyen et al. 2022),
            ``"weights"`` by the sum of ``s omega``, ``"none"`` not at all, as FLSim does.
        average_staleness: s is relative to its value here; 0 is the paper's, 1 FLSim's default.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        buffer_size: int,
        staleness: Staleness = "polynomial",
        weighting: Examples = "uniform",
        divide_by: Division = "count",
        average_staleness: float = 0.0,
    ) -> None:
        check_count("buffer_size", buffer_size, hint="It is the number of results that make the server move.")
        check_choice("weighting", weighting, tuple(_EXAMPLES))
        check_choice("divide_by", divide_by, ("count", "weights", "none"))
        check_not_negative("average_staleness", average_staleness)
        self.buffer_size, self.weighting, self.divide_by = buffer_size, weighting, divide_by
        weight: StalenessFunction = staleness_function(staleness)
        usual = weight(average_staleness)  # type: ignore[arg-type]
        self._weight: StalenessFunction = lambda d: weight(d) / usual
        self._sum: Tensor | None = None
        self._weights = 0.0
        self._clients: list[int] = []

    @property
    def occupancy(self) -> int:
        """Results in the buffer."""
        return len(self._clients)

    def holds(self, client: int) -> bool:
        """Return whether a result of the client is in the buffer."""
        return client in self._clients

    def add(self, arrival: Arrival, model: Tensor) -> None:
        """Add the client's update."""
        n, examples = self._num_parameters, _EXAMPLES[self.weighting]
        weight = self._weight(arrival.staleness) * examples(arrival.num_samples) / examples(self._mean_size)
        start, vector = (v.to(accumulator(v)) for v in (arrival.start, arrival.vector))
        addend = weight * torch.cat([vector[:n] - start[:n], vector[n:]])
        self._sum = addend if self._sum is None else self._sum + addend  # not in place: a round's start may share it
        self._weights += weight
        self._clients = [*self._clients, arrival.client]

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the server's parameters moved by the buffered updates, and the mean of the modules' buffers."""
        total, weights, count = self._sum, self._weights, len(self._clients)
        self.clear()
        if total is None or not weights:
            return None
        n, current = self._num_parameters, model.to(total.dtype)
        divisor = {"count": float(count), "weights": weights, "none": 1.0}[self.divide_by]
        return torch.cat([current[:n] + total[:n] / divisor, total[n:] / weights])

    def clear(self) -> None:
        """Empty the buffer."""
        self._sum, self._weights, self._clients = None, 0.0, []

    def state_dict(self) -> dict[str, Any]:
        """Return what is buffered."""
        return {"sum": self._sum, "weights": self._weights, "clients": list(self._clients)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint's buffer held."""
        self._sum, self._weights, self._clients = state["sum"], state["weights"], list(state["clients"])


class DynamicWeightBuffer(ArrivalRule):
    """Holds B models and moves the server to their mean with dynamic weights (Gao et al. 2024; eq. (30)-(33)).

    ``beta_b`` is in proportion to ``|D_b| exp(s_b / f_b)``, with ``s_b = (1 + d_b)^-alpha`` and f_b the number of the
    client's results in the buffer.

    Args:
        buffer_size: B.
        alpha: Exponent of staleness, in [0, 1].
        staleness_at: ``"receipt"`` counts d when a result arrives, ``"flush"`` when the buffer is full.
        frequency: ``"flush"`` gives all results of a client their final count f, ``"arrival"`` each the count so far.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        buffer_size: int = 3,
        alpha: float = 0.5,
        staleness_at: Literal["receipt", "flush"] = "receipt",
        frequency: Literal["flush", "arrival"] = "flush",
    ) -> None:
        check_count("buffer_size", buffer_size, hint="It is the number of results that make the server move.")
        _check_exponent(alpha)
        check_choice("staleness_at", staleness_at, ("receipt", "flush"))
        check_choice("frequency", frequency, ("flush", "arrival"))
        self.buffer_size, self.alpha = buffer_size, alpha
        self.staleness_at, self.frequency = staleness_at, frequency
        self._entries: list[tuple[int, int, int, int, Tensor]] = []

    @property
    def occupancy(self) -> int:
        """Results in the buffer."""
        return len(self._entries)

    def holds(self, client: int) -> bool:
        """Return whether a result of the client is in the buffer."""
        return any(entry[0] == client for entry in self._entries)

    def add(self, arrival: Arrival, model: Tensor) -> None:
        """Put the client's model into the buffer."""
        entry = (arrival.client, arrival.num_samples, arrival.staleness, arrival.counter, arrival.vector)
        self._entries = [*self._entries, entry]

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the weighted mean."""
        if not self._entries:
            return None
        mean = torch.zeros(len(model), dtype=accumulator(model), device=model.device)
        for weight, (*_, vector) in zip(self.weights(), self._entries, strict=True):
            mean.add_(vector, alpha=weight)
        self.clear()
        return mean

    def weights(self) -> list[float]:
        """Return beta of each result in the buffer; their sum is 1."""
        totals, so_far = Counter(entry[0] for entry in self._entries), Counter[int]()
        logits = []
        for client, samples, staleness, counter, _ in self._entries:
            so_far[client] += 1
            late = staleness if self.staleness_at == "receipt" else staleness + self._entries[-1][3] - counter
            frequency = totals[client] if self.frequency == "flush" else so_far[client]
            logits.append(samples * math.exp((1 + late) ** -self.alpha / frequency))
        total = sum(logits)
        return [logit / total for logit in logits]

    def clear(self) -> None:
        """Empty the buffer."""
        self._entries = []

    def state_dict(self) -> dict[str, Any]:
        """Return what is buffered."""
        return {"entries": [list(entry) for entry in self._entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint's buffer held."""
        self._entries = [tuple(entry) for entry in state["entries"]]


def _check_mixing(name: str, value: float, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"`{name}` must be a number in (0, 1], got {value!r}. 1 replaces the server's model.")


def _check_exponent(value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"`alpha` must be a number in [0, 1], got {value!r}. It is the exponent of staleness.")
