"""Which tensor or attribute of a data set is the target, for partitioners and poisons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_files import set_up
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fl_lightning import TensorDataModule
from fl_lightning.data import LabelFlipping, WithinClientSplit, find_targets
from fl_lightning.data.targets import outputs_and_targets
from fl_lightning.datamodules import TorchDatasetDataModule
from fl_lightning.partitioners import DirichletPartitioner

X, MASK, Y = torch.zeros(6, 1, 4, 4), torch.full((6,), 7), torch.arange(6) % 3
WEIGHTS = torch.full((6,), 0.5)
ALL = WithinClientSplit(val=0.0, test=0.0)


class SecondIsTarget(TensorDataModule):
    """Batches of inputs, targets and weights."""

    def outputs_and_targets(self, batch: Any, outputs: Any) -> tuple[Any, Any]:
        return outputs, batch[1].squeeze(-1)


class SecondOfOne(TorchDatasetDataModule):
    """A data set of inputs, targets and weights."""

    outputs_and_targets = SecondIsTarget.outputs_and_targets  # type: ignore[assignment]


def batch_of(data: Any) -> list[Tensor]:
    [batch] = set_up(data).client_batches(0, generator=torch.Generator(), shuffle=False)
    return list(batch)


def test_partitioners_take_the_second_of_two_tensors_or_the_one_that_the_module_names() -> None:
    assert outputs_and_targets(X, {"preds": 1, "target": 2}) == (1, 2)
    assert outputs_and_targets((X, 3), {"target": 2}) == ({"target": 2}, 3)
    plain, masked = TensorDataset(X, Y), TensorDataset(X, MASK, Y)
    assert find_targets(Subset(ConcatDataset([plain, plain]), [7, 2])).tolist() == [1, 2]  # type: ignore[union-attr]
    assert find_targets(masked) is None
    weighted = TensorDataset(X, Y, WEIGHTS)
    for dataset, place in ((masked, 2), (weighted, 1)):
        named = TorchDatasetDataModule(dataset, DirichletPartitioner(2, 1.0, seed=0), split=ALL, target=place)
        assert set_up(named).labels.tolist() == Y.tolist()
    data = SecondOfOne(weighted, DirichletPartitioner(2, 1.0, seed=0), split=ALL)
    assert set_up(data).labels.tolist() == Y.tolist()
    assert set_up(SecondIsTarget([(X, Y, WEIGHTS)])).labels.tolist() == Y.tolist()


class Digits(Dataset[Any]):
    """Its targets are changed when a sample is fetched, as in torchvision."""

    def __init__(self, targets: Any, target_transform: Any) -> None:
        self.targets, self.target_transform = targets, target_transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1), self.target_transform(self.targets[index])


@pytest.mark.parametrize(
    ("targets", "transform"),
    [
        ([4, 1, 2, 3], lambda digit: digit % 2),
        (torch.tensor([4, 1, 2, 3]), lambda digit: torch.tensor(digit % 2)),
        (np.array([[4], [1], [2], [3]]), lambda row: row[0] % 2),
        (["four", "one", "two", "three"], {"four": 0, "one": 1, "two": 0, "three": 1}.get),
    ],
)
def test_what_a_transform_of_targets_changes_is_partitioned(targets: Any, transform: Any) -> None:
    digits = Digits(targets, transform)
    assert find_targets(digits).tolist() == [0, 1, 0, 1]  # type: ignore[union-attr]
    assert find_targets(Subset(digits, [3, 0])).tolist() == [1, 0]  # type: ignore[union-attr]
    data = TorchDatasetDataModule(digits, DirichletPartitioner(2, 1.0, seed=0), split=ALL)
    assert set_up(data).labels.tolist() == [0, 1, 0, 1]


def test_targets_that_a_transform_of_pairs_may_change_are_asked_for() -> None:
    digits = Digits([4, 1, 2, 3], None)
    digits.transforms = lambda x, y: (x, y % 2)  # type: ignore[attr-defined]
    assert find_targets(digits) is None


def test_labels_are_flipped_in_the_target() -> None:
    masked = TensorDataModule([(X, MASK, Y.double())], batch_size=None, target=2)
    masked.poison_with(LabelFlipping([0], num_classes=3))
    assert [part.tolist() for part in batch_of(masked)[1:]] == [[7] * 6, [2, 1, 0, 2, 1, 0]]
    weighted = SecondIsTarget([(X, Y[:, None].bool(), WEIGHTS)], batch_size=None)
    weighted.poison_with(LabelFlipping([0], num_classes=2))
    assert [part.flatten().tolist() for part in batch_of(weighted)[1:]] == [(Y == 0).tolist(), WEIGHTS.tolist()]
    assert Y.tolist() == [0, 1, 2, 0, 1, 2]  # the user's own tensors stay
