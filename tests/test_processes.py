"""Two processes give the weights, logged means, checkpoints and counters of one, also from a checkpoint of one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import algorithms
from helpers.stacked import clients_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import ClientMetrics, FedAvg, RADFed, Scaffold, TensorDataModule
from fl_lightning.parts import TopK
from fl_lightning.testing.processes import on_two_processes

ALGORITHMS: dict[str, Any] = {
    "manual": lambda: FedAvg(5, seed=1),
    # clients of Scaffold stay on their processes: in some rounds one process has none
    "scaffold": lambda: Scaffold(2, seed=2),
    # what a client owes is where its circulating model trains
    "radfed": lambda: RADFed(3, 5, seed=1, exchange=TopK(0.5)),
}


class Net(algorithms.Net):
    """BatchNorm, dropout, metric objects and logs of steps, of means and of extremes; it may step by itself."""

    def __init__(self, manual: bool) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        self.train_acc, self.val_acc = (MulticlassAccuracy(3, average="micro") for _ in range(2))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self.layers(batch[0])
        loss = F.cross_entropy(logits, batch[1])
        self.train_acc(logits, batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("largest", loss, on_epoch=True, on_step=False, reduce_fx="max")
        self.log("train_acc", self.train_acc, on_epoch=True, on_step=False)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        logits = self.layers(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]), on_step=True, on_epoch=True, sync_dist=True)
        self.val_acc(logits, batch[1])
        self.log("val_acc", self.val_acc)
        return {"preds": logits, "target": batch[1]}

    test_step = validation_step


def train(name: str, folder: Path, devices: int, strategy: str, ckpt_path: Path | None = None) -> list[Any]:
    """Return the weights, those of the best model, the steps and all that was logged."""
    clients = clients_of((6,), (8, 14, 6, 23, 10, 12, 31))
    # 29 samples: shares of 15 and 14, which would be 3 and 2 batches of 7; and fewer samples than processes
    alone = [tuple(part[:1] for part in clients[0])]
    data = TensorDataModule(clients=clients, val=clients[2:4], test=alone, batch_size=4, eval_batch_size=7)
    best = ModelCheckpoint(folder, "{epoch}", monitor="val_loss_epoch", save_top_k=-1)
    callbacks = [ALGORITHMS[name](), ClientMetrics(), best, EarlyStopping("train_loss")]
    options = {"enable_checkpointing": True, "num_sanity_val_steps": 2, "max_time": timedelta(hours=1)}
    trainer = quiet_trainer(max_epochs=3, devices=devices, strategy=strategy, callbacks=callbacks, **options)
    module = Net(name == "manual")
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for loop in (trainer.validate, trainer.test):
        scores = loop(module, datamodule=data, verbose=False)[0]
        logged |= {f"{loop.__name__} {name}": value for name, value in scores.items()}
    trainer.strategy.barrier()
    kept = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    return [dict(module.state_dict()), kept, trainer.global_step, logged]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_equal_one(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    one = train(name, folder, 1, "auto")
    of_two = (tmp_path / "two", None), (folder, folder / "epoch=1.ckpt")
    runs, _ = on_two_processes(lambda: [train(name, at, 2, "ddp", path) for at, path in of_two], tmp_path)
    for two in runs:
        for state, other in zip(one[:2], two[:2], strict=True):
            for key, value in state.items():
                assert torch.allclose(value, other[key], rtol=0, atol=1e-10), key
        assert two[2] == one[2]
        expected, logged = one[3], two[3]
        assert logged.keys() == expected.keys() >= {
            "train_loss_epoch", "largest", "train_acc", "val_loss", "val_acc", "val_acc_clients", "fed/models_sent",
            "validate val_loss_epoch", "validate val_acc", "test val_loss_epoch", "test val_acc",
        }  # fmt: skip
        for key in expected.keys() - {"train_loss", "train_loss_step"}:  # of a step
            assert logged[key] == pytest.approx(expected[key], abs=1e-6), key
