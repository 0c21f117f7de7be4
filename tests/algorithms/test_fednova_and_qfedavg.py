"""FedNova and q-FedAvg: values by hand, fixed points, reductions to FedAvg, refusals."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients, quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, Federated, FedNova, FedProx, QFedAvg, RADFed, TensorDataModule
from fl_lightning.diagnostics import Communication
from fl_lightning.parts import (
    Asynchronous,
    BernoulliSampler,
    FairMean,
    ImportanceSampler,
    LocalObjective,
    MeasuredLoss,
    Median,
    NormalizedMean,
    Participation,
    Proximal,
    VirtualClock,
)

# one sample a step: client 0 makes one step towards 4, client 1 three towards 8; the optimum of the risk is 7
UNEQUAL = quadratic_clients([1.0, 1.0], [4.0, 8.0], [1, 3])


def fit(callback: Any, module: L.LightningModule, clients: Any, rounds: int, batch_size: int | None = 1) -> None:
    data = TensorDataModule(clients=clients, batch_size=batch_size, shuffle=False)
    quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=data)


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
    fit(FedNova(1.0, executor=executor), module, UNEQUAL, 1)
    assert float(module.w.detach()) == pytest.approx(5 / 2 * 9 / 4, abs=1e-12)


def test_fednova_ends_at_the_optimum_and_fedavg_beside_it() -> None:
    # a client moves by (1 - .96^tau) (c - w): FedAvg rests where p_0 .04 (4 - w) + p_1 (1 - .96^3) (8 - w) = 0, at
    # 7.59; FedNova where the second weight is a third of that, 0.03 away from 7 and the nearer the smaller the steps
    one, three = 0.04, 1 - 0.96**3
    for callback, weights in ((FedAvg(1.0), (one, three)), (FedNova(1.0), (one, three / 3))):
        module = Quadratic(0.04, 7.0)
        fit(callback, module, UNEQUAL, 200)
        expected = (weights[0] * 4 + 3 * weights[1] * 8) / (weights[0] + 3 * weights[1])
        assert float(module.w.detach()) == pytest.approx(expected, abs=1e-8)
        assert abs(expected - 7) < 0.031 if isinstance(callback, FedNova) else expected - 7 > 0.58


@pytest.mark.parametrize(
    ("momentum", "mu", "reaches"),
    [(0.9, 0.0, (1.9 + 1, 13.1441)), (0.0, 2.0, (1.8, (1 - 0.8**5) / 0.2)), (0.0, 0.0, (2.0, 5.0))],
)
def test_steps_with_momentum_and_a_proximal_term(momentum: float, mu: float, reaches: tuple[float, float]) -> None:
    # two steps with gradient -1, five with gradient -2: w = lr tau_eff mean(1, 2), whatever the reaches
    module = Slope(momentum)
    clients = quadratic_clients([1.0, 1.0], [1.0, 2.0], [2, 5])
    fit(FedNova(1.0, momentum=momentum, mu=mu, weighting="uniform"), module, clients, 1)
    assert float(module.w.detach()) == pytest.approx(0.1 * sum(reaches) / 2 * 1.5, abs=1e-12)


def test_with_equal_steps_it_is_fedavg_and_without_any_it_stays() -> None:
    clients = quadratic_clients([1.0, 3.0], [4.0, 8.0], [2, 2])
    modules = [Quadratic(0.1) for _ in range(3)]
    fit(FedNova(1.0), modules[0], clients, 4)
    fit(FedAvg(1.0), modules[1], clients, 4)
    assert float(modules[0].w.detach()) == pytest.approx(float(modules[1].w.detach()), abs=1e-14)
    fit(FedNova(1.0, participation=Participation(dropout=0.999999)), modules[2], clients, 1)
    assert float(modules[2].w.detach()) == 0.0


def test_another_aggregation_makes_it_fedprox() -> None:
    modules = [Quadratic(0.1), Quadratic(0.1)]
    clients = quadratic_clients([1.0, 3.0, 2.0], [4.0, 8.0, 1.0], [1, 3, 2])
    fit(FedNova(1.0, mu=0.5, aggregation=Median()), modules[0], clients, 3)
    fit(FedProx(0.5, 1.0, aggregation=Median()), modules[1], clients, 3)
    assert torch.equal(modules[0].w, modules[1].w)
    with pytest.raises(ValueError, match=r"`momentum=0\.9` belongs to the algorithm's own aggregation"):
        FedNova(momentum=0.9, aggregation=Median())


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
    with pytest.raises(ValueError, match=rf"so the module needs torch\.optim\.SGD with the same.* has {own}"):
        fit(callback, module, UNEQUAL, 1)
    assert float(module.w.detach()) == 0.0


def test_a_learning_rate_that_changes_within_a_round_is_refused() -> None:
    class Stepping(Quadratic):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]

    with pytest.raises(ValueError, match=r"one learning rate within a round.*Give interval='epoch'"):
        fit(FedNova(1.0), Stepping(0.1), UNEQUAL, 1)
    fit(FedNova(1.0, aggregation=Median()), Stepping(0.1), UNEQUAL, 1)


def test_circulating_models_add_up_the_steps_of_plain_sgd_alone() -> None:
    # models 0 and 1 train on both clients, in some order: 1 + 3 steps each, so that the direction is their mean
    module, plain = Quadratic(0.5), Quadratic(0.5)
    fit(RADFed(2, 1.0, aggregation=NormalizedMean(), seed=0), module, UNEQUAL, 2)
    fit(RADFed(2, 1.0, seed=0), plain, UNEQUAL, 2)
    assert float(module.w.detach()) == pytest.approx(float(plain.w.detach()), abs=1e-14)
    with pytest.raises(ValueError, match=r"NormalizedMean\(momentum=0\.9\) cannot merge circulating models"):
        RADFed(2, aggregation=NormalizedMean(0.9))


@pytest.mark.parametrize("objective", [None, Proximal(1.0)])
def test_a_proximal_term_that_would_be_ignored_is_refused(objective: Any) -> None:
    with pytest.raises(
        ValueError, match=r"NormalizedMean\(mu=2\.0\) needs an objective .* Use Proximal\(2\.0\), or FedNova\(mu"
    ):
        Federated(1.0, objective=objective, aggregation=NormalizedMean(mu=2.0))


class Passing(LocalObjective):
    """Does what another objective does."""

    def __init__(self, inner: LocalObjective) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> list[LocalObjective]:
        return [self.inner]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Federated(1.0, objective=Proximal(0.3), aggregation=NormalizedMean()),
            r"NormalizedMean\(\) has no proximal term, but Proximal\(mu=0\.3\) has\. Use NormalizedMean\(mu=0\.3\), or",
        ),
        (lambda: FedProx(0.3, 1.0, aggregation=NormalizedMean(0.9)), r"Use NormalizedMean\(momentum=0\.9, mu=0\.3\)"),
        (lambda: Federated(1.0, objective=Passing(Proximal(0.3)), aggregation=NormalizedMean()), "no proximal term"),
        (lambda: Federated(1.0, objective=Proximal(lambda r: 0.3), aggregation=NormalizedMean()), "one number"),
        (lambda: Federated(1.0, objective=Proximal(lambda r: 0.3), aggregation=NormalizedMean(mu=0.3)), "one number"),
        (lambda: RADFed(2, 1.0, local=Proximal(0.3), aggregation=NormalizedMean()), "cannot merge circulating models"),
    ],
)
def test_a_proximal_term_that_the_mean_does_not_know_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_proximal_term_of_an_objective_in_another_one_is_known() -> None:
    # alone, with a = 1, c = 4, lr = 0.1 and mu = 0.5, a client takes w to w - 0.1 (w - 4 + 0.5 w): 0.4, then 0.74
    clients = quadratic_clients([1.0], [4.0], [2])
    results = []
    for objective in (Proximal(0.5), Passing(Proximal(0.5))):
        module = Quadratic(0.1)
        fit(Federated(1.0, objective=objective, aggregation=NormalizedMean(mu=0.5), seed=1), module, clients, 1)
        results.append(float(module.w.detach()))
    assert results == [pytest.approx(0.74, abs=1e-14)] * 2


# ---- q-FedAvg ----


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(("q", "expected"), [(0.0, 1.0), (1.0, 0.7)])
def test_a_fair_round_by_hand(q: float, expected: float, executor: Any) -> None:
    # targets 1 and 3 from 0, lr 1/2, so L = 2: F = 1/2, 9/2; d = -1, -3. q = 1: sum F d = -14, the denominator is
    # sum d^2 + 2 F = 1 + 1 + 9 + 9
    weights = fit_quadratic(
        QFedAvg(q, 1.0, executor=executor), Quadratic(0.5), quadratic_clients([1.0] * 2, [1.0, 3.0]), 1
    )
    assert float(weights) == pytest.approx(expected, abs=1e-12)


def test_the_larger_q_the_more_the_worst_client_counts() -> None:
    # min of 2 (w^2/2)^(q+1) + ((3-w)^2/2)^(q+1): 2 w^(2q+1) = (3-w)^(2q+1)
    clients = quadratic_clients([1.0] * 3, [0.0, 0.0, 3.0])
    for q in (0.0, 1.0, 2.0):
        root = 2 ** (1 / (2 * q + 1))
        weights = fit_quadratic(QFedAvg(q, 1.0), Quadratic(0.5), clients, 150)
        assert float(weights) == pytest.approx(3 / (1 + root), abs=1e-4)


def test_lipschitz_scales_the_step() -> None:
    # L = 4 instead of 2: d = -2, -6; sum F d = -28; the denominator is 4 + 36 + 4 (1/2 + 9/2)
    clients = quadratic_clients([1.0] * 2, [1.0, 3.0])
    weights = fit_quadratic(QFedAvg(1.0, 1.0, lipschitz=4.0), Quadratic(0.5), clients, 1)
    assert float(weights) == pytest.approx(28 / 60, abs=1e-12)


class Negative(Quadratic):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) - 10.0


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_a_learning_rate_of_zero_moves_nothing(q: float) -> None:
    class Warming(Quadratic):
        """Learning rate 0 in the first round, 1/2 in the second."""

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(t > 0))]

    clients = quadratic_clients([1.0] * 2, [1.0, 3.0])
    assert float(fit_quadratic(QFedAvg(q, 1.0), Warming(0.5), clients, 1)) == 0.0
    second = fit_quadratic(QFedAvg(q, 1.0), Warming(0.5), clients, 2)
    assert float(second) == pytest.approx(0.7 if q else 1.0, abs=1e-12)


def fair(**parts: Any) -> Federated:
    measured = MeasuredLoss()
    return Federated(**{"objective": measured, "aggregation": FairMean(1.0, measured), **parts})


def test_a_loss_stays_with_its_result_while_it_is_under_way() -> None:
    # in virtual time client 0 answers at 1, 2, 3, ... and client 1, with the model of time 0, at 2; the buffer holds
    # two. From 0 with lr 1/2, so L = 2: client 0 to 1/2, and from 0 again to 1/2, both with F = 1/2 and d = -1: the
    # sum of F d is -1, the denominator 2 (1 + 2/2) = 4, and the server moves to 1/4 at time 2
    clock = VirtualClock([100.0, 50.0])
    module = Quadratic(0.5)
    callback = fair(clients_per_round=2, schedule=Asynchronous(clock, buffer_size=2))
    fit(callback, module, quadratic_clients([1.0] * 2, [1.0, 3.0]), 1, None)
    assert float(module.w.detach()) == pytest.approx(0.25, abs=1e-12)
    fit(callback, module, quadratic_clients([1.0] * 2, [1.0, 3.0]), 4, None)
    assert 0.25 < float(module.w.detach()) < 3


class Noisy(Quadratic):
    """Draws a part of its loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) + torch.rand(())


