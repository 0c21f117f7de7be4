"""FedDyn and SCAFFOLD: closed forms O4 and O5, invariants, fixed points."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from helpers.toys import Halved, Quadratic, fit_clients, fit_quadratic, quadratic_clients
from lightning.pytorch.callbacks import LambdaCallback

from fl_lightning import FedAvg, FedDyn, Scaffold
from fl_lightning.parts import BernoulliSampler, Participation

UNEQUAL: dict[str, Any] = {"a": [1.0, 4.0], "c": [0.0, 1.0]}  # optimum of the sum: 0.8
EXACT: dict[str, Any] = {"local_steps": 110}  # gradient steps reach a client's minimum to rounding


def alternating(*clients: int) -> Participation:
    """One client a round, in turn."""
    return Participation(available=lambda round_index: [clients[round_index % len(clients)]])


def trace(callback: Any, module: Quadratic, clients: Any, rounds: int, read: Any) -> list[Any]:
    """Return what ``read(module)`` gives after each round."""
    values: list[Any] = []
    recorder = LambdaCallback(on_train_epoch_end=lambda trainer, pl_module: values.append(read(pl_module)))
    fit_clients(callback, module, clients, rounds, recorder)
    return values


def test_o4b_partial_participation_divides_by_all_clients() -> None:
    callback = FedDyn(1.0, 1, participation=alternating(0, 1), **EXACT)
    clients = quadratic_clients(**UNEQUAL)
    rows = trace(callback, Quadratic(0.15), clients, 4, lambda m: (float(m.w), float(callback.h)))
    assert [w for w, _ in rows] == pytest.approx([0.0, 1.2, 0.7, 0.92], abs=1e-12)
    assert [h for _, h in rows] == pytest.approx([0.0, -0.4, -0.1, -0.14], abs=1e-12)


@pytest.mark.parametrize(("scale_alpha", "limit"), [("size", 3.0), ("none", 2.0)])
def test_o4d_scaling_alpha_by_size_reaches_the_weighted_optimum(scale_alpha: Any, limit: float) -> None:
    clients = quadratic_clients(a=[1.0, 1.0], c=[0.0, 4.0], sizes=[10, 30])
    # omega >= 0.5: a step leaves at most half of the distance to the client's minimum, 0.5^25 < 3e-8
    callback = FedDyn(1.0, 1.0, scale_alpha=scale_alpha, local_steps=25)
    weights = fit_quadratic(callback, Quadratic(0.5), clients, rounds=25)
    assert float(weights) == pytest.approx(limit, abs=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_h_is_the_mean_of_all_gradients_in_every_round(dropout: float) -> None:
    clients = quadratic_clients(a=[1.0, 4.0, 2.0, 0.5, 3.0], c=[0.0, 1.0, -2.0, 5.0, 3.0])
    participation = Participation(dropout=dropout)
    callback = FedDyn(0.3, sampler=BernoulliSampler(0.5), participation=participation, local_steps=3, seed=4)
    gaps = trace(
        callback,
        Quadratic(0.1, start=[1.0, -1.0]),
        [(a.unsqueeze(1), c.unsqueeze(1)) for a, c in clients],
        12,
        lambda module: callback.h - sum(callback.gradient(k) for k in range(5)) / 5,
    )
    assert len(gaps) == 12
    assert all(gap.abs().max() < 1e-14 for gap in gaps)
    assert callback.h.abs().min() > 1e-3


@pytest.mark.parametrize(
    ("weighting", "evaluate", "expected"),
    [
        ("samples", "server", 4.0),
        ("samples", "active", 4.0),
        ("samples", "all", (1 * 1.0 + 3 * 4.0) / 6),
        ("uniform", "all", (1.0 + 4.0) / 3),
    ],
)
def test_fedavg_evaluates_the_chosen_model(weighting: Any, evaluate: Any, expected: float) -> None:
    # a step takes a client to its optimum; clients 0 and 1 train in turn, client 2 stays at the first model, 0
    clients = quadratic_clients(a=[1.0, 1.0, 1.0], c=[1.0, 4.0, 9.0], sizes=[1, 3, 2])
    callback = FedAvg(1, weighting=weighting, evaluate=evaluate, participation=alternating(0, 1))
    weights = fit_quadratic(callback, Quadratic(1.0), clients, rounds=2)
    assert float(weights) == pytest.approx(expected, abs=1e-12)
    assert float(callback.algorithm.server.model) == pytest.approx(4.0, abs=1e-12)


@pytest.mark.parametrize(("penalty", "expected"), [("gradient", 10.0), ("weight_decay", 8.0)])
def test_feddyn_penalty_as_weight_decay_is_not_clipped(penalty: Any, expected: float) -> None:
    # The data pull nowhere. At the received model, 10, the penalty's gradient is 0. Split, its linear part, -10.5, is
    # clipped to -0.5 and its quadratic part is 10.5: the client steps to 10 - 0.1 * 10, the server adds the drift.
    callback = FedDyn(1.05, 1, penalty=penalty)
    module = Quadratic(0.1, start=10.0)
    fit_clients(callback, module, quadratic_clients(a=[0.0], c=[0.0]), gradient_clip_val=0.5)
    assert float(module.w.detach()) == pytest.approx(expected, abs=1e-6)


def test_scaffold_option_1_takes_the_full_gradient_at_the_received_model() -> None:
    # two samples of the second client, 1 and 3: gradient a (w - mean c) = 4 (2 - 2) at w = 2, whatever the batches
    clients = [
        (torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)),
        (torch.tensor([4.0, 4.0, 4.0], dtype=torch.float64), torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)),
    ]
    callback = Scaffold(1.0, option=1)
    fit_clients(callback, Quadratic(0.1, start=2.0), clients, batch_size=2)
    variates = [float(callback.client_control_variate(k)) for k in (0, 1)]
    assert variates == pytest.approx([1.0 * (2.0 - 0.5), 4.0 * (2.0 - 3.0)], abs=1e-12)
    assert float(callback.control_variate) == pytest.approx((1.5 - 4.0) / 2, abs=1e-12)


def test_scaffold_divides_by_the_learning_rates_that_were_used() -> None:
    # learning rates 0.4 and 0.2 from w = 1 to the optimum's 0: y = 0.6 * 0.8 = 0.48, c_k = (1 - 0.48) / 0.6
    callback = Scaffold(1, local_steps=2)
    fit_quadratic(callback, Halved(0.4, start=1.0), quadratic_clients([1.0], [0.0]), rounds=1)
    assert float(callback.client_control_variate(0)) == pytest.approx(0.52 / 0.6, abs=1e-14)


class WithMomentum(Quadratic):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.5)


def test_scaffold_divides_by_the_reach_of_steps_with_momentum() -> None:
    # gradients 1 and .9 move w from 1 to .9 and .76. The first counts 1.5 times: (1.5 * 1 + 1 * .9) / 2.5
    callback = Scaffold(1, local_steps=2, momentum=0.5)
    fit_quadratic(callback, WithMomentum(0.1, start=1.0), quadratic_clients([1.0], [0.0]), rounds=1)
    assert float(callback.client_control_variate(0)) == pytest.approx(2.4 / 2.5, abs=1e-14)


def test_scaffold_warns_of_another_momentum_than_the_optimizers() -> None:
    clients, both = quadratic_clients([1.0], [0.0]), type("Both", (Halved, WithMomentum), {})
    with pytest.warns(UserWarning, match=r"`momentum=0\.0`, but the module has SGD with momentum=0\.5"):
        fit_quadratic(Scaffold(1), WithMomentum(0.1), clients, rounds=1)
    with pytest.warns(UserWarning, match=r"`momentum=0\.5`, and a scheduler with interval='step'"):
        fit_quadratic(Scaffold(1, momentum=0.5), both(0.1), clients, rounds=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Scaffold has")
        fit_quadratic(Scaffold(1, momentum=0.5), WithMomentum(0.1), clients, rounds=1)
        fit_quadratic(Scaffold(1), Halved(0.1), clients, rounds=1)
        fit_quadratic(Scaffold(1, option=1), both(0.1), clients, rounds=1)


def test_weighted_control_variates_with_one_client_a_round() -> None:
    # p = 1/4, 3/4. Client 0 goes from 0 to 2 with c_0 = -4, so c = -1; client 1 from 2 along -6 - 1 to 5.5, with
    # c_1 = 1 - 7 = -6, so c = -1 - 3/4 6
    clients = quadratic_clients(a=[1.0, 1.0], c=[4.0, 8.0], sizes=[1, 3])
    callback = Scaffold(1, weighting="samples", participation=alternating(0, 1))
    assert float(fit_quadratic(callback, Quadratic(0.5), clients, rounds=2)) == 5.5
    assert float(callback.control_variate) == -5.5
