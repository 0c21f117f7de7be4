"""The Trainer's arguments and entry points mean federatedly what they mean centrally; an epoch is a round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import (
    Classifier,
    ValidatedClassifier,
    assert_same_weights,
    clients_of,
    samples,
    train_federatedly,
)
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.profilers import SimpleProfiler

from fl_lightning import FedAvg, RADFed, TensorDataModule

SIZES = (8, 3, 20)  # 2, 1 and 5 batches of 4


class Counting(ValidatedClassifier):
    """Counts the batches of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[int] = []
        self.validated: list[tuple[int, bool]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append(batch_idx)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append((self.current_epoch, self.trainer.sanity_checking))
        super().validation_step(batch, batch_idx)


def run(**settings: Any) -> tuple[Counting, L.Trainer]:
    module = Counting()
    return module, train_federatedly(module, clients_of(*SIZES), val=samples(600), **{"max_epochs": 2, **settings})


#: Settings, and the batches that are trained, those that are validated (600 samples in batches of 256), and the rounds.
FLAGS: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({"fast_dev_run": True}, (1 + 1 + 1, 1, 1)),
    ({"fast_dev_run": 3}, (2 + 1 + 3, 3, 1)),
    ({"limit_train_batches": 2}, (2 * (2 + 1 + 2), 6, 2)),
    ({"limit_train_batches": 100}, (2 * 8, 6, 2)),
    ({"limit_train_batches": 0.5}, (2 * (1 + 1 + 2), 6, 2)),  # a client keeps at least one batch
    ({"limit_train_batches": 0.9}, (2 * (1 + 1 + 4), 6, 2)),
    ({"limit_val_batches": 2}, (16, 4, 2)),
    ({"limit_val_batches": 0}, (16, 0, 2)),
    ({"max_steps": 8, "max_epochs": -1}, (8, 3, 1)),
    ({"max_steps": 9, "max_epochs": -1}, (16, 6, 2)),  # at the end of the round
    ({"limit_train_batches": 0}, (0, 0, 0)),
    ({"max_epochs": 0}, (0, 0, 0)),
]


def test_limits_are_those_of_each_client() -> None:
    wrong = {}
    for settings, expected in FLAGS:
        module, trainer = run(**settings)
        found = (len(module.trained), len(module.validated), trainer.current_epoch)
        if found != expected or trainer.global_step != len(module.trained):
            wrong[str(settings)] = found
        if not module.trained:
            assert_same_weights(module.state_dict(), Classifier().state_dict())
    assert not wrong


