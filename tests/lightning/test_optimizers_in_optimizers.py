"""Every client gets the whole optimizer anew: also one that it wraps, and attributes of its own.

With f_k(w) = (w - c_k)^2 / 2 and rate 1 one step of SGD takes client k to c_k, and the server to the mean.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic

from fl_lightning import FedAvg


class Wrapping(torch.optim.Optimizer):
    """Holds an SGD with momentum over its own groups, as SAM does."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)
        self.inner = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


class Around(torch.optim.Optimizer):
    """Stands in front of another optimizer, whose state it shares, as Lookahead does, and equals all others."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups, self.defaults = optimizer, optimizer.param_groups, optimizer.defaults
        self.state, self.fast_state = defaultdict(dict), optimizer.state
        vars(optimizer)["outer"] = self
        self._optimizer_step_pre_hooks: dict[int, Any] = {}
        self._optimizer_step_post_hooks: dict[int, Any] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.optim.Optimizer)

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class InList(Around):
    """Has its optimizer in a list, behind another one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.all = [torch.optim.SGD([torch.zeros(1)], lr=1.0), optimizer]
        del self.optimizer, self.fast_state

    def step(self, closure: Any = None) -> Any:
        return self.all[1].step(closure)


@torch.no_grad()
def descend(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.sub_(parameter.grad, alpha=rate)


class Slowing(torch.optim.SGD):
    """Divides the rate by the number of its steps, of which it keeps notes of several kinds."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.steps, self.notes, self.total = 0, {"steps": [0]}, torch.zeros(1)
        self.counts, self.array = {"by name": defaultdict(int)}, {"steps": np.zeros(1)}

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        self.steps, self.total = self.steps + 1, self.total + 1
        self.notes["steps"].append(self.notes["steps"][-1] + 1)
        self.late = getattr(self, "late", 0) + 1
        self.counts["by name"]["steps"] += 1  # a `defaultdict` stays one
        self.array["steps"] += 1
        counts = [self.steps, self.notes["steps"][-1], self.late, self.counts["by name"]["steps"]]
        descend(self, 6 / (sum(counts) + float(self.total) + float(self.array["steps"][0])))
        return loss


class Counting(torch.optim.SGD):
    """Divides the rate by the number of its steps, which it counts in its groups, as timm's Lamb does."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        descend(self, 1 / self.param_groups[0]["step"])
        return loss


class OnCopies(torch.optim.Optimizer):
    """Steps copies of the parameters by another optimizer, as those with weights in full precision do."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)
        self.copies = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]
        self.inner = torch.optim.SGD(self.copies, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        pairs = list(zip(self.param_groups[0]["params"], self.copies, strict=True))
        for parameter, copy in pairs:
            copy.copy_(parameter)
            copy.grad = parameter.grad
        self.inner.step()
        for parameter, copy in pairs:
            parameter.copy_(copy)
        return loss


OPTIMIZERS = {
    "wrapped": lambda p: Wrapping(p, lr=1.0, momentum=0.9),
    "around": lambda p: Around(torch.optim.SGD(p, lr=1.0, momentum=0.9)),
    "in a list": lambda p: InList(torch.optim.SGD(p, lr=1.0, momentum=0.9)),
    "on copies": lambda p: OnCopies(p, lr=1.0, momentum=0.9),
    "attributes": lambda p: Slowing(p, lr=1.0),
    "options": lambda p: Counting(p, lr=1.0),
    "options of the wrapped": lambda p: Around(Counting(p, lr=1.0)),
}


class Optimized(Quadratic):
    """Goes to its client's optimum by one step of an optimizer."""

    def __init__(self, make: Any) -> None:
        super().__init__(1.0, [0.0])
        self.make = make

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())


CLIENTS = clients_that_reach([[2.0], [4.0], [9.0]], [1, 1, 1])


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_client_sees_the_optimizer_of_another(name: str, executor: Any) -> None:
    end = fit_quadratic(FedAvg(1.0, executor=executor), Optimized(OPTIMIZERS[name]), CLIENTS, 2)
    assert float(end) == pytest.approx(5.0, abs=1e-12)


class Thawing(Optimized):
    """Trains its parameters from a client's first batch on, in a group of their own."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([{"params": []}], lr=1.0, momentum=0.9)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.optimizers(use_pl_optimizer=False).add_param_group({"params": list(self.parameters())})


def test_each_client_may_add_a_group() -> None:
    end = fit_quadratic(FedAvg(1.0, executor="sequential"), Thawing(None), CLIENTS, 2)
    assert float(end) == pytest.approx(5.0, abs=1e-12)


class ThawingAtOnce(Thawing):
    """Trains its parameters from the round's start on, and saves a checkpoint inside of the round."""

    path: Path

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.trainer.save_checkpoint(self.path)

    def on_train_epoch_start(self) -> None:
        self.optimizers(use_pl_optimizer=False).add_param_group({"params": list(self.parameters())})


def test_a_checkpoint_inside_of_a_round_has_the_groups_of_its_start(tmp_path: Path) -> None:
    module = ThawingAtOnce(None)
    module.path = tmp_path / "inside.ckpt"
    fit_quadratic(FedAvg(1.0, executor="sequential"), module, CLIENTS, 1)
    [state] = torch.load(module.path, weights_only=True)["optimizer_states"]
    assert [group["params"] for group in state["param_groups"]] == [[]]


class Extending(Optimized):
    """Wraps one more optimizer in a round that fails."""

    def on_train_epoch_start(self) -> None:
        self.optimizers(use_pl_optimizer=False).second = torch.optim.SGD(self.parameters(), lr=1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise RuntimeError("of the step")


def test_a_round_that_fails_after_an_optimizer_came_says_why() -> None:
    with pytest.raises(RuntimeError, match="of the step"):
        fit_quadratic(FedAvg(1.0, executor="sequential"), Extending(OPTIMIZERS["wrapped"]), CLIENTS, 1)


def test_a_checkpoint_has_no_option_that_a_client_has_added(tmp_path: Path) -> None:
    module = Optimized(OPTIMIZERS["options"])
    fit_quadratic(FedAvg(1.0), module, CLIENTS, 1)
    module.trainer.save_checkpoint(tmp_path / "a.ckpt")
    [state] = torch.load(tmp_path / "a.ckpt", weights_only=True)["optimizer_states"]
    assert state["param_groups"][0].keys() == torch.optim.SGD([torch.zeros(1)]).param_groups[0].keys()
