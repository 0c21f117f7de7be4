"""What holds for each client by itself also holds in a stack: clipping, dropout."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.diagnostics import RoundObserver
from fl_lightning.executors import SequentialExecutor, VectorizedExecutor

EXECUTORS = ("sequential", "vectorized")
Name = Literal["sequential", "vectorized"]


class Slope(L.LightningModule):
    """The loss is <w, x>, so that a client's gradient is the mean of its samples; with dropout of its inputs."""

    def __init__(self, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.dropout = dropout

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = F.dropout(batch[0], self.dropout) if self.dropout else batch[0]
        return (x @ self.w).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Updates(RoundObserver):
    """Keeps each client's update."""

    def __init__(self) -> None:
        self.of_client: dict[int, list[float]] = {}

    def on_client_end(self, trainer: Any, module: Any, result: Any) -> None:
        self.of_client[result.task.client] = result.delta.round(decimals=6).tolist()


def updates(module: Slope, rows: list[list[float]], executor: Name, **options: Any) -> dict[int, list[float]]:
    """Return each client's update in four equal steps, in a round after the one in which a stack is tried."""
    trains = VectorizedExecutor() if executor == "vectorized" else SequentialExecutor()
    watch, callback = Updates(), FedAvg(1.0, executor=trains, seed=1)
    clients = [(torch.tensor([row] * 4, dtype=torch.float64),) for row in rows]
    trainer = quiet_trainer(max_epochs=2, callbacks=[callback, watch], **options)
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=1))
    # where a stack differs from clients that train alone, it is not used
    assert getattr(trains, "cause", None) is None
    return watch.of_client


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_clients_gradient_is_scaled_down_to_the_norm_and_never_up(executor: Name) -> None:
    # norms 5, 0.5 and 1: the first becomes (3, 4) / 5, the others stay; four steps with rate 1
    moved = updates(Slope(2), [[3.0, 4.0], [0.3, 0.4], [0.0, 1.0]], executor, gradient_clip_val=1.0)
    for client, expected in enumerate([[-2.4, -3.2], [-1.2, -1.6], [0.0, -4.0]]):
        assert moved[client] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_clients_of_a_round_draw_masks_of_their_own(executor: Name) -> None:
    moved = updates(Slope(64, dropout=0.5), [[1.0] * 64] * 3, executor)
    assert all(set(update) <= {0.0, -2.0, -4.0, -6.0, -8.0} for update in moved.values())
    assert len({tuple(update) for update in moved.values()}) == 3
