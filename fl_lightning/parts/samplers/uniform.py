"""Clients drawn uniformly, or each by chance."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from fl_lightning.parts.samplers.base import ClientSampler, Inclusion, are_alike
from fl_lightning.settings import Count, Share
from fl_lightning.vectors import share_of
from fl_lightning.words import quantity

Rounding = Literal["floor", "round", "ceil"]
_ROUND = {"floor": np.floor, "round": np.rint, "ceil": np.ceil}


@dataclass(eq=False)
class UniformSampler(ClientSampler):
    """Draws ``m`` distinct clients uniformly, without replacement.

    Args:
        clients_per_round: A float in (0, 1] is the fraction C of the clients, an int is ``m`` itself.
        rounding: How a fractional ``C K`` becomes ``m``, at least 1: ``"floor"`` as in RADFed's Algorithm 1,
            ``"round"`` (half to even) or ``"ceil"``.

    Raises:
        ValueError: If an argument is out of its range; in a round, if more clients are asked for than there are.

    Example:
        >>> algorithm = FedAvg(sampler=UniformSampler(0.5, rounding="ceil"))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    always_draws = True
    stands_for_number: ClassVar[bool] = True
    clients_per_round: Count | Share
    rounding: Rounding = "floor"

    @property
    @override
    def number_or_fraction(self) -> int | float:
        return self.clients_per_round

    @override
    def with_clients_per_round(self, clients_per_round: int | float) -> ClientSampler:
        if not self.is_number_of_clients:
            return super().with_clients_per_round(clients_per_round)
        return replace(self, clients_per_round=clients_per_round)

    @override
    def cohort_size(self, num_clients: int) -> int:
        if isinstance(self.clients_per_round, float):
            number = share_of(self.clients_per_round, num_clients)
            return max(int(_ROUND[self.rounding](number)), 1)
        if self.clients_per_round > num_clients:
            raise ValueError(
                f"`clients_per_round` must be at most {num_clients}, those that train, got {self.clients_per_round}."
            )
        return self.clients_per_round

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return ``m`` distinct clients in random order."""
        size = min(self.cohort_size(num_clients), len(available))
        return rng.choice(available, size=size, replace=False)

    @property
    @override
    def draws_in_random_order(self) -> bool:
        """Whether ``draw`` is this one, and not a subclass's."""
        return type(self).draw is UniformSampler.draw

    @property
    @override
    def inclusion(self) -> Inclusion:
        """``m`` clients come together; a subclass that draws otherwise is not known."""
        return "together" if type(self).draw is UniformSampler.draw else None


class Arrivals(UniformSampler):
    """Counts the results of an asynchronous round, which may be more than there are clients.

    Args:
        clients_per_round: A float in (0, 1] is a fraction of the clients, an int the number itself.
    """

    counts_results = True
    stands_for_number: ClassVar[bool] = True

    @override
    def describe_round(self, num_clients: int) -> str:
        """Return how many results arrive in a round, in words."""
        number = self.cohort_size(num_clients)
        verb = "arrives" if number == 1 else "arrive"
        return f"{quantity(number, 'result')} {verb}"

    @override
    def cohort_size(self, num_clients: int) -> int:
        """Return the number of results."""
        if isinstance(self.clients_per_round, float):
            return super().cohort_size(num_clients)
        return self.clients_per_round


@dataclass(eq=False)
class BernoulliSampler(ClientSampler):
    """Draws each client independently with the same probability (Poisson sampling). A round may be empty.

    Args:
        probability: Probability that a client trains in a round, in (0, 1].

    Raises:
        ValueError: If ``probability`` is outside (0, 1].

    Example:
        >>> algorithm = FedAvg(sampler=BernoulliSampler(0.5))  # each client by itself
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    probability: Share

    @override
    def draws(self, clients_per_round: int | float) -> bool:
        return are_alike(clients_per_round, self.probability)

    @override
    def cohort_size(self, num_clients: int) -> int:
        """Return the expected number, rounded, at least 1."""
        return max(round(self.probability * num_clients), 1)

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the clients that were drawn, in random order."""
        is_drawn = rng.random(len(available)) < self.probability
        return rng.permutation(available[is_drawn])

    @property
    @override
    def draws_in_random_order(self) -> bool:
        """Whether ``draw`` is this one, and not a subclass's."""
        return type(self).draw is BernoulliSampler.draw

    @override
    def describe_round(self, num_clients: int) -> str:
        """Return about how many clients train in a round, in words."""
        return f"about {super().describe_round(num_clients)}"

    @property
    @override
    def inclusion(self) -> Inclusion:
        """Clients come independently; a subclass that draws otherwise is not known."""
        return "independent" if type(self).draw is BernoulliSampler.draw else None

    @override
    def chance(self, num_clients: int) -> float:
        """Return the probability."""
        return self.probability
