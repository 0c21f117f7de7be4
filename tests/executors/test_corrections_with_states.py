"""Corrections of one's own that keep something from step to step are not stacked; others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class Kept(LocalObjective):
    """Returns for each client what a function of the client says it has returned before, or a new correction."""

    def __init__(self, make: Callable[[], Correction], key: Callable[[int], Any]) -> None:
        self.make, self.key, self.known = make, key, dict[Any, Correction]()

    def correction(self, client: Any) -> Correction:
        key = self.key(client.task.client)
        return self.make() if key is None else self.known.setdefault(key, self.make())


def weights(executor: str, objective: LocalObjective) -> tuple[Tensor, str | None]:
    torch.manual_seed(0)
    trainer, module = quiet_trainer(max_epochs=3, callbacks=[]), Module(nn.Linear(6, 3))
    trainer.callbacks.append(Federated(1.0, objective=objective, seed=1, executor=executor))
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    cause = getattr(trainer.fit_loop.executor, "cause", None)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]), cause


ONE, PAIRS, EACH, NEW = (lambda client: 0), (lambda client: client % 2), (lambda client: client), (lambda client: None)


@pytest.mark.parametrize(
    ("make", "key", "cause"),
    [
        (Warm, ONE, "returns one Warm for several clients"),
        (Warm, PAIRS, "returns one Warm for several clients"),
        (Warm, EACH, "`Warm.add` changes its attribute `strength`"),
        (Warm, NEW, "`Warm.add` changes its attribute `strength`"),
        (Memory, ONE, "returns one Memory for several clients"),
        (Memory, PAIRS, "returns one Memory for several clients"),
        (Memory, EACH, "`Memory.add` changes its attribute `drifts`"),
        (Memory, NEW, "`Memory.add` changes its attribute `drifts`"),
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
