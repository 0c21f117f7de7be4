"""Client k's model as a ``state_dict``: what training makes of it by hand, and the model that is scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import ValidatedClassifier, clients_of
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from helpers.written import assert_as_in, messages
from torch import Tensor, nn
from torch.nn import functional

import fl_lightning as fl
from fl_lightning.parts import PersonalParameters
from fl_lightning.testing.processes import on_two_processes

ALGORITHMS: dict[str, Any] = {
    "FedAvg": lambda: fl.FedAvg(1.0, local_epochs=2),
    "Local": lambda: fl.Local(1.0, local_epochs=2),
    "FedPer": lambda: fl.FedPer("layers.2", 1.0, local_epochs=2, buffers="local"),
    "FedBN": lambda: fl.FedBN(clients_per_round=1.0, local_epochs=2),
    "Ditto": lambda: fl.Ditto(0.5, 1.0, local_epochs=2, exchange=PersonalParameters("layers.2")),
    "APFL": lambda: fl.APFL(0.5, clients_per_round=1.0, local_epochs=2),
    "FedAvgFineTuned": lambda: fl.FedAvgFineTuned(1.0, local_epochs=2),
    "IFCA": lambda: fl.IFCA(2, 1.0, local_epochs=2),
    "FedALA": lambda: fl.FedALA(clients_per_round=1.0, local_epochs=2),
}


class Normed(ValidatedClassifier):
    def build(self) -> nn.Module:
        layers = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        layers.register_buffer("unsaved", torch.zeros(1), persistent=False)
        return layers

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Predictions are those of ``forward``."""


def data() -> fl.TensorDataModule:
    clients = clients_of(9, 14, 6)
    return fl.TensorDataModule(clients, val=clients, test=clients, batch_size=3, drop_last=True)


def fitted(name: str, folder: Path, **options: Any) -> tuple[L.Trainer, L.LightningModule, fl.ClientMetrics]:
    torch.manual_seed(1)
    module = Normed()
    metrics = fl.ClientMetrics()
    callbacks = [ALGORITHMS[name](), metrics]
    trainer = quiet_trainer(max_epochs=2, callbacks=callbacks, default_root_dir=folder, **options)
    trainer.fit(module, datamodule=data())
    trainer.save_checkpoint(folder / "last.ckpt")
    return trainer, module, metrics


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_it_scores_what_the_evaluation_of_single_clients_scores(name: str, tmp_path: Path) -> None:
    trainer, module, metrics = fitted(name, tmp_path)
    trainer.test(module, datamodule=data(), verbose=False)
    fresh = quiet_trainer(callbacks=[ALGORITHMS[name]()], default_root_dir=tmp_path)
    of_checkpoint = {"ckpt_path": tmp_path / "last.ckpt", "module": Normed(), "datamodule": data()}
    for client, (x, y) in enumerate(clients_of(9, 14, 6)):
        state = fl.client_model(trainer, client)
        plain = Normed()
        plain.load_state_dict(state)
        accuracy = float((plain.eval()(x).argmax(1) == y).double().mean())
        assert accuracy == pytest.approx(metrics.values["test"][client], abs=1e-6)
        again = fl.client_model(fresh, client, **of_checkpoint)
        assert list(again) == list(state)
        for key, value in state.items():
            assert torch.equal(again[key], value)
            assert again[key].dtype == value.dtype
            value.zero_()  # a copy of the module's


def test_two_processes_have_the_models_of_one(tmp_path: Path) -> None:
    def work(devices: int, strategy: str) -> list[Any]:
        trainer, module, metrics = fitted("Ditto", tmp_path, devices=devices, strategy=strategy)
        trainer.test(module, datamodule=data(), verbose=False)
        return [metrics.values["test"], *(fl.client_model(trainer, client) for client in range(3))]

    one = work(1, "auto")
    for two in on_two_processes(lambda: work(2, "ddp"), tmp_path):
        assert two[0] == one[0]
        torch.testing.assert_close(two[1:], one[1:], rtol=0, atol=1e-6)


