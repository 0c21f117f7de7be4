"""The server's model keeps its type, whatever type a part returns, and a resumed run goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.comparison import Classifier, assert_same_weights, clients_of, train_federatedly, weights_of
from helpers.given_parts import Merge, Plan, Step, Way
from torch import Tensor

from fl_lightning import AggregationCallback, FedAvg, Federated
from fl_lightning.parts import ServerOptimizer


class Velocity(ServerOptimizer):
    """Momentum in float64, with the velocity added to the model as it is."""

    def __init__(self) -> None:
        self.velocity: Any = 0
        self.types: list[tuple[torch.dtype, torch.dtype]] = []

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.types.append((model.dtype, aggregate.dtype))
        self.velocity = 0.9 * self.velocity + (aggregate - model)
        return model + self.velocity

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": self.velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.velocity = state["velocity"]


def fit(callback: AggregationCallback, rounds: int, path: Path | None = None) -> Any:
    return train_federatedly(
        Classifier(), clients_of(5, 8, 6), algorithm=callback, max_epochs=rounds, ckpt_path=path and str(path)
    )


def test_a_server_optimizer_in_double_precision_resumes_bit_for_bit(tmp_path: Path) -> None:
    server = Velocity()
    whole = fit(Federated(1.0, server=server, seed=1), 4)
    assert server.types == [(torch.float32, torch.float64)] * 4
    fit(Federated(1.0, server=Velocity(), seed=1), 2).save_checkpoint(tmp_path / "half.ckpt")
    resumed = fit(Federated(1.0, server=Velocity(), seed=1), 4, tmp_path / "half.ckpt")
    assert_same_weights(weights_of(whole.lightning_module), weights_of(resumed.lightning_module))


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
@pytest.mark.parametrize("method", ["step", "merge", "merged", "published", "download", "upload", "start", "publish"])
def test_the_server_and_clients_keep_their_types(method: str, kind: torch.dtype) -> None:
    types = Velocity()
    callback = {
        "step": lambda: Federated(1.0, server=Step(lambda model, aggregate: aggregate.to(kind))),
        "merge": lambda: Federated(1.0, server=types, aggregation=Merge(lambda model, mean: mean.to(kind))),
        "merged": lambda: Federated(1.0, server=types, exchange=Way(merged=lambda aggregate: aggregate.to(kind))),
        "published": lambda: FedAvg(1.0, exchange=Way(published=lambda model: model.to(kind))),
        "download": lambda: FedAvg(1.0, exchange=Way(download=lambda model: model.to(kind))),
        "upload": lambda: FedAvg(1.0, exchange=Way(upload=lambda result: result.with_vector(result.vector.to(kind)))),
        "start": lambda: Federated(1.0, schedule=Plan(start=lambda model: model.to(kind))),
        "publish": lambda: Federated(1.0, schedule=Plan(publish=lambda model: model.to(kind))),
    }[method]()
    fit(callback, 2)
    assert callback.algorithm.server.model.dtype == torch.float32
    assert callback.algorithm.shown.dtype == torch.float32
    assert set(types.types) <= {(torch.float32, torch.float64)}


def test_an_update_may_carry_a_graph() -> None:
    scale = torch.nn.Parameter(torch.tensor(0.5))
    scaled = Way(upload=lambda result: result.with_delta(result.delta * scale))
    plain = Way(upload=lambda result: result.with_delta(result.delta * 0.5))
    left, right = (fit(FedAvg(1.0, exchange=each, seed=1), 2).lightning_module for each in (scaled, plain))
    assert_same_weights(weights_of(left), weights_of(right))
