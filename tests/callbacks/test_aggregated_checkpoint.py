"""Checkpoints among aggregated models: which rounds count is the algorithm's word, also where rounds are empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning import FedAvg, FedBuff, FederatedCheckpoint, Participation, RADFed, TensorDataModule

EMPTY = {1, 4, 5}  # rounds in which nobody can be reached


class Validated(Quadratic):
    """Its metric is best in round 2, then grows from round to round."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("score", {2: 100.0}.get(self.current_epoch, float(self.current_epoch)))


class Watch(Callback):
    """Notes what each round logs, how often the server has moved, and the module's weight."""

    def __init__(self) -> None:
        self.logged: list[float] = []
        self.moves: list[int] = []
        self.weights: list[float] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.logged.append(float(trainer.callback_metrics["fed/aggregated"]))
        self.moves.append(trainer.callbacks[0].algorithm.server.moves)  # type: ignore[attr-defined]
        self.weights.append(float(pl_module.w.detach()))


def fit(callback: Any, *others: Callback, rounds: int = 9) -> Watch:
    clients = quadratic_clients([0.5, 0.5, 0.5], [1.0, 4.0, 16.0])
    data = TensorDataModule(clients, val=clients[0], batch_size=None)
    watch = Watch()
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, watch, *others], enable_checkpointing=bool(others))
    trainer.fit(Validated(1.0), datamodule=data)
    return watch


def radfed(**options: Any) -> RADFed:
    reached = Participation(available=lambda round_index: [] if round_index in EMPTY else [0, 1, 2])
    return RADFed(3, 2, unequal="park", participation=reached, seed=1, **options)


def test_empty_rounds_do_not_count_towards_a_cycle() -> None:
    watch = fit(radfed())
    # models train in rounds 0, 2, 3 and 6, 7, 8; in 4 and 5 the module holds the aggregate of round 3 still
    assert watch.moves == [0, 0, 0, 1, 1, 1, 1, 1, 2]
    assert watch.logged == [0, 0, 0, 1, 1, 1, 0, 0, 1]
    assert watch.weights[3] == watch.weights[4] == watch.weights[5] != watch.weights[6]
    assert len(set(watch.weights)) == 6  # the means of circulating models are shown meanwhile


def test_every_round_of_fedavg_in_which_somebody_reported_aggregates() -> None:
    assert fit(FedAvg(2), rounds=3).logged == [1] * 3
    nobody_first = Participation(available=lambda round_index: [0] if round_index else [])
    assert fit(FedAvg(1, participation=nobody_first), rounds=3).logged == [0, 1, 1]


def test_a_buffer_that_is_not_full_does_not_aggregate() -> None:
    # one result a round, two make the server move
    assert fit(FedBuff(2, 1), rounds=4).logged == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "saved", "best"), [(FederatedCheckpoint, {3, 4, 5, 8}, 8), (ModelCheckpoint, set(range(9)), 2)]
)
def test_only_aggregated_models_compete(kind: Any, saved: set[int], best: int, tmp_path: Path) -> None:
    all_of_them = kind(tmp_path / "all", filename="{epoch}", save_top_k=-1)
    one = kind(tmp_path / "best", filename="{epoch}", monitor="score", mode="max")
    watch = fit(radfed(), all_of_them, one)
    found = {int(path.stem.removeprefix("epoch=")): path for path in (tmp_path / "all").glob("epoch=*.ckpt")}
    assert set(found) == saved
    assert Path(one.best_model_path).stem == f"epoch={best}"
    for round_index, path in found.items():
        weight = torch.load(path, weights_only=True)["state_dict"]["w"]
        assert float(weight) == watch.weights[round_index]


class Distance(Quadratic):
    """Its metric is the distance to the mean of the clients' optima."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("distance", (self.w.detach() - 2.0).abs())


def fit_late_results(folder: Path, kind: type[ModelCheckpoint], rounds: int, ckpt_path: Path | None = None) -> Any:
    """Both clients train in every other round; one result arrives in each round, and every two move the server."""
    clients = quadratic_clients([1.0, 1.0], [1.0, 3.0])
    method = FedBuff(2, 1, concurrency=2, wait_for_flush=True, lookahead=2, speeds=[1.0, 1.0], seed=1)
    keep = kind(folder, filename="{epoch}", monitor="distance", mode="min", save_top_k=2)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[method, keep], enable_checkpointing=True)
    data = TensorDataModule(clients, val=clients[0], batch_size=None)
    trainer.fit(Distance(0.5), datamodule=data, ckpt_path=ckpt_path)
    trainer.save_checkpoint(folder / "end.ckpt")
    return keep


@pytest.mark.parametrize("kind", [FederatedCheckpoint, ModelCheckpoint])
def test_a_round_in_which_late_results_move_the_server_is_saved(kind: Any, tmp_path: Path) -> None:
    # from 0, halves of the ways to 1 and 3 are 0.5 and 1.5: 1 after round 2; from there 0 and 1: 1.5 after round 4
    keep = fit_late_results(tmp_path, kind, 4)
    assert (Path(keep.best_model_path).stem, float(keep.best_model_score)) == ("epoch=3", 0.5)
    assert float(torch.load(keep.best_model_path, weights_only=True)["state_dict"]["w"]) == 1.5


def test_a_fit_that_resumes_before_a_round_without_steps_chooses_as_one_that_never_ended(tmp_path: Path) -> None:
    whole = fit_late_results(tmp_path / "whole", ModelCheckpoint, 5)
    fit_late_results(tmp_path / "parts", ModelCheckpoint, 3)
    resumed = fit_late_results(tmp_path / "parts", ModelCheckpoint, 5, tmp_path / "parts" / "end.ckpt")
    for keep in (whole, resumed):
        # the weight is 0, 1, 1, 1.5, 1.5 after the rounds
        assert {Path(path).stem: float(score) for path, score in keep.best_k_models.items()} == {
            "epoch=3": 0.5,
            "epoch=4": 0.5,
        }


def test_cycles_without_empty_rounds() -> None:
    assert fit(RADFed(3, 2, seed=1)).logged == [0, 0, 1] * 3
    assert fit(RADFed(1, 2, seed=1)).logged == [1] * 9
