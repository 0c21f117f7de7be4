"""Shapley values by hand, and of a round."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Fixed, quiet_trainer
from matplotlib.image import imread
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.diagnostics import Contribution
from fl_lightning.diagnostics.contribution import sampled_shapley_values, shapley_values

# Client 0 and client 1 are worth something together alone; client 2 adds 1 to whomever it meets.
WORTHS = {(): 0.0, (0,): 0.0, (1,): 0.0, (2,): 1.0, (0, 1): 6.0, (0, 2): 1.0, (1, 2): 1.0, (0, 1, 2): 7.0}


def worth(coalition: frozenset[int]) -> float:
    return WORTHS[tuple(sorted(coalition))]


def test_shapley_values_share_what_clients_gain_together() -> None:
    assert shapley_values(3, worth) == pytest.approx([3.0, 3.0, 1.0], abs=1e-15)
    everyone = list(permutations(range(3)))
    assert sampled_shapley_values(3, worth, everyone) == pytest.approx([3.0, 3.0, 1.0], abs=1e-14)
    assert sampled_shapley_values(3, worth, [(0, 1, 2)]) == [0.0, 6.0, 1.0]


class Mover(L.LightningModule):
    """A client moves w by its learning rate to its mean target; the prediction of every sample is w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w + 0 * x

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return 0.5 * (self(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def closeness(preds: Tensor, target: Tensor) -> float:
    return -float((preds - target).square().mean())


def samples(target: float, number: int = 2) -> tuple[Tensor, Tensor]:
    return torch.zeros(number, 1, dtype=torch.float64), torch.full((number, 1), target, dtype=torch.float64)


def fit(contribution: Contribution, *, rounds: int = 1, algorithm: Any = None, more: Any = ()) -> Mover:
    data = fl.TensorDataModule([samples(4.0, 4), samples(2.0), samples(-8.0), *more], val=samples(3.0))
    module = Mover()
    callbacks = [algorithm or fl.FedAvg(1.0, seed=1), contribution]
    quiet_trainer(max_epochs=rounds, callbacks=callbacks).fit(module, datamodule=data)
    return module


def test_a_round_s_values_are_those_of_the_models_of_its_coalitions() -> None:
    contribution = Contribution(metric=closeness, exact_up_to=3)
    module = fit(contribution)
    # The clients' models are 2, 1 and -4, of 4, 2 and 2 samples; a coalition's is their weighted mean.
    models = {(): 0.0, (0,): 2.0, (1,): 1.0, (2,): -4.0, (0, 1): 5 / 3, (0, 2): 0.0, (1, 2): -1.5, (0, 1, 2): 0.25}
    by_hand = shapley_values(3, lambda coalition: -((models[tuple(sorted(coalition))] - 3.0) ** 2))
    assert contribution.total == pytest.approx(dict(enumerate(by_hand)), abs=1e-12)
    assert sum(by_hand) == pytest.approx(9.0 - 2.75**2)
    assert contribution.records[2].leave_one_out == pytest.approx((4 / 3) ** 2 - 2.75**2)
    # The server's model is as without the callback.
    assert float(module.w) == pytest.approx(0.25, abs=1e-15)
    # Fine-tuning after the round is no part of it.
    tuned = Contribution(metric=closeness)
    fit(tuned, algorithm=fl.FedAvgFineTuned(1.0, seed=1))
    assert tuned.records == contribution.records
    # The mean over many orders is near.
    sampled = Contribution(metric=closeness, exact_up_to=2, permutations=1000)
    fit(sampled)
    assert list(sampled.total.values()) == pytest.approx(by_hand, abs=2.0)
    # A client that hands in no number has no part, in whatever order clients are drawn.
    fit(contribution, algorithm=fl.FedAvg(sampler=Fixed([3, 1, 0])), more=[samples(math.nan)])
    assert [(record.round, record.client) for record in contribution.records] == [(0, 0), (0, 1)]


def test_each_round_of_each_seed_has_orders_of_its_own() -> None:
    def orders(seed: int) -> list[float]:
        # The server stays almost where it is, so that the same coalitions have the same worth in each round.
        contribution = Contribution(metric=closeness, exact_up_to=1, permutations=1)
        fit(contribution, rounds=6, algorithm=fl.Federated(3, seed=seed, server=parts.Mixing(1e-9)))
        return [round(record.shapley, 3) for record in contribution.records]

    assert len({*orders(1)[::3]}) > 1
    assert orders(1) == orders(1) != orders(2)


def test_sampled_values_depend_on_the_seed_alone_and_add_up_and_go_on_in_a_resumed_fit() -> None:
    first, again, resumed = (Contribution(metric=closeness, exact_up_to=1, permutations=4) for _ in range(3))
    fit(first, rounds=2)
    fit(again, rounds=2)
    resumed.load_state_dict(first.state_dict())
    assert first.records == again.records == resumed.records
    gain = sum(record.shapley for record in first.records if record.round == 0)
    assert gain == pytest.approx(9.0 - 2.75**2)


@pytest.mark.parametrize("ending", [".CSV", ".PNG"])
def test_contributions_are_written_when_the_fit_ends(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / f"contribution{ending}"
    contribution = Contribution(path, metric=closeness)
    fit(contribution, rounds=2)
    contribution.on_train_end(None, None)  # type: ignore[arg-type]
    assert path.stat().st_size > 0
    if ending == ".PNG":
        # 4 by 7 inches of 120 points
        assert imread(path).shape[:2] == (480, 840)
    else:
        head, *rows = [tuple(line.split(",")) for line in path.read_text("utf-8").splitlines()]
        assert head == ("round", "client", "shapley", "leave_one_out")
        assert rows == [tuple(map(str, record)) for record in contribution.records]
