"""Modules under ``torch.compile`` train as without it, and are compiled as often as by stock Lightning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.comparison import Classifier, assert_same_weights, clients_of, train_federatedly, weights_of
from torch import Tensor
from torch._dynamo.utils import counters


class Logs(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


@pytest.mark.long
def test_a_step_that_logs_is_compiled_once() -> None:
    torch.compiler.reset()
    counters.clear()
    plain, compiled = Logs(), Logs()
    compiled.training_step = torch.compile(compiled.training_step, backend="eager")  # type: ignore[method-assign]
    trainers = [train_federatedly(module, clients_of(8, 8), max_epochs=2) for module in (plain, compiled)]
    # one graph before the call of `log`, one after it
    assert counters["stats"]["unique_graphs"] <= 2
    assert_same_weights(weights_of(compiled), weights_of(plain))
    losses = [float(trainer.callback_metrics["loss_epoch"]) for trainer in trainers]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.compiler.reset()
