"""A table that takes a second: digits, 10 clients, a linear model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


def spec(class_path: str, **arguments: Any) -> dict[str, Any]:
    """Return the spec of an object: what is called, and with which arguments."""
    return {"class_path": class_path, "init_args": arguments}


F1 = spec("fl_lightning.ClientMetrics", metric={"object": "fl_lightning.metrics.weighted_f1"}, name="f1", pooled=True)
TABLE: dict[str, Any] = {
    "name": "small",
    "data": {
        "digits": {
            "datamodule": spec(
                "fl_lightning.datamodules.DigitsDataModule",
                partitioner=spec("fl_lightning.partitioners.DirichletPartitioner", num_clients=10, alpha=0.3, seed=0),
                split=spec("fl_lightning.data.ClientSplit", num_folds=5, fold="$fold", seed=0),
                batch_size=64,
            ),
            "model": spec(
                "fl_lightning.models.LogisticRegressionClassifier", in_features=3072, num_classes=10, lr="$lr"
            ),
            "values": {"lr": 0.01},
        }
    },
    "methods": {
        "FedAvg": {"callback": spec("fl_lightning.FedAvg", clients_per_round=2)},
        "RADFed": {"callback": spec("fl_lightning.RADFed", redistributions=2, clients_per_round=2)},
    },
    "trainer": {"max_epochs": 4, "accelerator": "cpu"},
    "select": "best on validation",
}


def small(**changes: Any) -> dict[str, Any]:
    """Return the table with other entries at the top level."""
    return {**copy.deepcopy(TABLE), **copy.deepcopy(changes)}


def alone(method: str = "FedAvg", callbacks: Sequence[Any] = (), **changes: Any) -> dict[str, Any]:
    """Return the table with one method alone, with further callbacks and with other entries at the top level."""
    methods = {method: {**TABLE["methods"][method], "callbacks": list(callbacks)}}
    return small(**{"methods": methods, **changes})


def with_data(**changes: Any) -> dict[str, Any]:
    """Return the table with other entries of its data set."""
    return small(data={"digits": {**TABLE["data"]["digits"], **changes}})


def with_methods(**methods: Any) -> dict[str, Any]:
    """Return the table with entries added to its methods."""
    table = small()
    for name, entries in methods.items():
        table["methods"].setdefault(name, {}).update(entries)
    return table
