"""``self.log`` inside clients: values of a round are means over the samples of all its clients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import Classifier, clients_of, samples, train_centrally, train_federatedly
from helpers.memory import Memory
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torchmetrics import MeanMetric
from torchmetrics.wrappers import BootStrapper

from fl_lightning import FedAvg
from fl_lightning._lightning.logs.client_log import LoggedMean, logged_means


class Numbers(Classifier):
    """Logs numbers that the data carry: a batch's value is the mean of its second tensor."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        value = batch[1].mean()
        self.record(value, batch_idx)
        return (self.layers(batch[0]) * 0.0).sum()

    def record(self, value: Tensor, batch_idx: int) -> None:
        raise NotImplementedError


def numbers(*values: float) -> tuple[Tensor, Tensor]:
    """Return a client whose samples carry ``values``."""
    return torch.zeros(len(values), 4), torch.tensor(values)


# batches of two: means 2, 7 | 1, 4 | 10
CLIENTS = [numbers(1.0, 3.0, 7.0), numbers(1.0, 1.0, 4.0, 4.0), numbers(10.0)]
BATCH_MEANS = [2.0, 7.0, 1.0, 4.0, 10.0]


def logged(record: Any, callbacks: Any = (), **trainer: Any) -> tuple[L.Trainer, Memory]:
    """Train one round in which ``record(module, value, batch_idx)`` logs."""
    module = Numbers()
    module.record = lambda value, batch_idx: record(module, value, batch_idx)  # type: ignore[method-assign]
    module.on_after_batch_transfer = lambda batch, _: [*batch, "a text"]  # type: ignore[method-assign]
    memory = Memory()
    settings = {"logger": memory, "log_every_n_steps": 1, **trainer}
    return train_federatedly(module, CLIENTS, batch_size=2, callbacks=callbacks, **settings), memory


def number(trainer: L.Trainer, name: str) -> float:
    return float(trainer.callback_metrics[name])


