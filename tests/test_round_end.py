"""A round is a transaction: what interrupts its end comes after it, and what fails in it leaves no trace."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import Net
from helpers.poked import MAKE, OPTIONS, Poked, fail, fit, outcome, plain, rounds_in, uninterrupted
from helpers.toys import BodyAndHead, Quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR

from fl_lightning import FedAvg, FederatedCheckpoint, TensorDataModule
from fl_lightning.diagnostics import CentralTwin


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: it is ignored in the background, and by Lightning once it has seen one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.default_int_handler)
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class AtRoundEnd(Callback):
    """Saves in ``on_round_end`` of the third round, and fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_round_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 2:
            trainer.save_checkpoint(self.path)
            fail()


@pytest.mark.parametrize("name", MAKE)
def test_a_round_is_done_when_its_hook_is_called(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / "saved.ckpt", tmp_path / "on_exception.ckpt"]
    with pytest.raises(ArithmeticError):
        fit(MAKE[name](Poked()), AtRoundEnd(paths[0]), OnExceptionCheckpoint(tmp_path))
    states = [plain(torch.load(path, weights_only=True)) for path in paths]
    assert states[0]["state_dict"] == states[1]["state_dict"]
    assert rounds_in(paths[0]) == rounds_in(paths[1]) == 3
    assert outcome(fit(MAKE[name](Poked()), ckpt_path=paths[1])) == uninterrupted(name)


ENDS = [
    *(("FedAvgM", "on_aggregate"), ("FedDyn", "on_round_end"), ("RADFed", "on_aggregate"), ("RADFed", "on_publish")),
    *(("FedBuff", "on_aggregate"), ("FedBuff", "on_publish"), ("FedBuff", "on_round_end"), ("FedAvg", "on_publish")),
]


@pytest.mark.parametrize(("name", "method"), ENDS)
def test_an_end_that_fails_is_taken_back(name: str, method: str, tmp_path: Path) -> None:
    kept, module = FederatedCheckpoint(tmp_path, save_top_k=0, save_on_exception=True), Net()
    callback = MAKE[name](Poked(method, fail, 2))
    with pytest.raises(ArithmeticError):
        fit(callback, kept, OnExceptionCheckpoint(tmp_path), module=module)
    path = tmp_path / "on_exception.ckpt"
    before, after = (torch.load(each, weights_only=True) for each in (tmp_path / "last.ckpt", path))
    assert rounds_in(path) == rounds_in(tmp_path / "last.ckpt") >= 1
    states = [plain(each["callbacks"][callback.state_key]) for each in (before, after)]
    for state in states:
        del state["settings"]  # of which one names how the exchange fails
    assert states[0] == states[1]
    assert plain(dict(module.state_dict())) == plain(dict(before["state_dict"])) == plain(dict(after["state_dict"]))
    assert outcome(fit(MAKE[name](Poked()), ckpt_path=path)) == uninterrupted(name)
    # the callback that failed serves, too: it begins with the checkpoint's state
    assert outcome(fit(callback, ckpt_path=path)) == uninterrupted(name)


@pytest.mark.parametrize("name", ["FedAvg", "FedDyn", "FedBuff"])
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_at_the_end_of_a_round_leaves_a_whole_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        fit(MAKE[name](Poked("on_publish", press)), OnExceptionCheckpoint(tmp_path))
    path = tmp_path / "on_exception.ckpt"
    assert rounds_in(path) == 2
    assert outcome(fit(MAKE[name](Poked()), ckpt_path=path)) == uninterrupted(name)


class WithAction(Net):
    """Its schedule does something once, when it steps after the server has moved in the third round."""

    def __init__(self, action: Any) -> None:
        super().__init__()
        self.actions = [action]

    def configure_optimizers(self) -> Any:
        module = self

        class Acting(CosineAnnealingLR):
            def step(self, *args: Any) -> None:
                super().step(*args)
                if self.last_epoch == 3 and module.actions:
                    module.actions.pop()()

        [optimizer], _ = super().configure_optimizers()
        return [optimizer], [Acting(optimizer, T_max=7)]


@pytest.mark.parametrize(("action", "error", "rounds"), [(fail, ArithmeticError, 2), (press, SystemExit, 3)])
@pytest.mark.usefixtures("ctrl_c")
def test_a_schedule_that_fails_takes_the_round_back_and_ctrl_c_waits_for_it(
    action: Any, error: type[BaseException], rounds: int, tmp_path: Path
) -> None:
    with pytest.raises(error):
        fit(MAKE["FedDyn"](Poked()), OnExceptionCheckpoint(tmp_path), module=WithAction(action))
    path = tmp_path / "on_exception.ckpt"
    assert rounds_in(path) == rounds
    assert outcome(fit(MAKE["FedDyn"](Poked()), ckpt_path=path)) == uninterrupted("FedDyn")


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


def test_a_checkpoint_after_a_fit_holds_what_the_module_holds_then(tmp_path: Path) -> None:
    module = Quadratic(0.1)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    trainer.fit(module, TensorDataModule(quadratic_clients([1.0], [1.0])))
    with torch.no_grad():
        module.w.fill_(7.0)
    trainer.save_checkpoint(tmp_path / "later.ckpt")
    assert float(torch.load(tmp_path / "later.ckpt", weights_only=False)["state_dict"]["w"]) == 7.0


def test_no_gradient_of_a_client_stays_whatever_the_groups_of_the_optimizer() -> None:
    class Groups(BodyAndHead):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            groups = [{"params": self.body.parameters()}, {"params": self.head.parameters()}]
            return torch.optim.SGD(groups, lr=0.25)

    module = Groups()
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    trainer.fit(module, TensorDataModule(quadratic_clients([1.0], [1.0])))
    assert [parameter.grad for parameter in module.parameters()] == [None, None]