def test_random_losses_do_not_depend_on_when_a_client_is_trained() -> None:
    ends = []
    for lookahead in (1, 4):
        module, clock = Noisy(0.1), VirtualClock([1, 2, 3, 4])
        callback = fair(clients_per_round=2, schedule=Asynchronous(clock, buffer_size=2, lookahead=lookahead))
        fit(callback, module, quadratic_clients([1.0] * 4, [1.0, 2.0, 3.0, 4.0]), 4, None)
        ends.append(float(module.w.detach()))
    assert ends[0] == ends[1]


def test_what_has_no_loss_of_one_client_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`measured` as the algorithm's objective.*, got Proximal\(mu=0\.1\)"):
        fair(objective=Proximal(0.1))
    with pytest.raises(ValueError, match=r"got MeasuredLoss.*Give the same"):
        fair(objective=MeasuredLoss())
    measured = MeasuredLoss()
    with pytest.raises(ValueError, match="FairMean cannot merge circulating models, as Redistribution has them"):
        RADFed(2, local=measured, aggregation=FairMean(1.0, measured))


def test_values_that_cannot_work() -> None:
    with pytest.raises(ValueError, match=r"`q` must be a finite number of at least 0, got -1"):
        QFedAvg(-1)
    with pytest.raises(ValueError, match=r"`lipschitz` must be a finite number greater than 0, got 0"):
        QFedAvg(1.0, lipschitz=0)
    with pytest.raises(ValueError, match=r"Client \d has the loss -9\.5\. .* must not be negative"):
        fit_quadratic(QFedAvg(1.0, 1), Negative(0.5), quadratic_clients([1.0] * 2, [1.0, 1.0]), 1)