def test_values_of_steps_and_rounds() -> None:
    """One fit for all forms of `self.log` that the zoo does not have."""

    def record(module: L.LightningModule, value: Tensor, batch_idx: int) -> None:
        module.log("batchwise", value, prog_bar=True)
        module.log("both", value, prog_bar=True, on_step=True, on_epoch=True)
        module.log("quiet", value, on_epoch=True, logger=False)
        module.log("by_index", value, on_epoch=True, batch_size=batch_idx + 1)
        module.log_dict({"one": value, "two": 2 * value}, on_step=False, on_epoch=True)
        # changes its type from batch to batch
        module.log("mixed", float(value) if batch_idx else value.double(), on_epoch=True)
        module.log("own", value, on_epoch=True, reduce_fx=min)
        module.log("shaped", value.view(-1) if batch_idx else value, on_epoch=True)

    seen: list[float] = []

    class Reader(Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            seen.append(number(trainer, "both"))  # reading does not change it

    trainer, memory = logged(record, callbacks=[Reader()])
    expected = {
        # a mean over samples, not that of batches, 24 / 5
        **dict.fromkeys(("both", "both_epoch", "quiet", "one", "mixed", "shaped"), 31 / 8),
        "two": 31 / 4,
        # clients' batch indices restart: weights 1, 2 | 1, 2 | 1
        "by_index": (2 + 2 * 7 + 1 + 2 * 4 + 10) / 7,
        "own": 1.0,
    }
    assert {name: number(trainer, name) for name in expected} == pytest.approx(expected)
    assert (trainer.callback_metrics["mixed"].dtype, trainer.callback_metrics["shaped"].ndim) == (torch.float64, 0)
    assert [step for step, _ in memory.values("batchwise")] == [0, 1, 2, 3, 4]
    for values in (seen, *([value for _, value in memory.values(name)] for name in ("batchwise", "both_step"))):
        assert sorted(values) == sorted(BATCH_MEANS)
    assert {row["epoch"] for _, row in memory.rows if "batchwise" in row} == {0}
    assert memory.values("both_epoch") == [(1, pytest.approx(31 / 8))]  # of round 1
    assert memory.values("quiet") == []
    assert trainer.progress_bar_metrics["both_epoch"] == pytest.approx(31 / 8)
    assert trainer.progress_bar_metrics["batchwise"] in BATCH_MEANS


def test_steps_count_on_after_a_checkpoint(tmp_path: Path) -> None:
    def record(module: L.LightningModule, value: Tensor, batch_idx: int) -> None:
        module.log("value", value)

    first, _ = logged(record)
    first.save_checkpoint(tmp_path / "first.ckpt")
    _, memory = logged(record, max_epochs=2, ckpt_path=str(tmp_path / "first.ckpt"))
    assert [step for step, _ in memory.values("value")] == [5, 6, 7, 8, 9]


def test_a_name_that_comes_in_a_later_round_leaves_the_others_as_they_are(recwarn: pytest.WarningsRecorder) -> None:
    def record(module: L.LightningModule, value: Tensor, batch_idx: int) -> None:
        module.log("value", value, on_step=False, on_epoch=True)
        if module.current_epoch == 1:
            module.log("late", 2 * value, on_step=False, on_epoch=True)

    trainer, _ = logged(record, max_epochs=2)
    assert (number(trainer, "value"), number(trainer, "late")) == (31 / 8, 62 / 8)
    assert "compute" not in str([each.message for each in recwarn])  # of what has had no value


class EveryHook(Numbers):
    def record(self, value: Tensor, batch_idx: int) -> None:
        self.value = value

    def on_train_epoch_start(self) -> None:
        self.log("epoch_start", torch.tensor(5.0))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.log("batch_start", batch[1].mean(), on_epoch=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("batch_end", self.value, on_step=False, on_epoch=True)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("before_step", self.value, on_epoch=True)


class LoggingCallback(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.log("by_module", batch[1].mean(), on_epoch=True)
        self.log("by_callback", batch[1].mean(), on_step=False, on_epoch=True)
        self.log_dict({"in_dict": batch[1].mean()}, on_step=False, on_epoch=True)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module.log("epoch_end", torch.tensor(6.0))
        self.log("callback_epoch_end", 7.0)


def test_every_hook_that_may_log() -> None:
    memory, settings = Memory(), {"batch_size": 2, "max_epochs": 2}
    trainer = train_federatedly(EveryHook(), CLIENTS, callbacks=[LoggingCallback()], logger=memory, **settings)
    means = ("batch_start", "batch_end", "before_step", "by_module", "by_callback", "in_dict")
    expected = {**dict.fromkeys(means, 31 / 8), "epoch_start": 5.0, "epoch_end": 6.0, "callback_epoch_end": 7.0}
    assert {name: number(trainer, name) for name in expected} == pytest.approx(expected)
    # a round begins with empty sums
    assert [value for _, value in memory.values("batch_end")] == [pytest.approx(31 / 8)] * 2


class OwnLog(Numbers):
    """Puts a prefix before every name, and notes the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[dict[str, Any]] = []

    def record(self, value: Tensor, batch_idx: int) -> None:
        self.log("x", value)

    def log(self, name: str, value: Any, **kwargs: Any) -> None:  # type: ignore[override]
        self.given.append({name: kwargs})
        super().log(f"own/{name}", value, **{"on_step": False, "on_epoch": True, **kwargs})


def test_module_that_overrides_log() -> None:
    module = OwnLog()
    trainer = train_federatedly(module, CLIENTS, batch_size=2)
    assert number(trainer, "own/x") == pytest.approx(31 / 8)
    assert sum("fed/clients" in given for given in module.given) == 1  # the round's numbers arrive, too
    assert module.given[:5] == [{"x": {}}] * 5  # every call arrives, with its own arguments alone


def test_mistakes_are_refused_as_in_lightning() -> None:
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    def twice(module: L.LightningModule, value: Tensor, batch_idx: int) -> None:
        module.log("x", value, on_epoch=batch_idx == 0)

    with pytest.raises(MisconfigurationException, match="twice in `training_step` with different arguments"):
        logged(twice)
    with pytest.raises(ValueError, match="values cannot be logged"):
        logged(lambda module, value, _: module.log("x", "text"))


class Everything(Classifier):
    """Logs its loss in many ways while it learns."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("step", loss, prog_bar=True)
        self.log("seen", batch_idx + 1.0)
        self.log("both", loss, on_step=True, on_epoch=True)
        self.log("sum", loss, on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("max", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("float", loss.item(), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))


@pytest.mark.parametrize("trainer", [{"accumulate_grad_batches": 3}, *({"log_every_n_steps": n} for n in (0, 1, 4))])
def test_one_clients_log_is_that_of_stock_lightning(trainer: dict[str, Any]) -> None:
    data, val = samples(30), samples(9, seed=2)
    settings: dict[str, Any] = {"log_every_n_steps": 1, "val": val, **trainer}
    federated, central = Memory(), Memory()
    fit = train_federatedly(Everything(), [data], algorithm=FedAvg(1.0), logger=federated, **settings)
    stock = train_centrally(Everything(), data, logger=central, **settings)
    own = {name for name in fit.callback_metrics if name.startswith("fed/")}
    rows = [{k: v for k, v in row.items() if k not in {*own, "round"}} for _, row in federated.rows]
    assert rows == [row for _, row in central.rows]
    # the values of batches count optimizer steps, as in Lightning, those of a round count rounds
    for (step, row), (stock_step, _) in zip(federated.rows, central.rows, strict=True):
        assert step == row.get("round", stock_step)
    metrics = {name: value for name, value in fit.callback_metrics.items() if name not in own}
    assert metrics == dict(stock.callback_metrics)


def test_copy_of_the_module_made_inside_a_round_is_whole() -> None:
    copies: list[L.LightningModule] = []

    class Copier(Callback):
        def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
            copies.append(copy.deepcopy(pl_module))

    logged(lambda module, value, _: module.log("x", value), callbacks=[Copier()])
    # neither the trainer nor the round's log came along
    assert copies[0]._trainer is None
    assert copies[0].log.__self__ is copies[0]


class Places(Classifier):
    """Logs each batch's place in its client's training."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("place", float(batch_idx), on_step=True, on_epoch=False)
        return self.loss(batch)


class Stops(Callback):
    """Asks to stop after the first round."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = True


class StopsAtFirstClient(Callback):
    """Asks to stop when the second round's first client ends."""

    def on_client_end(self, trainer: L.Trainer, pl_module: L.LightningModule, result: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.current_epoch == 1


def places(executor: Any, callback: Callback, module: Places, **trainer: Any) -> Memory:
    """Train three clients of 3 batches for two rounds; return what was logged."""
    memory, clients = Memory(), [samples(size) for size in (9, 11, 12)]
    settings = {"callbacks": [callback], "max_epochs": 2, "logger": memory, **trainer}
    train_federatedly(module, clients, algorithm=FedAvg(1.0, seed=0, executor=executor), **settings)
    return memory


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("callback", "steps"), [(Stops, [3, 7, *range(9, 18)]), (StopsAtFirstClient, [3, 7, 11, *range(12, 18)])]
)
def test_every_step_is_logged_once_the_fit_is_asked_to_stop(callback: Any, steps: list[int], executor: Any) -> None:
    """As in stock Lightning, where `min_epochs` asks for more rounds."""
    memory = places(executor, callback(), Places(), min_epochs=2, log_every_n_steps=4)
    assert memory.values("place") == [(step, step % 3) for step in steps]


@pytest.mark.parametrize(("executor", "in_round"), [("sequential", True), ("vectorized", False)])
def test_log_that_is_set_on_the_module_is_called_and_stays(in_round: bool, executor: Any) -> None:
    class Renames(Callback):
        def rename(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 0:
                stock = pl_module.log
                pl_module.log = lambda name, value, **options: stock(f"own_{name}", value, **options)  # type: ignore[method-assign]

    setattr(Renames, "on_train_epoch_start" if in_round else "on_fit_start", Renames.rename)
    memory = places(executor, Renames(), Places(), log_every_n_steps=1)
    assert memory.values("own_place") == [(step, step % 3) for step in range(18)]
    assert memory.values("place") == []


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_hooks_of_clients_and_rounds_log_values_of_the_round(executor: Any) -> None:
    class Logs(Callback):
        def on_client_end(self, trainer: L.Trainer, pl_module: L.LightningModule, result: Any) -> None:
            self.log(f"client_{result.task.client}", float(trainer.current_epoch + 1))
            pl_module.log("samples", float(result.num_samples))
            pl_module.log("all_samples", float(result.num_samples), reduce_fx="sum")

        def on_round_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            pl_module.log("rounds", float(trainer.current_epoch + 1))

        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            pl_module.log("last", 7.0)

    memory, clients = Memory(), clients_of(3, 4, 1)
    options = {"algorithm": FedAvg(1.0, executor=executor), "callbacks": [Logs()]}
    train_federatedly(Classifier(), clients, logger=memory, max_epochs=2, **options)
    for name in ("client_0", "client_1", "client_2", "rounds"):
        assert memory.values(name) == [(1, 1.0), (2, 2.0)]
    assert memory.values("samples") == [(1, pytest.approx(8 / 3)), (2, pytest.approx(8 / 3))]  # a mean over clients
    assert memory.values("all_samples") == [(1, 8.0), (2, 8.0)]
    assert memory.values("last") == [(1, 7.0), (2, 7.0)]


def test_a_stack_of_single_batches_logs_their_mean() -> None:
    class OfEpoch(Numbers):
        def record(self, value: Tensor, batch_idx: int) -> None:
            self.log("mean", value, on_step=False, on_epoch=True)

    algorithm = FedAvg(1.0, executor="vectorized")
    trainer = train_federatedly(OfEpoch(), [numbers(1.0), numbers(4.0)], algorithm=algorithm)
    assert (number(trainer, "mean"), trainer.fit_loop.executor.cause) == (2.5, None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("executor", "how"), [("sequential", "one after the other"), ("vectorized", "in stacks")])
def test_what_a_metric_object_returns_for_a_batch_is_logged(executor: Any, how: str) -> None:
    class Returned(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.metric, self.other, self.later = MeanMetric(), MeanMetric(), MeanMetric()

        def on_train_batch_end(self, *_: Any) -> None:
            self.log("later", self.later(7.0), on_step=True, on_epoch=False)

        def record(self, value: Tensor, batch_idx: int) -> None:
            self.log("returned", self.metric(value), on_step=True, on_epoch=True)
            self.other(value)
            self.log("object", self.other, on_step=True, on_epoch=True)

    memory, asks, algorithm = Memory(), Asks(), FedAvg(1.0, executor=executor)
    options: dict[str, Any] = {"logger": memory, "log_every_n_steps": 1, "batch_size": 2, "callbacks": [asks]}
    trainer = train_federatedly(Returned(), CLIENTS, algorithm=algorithm, **options)
    assert [[each.name for each in means] for means in asks.found] == [["returned_epoch"]]
    for name in ("returned_step", "object_step"):
        assert sorted(value for _, value in memory.values(name)) == sorted(BATCH_MEANS)
    assert [value for _, value in memory.values("later")] == [7.0] * 5
    assert number(trainer, "object_epoch") == pytest.approx(24 / 5)  # it weights batches alike
    assert (number(trainer, "returned_epoch"), trainer.fit_loop.executor.describe()) == (31 / 8, how)  # type: ignore[attr-defined]


class Asks(Callback):
    """Asks for the means of each round."""

    def __init__(self) -> None:
        self.found: list[list[LoggedMean]] = []

    def on_round_end(self, trainer: Any, pl_module: Any) -> None:
        self.found.append(logged_means(trainer))


class OwnMean(MeanMetric):
    """A metric object of a user's own."""


class Noisy(Classifier):
    """Draws random numbers, and gives a metric object its loss."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx) * (1 + torch.rand(()))
        self.own.update(loss.detach().view(1))
        return loss


@pytest.mark.parametrize(
    ("own", "stacks", "cause"),
    [
        (BootStrapper(MeanMetric(), num_bootstraps=2), None, "`self.own` draws random numbers"),
        (OwnMean(), False, "OwnMean"),
        (OwnMean(), True, None),
    ],
)
def test_an_own_metric_object_is_stacked_beside_draws_if_it_says_so(own: Any, stacks: Any, cause: Any) -> None:
    module = Noisy(own)
    if stacks is not None:
        own.stacks = stacks
    trainer = train_federatedly(module, clients_of(3, 4), algorithm=FedAvg(1.0, executor="vectorized"))
    found = trainer.fit_loop.executor.cause  # type: ignore[attr-defined]
    assert found is None if cause is None else cause in found


def test_means_that_a_site_sends_are_those_of_its_steps() -> None:
    class Logging(Numbers):
        def record(self, value: Tensor, batch_idx: int) -> None:
            self.log("mean", value, on_step=False, on_epoch=True, prog_bar=True)
            self.log("both", 2 * value, on_step=True, on_epoch=True)
            self.log("last", value)
            self.log("sum", value, on_step=False, on_epoch=True, reduce_fx="sum")
            if self.current_epoch == 0:
                self.log("once", value, on_step=False, on_epoch=True)

        def on_train_batch_end(self, *_: Any) -> None:
            self.log("later", 1.0, on_step=False, on_epoch=True)

    # batches of 3 and 1 samples, with the values 1 and 5
    train_federatedly(Logging(), [numbers(1.0, 1.0, 1.0, 5.0)], callbacks=[asks := Asks()], batch_size=3, max_epochs=2)
    means = [LoggedMean("mean", 2.0, 4, True), LoggedMean("both_epoch", 4.0, 4, False)]
    assert asks.found == [[*means, LoggedMean("once", 2.0, 4, False)], means]
