"""Data of many clients as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

import lightning as L
import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from fl_lightning.arguments import check_choice, check_instance, check_not_negative
from fl_lightning.data.batches import Collate
from fl_lightning.data.class_arguments import refuse_classes, refuse_unmade
from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Split, check_split
from fl_lightning.data.loading import ServesBatches, Stage
from fl_lightning.data.missing import Imputation
from fl_lightning.data.order import ClientOrder
from fl_lightning.data.other_lightning import check_lightning
from fl_lightning.data.partition_view import PartitionView
from fl_lightning.data.poisoning import Poison
from fl_lightning.data.preparation import check_returned, check_training_clients, prepare_inputs
from fl_lightning.data.replaced_inputs import ReplacedInputs
from fl_lightning.data.source import Source, labels_for
from fl_lightning.data.splits import ClientSplit, check_test_indices
from fl_lightning.data.standardize import Standardization
from fl_lightning.data.targets import ReadsBatches
from fl_lightning.data.trained_by import KnowsAlgorithm
from fl_lightning.data.transforms import Transform
from fl_lightning.partitioners import Partition
from fl_lightning.partitioners.functions import PartitionFunction, check_partitioner
from fl_lightning.representation import FullSignature, represent


class FederatedDataModule(
    ReadsBatches, ReplacedInputs, PartitionView, ServesBatches, KnowsAlgorithm, L.LightningDataModule
):
    """Reads a data set, distributes it among clients and serves each client's batches.

    A subclass reads its data in :meth:`load`. With an aggregation callback every training client is trained on its own
    batches; without one, ``train_dataloader`` serves all training clients' samples together.

    Args:
        partitioner: Distributes the samples among clients: a partitioner, or any function from labels to a partition or
            to the sample indices of each client.
        batch_size: Samples of a training batch, B; ``None`` takes all of a client's samples at once (B = infinity).
        eval_batch_size: Samples of a validation or test batch.
        split: Which clients or samples train, validate and test; ``ClientSplit()`` if ``None``.
        standardize: ``"global"`` standardises inputs by the samples of all training clients, ``"local"`` each client by
            its own samples. It needs the floating-point inputs of a ``TensorDataset``.
        impute: ``"global"`` fills NaN in the inputs with the feature's mean over the training samples of all clients,
            ``"local"`` with each client's own mean (:func:`~fl_lightning.data.missing.fill_missing`). It needs the
            floating-point inputs of a ``TensorDataset``, shape (N, features).
        feature_noise: Standard deviation of the noise on the last client's inputs, before they are standardised. The
            first client has no noise, and the level grows linearly with the client's number
            (:func:`~fl_lightning.partitioners.add_feature_noise`). Samples without a client stay unchanged. The seed of
            the noise is the partitioner's ``seed``, or 0.
        shuffle: Whether training samples are drawn in a new order each epoch.
        drop_last: Whether a training batch of fewer than B samples is left out. A client with fewer than B samples
            keeps its one batch. A client's weight in an aggregation stays its number of samples.
        sampler: Draws the order of a client's epoch, instead of a shuffle. It is a function of the client's position (0
            to K-1), its training samples and the generator of the epoch. It returns one position for each sample, for
            example as a ``torch.utils.data.WeightedRandomSampler``; positions may repeat. In central training the
            draws of all clients are joined and shuffled.
        train_transform: Changes a training sample's input when it is fetched: the first element of a tuple or list, or
            the whole of any other sample, such as a dict.
        eval_transform: The same for validation and test samples.
        num_workers: Processes that make batches ahead of time, for clients too; 0 makes them in the training process.
            Rows of tensors are always gathered in the training process, which is faster. Processes see the data as they
            are when a round's clients begin to train.

    Raises:
        TypeError: If ``partitioner`` is no function of labels or ``split`` is no split.
        ValueError: If an argument is out of range; at set-up, if there is no partitioner, no training client, or one
            without samples, or the inputs cannot be filled or standardised, for example because one is NaN.
    """

    standardized_features: ClassVar[slice] = slice(None)
    """The features or channels that ``standardize`` and ``feature_noise`` change: all but the categorical ones."""

    __signature__ = FullSignature()
    _poisons: tuple[Poison, ...] = ()

    _hidden: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``repr`` leaves out."""

    def __init__(
        self,
        partitioner: PartitionFunction | None = None,
        *,
        batch_size: int | None = 32,
        eval_batch_size: int = 256,
        split: Split | None = None,
        standardize: Standardization | None = None,
        impute: Imputation | None = None,
        feature_noise: float = 0.0,
        shuffle: bool = True,
        drop_last: bool = False,
        sampler: ClientOrder | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self._set_loading(
            batch_size, eval_batch_size, shuffle, drop_last, sampler, train_transform, eval_transform, num_workers
        )
        if standardize is not None:
            check_choice("standardize", standardize, ("global", "local"), "None leaves inputs as they are.")
        if impute is not None:
            check_choice("impute", impute, ("local", "global"), "None leaves missing values as they are.")
        if partitioner is not None:
            check_partitioner(partitioner)
        if split is not None:
            check_split(split)
        check_not_negative("feature_noise", feature_noise, "It is a standard deviation; 0.0 adds none.")
        self.partitioner = partitioner
        self.split = ClientSplit() if split is None else split
        self.standardize = standardize
        self.impute = impute
        self.feature_noise = feature_noise
        self._federation: tuple[Source, FederatedSplit] | None = None

    def __repr__(self) -> str:
        return represent(self, *self._facts(), always=("batch_size",), leave_out=self._hidden)

    def __str__(self) -> str:
        return repr(self)  # Lightning's has four lines of loaders

    def _facts(self) -> list[str]:
        """Return what ``repr`` says before the arguments."""
        if self._federation is None:
            return []
        source, split = self._federation
        return [f"{len(self._client_ids)} of {split.partition.num_clients} clients train", f"{len(source)} samples"]

    @classmethod
    def from_datasets(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: Lightning's shortcut for central training does not know which client holds which samples."""
        raise TypeError(
            f"`{cls.__name__}.from_datasets` does not know the clients. Use ClientDatasetsModule(clients=[...]) with "
            "one data set for each client."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "trainer":  # a trainer sets it before it looks at anything else
            check_lightning("The trainer", value)
            refuse_classes(value)
            refuse_unmade(self, value)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: all but the trainer."""
        return {**self.__dict__, "trainer": None}

    # ---- methods for subclasses ----

    def load(self) -> Source:
        """Read the data; called once, in every process."""
        raise NotImplementedError(f"{type(self).__name__} must define `load()`, which returns a Source.")

    def federate(self, source: Source) -> FederatedSplit:
        """Distribute the samples among clients, and clients or samples among training, validation and test."""
        if self.partitioner is None:
            raise ValueError(
                f"{type(self).__name__} has no `partitioner`, so it is unknown which client holds which sample. "
                "Give one, such as IIDPartitioner(num_clients=100), or the column of the clients if there is one."
            )
        return self.apply_split(labels_for(self.partitioner, source), self.partitioner, source)

    def apply_split(self, labels: np.ndarray | int, partitioner: PartitionFunction, source: Source) -> FederatedSplit:
        """Apply the split to a source; a test set of its own is the only test set.

        It is set aside before the partition, and belongs to no client. What the split would test on trains, but for
        samples of no client, which are left out. ``test="official"`` and ``pools_test`` leave it all to the split.

        Args:
            labels: The class of each sample, shape (N,), or N.
            partitioner: Distributes the samples that are not set aside among clients, by their labels.
            source: The samples.
        """
        if source.test_indices is None or source.pools_test or getattr(self.split, "test", None) == "official":
            return self.split.apply(labels, partitioner, source.test_indices)
        test = check_test_indices(source.test_indices, len(source))
        rest = np.setdiff1d(np.arange(len(source)), test)
        own = self.split.apply(labels[rest] if isinstance(labels, np.ndarray) else len(rest), partitioner, test[:0])
        clients = sorted({*own.train, *own.test} - {GLOBAL})
        train = {k: rest[np.concatenate([part[k] for part in (own.train, own.test) if k in part])] for k in clients}
        val = {client: rest[indices] for client, indices in own.val.items()}
        partition = Partition(tuple(rest[indices] for indices in own.partition.indices))
        return FederatedSplit(train, val, {GLOBAL: test}, partition)

    @property
    def augmented(self) -> bool:
        """Whether a sample's input may differ from the source's, or from one epoch to the next."""
        return self.train_transform is not None or self.eval_transform is not None

    # ---- set-up ----

    def setup(self, stage: str | None = None) -> None:
        """Read, partition, split and standardise the data; later calls change nothing of that."""
        self._begin_stage(stage)
        if self._federation is not None:
            return
        source = self.load()
        check_returned(self, "load()", source, Source)
        split = self.federate(source)
        check_returned(self, "federate()", split, FederatedSplit)
        check_training_clients(split)
        if self.feature_noise or self.standardize is not None or self.impute is not None:
            x, *rest = self._tensors_of(source)
            source = replace(source, dataset=TensorDataset(self._prepared(x, split), *rest))
        self._federation = self._poisoned(source, split), split
        self._client_ids = list(split.train)
        self._client_sizes = np.array([len(indices) for indices in split.train.values()], dtype=np.int64)

    def poison_with(self, poison: Poison) -> None:
        """Change training samples of some clients on purpose, before the set-up; several poisons in the calls' order.

        Raises:
            TypeError: If ``poison`` is no :class:`~fl_lightning.data.Poison`.
            RuntimeError: If the data are set up already.
        """
        check_instance("poison", poison, Poison, "Give LabelFlipping(...) or Backdoor(...).")
        if self._federation is not None:
            raise RuntimeError("`poison_with` must be called before the data are set up. Call it earlier.")
        self._poisons += (poison,)

    @property
    def poisons(self) -> list[Poison]:
        """The changes of training samples that were asked for, in order."""
        return list(self._poisons)

    def _poisoned(self, source: Source, split: FederatedSplit) -> Source:
        """Return the source with the chosen clients' samples changed."""
        if not self._poisons:
            return source
        x, *others = [tensor.clone() for tensor in self._tensors_of(source)]
        y = self.outputs_and_targets([x, *others], None)[1]
        for poison in self._poisons:
            x, y[:] = poison.apply(x, y, list(split.train.values()), self._served, self._stored)
        return replace(source, dataset=TensorDataset(x, *others))

    def _served(self, x: Tensor) -> Tensor:
        """Return stored inputs as a module gets them in an evaluation."""
        return x

    def _stored(self, x: Tensor) -> Tensor:
        """Return what :meth:`_served` made as it is stored."""
        return x

    def teardown(self, stage: str | None = None) -> None:
        """End the stage: serve the source's own inputs again."""
        super().teardown(stage)
        self.shares_evaluation = False  # the next trainer may have no aggregation callback

    def on_exception(self, exception: BaseException) -> None:
        """Do what :meth:`teardown` does: none follows an exception."""
        super().on_exception(exception)
        self.shares_evaluation = False

    def _prepared(self, x: Tensor, split: FederatedSplit) -> Tensor:
        """Return the inputs of all samples, filled up, noisy and standardised as far as each is asked for."""
        return prepare_inputs(
            x,
            split,
            self.standardized_features,
            self.feature_noise,
            getattr(self.partitioner, "seed", 0),
            self.standardize,
            self.impute,
        )

    def _tensors_of(self, source: Source) -> tuple[Tensor, ...]:
        """Return the tensors of all samples, inputs first."""
        if not isinstance(source.dataset, TensorDataset):
            raise ValueError(
                f"`standardize`, `impute`, `feature_noise`, replaced inputs and fingerprints need a TensorDataset; the "
                f"source of {type(self).__name__} is a {type(source.dataset).__name__}. Return one from `load()`."
            )
        return source.dataset.tensors

    def _ready(self) -> tuple[Source, FederatedSplit]:
        if self._federation is None:
            raise RuntimeError(
                f"The clients of {type(self).__name__} are known after `setup()`. The Trainer calls it; outside a "
                "Trainer call `data.prepare_data()` and `data.setup()` first."
            )
        return self._federation

    # ---- training clients ----

    @property
    def num_clients(self) -> int:
        """Number of training clients K."""
        self._ready()
        return len(self._client_ids)

    @property
    def client_ids(self) -> list[int]:
        """The training clients' ids in the partition, by position."""
        self._ready()
        return self._client_ids

    @property
    def client_sizes(self) -> np.ndarray:
        """Number of samples of each training client, shape (K,)."""
        self._ready()
        return self._client_sizes

    @property
    def source_collate_fn(self) -> Collate | None:
        """Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``."""
        return self._ready()[0].collate_fn

    # ---- samples of a stage ----

    def _has(self, stage: Stage) -> bool:
        return bool(self._parts(stage))

    def _samples(self, stage: Stage, clients: Sequence[int] | None = None) -> Dataset[Any]:
        parts = self._parts(stage)
        chosen = list(parts.values()) if clients is None else [parts[self._client_ids[client]] for client in clients]
        indices = chosen[0] if len(chosen) == 1 else np.concatenate(chosen)
        return Subset(self._dataset, indices)  # type: ignore[arg-type]

    @property
    def _dataset(self) -> Dataset[Any]:
        return self._ready()[0].dataset if self._features is None else self._features
