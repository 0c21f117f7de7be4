"""Clients are evaluated with their own personal parameters.

The head is a scalar: with learning rate 0.5 each round halves its distance to the client's optimum c. The second column
of the scores is the head, so that its mean is the head with which a client was evaluated.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning.data import ClientDatasetsModule

OPTIMA = [4.0, -1.0]


def head_of(preds: Tensor, target: Tensor) -> Tensor:
    return preds[:, 1].mean()


class OwnHead(L.LightningModule):
    """A shared body, and a head that goes to the inputs' value."""

    def __init__(self, scale: float = 1.0, returns_scores: bool = False) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.tensor(0.0))
        self.head = nn.Parameter(torch.tensor(0.0))
        self.scale, self.returns_scores = scale, returns_scores

    def forward(self, x: Tensor) -> Tensor:
        head = self.head.expand(len(x))
        return torch.stack([torch.zeros_like(head), head], dim=1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        return (0.5 * (self.head - x) ** 2).mean() + 0.5 * (self.body - 1) ** 2

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor] | None:
        x, y = batch
        return {"preds": self.scale * self(x), "target": y} if self.returns_scores else None

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def data() -> fl.TensorDataModule:
    sets = [(torch.full((3,), c), torch.full((3,), int(c > 0))) for c in OPTIMA]
    # the second batch of 2 holds samples of both clients
    return fl.TensorDataModule(sets, val=sets, test=sets, batch_size=None, eval_batch_size=2)


def personal(clients_per_round: float = 1.0) -> fl.FedAvg:
    return fl.FedAvg(clients_per_round, exchange=fl.PersonalParameters("head"))


def values_of(
    module: L.LightningModule, datamodule: fl.TensorDataModule, fed: fl.FedAvg | None = None, *metric: Any
) -> dict[int, float]:
    """Return the clients' values after a round: their heads, or those of another metric."""
    metrics = fl.ClientMetrics(*(metric or (head_of, "head")))
    quiet_trainer(max_epochs=1, callbacks=[fed or personal(), metrics]).fit(module, datamodule=datamodule)
    return metrics.values["val"]


