"""Who trains: client samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from fl_lightning.arguments import (
    check_choice,
    check_fraction,
    check_interval,
    check_names,
    plain,
)
from fl_lightning.parts.clients_per_round import fraction_or_number
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.guards.checked_returns import checked_score, checked_size
from fl_lightning.parts.guards.contracts import raise_flags, returns
from fl_lightning.parts.of_held import flag_of_held
from fl_lightning.parts.part import Part, passes_on
from fl_lightning.representation import who_train

Rounding = Literal["floor", "round", "ceil"]
_ROUND = {"floor": np.floor, "round": np.rint, "ceil": np.ceil}


class ClientSampler(Part, ABC):
    """Draws the clients of a round."""

    #: Whether :meth:`cohort_size` counts clients, so that it is at most their number.
    counts_clients = True
    #: Whether :meth:`score` is called for every client that trained. True for a class that defines it, or if a held
    #: sampler needs it, unless the class says otherwise.
    needs_scores: bool = flag_of_held()
    #: Whether :meth:`draw` returns clients in random order by itself. Otherwise they are shuffled before anything
    #: depends on their order: which circulating model a client meets, who is a straggler.
    draws_in_random_order = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "draw" in vars(cls) and "draws_in_random_order" not in vars(cls):
            cls.draws_in_random_order = False  # another `draw` than the base's must say so again
        raise_flags(cls, {"score": "needs_scores"})

    @returns(checked_size)
    @abstractmethod
    def cohort_size(self, num_clients: int) -> int:
        """Return how many clients train in a round, out of ``num_clients``; the expected number if it varies.

        Raises:
            ValueError: If the federation is too small for the sampler's setting.
        """

    @abstractmethod
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        """Return the distinct clients of one round, in any order: integers in ``[0, num_clients)``.

        Args:
            num_clients: K.
            rng: The round's generator.
            available: The clients that can be reached, sorted; ``None`` for all. If they are fewer than a round
                needs, all of them train.
        """

    def clients_without_score(self) -> Iterable[int]:
        """Return clients to be scored now, at the server's model; asked before each draw and ``on_round_start``."""
        return [client for held in self._held_samplers for client in held.clients_without_score()]

    @property
    def sends_scores(self) -> bool:
        """Whether clients send scores: after training, or before a draw, by :meth:`clients_without_score`."""
        asks = type(self).clients_without_score is not ClientSampler.clients_without_score
        return asks or self.needs_scores or any(held.sends_scores for held in self._held_samplers)

    @returns(checked_score)
    def score(self, client: LocalClient) -> float:
        """Return the importance of a client at the module's present weights.

        These are the server's for :meth:`clients_without_score`, and those that the client has just trained for a
        client of the round, which is scored if :attr:`needs_scores`.

        Raises:
            NotImplementedError: If the sampler needs scores and does not define this method; others need none.
        """
        for held in self._held_samplers:
            if held.sends_scores:
                return held.score(client)
        asks = "has `needs_scores = True`" if self.needs_scores else "returns clients in `clients_without_score`"
        raise NotImplementedError(
            f"{type(self).__name__} {asks}, so it must define `score(client)`, which returns a number."
        )

    @passes_on
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Take scores by client, on all processes: before a draw, and of the clients that trained when a round ends."""
        for held in self._held_samplers:
            held.take_scores(scores)

    @property
    def _held_samplers(self) -> list[ClientSampler]:
        return [part for part in self.held_parts if isinstance(part, ClientSampler)]


class UniformSampler(ClientSampler):
    """Draws ``m`` distinct clients uniformly, without replacement.

    Args:
        clients_per_round: A float in (0, 1] is the fraction C of the clients, an int is ``m`` itself.
        rounding: How a fractional ``C K`` becomes ``m``, at least 1: ``"floor"`` as in RADFed's Algorithm 1,
            ``"round"`` (half to even) or ``"ceil"``.

    Raises:
        ValueError: If the fraction is outside (0, 1], the count below 1 or ``rounding`` unknown.
    """

    draws_in_random_order = True

    def __init__(self, clients_per_round: int | float, rounding: Rounding = "floor") -> None:
        check_choice("rounding", rounding, ("floor", "round", "ceil"))
        self.clients_per_round = fraction_or_number(clients_per_round)
        self.rounding = rounding

    def cohort_size(self, num_clients: int) -> int:
        """Return ``m``.

        Raises:
            ValueError: If more clients are asked for than there are.
        """
        if isinstance(self.clients_per_round, float):
            # nine decimals keep 0.3 * 10 = 2.9999999999999996 from becoming 2, and 0.1 * 30 = 3.0000000000000004 from 4
            return max(int(_ROUND[self.rounding](round(self.clients_per_round * num_clients, 9))), 1)
        if self.clients_per_round > num_clients:
            raise ValueError(
                f"`clients_per_round` is {self.clients_per_round}, but only {who_train(num_clients)}. Give at most "
                f"{num_clients}, or a fraction such as 0.1."
            )
        return self.clients_per_round

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        """Return ``m`` distinct clients in random order."""
        size = self.cohort_size(num_clients)
        if available is None:
            return rng.choice(num_clients, size=size, replace=False)
        return rng.choice(available, size=min(size, len(available)), replace=False)


class Arrivals(UniformSampler):
    """Counts the results of an asynchronous round, which may be more than there are clients.

    Args:
        clients_per_round: A float in (0, 1] is a fraction of the clients, an int the number itself.

    Raises:
        ValueError: If the fraction is outside (0, 1] or the count below 1.
    """

    counts_clients = False

    def cohort_size(self, num_clients: int) -> int:
        """Return the number of results."""
        return super().cohort_size(num_clients) if isinstance(self.clients_per_round, float) else self.clients_per_round


class BernoulliSampler(ClientSampler):
    """Draws each client independently with the same probability (Poisson sampling). A round may be empty.

    Args:
        probability: Probability that a client trains in a round, in (0, 1].

    Raises:
        ValueError: If ``probability`` is outside (0, 1].
    """

    draws_in_random_order = True

    def __init__(self, probability: float) -> None:
        hint = "It is each client's chance to train in a round; 0.1 lets a tenth of them train on average."
        check_interval("probability", probability, hint, within="(0, 1]")
        self.probability = float(plain(probability))

    def cohort_size(self, num_clients: int) -> int:
        """Return the expected number, rounded, at least 1."""
        return max(round(self.probability * num_clients), 1)

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        """Return the clients that were drawn, in random order."""
        candidates = np.arange(num_clients) if available is None else available
        return rng.permutation(candidates[rng.random(len(candidates)) < self.probability])


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
            samples (41b), ``"sum"`` adds the mini-batches up, ``"full"`` takes the gradient on all samples at once.
        initial: ``"scores"`` scores every client at the first model, one more pass over all data; ``"uniform"`` starts
            with 1 for every client.
        parameters: Only parameters whose name starts with one of these count, such as ``["classifier"]``; all if
            ``None``.
        floor: Smallest probability relative to the largest, greater than 0, so that every client can be drawn.
        rounding: As for :class:`UniformSampler`.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if no parameter has such a name.
    """

    needs_scores = True
    stored_as: ClassVar[Mapping[str, str]] = {"score": "kind"}  # `score` is a method

    def __init__(
        self,
        clients_per_round: int | float,
        *,
        gamma: float | None = 0.9,
        score: Literal["batch", "sample", "sum", "full"] = "batch",
        initial: Literal["scores", "uniform"] = "scores",
        parameters: Sequence[str] | None = None,
        floor: float = 1e-12,
        rounding: Rounding = "floor",
    ) -> None:
        super().__init__(clients_per_round, rounding)
        check_choice("score", score, ("batch", "sample", "sum", "full"))
        check_choice("initial", initial, ("scores", "uniform"))
        if gamma is not None:
            hint = "It weighs the newest score; 0.9 is usual, None takes the mean of all scores."
            check_fraction("gamma", gamma, hint)
        check_interval("floor", floor, "It keeps every client drawable.", within="(0, 1]")
        if parameters is not None:
            check_names("parameters", parameters, "They are beginnings of parameters' names, such as ['classifier'].")
        self.gamma, self.kind, self.initial, self.floor = plain(gamma), score, initial, plain(floor)
        self.parameters = None if parameters is None else tuple(parameters)
        self.scores = np.empty(0)
        """The accumulated score p_k of each client, shape ``(K,)``; NaN before its first."""
        self._counts = np.empty(0)

    def on_fit_start(self, federation: Federation) -> None:
        """Start without scores, or with 1 for every client."""
        uniform = self.initial == "uniform"
        self.scores = np.full(federation.num_clients, 1.0 if uniform else np.nan)
        self._counts = np.zeros(federation.num_clients)

    def clients_without_score(self) -> Iterable[int]:
        """Return the clients that were never scored; a score that is not finite becomes 0, the floor."""
        return np.flatnonzero(np.isnan(self.scores)).tolist()

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        """Return ``m`` distinct clients, the first draws first."""
        candidates = np.arange(num_clients) if available is None else available
        size = min(self.cohort_size(num_clients), len(candidates))
        if size == 0:
            return candidates
        chosen: np.ndarray = rng.choice(candidates, size=size, replace=False, p=self.probabilities(candidates))
        return chosen

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
        squares = [self._squared_norm(gradients) for gradients, _ in client.gradients(size)]
        if not squares:
            return float("nan")
        return sum(squares) if self.kind == "sum" else sum(squares) / len(squares)

    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Accumulate scores. A client's first score counts whole; a score that is not finite changes nothing."""
        for client, new in scores.items():
            old = self.scores[client]
            if np.isnan(old):
                self.scores[client] = new if np.isfinite(new) else 0.0
                self._counts[client] = 1
            elif np.isfinite(new):
                self._counts[client] += 1
                weight = 1 / self._counts[client] if self.gamma is None else self.gamma
                self.scores[client] = (1 - weight) * old + weight * new

    def state_dict(self) -> dict[str, list[float]]:
        """Return the accumulated scores and how many each client had."""
        return {"scores": self.scores.tolist(), "counts": self._counts.tolist()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Take the scores of a checkpoint."""
        self.scores, self._counts = np.array(state["scores"]), np.array(state["counts"])

    def _squared_norm(self, gradients: Mapping[str, object]) -> float:
        chosen = [
            gradient
            for name, gradient in gradients.items()
            if self.parameters is None or name.startswith(self.parameters)
        ]
        if not chosen:
            raise ValueError(
                f"`parameters` must name parameters of the module, got {list(self.parameters or ())}; there are "
                f"{', '.join(list(gradients)[:8])}{', ...' if len(gradients) > 8 else ''}."
            )
        return float(sum(gradient.square().sum().double() for gradient in chosen))  # type: ignore[attr-defined]
