"""Federates data sets that the user already has, one for each client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning.arguments import check_callable, check_texts, got, is_sequence
from fl_lightning.data.arrays import STREAM_HINT, is_table, refuse_arrays
from fl_lightning.data.batches import Collate, row_kinds, tensors_of
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Split
from fl_lightning.data.loading import LoadingOptions, Stage
from fl_lightning.data.missing import Imputation
from fl_lightning.data.source import Source
from fl_lightning.data.standardize import Standardization
from fl_lightning.data.targets import find_targets
from fl_lightning.partitioners import NaturalPartitioner, Partition
from fl_lightning.representation import counted


class ClientDatasetsModule(FederatedDataModule):
    """Federates data sets, one for each client. They are neither copied nor read before a client trains.

    Args:
        clients: The training clients' data sets, of any kind with ``__len__`` and ``__getitem__``; ``TensorDataset``
            and ``Subset`` of one are fastest.
        val: The validation set, or a list with one set for each client: the set at position k belongs to client k, and
            ``None`` stands for a client without one.
        test: The test set, or a list of test sets, as for ``val``.
        split: Takes the validation and test sets from ``clients``, instead of ``val`` and ``test``: ``ClientSplit``
            takes whole clients, ``WithinClientSplit`` a part of each.
        collate_fn: Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``.
        class_names: Name of each class, class 0 first.
        standardize: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.
        impute: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.
        **options: ``batch_size``, ``eval_batch_size``, ``shuffle``, ``drop_last``, ``sampler``, ``train_transform``,
            ``eval_transform`` and ``num_workers`` of :class:`FederatedDataModule`.

    Attributes:
        split: The split; ``None`` where ``val`` and ``test`` stand for themselves.
        splits_clients: Whether a split takes the validation and test sets from ``clients``.

    Raises:
        ValueError: If there are no clients, a data set is empty, or a split is given together with ``val`` or ``test``.
        TypeError: If something is no map-style data set, or there is a ``partitioner``.
    """

    stored_as: ClassVar[Mapping[str, str]] = {"class_names": "_class_names"}

    def __init__(
        self,
        clients: Sequence[Dataset[Any]],
        val: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        test: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        *,
        split: Split | None = None,
        collate_fn: Collate | None = None,
        class_names: Sequence[str] | None = None,
        standardize: Standardization | None = None,
        impute: Imputation | None = None,
        **options: Unpack[LoadingOptions],
    ) -> None:
        if "partitioner" in options:  # which the base class has
            raise TypeError(
                f"{type(self).__name__} has no argument `partitioner`: `clients` says which client holds which "
                "samples. To distribute one data set: datamodules.TorchDatasetDataModule(dataset, partitioner)."
            )
        super().__init__(split=split, standardize=standardize, impute=impute, **options)
        if split is not None and not (val is None and test is None):
            raise ValueError(
                f"Give `split` or `val` and `test`, not both; got {got(split)}. A split takes them from `clients`."
            )
        if collate_fn is not None:
            check_callable("collate_fn", collate_fn, "None takes PyTorch's default_collate.")
        if class_names is not None:
            check_texts("class_names", class_names)
        self.splits_clients = split is not None
        if split is None:  # none plays a part, not even the base class's own
            self.split = None  # type: ignore[assignment]
        self._collate_fn, self._class_names = collate_fn, class_names
        self._sets: dict[Stage, dict[int, Dataset[Any]]] = {
            "train": self._train_sets(clients),
            "val": self._evaluation_sets("val", val),
            "test": self._evaluation_sets("test", test),
        }

    def _facts(self) -> list[str]:
        train = self._sets["train"].values()
        return [counted(len(train), "client"), counted(sum(map(_length, train)), "sample")]

    def load(self) -> Source:
        """Return all clients' samples, one after the other."""
        sets = [dataset for stage in self._sets.values() for dataset in stage.values()]
        whole: Dataset[Any] = ConcatDataset(sets)
        if self.splits_clients and (tensors := tensors_of(whole)) is not None:
            whole = TensorDataset(*tensors)
        targets = find_targets(ConcatDataset(sets), self.outputs_and_targets)
        return Source(whole, targets, None, self._class_names, self._collate_fn)

    def federate(self, source: Source) -> FederatedSplit:
        """Give each client its part of the source, or distribute the source by the split."""
        lengths = [_length(dataset) for stage in self._sets.values() for dataset in stage.values()]
        if self.splits_clients:
            # the clients in place of labels: a split may hand over some of the samples, and all of no client's
            return self.split.apply(np.repeat(np.arange(len(lengths)), lengths), NaturalPartitioner())
        ends = np.cumsum(lengths)
        stretches = iter(np.split(np.arange(ends[-1]), ends[:-1]))
        train, val, test = ({client: next(stretches) for client in stage} for stage in self._sets.values())
        number = 1 + max(client for stage in (train, val, test) for client in stage)
        none = np.arange(0)
        parts = [[stage.get(client, none) for stage in (train, val, test)] for client in range(number)]
        return FederatedSplit(train, val, test, Partition(tuple(map(np.concatenate, parts))))

    def _samples(self, stage: Stage, clients: Sequence[int] | None = None) -> Dataset[Any]:
        if not self._unchanged:
            return super()._samples(stage, clients)
        stage = self._set_of(stage)
        sets = self._sets[stage]
        ids = list(sets) if clients is None else clients
        self._check_lengths(stage, ids)
        chosen = [sets[client] for client in ids]
        if len(chosen) == 1:
            return chosen[0]
        whole: Dataset[Any] = ConcatDataset(chosen)
        # rows are copied when some clients are asked for, so that batches are gathered at once
        tensors = None if clients is None else tensors_of(whole)
        return whole if tensors is None else TensorDataset(*tensors)

    def _check_lengths(self, stage: Stage, clients: Iterable[int]) -> None:
        """Raise ``RuntimeError`` if a data set is longer or shorter than it was at the set-up."""
        parts: dict[int, np.ndarray] = getattr(self.federated_split, stage)
        for client in clients:
            before, now = len(parts[client]), _length(self._sets[stage][client])
            if before != now:
                raise RuntimeError(
                    f"{_name(stage, client)} had {counted(before, 'sample')} at the set-up, and has {now:,} now. "
                    "Weights and batches go by the first number. Let the data set hold all samples from the start, and "
                    "draw some of them by `sampler`; for another fit make a new data module."
                )

    def _tensors_of(self, source: Source) -> tuple[Tensor, ...]:
        if not isinstance(source.dataset, ConcatDataset):
            return super()._tensors_of(source)
        tensors = tensors_of(source.dataset)
        if tensors is None:
            raise ValueError(
                "`standardize`, `impute`, `feature_noise`, poisons, replaced inputs and fingerprints need data sets "
                "that are TensorDataset, or Subset of one, with samples of the same shapes and types, but "
                f"{self._why_not_joined()}. Give such data sets, or do it in `train_transform` and `eval_transform`."
            )
        return tensors

    def _why_not_joined(self) -> str:
        """Return which data sets cannot be joined to tensors, and why."""
        first, kinds = "", None
        for stage, sets in self._sets.items():
            for client, dataset in sets.items():
                name = _name(stage, client)
                tensors = tensors_of(dataset)
                if tensors is None:
                    return f"{name} is a {type(dataset).__name__}"
                if kinds is None:
                    first, kinds = name, row_kinds(tensors)
                own = row_kinds(tensors)
                if own != kinds:
                    return f"those of {first} are {_in_words(kinds)}, and those of {name} {_in_words(own)}"
        raise AssertionError("they can be joined")

    @property
    def _unchanged(self) -> bool:
        """Whether samples are served from the user's own data sets."""
        return not self.splits_clients and isinstance(self._dataset, ConcatDataset)

    # ---- arguments ----

    def _train_sets(self, given: Any) -> dict[int, Dataset[Any]]:
        """Return the sets by client."""
        if not is_sequence(given) or isinstance(given, Dataset):
            hint = " Give list(clients.values())." if isinstance(given, Mapping) else ""
            if isinstance(given, (Dataset, DataLoader)):
                source = "loader.dataset" if isinstance(given, DataLoader) else "dataset"
                hint = f" To distribute one data set: datamodules.TorchDatasetDataModule({source}, partitioner)."
            raise TypeError(f"`clients` must be a list with one data set for each client, got {got(given)}.{hint}")
        if len(given) == 0:
            raise ValueError("`clients` is empty; give one data set for each client, as [dataset_a, dataset_b, ...].")
        return {client: _checked(f"clients[{client}]", dataset) for client, dataset in enumerate(given)}

    def _evaluation_sets(self, name: str, given: Any) -> dict[int, Dataset[Any]]:
        """Return the sets by client."""
        if given is None:
            return {}
        if not isinstance(given, (list, tuple)):
            return {GLOBAL: _checked(name, given)}
        present = {client: dataset for client, dataset in enumerate(given) if dataset is not None}
        return {client: _checked(f"{name}[{client}]", dataset) for client, dataset in present.items()}


