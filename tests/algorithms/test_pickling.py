"""Callbacks can be pickled, before a fit and after it, and a copy goes on as the original does."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import ClientMetrics, FedAvg, FedBuff, FederatedCheckpoint
from fl_lightning.diagnostics import (
    CentralTwin,
    Communication,
    LocalAccuracy,
    LocalCompute,
    LocalDivergence,
    Timeline,
    UpdateNorms,
)
from fl_lightning.parts.asynchronous import exponential, hinge, polynomial
from fl_lightning.parts.asynchronous.staleness import staleness_function

PRIVATE = {name for name in ALGORITHMS if "private" in name}  # a second fit of the same model would count from 0
OWN_FUNCTIONS = {"FedProx", "Scaffold-1", "FedAsync"}  # a function without a name cannot be pickled


class Scoring(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def fit(callback: L.Callback, module: L.LightningModule, rounds: int) -> torch.Tensor:
    quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=data())
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - OWN_FUNCTIONS))
def test_a_copy_goes_on_as_the_original(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = ALGORITHMS[name](seed=1, executor="sequential")
    module = Net()
    fresh, other = pickle.loads(pickle.dumps(first)), deepcopy(module)
    assert torch.equal(fit(first, module, 4), fit(fresh, other, 4))
    again = pickle.loads(pickle.dumps(first))
    module = Net() if name in PRIVATE else module
    other = deepcopy(module)
    assert torch.equal(fit(first, module, 3), fit(again, other, 3))


@pytest.mark.parametrize("executor", ["auto", "vectorized"])
def test_a_copy_keeps_what_the_executor_chose(executor: Any) -> None:
    callback = FedAvg(4, executor=executor)
    fit(callback, Net(), 2)
    again = pickle.loads(pickle.dumps(callback))
    assert repr(again) == repr(callback)
    assert fit(again, Net(), 1).isfinite().all()


def test_other_callbacks_are_pickled_after_a_fit(tmp_path: Path) -> None:
    others: list[Any] = [
        *(ClientMetrics(), FederatedCheckpoint(tmp_path), CentralTwin(), Communication(), LocalAccuracy()),
        *(LocalCompute(), LocalDivergence(), UpdateNorms()),
    ]
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(4), *others], enable_checkpointing=True)
    federation = data()
    federation.batch_size = None  # batches of 4 may leave one sample of all clients' together
    trainer.fit(Scoring(), datamodule=federation)
    timeline = Timeline()
    quiet_trainer(max_epochs=1, callbacks=[FedBuff(2, 2), timeline]).fit(Net(), datamodule=data())
    for callback in [*others, timeline]:
        assert type(pickle.loads(pickle.dumps(callback))) is type(callback)


@pytest.mark.parametrize(
    ("staleness", "late", "expected"),
    [
        ("constant", 3, 1.0),
        ("polynomial", 3, 0.5),
        (polynomial(1.0), 3, 0.25),
        (hinge(0.5, 1), 1, 1.0),
        (hinge(0.5, 1), 5, 1 / 3),
        (exponential(0.5), 2, 0.36787944117144233),
    ],
)
def test_weights_of_late_results_are_pickled(staleness: Any, late: int, expected: float) -> None:
    function = staleness_function(staleness)
    assert pickle.loads(pickle.dumps(function))(late) == function(late) == pytest.approx(expected)
