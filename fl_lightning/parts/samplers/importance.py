"""Clients drawn in proportion to the norms of their gradients (RADFedi)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.samplers.uniform import Rounding, UniformSampler
from fl_lightning.parts.samples import is_mean_of_samples, not_a_mean
from fl_lightning.settings import Fraction, Share, check
from fl_lightning.signatures import represent

#: How a client is scored.
Kind = Literal["batch", "sample", "sum", "full"]


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

    Example:
        >>> algorithm = RADFed(redistributions=2, sampler=ImportanceSampler(2))  # RADFedi
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    runs_at = "client"
    #: `score` is the name of a method, so that the argument has another one.
    stored_as: ClassVar = {"score": "kind"}
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
        self.gamma = gamma
        self.initial = initial
        self.floor = floor
        self.parameters = parameters
        self.kind = check("`score`", score, Kind)
        super().__init__(clients_per_round, rounding)

    @override
    def __repr__(self) -> str:
        return represent(self)

    @override
    def setup(self, federation: Federation) -> None:
        """Start without scores, or with 1 for every client."""
        self._counted: set[str] | None = None
        if self.parameters is not None:
            beginnings = [f"{beginning}*" for beginning in self.parameters]
            self._counted = set(federation.matching(beginnings, "parameters"))
        #: The accumulated score p_k of each client, shape (K,); NaN before its first.
        self.scores: np.ndarray
        first = 1.0 if self.initial == "uniform" else np.nan
        self.add_state("scores", np.full(federation.num_clients, first))
        #: How many scores each client had, shape (K,).
        self.counts: np.ndarray
        self.add_state("counts", np.zeros(federation.num_clients))

    @override
    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Return the clients that were never scored; a score that is not finite becomes 0, the floor."""
        return np.flatnonzero(np.isnan(self.scores)).tolist()

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return ``m`` distinct clients, the first draws first."""
        size = min(self.cohort_size(num_clients), len(available))
        if not size:
            return available
        return rng.choice(available, size=size, replace=False, p=self.probabilities(available))

    def probabilities(self, clients: np.ndarray) -> np.ndarray:
        """Return the probability of each of ``clients`` in a single draw."""
        scores = self.scores[clients]
        largest = scores.max(initial=0.0)
        scores = np.maximum(scores, self.floor * largest) if largest > 0 else np.ones(len(clients))
        probabilities: np.ndarray = scores / scores.sum()
        return probabilities

    @override
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
        total = 0.0
        for name, gradient in gradients.items():
            if self._counted is None or name in self._counted:
                total += float(gradient.square().sum())
        return total

    @override
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
        self._norms = 0.0
        self._samples = 0

    def take(self, gradients: Mapping[str, Tensor], number: int) -> None:
        """Take the gradient of some samples' mean loss."""
        square = 0.0
        for name, gradient in gradients.items():
            addend = number * gradient
            if name in self._sums:
                addend = self._sums[name] + addend
            self._sums[name] = addend
            square += float(gradient.square().sum())
        self._norms += number * square**0.5
        self._samples += number

    def mean(self) -> dict[str, Tensor]:
        """Return the mean by parameter name."""
        return {name: total / self._samples for name, total in self._sums.items()}

    @property
    def mean_norm(self) -> float:
        return self._norms / self._samples
