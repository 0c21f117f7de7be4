"""Callbacks can be pickled, before a fit and after it, and a copy goes on as the original does."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.algorithms import ALGORITHMS, SPEEDS, Net, data, one_in
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import (
    ClientMetrics,
    DynamicWeightFedBuff,
    FedAsync,
    FedAvg,
    FedBuff,
    FederatedCheckpoint,
    RADFed,
)
from fl_lightning._lightning.plain_copies import plain_copy, same_content
from fl_lightning.diagnostics import (
    CentralTwin,
    Communication,
    LocalAccuracy,
    LocalCompute,
    LocalDivergence,
    Timeline,
    UpdateNorms,
)
from fl_lightning.parts import Momentum
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


@pytest.mark.parametrize("name", one_in(4, sorted(ALGORITHMS.keys() - OWN_FUNCTIONS)))
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


class Copies(L.Callback):
    """Copies the algorithm's callback in round 3: at its start, after each client, and at its end."""

    def __init__(self) -> None:
        self.copies: list[Any] = []
        self.states: list[Any] = []

    def copy(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 2:
            callback = trainer.callbacks[0]
            self.copies.append(pickle.loads(pickle.dumps(callback)))
            self.states.append(plain_copy(callback.algorithm.state_dict()))  # type: ignore[attr-defined]

    on_train_epoch_start = on_client_start = on_client_end = on_round_end = copy


ASYNCHRONOUS: dict[str, Any] = {
    "FedBuff": lambda: FedBuff(3, 4, speeds=SPEEDS, seed=1),
    "waiting": lambda: FedBuff(3, 4, wait_for_flush=True, speeds=SPEEDS, seed=1),
    "momentum": lambda: FedBuff(3, 4, server=Momentum(0.5), weighting="log", speeds=SPEEDS, seed=1),
    "drawn staleness": lambda: FedAsync(4, history=3, seed=1),
    "DynamicWeight": lambda: DynamicWeightFedBuff(3, 4, speeds=SPEEDS, seed=1),
}


@pytest.mark.parametrize("name", [*ASYNCHRONOUS, "FedAvg", "RADFed"])
def test_a_copy_of_a_round_under_way_holds_the_state_at_its_start(name: str) -> None:
    makers = {**ASYNCHRONOUS, "FedAvg": lambda: FedAvg(4, seed=1), "RADFed": lambda: RADFed(3, 4, seed=1)}
    copies, callback = Copies(), makers[name]()
    quiet_trainer(max_epochs=3, callbacks=[callback, copies]).fit(Net(), datamodule=data())
    assert len(copies.copies) > 6
    for copy, state in zip(copies.copies, copies.states, strict=True):
        assert same_content(copy.algorithm.state_dict(), state)
    *under_way, _ = copies.states
    assert all(same_content(state, copies.states[0]) for state in under_way)
    whole = fit(makers[name](), Net(), 4)
    for copy in (copies.copies[0], copies.copies[3], copies.copies[-1]):
        assert torch.equal(fit(copy, Net(), 4), whole)  # a new Trainer begins anew


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
