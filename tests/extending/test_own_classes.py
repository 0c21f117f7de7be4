"""A class of a user's own must call, define together or return certain things: errors name class and method.

Two clients reach their optima 2 and 4 in one step, so that a round of FedAvg moves the server to their mean, 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import AggregationCallback, FedAvg, FedAvgM, Federated, FedProx, TensorDataModule
from fl_lightning.parts import (
    ClientStates,
    Compressor,
    Correction,
    Exchange,
    LocalObjective,
    Mixing,
    Momentum,
    RobustAggregation,
    ServerOptimizer,
    UniformSampler,
    WeightedMean,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


def fit(callback: AggregationCallback, rounds: int = 1) -> float:
    return float(fit_quadratic(callback, Quadratic(1.0, [0.0]), CLIENTS, rounds))


def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Do not call the base class's method."""


# ---- hooks of algorithms ----


@pytest.mark.parametrize("hook", ["setup", "on_before_optimizer_step", "on_train_epoch_end", "teardown"])
def test_a_hook_of_an_algorithm_calls_that_of_its_base(hook: str) -> None:
    callback = type("Mine", (FedProx,), {hook: nothing})(1.0, 1.0, executor="sequential")
    with pytest.raises(TypeError, match=rf"`Mine.{hook}` does not call `super\(\).{hook}\(...\)`, which .*\. Call it"):
        fit(callback)


class Calling(FedProx):
    """Calls its base's hooks, directly or through a subclass."""

    steps = 0

    def on_before_optimizer_step(self, *args: Any) -> None:
        self.steps += 1
        super().on_before_optimizer_step(*args)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.steps = state.get("steps", 0)


class CallingToo(Calling):
    def on_before_optimizer_step(self, *args: Any) -> None:
        super().on_before_optimizer_step(*args)


@pytest.mark.parametrize("kind", [Calling, CallingToo])
def test_a_hook_that_does_is_left_alone(kind: type[Calling]) -> None:
    # F_k + 1/2 |w - 0|^2 with two steps at rate 1/2: the gradients are w - c + w, so both steps end at c / 2
    callback = kind(1.0, 1.0, local_steps=2, executor="sequential")
    assert float(fit_quadratic(callback, Quadratic(0.5, [0.0]), CLIENTS, 1)) == 1.5
    assert callback.steps == 4


def test_a_checkpoint_without_the_algorithms_state_is_not_written(tmp_path: Path) -> None:
    mine = type("Mine", (FedAvgM,), {"state_dict": lambda self: {"mine": 1}, "load_state_dict": nothing})
    trainer = quiet_trainer(max_epochs=1, callbacks=[mine(clients_per_round=1.0)])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=1))
    with pytest.raises(
        TypeError, match=r"`Mine.state_dict` does not call `super\(\).state_dict\(...\)`, which returns"
    ):
        trainer.save_checkpoint(tmp_path / "last.ckpt")


def test_a_checkpoint_is_not_loaded_without_the_algorithms_state(tmp_path: Path) -> None:
    data = TensorDataModule(CLIENTS, batch_size=1)
    trainer = quiet_trainer(max_epochs=1, callbacks=[Calling(0.0, 1.0)])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    forgetful = type("Calling", (Calling,), {"load_state_dict": nothing, "__qualname__": "Calling"})(0.0, 1.0)
    trainer = quiet_trainer(max_epochs=2, callbacks=[forgetful])
    with pytest.raises(TypeError, match=r"`Calling.load_state_dict` does not call"):
        trainer.fit(Quadratic(1.0, [0.0]), datamodule=data, ckpt_path=tmp_path / "last.ckpt")


def test_a_checkpoint_that_has_no_state_of_the_algorithm_is_not_resumed(tmp_path: Path) -> None:
    data, path = TensorDataModule(CLIENTS, batch_size=1), tmp_path / "last.ckpt"
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=data)
    trainer.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["callbacks"]["FedAvg"] = {"mine": 1}  # as a subclass without `super()` wrote it in earlier releases
    torch.save(checkpoint, path)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0)])
    with pytest.raises(ValueError, match=r"a state of FedAvg, but in it there is nothing of the algorithm"):
        trainer.fit(Quadratic(1.0, [0.0]), datamodule=data, ckpt_path=path)


@pytest.mark.parametrize("returned", [None, WeightedMean(), WeightedMean])
def test_configure_algorithm_returns_an_algorithm(returned: Any) -> None:
    mine = type("Mine", (AggregationCallback,), {"configure_algorithm": lambda self: returned})
    with pytest.raises(TypeError, match=r"`Mine.configure_algorithm` returned .*; it must return an algorithm"):
        mine(1.0)


# ---- constructors ----


def test_a_constructor_calls_that_of_its_base() -> None:
    for base in (FedAvg, UniformSampler, Mixing, WeightedMean, Compressor, RobustAggregation):
        abstract = dict.fromkeys(getattr(base, "__abstractmethods__", ()), nothing)
        with pytest.raises(TypeError, match=r"`Mine.__init__` does not call `super\(\).__init__\(...\)`, which"):
            type("Mine", (base,), {"__init__": nothing, **abstract})()
    # these bases have nothing to set
    for base in (Exchange, LocalObjective):
        type("Mine", (base,), {"__init__": nothing})()