def test_each_client_has_its_own_head_and_checkpoints_bring_theirs(tmp_path: Path) -> None:
    metrics = fl.ClientMetrics(head_of, "head")
    best = fl.FederatedCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    module = OwnHead()
    trainer = quiet_trainer(max_epochs=2, callbacks=[personal(), metrics, best], enable_checkpointing=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", ".*(num_workers|workers|validation_step|litlogger).*")
        trainer.fit(module, datamodule=data())
    assert metrics.values["val"] == {0: 3.0, 1: -0.75}  # c (1 - 0.5^2)
    assert module.head.item() == pytest.approx(1.125)  # what is evaluated otherwise: their mean
    [logged] = trainer.test(module, datamodule=data(), verbose=False)
    assert metrics.values == metrics.own_values == {stage: {0: 3.0, 1: -0.75} for stage in ("val", "test")}
    assert logged["test_head_personal"] == pytest.approx(1.125)
    assert logged["test_head_personal_lowest10"] == pytest.approx(-0.75)
    assert logged["test_head_clients"] == pytest.approx(1.125)  # the mean head, for both
    assert logged["test_head_clients_std"] == pytest.approx(0.0)
    trainer.test(module, datamodule=data(), ckpt_path=str(tmp_path / "epoch=0.ckpt"), verbose=False)
    assert metrics.values["test"] == {0: 2.0, 1: -0.5}  # of the first round
    fresh = fl.ClientMetrics(head_of, "head")  # of a trainer that has not trained
    again = quiet_trainer(callbacks=[personal(), fresh])
    again.test(OwnHead(), datamodule=data(), ckpt_path=str(tmp_path / "epoch=0.ckpt"), verbose=False)
    assert fresh.values["test"] == {0: 2.0, 1: -0.5}
    assert fresh.shared_values["test"] == {0: 0.75, 1: 0.75}
    again.test(OwnHead(), datamodule=data(), verbose=False)
    assert fresh.values["test"] == {0: 0.0, 1: 0.0}  # before any training


def test_each_client_has_its_own_head_after_a_fit_that_had_no_round_left(tmp_path: Path) -> None:
    def tested() -> dict[int, float]:
        metrics = fl.ClientMetrics(head_of, "head")
        callbacks = [personal(), metrics, fl.FederatedCheckpoint(tmp_path)]
        trainer = quiet_trainer(max_epochs=2, callbacks=callbacks, enable_checkpointing=True)
        module = OwnHead()
        trainer.fit(module, datamodule=data(), ckpt_path="last")
        trainer.test(module, datamodule=data(), verbose=False)
        return metrics.values["test"]

    assert tested() == tested() == {0: 3.0, 1: -0.75}


def test_clients_that_have_not_trained_have_the_mean() -> None:
    # one of the heads is c/2, the other client's first one 0, and their mean c/4
    assert values_of(OwnHead(), data(), personal(1)) in ({0: 2.0, 1: 1.0}, {0: -0.25, 1: -0.5})


def test_clients_that_do_not_train_are_told_once() -> None:
    others = data()
    others.eval_client_ids = lambda stage: torch.tensor([7] * 6).numpy()  # type: ignore[method-assign]
    with pytest.warns(UserWarning) as told:
        assert values_of(OwnHead(), others) == {7: 0.75}
    [line] = [str(each.message) for each in told if "own model" in str(each.message)]
    assert "ClientMetrics evaluates" in line
    assert "(PersonalParameters(pattern='head')), but the validation and test clients do not train" in line
    assert "split=WithinClientSplit(...)" in line


def test_targets_of_the_step_are_honoured_with_personal_heads() -> None:
    class Shifted(OwnHead):
        def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
            return {"preds": self(batch[0]), "target": batch[-1] + 10}

    def both(preds: Tensor, target: Tensor) -> Tensor:
        return preds[:, 1].mean() + target.double().mean()

    assert values_of(Shifted(), data(), personal(), both, "sum") == {0: 2.0 + 11, 1: -0.5 + 10}


def test_scores_that_the_module_does_not_return_are_refused() -> None:
    assert values_of(OwnHead(1.0, True), data()) == {0: 2.0, 1: -0.5}
    with pytest.raises(ValueError, match="step returned other `preds` than the module's `forward`"):
        values_of(OwnHead(2.0, True), data())


class OfTwo(OwnHead):
    """Takes two inputs, in a list or by name."""

    def forward(self, x: Any) -> Tensor:
        return super().forward(x[0])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step((batch[0][0], batch[1]), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor] | None:
        return None if isinstance(batch, list) else {"preds": super().forward(batch["a"]), "target": batch["label"]}


def of_two(*rows: Any) -> ClientDatasetsModule:
    return ClientDatasetsModule([[rows[0]]], val=[[*rows]], batch_size=None, eval_batch_size=2)


def test_own_models_need_one_input() -> None:
    one, y, shown = torch.ones(()), torch.tensor(0), r"<Tensor of shape \(2,\)>"
    with pytest.raises(TypeError, match=rf"inputs must be a tensor .* counts the 2 samples, got \[{shown}"):
        values_of(OfTwo(), of_two(*[((one, one), y)] * 3))
    trainer = quiet_trainer(callbacks=[personal(), fl.ClientMetrics(head_of, "head")])
    with pytest.raises(TypeError, match=rf"a batch must be \(input, .*, target\).*, got {{'a': {shown}, 'b'"):
        trainer.validate(OfTwo(), of_two(*[{"a": one, "b": one, "label": y}] * 3), verbose=False)


@pytest.mark.parametrize("always", [False, True])
def test_a_monitored_score_that_an_algorithm_never_logs_is_named_before_training(tmp_path: Path, always: bool) -> None:
    best = fl.FederatedCheckpoint(tmp_path, monitor="val_acc_personal", mode="max")
    callbacks = [fl.FedAvg(1.0), fl.ClientMetrics(always_personal=always), best]
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, callbacks=callbacks)
    if always:
        trainer.fit(OwnHead(), datamodule=data())
        assert float(best.best_model_score) == float(trainer.callback_metrics["val_acc_clients"])
    else:
        words = r"`monitor='val_acc_personal'` of FederatedCheckpoint .*always_personal=True"
        with pytest.raises(ValueError, match=words):
            trainer.fit(OwnHead(), datamodule=data())


def test_a_monitored_score_of_models_that_are_seldom_made_is_named_before_training() -> None:
    stop = EarlyStopping("val_head_personal")
    words = r"`monitor='val_head_personal'` of EarlyStopping .*every 6th round, and every 4th .*`every=4`.*epoch=6\)"
    callbacks = [fl.FedAvgFineTuned(1.0, every=6), fl.ClientMetrics(head_of, "head"), stop]
    trainer = quiet_trainer(callbacks=callbacks, check_val_every_n_epoch=4)
    with pytest.raises(ValueError, match=words):
        trainer.fit(OwnHead(), datamodule=data())
