"""Sparse buffers stay where they are, as complex ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda a: a,
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
}


class Graph(Module):
    """Mixes features by a matrix."""

    def __init__(self, layout: str) -> None:
        super().__init__(nn.Linear(6, 3))
        adjacency = torch.eye(6, dtype=torch.float64) + torch.diag(torch.ones(5, dtype=torch.float64), 1)
        self.register_buffer("adjacency", LAYOUTS[layout](adjacency))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        mixed = (self.adjacency @ batch[0].T).T
        return F.cross_entropy(self.layers(mixed), batch[1])


def fitted(layout: str, kind: type[Graph] = Graph) -> Graph:
    torch.manual_seed(0)
    module = kind(layout)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor="sequential", seed=1)])
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    return module


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_a_sparse_matrix_trains_as_a_dense_one(layout: str) -> None:
    expected, module = fitted("dense"), fitted(layout)
    torch.testing.assert_close(module.layers.weight, expected.layers.weight, atol=1e-12, rtol=0)
    assert torch.equal(module.adjacency.to_dense(), expected.adjacency)
