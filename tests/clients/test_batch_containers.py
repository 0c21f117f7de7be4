"""A batch of any container reaches ``training_step`` as the data set or ``collate_fn`` made it."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import ClientDatasetsModule, FedAvg

Pair = namedtuple("Pair", "x name")


@dataclass
class Record:
    x: Tensor
    name: list[str]


class Encoding(UserDict[str, Any]):
    """Moves itself, as the batches of tokenisers do."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({key: value.to(device) if hasattr(value, "to") else value for key, value in self.items()})


def stack(samples: list[tuple[float, str]]) -> tuple[Tensor, list[str]]:
    xs, names = zip(*samples, strict=True)
    return torch.tensor(xs, dtype=torch.float64), list(names)


#: How samples become a batch of which type, and how a step reads inputs and names from it.
KINDS: dict[str, tuple[Any, type, Callable[[Any], Any]]] = {
    "dataclass": (lambda samples: Record(*stack(samples)), Record, lambda batch: (batch.x, batch.name)),
    "namedtuple": (lambda samples: Pair(*stack(samples)), Pair, lambda batch: batch),
    "Encoding": (lambda samples: Encoding(x=stack(samples)), Encoding, lambda batch: batch["x"]),
    "nested": (lambda samples: {"inputs": [stack(samples)], "note": None}, dict, lambda batch: batch["inputs"][0]),
    "default": (None, list, lambda batch: batch),
}


class Reading(LightningModule):
    """Moves half way to the mean of the batch, and remembers kinds and names."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.read, self.kinds = read, set[type]()
        self.names: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.kinds.add(type(batch))
        x, names = self.read(batch)
        self.names += names
        loss = (0.5 * (self.w - x) ** 2).mean()
        self.log("loss", loss, batch_size=len(x))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_train_on_batches_of_any_container(kind: str) -> None:
    # one batch a client: client 0 goes half way to 3, client 1 to 8, of 2 samples and 1
    clients: list[Any] = [[(2.0, "a"), (4.0, "b")], [(8.0, "c")]]
    collate, expected, read = KINDS[kind]
    data = ClientDatasetsModule(clients, batch_size=2, collate_fn=collate, shuffle=False)
    module = Reading(read)
    quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor="sequential")]).fit(module, datamodule=data)
    assert float(module.w.detach()) == pytest.approx((2 * 1.5 + 4.0) / 3, abs=1e-12)
    assert (sorted(module.names), module.kinds) == (["a", "b", "c"], {expected})
