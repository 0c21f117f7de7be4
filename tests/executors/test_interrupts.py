"""Ctrl-C in a step of a stack leaves nothing behind: the same process trains on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode

from fl_lightning import FedAvg, TensorDataModule


def mapped() -> Module:
    """Return a module whose steps no program takes."""
    torch.manual_seed(0)
    return Module(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)))


def fit(module: Module) -> torch.Tensor:
    data = TensorDataModule(clients_of((6,)), batch_size=4)
    callback = FedAvg(1.0, seed=1, executor="vectorized")
    quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, datamodule=data)
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


@pytest.mark.parametrize("step", [1, 4])
def test_an_interrupt_while_a_step_leaves_a_mode_waits_for_its_end(
    step: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    expected = fit(mapped())
    usual, calls = TorchFunctionMode.__exit__, 0

    def interrupted(mode: Any, *error: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(mode, *error)

    monkeypatch.setattr(TorchFunctionMode, "__exit__", interrupted)
    module = mapped()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(module)
    left = len(_get_current_function_mode_stack())
    for _ in range(left):  # other tests would fail, too
        _pop_mode()
    assert left == 0
    assert all(type(parameter) is nn.Parameter for parameter in module.parameters())
    assert torch.equal(fit(module), expected)
