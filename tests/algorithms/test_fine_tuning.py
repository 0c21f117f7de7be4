"""A tuned model belongs to a round: fits that end early make it, and no score is told of another round.

On f_k(w) = a_k/2 (w - c_k)^2 a step with learning rate r leads from w to w - r a_k (w - c_k).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import Tensor

import fl_lightning as fl

A, C = [1.0, 4.0], [0.0, 1.0]
RATE = 0.1  # is halved after each round


class Scored(Quadratic):
    """Its only score is w."""

    def __init__(self) -> None:
        super().__init__(RATE, start=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        a, c = batch
        loss = (0.5 * a * (self.w - c) ** 2).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.w)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def data() -> fl.TensorDataModule:
    sets = quadratic_clients(A, C)
    return fl.TensorDataModule(sets, val=sets, test=sets, batch_size=None)


def weight_of(preds: Tensor, target: Tensor) -> Tensor:
    return preds.mean()


def fit(rounds: int, *callbacks: Callback, ckpt_path: Path | None = None, **options: Any) -> tuple[Scored, L.Trainer]:
    module = Scored()
    trainer = quiet_trainer(max_epochs=rounds, callbacks=list(callbacks), **options)
    trainer.fit(module, datamodule=data(), ckpt_path=ckpt_path)
    return module, trainer


def tuned(w: float, rounds: int) -> list[float]:
    """Return the clients' models after one step from w at the learning rate of the last of so many rounds."""
    rate = RATE * 0.5 ** (rounds - 1)
    return [w - rate * a * (w - c) for a, c in zip(A, C, strict=True)]


def models_of(algorithm: Any) -> list[float]:
    return [float(algorithm.algorithm.schedule.own[client]) for client in (0, 1)]


class StopsItself(Callback):
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = trainer.current_epoch == 2


