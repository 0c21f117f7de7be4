"""What travels is the same for every executor: compression, privacy, robust rules, attacks, FedNova, q-FedAvg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.comparison import Classifier, clients_of
from helpers.toys import quiet_trainer

from fl_lightning import (
    AggregationCallback,
    BernoulliSampler,
    FedAdam,
    FedAvg,
    FedBuff,
    FedNova,
    QFedAvg,
    RADFed,
    TensorDataModule,
)
from fl_lightning.parts import (
    ALittleIsEnough,
    DifferentialPrivacy,
    Median,
    NearestNeighborMixing,
    SecureAggregation,
    SignSGD,
    TopK,
)


def private() -> DifferentialPrivacy:
    return DifferentialPrivacy(0.1, noise_multiplier=0.5, delta=1e-3)


MAKE: dict[str, Callable[..., AggregationCallback]] = {
    "FedAvg-TopK": lambda **k: FedAvg(4, exchange=[TopK(0.3), SignSGD(link="down")], **k),
    "RADFed-TopK": lambda **k: RADFed(2, 4, exchange=TopK(0.3), **k),
    "FedBuff-TopK": lambda **k: FedBuff(2, 4, exchange=TopK(0.3), **k),
    "FedAvg-private": lambda **k: FedAvg(sampler=BernoulliSampler(0.6), weighting="uniform", exchange=private(), **k),
    "FedAdam-private": lambda **k: FedAdam(sampler=BernoulliSampler(0.6), weighting="uniform", exchange=private(), **k),
    "FedAvg-secure": lambda **k: FedAvg(4, weighting="uniform", exchange=SecureAggregation(1.0), **k),
    "FedAvg-attacked": lambda **k: FedAvg(
        5, exchange=ALittleIsEnough([1, 2], z=1.0), aggregation=Median(before=NearestNeighborMixing(1)), **k
    ),
    "RADFed-Median": lambda **k: RADFed(2, 4, aggregation=Median(), **k),
    "FedBuff-Median": lambda **k: FedBuff(2, 4, aggregation=Median(), **k),
    "FedNova": lambda **k: FedNova(4, mu=0.1, **k),
    "QFedAvg": lambda **k: QFedAvg(1.0, 4, **k),
}


@pytest.mark.parametrize("name", MAKE)
def test_stacked_clients_send_what_single_ones_do(name: str) -> None:
    ends: list[dict[str, Any]] = []
    for executor in ("sequential", "vectorized"):
        module = Classifier().double()
        clients = [(x.double(), y) for x, y in clients_of(9, 14, 6, 11, 8, 12)]
        callback = MAKE[name](seed=3, executor=executor)
        trainer = quiet_trainer(max_epochs=4, callbacks=[callback])
        trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=4))
        ends.append(
            {
                "weights": torch.cat([p.detach().flatten() for p in module.parameters()]),
                "traffic": vars(callback.algorithm.traffic),
                "logged": {n: float(v) for n, v in trainer.callback_metrics.items() if n.startswith("fed/")},
            }
        )
    assert torch.allclose(ends[0]["weights"], ends[1]["weights"], rtol=0, atol=1e-9)
    assert ends[0]["traffic"] == ends[1]["traffic"]
    assert ends[0]["logged"] == ends[1]["logged"]
