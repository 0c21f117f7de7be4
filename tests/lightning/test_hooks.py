"""Hooks of module and callbacks run in Lightning's order inside a round."""

from __future__ import annotations

import inspect
from typing import Any

import lightning as L
from helpers.comparison import Classifier, clients_of, samples, train_centrally, train_federatedly
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy

CALLBACK_HOOKS = [name for name, _ in inspect.getmembers(Callback, inspect.isfunction) if name.startswith("on_")]
MODULE_HOOKS = [
    *(name for name, _ in inspect.getmembers(L.LightningModule, inspect.isfunction) if name.startswith("on_")),
    *("training_step", "validation_step", "backward", "optimizer_step", "optimizer_zero_grad"),
    "configure_gradient_clipping",
]


def describe(owner: str, name: str, args: tuple[Any, ...]) -> str:
    """Return the call as text, with the round and the batch index where the hook has one."""
    indices = [str(arg) for arg in args if isinstance(arg, int)]
    return f"{owner}.{name}({', '.join(indices)})"


class Recorded(Classifier):
    """Writes down every hook that is called."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def _record(name: str) -> Any:
    stock = getattr(Recorded, name)

    def hook(self: Recorded, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(describe("module", name, args))
        return stock(self, *args, **kwargs)

    return hook


for _name in MODULE_HOOKS:
    setattr(Recorded, _name, _record(_name))


class Recorder(Callback):
    """Writes down every callback hook that is called."""

    def __init__(self, calls: list[str]) -> None:
        for name in CALLBACK_HOOKS:
            setattr(self, name, lambda *args, name=name, **_: calls.append(describe("callback", name, args)))


def test_all_hooks_of_a_round_in_order() -> None:
    federated: list[str] = []
    central: list[str] = []
    # seed 0 of `train_federatedly` puts client 0, with two batches, into the first slot
    train_federatedly(Recorded(federated), clients_of(8, 3), val=samples(5), callbacks=[Recorder(federated)])
    train_centrally(Recorded(central), samples(11), val=samples(5), callbacks=[Recorder(central)])
    # the one batch of the second client is its first for the module; callbacks count through the round
    expected = [call.replace("2)", "0)") if call.startswith("module.") else call for call in central]
    assert federated == expected
    assert "callback.on_train_batch_start(2)" in federated and "module.on_train_batch_start(2)" in central


def test_order_is_that_of_stock_lightning() -> None:
    federated: list[str] = []
    central: list[str] = []
    data, val = samples(14), samples(5)  # batches of 4, 4, 4 and 2; two steps
    settings: dict[str, Any] = {"max_epochs": 2, "accumulate_grad_batches": 3, "gradient_clip_val": 1.0}
    train_federatedly(Recorded(federated), [data], val=val, callbacks=[Recorder(federated)], **settings)
    train_centrally(Recorded(central), data, val=val, callbacks=[Recorder(central)], **settings)
    assert federated == central
    assert len(central) > 100


def test_skipped_batch_calls_the_hooks_that_lightning_calls() -> None:
    calls: dict[str, list[str]] = {"federated": [], "central": []}

    class Skips(Recorded):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            super().on_train_batch_start(batch, batch_idx)
            return -1 if batch_idx == 1 else None

    data = samples(14)
    # Lightning leaves the validation of an epoch out that was stopped; a client cannot stop that of a round
    train_federatedly(Skips(calls["federated"]), [data], callbacks=[Recorder(calls["federated"])], limit_val_batches=0)
    train_centrally(Skips(calls["central"]), data, callbacks=[Recorder(calls["central"])], limit_val_batches=0)
    assert calls["federated"] == calls["central"]


def test_a_strategy_sees_each_batch() -> None:
    seen: list[tuple[int, int]] = []

    class Watching(SingleDeviceStrategy):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            seen.append((len(batch[0]), batch_idx))

    train_federatedly(Classifier(), clients_of(8, 3), strategy=Watching("cpu"))
    assert seen == [(4, 0), (4, 1), (3, 0)]


def test_trainer_tells_epoch_and_last_batch_of_the_round() -> None:
    told: list[tuple[int, bool]] = []

    class Watcher(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert (trainer.training, pl_module.training, trainer.num_training_batches) == (True, True, 3)
            assert float(outputs["loss"]) > 0
            told.append((trainer.current_epoch, trainer.is_last_batch))

    train_federatedly(Classifier(), clients_of(3, 8), max_epochs=2, callbacks=[Watcher()])
    assert told == [(0, False), (0, False), (0, True), (1, False), (1, False), (1, True)]
