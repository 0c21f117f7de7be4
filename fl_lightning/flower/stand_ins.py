"""Stand-ins at a site for the server and for the other clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from fl_lightning._lightning.logs.client_log import LoggedMean, logged_means
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning.data.federated_split import Stage
from fl_lightning.data.samples import FederatedSamples
from fl_lightning.flower.orders import Order
from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Term
from fl_lightning.parts.samplers.base import ClientSampler


class RoundEnd(pl.Callback):
    """Notes what the round has logged and counted.

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
        self.logged = logged_means(trainer)
        loop = trainer.fit_loop.epoch_loop
        assert isinstance(loop, ClientLoop)
        self.batches, self.steps = loop.local_counts()


class Outbox(Aggregation):
    """Takes the client's result as it leaves the exchanges; the server merges it elsewhere.

    Args:
        needs_summed_lr: Whether the server needs the sum of the steps' learning rates.

    Attributes:
        result: The result; ``None`` if the client has none that is valid.
    """

    def __init__(self, needs_summed_lr: bool) -> None:
        self.needs_summed_lr = needs_summed_lr
        self.result: ClientResult | None = None

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> None:
        """Take the one result, and let the model stay."""
        self.result = results[0]


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
    """Draws the one client of the site.

    Args:
        client: Its number.
    """

    def __init__(self, client: int) -> None:
        self._client = client

    @override
    def cohort_size(self, num_clients: int) -> int:
        """Return 1."""
        return 1

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the client."""
        return np.array([self._client])


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
