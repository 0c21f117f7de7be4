"""Resuming before every client has trained, and what hooks write into the module between rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import Net, data
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning import FedAvg, FedBuff, FedDyn, PersonalParameters, RADFed, TensorDataModule
from fl_lightning.parts import Aggregation, ClientResult, ClientStates, Federation


class MeanOfKept(Aggregation):
    """The mean of every client's last parameters: an aggregation of a user's own with vectors of clients."""

    def on_fit_start(self, federation: Federation) -> None:
        self.states = ClientStates(federation, federation.model[: federation.num_parameters])

    def update(self, result: ClientResult) -> None:
        assert self.states is not None
        self.states.put(result.task.client, result.parameters)

    def merge(self, model: Tensor) -> Tensor | None:
        assert self.states is not None
        return torch.stack([self.states[client] for client in range(self.federation.num_clients)]).mean(0)


class SaveAfter(Callback):
    def __init__(self, round_index: int, path: Path) -> None:
        self.round_index, self.path = round_index, path

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == self.round_index:
            trainer.save_checkpoint(self.path)


def fit(callback: Any, *others: Callback, ckpt_path: Path | None = None) -> dict[str, Tensor]:
    module = Net()
    trainer = quiet_trainer(max_epochs=5, callbacks=[callback, *others])
    trainer.fit(module, datamodule=data(), ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(2, buffers="local", seed=1, executor="sequential"),
        lambda: FedAvg(2, partial="stale", seed=1, executor="sequential"),
        lambda: FedAvg(2, exchange=PersonalParameters("layers.0"), seed=1, executor="sequential"),
        lambda: FedDyn(0.1, 2, exchange=PersonalParameters("layers.4"), seed=1, executor="sequential"),
        lambda: RADFed(2, 2, exchange=PersonalParameters("layers.4"), seed=1, executor="sequential"),
        lambda: FedAvg(2, aggregation=MeanOfKept(), seed=1, executor="sequential"),
    ],
    ids=["local-buffers", "stale", "personal", "FedDyn-personal", "RADFed-personal", "own-states"],
)
@pytest.mark.parametrize("after", [0, 1])
def test_clients_that_have_not_trained_yet_begin_as_ever(make: Any, after: int, tmp_path: Path) -> None:
    # two of six clients train in a round, so that some have not after two rounds
    whole = fit(make(), SaveAfter(after, tmp_path / "saved.ckpt"))
    resumed = fit(make(), ckpt_path=tmp_path / "saved.ckpt")
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name


class Write(Callback):
    """Sets the weight at the end of the first round."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self._write)

    def _write(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 0:
            with torch.no_grad():
                module.w.fill_(8.0)


def train(callback: Any, hook: str) -> float:
    module = Quadratic(0.5)
    data_module = TensorDataModule(quadratic_clients([1.0, 1.0], [2.0, 4.0]), batch_size=None)
    quiet_trainer(max_epochs=2, callbacks=[callback, Write(hook)]).fit(module, datamodule=data_module)
    return float(module.w.detach())


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_round_end"])
def test_what_a_hook_writes_is_the_servers_model_from_then_on(hook: str) -> None:
    # round 2 goes half the way from 8 to each client's optimum: 5 and 6
    assert train(FedAvg(1.0), hook) == 5.5


def test_writing_before_a_rounds_clients_counts_too() -> None:
    # round 1 goes from 8, set at its start, to 5 and 6; round 2 from 5.5 to 3.75 and 4.75
    assert train(FedAvg(1.0), "on_train_epoch_start") == 4.25


@pytest.mark.parametrize("callback", [RADFed(3, 1.0), FedBuff(3, 1)])
def test_writing_while_clients_work_on_other_models_is_an_error(callback: Any) -> None:
    with pytest.raises(RuntimeError, match="weights were changed between two rounds"):
        train(callback, "on_train_epoch_end")
