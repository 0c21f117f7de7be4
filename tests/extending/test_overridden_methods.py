"""Subclasses of the library's parts that override its methods; parts and executors that are exchanged or replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import nn

from fl_lightning import FedAvg, Federated, FedNova, QFedAvg, TensorDataModule
from fl_lightning.algorithms.description import described
from fl_lightning.executors import Executor, SequentialExecutor, VectorizedExecutor
from fl_lightning.parts import (
    ClientSampler,
    DynamicRegularizer,
    Median,
    Mixing,
    NormalizedMean,
    PersonalParameters,
    Proximal,
    UniformSampler,
    WeightedMean,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


def test_an_objective_that_checks_nothing_still_knows_which_parameters_are_personal() -> None:
    class WithoutSuper(DynamicRegularizer):
        def check_beside(self, parts: Mapping[str, Any]) -> None:
            pass

    def duals(kind: type[DynamicRegularizer]) -> list[float]:
        objective = kind(0.1)
        module = Module(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)))
        callback = Federated(1.0, objective=objective, exchange=PersonalParameters("layers.1"))
        trainer = quiet_trainer(max_epochs=2, callbacks=[callback])
        trainer.fit(module, datamodule=TensorDataModule(clients_of((3,)), batch_size=4))
        assert objective.states is not None
        return objective.states[0][-9:].tolist()  # of the personal layer: 2 x 3 weights and 3 biases

    assert duals(DynamicRegularizer) == [0.0] * 9
    assert duals(WithoutSuper) == [0.0] * 9


def test_a_server_optimizer_that_does_not_prepare_its_rounds_is_an_error() -> None:
    class Forgetful(Mixing):
        def on_round_start(self, round_index: int) -> None:
            pass

    with pytest.raises(TypeError, match=r"`Forgetful.on_round_start` does not call `super\(\).on_round_start\(...\)`"):
        fit_quadratic(Federated(1.0, server=Forgetful(lambda t: 1 / (t + 1))), Quadratic(1.0, [0.0]), CLIENTS, 1)


def test_an_executor_that_is_set_in_mid_fit_begins_and_ends_with_the_next_fit() -> None:
    told: list[str] = []

    class Told(SequentialExecutor):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_fit_start(self, *args: Any) -> None:
            told.append(f"{self.name} starts")
            super().on_fit_start(*args)

        def on_fit_end(self) -> None:
            told.append(f"{self.name} ends")
            super().on_fit_end()

    class Exchanging(FedAvg):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)
            self.executor = Told("B")

    callback = Exchanging(1.0, executor=Told("A"))
    module = Quadratic(1.0, [0.0])
    fit_quadratic(callback, module, CLIENTS, 1)
    assert told == ["A starts", "A ends"]
    fit_quadratic(callback, module, CLIENTS, 1)
    assert told == ["A starts", "A ends", "B starts", "B ends"]


def test_settings_of_executors_are_shown() -> None:
    assert repr(SequentialExecutor(channels_last=True)) == "SequentialExecutor(channels_last=True)"
    assert repr(VectorizedExecutor(4)) == "VectorizedExecutor(clients_at_once=4)"
    settings: Sequence[Executor] = [SequentialExecutor(), SequentialExecutor(True), VectorizedExecutor(4)]
    assert len({str(described(executor)) for executor in settings}) == 3


def test_a_sampler_that_a_part_rejects_changes_nothing() -> None:
    class Choosy(WeightedMean):
        def check_beside(self, parts: Mapping[str, Any]) -> None:
            super().check_beside(parts)
            if parts["sampler"].clients_per_round == 2:
                raise TypeError("not two")

    class Two(UniformSampler):
        pass

    callback = FedAvg(aggregation=Choosy("uniform"), sampler=UniformSampler(1))
    first: ClientSampler = callback.sampler
    with pytest.raises(TypeError, match="not two"):
        callback.sampler = Two(2)
    assert callback.sampler is first
    assert callback.algorithm.sampler is first


def test_q_has_no_place_beside_another_aggregation() -> None:
    with pytest.raises(ValueError, match=r"`q=5\.0` belongs to the algorithm's own aggregation"):
        QFedAvg(5.0, 1.0, aggregation=Median())
    callback = QFedAvg(0.0, 1.0, aggregation=Median())
    assert not callback.algorithm.objective.sends_loss  # which would cost a pass over the clients' data
    assert float(fit_quadratic(callback, Quadratic(1.0, [0.0]), CLIENTS, 1)) == 3.0


def test_fednova_can_be_put_together_from_its_parts() -> None:
    def fit(callback: Any) -> torch.Tensor:
        clients = clients_of((3,), (5, 9, 14))
        module = Module(nn.Linear(3, 3))
        torch.manual_seed(0)
        module.layers.reset_parameters()  # type: ignore[operator]
        trainer = quiet_trainer(max_epochs=2, callbacks=[callback])
        trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=2))
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    parts = Federated(1.0, objective=Proximal(0.3), aggregation=NormalizedMean(mu=0.3), seed=1)
    assert torch.equal(fit(parts), fit(FedNova(1.0, mu=0.3, seed=1)))
    with pytest.raises(ValueError, match=r"needs an objective with the same proximal term, got .*Use Proximal\(0.3\)"):
        Federated(1.0, aggregation=NormalizedMean(mu=0.3))


def test_a_part_that_does_not_take_the_federation_is_an_error() -> None:
    class Lost(WeightedMean):
        def attach(self, federation: Any, *, fresh: bool = True) -> None:
            pass

    with pytest.raises(TypeError, match=r"`Lost.attach` does not call `super\(\).attach\(...\)`, which takes the fed"):
        fit_quadratic(FedAvg(1.0, aggregation=Lost("uniform")), Quadratic(1.0, [0.0]), CLIENTS, 1)
