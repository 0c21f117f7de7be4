"""An aggregation that fails breaks the round off, and the same trainer goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.algorithms import Net, data, personal
from helpers.poked import plain
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, FedBuff, Federated, RADFed, TensorDataModule
from fl_lightning.parts import QSGD, Aggregation, ClientResult, DynamicRegularizer, ImportanceSampler, TopK


class Failing(Aggregation):
    """The plain mean; its merge fails at the second call."""

    calls = 0

    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ArithmeticError("broken by the test")
        return torch.stack([result.parameters for result in results]).mean(0)


MAKE: dict[str, Any] = {
    "FedAvg": lambda **k: FedAvg(3, exchange=personal(), buffers="local", **k),
    "importance": lambda **k: FedAvg(sampler=ImportanceSampler(3), **k),
    "FedDyn": lambda **k: Federated(3, objective=DynamicRegularizer(0.1), **k),
    "compressed": lambda **k: FedAvg(3, exchange=[TopK(0.2), QSGD(8, link="down")], **k),
    "RADFed": lambda **k: RADFed(2, 3, exchange=personal(), **k),
    "FedBuff": lambda **k: FedBuff(2, 3, exchange=personal(), speeds=[6, 5, 4, 3, 2, 1], **k),
}


@pytest.mark.parametrize("name", MAKE)
def test_no_part_has_moved_on(name: str) -> None:
    callback = MAKE[name](aggregation=Failing(), seed=1, executor="sequential")
    states: list[Any] = []
    start = callback.algorithm.start_round

    def start_round(*args: Any) -> None:
        states.append(plain(callback.algorithm.state_dict()))
        start(*args)

    callback.algorithm.start_round = start_round
    trainer = quiet_trainer(max_epochs=6, callbacks=[callback])
    with pytest.raises(ArithmeticError, match="broken by the test"):
        trainer.fit(Net(), datamodule=data())
    state = plain(callback.algorithm.state_dict())
    assert {part for part in state if state[part] != states[-1][part]} == set()
    assert state["traffic"]["models_up"] == {"RADFed": 9}.get(name, 3)


def test_the_next_attempt_goes_on_from_there() -> None:
    # round 1 moves from 0 half the way to 2 and 4, the mean of which is 1.5; a second one, to 2.25, fails
    module, callback = Quadratic(0.5), FedAvg(1.0, aggregation=Failing())
    clients = TensorDataModule(quadratic_clients([1.0, 1.0], [2.0, 4.0]), batch_size=None)
    trainer = quiet_trainer(max_epochs=2, callbacks=[callback])
    with pytest.raises(ArithmeticError):
        trainer.fit(module, datamodule=clients)
    assert (module.w.item(), trainer.current_epoch) == (1.5, 1)
    trainer.fit(module, datamodule=clients)
    assert module.w.item() == 2.25
    assert callback.algorithm.traffic.models_up == 4
