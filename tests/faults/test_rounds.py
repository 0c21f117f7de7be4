"""Rounds in which something is wrong: values that only a fit can know, batches without a loss, failures and NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, quadratic_clients, quiet_trainer
from torch import Tensor

import fl_lightning as fl
from fl_lightning.parts import ImportanceSampler

# ---- what only a fit knows ----


def fit(callback: Any, *others: Any, rounds: int = 2, clients: int = 6) -> L.Trainer:
    data = quadratic_clients([1.0] * clients, [float(k) for k in range(clients)])
    return fit_clients(callback, Quadratic(0.5), data, rounds, *others)


@pytest.mark.parametrize("available", [[True, False, True, False, False, False], [0.5, 1.5], [0, 6]])
def test_clients_that_can_be_reached_are_indices(available: Any) -> None:
    with pytest.raises(ValueError, match=r"`available\(0\)`"):
        fit(fl.FedAvg(2, participation=fl.Participation(available=lambda t: available)))


# ---- batches without a loss ----

MAKE: dict[str, Callable[[int], fl.AggregationCallback]] = {
    "FedAvg": lambda m: fl.FedAvg(m, seed=1),
    "FedProx": lambda m: fl.FedProx(0.1, m, seed=1),
    "FedDyn": lambda m: fl.FedDyn(0.1, m, seed=1),
    "Scaffold": lambda m: fl.Scaffold(m, seed=1),
    "Scaffold-1": lambda m: fl.Scaffold(m, option=1, seed=1),
    "DynamicWeightFedBuff": lambda m: fl.DynamicWeightFedBuff(m, clients_per_round=m, seed=1),
    "importance": lambda m: fl.FedAvg(sampler=ImportanceSampler(m), seed=1),
}


class Picky(Quadratic):
    """Returns no loss for a batch of negative numbers."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:  # type: ignore[override]
        return None if bool((batch[1] < 0).any()) else super().training_step(batch, batch_idx)


def client(*optima: float) -> tuple[Tensor, Tensor]:
    return torch.ones(len(optima), dtype=torch.float64), torch.tensor(optima, dtype=torch.float64)


@pytest.mark.parametrize("name", MAKE)
def test_they_are_as_if_they_were_not_there(name: str) -> None:
    def fit(rounds: int, *clients: tuple[Tensor, Tensor]) -> float:
        module, data = Picky(lr=0.1, start=5.0), fl.TensorDataModule(list(clients), batch_size=1, shuffle=False)
        quiet_trainer(max_epochs=rounds, callbacks=[MAKE[name](len(clients))]).fit(module, datamodule=data)
        return module.w.item()

    assert fit(3, client(1, -1, 2, -1)) == fit(3, client(1, 2)) < 5
    assert 0 < fit(2, client(-1, -1), client(2, 3), client(1)) < 5  # one client has no other batches


# ---- clients that diverge ----


def fit_with_bad(lr: float, rounds: int, path: Path | None = None, bad: tuple[int, ...] = (), **options: Any) -> Any:
    """Train from a checkpoint; in bad rounds all clients diverge."""

    class Diverging(Quadratic):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if self.trainer.current_epoch in bad else loss

    trainer = quiet_trainer(max_epochs=rounds, callbacks=[fl.FedAvg(2, seed=1, **options)])
    data = fl.TensorDataModule(clients=quadratic_clients([1, 1], [2, 4]), batch_size=None)
    error = None
    try:
        trainer.fit(Diverging(lr), datamodule=data, ckpt_path=path)
    except FloatingPointError as caught:
        error = str(caught)
    return trainer, error


@pytest.mark.filterwarnings("ignore:Round")
def test_rounds_in_a_row_end_the_fit() -> None:
    trainer, error = fit_with_bad(0.1, 10, bad=(0, 1, 3, 4, 5, 6), max_invalid_rounds=3)
    assert "last 3 rounds" in error and "`max_invalid_rounds`" in error
    assert trainer.current_epoch == 6


@pytest.mark.filterwarnings("ignore:Round")
def test_the_default_ends_it_after_twenty_and_none_never() -> None:
    bad = tuple(range(30))
    assert fit_with_bad(0.1, 30, bad=bad)[0].current_epoch == 20
    assert fit_with_bad(0.1, 30, bad=bad, max_invalid_rounds=None)[1] is None


@pytest.mark.filterwarnings("ignore:Round")
def test_the_count_goes_on_in_a_resumed_fit(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    trainer, error = fit_with_bad(0.1, 2, bad=(0, 1), max_invalid_rounds=3)
    assert error is None
    trainer.save_checkpoint(path)
    trainer, error = fit_with_bad(0.1, 9, path, bad=(2,), max_invalid_rounds=3)
    assert "last 3 rounds" in error
    # with a module that no longer diverges
    assert fit_with_bad(0.1, 9, path, max_invalid_rounds=3)[1] is None
    trainer.save_checkpoint(path)
    assert fit_with_bad(0.1, 9, path, max_invalid_rounds=3)[0].current_epoch == 9


@pytest.mark.parametrize(("number", "last"), [(2, 1), (30, 19)])
def test_of_many_clients_twenty_are_named(number: int, last: int) -> None:
    clients = quadratic_clients([1.0] * number, [float("inf")] * number)
    with pytest.warns(UserWarning, match=rf"^Round 1: .*clients \[0,.* {last}\].* 0 others count"):
        fit_clients(fl.FedAvg(1.0, seed=1), Quadratic(0.1), clients)


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
        callback = fl.RADFed(2, 2, seed=1, unequal="count", extend_cycle=True, executor="sequential")
        fit_clients(callback, Diverging(0.1), quadratic_clients([1, 1], [2, 4]), rounds)
        aggregations.append(callback.algorithm.server.moves)
    assert aggregations == ([0, 1] if bad else [1, 1])
