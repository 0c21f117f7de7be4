"""Modules that change their weights without a step that Lightning knows of.

One client from 0 with the optimum 4: its step takes it half of the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients
from torch import Tensor

from fl_lightning import FedAvg, FedDyn, FedNova, FedProx, Scaffold


class ByItself(Quadratic):
    """Steps in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__(0.5)
        self.way, self.automatic_optimization = way, False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        if self.way == "nothing":
            return None
        if self.way == "in place":
            [gradient] = torch.autograd.grad(loss, self.w)
            with torch.no_grad():
                self.w.sub_(0.5 * gradient)
            return None
        optimizer = self.optimizers(use_pl_optimizer=self.way == "Lightning")
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None


def end(callback: Any, way: str) -> float:
    return float(fit_quadratic(callback, ByItself(way), quadratic_clients([1.0], [4.0]), 2))


@pytest.mark.parametrize("way", ["in place", "torch"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: FedProx(1.0, 1.0),
        lambda: Scaffold(1.0),
        lambda: FedDyn(1.0, 1.0),
        lambda: FedNova(1.0),
        lambda: FedNova(1.0, mu=1.0),
    ],
)
def test_what_would_have_no_effect_is_an_error(make: Callable[[], Any], way: str) -> None:
    with pytest.raises(ValueError, match="`training_step`"):
        end(make(), way)


def test_other_steps_are_the_modules_own_affair() -> None:
    assert [end(FedAvg(1.0), way) for way in ("in place", "torch", "Lightning", "nothing")] == [3.0, 3.0, 3.0, 0.0]
    # 0 -> 2; the pull to the start is 0 at the only step
    assert [end(FedProx(1.0, 1.0), way) for way in ("Lightning", "nothing")] == [3.0, 0.0]
    assert [end(FedNova(1.0), way) for way in ("Lightning", "nothing")] == [3.0, 0.0]
