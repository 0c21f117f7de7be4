"""Who trains: client samplers, and which of the clients can be reached and report."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from fl_lightning.checks import Count, Fraction, Share, check, check_fields, represent
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.part import Part
from fl_lightning.parts.samples import is_mean_of_samples, not_a_mean

Rounding = Literal["floor", "round", "ceil"]
#: The model at which the clients of a round are scored; ``None`` for none.
ScoredAt = Literal["trained", "received"] | None
Availability = Share | Callable[[int], Any]
#: How a client is scored.
Kind = Literal["batch", "sample", "sum", "full"]
_ROUND = {"floor": np.floor, "round": np.rint, "ceil": np.ceil}


class ClientSampler(Part, ABC):
    """Draws the clients of a round."""

    @abstractmethod
    def cohort_size(self, num_clients: int) -> int:
        """Return how many clients train in a round, out of ``num_clients``; the expected number if it varies.

        Raises:
            ValueError: If the federation is too small for the sampler's setting.
        """

    @abstractmethod
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the distinct clients of one round, in any order: integers in ``[0, num_clients)``.

        Args:
            num_clients: K.
            rng: The round's generator.
            available: The clients that can be reached, sorted. If they are fewer than a round needs, all of them train.
        """

    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Return clients that receive the server's model to be scored at it, just before the draw.

        Args:
            rng: The round's generator, which ``draw`` gets next.
            available: The clients that can be reached, sorted.
        """
        return ()

    def score(self, client: LocalClient) -> float:
        """Return the importance of a client at the module's present weights.

        These are the server's for :meth:`clients_to_score`, and those of :attr:`scored_at` for the round's clients.
        """
        return float("nan")

    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Take scores by client, on all processes: before a draw, and of the clients that trained when a round ends."""

    @property
    def scored_at(self) -> ScoredAt:
        """Where the round's clients are scored: at the weights that they have ``"trained"``, if there is a score."""
        return None if type(self).score is ClientSampler.score else "trained"

    @property
    def sends_scores(self) -> bool:
        """Whether clients send scores."""
        return type(self).score is not ClientSampler.score

    @property
    def draws_in_random_order(self) -> bool:
        """Whether ``draw`` shuffles by itself; otherwise clients are shuffled after it."""
        return type(self).draw in (UniformSampler.draw, BernoulliSampler.draw)


@dataclass(eq=False)
class UniformSampler(ClientSampler):
    """Draws ``m`` distinct clients uniformly, without replacement.

    Args:
        clients_per_round: A float in (0, 1] is the fraction C of the clients, an int is ``m`` itself.
        rounding: How a fractional ``C K`` becomes ``m``, at least 1: ``"floor"`` as in RADFed's Algorithm 1,
            ``"round"`` (half to even) or ``"ceil"``.

    Raises:
        ValueError: If an argument is out of its range; in a round, if more clients are asked for than there are.
    """

    clients_per_round: Count | Share
    rounding: Rounding = "floor"

    def cohort_size(self, num_clients: int) -> int:
        """Return ``m``."""
        if isinstance(self.clients_per_round, float):
            # nine decimals keep 0.3 * 10 = 2.9999999999999996 from becoming 2, and 0.1 * 30 = 3.0000000000000004 from 4
            return max(int(_ROUND[self.rounding](round(self.clients_per_round * num_clients, 9))), 1)
        if self.clients_per_round > num_clients:
            raise ValueError(
                f"`clients_per_round` must be at most {num_clients}, those that train, got {self.clients_per_round}."
            )
        return self.clients_per_round

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return ``m`` distinct clients in random order."""
        return rng.choice(available, size=min(self.cohort_size(num_clients), len(available)), replace=False)


class Arrivals(UniformSampler):
    """Counts the results of an asynchronous round, which may be more than there are clients.

    Args:
        clients_per_round: A float in (0, 1] is a fraction of the clients, an int the number itself.
    """

    def cohort_size(self, num_clients: int) -> int:
        """Return the number of results."""
        return super().cohort_size(num_clients) if isinstance(self.clients_per_round, float) else self.clients_per_round


@dataclass(eq=False)
class BernoulliSampler(ClientSampler):
    """Draws each client independently with the same probability (Poisson sampling). A round may be empty.

    Args:
        probability: Probability that a client trains in a round, in (0, 1].

    Raises:
        ValueError: If ``probability`` is outside (0, 1].
    """

    probability: Share

    def cohort_size(self, num_clients: int) -> int:
        """Return the expected number, rounded, at least 1."""
        return max(round(self.probability * num_clients), 1)

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the clients that were drawn, in random order."""
        return rng.permutation(available[rng.random(len(available)) < self.probability])