ENDS: dict[str, Callable[[], tuple[list[Callback], dict[str, Any]]]] = {
    "EarlyStopping": lambda: ([EarlyStopping("fed/clients", mode="max", patience=2)], {}),
    "max_steps": lambda: ([], {"max_steps": 6}),
    "should_stop": lambda: ([StopsItself()], {}),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_fit_that_ends_early_tunes_the_model_of_its_last_round(end: str) -> None:
    callbacks, options = ENDS[end]()
    algorithm = fl.FedAvgFineTuned(1.0, every=10)
    module, trainer = fit(50, algorithm, *callbacks, **options)
    assert trainer.current_epoch == 3
    assert models_of(algorithm) == pytest.approx(tuned(float(module.w), 3), abs=1e-14)
    whole = fl.FedAvgFineTuned(1.0, every=10)
    other, known = fit(3, whole)
    assert (float(module.w), models_of(algorithm)) == (float(other.w), models_of(whole))
    assert algorithm.algorithm.models_sent == whole.algorithm.models_sent == 3 * 2 * 2 + 2
    assert trainer.optimizers[0].param_groups[0]["lr"] == known.optimizers[0].param_groups[0]["lr"]
    assert trainer.global_step == 6  # the tunings after the last round are no steps of the fit


def test_what_is_logged_at_the_end_is_of_the_last_round_alone() -> None:
    plain, early = fit(3, fl.FedAvg(1.0))[1], fit(50, fl.FedAvgFineTuned(1.0, every=10), max_steps=6)[1]
    assert early.callback_metrics["train_loss"] == plain.callback_metrics["train_loss"]


def test_a_fit_that_ended_early_resumes_to_the_same_bits(tmp_path: Path) -> None:
    make: Callable[[], Any] = lambda: fl.FedAvgFineTuned(1.0, every=4)  # noqa: E731
    fit(50, make(), fl.FederatedCheckpoint(tmp_path), max_steps=6, enable_checkpointing=True)
    resumed, whole = make(), make()
    module, _ = fit(5, resumed, ckpt_path=tmp_path / "last.ckpt")
    other, _ = fit(5, whole)
    assert float(module.w) == float(other.w)
    assert models_of(resumed) == models_of(whole)
    assert resumed.algorithm.traffic == whole.algorithm.traffic


def test_a_fit_without_a_round_to_train_makes_the_models_of_its_checkpoint(tmp_path: Path) -> None:
    fit(4, fl.FedAvgFineTuned(1.0, every=4), _each_round(tmp_path), enable_checkpointing=True)
    algorithm, metrics = fl.FedAvgFineTuned(1.0, every=4), fl.ClientMetrics(weight_of, "w")
    module, trainer = fit(3, algorithm, metrics, ckpt_path=tmp_path / "epoch=2.ckpt")
    assert models_of(algorithm) == pytest.approx(tuned(float(module.w), 3), abs=1e-14)
    trainer.test(module, datamodule=data(), verbose=False)
    assert [*metrics.values["test"].values()] == models_of(algorithm)


def _each_round(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{epoch}", save_top_k=-1)


def test_scores_of_own_models_are_those_of_rounds_that_made_them() -> None:
    class Seen(Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            seen.append(trainer.callback_metrics.get("val_w_personal"))

    seen: list[Any] = []
    metrics = fl.ClientMetrics(weight_of, "w", always_personal=True)
    algorithm = fl.FedAvgFineTuned(1.0, every=2)
    module, _ = fit(5, algorithm, metrics, Seen())
    assert [score is None for score in seen] == [True, False, True, False, False]  # of the last round, too
    assert float(seen[-1]) == pytest.approx(sum(tuned(float(module.w), 5)) / 2, abs=1e-7)


@pytest.mark.parametrize("ckpt", ["epoch=2.ckpt", "epoch=3.ckpt"])
def test_a_checkpoint_of_a_round_without_own_models_has_no_score_of_them(tmp_path: Path, ckpt: str) -> None:
    fit(4, fl.FedAvgFineTuned(1.0, every=2), _each_round(tmp_path), enable_checkpointing=True)
    metrics, module = fl.ClientMetrics(weight_of, "w", always_personal=True), Scored()
    trainer = quiet_trainer(callbacks=[fl.FedAvgFineTuned(1.0, every=2), metrics])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        [logged] = trainer.test(module, datamodule=data(), ckpt_path=str(tmp_path / ckpt), verbose=False)
    lines = [str(each.message) for each in told if "scores no models" in str(each.message)]
    if ckpt == "epoch=3.ckpt":
        assert not lines
        assert logged["test_w_personal"] == pytest.approx(sum(tuned(float(module.w), 4)) / 2, abs=1e-7)
    else:
        assert "test_w_personal" not in logged
        assert len(lines) == 1
        assert "trainer.fit(module, datamodule=data, ckpt_path=...)" in lines[0]


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_lightning_s_callbacks_look_at_own_models_in_every_validated_round(kind: Any) -> None:
    algorithm = fl.FedAvgFineTuned(1.0, every=2)
    with pytest.raises(ValueError, match="`monitor='val_acc_personal"):
        fit(4, algorithm, fl.ClientMetrics(), kind(monitor="val_acc_personal"), enable_checkpointing=True)


def test_the_best_checkpoint_by_own_models_is_of_a_round_that_made_them(tmp_path: Path) -> None:
    """The mean of w falls from round to round, that of the tuned models too."""
    metrics = fl.ClientMetrics(weight_of, "w")
    best = fl.FederatedCheckpoint(tmp_path, "{epoch}", monitor="val_w_personal", mode="max", save_last=False)
    module, trainer = fit(5, fl.FedAvgFineTuned(1.0, every=2), metrics, best, enable_checkpointing=True)
    [logged] = trainer.test(module, datamodule=data(), ckpt_path=best.best_model_path, verbose=False)
    assert Path(best.best_model_path).stem in ("epoch=1", "epoch=3", "epoch=4")
    assert logged["test_w_personal"] == float(best.best_model_score)


def test_own_models_of_a_checkpoint_with_weights_alone_are_not_guessed(tmp_path: Path) -> None:
    only = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_weights_only=True)
    metrics = fl.ClientMetrics(weight_of, "w")
    module, trainer = fit(2, fl.Ditto(0.5, 1.0), metrics, only, enable_checkpointing=True)
    with pytest.warns(UserWarning, match="save_weights_only"):
        [logged] = trainer.test(module, datamodule=data(), ckpt_path=str(tmp_path / "epoch=0.ckpt"), verbose=False)
    assert "test_w_personal" not in logged
    with pytest.warns(UserWarning, match="other weights"):
        [logged] = trainer.test(module, datamodule=data(), verbose=False)  # it holds round 1 now
    assert "test_w_personal" not in logged


def test_the_own_model_of_per_fedavg_is_one_step_of_alpha_from_the_server_s() -> None:
    alpha, algorithm = 0.03, fl.PerFedAvg(0.03, 1.0, every=5, fine_tune_epochs=2, local_epochs=2)
    module = Quadratic(0.1, start=0.5)
    fit_clients(algorithm, module, quadratic_clients(A, C), rounds=2)
    models = [float(module.w)] * 2
    for _ in range(2):  # batches of all samples, twice
        models = [w - alpha * a * (w - c) for w, a, c in zip(models, A, C, strict=True)]
    assert models_of(algorithm) == pytest.approx(models, abs=1e-14)
