"""With which parts nothing of a client leaves it but its update, so that privacy's figures are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

import fl_lightning as fl
from fl_lightning import parts

A, C = [1.0, 0.5, 1.5, 1.0], [2.0, -1.0, 4.0, 0.5]
UNIFORM: dict[str, Any] = {"aggregation": parts.WeightedMean("uniform")}


def private() -> parts.DifferentialPrivacy:
    return parts.DifferentialPrivacy(0.3, noise_multiplier=1.0, delta=1e-3)


def secure() -> parts.SecureAggregation:
    return parts.SecureAggregation(10.0)


def local() -> parts.LocalDifferentialPrivacy:
    return parts.LocalDifferentialPrivacy(0.3, noise_multiplier=1.0, delta=1e-3)


def server_of(callback: Any) -> list[float]:
    end: list[float] = fit_quadratic(callback, Quadratic(0.1, [0.4]), quadratic_clients(A, C), rounds=4).tolist()
    return end


@pytest.mark.parametrize("exchange", [private, secure, local])
@pytest.mark.parametrize(
    "make",
    [
        lambda **k: fl.Ditto(0.5, 1.0, **k),
        lambda **k: fl.FedAvgFineTuned(1.0, every=2, **k),
        lambda **k: fl.Federated(1.0, objective=parts.Proximal(0.0), **k),
    ],
)
def test_what_stays_on_the_client_changes_nothing_of_fedavg_s_privacy(make: Any, exchange: Callable[[], Any]) -> None:
    plain, other = exchange(), exchange()
    expected = server_of(fl.FedAvg(1.0, seed=3, exchange=plain, **UNIFORM))
    assert server_of(make(seed=3, exchange=other, **UNIFORM)) == expected
    assert plain.values() == other.values()


@pytest.mark.parametrize("exchange", [private, secure, local])
@pytest.mark.parametrize(
    "make",
    [
        lambda **k: fl.FedRep("head", **k),
        lambda **k: fl.FedBABU("head", **k),
        lambda **k: fl.FedRoD("head", **k),
        lambda **k: fl.FedALA(**k),
        lambda **k: fl.PFedMe(**k),
        lambda **k: fl.APFL(**k),
        lambda **k: fl.PerFedAvg(**k),
        lambda **k: fl.MOON(**k),
        lambda **k: fl.FedLC(**k),
        lambda **k: fl.FedSAM(**k),
        lambda aggregation, **k: fl.FedLoRA("ffa", weighting="uniform", **k),
    ],
)
def test_methods_that_send_updates_alone(make: Any, exchange: Callable[[], Any]) -> None:
    assert make(exchange=exchange(), **UNIFORM).algorithm.chain.members[-1]


class Looking(parts.LocalObjective):
    """Keeps a number of each client."""

    def on_client_end(self, result: parts.ClientResult) -> None:
        self.largest = float(torch.linalg.vector_norm(result.delta))


class Telling(parts.ProximalModels):
    """Lets the server see clients' own models."""

    def play(self, tasks: Any, server: Any) -> Any:
        return (yield from super().play(tasks, server))


class Known(Looking):
    """Says that it lets nothing out."""

    sends_updates_alone = True


class Losing(Known):
    """Says so, but sends a loss."""

    sends_updates_alone = True

    def loss_of(self, task: parts.Task) -> float:
        return 0.0


class Counting(Known):
    """Says so, but sends numbers."""

    sends_updates_alone = True

    def numbers_up(self, result: parts.ClientResult) -> int:
        return 1


class Doubling(Known):
    """Says so, but sends another vector."""

    sends_updates_alone = True
    vectors_sent = 2


@pytest.mark.parametrize("exchange", [private, secure, local])
def test_what_a_class_of_your_own_sends_is_not_known(exchange: Callable[[], Any]) -> None:
    objectives = [{"objective": make()} for make in (Looking, Losing, Counting, Doubling)]
    for parts_of_mine in (*objectives, {"schedule": Telling()}):
        with pytest.raises(ValueError, match="sends_updates_alone = True"):
            fl.Federated(1.0, exchange=exchange(), **parts_of_mine, **UNIFORM)
    assert server_of(fl.Federated(1.0, exchange=exchange(), objective=Known(), **UNIFORM))


@pytest.mark.parametrize("kind", [parts.UniformSampler, parts.BernoulliSampler])
def test_a_draw_in_random_order_that_is_not_the_samplers_own_is_not_known(kind: Any) -> None:
    class FirstOnes(kind):  # type: ignore[misc]
        draws_in_random_order = True

        def draw(self, num_clients: int, rng: Any, available: Any) -> Any:
            return available[:2]

    assert kind(1.0).inclusion is not None
    assert FirstOnes(1.0).inclusion is None
