"""RADFed: aggregation delayed by redistribution."""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.aggregation import WeightedMean
from fl_lightning.algorithm import Algorithm
from fl_lightning.callbacks.base import AggregationCallback
from fl_lightning.objectives import LocalObjective
from fl_lightning.sampling import ClientSampler, UniformSampler
from fl_lightning.schedules import Evaluate, Redistribution
from fl_lightning.server import Mixing, ServerOptimizer


class RADFed(AggregationCallback):
    """RADFed (Xue et al. 2021; eq. (35)-(37)): models circulate among clients for S rounds, then are averaged.

    A round is one inner round: each of the m circulating models trains on one client. Every S rounds the server moves
    to the plain mean of the models. With ``redistributions=1`` this is FedAvg with uniform weights, bit for bit.

    Args:
        redistributions: S, local trainings of a circulating model between two aggregations.
        clients_per_round: Circulating models, which is also clients in a round: a float is the fraction C of the
            clients, an int the number m.
        local_epochs: Passes over a client's data in a round; default 1.
        local_steps: Optimizer steps of a client in a round, instead of epochs.
        evaluate: What the module holds between two aggregations, and so what is validated, checkpointed and tested:
            ``"virtual"``, the mean of the circulating models (not fed back), or ``"aggregate"``, the server's last
            model. To choose the best checkpoint among aggregated models only, give
            ``ModelCheckpoint(every_n_epochs=redistributions)``.
        sampler: Draws the clients instead of ``clients_per_round``.
        local: Local objective; ``Proximal(mu)`` makes RADFedp, whose centre is the received model.
        server: Server optimizer applied at each aggregation; default: replace the model by the mean. ``Mixing(lr)``
            makes RADFedm, ``Adaptive(...)`` RADFeda.
        seed: Seed of client draws, shuffling and client randomness; default that of ``lightning.seed_everything``.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        redistributions: int,
        clients_per_round: int | float = 0.1,
        *,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        evaluate: Evaluate = "virtual",
        sampler: ClientSampler | None = None,
        local: LocalObjective | None = None,
        server: ServerOptimizer | None = None,
        seed: int | None = None,
    ) -> None:
        self.redistributions = redistributions
        self.clients_per_round = clients_per_round
        self.evaluate = evaluate
        self._sampler = sampler
        self._local = local
        self._server = server
        super().__init__(local_epochs=local_epochs, local_steps=local_steps, seed=seed)

    def configure_algorithm(self) -> Algorithm:
        """Return the five parts."""
        return Algorithm(
            sampler=self._sampler or UniformSampler(self.clients_per_round),
            schedule=Redistribution(self.redistributions, self.evaluate),
            objective=self._local,
            aggregation=WeightedMean("uniform"),
            server=self._server or Mixing(),
        )

    def check_rounds(self, max_epochs: int | None) -> None:
        """Warn when the fit would end in the middle of a cycle."""
        if max_epochs is None or max_epochs < 0 or max_epochs % self.redistributions == 0:
            return
        over = max_epochs % self.redistributions
        choices = [str(n) for n in (max_epochs - over, max_epochs - over + self.redistributions) if n]
        ending = "the mean of the circulating models" if self.evaluate == "virtual" else "the last aggregate"
        rank_zero_warn(
            f"`max_epochs={max_epochs}` is not a multiple of `redistributions={self.redistributions}`: {over} of the "
            f"rounds come after the last aggregation, and the final model is {ending}. An epoch is one inner round "
            f"(the paper has T x S of them); give max_epochs={' or '.join(choices)} for whole cycles."
        )
