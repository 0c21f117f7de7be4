"""The distance between the clients of a round, and the distance that they moved."""

from __future__ import annotations

import math
from itertools import chain
from typing import Literal

import lightning.pytorch as pl
import torch
from torch import Tensor

from fl_lightning.diagnostics.observer import RoundObserver, loop_of
from fl_lightning.parts.messages import ClientResult
from fl_lightning.settings import check_arguments


def pairwise_divergence(vectors: Tensor) -> float:
    """Return the mean of ``1 - cos`` over all pairs of rows (DL; eq. (57)), from one Gram matrix.

    Equations are numbered as in ``docs/references.md``.

    Args:
        vectors: Shape ``(m, d)``.

    Returns:
        A number in [0, 2]; a pair with a vector of length 0 is left out, NaN if no pair remains.
    """
    gram = vectors.double() @ vectors.double().T
    norms = gram.diagonal().sqrt()
    has_length = norms > 0
    gram = gram[has_length][:, has_length]
    norms = norms[has_length]
    first, second = torch.triu_indices(len(norms), len(norms), offset=1)
    cosines = gram[first, second] / (norms[first] * norms[second])
    return float((1 - cosines).mean())


class LocalDivergence(RoundObserver):
    """Logs ``fed/divergence``, the mean pairwise cosine divergence of a round's local models (Xue et al. 2021; DL).

    Keeps the round's m local models in memory; with several processes all of them are gathered.

    Args:
        of: ``"weights"`` compares the models' parameters, ``"updates"`` what clients added to the model they received.

    Raises:
        ValueError: If ``of`` is unknown.
    """

    #: The parameters, or updates, of the round's clients on this process.
    _vectors: list[Tensor]

    def __init__(self, of: Literal["weights", "updates"] = "weights") -> None:
        self.of = of
        check_arguments(self)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the last round."""
        self._vectors = []
        self.values = {}

    def on_client_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, result: ClientResult) -> None:
        """Keep the client's parameters, or its update."""
        vector = result.parameters if self.of == "weights" else result.delta
        if bool(vector.isfinite().all()):
            self._vectors.append(vector)

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the round's clients."""
        vectors = self._vectors
        if trainer.world_size > 1:
            vectors = [vector.cpu() for vector in vectors]
        vectors = list(chain.from_iterable(loop_of(trainer).gather_objects(vectors)))
        if not vectors:
            return
        divergence = pairwise_divergence(torch.stack(vectors))
        if not math.isnan(divergence):
            self.values = {"fed/divergence": divergence}


class UpdateNorms(RoundObserver):
    """Logs the mean, smallest and largest length of a round's updates ``w_k - w'`` (``fed/update_norm``, ...).

    ``w'`` is the model that the client received; buffers do not count.
    """

    #: The lengths of the round's updates on this process.
    _norms: list[float]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the last round."""
        self._norms = []
        self.values = {}

    def on_client_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, result: ClientResult) -> None:
        """Measure the client's update."""
        self._norms.append(float(result.delta.double().norm()))

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Summarise the round's updates; those with NaN or infinite values are left out."""
        gathered = chain.from_iterable(loop_of(trainer).gather_objects(self._norms))
        norms = torch.tensor(list(gathered), dtype=torch.float64)
        norms = norms[norms.isfinite()]
        if len(norms):
            self.values = {
                "fed/update_norm": float(norms.mean()),
                "fed/update_norm_min": float(norms.min()),
                "fed/update_norm_max": float(norms.max()),
            }
