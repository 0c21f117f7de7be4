"""Corrections of one's own that keep something from step to step are not stacked; others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn

from fl_lightning import Federated, TensorDataModule
from fl_lightning.parts import Correction, LocalObjective


class Pull(Correction):
    """Pulls back to the start."""

    strength = 0.05

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        for parameter, received in zip(parameters, start, strict=True):
            parameter.grad.add_(parameter.detach() - received, alpha=self.strength)


class Warm(Pull):
    """Pulls harder with each step."""

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        object.__setattr__(self, "strength", self.strength + 0.05)
        super().add(parameters, start, linear)


class Memory(Correction):
    """Adds to each parameter's gradient the drifts of earlier steps."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "drifts", {})

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        drifts: dict[int, Tensor] = self.drifts  # type: ignore[attr-defined]
        for place, (parameter, received) in enumerate(zip(parameters, start, strict=True)):
            drifts[place] = 0.5 * drifts.get(place, 0.0) + parameter.detach() - received
            parameter.grad.add_(drifts[place])


class Momentum(Correction):
    """Adds to each parameter's gradient the drifts of earlier steps: nothing in the first step, where all are zero."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "drifts", [torch.zeros(3, 6).double(), torch.zeros(3).double()])

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        drifts: list[Tensor] = self.drifts  # type: ignore[attr-defined]
        for drift, parameter, received in zip(drifts, parameters, start, strict=True):
            drift.mul_(0.5).add_(parameter.detach() - received)
            parameter.grad.add_(drift)


class Steps:
    """Counts, and is nothing that can be copied as a tensor is."""

    number = 0


class Counting(Pull):
    """Pulls harder with each step that another object has counted."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "steps", Steps())

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        self.steps.number += 1  # type: ignore[attr-defined]
        for parameter, received in zip(parameters, start, strict=True):
            parameter.grad.add_(parameter.detach() - received, alpha=0.01 * self.steps.number)  # type: ignore[attr-defined]


class OfClass(Pull):
    """Pulls harder with each step of any client."""

    strengths: ClassVar[list[float]] = []

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        self.strengths.append(0.01)
        for parameter, received in zip(parameters, start, strict=True):
            parameter.grad.add_(parameter.detach() - received, alpha=sum(self.strengths))


STRENGTHS: list[float] = []


class OfGlobal(Pull):
    """Pulls harder with each step of any client, and has an attribute with the global's name."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "STRENGTHS", "a note")

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        STRENGTHS.append(0.01)
        for parameter, received in zip(parameters, start, strict=True):
            parameter.grad.add_(parameter.detach() - received, alpha=sum(STRENGTHS))


class Kept(LocalObjective):
    """Returns for each client what a function of the client says it has returned before, or a new correction."""

    def __init__(self, make: Callable[[], Correction], key: Callable[[int], Any]) -> None:
        self.make, self.key, self.known = make, key, dict[Any, Correction]()

    def correction(self, client: Any) -> Correction:
        key = self.key(client.task.client)
        return self.make() if key is None else self.known.setdefault(key, self.make())


def weights(executor: str, objective: LocalObjective) -> tuple[Tensor, str | None]:
    torch.manual_seed(0)
    OfClass.strengths.clear()
    STRENGTHS.clear()
    trainer, module = quiet_trainer(max_epochs=3, callbacks=[]), Module(nn.Linear(6, 3))
    trainer.callbacks.append(Federated(1.0, objective=objective, seed=1, executor=executor))
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    cause = getattr(trainer.fit_loop.executor, "cause", None)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]), cause


ONE, PAIRS, EACH, NEW = (lambda client: 0), (lambda client: client % 2), (lambda client: client), (lambda client: None)


@pytest.mark.parametrize(
    ("make", "key", "cause"),
    [
        (Warm, ONE, "`Warm.add` changes `strength`"),
        (Warm, PAIRS, "`Warm.add` changes `strength`"),
        (Warm, EACH, "`Warm.add` changes `strength`"),
        (Warm, NEW, "`Warm.add` changes `strength`"),
        (Memory, ONE, "`Memory.add` changes `drifts`"),
        (Memory, PAIRS, "`Memory.add` changes `drifts`"),
        (Memory, EACH, "`Memory.add` changes `drifts`"),
        (Memory, NEW, "`Memory.add` changes `drifts`"),
        (Momentum, EACH, "`Momentum.add` changes `drifts`"),
        (Momentum, NEW, "`Momentum.add` changes `drifts`"),
        (Counting, EACH, "`Counting.add` changes `steps`"),
        (Counting, NEW, "`Counting.add` changes `steps`"),
        (OfClass, NEW, "`OfClass.add` changes `OfClass.strengths`"),
        (OfGlobal, NEW, "`OfGlobal.add` changes `STRENGTHS`"),
        (Pull, ONE, "returns one Pull for several clients"),
        (Pull, PAIRS, "returns one Pull for several clients"),
    ],
)
def test_a_correction_that_may_keep_a_state_is_not_stacked(make: Any, key: Any, cause: str) -> None:
    expected, _ = weights("sequential", Kept(make, key))
    for executor in ("vectorized", "auto"):
        found, why = weights(executor, Kept(make, key))
        assert torch.equal(found, expected)
        if executor == "vectorized":
            assert why is not None and cause in why


@pytest.mark.parametrize("key", [EACH, NEW])
def test_a_correction_of_one_client_that_keeps_nothing_is_stacked(key: Any) -> None:
    expected, _ = weights("sequential", Kept(Pull, key))
    found, why = weights("vectorized", Kept(Pull, key))
    assert why is None
    assert torch.allclose(found, expected, atol=1e-12)
