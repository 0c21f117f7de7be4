"""Batches whose tensors lie in memory in another way than row by row keep their strides in a stack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import ClientDatasetsModule, FedAvg

ROWS, COLUMNS = 4, 6
#: How a batch is laid out, and the strides that it has then.
LAYOUTS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "rows": (lambda x: x, (6, 1)),
    "columns": (lambda x: x.t().contiguous().t(), (1, 4)),
    "gaps": (lambda x: x.repeat_interleave(2, 1)[:, ::2], (12, 2)),
    "repeats": (lambda x: x[:, :1].expand(-1, COLUMNS), (6, 0)),
    "images": (lambda x: x.view(ROWS, 2, 1, 3).to(memory_format=torch.channels_last), (6, 1, 6, 2)),
}


def weighted(strides: tuple[int, ...]) -> int:
    return sum(place * stride for place, stride in enumerate(strides, 1))


class Strided(Quadratic):
    """Adds up inputs, weighted by the strides of the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.w * batch["x"].sum() * weighted(batch["x"].stride())


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_strides_are_those_of_the_client_alone(layout: str, executor: Any) -> None:
    # the first clients' rows lie in order
    def collate(drawn: list[tuple[int, Tensor]]) -> dict[str, Tensor]:
        x = torch.stack([row for _, row in drawn])
        return {"x": LAYOUTS[layout][0](x) if drawn[0][0] >= 4 else x}

    clients = [[(k, torch.full((COLUMNS,), 1.0 + k, dtype=torch.float64))] * 2 * ROWS for k in range(8)]
    data = ClientDatasetsModule(clients, collate_fn=collate, batch_size=ROWS, split=None)
    module, algorithm = Strided(1e-3), FedAvg(1.0, executor=executor, weighting="uniform")
    quiet_trainer(max_epochs=1, callbacks=[algorithm]).fit(module, datamodule=data)
    # two batches of each client; a batch of client k holds 24 values of 1 + k
    steps = [2 * 24 * (1 + k) * weighted(LAYOUTS["rows" if k < 4 else layout][1]) for k in range(8)]
    assert module.w.item() == pytest.approx(-1e-3 * sum(steps) / 8, rel=1e-12)
