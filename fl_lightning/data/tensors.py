"""Federates tensors that the user already has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from fl_lightning.arguments import got, is_sequence
from fl_lightning.data.datamodule import FederatedDataModule, Stage
from fl_lightning.data.federated_split import GLOBAL, FederatedSplit
from fl_lightning.data.missing import Imputation
from fl_lightning.data.source import Source
from fl_lightning.data.standardize import Standardization
from fl_lightning.partitioners import Partition

Tensors = tuple[Tensor, ...]


class TensorDataModule(FederatedDataModule):
    """Federates tensors: one tuple of tensors, as ``(x, y)``, per client. They are not copied.

    Args:
        clients: The training clients' tensors; a client's have the same first dimension n_k.
        val: The validation set, or one per client, of which the one at position k belongs to client k.
        test: The test set, in the same manner.
        batch_size: Samples of a training batch, B; ``None`` takes all of a client's samples at once (B = infinity).
        shuffle: Whether training samples are drawn in a new order each epoch; if not, batches are views of ``clients``.
        eval_batch_size: Samples of a validation or test batch.
        standardize: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.
        impute: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.

    Raises:
        ValueError: If there are no clients, or a client has no samples or tensors of unequal first dimensions.
        TypeError: If anything other than tensors is given.
    """

    _hidden = ("split",)

    def __init__(
        self,
        clients: Sequence[Tensors],
        val: Tensors | Sequence[Tensors] | None = None,
        test: Tensors | Sequence[Tensors] | None = None,
        batch_size: int | None = 32,
        shuffle: bool = True,
        eval_batch_size: int = 256,
        standardize: Standardization | None = None,
        impute: Imputation | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            shuffle=shuffle,
            eval_batch_size=eval_batch_size,
            standardize=standardize,
            impute=impute,
        )
        if not is_sequence(clients):
            raise TypeError(f"`clients` must be a list with one tuple of tensors per client, got {got(clients)}.")
        if len(clients) == 0:
            raise ValueError("`clients` is empty; give one tuple of tensors per client, as [(x, y), ...].")
        self._sets: dict[Stage, dict[int, TensorDataset]] = {
            "train": {client: _dataset(f"clients[{client}]", tensors) for client, tensors in enumerate(clients)},
            "val": _evaluation("val", val),
            "test": _evaluation("test", test),
        }

    def _facts(self) -> list[str]:
        train = self._sets["train"].values()
        return [f"{len(train)} client{'s' * (len(train) != 1)}", f"{sum(map(len, train))} samples"]

    def load(self) -> Source:
        """Return all clients' tensors, one after the other."""
        sets = [dataset for stage in self._sets.values() for dataset in stage.values()]
        return Source(ConcatDataset(sets), _labels([dataset.tensors[-1] for dataset in sets]))

    def federate(self, source: Source) -> FederatedSplit:
        """Give each client its stretch of the source."""
        ends = np.cumsum([len(dataset) for stage in self._sets.values() for dataset in stage.values()])
        stretches = iter(np.split(np.arange(ends[-1]), ends[:-1]))
        train, val, test = ({client: next(stretches) for client in stage} for stage in self._sets.values())
        return FederatedSplit(train, val, test, Partition(tuple(train.values())))

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training samples of the client at position ``client``, 0 to K-1."""
        return self._sets["train"][client] if self._unchanged else super().client_dataset(client)

    def pooled_dataset(self, clients: Sequence[int]) -> Dataset[Any]:
        """Return the training samples of the clients at these positions together."""
        if not self._unchanged:
            return super().pooled_dataset(clients)
        sets = [self._sets["train"][client].tensors for client in clients]
        return TensorDataset(*(torch.cat(tensors) for tensors in zip(*sets, strict=True)))

    def _pooled(self, stage: Stage) -> Dataset[Any]:
        if not self._unchanged:
            return super()._pooled(stage)
        sets = list(self._sets[stage].values())
        return sets[0] if len(sets) == 1 else ConcatDataset(sets)

    def _tensors_of(self, source: Source) -> tuple[Tensor, ...]:
        if not isinstance(source.dataset, ConcatDataset):
            return super()._tensors_of(source)
        sets = cast("list[TensorDataset]", source.dataset.datasets)
        return tuple(torch.cat(tensors) for tensors in zip(*(dataset.tensors for dataset in sets), strict=True))

    @property
    def _unchanged(self) -> bool:
        """Whether samples are served from the user's own tensors."""
        return isinstance(self._dataset, ConcatDataset)


def _evaluation(name: str, given: Tensors | Sequence[Tensors] | None) -> dict[int, TensorDataset]:
    """Return the sets by client."""
    if given is None:
        return {}
    if not is_sequence(given):
        raise TypeError(f"`{name}` must be a tuple of tensors, as (x, y), or a list of such, got {got(given)}.")
    if len(given) > 0 and isinstance(given[0], Tensor):
        return {GLOBAL: _dataset(name, given)}
    return {client: _dataset(f"{name}[{client}]", tensors) for client, tensors in enumerate(given)}


def _dataset(name: str, tensors: Any) -> TensorDataset:
    if not isinstance(tensors, (tuple, list)) or not tensors or not all(isinstance(t, Tensor) for t in tensors):
        kinds = [type(t).__name__ for t in tensors] if isinstance(tensors, (tuple, list)) else type(tensors).__name__
        hint = " For a single client give [(x, y)]." if isinstance(tensors, Tensor) else ""
        raise TypeError(
            f"`{name}` must be a tuple of tensors, as (x, y), got {kinds}. Convert arrays with torch.as_tensor.{hint}"
        )
    lengths = [len(tensor) if tensor.dim() else 0 for tensor in tensors]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"The tensors of `{name}` must have the same first dimension, one entry per sample, got {lengths}."
        )
    if lengths[0] == 0:
        raise ValueError(f"`{name}` has no samples; leave it out.")
    return TensorDataset(*tensors)


def _labels(targets: list[Tensor]) -> np.ndarray | None:
    """Return the targets as class labels if they are whole numbers, one per sample."""
    if any(target.dim() != 1 or target.is_floating_point() or target.is_complex() for target in targets):
        return None
    labels: np.ndarray = torch.cat(targets).long().cpu().numpy()
    return labels
