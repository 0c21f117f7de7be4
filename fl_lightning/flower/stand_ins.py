"""Stand-ins at a site for the server and for the other clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from fl_lightning._lightning.logs.client_log import LoggedMean, logged_means
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning._lightning.loops.round_loop import RoundLoop
from fl_lightning.data.federated_split import Stage
from fl_lightning.data.samples import FederatedSamples
from fl_lightning.flower.orders import Order
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Term
from fl_lightning.parts.samplers.base import ClientSampler, ScoredAt


class SiteTrainer(pl.Trainer):
    """Trains one round of one client.

    Some numbers of a Trainer count what all clients do, one after the other. A site does not know them, and a loss that
    read the site's own would differ from the simulation's. So they raise an error until the round is done.
    """

    @property
    @override
    def global_step(self) -> int:
        self._check_known("global_step")
        return super().global_step

    @property
    @override
    def num_training_batches(self) -> int | float:
        self._check_known("num_training_batches")
        return super().num_training_batches

    @property
    @override
    def estimated_stepping_batches(self) -> int | float:
        self._check_known("estimated_stepping_batches")
        return super().estimated_stepping_batches

    def _check_known(self, name: str) -> None:
        """Raise ``RuntimeError`` inside of a round."""
        if isinstance(self.fit_loop, RoundLoop) and self.fit_loop.in_round:
            raise RuntimeError(
                f"`{name}` belongs to all clients together, and a client that is another machine does not know it. "
                "Read `current_epoch` (the round), `trainer.max_epochs` or `batch_idx` (of this client) instead."
            )


class RoundEnd(pl.Callback):
    """Ends the site's fit with its first round, and notes what that has logged and counted.

    Attributes:
        logged: Means that ``training_step`` logged.
        batches: Batches after which a step was made.
        steps: Optimizer steps.
    """

    logged: Sequence[LoggedMean] = ()
    batches = 0
    steps = 0

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # `max_epochs` is the server's, which a loss may read.
        trainer.should_stop = True
        self.logged = logged_means(trainer)
        loop = trainer.fit_loop.epoch_loop
        assert isinstance(loop, ClientLoop)
        self.batches, self.steps = loop.local_counts()


class Outbox(Exchange):
    """The last exchange: it takes the client's result as it leaves the others; the server merges it elsewhere.

    Attributes:
        result: The result; ``None`` if the client has none that is valid.
    """

    result: ClientResult | None = None

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Take the result."""
        self.result = result
        return result


class GivenTerm(LocalObjective):
    """Adds the terms that the server has computed.

    Args:
        order: What the server asks for.
    """

    def __init__(self, order: Order) -> None:
        self._order = order

    @override
    def correction(self, client: LocalClient) -> Term:
        """Return the terms."""
        linear = self._order.arrays.get("linear")
        given = None if linear is None else torch.from_numpy(linear).to(client.start.device)
        return Term(self._order.pull, given, self._order.weight_decay)


class ThisClient(ClientSampler):
    """Draws the one client of the site, or scores it and draws nobody.

    Args:
        order: What the server asks for.
        sampler: The algorithm's, which says what a score is.

    Attributes:
        scores: The client's score, if it was asked for.
    """

    def __init__(self, order: Order, sampler: ClientSampler) -> None:
        self._client = order.client
        self._is_look = order.is_look
        self._sampler = sampler
        self.scores: tuple[float, ...] = ()

    @override
    def cohort_size(self, num_clients: int) -> int:
        """Return 1."""
        return 1

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the client, if it is to train."""
        return np.array([] if self._is_look else [self._client], dtype=np.int64)

    @override
    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Return the client, if it is to be scored alone."""
        return [self._client] if self._is_look else []

    @override
    def score(self, client: LocalClient) -> float:
        """Return the score that the algorithm's sampler gives."""
        return self._sampler.score(client)

    @override
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Take the client's score, if there is one: before the draw, or at the round's end."""
        self.scores += tuple(map(float, scores.values()))

    @property
    @override
    def sends_scores(self) -> bool:
        """Whether the algorithm's sampler has clients send scores."""
        return self._sampler.sends_scores

    @property
    @override
    def scored_at(self) -> ScoredAt:
        """Where the algorithm's sampler has clients scored."""
        return self._sampler.scored_at


class SamplesOfSite(FederatedSamples):
    """The samples of a site, with the client's number in the federation.

    Of the other clients the site knows only how many samples they have together, so it takes them for about equal.

    Args:
        own: The site's samples, which are those of one client.
        order: What the server asks for.
    """

    def __init__(self, own: FederatedSamples, order: Order) -> None:
        super().__init__(own.source, own.split)
        self._own = own
        self._client = order.client
        others = order.num_clients - 1
        rest = order.all_samples - order.samples
        sizes = [rest // others + (place < rest % others) for place in range(others)]
        sizes.insert(order.client, order.samples)
        self.client_ids = list(range(order.num_clients))
        self.client_sizes = np.array(sizes, dtype=np.int64)

    @override
    def dataset_of(self, stage: Stage, positions: Sequence[int] | None = None) -> Dataset[Any]:
        if positions is None:
            return self._own.dataset_of(stage)
        if list(positions) != [self._client]:
            raise RuntimeError(f"The site has the samples of client {self._client} alone, asked for {list(positions)}.")
        return self._own.dataset_of(stage, [0])

    @property
    @override
    def served(self) -> Dataset[Any]:
        return self._own.served

    @property
    @override
    def have_features(self) -> bool:
        return self._own.have_features

    @override
    def put_features(self, features: Tensor) -> None:
        self._own.put_features(features)

    @override
    def remove_features(self) -> None:
        self._own.remove_features()
