"""Data that are given client by client, for tables: two clients train, and each may validate and test."""

from __future__ import annotations

from typing import Any

import torch

from fl_lightning import TensorDataModule
from helpers.small_table import spec

_VALUES = {"train": 0.0, "val": 1.0, "test": 2.0}


def rows(stage: str, size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples whose features all are 0 for training, 1 for validation and 2 for test, of class 0."""
    return torch.full((size, 2), _VALUES[stage]), torch.zeros(size, dtype=torch.long)


class ByClient(TensorDataModule):
    def __init__(self, stages: list[str], of_clients: bool = True) -> None:
        sets: dict[str, Any] = {stage: [None, rows(stage)] if of_clients else rows(stage) for stage in stages}
        super().__init__([rows("train"), rows("train")], **sets, batch_size=3)


def table_of_clients(stages: list[str], of_clients: bool = True, **changes: Any) -> dict[str, Any]:
    """Return a table of one cell."""
    data = {
        "datamodule": {
            "class_path": "helpers.by_client.ByClient",
            "init_args": {"stages": stages, "of_clients": of_clients},
        },
        "model": spec("fl_lightning.models.LogisticRegressionClassifier", in_features=2, num_classes=2),
        "validate_on_test": changes.pop("validate_on_test", False),
    }
    if not of_clients:
        data |= {"monitor": "val_acc", "score": "test_acc"}
    return {
        "name": "by client",
        "data": {"d": data},
        "methods": {"FedAvg": {"callback": spec("fl_lightning.FedAvg", clients_per_round=2)}},
        "trainer": {"max_epochs": 1, "accelerator": "cpu"},
        **changes,
    }
