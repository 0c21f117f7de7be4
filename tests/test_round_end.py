"""The end of a round is one step: what interrupts it comes after it, and what fails in it is never saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import Net, data
from helpers.poked import MAKE, OPTIONS, Poked, fail, fit, outcome, rounds_in, uninterrupted
from helpers.toys import Quadratic, quiet_trainer
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from fl_lightning import FedAvg, FederatedCheckpoint, TensorDataModule
from fl_lightning.diagnostics import CentralTwin


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: it is ignored in the background, and by Lightning once it has seen one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def press_twice() -> None:
    press()
    press()


class AtRoundEnd(Callback):
    """Does something in ``on_round_end`` of the third round."""

    def __init__(self, action: Any) -> None:
        self.action = action

    def on_round_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 2:
            self.action(trainer)


@pytest.mark.parametrize("name", ["FedDyn", "RADFed", "FedBuff"])
def test_a_checkpoint_of_the_hook_on_round_end_has_the_round_behind_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.ckpt"
    fit(MAKE[name](Poked()), AtRoundEnd(lambda trainer: trainer.save_checkpoint(path)), rounds=3)
    assert rounds_in(path) == 3
    assert outcome(fit(MAKE[name](Poked()), ckpt_path=path)) == uninterrupted(name)


@pytest.mark.parametrize("name", ["FedAvg", "FedBuff"])
def test_an_error_in_the_hook_on_round_end_leaves_the_round_done(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError):
        fit(MAKE[name](Poked()), AtRoundEnd(lambda trainer: fail()), OnExceptionCheckpoint(tmp_path))
    path = tmp_path / "on_exception.ckpt"
    assert rounds_in(path) == 3
    assert outcome(fit(MAKE[name](Poked()), ckpt_path=path)) == uninterrupted(name)


@pytest.mark.parametrize(
    ("name", "method"),
    [("Scaffold", "published"), ("RADFed", "published"), ("FedBuff", "published"), ("FedAvgM", "merged")],
)
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_until_the_round_is_done(name: str, method: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        fit(MAKE[name](Poked(method, press)), OnExceptionCheckpoint(tmp_path))
    path = tmp_path / "on_exception.ckpt"
    assert rounds_in(path) == 3
    assert outcome(fit(MAKE[name](Poked()), ckpt_path=path)) == uninterrupted(name)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_does_not_wait_and_nothing_is_saved(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="lies between two rounds"):
        fit(MAKE["FedDyn"](Poked("published", press_twice)), OnExceptionCheckpoint(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_handler_of_ctrl_c_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    fit(MAKE["FedAvg"](Poked()), rounds=1)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("name", "method"),
    [("FedAvgM", "merged"), ("FedDyn", "on_round_end"), ("RADFed", "merged"), ("RADFed", "published")],
)
def test_a_round_whose_end_fails_is_not_saved_and_the_one_before_is_kept(
    name: str, method: str, tmp_path: Path
) -> None:
    kept, module = FederatedCheckpoint(tmp_path, save_top_k=0, save_on_exception=True), Net()
    number = 2 if (name, method) == ("RADFed", "merged") else 3  # a cycle has two rounds
    callback = MAKE[name](Poked(method, fail, number))
    trainer = quiet_trainer(max_epochs=5, callbacks=[callback, kept], enable_checkpointing=True)
    with (
        pytest.raises(ArithmeticError),
        pytest.warns(UserWarning, match="last.ckpt"),
    ):
        trainer.fit(module, datamodule=data(8))
    path = tmp_path / "last.ckpt"
    before = torch.load(path, weights_only=True)["state_dict"]
    assert rounds_in(path) == trainer.current_epoch == (3 if method == "merged" and name == "RADFed" else 2)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    with pytest.raises(RuntimeError, match="between two rounds"):
        trainer.save_checkpoint(tmp_path / "torn.ckpt")
    with pytest.raises(RuntimeError, match="lies between two rounds"):
        trainer.fit(module, datamodule=data(8))
    assert not (tmp_path / "torn.ckpt").exists()
    assert outcome(fit(MAKE[name](Poked()), ckpt_path=path)) == uninterrupted(name)
    # all parts begin anew, so the callback may be the same
    assert outcome(fit(callback, ckpt_path=path)) == uninterrupted(name)


def test_an_asynchronous_round_whose_end_fails_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="lies between two rounds"):
        fit(MAKE["FedBuff"](Poked("published", fail)), OnExceptionCheckpoint(tmp_path))
    assert not list(tmp_path.iterdir())


class FailingSchedule(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

        def factor(round_index: int) -> float:
            if round_index == 3:
                fail()
            return 0.5**round_index

        return [optimizer], [LambdaLR(optimizer, factor)]


def test_a_schedule_that_fails_after_the_server_has_acted_is_not_saved(tmp_path: Path) -> None:
    module = FailingSchedule()
    with pytest.raises(RuntimeError, match="lies between two rounds"):
        fit(MAKE["FedAvg"](Poked()), OnExceptionCheckpoint(tmp_path), module=module)
    two_rounds = Net()
    two_rounds.configure_optimizers = FailingSchedule.configure_optimizers.__get__(two_rounds)  # type: ignore[method-assign]
    fit(MAKE["FedAvg"](Poked()), module=two_rounds, rounds=2)
    assert all(torch.equal(value, two_rounds.state_dict()[name]) for name, value in module.state_dict().items())


class Halving(Quadratic):
    """Its learning rate halves with each round."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [ExponentialLR(optimizer, 0.5)]


def test_hooks_of_a_rounds_end_see_the_next_learning_rate_and_the_twin_trains_with_the_last() -> None:
    rates: list[float] = []
    distances: list[float] = []

    class Look(Callback):
        def on_round_end(self, trainer: Any, module: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])
            distances.append(twin.values["fed/central_distance"])

    twin, module = CentralTwin(), Halving(0.5)
    clients = [(torch.ones(1).double(), torch.full((1,), 8.0).double())]
    trainer = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, **OPTIONS), twin, Look()])
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=None))
    # from 0 half, a quarter and an eighth of the way to 8: 4, 5, 5.375; one client alone is central training
    assert module.w.item() == 5.375
    assert rates == [0.25, 0.125, 0.0625]
    assert distances == [0.0, 0.0, 0.0]
