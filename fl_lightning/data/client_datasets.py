"""Federates data that the user already has, one data set or one tuple of tensors for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from fl_lightning.data.batches import Collate, length, tensors_of
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Split, Stage
from fl_lightning.data.inputs import Imputation, Standardization
from fl_lightning.data.samples import FederatedSamples
from fl_lightning.data.source import Source, as_dataset
from fl_lightning.data.targets import find_targets
from fl_lightning.partitioners import NaturalPartitioner, Partition
from fl_lightning.settings import Count, check_arguments, is_sequence
from fl_lightning.words import quantity, short_repr

Tensors = tuple[Tensor, ...]


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
        **options: ``batch_size``, ``eval_batch_size``, ``shuffle``, ``drop_last``, ``sampler``, ``target``,
            ``train_transform``, ``eval_transform``, ``changes`` and ``num_workers`` of :class:`FederatedDataModule`.

    Attributes:
        split: The split; ``None`` where ``val`` and ``test`` stand for themselves.
        splits_clients: Whether a split takes the validation and test sets from ``clients``.

    Raises:
        ValueError: If there are no clients, a data set is empty, or a split is given together with ``val`` or ``test``.
        TypeError: If something is not a map-style data set, or there is a ``partitioner``.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> clients = [TensorDataset(torch.randn(n, 3), torch.arange(n) % 2) for n in (4, 6)]
        >>> data = ClientDatasetsModule(clients, val=clients[0], batch_size=4)
        >>> data.setup()
        >>> data.describe_clients()
        '2 clients train (10 samples), the server validates on 4 samples and none tests'
    """

    stored_as: ClassVar[Mapping[str, str]] = {"class_names": "_class_names"}
    not_taken: ClassVar[tuple[str, ...]] = ("partitioner", "feature_noise")

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
        **options: Any,
    ) -> None:
        super().__init__(None, split=split, standardize=standardize, impute=impute, **options)
        are_sets_given = val is not None or test is not None
        if split is not None and are_sets_given:
            raise ValueError(
                f"Give `split` or `val` and `test`, not both; got {short_repr(split)}. A split takes them from "
                "`clients`."
            )
        self.splits_clients = split is not None
        if split is None:
            # The base class has put its default there.
            self.split = None  # type: ignore[assignment]
        check_arguments(self, {"collate_fn": collate_fn, "class_names": class_names})
        self.collate_fn = collate_fn
        self._class_names = class_names
        self._sets: dict[Stage, dict[int, Dataset[Any]]] = {
            "train": self._train_sets(clients),
            "val": self._evaluation_sets("val", val),
            "test": self._evaluation_sets("test", test),
        }

    # ---- arguments ----

    def _train_sets(self, given: Any) -> dict[int, Dataset[Any]]:
        if not is_sequence(given) or isinstance(given, Dataset) or len(given) == 0:
            raise TypeError(
                f"`clients` must be a list with a data set for each client, at least one, got {short_repr(given)}. To "
                "distribute one data set: datamodules.TorchDatasetDataModule(dataset, partitioner)."
            )
        return self._as_datasets("clients", dict(enumerate(given)))

    def _evaluation_sets(self, name: str, given: Any) -> dict[int, Dataset[Any]]:
        if given is None:
            return {}
        is_list = isinstance(given, (list, tuple))
        is_tuple_of_tensors = is_list and len(given) > 0 and isinstance(given[0], Tensor)
        if not is_list or is_tuple_of_tensors:
            return {GLOBAL: self._as_dataset(name, given)}
        present = {client: each for client, each in enumerate(given) if each is not None}
        return self._as_datasets(name, present)

    def _as_datasets(self, name: str, given: Mapping[int, Any]) -> dict[int, Dataset[Any]]:
        return {client: self._as_dataset(f"{name}[{client}]", each) for client, each in given.items()}

    def _as_dataset(self, name: str, given: Any) -> Dataset[Any]:
        return as_dataset(name, given)

    # ---- samples ----

    def _facts(self) -> list[str]:
        train = self._sets["train"].values()
        samples = sum(length(dataset) for dataset in train)
        return [quantity(len(train), "client"), quantity(samples, "sample")]

    def load(self) -> Source:
        """Return all clients' samples, one after the other."""
        whole: Dataset[Any] = ConcatDataset(self._all_sets())
        targets = find_targets(whole, self.outputs_and_targets)
        tensors = tensors_of(whole) if self.splits_clients else None
        if tensors is not None:
            whole = TensorDataset(*tensors)
        return Source(whole, targets, class_names=self._class_names, collate_fn=self.collate_fn)

    def federate(self, source: Source) -> FederatedSplit:
        """Give each client its part of the source, or distribute the source by the split."""
        lengths = [length(dataset) for dataset in self._all_sets()]
        if not self.splits_clients:
            return self._as_given(lengths)
        # The partitioner gets clients in place of labels: a split may hand over some of the samples, and none of some
        # client.
        clients = np.repeat(np.arange(len(lengths)), lengths)
        return self.split.apply(clients, NaturalPartitioner())

    def _as_given(self, lengths: Sequence[int]) -> FederatedSplit:
        """Return the split by which each set is the one that was given.

        Args:
            lengths: Number of samples of each set, in the order in which the source has them.
        """
        samples = np.arange(sum(lengths))
        samples_of_sets = iter(np.split(samples, np.cumsum(lengths)[:-1]))
        train = {client: next(samples_of_sets) for client in self._sets["train"]}
        val = {client: next(samples_of_sets) for client in self._sets["val"]}
        test = {client: next(samples_of_sets) for client in self._sets["test"]}
        # The id of a global set, -1, is none of a client.
        last_client = max([*train, *val, *test])
        held = []
        for client in range(last_client + 1):
            of_client = [samples[:0]]
            for stage in (train, val, test):
                if client in stage:
                    of_client.append(stage[client])
            held.append(np.concatenate(of_client))
        return FederatedSplit(train, val, test, Partition(tuple(held)))

    def _all_sets(self) -> list[Dataset[Any]]:
        sets: list[Dataset[Any]] = []
        for stage in self._sets.values():
            sets.extend(stage.values())
        return sets

    def _make_samples(self, source: Source, split: FederatedSplit) -> FederatedSamples:
        if self.splits_clients:
            return FederatedSamples(source, split)
        return _GivenSets(source, split, self._sets)


