"""A callback's class in place of a callback is refused in one sentence, and for good."""

from __future__ import annotations

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import EarlyStopping

from datamodules import DigitsDataModule
from fl_lightning import ClientMetrics, FedAvg, FederatedCheckpoint, FederatedDataModule, RADFed
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import IIDPartitioner


def digits() -> DigitsDataModule:
    return DigitsDataModule(IIDPartitioner(10), batch_size=16)


@pytest.mark.parametrize("kind", [FedAvg, RADFed, FederatedCheckpoint, ClientMetrics, EarlyStopping])
def test_the_class_of_a_callback_is_refused(kind: type[L.Callback]) -> None:
    trainer, model = quiet_trainer(max_epochs=1, callbacks=[kind]), MLPClassifier(in_features=3072, hidden=(4,))
    message = rf"^`callbacks` has the class {kind.__name__}. Call it: {kind.__name__}\(...\), and make a new Trainer.$"
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            trainer.fit(model, datamodule=digits())
    with pytest.raises(TypeError, match=message):  # nor does it train centrally
        trainer.fit(model, [(torch.zeros(1, 3072), torch.zeros(1, dtype=torch.int64))])


@pytest.mark.parametrize("kind", [DigitsDataModule, L.LightningDataModule])
def test_the_class_of_a_data_module_is_refused(kind: type[L.LightningDataModule]) -> None:
    trainer, model = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)]), MLPClassifier(in_features=3072, hidden=(4,))
    with pytest.raises(TypeError, match=rf"^`datamodule` has the class {kind.__name__}. Call it: {kind.__name__}\("):
        trainer.fit(model, datamodule=kind)


def test_a_setup_that_forgets_its_base_class_is_named() -> None:
    class Mine(DigitsDataModule):
        def setup(self, stage: str | None = None) -> None:
            self.stage = stage

    message = (
        r"^`Mine.setup` does not call `super\(\).setup\(...\)`, which reads the data and distributes them. Call it.$"
    )
    model = MLPClassifier(in_features=3072, hidden=(4,))
    with pytest.raises(TypeError, match=message):
        quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)]).fit(model, datamodule=Mine(IIDPartitioner(10)))


def test_a_setup_may_leave_out_its_base_class_once_the_data_are_there() -> None:
    class Once(DigitsDataModule):
        def setup(self, stage: str | None = None) -> None:
            if self._federation is None:
                super().setup(stage)

    data = Once(IIDPartitioner(10))
    for _ in range(2):
        data.setup()
    assert data.num_clients == 6


def test_a_constructor_that_forgets_its_base_class_is_named() -> None:
    class Mine(FederatedDataModule):
        def __init__(self) -> None:
            self.path = "x"

    with pytest.raises(
        RuntimeError, match=r"^`Mine.__init__` must call `super\(\).__init__\(partitioner, ...\)`, which"
    ):
        quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)]).fit(MLPClassifier(in_features=2), datamodule=Mine())
