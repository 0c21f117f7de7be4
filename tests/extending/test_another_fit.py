"""A part of a user's own in a second fit begins anew; names of its own stay its own; its functions are checked."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.own_states import FadingMomentum
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor

from fl_lightning import FedAsync, FedAvg, FedBuff, Federated, TensorDataModule
from fl_lightning.parts import (
    ClientResult,
    Correction,
    Exchange,
    LocalObjective,
    PersonalParameters,
    ServerOptimizer,
    TopK,
)

CLIENTS = clients_that_reach([[2.0, 1.0], [4.0, 1.0]], [1, 1])


def run(callback: Any, rounds: int = 2, path: Path | None = None) -> tuple[list[float], Any]:
    module, trainer = Quadratic(1.0, [0.0, 0.0]), quiet_trainer(max_epochs=rounds, callbacks=[callback])
    trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None), ckpt_path=path)
    return module.w.tolist(), trainer


class Fading(ServerOptimizer):
    """Has its state from its constructor on."""

    def __init__(self) -> None:
        self.steps = [0]

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.steps[0] += 1
        return model + (aggregate - model) / (1 + self.steps[0])

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = list(state["steps"])


@pytest.mark.parametrize("make", [Fading, lambda: FadingMomentum(0.5)], ids=["own", "of a library's class"])
def test_a_second_fit_begins_anew(make: Callable[[], ServerOptimizer], tmp_path: Path) -> None:
    callback = Federated(1.0, server=make())
    first, trainer = run(callback)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    copied = copy.deepcopy(callback)
    assert run(callback)[0] == first
    assert run(copied)[0] == first
    # and a fit that resumes goes on
    assert run(callback, 4, tmp_path / "last.ckpt")[0] == run(Federated(1.0, server=make()), 4)[0]


class Named(Exchange):
    """Has attributes of any name."""

    def __init__(self) -> None:
        self.place, self.chain = "here", ["iron"]

    def upload(self, result: ClientResult) -> ClientResult:
        assert (self.place, self.chain) == ("here", ["iron"])
        return result


def test_attributes_of_an_exchange_stay_its_own() -> None:
    assert run(FedAvg(1.0, exchange=[TopK(0.5), Named()]))[0]


def test_an_objective_has_no_exchange_of_its_own() -> None:
    class Mine(LocalObjective):
        def __init__(self) -> None:
            self.exchange = {"rate": 1.0}

        def correction(self, client: Any) -> Correction:
            return Correction()

    with pytest.raises(TypeError, match=r"`Mine` has an attribute `exchange`, which would be replaced"):
        Federated(1.0, objective=Mine())
    with pytest.raises(TypeError, match=r"`Mine` has an attribute `exchange`"):
        Federated(1.0, objective=type("Mine", (LocalObjective,), {"exchange": 1.0, "correction": Mine.correction})())
    objective = type("Mine", (LocalObjective,), {"correction": Mine.correction})()
    for _ in range(2):  # the library's own from an earlier algorithm is none
        assert run(Federated(1.0, objective=objective))[0] == [3.0, 1.0]


@pytest.mark.parametrize("member", [Named(), TopK(0.5)])
def test_an_exchange_is_given_once(member: Exchange) -> None:
    with pytest.raises(ValueError, match=r"is given twice in `exchange`: one object, whose state both places"):
        FedAvg(1.0, exchange=[member, member])


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        (
            lambda: TopK(0.5, error_feedback=False),
            lambda: TopK(0.5),
            r"vectors of TopK in no attribute, but this run's TopK keeps them in `states`\. Resume with the arguments",
        ),
        (
            lambda: TopK(0.5),
            lambda: TopK(0.5, error_feedback=False),
            r"vectors of TopK in `states`, but this run's TopK keeps them in no attribute",
        ),
    ],
)
def test_vectors_that_other_arguments_keep_are_named(
    then: Callable[[], Exchange], now: Callable[[], Exchange], message: str, tmp_path: Path
) -> None:
    run(FedAvg(1.0, exchange=then()))[1].save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=message):
        run(FedAvg(1.0, exchange=now()), 4, tmp_path / "last.ckpt")


def test_other_personal_parameters_are_named(tmp_path: Path) -> None:
    from helpers.stacked import Module, clients_of
    from torch import nn

    def fit(pattern: str, rounds: int, path: Path | None = None) -> Any:
        callback = FedAvg(1.0, exchange=PersonalParameters(pattern))
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback])
        module = Module(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)))
        trainer.fit(module, datamodule=TensorDataModule(clients_of((3,)), batch_size=4), ckpt_path=path)
        return trainer

    fit("layers.1", 1).save_checkpoint(tmp_path / "last.ckpt")
    # 2 x 3 weights and 3 biases; 3 x 2 weights and 2 biases
    with pytest.raises(ValueError, match=r"holds 9 values of each client in `PersonalParameters.states`, but .* 8\."):
        fit("layers.0", 2, tmp_path / "last.ckpt")


@pytest.mark.parametrize(("late", "text"), [(-1.0, "-1"), (math.nan, "nan"), (math.inf, "inf"), (None, "None")])
@pytest.mark.parametrize("name", ["FedBuff", "FedAsync"])
def test_each_weight_of_a_stale_result_is_checked(late: Any, text: str, name: str) -> None:
    def mine(staleness: int) -> Any:
        return late if staleness else 1.0

    make: dict[str, Callable[[], Any]] = {
        "FedBuff": lambda: FedBuff(1, 2, speeds=[1, 3], staleness=mine),
        "FedAsync": lambda: FedAsync(2, speeds=[1, 3], staleness=mine),
    }
    with pytest.raises(
        ValueError, match=rf"`staleness\(\d\)` must be a finite number .* got {text}.*weight that mine gives"
    ):
        run(make[name](), 4)


class Scaled(ServerOptimizer):
    """Keeps its argument under another name."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model + self._scale * (aggregate - model)


