"""Cox regression's loss by hand."""

from __future__ import annotations

from math import exp, log, prod

import pytest
import torch
from helpers.toys import quiet_trainer

from fl_lightning import ClientMetrics, FedAvg, TensorDataModule
from fl_lightning.metrics import c_index
from fl_lightning.models import CoxRegression


def test_the_loss_of_three_patients() -> None:
    module = CoxRegression(1)
    torch.nn.init.ones_(module.linear.weight)
    torch.nn.init.zeros_(module.linear.bias)
    x = torch.tensor([[1.0], [2.0], [3.0]]).log()
    # the second died when two were at risk, the first when three were: log((2 + 3)/2) and log((1 + 2 + 3)/1)
    target = torch.tensor([[1.0, 1.0], [1.0, 2.0], [0.0, 3.0]])
    for order in ([0, 1, 2], [2, 0, 1]):
        assert float(module.training_step((x[order], target[order]), 0)) == pytest.approx(log(2.5 * 6) / 3)


def test_clients_have_an_index_each_and_all_patients_one() -> None:
    x, target = torch.tensor([[2.0], [1.0]]), torch.tensor([[1.0, 1.0], [1.0, 2.0]])
    data = TensorDataModule(
        [(x, target)] * 2, val=(x, target), test=[(x, target), (torch.tensor([[1.5], [1.7]]), target)]
    )
    module = CoxRegression(1, lr=0.0)
    torch.nn.init.ones_(module.linear.weight)
    torch.nn.init.zeros_(module.linear.bias)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0), ClientMetrics(c_index, "cindex")])
    trainer.fit(module, datamodule=data)
    loss = pytest.approx(log(1 + exp(-1)) / 2)
    logged = {
        name: float(value) for name, value in trainer.callback_metrics.items() if name.endswith(("loss", "cindex"))
    }
    assert logged == {"train_loss": loss, "val_loss": loss, "val_cindex": 1.0}
    for name, kind in [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)]:
        optimizer = CoxRegression(1, 0.25, name).configure_optimizers()  # type: ignore[arg-type]
        assert (type(optimizer), optimizer.param_groups[0]["lr"]) == (kind, 0.25)
    [scores] = trainer.test(module, datamodule=data, verbose=False)
    # risks 2 and 1.5 die first, 1 and 1.7 later: a client has one pair, all together four, three of them in order
    # All four patients are one batch. The second of each client comes before the first, who has all before it at risk.
    at_risk = [1 + exp(-0.7), 1 + exp(-1) + exp(-0.3), 1 + exp(-0.5) + exp(0.2) + exp(0.5)]
    assert scores["test_loss"] == pytest.approx(log(prod(at_risk)) / 4)
    assert (scores["test_cindex_clients"], scores["test_cindex"]) == (0.5, 0.75)