class _GivenSets(FederatedSamples):
    """Samples of data sets that the user gave for each client and stage; none is copied.

    Args:
        source: All samples, one set after the other.
        split: The samples of each client.
        sets: The data set of each client in each stage.
    """

    def __init__(self, source: Source, split: FederatedSplit, sets: Mapping[Stage, Mapping[int, Dataset[Any]]]) -> None:
        super().__init__(source, split)
        self._sets = sets

    def dataset_of(self, stage: Stage, positions: Sequence[int] | None = None) -> Dataset[Any]:
        # Prepared inputs, or features, are served in place of the user's.
        if not isinstance(self.served, ConcatDataset) or (stage == "train" and self.changed):
            return super().dataset_of(stage, positions)
        sets = self._sets[stage]
        if positions is None:
            positions = list(sets)
            copies = False
        else:
            # The rows of some clients are copied, so that batches are gathered at once.
            copies = True
        chosen = [sets[position] for position in positions]
        if len(chosen) == 1:
            return chosen[0]
        whole: Dataset[Any] = ConcatDataset(chosen)
        tensors = tensors_of(whole) if copies else None
        return whole if tensors is None else TensorDataset(*tensors)


class TensorDataModule(ClientDatasetsModule):
    """Federates tensors: one tuple of tensors, as ``(x, y)``, per client. They are not copied.

    Args:
        clients: The training clients' tensors; a client's have the same first dimension n_k.
        val: The validation set, or a list with one set for each client: the set at position k belongs to client k, and
            ``None`` stands for a client without one.
        test: The test set, or a list of test sets, as for ``val``.
        batch_size: Samples of a training batch, B; ``None`` takes all of a client's samples at once (B = infinity).
        shuffle: Whether training samples are drawn in a new order each epoch; if not, batches are views of ``clients``.
        eval_batch_size: Samples of a validation or test batch; ``None`` as in :class:`FederatedDataModule`.
        standardize: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.
        impute: ``"global"`` or ``"local"``, as in :class:`FederatedDataModule`; copies the inputs.
        split: Takes the validation and test sets from ``clients``, instead of ``val`` and ``test``; copies the tensors.
        **options: ``drop_last``, ``sampler``, ``target``, ``train_transform``, ``eval_transform``, ``changes`` and
            ``num_workers`` of :class:`FederatedDataModule`.

    Raises:
        ValueError: If there are no clients, or a client has no samples or tensors of unequal first dimensions; if a
            split is given together with ``val`` or ``test``.
        TypeError: If anything other than tensors is given.

    Example:
        >>> import torch
        >>> clients = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (4, 6, 8)]
        >>> data = TensorDataModule(clients, test=clients, batch_size=4)
        >>> data.setup()
        >>> data.client_sizes.tolist()
        [4, 6, 8]
        >>> [len(y) for x, y in data.client_batches(1, generator=torch.Generator())]
        [4, 2]
    """

    not_taken = (*ClientDatasetsModule.not_taken, "collate_fn", "class_names")

    def __init__(
        self,
        clients: Sequence[Tensors],
        val: Tensors | Sequence[Tensors | None] | None = None,
        test: Tensors | Sequence[Tensors | None] | None = None,
        batch_size: Count | None = 32,
        shuffle: bool = True,
        eval_batch_size: Count | None = None,
        standardize: Standardization | None = None,
        impute: Imputation | None = None,
        *,
        split: Split | None = None,
        **options: Any,
    ) -> None:
        # `_as_dataset` makes data sets of the tensors.
        super().__init__(
            clients,  # type: ignore[arg-type]
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

    def _as_dataset(self, name: str, given: Any) -> Dataset[Any]:
        is_list = isinstance(given, (tuple, list)) and len(given) > 0
        if not is_list or not all(isinstance(each, Tensor) for each in given):
            raise TypeError(
                f"`{name}` must be a tuple of tensors, as (x, y), got {short_repr(given)}. Convert arrays with "
                "torch.as_tensor; ClientDatasetsModule takes data sets."
            )
        return as_dataset(name, tuple(given))
