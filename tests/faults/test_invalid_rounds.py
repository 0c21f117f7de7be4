"""A run in which every client hands back NaN ends with an error, and can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer

from fl_lightning import FedAvg, RADFed, TensorDataModule


def fit(lr: float, rounds: int, path: Path | None = None, bad: tuple[int, ...] = (), **options: Any) -> Any:
    """Train from a checkpoint; in bad rounds all clients diverge."""

    class Diverging(Quadratic):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if self.trainer.current_epoch in bad else loss

    trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(2, seed=1, **options)])
    data = TensorDataModule(clients=quadratic_clients([1, 1], [2, 4]), batch_size=None)
    error = None
    try:
        trainer.fit(Diverging(lr), datamodule=data, ckpt_path=path)
    except FloatingPointError as caught:
        error = str(caught)
    return trainer, error


@pytest.mark.filterwarnings("ignore:Round")
def test_rounds_in_a_row_end_the_fit() -> None:
    trainer, error = fit(0.1, 10, bad=(0, 1, 3, 4, 5, 6), max_invalid_rounds=3)
    assert "last 3 rounds" in error and "`max_invalid_rounds`" in error
    assert trainer.current_epoch == 6


@pytest.mark.filterwarnings("ignore:Round")
def test_the_default_ends_it_after_twenty_and_none_never() -> None:
    bad = tuple(range(30))
    assert fit(0.1, 30, bad=bad)[0].current_epoch == 20
    assert fit(0.1, 30, bad=bad, max_invalid_rounds=None)[1] is None


@pytest.mark.filterwarnings("ignore:Round")
def test_the_count_goes_on_in_a_resumed_fit(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    trainer, error = fit(0.1, 2, bad=(0, 1), max_invalid_rounds=3)
    assert error is None
    trainer.save_checkpoint(path)
    trainer, error = fit(0.1, 9, path, bad=(2,), max_invalid_rounds=3)
    assert "last 3 rounds" in error
    # with a module that no longer diverges
    assert fit(0.1, 9, path, max_invalid_rounds=3)[1] is None
    trainer.save_checkpoint(path)
    assert fit(0.1, 9, path, max_invalid_rounds=3)[0].current_epoch == 9


@pytest.mark.parametrize(("number", "last"), [(2, 1), (30, 19)])
def test_of_many_clients_twenty_are_named(number: int, last: int) -> None:
    data = TensorDataModule(clients=quadratic_clients([1.0] * number, [float("inf")] * number), batch_size=None)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, seed=1)])
    with pytest.warns(UserWarning, match=rf"^Round 1: .*clients \[0,.* {last}\].* 0 others count"):
        trainer.fit(Quadratic(0.1), datamodule=data)


@pytest.mark.filterwarnings("ignore:Round")
@pytest.mark.parametrize("bad", [(), (0,)])
def test_a_training_that_failed_does_not_count_for_a_circulating_model(bad: tuple[int, ...]) -> None:
    # a cycle lasts until both models were trained twice: two rounds, or one more after a round in which one failed
    class Diverging(Quadratic):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if self.trainer.current_epoch in bad and batch[1][0] == 2 else loss

    aggregations = []
    for rounds in (2, 3):
        callback = RADFed(2, 2, seed=1, unequal="count", extend_cycle=True, executor="sequential")
        data = TensorDataModule(clients=quadratic_clients([1, 1], [2, 4]), batch_size=None)
        quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(Diverging(0.1), datamodule=data)
        aggregations.append(callback.algorithm.server.moves)
    assert aggregations == ([0, 1] if bad else [1, 1])
