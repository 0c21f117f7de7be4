"""Federated averaging."""

from __future__ import annotations

from fl_lightning.aggregation import WeightedMean, Weighting
from fl_lightning.algorithm import Algorithm
from fl_lightning.callbacks.base import AggregationCallback
from fl_lightning.sampling import UniformSampler
from fl_lightning.schedules import Synchronous
from fl_lightning.server import Mixing


class FedAvg(AggregationCallback):
    """FedAvg (McMahan et al. 2017; eq. (1)-(3a)): the server moves to the mean of the selected clients' models.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C, an int the number m.
        local_epochs: Passes over a client's data in a round; default 1.
        local_steps: Optimizer steps of a client in a round, instead of epochs.
        weighting: ``"samples"`` weighs a client by its size n_k, ``"uniform"`` all alike.
        server_lr: Server learning rate: ``w + server_lr (mean - w)``; 1 replaces the model.
        seed: Seed of client draws, shuffling and client randomness; default that of ``lightning.seed_everything``.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        clients_per_round: int | float = 0.1,
        *,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        weighting: Weighting = "samples",
        server_lr: float = 1.0,
        seed: int | None = None,
    ) -> None:
        self.clients_per_round = clients_per_round
        self.weighting = weighting
        self.server_lr = server_lr
        super().__init__(local_epochs=local_epochs, local_steps=local_steps, seed=seed)

    def configure_algorithm(self) -> Algorithm:
        """Return the five parts."""
        return Algorithm(
            sampler=UniformSampler(self.clients_per_round),
            schedule=Synchronous(),
            aggregation=WeightedMean(self.weighting),
            server=Mixing(self.server_lr),
        )
