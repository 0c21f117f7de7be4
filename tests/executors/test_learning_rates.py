"""An objective that asks for the steps' learning rates gets their sums, whether or not it corrects gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import Federated, TensorDataModule
from fl_lightning.parts import ClientResult, LocalClient, LocalObjective, Term


class Rates(LocalObjective):
    """The plain objective, which notes what each client's steps added up to."""

    needs_summed_lr = True
    stacks = True

    def __init__(self, linear: bool = False) -> None:
        self.linear = linear
        self.seen: dict[tuple[int, int], list[float]] = {}

    def correction(self, client: LocalClient) -> Term | None:
        # with a correction for one client and none for the others
        if not self.linear or client.task.client:
            return None
        return Term(pull=0.0, linear=torch.zeros_like(client.start))

    def on_client_end(self, result: ClientResult) -> None:
        self.seen[result.task.round, result.task.client] = list(result.summed_lr)


class TwoRates(Module):
    """SGD with 0.5 for the first layer and 0.25 for the second, halved after each round; one parameter is not used."""

    def prepare(self) -> None:
        self.spare = nn.Parameter(torch.zeros(1).double())

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.layers[0].parameters(), "lr": 0.5}, {"params": self.layers[1].parameters()}]
        optimizer = torch.optim.SGD([*groups, {"params": [self.spare]}], lr=0.25)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


@pytest.mark.parametrize("linear", [False, True], ids=["no correction", "one client's correction"])
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_learning_rates_are_summed_without_a_correction(executor: Any, linear: bool) -> None:
    torch.manual_seed(0)
    objective = Rates(linear)
    trainer = quiet_trainer(max_epochs=2, callbacks=[Federated(1.0, objective=objective, executor=executor)])
    data = TensorDataModule(clients_of((6,), (8, 13, 4)), batch_size=4)
    trainer.fit(TwoRates(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))), datamodule=data)
    assert trainer.fit_loop.executor.state_dict().get("cause") is None
    # 2, 4 and 1 steps a round; what is not used, weight and bias of the first layer, then of the second
    steps = {0: 2, 1: 4, 2: 1}
    assert objective.seen == {
        (index, client): [number * rate * 0.5**index for rate in (0.0, 0.5, 0.5, 0.25, 0.25)]
        for index in (0, 1)
        for client, number in steps.items()
    }