# ---- states ----


class Summing(Exchange):
    """Sends half of the sum of a client's updates so far."""

    def on_fit_start(self, federation: Any) -> None:
        self.states = ClientStates(federation, torch.zeros(1, dtype=torch.float64))

    def upload(self, result: Any) -> Any:
        assert self.states is not None
        total = self.states[result.task.client] + result.delta
        self.states.put(result.task.client, total)
        return result.with_delta(0.5 * total)


def test_hooks_that_keep_the_vectors_of_clients_are_not_replaced() -> None:
    # without the base's hook, every round would begin without sums
    with pytest.raises(TypeError, match=r"`Mine.on_round_end` does not call .* keeps the vectors"):
        fit(FedAvg(1.0, exchange=type("Mine", (Summing,), {"on_round_end": nothing})()))
    # an exchange without such vectors has nothing to call
    assert fit(FedAvg(1.0, exchange=type("Mine", (Exchange,), {"on_round_end": nothing})())) == 3.0


class Breaking(Summing):
    """Breaks the second round off once, and forgets nothing by itself."""

    fails = 3

    def upload(self, result: Any) -> Any:
        self.fails -= 1
        uploaded = super().upload(result)
        if not self.fails:
            raise ArithmeticError("broken by the test")
        return uploaded

    on_round_abort = nothing


def test_vectors_of_a_round_that_broke_off_are_forgotten_whatever_a_hook_does() -> None:
    # round 1: sums 2 and 4, the server moves by 1.5; round 2: sums 2.5 and 6.5, it moves by 2.25
    callback, module = FedAvg(1.0, exchange=Breaking(), executor="sequential"), Quadratic(1.0, [0.0])
    trainer, data = quiet_trainer(max_epochs=2, callbacks=[callback]), TensorDataModule(CLIENTS, batch_size=1)
    with pytest.raises(ArithmeticError):
        trainer.fit(module, datamodule=data)
    assert float(module.w) == 1.5
    trainer.fit(module, datamodule=data)
    assert float(module.w) == 3.75


def test_the_state_of_a_librarys_part_is_not_replaced(tmp_path: Path) -> None:
    states = {"state_dict": lambda self: {"mine": 1}, "load_state_dict": nothing}
    with pytest.raises(TypeError, match=r"`Mine.state_dict` does not call `super\(\).state_dict\(...\)`"):
        fit(Federated(1.0, server=type("Mine", (Momentum,), states)()))


def test_a_state_is_saved_and_loaded() -> None:
    with pytest.raises(TypeError, match=r"Mine defines `state_dict`, but no `load_state_dict\(state\)`"):
        type("Mine", (ServerOptimizer,), {"state_dict": lambda self: {}})
    with pytest.raises(TypeError, match=r"Mine defines `state_dict`, but no `load_state_dict\(state\)`"):
        type("Mine", (Momentum,), {"state_dict": lambda self: {}})
    for base in (ServerOptimizer, Exchange):
        with pytest.raises(TypeError, match=r"Mine defines `load_state_dict`, but no `state_dict\(\)`"):
            type("Mine", (base,), {"load_state_dict": nothing})
    # what Momentum saves may be all that another way to load needs
    type("Mine", (Momentum,), {"load_state_dict": nothing})


# ---- flags and terms ----


class Halved(Exchange):
    """The server sees half of the sum; without the flag, nobody would call the method."""

    def summed(self, total: Tensor, count: float) -> tuple[Tensor, float]:
        return 0.5 * total, count


class Equal(Exchange):
    """All clients send what the first one does."""

    def colluded(self, results: Any) -> Any:
        return [result.with_delta(results[0].delta) for result in results]


class Scored(UniformSampler):
    def score(self, client: Any) -> float:
        return 7.0

    def take_scores(self, scores: Any) -> None:
        self.scores = dict(scores)


def test_a_method_that_needs_a_flag_sets_it() -> None:
    assert fit(FedAvg(1.0, weighting="uniform", exchange=Halved())) == 1.5
    assert fit(FedAvg(1.0, exchange=Equal())) == 2.0
    sampler = Scored(2)
    fit(FedAvg(sampler=sampler))
    assert sampler.scores == {0: 7.0, 1: 7.0}


def test_a_class_may_turn_the_flag_off() -> None:
    assert fit(FedAvg(1.0, exchange=type("Off", (Halved,), {"sums_updates": False})())) == 3.0


class Returning(Correction):
    def add(self, parameters: Any, start: Any, linear: Any) -> Any:
        return sum((parameter - received).square().sum() for parameter, received in zip(parameters, start, strict=True))


class Own(LocalObjective):
    def correction(self, client: Any) -> Correction:
        return Returning()


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_correction_adds_and_does_not_return(executor: Any) -> None:
    with pytest.raises(TypeError, match=r"`Returning.add` returned .*, which has no effect. It must add the gradient"):
        fit(Federated(1.0, objective=Own(), executor=executor))
