"""FedProx, server optimizers, RADFedp/m/a: closed forms O3, O6, O7 and O11b."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.begun import federation_of
from helpers.rounds import begin_round
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

from fl_lightning import FedProx, RADFed, parts

UNEQUAL: dict[str, Any] = {"a": [1.0, 4.0], "c": [0.0, 1.0]}


def walk(server: parts.ServerOptimizer, deltas: list[float]) -> list[float]:
    """Return the positions from 0 after steps toward position + delta."""
    server.begin_fit(federation_of([1]))
    position, positions = torch.zeros(1, dtype=torch.float64), []
    for delta in deltas:
        position = server.step(position, position + delta)
        positions.append(float(position))
    return positions


@pytest.mark.parametrize(("mu", "locals_"), [(1.0, (1.0, 1.2)), (0.01, (0.0198019802, 1.0024937656))])
def test_o3_exact_proximal_minimisation(mu: float, locals_: tuple[float, float]) -> None:
    # each step leaves at most 1 - 0.1 (1 + mu) of the distance: 0.899^300 < 2e-14
    for a, c, expected in zip(UNEQUAL["a"], UNEQUAL["c"], locals_, strict=True):
        callback = FedProx(mu, clients_per_round=1.0, local_steps=300)
        weights = fit_quadratic(callback, Quadratic(0.1, start=2.0), quadratic_clients([a], [c]), rounds=1)
        assert float(weights) == pytest.approx(expected, abs=5e-11)


@pytest.mark.parametrize(
    ("rule", "options", "deltas", "expected"),
    [
        ("adagrad", {}, [1.0, 0.5], [0.0099009901, 0.0223119637]),
        ("adagrad", {"beta1": 0.0}, [1.0, 0.5], [0.0990099010, 0.1433348065]),
        # m is 0.1 / 0.1 and 0.14 / 0.19, and v is 1 and 1.25 as it is.
        ("adagrad", {"bias_correction": True}, [1.0, 0.5], [0.0990099010, 0.1643308144]),
        ("adam", {}, [1.0, 0.5], [0.0909090909, 0.2062728325]),
        ("yogi", {}, [1.0, 0.5], [0.0909090909, 0.2058484122]),
        ("adam", {"v0": 0.1}, [0.1, 0.5], [0.0030788033, 0.0211111823]),
        ("yogi", {"v0": 0.1}, [0.1, 0.5], [0.0030668298, 0.0209456177]),
    ],
)
def test_o6_adaptive_servers(rule: Any, options: Any, deltas: list[float], expected: list[float]) -> None:
    server = parts.Adaptive(rule, lr=0.1, **{"beta1": 0.9, "beta2": 0.99, "tau": 0.01, **options})
    assert walk(server, deltas) == pytest.approx(expected, abs=5e-11)


def test_o7_momentum() -> None:
    assert walk(parts.Momentum(0.9), [1.0, 0.5, 0.0]) == pytest.approx([1.0, 2.4, 3.66], abs=1e-14)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (None, 0.6),
        (parts.Adaptive("adam", lr=0.1, beta1=0.9, beta2=0.99, tau=0.01, v0=0.0), 0.0857142857),
        (parts.Mixing(0.6), 0.36),
    ],
    ids=["radfedp", "radfeda", "radfedm"],
)
def test_o11b_radfed_with_other_parts(server: parts.ServerOptimizer | None, expected: float) -> None:
    # with seed 0 each model visits both clients
    callback = RADFed(2, 2, local_steps=150, local=parts.Proximal(1.0), server=server, seed=0)
    weights = fit_quadratic(callback, Quadratic(0.1), quadratic_clients(**UNEQUAL), rounds=2)
    assert float(weights) == pytest.approx(expected, abs=5e-11)


@pytest.mark.parametrize(("changes", "expected"), [(True, [0.5, 20.0]), (False, [0.5, 10.0])])
def test_server_optimizers_leave_buffers_to_the_aggregate(changes: bool, expected: list[float]) -> None:
    # a parameter and a buffer; a buffer that no client changed is no business of the aggregate's either
    model = torch.tensor([0.0, 10.0], dtype=torch.float64)
    federation = parts.Federation(
        np.array([3]), model, parts.Layout(("w", "buffer"), (torch.Size([1]),) * 2, 1, (32, 32))
    )
    algorithm = parts.Algorithm(parts.UniformSampler(1.0), server_optimizer=parts.Mixing(0.5))
    algorithm.run = parts.Run.begin(algorithm, federation)
    begun = begin_round(algorithm, 0)
    trained = torch.tensor([1.0, 20.0 if changes else 10.0]).double()
    begun.play(lambda tasks: [parts.ClientResult(task, model, trained, 1, num_parameters=1) for task in tasks])
    assert algorithm.server.model.tolist() == expected
