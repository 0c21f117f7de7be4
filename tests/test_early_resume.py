"""Resuming before every client has trained, and what hooks write into the module between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import Net, data
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning import FedAvg, FedDyn, PersonalParameters, RADFed, TensorDataModule
from fl_lightning.parts import Aggregation, ClientResult, ClientVectors, Federation


class MeanOfKept(Aggregation):
    """The mean of every client's last parameters: an aggregation of a user's own with vectors of clients."""

    kept: ClientVectors

    def setup(self, federation: Federation) -> None:
        self.add_client_vectors("kept", federation.model[: federation.num_parameters])

    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor:
        for result in results:
            self.kept[result.client] = result.parameters
        return torch.stack([self.kept[client] for client in range(self.federation.num_clients)]).mean(0)


class SaveAfter(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)


def fit(callback: Any, *others: Callback, ckpt_path: Path | None = None) -> dict[str, Tensor]:
    module = Net()
    trainer = quiet_trainer(max_epochs=4, callbacks=[callback, *others])
    trainer.fit(module, datamodule=data(), ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in module.state_dict().items()}


OPTIONS: dict[str, Any] = {"seed": 1, "executor": "sequential"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(2, buffers="local", **OPTIONS),
        lambda: FedAvg(2, partial="stale", **OPTIONS),
        lambda: FedDyn(0.1, 2, exchange=PersonalParameters("layers.4"), **OPTIONS),
        lambda: RADFed(2, 2, exchange=PersonalParameters("layers.0"), **OPTIONS),
        lambda: FedAvg(2, aggregation=MeanOfKept(), **OPTIONS),
    ],
    ids=["local-buffers", "stale", "FedDyn-personal", "RADFed-personal", "own-states"],
)
def test_clients_that_have_not_trained_yet_begin_as_ever(make: Any, tmp_path: Path) -> None:
    # two of six clients train in a round, so that some have not after two rounds
    whole = fit(make(), SaveAfter(tmp_path / "saved.ckpt"))
    resumed = fit(make(), ckpt_path=tmp_path / "saved.ckpt")
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name


@pytest.mark.parametrize(
    ("hook", "end"),
    [
        # round 2 goes half the way from 8 to each client's optimum: 5 and 6
        *(("on_train_epoch_end", 5.5), ("on_round_end", 5.5)),
        # round 1 goes from 8, set at its start, to 5 and 6; round 2 from 5.5 to 3.75 and 4.75
        ("on_train_epoch_start", 4.25),
    ],
)
def test_what_a_hook_writes_is_the_servers_model_from_then_on(hook: str, end: float) -> None:
    class Write(Callback):
        """Sets the weight in the first round."""

        def write(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch == 0:
                with torch.no_grad():
                    module.w.fill_(8.0)

    setattr(Write, hook, Write.write)
    module = Quadratic(0.5)
    clients = TensorDataModule(quadratic_clients([1.0, 1.0], [2.0, 4.0]), batch_size=None)
    quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0), Write()]).fit(module, datamodule=clients)
    assert float(module.w.detach()) == end
