"""FedNova and q-FedAvg: values by hand, fixed points, reductions to FedAvg, refusals."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, fit_quadratic, quadratic_clients
from torch import Tensor, nn

from fl_lightning import Federated, FedNova, QFedAvg
from fl_lightning.diagnostics import Communication
from fl_lightning.parts import Asynchronous, FairMean, ImportanceSampler, MeasuredLoss, NormalizedMean, VirtualClock

# one sample a step: client 0 makes one step towards 4, client 1 three towards 8; the optimum of the risk is 7
UNEQUAL = quadratic_clients([1.0, 1.0], [4.0, 8.0], [1, 3])


class Slope(L.LightningModule):
    """F_k(w) = -c_k w: every gradient is -c_k, so that steps reach exactly as far as their normalisation says."""

    def __init__(self, momentum: float = 0.0, **sgd: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.sgd = {"momentum": momentum, **sgd}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return -self.w * batch[1].mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, **self.sgd)


# ---- FedNova ----


def test_the_reach_of_steps() -> None:
    assert NormalizedMean(0.9).reach(5) == pytest.approx(13.1441, abs=1e-12)
    assert NormalizedMean().reach(5) == 5
    assert NormalizedMean(0.9).reach(1) == 1
    # 1 + (1 - a) + (1 - a)^2 with a = lr mu
    assert NormalizedMean(mu=2.0).reach(3, lr=0.1) == pytest.approx(1 + 0.8 + 0.64)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_round_by_hand(executor: Any) -> None:
    # lr 1/2 from 0: client 0 gets to 2 in one step, client 1 to 4, 6, 7 in three. tau = 1/4 1 + 3/4 3 = 5/2, the mean
    # direction 1/4 2/1 + 3/4 7/3 = 9/4
    module = Quadratic(0.5)
    fit_clients(FedNova(1.0, executor=executor), module, UNEQUAL, batch_size=1)
    assert float(module.w.detach()) == pytest.approx(5 / 2 * 9 / 4, abs=1e-12)


@pytest.mark.parametrize(
    ("momentum", "mu", "reaches"),
    [(0.9, 0.0, (1.9 + 1, 13.1441)), (0.0, 2.0, (1.8, (1 - 0.8**5) / 0.2)), (0.0, 0.0, (2.0, 5.0))],
)
def test_steps_with_momentum_and_a_proximal_term(momentum: float, mu: float, reaches: tuple[float, float]) -> None:
    # two steps with gradient -1, five with gradient -2: w = lr tau_eff mean(1, 2), whatever the reaches
    module = Slope(momentum)
    clients = quadratic_clients([1.0, 1.0], [1.0, 2.0], [2, 5])
    fit_clients(FedNova(1.0, momentum=momentum, mu=mu, weighting="uniform"), module, clients, batch_size=1)
    assert float(module.w.detach()) == pytest.approx(0.1 * sum(reaches) / 2 * 1.5, abs=1e-12)


@pytest.mark.parametrize(
    ("callback", "module", "own"),
    [
        (FedNova(1.0), Slope(0.9), r"SGD with momentum=0\.9"),
        (FedNova(1.0, momentum=0.9), Slope(), "SGD with momentum=0"),
        (FedNova(1.0, momentum=0.9), Slope(0.9, nesterov=True), r"SGD with momentum=0\.9, nesterov=True\."),
        (FedNova(1.0, momentum=0.9), Slope(0.9, dampening=0.5), r"SGD with momentum=0\.9, dampening=0\.5\."),
    ],
)
def test_the_optimizer_must_be_the_one_that_is_normalised(callback: FedNova, module: Slope, own: str) -> None:
    with pytest.raises(ValueError, match=rf"FedNova divides .*`momentum={callback.momentum}`.* got {own}"):
        fit_clients(callback, module, UNEQUAL)
    assert float(module.w.detach()) == 0.0


# ---- q-FedAvg ----

TWO = quadratic_clients([1.0] * 2, [1.0, 3.0])


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(("q", "expected"), [(0.0, 1.0), (1.0, 0.7)])
def test_a_fair_round_by_hand(q: float, expected: float, executor: Any) -> None:
    # targets 1 and 3 from 0, lr 1/2, so L = 2: F = 1/2, 9/2; d = -1, -3. q = 1: sum F d = -14, the denominator is
    # sum d^2 + 2 F = 1 + 1 + 9 + 9
    weights = fit_quadratic(QFedAvg(q, 1.0, executor=executor), Quadratic(0.5), TWO, 1)
    assert float(weights) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_a_learning_rate_of_zero_moves_nothing(q: float) -> None:
    class Warming(Quadratic):
        """Learning rate 0 in the first round, 1/2 in the second."""

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(t > 0))]

    assert float(fit_quadratic(QFedAvg(q, 1.0), Warming(0.5), TWO, 1)) == 0.0
    second = fit_quadratic(QFedAvg(q, 1.0), Warming(0.5), TWO, 2)
    assert float(second) == pytest.approx(0.7 if q else 1.0, abs=1e-12)


def test_a_loss_stays_with_its_result_while_it_is_under_way() -> None:
    # in virtual time client 0 answers at 1, 2, 3, ... and client 1, with the model of time 0, at 2; the buffer holds
    # two. From 0 with lr 1/2, so L = 2: client 0 to 1/2, and from 0 again to 1/2, both with F = 1/2 and d = -1: the
    # sum of F d is -1, the denominator 2 (1 + 2/2) = 4, and the server moves to 1/4 at time 2
    clock = VirtualClock([100.0, 50.0])
    module, measured = Quadratic(0.5), MeasuredLoss()
    schedule = Asynchronous(clock, buffer_size=2)
    callback = Federated(2, objective=measured, aggregation=FairMean(1.0, measured), schedule=schedule)
    assert float(fit_quadratic(callback, module, TWO, 1)) == pytest.approx(0.25, abs=1e-12)
    assert 0.25 < float(fit_quadratic(callback, module, TWO, 4)) < 3


@pytest.mark.parametrize(
    ("sampler", "numbers", "scored", "known"),
    [(None, 1, 0, 0), (ImportanceSampler(2, initial="uniform"), 2, 0, 0), (ImportanceSampler(2), 2, 3, 2)],
)
def test_the_loss_travels_with_the_upload(sampler: Any, numbers: int, scored: int, known: int) -> None:
    # 4 rounds of 2 clients: 3 parameters of float64 each way, and up the loss and perhaps the score; before them all 3
    # clients may get the model to send their first score, and the 2 that train then have it already
    clients, communication = [(torch.ones(1, 3), torch.ones(1, 3))] * 3, Communication()
    callback = QFedAvg(1.0, 2) if sampler is None else QFedAvg(1.0, sampler=sampler)
    fit_quadratic(callback, Quadratic(0.1, [0.0] * 3), clients, 4, communication)
    assert communication.values["fed/models_down"] == 4 * 2 + scored - known
    assert communication.values["fed/models_up"] == 4 * 2
    assert communication.values["fed/bytes_down"] == (4 * 2 + scored - known) * 3 * 8
    assert communication.values["fed/bytes_up"] == (4 * 2 * (3 + numbers) + scored) * 8


def test_lipschitz_scales_the_step() -> None:
    # L = 4 instead of 2: d = -2, -6; sum F d = -28; the denominator is 4 + 36 + 4 (1/2 + 9/2)
    weights = fit_quadratic(QFedAvg(1.0, 1.0, lipschitz=4.0), Quadratic(0.5), TWO, 1)
    assert float(weights) == pytest.approx(28 / 60, abs=1e-12)
