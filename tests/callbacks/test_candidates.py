"""Checkpoints among aggregated models: which rounds compete, by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from fl_lightning.parts.participation import Participation
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer

from fl_lightning import AggregationCallback, FedAvg, FederatedCheckpoint, RADFed, TensorDataModule


class Validated(Quadratic):
    """Validation logs the weight itself."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_w", self.w.detach().float())


def rounds_kept(
    folder: Path, method: AggregationCallback, rounds: int, module: Quadratic | None = None, **trainer: Any
) -> list[int]:
    """Train and return the rounds, from 1, whose models were kept."""
    clients = quadratic_clients([1.0, 1.0], [1.0, 3.0])
    data = TensorDataModule(clients=clients, val=clients, batch_size=None, shuffle=False)
    callback = FederatedCheckpoint(folder, "{epoch}", monitor="val_w", mode="max", save_top_k=-1, save_last=False)
    settings = {"max_epochs": rounds, "callbacks": [method, callback], "enable_checkpointing": True, **trainer}
    quiet_trainer(**settings).fit(module or Validated(0.5), datamodule=data)
    kept = [torch.load(path, weights_only=True)["epoch"] + 1 for path in folder.glob("*.ckpt")]
    return sorted(kept)


def radfed(**options: Any) -> RADFed:
    return RADFed(2, clients_per_round=1.0, unequal="park", **options)


def away_in(*rounds: int) -> Participation:
    """Nobody can be reached in these rounds, counted from 1."""
    return Participation(available=lambda index: [] if index + 1 in rounds else [0, 1])


def test_means_of_circulating_models_are_no_candidates(tmp_path: Path) -> None:
    assert rounds_kept(tmp_path, radfed(), 5) == [2, 4]


def test_an_empty_round_moves_the_aggregations(tmp_path: Path) -> None:
    # rounds 1 and 3 make the first cycle, rounds 4 and 6 the second
    method = radfed(participation=away_in(2, 5))
    assert rounds_kept(tmp_path, method, 7) == [3, 6]


def test_validation_every_second_round(tmp_path: Path) -> None:
    method = radfed(participation=away_in(2, 5))
    assert rounds_kept(tmp_path, method, 7, check_val_every_n_epoch=2) == [6]


def test_a_server_that_has_not_acted_yet_has_no_aggregate(tmp_path: Path) -> None:
    method = FedAvg(clients_per_round=1.0, participation=away_in(1))
    assert rounds_kept(tmp_path, method, 3) == [2, 3]


def test_lightnings_sanity_check_comes_before_the_server_has_a_model(tmp_path: Path) -> None:
    trainer = {"num_sanity_val_steps": 2}
    assert rounds_kept(tmp_path, radfed(), 2, **trainer) == [2]


def test_without_an_aggregated_model_nothing_is_saved_at_the_end(tmp_path: Path) -> None:
    clients = quadratic_clients([1.0, 1.0], [1.0, 3.0])
    data = TensorDataModule(clients=clients, val=clients, batch_size=None, shuffle=False)
    callback = FederatedCheckpoint(tmp_path, save_last=False)
    trainer = quiet_trainer(max_epochs=1, callbacks=[radfed(), callback], enable_checkpointing=True)
    trainer.fit(Validated(0.5), datamodule=data)
    assert list(tmp_path.glob("*.ckpt")) == []


def test_without_a_federated_algorithm_it_is_a_model_checkpoint(tmp_path: Path) -> None:
    data = TensorDataModule(clients=quadratic_clients([1.0], [1.0]), batch_size=None, shuffle=False)
    callback = FederatedCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_last=False)
    trainer = quiet_trainer(max_epochs=2, callbacks=[callback], enable_checkpointing=True)
    module = Validated(0.5)
    trainer.fit(module, train_dataloaders=_pooled(data))
    assert len(list(tmp_path.glob("*.ckpt"))) == 2


def _pooled(data: TensorDataModule) -> Any:
    data.setup()
    return data.train_dataloader()


@pytest.mark.parametrize("inside", [{"every_n_train_steps": 5}, {"train_time_interval": timedelta(minutes=1)}])
def test_checkpoints_inside_of_rounds_are_refused(inside: dict[str, Any]) -> None:
    [name] = inside
    with pytest.raises(ValueError, match=rf"`{name}` must be None, got .*Give `every_n_epochs`, a number of rounds"):
        FederatedCheckpoint(**inside)


class Stackable(Validated):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        a, c = batch
        return (0.5 * a * (self.w - c) ** 2).sum() / len(c)


def test_clients_can_be_stacked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert rounds_kept(tmp_path, radfed(executor="vectorized"), 2, Stackable(0.5)) == [2]
    assert "one after the other" not in caplog.text
