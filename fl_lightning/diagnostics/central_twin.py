"""A centrally trained twin of the federated model, and the distance between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from fl_lightning.clients.training import LocalTraining
from fl_lightning.diagnostics.observer import RoundObserver, aggregation_of, loop_of
from fl_lightning.seeding import Stream, seed_global_generators, torch_generator


def relative_distance(federated: Tensor, central: Tensor) -> float:
    """Return ``|w_FL - w_C| / |w_C|`` (DC; eq. (56)), both of shape ``(d,)``; infinite if ``w_C`` is 0."""
    distance = (federated.double() - central.double()).norm()
    length = central.double().norm()
    return float(distance / length) if length > 0 else math.inf


class CentralTwin(RoundObserver):
    """Logs ``fed/central_distance``, the relative distance to a centrally trained twin (Xue et al. 2021; DC).

    The twin starts from the same weights. In each round it trains on the union of the data of the round's clients,
    shuffled, with their batch size, epochs (or steps), learning rates and clipping, from its own weights. That is as
    much work again as the clients': a fit takes twice as long. It is compared with the model that the user sees, so
    with RADFed also with the virtual mean between two aggregations. Buffers do not count. Resumed fits go on with it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start without a twin."""
        self._twin: Tensor | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start from the module's weights, unless a checkpoint had the twin's."""
        vector = loop_of(trainer).training.vector
        if self._twin is None:
            self._twin = vector.read()
        self._twin = self._twin.to(vector.device)

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Train the twin on the data of the round's clients and compare."""
        assert self._twin is not None
        training = loop_of(trainer).training
        clients = aggregation_of(trainer, self).algorithm.report.reported
        federated = training.vector.read()
        if clients:
            self._twin = _trained(training, self._twin, sorted(clients))
        layout = training.vector.layout
        # Buffers do not count.
        parameters, _ = layout.split(federated)
        parameters_of_twin, _ = layout.split(self._twin)
        self.values = {"fed/central_distance": relative_distance(parameters, parameters_of_twin)}

    def state_dict(self) -> dict[str, Any]:
        """Return the twin's weights."""
        return {"twin": self._twin}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the twin's weights of a checkpoint."""
        self._twin = state_dict["twin"]


def _trained(training: LocalTraining, model: Tensor, clients: Sequence[int]) -> Tensor:
    """Return a model, shape ``(size,)``, trained on the union of the clients' samples as long as a client trains.

    The module's weights are as before, and nothing is logged.
    """
    vector = training.vector
    held = vector.read()
    vector.write(model)
    seed = training.settings.run_seed
    round_index = training.trainer.current_epoch
    seed_global_generators(seed, Stream.TWIN, round_index)
    order = torch_generator(seed, Stream.TWIN, round_index, 1)
    training.quiet.train(training.batches.pooled(clients, order))
    trained = vector.read()
    vector.write(held)
    return trained
