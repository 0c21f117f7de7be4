"""All samples of a data module, and which of them a stage or a client is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from fl_lightning.data.batches import Transform, TransformedDataset, tensors_of
from fl_lightning.data.changes import Changes
from fl_lightning.data.federated_split import FederatedSplit, Stage
from fl_lightning.data.source import Source


class FederatedSamples:
    """The samples of a data module after its set-up, and who trains and evaluates on them.

    Features may stand in for the inputs for a while, such as those that a frozen part of a network makes of them.

    Args:
        source: The samples, with inputs filled up, standardised and poisoned.
        split: The samples on which each client trains, validates and tests.

    Attributes:
        client_ids: The training clients' ids in the partition, by position.
        client_sizes: Number of samples of each training client now, int64, shape (K,). It is one array for all rounds:
            what clients hold changes it in place, so that all who have it see the sizes of the round.
    """

    def __init__(self, source: Source, split: FederatedSplit) -> None:
        self.source = source
        self.split = split
        self.client_ids = list(split.train)
        sizes = [len(indices) for indices in split.train.values()]
        self.client_sizes = np.array(sizes, dtype=np.int64)
        self._features: TensorDataset | None = None
        # The training samples of each client in the present stage; those of the split if they do not change.
        self._present = split.train
        self._stage: int | None = None

    def begin_stage(self, changes: Changes, stage: int) -> None:
        """Give clients the training samples of a stage.

        Raises:
            TypeError: If ``changes`` returns no whole numbers.
            ValueError: If it returns others than distinct training samples.
        """
        if stage == self._stage:
            return
        held = changes.checked(stage, list(self.split.train.values()), self.source.labels)
        self._hold(dict(zip(self.client_ids, held, strict=True)))
        self._stage = stage

    def end_stages(self) -> None:
        """Give clients the training samples of the split again."""
        self._hold(self.split.train)
        self._stage = None

    def _hold(self, train: dict[int, np.ndarray]) -> None:
        self._present = train
        self.client_sizes[:] = [len(indices) for indices in train.values()]

    @property
    def changed(self) -> bool:
        """Whether clients have others than the training samples of the split."""
        return self._stage is not None

    def dataset_of(self, stage: Stage, positions: Sequence[int] | None = None) -> Dataset[Any]:
        """Return the samples of a stage, before any transform.

        Args:
            stage: The stage.
            positions: Positions of training clients, 0 to K-1; ``None`` for the samples of the whole stage.
        """
        parts = self._present if stage == "train" else self.split.of(stage)
        if positions is None:
            chosen = list(parts.values())
        else:
            chosen = [parts[self.client_ids[position]] for position in positions]
        indices = chosen[0] if len(chosen) == 1 else np.concatenate(chosen)
        return Subset(self.served, indices)  # type: ignore[arg-type]

    def transformed(
        self, stage: Stage, transform: Transform | None, positions: Sequence[int] | None = None
    ) -> Dataset[Any]:
        """Return the samples of a stage, as a module gets them; features are not transformed.

        Args:
            stage: The stage.
            transform: Changes a sample's input; ``None`` for nothing.
            positions: As for :meth:`dataset_of`.
        """
        dataset = self.dataset_of(stage, positions)
        if transform is None or self.have_features:
            return dataset
        return TransformedDataset(dataset, transform)

    @property
    def served(self) -> Dataset[Any]:
        """All samples, with features in place of inputs if there are any."""
        return self.source.dataset if self._features is None else self._features

    @property
    def inputs(self) -> Tensor:
        """The inputs of all samples, shape (N, ...), never features."""
        return self.tensors[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of all samples, inputs first, never features."""
        return rows_of(self.source)

    @property
    def have_features(self) -> bool:
        """Whether features stand in for the inputs."""
        return self._features is not None

    def put_features(self, features: Tensor) -> None:
        """Serve features in place of the inputs.

        Args:
            features: One row for each input, shape (N, ...).
        """
        _, *others = self.tensors
        self._features = TensorDataset(features, *others)

    def remove_features(self) -> None:
        """Serve the inputs again."""
        self._features = None

    @property
    def num_unused(self) -> int:
        """Number of samples that are in no set, because a partitioner or a split leaves them out."""
        used = 0
        for parts in (self.split.train, self.split.val, self.split.test):
            used += sum(len(indices) for indices in parts.values())
        # A test set may hold training samples a second time.
        return max(0, len(self.source) - used)


def rows_of(source: Source) -> tuple[Tensor, ...]:
    """Return the tensors of all samples of a source, inputs first.

    Raises:
        ValueError: If samples are not rows of tensors.
    """
    tensors = tensors_of(source.dataset)
    if tensors is None:
        raise ValueError(
            "`standardize`, `impute`, `feature_noise`, poisons, replaced inputs and fingerprints need samples that "
            "are rows of tensors of the same shapes and types: a TensorDataset, or Subset of one. Give such data, "
            "or do it in `train_transform` and `eval_transform`."
        )
    return tensors
