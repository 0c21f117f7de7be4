"""A table that takes a second: digits, 10 clients, a linear model."""

from __future__ import annotations

import copy
from typing import Any

TABLE: dict[str, Any] = {
    "name": "small",
    "data": {
        "digits": {
            "datamodule": {
                "class_path": "fl_lightning.datamodules.DigitsDataModule",
                "init_args": {
                    "partitioner": {
                        "class_path": "fl_lightning.partitioners.DirichletPartitioner",
                        "init_args": {"num_clients": 10, "alpha": 0.3, "seed": 0},
                    },
                    "split": {
                        "class_path": "fl_lightning.data.ClientSplit",
                        "init_args": {"num_folds": 5, "fold": "$fold", "seed": 0},
                    },
                    "batch_size": 64,
                },
            },
            "model": {
                "class_path": "fl_lightning.models.LogisticRegressionClassifier",
                "init_args": {"in_features": 3072, "num_classes": 10, "lr": "$lr"},
            },
            "values": {"lr": 0.01},
        }
    },
    "methods": {
        "FedAvg": {"callback": {"class_path": "fl_lightning.FedAvg", "init_args": {"clients_per_round": 2}}},
        "RADFed": {
            "callback": {
                "class_path": "fl_lightning.RADFed",
                "init_args": {"redistributions": 2, "clients_per_round": 2},
            }
        },
    },
    "trainer": {"max_epochs": 4, "accelerator": "cpu"},
    "select": "best on validation",
}


def small(**changes: Any) -> dict[str, Any]:
    """Return the table with other entries at the top level."""
    return {**copy.deepcopy(TABLE), **copy.deepcopy(changes)}


def with_methods(**methods: Any) -> dict[str, Any]:
    """Return the table with entries added to its methods."""
    table = small()
    for name, entries in methods.items():
        table["methods"].setdefault(name, {}).update(entries)
    return table
