"""What a new user gets wrong first: the error names what was given and what to write instead."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from helpers.comparison import Classifier, ValidatedClassifier, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor

from fl_lightning import ClientMetrics, FedALA, FedAvg, FedProx, TensorDataModule, WithinClientSplit


def data(**options: Any) -> TensorDataModule:
    return TensorDataModule(clients_of(8, 8), batch_size=4, **options)


def fit(*callbacks: Any, module: Any = None, datamodule: Any = None, **options: Any) -> None:
    trainer = quiet_trainer(callbacks=list(callbacks), **{"max_epochs": 2, **options})
    trainer.fit(module or Classifier(), datamodule=datamodule or data())


def test_a_class_in_the_place_of_a_callback() -> None:
    with pytest.raises(TypeError, match=r"`callbacks`.* class FedAvg.*FedAvg\(\.\.\.\)"):
        fit(FedAvg)


def test_a_class_in_the_place_of_a_data_module() -> None:
    with pytest.raises(TypeError, match=r"`datamodule`.* class TensorDataModule\. Call it: TensorDataModule"):
        fit(FedAvg(2), datamodule=TensorDataModule)


def test_max_steps_ends_a_whole_round_and_the_line_says_after_how_many_steps(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lightning.pytorch")
    # Two clients take two steps each in a round.
    fit(FedAvg(2), max_steps=5, max_epochs=-1)
    [line] = [record.message for record in caplog.records if "stopped" in record.message]
    assert "`max_steps=5` reached in round 2, which ends with step 8" in line


def test_a_second_fit_of_a_trainer_that_has_done_its_rounds_warns() -> None:
    trainer = quiet_trainer(callbacks=[FedAvg(2)], max_epochs=2)
    trainer.fit(Classifier(), datamodule=data())
    with pytest.warns(UserWarning, match="trained no round: the trainer had done its 2 before.*max_epochs"):
        trainer.fit(Classifier(), datamodule=data())


class Masked(ValidatedClassifier):
    """Its ``forward`` takes two arguments."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layers(x * mask)


def test_metrics_of_clients_with_another_forward() -> None:
    with pytest.raises(TypeError, match="mask") as caught:
        fit(FedAvg(2), ClientMetrics(), module=Masked(), datamodule=data(split=WithinClientSplit(val=0.25)))
    assert "`Masked.forward` was called" in caught.value.__notes__[0]


def test_fedala_says_why_its_clients_are_not_stacked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lightning.pytorch")
    fit(FedALA("layers.2", 2, executor="vectorized"))
    assert "learns how to mix" in caplog.text


class StepsItself(Classifier):
    """Steps an optimizer of its own in ``training_step``, and returns no loss."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.zero_grad()
        self.loss(batch).backward()
        optimizer.step()


def test_an_objective_without_effect_on_a_step_that_lightning_does_not_see() -> None:
    with pytest.raises(ValueError, match="`configure_optimizers`"):
        fit(FedProx(0.1, 2), module=StepsItself())
