"""``federation.sum_over_ranks`` leaves its argument alone and takes tensors only; in one process as in two.

There are four clients, and all of them train in each round: 4, 8 and 12 uploads by the end of rounds 1, 2 and 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.parts import ClientResult, Exchange, Federation

CLIENTS = clients_that_reach([[1.0], [2.0], [3.0], [4.0]], [1] * 4)


class Uploads(Exchange):
    """Counts the uploads of the whole fit, on each process, and sums them when a round ends."""

    def on_fit_start(self, federation: Federation) -> None:
        self.mine = torch.zeros((), dtype=torch.int64)
        self.sums: list[int] = []

    def upload(self, result: ClientResult) -> ClientResult:
        self.mine = self.mine + 1
        return result

    def on_round_end(self) -> None:
        super().on_round_end()
        total = self.federation.sum_over_ranks(self.mine)
        self.sums.append(int(total))
        total.zero_()  # the sum is the caller's: writing to it changes nothing else

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = list(state["sums"])


class SumOf(Exchange):
    """Sums something when a round ends."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def upload(self, result: ClientResult) -> ClientResult:
        return result

    def on_round_end(self) -> None:
        self.federation.sum_over_ranks(self.value)


class Save(L.Callback):
    """Writes the sums of each process."""

    def __init__(self, exchange: Uploads, folder: Path) -> None:
        self.exchange, self.folder = exchange, folder

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.save(self.exchange.sums, self.folder / f"{trainer.global_rank}.pt")


def fit(exchange: Exchange, processes: int, *callbacks: Any) -> None:
    options: dict[str, Any] = {"devices": processes, "strategy": "ddp_fork"} if processes > 1 else {}
    federated = FedAvg(1.0, exchange=exchange, seed=1, executor="sequential")
    trainer = quiet_trainer(max_epochs=3, callbacks=[federated, *callbacks], **options)
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_running_count_is_summed_and_left_alone(processes: int, tmp_path: Path) -> None:
    exchange = Uploads()
    fit(exchange, processes, Save(exchange, tmp_path))
    for rank in range(processes):
        assert torch.load(tmp_path / f"{rank}.pt", weights_only=True) == [4, 8, 12]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("value", "shown"), [(3, "3"), (0.5, "0.5"), ([1, 2], r"\[1, 2\]")])
def test_only_tensors_are_summed(value: Any, shown: str, processes: int) -> None:
    text = rf"`federation.sum_over_ranks` needs a tensor, got {shown}\. Give a tensor, such as `torch\.tensor\(number, "
    with pytest.raises(Exception, match=text) as caught:
        fit(SumOf(value), processes)
    assert "TypeError" in repr(caught.value) + str(caught.value)


def test_a_federation_of_its_own_sums_likewise() -> None:
    federation = Federation(np.ones(2), torch.zeros(1), [1])
    given = torch.ones(2)
    total: Tensor = federation.sum_over_ranks(given)
    total.zero_()
    assert given.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"`federation.sum_over_ranks` needs a tensor, got 3"):
        federation.sum_over_ranks(3)  # type: ignore[arg-type]