class ImportanceSampler(UniformSampler):
    """Draws ``m`` distinct clients with probabilities in proportion to their scores (RADFedi; eq. (38)-(41)).

    The score is the mean squared norm of the gradient at the locally trained weights. After training, a client's
    accumulated score becomes ``(1 - gamma) p + gamma p_new``. Clients are drawn one after the other; after each draw
    the probabilities of the others are scaled to sum to 1.

    Equations are numbered as in ``docs/references.md``.

    Args:
        clients_per_round: As for :class:`UniformSampler`.
        gamma: Weight of the newest score, in [0, 1); 0 never changes the first ones. ``None`` keeps the mean of all
            of a client's scores.
        score: ``"batch"`` averages ``|grad F_b|^2`` over the client's mini-batches (41a), ``"sample"`` over its
            samples (41b), ``"sum"`` adds the mini-batches up, ``"full"`` takes the gradient on all samples at once. For
            ``"sample"`` a batch's loss must be the mean of its samples' losses; one more pass checks that.
        initial: ``"scores"`` scores every client at the first model, one more pass over all data; ``"uniform"`` starts
            with 1 for every client.
        parameters: Only parameters whose name starts with one of these count, such as ``["classifier"]``; all if
            ``None``.
        floor: Smallest probability relative to the largest, greater than 0, so that every client can be drawn.
        rounding: As for :class:`UniformSampler`.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if no tensor has such a name; when
            clients are scored, if a batch's loss is no mean over samples and ``score="sample"``.
    """

    stored_as: ClassVar = {"score": "kind"}  # the name of a method
    gamma: Fraction | None
    kind: Kind
    initial: Literal["scores", "uniform"]
    parameters: Sequence[str] | None
    floor: Share

    def __init__(
        self,
        clients_per_round: int | float,
        *,
        gamma: float | None = 0.9,
        score: Kind = "batch",
        initial: Literal["scores", "uniform"] = "scores",
        parameters: Sequence[str] | None = None,
        floor: float = 1e-12,
        rounding: Rounding = "floor",
    ) -> None:
        self.gamma, self.initial, self.floor, self.parameters = gamma, initial, floor, parameters
        self.kind = check("`score`", score, Kind)
        super().__init__(clients_per_round, rounding)

    def __repr__(self) -> str:
        return represent(self)

    def setup(self, federation: Federation) -> None:
        """Start without scores, or with 1 for every client."""
        self._counted: set[str] | None = None
        if self.parameters is not None:
            beginnings = [f"{beginning}*" for beginning in self.parameters]
            self._counted = set(federation.matching(beginnings, "parameters"))
        #: The accumulated score p_k of each client, shape (K,); NaN before its first.
        self.scores: np.ndarray
        self.add_state("scores", np.full(federation.num_clients, 1.0 if self.initial == "uniform" else np.nan))
        self.counts: np.ndarray
        self.add_state("counts", np.zeros(federation.num_clients))

    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Return the clients that were never scored; a score that is not finite becomes 0, the floor."""
        return np.flatnonzero(np.isnan(self.scores)).tolist()

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return ``m`` distinct clients, the first draws first."""
        size = min(self.cohort_size(num_clients), len(available))
        return rng.choice(available, size=size, replace=False, p=self.probabilities(available)) if size else available

    def probabilities(self, clients: np.ndarray) -> np.ndarray:
        """Return the probability of each of ``clients`` in a single draw."""
        scores = self.scores[clients]
        largest = scores.max(initial=0.0)
        scores = np.maximum(scores, self.floor * largest) if largest > 0 else np.ones(len(clients))
        probabilities: np.ndarray = scores / scores.sum()
        return probabilities

    def score(self, client: LocalClient) -> float:
        """Return the client's score at the module's present weights; NaN if no batch has a loss."""
        size: int | str | None = {"sample": 1, "full": None}.get(self.kind, "data")
        squares: list[float] = []
        of_samples = _MeanGradient()
        for gradients, number in client.gradients(size):
            squares.append(self._squared_norm(gradients))
            if self.kind == "sample":
                of_samples.take(gradients, number)
        if not squares:
            return float("nan")
        if self.kind == "sample":
            of_batches = _MeanGradient()
            for gradients, number in client.gradients():
                of_batches.take(gradients, number)
            scale = of_samples.mean_norm
            if math.isfinite(scale) and not is_mean_of_samples(of_batches.mean(), of_samples.mean(), scale):
                raise not_a_mean('ImportanceSampler(score="sample")')
        return sum(squares) if self.kind == "sum" else sum(squares) / len(squares)

    def _squared_norm(self, gradients: Mapping[str, Tensor]) -> float:
        chosen = (gradient for name, gradient in gradients.items() if self._counts(name))
        return float(sum(gradient.square().sum().double() for gradient in chosen))

    def _counts(self, name: str) -> bool:
        return self._counted is None or name in self._counted

    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Accumulate scores. A client's first score counts whole; a score that is not finite changes nothing."""
        for client, new in scores.items():
            old = self.scores[client]
            if np.isnan(old):
                self.scores[client] = new if np.isfinite(new) else 0.0
                self.counts[client] = 1
            elif np.isfinite(new):
                self.counts[client] += 1
                weight = 1 / self.counts[client] if self.gamma is None else self.gamma
                self.scores[client] = (1 - weight) * old + weight * new