def test_a_client_that_trains_alone_has_what_it_learnt() -> None:
    # each step of lr 1/2 halves the distance to the optimum: 4 (1 - 1/4) and -8 (1 - 1/4) after two
    trainer = quiet_trainer(max_epochs=2, callbacks=[fl.Local(1.0)])
    trainer.fit(Quadratic(0.5), datamodule=fl.TensorDataModule(quadratic_clients([1.0, 1.0], [4.0, -8.0], [3, 3])))
    assert [fl.client_model(trainer, client)["w"].item() for client in (0, 1)] == [3.0, -6.0]


class Tied(L.LightningModule):
    """A network whose two layers have one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.last = nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.last(self.first(batch[0])), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def test_both_names_of_a_tied_tensor_have_the_clients_values() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(6, 3, generator=generator), torch.arange(6) % 3) for _ in range(2)]
    module = Tied()
    trainer = quiet_trainer(max_epochs=1, callbacks=[fl.Local(1.0)])
    trainer.fit(module, datamodule=fl.TensorDataModule(clients))
    state = fl.client_model(trainer, 1)
    assert list(state) == list(module.state_dict())
    assert torch.equal(state["first.weight"], state["last.weight"])
    assert not torch.equal(state["first.weight"], module.first.weight)


def seldom(folder: Path) -> None:
    """Ask for a model of a round in which none are made."""
    options: dict[str, Any] = {"filename": "{epoch}", "mode": "max", "save_top_k": -1, "save_last": False}
    scores = [folder / "val_acc_personal", folder / "val_acc_clients"]
    saves = [fl.FederatedCheckpoint(path, monitor=path.name, **options) for path in scores]
    callbacks = [fl.FedAvgFineTuned(1.0, every=2), fl.ClientMetrics(), *saves]
    trainer = quiet_trainer(max_epochs=2, callbacks=callbacks, enable_checkpointing=True)
    trainer.fit(Normed(), datamodule=data())
    assert [len(list(path.iterdir())) for path in scores] == [1, 2]
    fl.client_model(trainer, 0, ckpt_path=scores[1] / "epoch=0.ckpt")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    trainer, module, metrics = fitted("Ditto", tmp_path)
    weights = tmp_path / "weights.ckpt"
    trainer.save_checkpoint(weights, weights_only=True)
    trainer.test(module, datamodule=data(), verbose=False)
    assert "test_acc_personal_std" in trainer.callback_metrics

    def test_others(_: Path) -> None:
        torch.nn.init.zeros_(module.layers[0].weight)  # type: ignore[union-attr, arg-type, index]
        trainer.test(module, datamodule=data(), verbose=False)

    told: dict[str, Callable[[Path], Any]] = {
        "a client too many": lambda _: fl.client_model(trainer, 3),
        "a fit": lambda _: fl.client_model(quiet_trainer(callbacks=[fl.FedAvg()]), 0),
        "an algorithm": lambda _: fl.client_model(quiet_trainer(), 0),
        "a checkpoint of the module": lambda _: fl.client_model(trainer, 0, module=module),
        "a checkpoint of the data": lambda _: fl.client_model(trainer, 0, datamodule=data()),
        "a model in a checkpoint": lambda _: fl.client_model(trainer, 0, ckpt_path=weights),
        "models in a tested checkpoint": lambda _: trainer.test(module, data(), ckpt_path=weights, verbose=False),
        "models of this round": seldom,
        "models of other weights": test_others,
        "a model of other weights": lambda _: fl.client_model(trainer, 0),
    }
    found = [line.replace(str(tmp_path), "FOLDER") for line in messages(told, tmp_path / "done")]
    assert_as_in(Path(__file__).with_suffix(".txt"), found, tmp_path)
    assert [name for name in trainer.callback_metrics if "personal" in name] == []
    assert ("test_acc_clients" in trainer.callback_metrics, "test" in metrics.own_values) == (True, False)
