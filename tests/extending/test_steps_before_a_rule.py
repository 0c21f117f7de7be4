"""A step of a user's own before a robust rule: its hooks are called, its state is saved, and its mistakes are errors.

One step brings each client to its optimum: 2, 4 and 9, whose median is 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.parts import Median, PreAggregation, RobustAggregation, Updates

CLIENTS = clients_that_reach([[2.0], [4.0], [9.0]], [1, 1, 1])


def fit(before: PreAggregation, rounds: int = 1, **options: Any) -> float:
    return float(
        fit_quadratic(FedAvg(1.0, aggregation=Median(before), **options), Quadratic(1.0, [0.0]), CLIENTS, rounds)
    )


class Fading(PreAggregation):
    """Halves the updates once more in each round, and logs how often."""

    def __init__(self) -> None:
        self.rounds = 0
        self.calls: list[str] = []

    def on_round_start(self, round_index: int) -> None:
        self.calls.append(f"start {round_index}")

    def mix(self, updates: Updates) -> Updates:
        self.calls.append("mix")
        return updates.mixed(torch.eye(len(updates), dtype=torch.float64) / 2 ** (self.rounds + 1))

    def on_round_end(self) -> None:
        self.calls.append("end")
        self.rounds += 1

    def values(self) -> dict[str, float]:
        return {"halvings": self.rounds}

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


def test_its_hooks_are_called_and_its_values_logged() -> None:
    before, trainer = Fading(), quiet_trainer(max_epochs=2)
    trainer.callbacks.append(FedAvg(1.0, aggregation=Median(before)))
    module = Quadratic(1.0, [0.0])
    trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None))
    assert before.calls == ["start 0", "mix", "end", "start 1", "mix", "end"]
    assert float(trainer.callback_metrics["halvings"]) == 2
    assert float(module.w) == 2.5  # half of the way to 4, then a quarter of the way from 2 to 4


def test_a_resumed_run_goes_on_with_its_state(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"

    def run(rounds: int, checkpoint: Path | None = None) -> Any:
        module = Quadratic(1.0, [0.0])
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, aggregation=Median(Fading()))])
        trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None), ckpt_path=checkpoint)
        return trainer, module

    run(2)[0].save_checkpoint(path)
    assert torch.equal(run(4, path)[1].w, run(4)[1].w)


class Noisy(PreAggregation):
    def mix(self, updates: Updates) -> Updates:
        return updates.mixed(torch.diag(torch.rand(len(updates), dtype=torch.float64)))


def test_what_it_draws_does_not_depend_on_the_executor() -> None:
    torch.manual_seed(0)
    alone = fit(Noisy(), 3, executor="sequential")
    torch.manual_seed(1)
    assert fit(Noisy(), 3, executor="vectorized") == pytest.approx(alone, abs=1e-12)
    assert 0 < alone < 9


def test_a_state_that_is_not_saved_is_named(tmp_path: Path) -> None:
    class Forgetful(PreAggregation):
        def __init__(self) -> None:
            self.count = 0

        def mix(self, updates: Updates) -> Updates:
            self.count += 1
            return updates

    trainer = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, aggregation=Median(Forgetful()))])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None))
    with pytest.warns(UserWarning, match="Forgetful changes `count` from round to round, and has no `state_dict`"):
        trainer.save_checkpoint(tmp_path / "last.ckpt")


def test_it_must_return_updates() -> None:
    class Wrong(PreAggregation):
        def mix(self, updates: Updates) -> Any:
            return torch.eye(3)

    with pytest.raises(TypeError, match=r"`Wrong.mix` must return Updates, such as `updates.mixed\(matrix\)`, got"):
        fit(Wrong())


def test_it_changes_no_result_in_place() -> None:
    class Careless(PreAggregation):
        def mix(self, updates: Updates) -> Updates:
            updates.results[0].vector.zero_()
            return updates

    with pytest.raises(RuntimeError, match=r"`Careless.mix` changed a tensor in place"):
        fit(Careless())


def test_a_rule_of_ones_own_calls_the_hooks_that_it_overrides() -> None:
    class Own(RobustAggregation):
        def on_round_start(self, round_index: int) -> None:
            pass

        def rule(self, updates: Updates) -> torch.Tensor:
            return updates.mean()

    module = Quadratic(1.0, [0.0])
    with pytest.raises(TypeError, match=r"`Own.on_round_start` does not call `super\(\).on_round_start\(...\)`"):
        fit_quadratic(FedAvg(1.0, aggregation=Own(Noisy())), module, CLIENTS, 1)
    assert float(fit_quadratic(FedAvg(1.0, aggregation=Own()), module, CLIENTS, 1)) == 5.0
