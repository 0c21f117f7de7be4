"""Federates tensors that the user already has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fl_lightning.arguments import got, is_sequence
from fl_lightning.data.client_datasets import ClientDatasetsModule
from fl_lightning.data.federated_split import GLOBAL, Split
from fl_lightning.data.loading import MoreLoadingOptions
from fl_lightning.data.missing import Imputation
from fl_lightning.data.standardize import Standardization

Tensors = tuple[Tensor, ...]


class TensorDataModule(ClientDatasetsModule):
    """Federates tensors: one tuple of tensors, as ``(x, y)``, per client. They are not copied.

    Args:
        clients: The training clients' tensors; a client's have the same first dimension n_k.
        val: The validation set, or a list with one set for each client: the set at position k belongs to client k, and
            ``None`` stands for a client without one.
        test: The test set, or a list of test sets, as for ``val``.
        batch_size: Samples of a training batch, B; ``None`` takes all of a client's samples at once (B = infinity).
        shuffle: Whether training samples are drawn in a new order each epoch; if not, batches are views of ``clients``.
        eval_batch_size: Samples of a validation or test batch.
        standardize: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.
        impute: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.
        split: Takes the validation and test sets from ``clients``, instead of ``val`` and ``test``; copies the tensors.
        **options: ``drop_last``, ``sampler``, ``train_transform``, ``eval_transform`` and ``num_workers`` of
            :class:`FederatedDataModule`.

    Raises:
        ValueError: If there are no clients, or a client has no samples or tensors of unequal first dimensions; if a
            split is given together with ``val`` or ``test``.
        TypeError: If anything other than tensors is given.
    """

    def __init__(
        self,
        clients: Sequence[Tensors],
        val: Tensors | Sequence[Tensors | None] | None = None,
        test: Tensors | Sequence[Tensors | None] | None = None,
        batch_size: int | None = 32,
        shuffle: bool = True,
        eval_batch_size: int = 256,
        standardize: Standardization | None = None,
        impute: Imputation | None = None,
        *,
        split: Split | None = None,
        **options: Unpack[MoreLoadingOptions],
    ) -> None:
        super().__init__(
            clients,  # type: ignore[arg-type]  # data sets are made of them below
            val,  # type: ignore[arg-type]
            test,  # type: ignore[arg-type]
            split=split,
            standardize=standardize,
            impute=impute,
            batch_size=batch_size,
            shuffle=shuffle,
            eval_batch_size=eval_batch_size,
            **options,
        )

    def _train_sets(self, given: Any) -> dict[int, Dataset[Any]]:
        if not is_sequence(given):
            hint = "To distribute one data set: datamodules.TorchDatasetDataModule(TensorDataset(x, y), partitioner)."
            if isinstance(given, Mapping):
                hint = "Give list(clients.values())."
            raise TypeError(f"`clients` must be a list with one tuple of tensors per client, got {got(given)}. {hint}")
        if len(given) == 0:
            raise ValueError("`clients` is empty; give one tuple of tensors per client, as [(x, y), ...].")
        return {client: _dataset(f"clients[{client}]", tensors) for client, tensors in enumerate(given)}

    def _evaluation_sets(self, name: str, given: Any) -> dict[int, Dataset[Any]]:
        if given is None:
            return {}
        if not is_sequence(given):
            raise TypeError(f"`{name}` must be a tuple of tensors, as (x, y), or a list of such, got {got(given)}.")
        if len(given) > 0 and isinstance(given[0], Tensor):
            return {GLOBAL: _dataset(name, given)}
        present = {client: tensors for client, tensors in enumerate(given) if tensors is not None}
        return {client: _dataset(f"{name}[{client}]", tensors) for client, tensors in present.items()}


def _dataset(name: str, tensors: Any) -> TensorDataset:
    if not isinstance(tensors, (tuple, list)) or not tensors or not all(isinstance(t, Tensor) for t in tensors):
        kinds = [type(t).__name__ for t in tensors] if isinstance(tensors, (tuple, list)) else type(tensors).__name__
        hint = " For a single client give [(x, y)]." if isinstance(tensors, Tensor) else ""
        hint = " ClientDatasetsModule takes data sets." if isinstance(tensors, Dataset) else hint
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