def test_overfit_batches_repeats_the_first_batches_of_each_client() -> None:
    seen: list[float] = []

    class Sees(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(float(batch[0][0, 0]))
            return super().training_step(batch, batch_idx)

    clients = clients_of(*SIZES)
    # the data module shuffles, overfitting does not
    data = TensorDataModule(clients=clients, batch_size=4, shuffle=True)
    quiet_trainer(max_epochs=2, overfit_batches=1, callbacks=[FedAvg(1.0)]).fit(Sees(), datamodule=data)
    first = sorted(float(x[0, 0]) for x, _ in clients)
    assert [sorted(seen[:3]), sorted(seen[3:])] == [first, first]


def test_min_steps_delay_early_stopping() -> None:
    class Rises(Counting):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", float(self.current_epoch))

    stop = EarlyStopping("val_loss", patience=1)
    settings: dict[str, Any] = {"callbacks": [stop], "max_epochs": 9, "min_steps": 25}
    trainer = train_federatedly(Rises(), clients_of(*SIZES), val=samples(4), **settings)
    assert trainer.current_epoch == 4  # rounds of 8 steps


def test_check_val_every_n_epoch() -> None:
    module, _ = run(check_val_every_n_epoch=2, max_epochs=5, limit_val_batches=1)
    assert [epoch for epoch, _ in module.validated] == [1, 3]


def test_sanity_check_comes_before_the_first_round() -> None:
    module, _ = run(num_sanity_val_steps=2, max_epochs=1)
    assert module.validated == [(0, True)] * 2 + [(0, False)] * 3


def test_a_profiler_reports_the_training_step(tmp_path: Path) -> None:
    seen: list[int] = []

    class Hooks(Counting):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(batch_idx)

    class Watching(Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            seen.append(100 + batch_idx)

    profiler = SimpleProfiler(str(tmp_path), "report")
    train_federatedly(Hooks(), clients_of(*SIZES), callbacks=[Watching()], profiler=profiler)
    [report] = tmp_path.glob("*.txt")
    rows = {row[0].strip(): row for row in (line.split("|")[1:] for line in report.read_text().splitlines()) if row}
    strategy = "[Strategy]SingleDeviceStrategy"
    names = ("run_training_batch", f"{strategy}.training_step", f"{strategy}.backward")
    assert {*names, "run_training_epoch", "[LightningModule]Hooks.on_train_batch_end"} <= rows.keys()
    [hook] = [name for name in rows if re.fullmatch(r"\[Callback\].*Watching\.on_train_batch_start", name)]
    assert rows[hook][2].strip() == "8"
    assert sorted(seen) == [0, 0, 0, 1, 1, 2, 3, 4, *range(100, 108)]
    assert rows["run_training_batch"][2].strip() == "8"

    class Stepping(Counting):
        def optimizer_step(self, *args: Any, **options: Any) -> None:
            super().optimizer_step(*args, **options)

    train_federatedly(Stepping(), clients_of(*SIZES), profiler=SimpleProfiler(str(tmp_path), "stepping"))
    [stepping] = tmp_path.glob("*stepping.txt")
    assert f"{strategy}.backward" in stepping.read_text()


def test_evaluation_without_and_after_fit() -> None:
    module = ValidatedClassifier()
    data = TensorDataModule(clients=clients_of(*SIZES), val=samples(6), test=samples(9, seed=3), batch_size=4)
    trainer, losses = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, seed=0)]), []
    for _ in range(2):
        losses.append(trainer.validate(module, datamodule=data)[0]["val_loss"])
        assert losses[-1] == pytest.approx(float(module.loss(samples(6))))
        trainer.fit(module, datamodule=data)
    assert losses[0] != losses[1]
    assert trainer.test(module, datamodule=data)[0]["val_loss"] == pytest.approx(float(module.loss(samples(9, seed=3))))
    predictions = trainer.predict(module, datamodule=data)
    assert torch.equal(torch.cat(predictions), module.layers(samples(9, seed=3)[0]).argmax(1))  # type: ignore[arg-type]


def test_a_fit_goes_on_where_the_last_one_ended() -> None:
    whole, parts = Classifier(), Classifier()
    data = TensorDataModule(clients=clients_of(8, 3, 20, 5), batch_size=4)
    trainer = quiet_trainer(max_epochs=2, callbacks=[RADFed(3, 2, seed=0)])
    trainer.fit(parts, datamodule=data)
    trainer.fit_loop.max_epochs = 5  # inside a cycle
    trainer.fit(parts, datamodule=data)
    assert trainer.current_epoch == 5
    quiet_trainer(max_epochs=5, callbacks=[RADFed(3, 2, seed=0)]).fit(whole, datamodule=data)
    assert_same_weights(parts.state_dict(), whole.state_dict())


def test_barebones(recwarn: pytest.WarningsRecorder) -> None:
    plain, module = Classifier(), Classifier()
    train_federatedly(plain, clients_of(*SIZES))
    data = TensorDataModule(clients=clients_of(*SIZES), batch_size=4, shuffle=False)
    trainer = L.Trainer(barebones=True, max_epochs=1, accelerator="cpu", callbacks=[FedAvg(1.0, seed=0)])
    trainer.fit(module, datamodule=data)
    assert_same_weights(module.state_dict(), plain.state_dict())
    assert not [str(warning.message) for warning in recwarn if "self.log" in str(warning.message)]


@pytest.mark.parametrize(
    ("algorithm", "accumulate", "batches", "steps"),
    [
        (lambda: FedAvg(1.0, local_steps=4), 1, [*range(4)] * 3, 12),
        (lambda: FedAvg(1.0, local_steps=2), 3, [*range(6)] * 3, 6),  # of accumulated batches
        (lambda: FedAvg(1.0, local_epochs=2), 1, [*range(4), *range(2), *range(10)], 16),
    ],
)
def test_local_steps_and_epochs(algorithm: Any, accumulate: int, batches: list[int], steps: int) -> None:
    module = Counting()
    trainer = train_federatedly(module, clients_of(*SIZES), algorithm=algorithm(), accumulate_grad_batches=accumulate)
    assert sorted(module.trained) == sorted(batches)
    assert (trainer.global_step, trainer.num_training_batches) == (steps, len(batches))
