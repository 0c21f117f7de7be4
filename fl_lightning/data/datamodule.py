"""Data of many clients as a LightningDataModule.

What Lightning's trainer calls, in this order, and what answers::

    prepare_data            a subclass's downloads
    setup                   load                    a Source: what there is
                            federate                a FederatedSplit: who trains, validates and tests on what
                            prepared, poisoned      what is done to the samples: preprocessing.py, poisoning.py
                            FederatedSamples        serves them to clients and stages: samples.py
    train_dataloader        central training alone: loaders.py; clients get their batches by client_batches
    val_dataloader, test_dataloader, predict_dataloader
    teardown, or on_exception
    state_dict              for each checkpoint; load_state_dict when a fit resumes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fl_lightning.data.batches import Collate, Transform, client_batches, evaluation_batch_size, number_of_batches
from fl_lightning.data.changes import Changes, check_changes
from fl_lightning.data.descriptions import ClientDescriptions
from fl_lightning.data.distribution import applied, labels_for, numbers_of_clients
from fl_lightning.data.federated_split import FederatedSplit, Split, Stage
from fl_lightning.data.inputs import Imputation, Standardization
from fl_lightning.data.loaders import central_loader, evaluation_loader, warn_of_no_test
from fl_lightning.data.order import ClientOrder, drawn_by, drawn_together
from fl_lightning.data.poisoning import Poison, poisoned
from fl_lightning.data.preprocessing import choose, prepared
from fl_lightning.data.samples import FederatedSamples
from fl_lightning.data.source import Source
from fl_lightning.data.splits import ClientSplit
from fl_lightning.data.targets import outputs_and_targets
from fl_lightning.data.tensor_bytes import fingerprint
from fl_lightning.data.test_sets import with_test_clients
from fl_lightning.partitioners import LabelPlot, NaturalPartitioner, Partition, PartitionStatistics
from fl_lightning.partitioners.base import PartitionFunction, check_partitioner
from fl_lightning.settings import Count, Natural, NotNegative, check, check_arguments, check_lightning, check_objects
from fl_lightning.signatures import FullSignature, represent
from fl_lightning.words import LOAD_WEIGHTS, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FederatedDataModule(L.LightningDataModule):
    """Reads a data set, distributes it among clients and serves each client's batches.

    A subclass reads its data in :meth:`load`, whose :class:`~fl_lightning.data.Source` may say from which client each
    sample comes. With an aggregation callback every training client is trained on its own
    batches; without one, ``train_dataloader`` serves all training clients' samples together.

    Args:
        partitioner: Distributes the samples among clients: a partitioner, or any function from labels to a partition or
            to the sample indices of each client.
        batch_size: Samples of a training batch, B; ``None`` takes all of a client's samples at once (B = infinity).
        eval_batch_size: Samples of a validation or test batch; ``None`` takes as many as a MiB holds, from 256 to
            4,096, or 256 if samples are not rows of tensors.
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
        changes: Which training samples clients have in which rounds of a federated fit; all of theirs in each if
            ``None``. In central training they have all.
        num_workers: Processes that make batches ahead of time, for clients too; 0 makes them in the training process.
            Rows of tensors are always gathered in the training process, which is faster. Processes see the data as they
            are when a round's clients begin to train.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> class Hospitals(FederatedDataModule):
        ...     def load(self) -> Source:
        ...         x, y = torch.rand(12, 3), torch.arange(12) % 2
        ...         return Source(TensorDataset(x, y), labels=y.numpy(), clients=np.arange(12) % 6)
        >>> data = Hospitals(batch_size=2)
        >>> data.setup()
        >>> data.describe_clients()
        '2 of 6 clients train (4 samples), 2 validate and 2 test'

    Raises:
        TypeError: If ``partitioner`` is not a function of labels or ``split`` is not a split.
        ValueError: If an argument is out of range; at set-up, if there is no partitioner or no training client, or
            the inputs cannot be filled or standardised, for example because one is NaN.

    Attributes:
        poisons: The changes of training samples that :meth:`poison_with` was asked for, in order.
        shares_evaluation: Whether several processes share evaluation samples, each in one share. An aggregation
            callback sets it for a stage, and joins what they log; otherwise Lightning's own shares repeat samples.
        limit_evaluation: Returns how many of all batches the processes evaluate together; all if ``None``.
        trained_by: The class of the aggregation callback of the newest fit; ``None`` in central training.
    """

    federated_samples: FederatedSamples
    """All samples, and who trains and evaluates on them; known after the set-up."""

    validates_on_test: bool = False
    """Whether the validation set is the test set, as in papers without a validation set."""

    standardized_features: ClassVar[slice] = slice(None)
    """The features or channels that ``standardize`` and ``feature_noise`` change: all but the categorical ones."""

    found_by_setup: ClassVar[tuple[str, ...]] = ("federated_samples",)
    """Attributes that are known after the set-up; before it they raise ``RuntimeError``."""

    _hidden: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``repr`` leaves out."""

    __signature__ = FullSignature()

    trained_by: str | None = None
    shares_evaluation: bool = False
    limit_evaluation: Callable[[int], float] | None = None

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
        changes: Changes | None = None,
        num_workers: Natural = 0,
    ) -> None:
        super().__init__()
        if partitioner is not None:
            check_partitioner(partitioner)
        if sampler is not None and not shuffle:
            raise ValueError("`sampler` draws the order of samples, so `shuffle=False` has no effect with it.")
        self.partitioner = partitioner
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.split: Split = ClientSplit() if split is None else split
        self.standardize: Standardization | None = standardize
        self.impute: Imputation | None = impute
        self._preprocessing: dict[int, dict[str, Tensor]] = {}
        self.feature_noise = feature_noise
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.sampler = sampler
        self.target = target
        self.train_transform = train_transform
        self.eval_transform = eval_transform
        self.changes = changes
        self.num_workers = num_workers
        self.poisons: list[Poison] = []
        check_arguments(self)

    # ---- hooks of Lightning ----

    def setup(self, stage: str | None = None) -> None:
        """Read, partition, split and standardise the data; later calls change nothing of that."""
        if stage == "fit":
            # The callback of this fit, if there is any, is set up after the data and puts its name there.
            self.trained_by = None
        if self.is_set_up:
            return
        source = self.load()
        split = self.federate(source)
        if not split.train:
            raise ValueError(
                "The split leaves no client for training. Use more clients, or smaller validation and test sets."
            )
        if self.changes is not None:
            check_changes(self.changes, self)
        source, self._preprocessing = prepared(
            source,
            split,
            impute=self.impute,
            feature_noise=self.feature_noise,
            seed=getattr(self.partitioner, "seed", 0),
            standardize=self.standardize,
            features=self.standardized_features,
        )
        source = poisoned(source, split, self.poisons, self.outputs_and_targets, self.served, self.stored)
        self.federated_samples = self._make_samples(source, split)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return all training clients' samples together, for central training."""
        if self.trainer is not None and self.trainer.training and self.trained_by is None:
            rank_zero_info(
                f"The trainer has no aggregation callback, so the samples of {quantity(self.num_clients, 'client')} "
                "are trained on together, centrally. For federated learning give it one, such as FedAvg()."
            )
        return central_loader(self)

    def val_dataloader(self) -> Any:
        """Return the validation set, ordered by client; an empty list if there is none."""
        return evaluation_loader(self, self._set_of("val"), shared=self.shares_evaluation)

    def test_dataloader(self) -> Any:
        """Return the test set, ordered by client; an empty list, with a warning, if there is none."""
        warn_of_no_test(self)
        return evaluation_loader(self, "test", shared=self.shares_evaluation)

    def predict_dataloader(self) -> Any:
        """Return the test set, as :meth:`test_dataloader`; Lightning shares it out over processes by itself."""
        warn_of_no_test(self)
        return evaluation_loader(self, "test", shared=False)

    def teardown(self, stage: str | None = None) -> None:
        """Serve the source's own inputs again: features suit the module of one stage."""
        if self.is_set_up:
            self.federated_samples.remove_features()
            if self.changes is not None:
                self.federated_samples.end_stages()
        # The next trainer may have no aggregation callback.
        self.shares_evaluation = False

    def on_exception(self, exception: BaseException) -> None:
        """Same as :meth:`teardown`, which Lightning skips after an exception."""
        self.teardown()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the aggregation callback, and what was done to inputs, if there are such."""
        state: dict[str, Any] = {}
        if self.trained_by is not None:
            state["trained_by"] = self.trained_by
        if self._preprocessing:
            state["preprocessing"] = self._preprocessing
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that a federated fit goes on federatedly.

        Raises:
            ValueError: If the checkpoint was written by a federated fit, and the trainer has no aggregation callback.
        """
        before = state_dict.get("trained_by")
        is_fit = self.trainer is not None and self.trainer.state.fn == "fit"
        if is_fit and before is not None and self.trained_by is None:
            raise ValueError(
                f"The checkpoint was written by {before}, and the trainer has no aggregation callback, so it would go "
                f"on centrally. Give Trainer(callbacks=[{before}(...)]). To start central training from its weights: "
                f"{LOAD_WEIGHTS}."
            )

    # ---- methods for subclasses ----

    def load(self) -> Source:
        """Read the data; called once, in every process."""
        raise NotImplementedError(f"{type(self).__name__} must define `load()`, which returns a Source.")

    def federate(self, source: Source) -> FederatedSplit:
        """Distribute the samples among clients, and clients or samples among training, validation and test.

        The partitioner distributes them. Without one, each sample belongs to the client from which it comes.
        """
        if self.partitioner is not None:
            return self.apply_split(labels_for(self.partitioner, source), self.partitioner, source)
        clients = numbers_of_clients(source, type(self).__name__)
        # The partitioner gets clients in place of labels: a split may hand over some of the samples, and none of some
        # client.
        split = self.apply_split(clients, NaturalPartitioner(), source)
        if source.test_indices is None or not source.tests_clients:
            return split
        return with_test_clients(split, clients)

    def apply_split(self, labels: np.ndarray | int, partitioner: PartitionFunction, source: Source) -> FederatedSplit:
        """Apply the split to a source; a test set that comes with it is the only test set.

        It is set aside before the partition, and belongs to no client. Samples that the split would test on are trained
        on instead; those of no client are left out. With ``test="official"``, or a source that ``pools_test``, the
        split decides alone.

        Args:
            labels: The class of each sample, shape (N,), or N.
            partitioner: Distributes the samples that are not set aside among clients, by their labels.
            source: The samples.
        """
        return applied(self.split, labels, partitioner, source)

    def _make_samples(self, source: Source, split: FederatedSplit) -> FederatedSamples:
        """Return what serves the samples of a source to clients and stages."""
        return FederatedSamples(source, split)

    @property
    def augmented(self) -> bool:
        """Whether a sample's input may differ from the source's, or from one epoch to the next."""
        return self.train_transform is not None or self.eval_transform is not None

    def served(self, x: Tensor) -> Tensor:
        """Return stored inputs as a module gets them in an evaluation."""
        return x

    def stored(self, x: Tensor) -> Tensor:
        """Return what :meth:`served` made as it is stored."""
        return x

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

    # ---- what is done to samples at the set-up ----

    @property
    def is_set_up(self) -> bool:
        """Whether the data are read, so that the clients are known."""
        return "federated_samples" in vars(self)

    def poison_with(self, poison: Poison) -> None:
        """Change training samples of some clients on purpose, before the set-up; several poisons in the calls' order.

        Raises:
            TypeError: If ``poison`` is no :class:`~fl_lightning.data.Poison`.
            RuntimeError: If the data are set up already.
        """
        check("`poison`", poison, Poison)
        if self.is_set_up:
            raise RuntimeError("`poison_with` must be called before the data are set up. Call it earlier.")
        self.poisons = [*self.poisons, poison]

    def preprocessing(self, client: int | None = None) -> nn.Module:
        """Return what ``impute`` and ``standardize`` did to inputs, as a module for inputs that come later.

        Call it after :meth:`setup`. Checkpoints hold it too: see :func:`fl_lightning.load_preprocessing`.

        Args:
            client: The client, if each has statistics of its own (``"local"``).

        Returns:
            A :class:`~fl_lightning.data.Preprocessing`, or ``nn.Identity`` if inputs were left as they are.

        Raises:
            RuntimeError: If the data are not set up.
            ValueError: If a client must be named, or this one does not train.
        """
        if not self.is_set_up:
            raise RuntimeError("The statistics are known after `setup()`. Call it first.")
        if not self._preprocessing:
            return nn.Identity()
        return choose(self._preprocessing, client)

    # ---- who has which samples ----

    @property
    def client_ids(self) -> list[int]:
        """The training clients' ids in the partition, by position."""
        return self.federated_samples.client_ids

    @property
    def client_sizes(self) -> np.ndarray:
        """Number of samples of each training client, shape (K,)."""
        return self.federated_samples.client_sizes

    @property
    def num_clients(self) -> int:
        """Number of training clients K."""
        return len(self.client_ids)

    @property
    def federated_split(self) -> FederatedSplit:
        """The samples on which each client trains, validates and tests."""
        return self.federated_samples.split

    @property
    def partition(self) -> Partition:
        """The samples of each client, over all clients: those that it trains, validates and tests on.

        Samples of a validation or test set that belongs to no client are left out.
        """
        return self.federated_split.partition

    def eval_client_ids(self, stage: Literal["val", "test"]) -> np.ndarray | None:
        """Return the client of each sample of the validation or test loader, shape (n,), in the loader's order.

        ``None`` if there is no such set, or it belongs to no client.
        """
        return self.federated_split.clients_of_samples(self._set_of(stage))

    def _set_of(self, stage: Stage) -> Stage:
        """Return the set from which a stage is served."""
        return "test" if stage == "val" and self.validates_on_test else stage

    @property
    def labels(self) -> np.ndarray | None:
        """Class of each sample of the source, shape (N,), if there are classes."""
        return self.federated_samples.source.labels

    @property
    def num_unused(self) -> int:
        """Number of samples of the source that are in no set, because a partitioner or a split leaves them out."""
        return self.federated_samples.num_unused

    # ---- what can be told of clients ----

    @property
    def _told(self) -> ClientDescriptions:
        return ClientDescriptions(self.federated_samples, self.partitioner)

    @property
    def client_names(self) -> list[str] | None:
        """Names of all clients, in the order of their ids in the partition; ``None`` where clients have no names."""
        return self._told.client_names

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, if they are known."""
        return self._told.class_names

    @property
    def present_class_names(self) -> list[str] | None:
        """Names of the classes of which there are samples, in ascending order of the class, if they are known."""
        return self._told.present_class_names

    def describe_clients(self) -> str:
        """Return how many clients train, validate and test, in words."""
        return self._told.in_words(validation=self._set_of("val"))

    def describe_unused(self) -> str:
        """Return in a sentence how many samples belong to no client; an empty string if all belong to one."""
        return self._told.unused_in_words()

    def statistics(self) -> PartitionStatistics:
        """Return sizes and heterogeneity over all clients and their samples, those that validate and test too.

        Without classes, as in a regression, there are sizes alone. Clients without any sample do not count.
        """
        return self._told.statistics()

    def plot(self, axes: Axes | None = None) -> LabelPlot:
        """Plot the clients' label distributions, with the sets in which they are; a notebook shows the picture.

        Without classes, as in a regression, it has each client's number of samples.

        Args:
            axes: Axes to draw on; a new figure if ``None``.

        Returns:
            ``(figure, axes, table)``.
        """
        return self._told.plot(axes)

    # ---- batches of training clients ----

    def begin_round(self, round_index: int) -> None:
        """Give clients their training samples of a round, from 0; :attr:`changes` says which.

        The federated loop calls it before each round.

        Raises:
            TypeError: If ``changes`` returns no whole numbers.
            ValueError: If it returns others than distinct training samples.
        """
        if self.changes is not None:
            self.federated_samples.begin_stage(self.changes, self.changes.stage(round_index))

    @property
    def source_collate_fn(self) -> Collate | None:
        """Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``."""
        return self.federated_samples.source.collate_fn

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training samples of the client at position ``client``, 0 to K-1."""
        return self.federated_samples.transformed("train", self.train_transform, [client])

    def client_order(self, client: int, generator: torch.Generator) -> Tensor:
        """Return the positions of one local epoch in the client's samples, as ``sampler`` or by chance, shape (n_k,).

        Raises:
            ValueError: If ``sampler`` returns others than n_k positions of the client's samples.
        """
        if self.sampler is None:
            return torch.randperm(int(self.client_sizes[client]), generator=generator)
        dataset = self.federated_samples.dataset_of("train", [client])
        return drawn_by(self.sampler, client, dataset, generator)

    def pooled_order(self, clients: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return the positions of one epoch in the pooled samples of some clients, shuffled, shape (n,)."""
        if self.sampler is None:
            size = int(self.client_sizes[list(clients)].sum())
            return torch.randperm(size, generator=generator)
        orders = [self.client_order(client, generator) for client in clients]
        return drawn_together(orders, generator)

    def client_batches(self, client: int, *, generator: torch.Generator, shuffle: bool | None = None) -> Iterator[Any]:
        """Yield one local epoch of the client at position ``client``.

        Args:
            client: Position of the client, 0 to K-1.
            generator: CPU generator of the order.
            shuffle: Whether to draw a new order; as the data module's ``shuffle`` if ``None``.
        """
        if shuffle is None:
            shuffle = self.shuffle
        order = self.client_order(client, generator) if shuffle else None
        return self._batches(self.client_dataset(client), order)

    def pooled_batches(self, clients: Sequence[int], *, generator: torch.Generator) -> Iterator[Any]:
        """Yield one epoch of the union of some clients' samples; for arguments see :meth:`client_batches`."""
        order = self.pooled_order(clients, generator) if self.shuffle else None
        return self._batches(self.federated_samples.transformed("train", self.train_transform, clients), order)

    def _batches(self, dataset: Dataset[Any], order: Tensor | None) -> Iterator[Any]:
        return client_batches(
            dataset,
            self.batch_size,
            generator=None,
            shuffle=False,
            collate_fn=self.source_collate_fn,
            order=order,
            drop_last=self.drop_last,
        )

    def num_client_batches(self, client: int) -> int:
        """Return the number of batches of one local epoch: ceil(n_k / B), or with ``drop_last`` max(1, floor(n_k / B)).

        Args:
            client: Position of the client, 0 to K-1.
        """
        return number_of_batches(int(self.client_sizes[client]), self.batch_size, self.drop_last)

    def evaluation_batch_size(self, dataset: Dataset[Any]) -> int:
        """Return the number of samples of a batch of an evaluation, by the bytes of a sample if it is not given."""
        if self.eval_batch_size is not None:
            return self.eval_batch_size
        return evaluation_batch_size(dataset)

    # ---- features in place of inputs ----

    @property
    def inputs_replaced(self) -> bool:
        """Whether batches hold features in place of inputs, such as those of a frozen prefix; none is transformed."""
        return self.is_set_up and self.federated_samples.have_features

    def source_inputs(self) -> Tensor:
        """Return the inputs of all samples, shape (N, ...), as batches hold them unless replaced."""
        return self.federated_samples.inputs

    def replace_inputs(self, features: Tensor) -> None:
        """Serve ``features``, one row per source input, in place of the inputs until the stage ends."""
        self.federated_samples.put_features(features)

    def data_fingerprint(self) -> str:
        """Return a string that changes with the shape, type or content of the source's tensors."""
        return fingerprint(self.federated_samples.tensors)

    # ---- as an object ----

    def __repr__(self) -> str:
        return represent(self, *self._facts(), always=("batch_size",), leave_out=self._hidden)

    def __str__(self) -> str:
        # That of Lightning has four lines of loaders.
        return repr(self)

    def _facts(self) -> list[str]:
        """Return what ``repr`` says before the arguments."""
        if not self.is_set_up:
            return []
        clients = f"{self.num_clients} of {self.partition.num_clients} clients train"
        return [clients, f"{len(self.federated_samples.source)} samples"]

    def __setattr__(self, name: str, value: Any) -> None:
        # A trainer sets this attribute before it looks at anything else.
        if name == "trainer":
            check_lightning("The trainer", value)
            check_objects(getattr(value, "callbacks", []))
        super().__setattr__(name, value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in self.found_by_setup:
                raise RuntimeError(
                    f"The clients of {type(self).__name__} are known after `setup()`. The Trainer calls it; outside a "
                    "Trainer call `data.prepare_data()` and `data.setup()` first."
                )
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: all but the trainer."""
        return {**self.__dict__, "trainer": None}