class _MeanGradient:
    """The mean of a client's gradients over its samples.

    Attributes:
        mean_norm: The mean of their norms.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._norms, self._samples = 0.0, 0

    def take(self, gradients: Mapping[str, Tensor], number: int) -> None:
        """Take the gradient of some samples' mean loss."""
        for name, gradient in gradients.items():
            self._sums[name] = self._sums[name] + number * gradient if name in self._sums else number * gradient
        self._norms += number * sum(float(gradient.square().sum()) for gradient in gradients.values()) ** 0.5
        self._samples += number

    def mean(self) -> dict[str, Tensor]:
        """Return the mean by parameter name."""
        return {name: total / self._samples for name, total in self._sums.items()}

    @property
    def mean_norm(self) -> float:
        return self._norms / self._samples


@dataclass(eq=False, kw_only=True)
class Participation:
    """Which of a round's clients can be reached, report, and do all of their work.

    Args:
        available: Which clients can be reached: a float in (0, 1] is each client's chance in each round, a function
            gives the clients of a round (counted from 0). All if ``None``.
        dropout: Chance that a client that was drawn does not report. It receives a model, and its work is lost.
        stragglers: Fraction of a round's clients that do only part of the local work: a whole number of epochs (or
            steps) drawn uniformly between 1 and one less than all (Li et al. 2020).
        drop_stragglers: Whether the work of stragglers is lost, as for FedAvg in Li et al.'s comparison.

    Raises:
        ValueError: If an argument is out of its range; in a round, if ``available`` names a client that does not
            exist, or stragglers have no part of the work to do.
    """

    available: Availability | None = None
    dropout: Fraction = 0.0
    stragglers: Annotated[float, "[0, 1]"] = 0.0
    drop_stragglers: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def reachable(self, round_index: int, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the clients that can be reached in a round, sorted."""
        if self.available is None:
            return np.arange(num_clients)
        if not callable(self.available):
            return np.flatnonzero(rng.random(num_clients) < self.available)
        clients = np.unique(np.asarray(self.available(round_index)))
        if len(clients) and (clients.dtype.kind not in "iu" or not 0 <= clients[0] <= clients[-1] < num_clients):
            raise ValueError(
                f"`available({round_index})` must give clients from 0 to {num_clients - 1}, no mask, got {clients[:8]}."
            )
        return clients.astype(np.int64)

    def outcome(
        self, drawn: np.ndarray, full_work: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[int | None]]:
        """Return the clients that report and the work of each (``None``: all).

        Args:
            drawn: The round's clients, in random order.
            full_work: Local epochs (or steps) of a client that does all.
            rng: The round's generator.
        """
        work: list[int | None] = [None] * len(drawn)
        full = round(len(drawn) * (1 - self.stragglers))
        if full < len(drawn) and not self.drop_stragglers:
            if full_work < 2:
                raise ValueError(
                    f"`stragglers` need `local_epochs` (or `local_steps`) of at least 2 to do part of, got {full_work}."
                )
            work[full:] = [int(part) for part in rng.integers(1, full_work, size=len(drawn) - full)]
        reports = rng.random(len(drawn)) >= self.dropout
        if self.drop_stragglers:
            reports[full:] = False
        return drawn[reports], [part for part, reported in zip(work, reports, strict=True) if reported]
