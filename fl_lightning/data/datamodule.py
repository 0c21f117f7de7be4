"""Data of many clients as a LightningDataModule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.checks import (
    LOAD_WEIGHTS,
    Count,
    FullSignature,
    Natural,
    NotNegative,
    check,
    check_arguments,
    represent,
)
from fl_lightning.data.batches import Transform
from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Split
from fl_lightning.data.inputs import Imputation, Standardization, fill_missing, standardized, with_noise
from fl_lightning.data.order import ClientOrder
from fl_lightning.data.poisoning import Poison
from fl_lightning.data.serving import ServesBatches
from fl_lightning.data.source import Source
from fl_lightning.data.splits import ClientSplit, check_test_indices
from fl_lightning.data.targets import outputs_and_targets
from fl_lightning.partitioners import Partition
from fl_lightning.partitioners.base import PartitionFunction, check_partitioner


class FederatedDataModule(ServesBatches):
    """Reads a data set, distributes it among clients and serves each client's batches.

    A subclass reads its data in :meth:`load`. With an aggregation callback every training client is trained on its own
    batches; without one, ``train_dataloader`` serves all training clients' samples together.

    Args:
        partitioner: Distributes the samples among clients: a partitioner, or any function from labels to a partition or
            to the sample indices of each client.
        batch_size: Samples of a training batch, B; ``None`` takes all of a client's samples at once (B = infinity).
        eval_batch_size: Samples of a validation or test batch; ``None`` takes as many as a MiB holds, from 256 to
            4,096, or 256 if samples are no rows of tensors.
        split: Which clients or samples train, validate and test; ``ClientSplit()`` if ``None``.
        standardize: ``"global"`` standardises inputs by the samples of all training clients, ``"local"`` each client by
            its own samples. It needs the floating-point inputs of a ``TensorDataset``.
        impute: ``"global"`` fills NaN in the inputs with the feature's mean over the training samples of all clients,
            ``"local"`` with each client's own mean (means are over finite values). It needs the
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
        target: The target's place in a sample or batch that is a tuple or list, counted from 0; for more than two
            elements it must be given where targets are read.
        train_transform: Changes a training sample's input when it is fetched: the first element of a tuple or list, or
            the whole of any other sample, such as a dict.
        eval_transform: The same for validation and test samples.
        num_workers: Processes that make batches ahead of time, for clients too; 0 makes them in the training process.
            Rows of tensors are always gathered in the training process, which is faster. Processes see the data as they
            are when a round's clients begin to train.

    Raises:
        TypeError: If ``partitioner`` is no function of labels or ``split`` is no split.
        ValueError: If an argument is out of range; at set-up, if there is no partitioner or no training client, or
            the inputs cannot be filled or standardised, for example because one is NaN.

    Attributes:
        poisons: The changes of training samples that :meth:`poison_with` was asked for, in order.
    """

    standardized_features: ClassVar[slice] = slice(None)
    """The features or channels that ``standardize`` and ``feature_noise`` change: all but the categorical ones."""

    __signature__ = FullSignature()

    _hidden: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``repr`` leaves out."""

    def __init__(
        self,
        partitioner: PartitionFunction | None = None,
        *,
        batch_size: Count | None = 32,
        eval_batch_size: Count | None = None,
        split: Split | None = None,
        standardize: Standardization | None = None,
        impute: Imputation | None = None,
        feature_noise: NotNegative = 0.0,
        shuffle: bool = True,
        drop_last: bool = False,
        sampler: ClientOrder | None = None,
        target: Natural | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        num_workers: Natural = 0,
    ) -> None:
        super().__init__()
        if partitioner is not None:
            check_partitioner(partitioner)
        if sampler is not None and not shuffle:
            raise ValueError("`sampler` draws the order of samples, so `shuffle=False` has no effect with it.")
        self.partitioner = partitioner
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.split: Split = ClientSplit() if split is None else split
        self.standardize, self.impute, self.feature_noise = standardize, impute, feature_noise
        self.shuffle, self.drop_last, self.sampler = shuffle, drop_last, sampler
        self.target = target
        self.train_transform, self.eval_transform = train_transform, eval_transform
        self.num_workers = num_workers
        self.poisons: list[Poison] = []
        check_arguments(self)

    def __repr__(self) -> str:
        return represent(self, *self._facts(), always=("batch_size",), leave_out=self._hidden)

    def __str__(self) -> str:
        return repr(self)  # Lightning's has four lines of loaders

    def _facts(self) -> list[str]:
        """Return what ``repr`` says before the arguments."""
        if "_source" not in vars(self):
            return []
        return [f"{self.num_clients} of {self.partition.num_clients} clients train", f"{len(self._source)} samples"]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "trainer":  # a trainer sets it before it looks at anything else
            check_lightning("The trainer", value)
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
        if source.labels is None and getattr(self.partitioner, "needs_classes", False):
            raise ValueError(
                f"{type(self.partitioner).__name__} shares samples out by class, and no classes were found. Give whole "
                "numbers, the class of each sample: `targets=`, or the `labels` of a Source; for samples of more than "
                "two tensors, `target=`, the place of their classes. Numbers to predict become "
                "classes by `np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))`. IIDPartitioner and "
                "QuantitySkewPartitioner need none."
            )
        labels = len(source) if source.labels is None else source.labels
        return self.apply_split(labels, self.partitioner, source)

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
        if stage == "fit":
            self.trained_by = None  # the callback of this fit, if there is any, is set up after the data
        if "_source" in vars(self):
            return
        source = self.load()
        split = self.federate(source)
        if not split.train:
            raise ValueError(
                "The split leaves no client for training. Use more clients, or smaller validation and test sets."
            )
        source = self._poisoned(self._prepared(source, split), split)
        self._source, self.federated_split, self.client_ids = source, split, list(split.train)
        self.client_sizes = np.array([len(indices) for indices in split.train.values()], dtype=np.int64)

    def _prepared(self, source: Source, split: FederatedSplit) -> Source:
        """Return the source with inputs filled up, with noise added and standardised, as far as each is asked for."""
        if not self.feature_noise and self.standardize is None and self.impute is None:
            return source
        x, *others = self._tensors_of(source)
        if self.impute is not None:
            x = fill_missing(x, self.impute, split)
        if self.feature_noise:
            seed = getattr(self.partitioner, "seed", 0)
            x = with_noise(x, self.feature_noise, split, seed, self.standardized_features)
        if self.standardize is not None:
            x = standardized(x, self.standardize, split, self.standardized_features)
        return replace(source, dataset=TensorDataset(x, *others))

    def poison_with(self, poison: Poison) -> None:
        """Change training samples of some clients on purpose, before the set-up; several poisons in the calls' order.

        Raises:
            TypeError: If ``poison`` is no :class:`~fl_lightning.data.Poison`.
            RuntimeError: If the data are set up already.
        """
        check("`poison`", poison, Poison)
        if "_source" in vars(self):
            raise RuntimeError("`poison_with` must be called before the data are set up. Call it earlier.")
        self.poisons = [*self.poisons, poison]

    def _poisoned(self, source: Source, split: FederatedSplit) -> Source:
        """Return the source with the chosen clients' samples changed."""
        if not self.poisons:
            return source
        x, *others = [tensor.clone() for tensor in self._tensors_of(source)]
        y = self.outputs_and_targets([x, *others], None)[1]
        for poison in self.poisons:
            x, y[:] = poison.apply(x, y, list(split.train.values()), self.served, self.stored)
        return replace(source, dataset=TensorDataset(x, *others))

    def served(self, x: Tensor) -> Tensor:
        """Return stored inputs as a module gets them in an evaluation."""
        return x

    def stored(self, x: Tensor) -> Tensor:
        """Return what :meth:`served` made as it is stored."""
        return x

    def teardown(self, stage: str | None = None) -> None:
        """Serve the source's own inputs again: features suit the module of one stage."""
        self._features = None
        self.shares_evaluation = False  # the next trainer may have no aggregation callback

    def on_exception(self, exception: BaseException) -> None:
        """Do what :meth:`teardown` does: none follows an exception."""
        self.teardown()

    # ---- batches ----

    def outputs_and_targets(self, batch: Any, outputs: Any) -> tuple[Any, Any]:
        """Return predictions and targets of a batch: for metrics of clients, diagnostics, poisons and partitioners.

        The target is the element at ``target`` of a tuple or list, the second of two, or the ``label``, ``labels`` or
        ``target`` of a dict. Override it for others, such as ``return outputs.logits, batch["y"].squeeze(1)``.

        Args:
            batch: A batch as the module gets it, or the tensors of all samples. A poison changes their target in place.
            outputs: What a validation or test step returned, if that is a dict with ``"preds"`` and ``"target"``, which
                are then returned; otherwise what ``forward`` returned; ``None`` where the target alone is asked for.

        Raises:
            TypeError: If nothing says which element is the target.
        """
        return outputs_and_targets(batch, outputs, self.target)

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the aggregation callback, if there is one."""
        return {} if self.trained_by is None else {"trained_by": self.trained_by}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that a federated fit goes on federatedly.

        Raises:
            ValueError: If the checkpoint was written by a federated fit, and the trainer has no aggregation callback.
        """
        before, trainer = state_dict.get("trained_by"), self.trainer
        fits = trainer is not None and trainer.state.fn == "fit"
        if before is not None and self.trained_by is None and fits:
            raise ValueError(
                f"The checkpoint was written by {before}, and the trainer has no aggregation callback, so it would go "
                f"on centrally. Give Trainer(callbacks=[{before}(...)]). To start central training from its weights: "
                f"{LOAD_WEIGHTS}."
            )


def check_lightning(role: str, thing: object) -> None:
    """Raise ``TypeError`` for an object of ``pytorch_lightning``, the same code in other classes.

    Neither package takes the other's objects for its own: a hook is not called, or Lightning fails with ``Expected a
    parent``.

    Args:
        role: What the object is, as the beginning of a sentence.
        thing: The object.
    """
    if any(base.__module__.split(".")[0] == "pytorch_lightning" for base in type(thing).__mro__):
        raise TypeError(
            f"{role} is a {type(thing).__name__} of `pytorch_lightning`, whose classes are others than those of "
            "`lightning`, which fl-lightning uses. Write `import lightning.pytorch as pl` instead of `import "
            "pytorch_lightning as pl`, in every file that has it."
        )
