"""The base of samplers, which answer the question: who trains?"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import numpy as np

from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.part import Part

#: The model at which the clients of a round are scored; ``None`` for none.
ScoredAt = Literal["trained", "received"] | None


#: How clients come into a round, as an analysis of privacy sees it: each one independently of the others, or a fixed
#: number together; ``None`` if it is not known.
Inclusion = Literal["independent", "together"] | None


class ClientSampler(Part, ABC):
    """Draws the clients of a round."""

    #: Whether it counts the results of an asynchronous round instead of drawing clients.
    counts_results = False
    #: Whether every round has a client where all can be reached.
    always_draws = False
    #: Whether the number of clients in a round stands for the sampler, so that users need not see it. A subclass may
    #: draw otherwise, so it does not inherit the answer: each class says so itself, and the callback asks
    #: :attr:`is_number_of_clients`.
    stands_for_number: ClassVar[bool] = False

    @abstractmethod
    def cohort_size(self, num_clients: int) -> int:
        """Return how many clients train in a round, out of ``num_clients``; the expected number if it varies.

        Raises:
            ValueError: If the federation is too small for the sampler's setting.
        """

    @property
    def is_number_of_clients(self) -> bool:
        """Whether the sampler's own class says :attr:`stands_for_number`."""
        return bool(vars(type(self)).get("stands_for_number", False))

    @property
    def number_or_fraction(self) -> int | float | None:
        """The number of clients in a round, or their fraction, as users set it; ``None`` if that is not what is set."""
        return None

    def draws(self, clients_per_round: int | float) -> bool:
        """Return whether a round has so many clients, where an int is their number and a float their fraction."""
        return are_alike(clients_per_round, self.number_or_fraction)

    def with_clients_per_round(self, clients_per_round: int | float) -> "ClientSampler":
        """Return the sampler that draws another number of clients in the same way.

        Raises:
            AttributeError: If another number does not tell how the sampler draws.
            ValueError: If the number is out of its range.
        """
        raise AttributeError(f"`clients_per_round` is set by the sampler {self!r}. Set `sampler` to another one.")

    def describe_round(self, num_clients: int) -> str:
        """Return how many clients train in a round, in words: "10 train"."""
        number = self.cohort_size(num_clients)
        return f"{number:,} trains" if number == 1 else f"{number:,} train"

    @property
    def inclusion(self) -> Inclusion:
        """How clients come into a round; ``None`` if that is not known, so that no privacy is claimed."""
        return None

    def chance(self, num_clients: int) -> float:
        """Return each client's chance to be in a round, in (0, 1], where :attr:`inclusion` is known."""
        return self.cohort_size(num_clients) / num_clients

    @abstractmethod
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the distinct clients of one round, in any order: integers in ``[0, num_clients)``.

        Args:
            num_clients: K.
            rng: The round's generator.
            available: The clients that can be reached, sorted. If they are fewer than a round needs, all of them train.
        """

    def checked_draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the clients of one round in random order, int64: what :meth:`draw` returns, shuffled if it does not.

        Args:
            num_clients: As for :meth:`draw`.
            rng: As for :meth:`draw`.
            available: As for :meth:`draw`.

        Raises:
            ValueError: If :meth:`draw` returns a client twice, or one that cannot be reached.
        """
        drawn = np.asarray(self.draw(num_clients, rng, available)).reshape(-1)
        are_distinct = len(np.unique(drawn)) == len(drawn)
        if not are_distinct or not np.isin(drawn, available).all():
            raise ValueError(f"`{type(self).__name__}.draw` must return distinct `available` clients, got {drawn}.")
        drawn = drawn.astype(np.int64)
        return drawn if self.draws_in_random_order else rng.permutation(drawn)

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
    def asks_clients(self) -> bool:
        """Whether clients look at their data for the draw."""
        return self.sends_scores or type(self).clients_to_score is not ClientSampler.clients_to_score

    @property
    def draws_in_random_order(self) -> bool:
        """Whether :meth:`draw` shuffles by itself."""
        return False


def are_alike(one: int | float | None, other: int | float | None) -> bool:
    """Return whether two settings say the same: 1 is one client, and 1.0 are all, so their types must agree."""
    return type(one) is type(other) and one == other
