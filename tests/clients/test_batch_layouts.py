"""Batches whose tensors lie in memory in another way than row by row keep their strides in a stack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import ClientDatasetsModule, FedAvg

ROWS, COLUMNS = 4, 6
LAYOUTS: dict[str, Any] = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "repeats": lambda x: x[:, :1].expand(-1, COLUMNS),
    "images": lambda x: x.view(ROWS, 2, 1, 3).to(memory_format=torch.channels_last).view(ROWS, 2, 1, 3),
}


class Strided(LightningModule):
    """Adds up inputs, weighted by the strides of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch["x"]
        return self.w * x.sum() * sum(place * stride for place, stride in enumerate(x.stride(), 1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def samples(client: int) -> list[tuple[int, Tensor]]:
    return [(client, torch.full((COLUMNS,), 1.0 + client, dtype=torch.float64)) for _ in range(2 * ROWS)]


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_strides_are_those_of_the_client_alone(layout: str, executor: str) -> None:
    # the trial sees the first clients, whose rows lie in order
    def collate(drawn: list[tuple[int, Tensor]]) -> dict[str, Tensor]:
        x = torch.stack([row for _, row in drawn])
        return {"x": LAYOUTS[layout](x) if drawn[0][0] >= 4 else x}

    module, data = (
        Strided(),
        ClientDatasetsModule(list(map(samples, range(8))), collate_fn=collate, batch_size=ROWS, split=None),
    )
    algorithm = FedAvg(1.0, executor=executor, weighting="uniform")
    quiet_trainer(max_epochs=1, callbacks=[algorithm]).fit(module, datamodule=data)
    # two batches of each client; a batch of client k holds 24 values of 1 + k
    strides = {"rows": (6, 1), "columns": (1, 4), "gaps": (12, 2), "repeats": (6, 0), "images": (6, 1, 6, 2)}
    factor = {name: sum(place * stride for place, stride in enumerate(of, 1)) for name, of in strides.items()}
    steps = [2 * 24 * (1 + k) * factor["rows" if k < 4 else layout] for k in range(8)]
    assert module.w.item() == pytest.approx(-1e-3 * sum(steps) / 8, rel=1e-12)
