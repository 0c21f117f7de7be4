"""An error in a client's training says which client it was, and what its batch was like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ClientDatasetsModule, FedAvg, FederatedDataModule, TensorDataModule
from fl_lightning.models import MLPClassifier
from fl_lightning.testing.fits import fit

X, Y = torch.rand(8, 5), torch.arange(8) % 3


def notes(data: FederatedDataModule, error: type[Exception], executor: Any = "auto") -> list[str]:
    """Return the notes of the error with which a fit of all clients ends."""
    with pytest.raises(error) as told:
        fit(FedAvg(1.0, executor=executor), MLPClassifier(in_features=5, hidden=(4,), num_classes=3), data, 1)
    return getattr(told.value, "__notes__", [])


@pytest.mark.parametrize("executor", ["auto", "sequential"])
def test_classes_that_the_model_does_not_have(executor: str) -> None:
    data = TensorDataModule([(X, Y), (X, Y + 7), (X, Y)], batch_size=4, shuffle=False)
    assert notes(data, IndexError, executor) == ["In round 1, client 1, batch: (4, 5) torch.float32, (4,) torch.int64."]


def test_the_first_six_tensors_of_a_batch_are_shown() -> None:
    data = TensorDataModule([(X[:, :3], Y, Y, X, X[:, :1], Y, X[:, :2], Y)], batch_size=2)
    shown = "(2, 3) {0}, (2,) {1}, (2,) {1}, (2, 5) {0}, (2, 1) {0}, (2,) {1}".format("torch.float32", "torch.int64")
    assert notes(data, (RuntimeError, ValueError)) == [f"In round 1, client 0, batch: {shown}."]


class Broken(Dataset[tuple[Tensor, Tensor]]):
    """Its sixth sample cannot be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 5:
            raise OSError("sample 5 cannot be read")
        return X[index], Y[index]


def test_samples_that_cannot_be_read_or_put_together_have_no_batch() -> None:
    data = ClientDatasetsModule([TensorDataset(X, Y), Broken()], batch_size=4, shuffle=False)
    assert notes(data, OSError) == ["In round 1, client 1, batch: None."]
    collating, training = notes(ClientDatasetsModule([[(X[0], 0), (X[0, :2], 0)]]), RuntimeError)
    assert "Give a `collate_fn`" in collating
    assert training == "In round 1, client 0, batch: None."