def test_a_fair_round_without_clients_leaves_the_server_where_it_is() -> None:
    callback = QFedAvg(1.0, sampler=BernoulliSampler(1e-9))
    assert fit_quadratic(callback, Quadratic(0.5, [3.0]), UNEQUAL, 2).tolist() == [3.0]


@pytest.mark.parametrize(
    ("sampler", "numbers", "scored"),
    [(None, 1, 0), (ImportanceSampler(2, initial="uniform"), 2, 0), (ImportanceSampler(2), 2, 3)],
)
def test_the_loss_travels_with_the_upload(sampler: Any, numbers: int, scored: int) -> None:
    # 4 rounds of 2 clients: 3 parameters of float64 each way, and up the loss and perhaps the score; before them all 3
    # clients may get the model to send their first score
    data, communication = TensorDataModule([(torch.ones(1, 3), torch.ones(1, 3))] * 3, batch_size=None), Communication()
    callback = QFedAvg(1.0, 2) if sampler is None else QFedAvg(1.0, sampler=sampler)
    quiet_trainer(max_epochs=4, callbacks=[callback, communication]).fit(Quadratic(0.1, [0.0] * 3), datamodule=data)
    assert communication.values["fed/models_down"] == 4 * 2 + scored
    assert communication.values["fed/models_up"] == 4 * 2
    assert communication.values["fed/bytes_down"] == (4 * 2 + scored) * 3 * 8
    assert communication.values["fed/bytes_up"] == (4 * 2 * (3 + numbers) + scored) * 8
    assert callback.algorithm.traffic.values_up == 4 * 2 * (3 + numbers) + scored