def _checked(name: str, given: Any) -> Dataset[Any]:
    """Return a data set that has samples by position."""
    if is_table(given):
        refuse_arrays(name, given)
    is_other = isinstance(given, (str, bytes, Mapping, tuple, type, Tensor, np.ndarray, IterableDataset))
    if is_other or not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
        hint = ""
        if isinstance(given, (tuple, Tensor)):
            hint = " TensorDataModule takes tensors."
        elif isinstance(given, DataLoader):
            hint = " Give the DataLoader's `dataset`; `batch_size` is an argument here."
        elif isinstance(given, IterableDataset):
            hint = STREAM_HINT
        raise TypeError(f"`{name}` must be a data set with __len__ and __getitem__, got {got(given)}.{hint}")
    if len(given) == 0:
        raise ValueError(f"`{name}` has no samples; leave it out.")
    return cast("Dataset[Any]", given)


def _name(stage: Stage, client: int) -> str:
    """Return how a user has given a data set, in backticks."""
    return f"`{'clients' if stage == 'train' else stage}{'' if client == GLOBAL else f'[{client}]'}`"


def _length(dataset: Dataset[Any]) -> int:
    return len(dataset)  # type: ignore[arg-type]


def _in_words(kinds: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return " and ".join(f"{str(dtype).removeprefix('torch.')} of shape {shape}" for shape, dtype in kinds)