class ScaledByName(Scaled):
    def __init__(self, **options: float) -> None:
        self._scale = options["by"]


@pytest.mark.parametrize(
    ("then", "now", "line"),
    [
        (lambda: Scaled(0.5), lambda: Scaled(0.25), r"server Scaled\(scale=0.5\) -> Scaled\(scale=0.25\)"),
        (
            lambda: ScaledByName(by=0.5),
            lambda: ScaledByName(by=0.25),
            r"server ScaledByName\(.*\) \(in part\)|server .*",
        ),
        (lambda: Scaled(0.5), lambda: Scaled(scale=0.5), ""),
        (lambda: Scaled(0.5), lambda: copy.deepcopy(Scaled(0.5)), ""),
        (lambda: Scaled(0.5), lambda: pickle.loads(pickle.dumps(Scaled(0.5))), ""),
    ],
)
def test_a_changed_argument_is_told_whatever_its_attribute_is_called(
    then: Callable[[], ServerOptimizer],
    now: Callable[[], ServerOptimizer],
    line: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(Federated(1.0, server=then()))[1].save_checkpoint(tmp_path / "last.ckpt")
    with caplog.at_level("INFO"):
        run(Federated(1.0, server=now()), 3, tmp_path / "last.ckpt")
    told = [record.getMessage() for record in caplog.records if "other settings" in record.getMessage()]
    assert len(told) == bool(line)
    assert re.search(line, "".join(told))


class LateVelocity(ServerOptimizer):
    """Has its state from its first step on."""

    def __init__(self) -> None:
        self.velocity: Any = None

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        way = aggregate - model
        self.velocity = way if self.velocity is None else way + self.velocity
        return model + self.velocity

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": self.velocity.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.velocity = state["velocity"]


def test_a_first_state_that_is_unknown_is_an_error_in_a_second_fit() -> None:
    callback = Federated(2, server=LateVelocity())
    run(callback)
    with pytest.raises(RuntimeError, match=r"LateVelocity begins another fit, .*Define `on_fit_start`"):
        run(Federated(2, server=callback.algorithm.server_optimizer))


def test_arguments_that_are_read_once_are_no_obstacle_to_copies() -> None:
    class Reads(ServerOptimizer):
        def __init__(self, rates: Any) -> None:
            self.first = list(rates)

        def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
            return aggregate

    assert copy.deepcopy(Reads(rate for rate in (1.0, 2.0))).first == [1.0, 2.0]


def test_an_attribute_that_is_a_function_may_be_the_hook() -> None:
    class Given(LocalObjective):
        def __init__(self) -> None:
            slope = torch.tensor([1.0, 2.0], dtype=torch.float64)
            self.correction = lambda client: Correction(linear=slope)  # type: ignore[method-assign]

    # one step of rate 1 ends at the optimum less the slope: the mean of (2, 1) and (4, 1) less (1, 2)
    assert run(Federated(1.0, objective=Given()))[0] == [2.0, -1.0]


def test_arrays_of_any_strides_are_looked_at() -> None:
    import numpy as np

    class Ranks(ServerOptimizer):
        def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
            self.order = np.argsort(aggregate.numpy())[::-1]
            return aggregate.to(model.dtype)

    server = Ranks()
    assert run(Federated(2, server=server), rounds=3)[0] == [3.0, 1.0]
    assert server.order.tolist() == [0, 1]
