"""Closed forms of personal models on quadratics f_k(w) = a_k/2 (w - c_k)^2, and the limits that papers name."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Descending, Quadratic, fit_clients, fit_quadratic, own_model, quadratic_clients, quiet_trainer
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning.executors import AutoExecutor, VectorizedExecutor
from fl_lightning.parts import Clip, Clusters, FineTuning, WeightedMean

A, C = [1.0, 4.0], [0.0, 1.0]


def own(callback: Any, client: int) -> float:
    return float(own_model(callback, client))


def test_apfl_steps_both_models_and_alpha_on_each_batch() -> None:
    lr, alphas, v, w = 0.1, [0.25, 0.25], [0.5, 0.5], 0.5  # an alpha goes beyond 1, and one below 0
    for _ in range(2):
        sent = []
        for k, (a, c) in enumerate(zip(A, C, strict=True)):
            local, speed_of_v, speed_of_w = w, 0.0, 0.0
            for _ in range(2):
                mix = alphas[k] * v[k] + (1 - alphas[k]) * local
                gradient, apart = a * (mix - c), v[k] - local
                speed_of_v = 0.5 * speed_of_v + alphas[k] * gradient
                speed_of_w = 0.5 * speed_of_w + a * (local - c)
                v[k], local = v[k] - lr * speed_of_v, local - lr * speed_of_w
                alphas[k] = min(1.0, max(0.0, alphas[k] - 10.0 * gradient * apart))
            sent.append(local)
        w = sum(sent) / 2
    callback = fl.APFL(0.25, 1.0, alpha_lr=10.0, local_epochs=2)
    module = Quadratic(lr, 0.5, lambda parameters: torch.optim.SGD(parameters, lr, momentum=0.5))
    end = float(fit_quadratic(callback, module, quadratic_clients(A, C), rounds=2))
    assert end == pytest.approx(w, abs=1e-14)
    mixtures = [alphas[k] * v[k] + (1 - alphas[k]) * w for k in (0, 1)]
    assert [own(callback, k) for k in (0, 1)] == pytest.approx(mixtures, abs=1e-14)


@pytest.mark.parametrize(("gradient", "epochs"), [("first-order", 2), ("hessian-free", 3), ("hessian-free", 1)])
def test_per_fedavg_s_step(gradient: Any, epochs: int) -> None:
    """grad of f(w - alpha f'(w)): a (w' - c) times 1 - alpha a, which the first order leaves out.

    Where a client has fewer batches than a step takes, it takes them again.
    """
    lr, alpha, w0 = 0.1, 0.05, 2.0
    steps = []
    for a, c in zip(A, C, strict=True):
        inner = w0 - alpha * a * (w0 - c)
        steps.append(a * (inner - c) * (1 if gradient == "first-order" else 1 - alpha * a))
    callback = fl.PerFedAvg(alpha, 1.0, gradient=gradient, local_epochs=epochs)  # of one batch
    end = float(fit_quadratic(callback, Quadratic(lr, start=w0), quadratic_clients(A, C), rounds=1))
    assert end == pytest.approx(w0 - lr * sum(steps) / 2, abs=1e-10)


def test_fine_tuning_is_one_more_local_training_that_the_server_does_not_see() -> None:
    plain, tuned = fl.FedAvg(1.0), fl.FedAvgFineTuned(1.0, every=2, fine_tune_epochs=3)
    clients = quadratic_clients(A, C)
    ends = [float(fit_quadratic(each, Quadratic(0.1, 0.5), clients, rounds=4)) for each in (plain, tuned)]
    assert ends[0] == ends[1]
    expected = [c + (1 - 0.1 * a) ** 3 * (ends[0] - c) for a, c in zip(A, C, strict=True)]
    assert [own(tuned, k) for k in (0, 1)] == pytest.approx(expected, abs=1e-14)


class TwoLayers(L.LightningModule):
    """y = head . (body x), by SGD with weight decay: a parameter that is stepped at all moves."""

    def __init__(self) -> None:
        super().__init__()
        make: dict[str, Any] = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float64}
        self.body = nn.Parameter(torch.randn(2, 6, **make) / 3)
        self.head = nn.Parameter(torch.randn(2, **make))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return (x @ self.body.T @ self.head - y).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, weight_decay=0.01)


def linear_tasks(clients: int) -> list[Any]:
    """Clients whose targets are linear, each in its own way."""
    make: dict[str, Any] = {"generator": torch.Generator().manual_seed(1), "dtype": torch.float64}
    inputs = [torch.randn(40, 6, **make) for _ in range(clients)]
    return [(x, x @ torch.randn(6, **make)) for x in inputs]


def test_frozen_parameters_stay_though_the_optimizer_decays_weights() -> None:
    module, callback = TwoLayers(), fl.FedBABU("head", 1.0, every=5, fine_tune_epochs=2)
    head, body = module.head.detach().clone(), module.body.detach().clone()
    fit_clients(callback, module, linear_tasks(6), 3)
    assert torch.allclose(module.head, head, rtol=0, atol=1e-14)  # a mean of equal heads
    assert not torch.equal(module.body, body)
    tuned = callback.algorithm.schedule.own[0]
    assert not torch.allclose(tuned[-2:], head)  # fine-tuned at the end of the fit


@pytest.mark.parametrize("lr", [None, 0.1])
def test_fine_tuning_leaves_what_is_frozen(lr: float | None) -> None:
    module, callback = TwoLayers(), fl.Federated(1.0, schedule=FineTuning(frozen="head", lr=lr))
    fit_clients(callback, module, linear_tasks(2))
    apart = callback.algorithm.schedule.own[1] - nn.utils.parameters_to_vector(module.parameters())
    assert (apart != 0).tolist() == [True] * 12 + [False] * 2


def test_fedrep_trains_the_head_first_and_then_the_body() -> None:
    module, callback = TwoLayers(), fl.FedRep("head", 1, head_epochs=2)
    clients = linear_tasks(1)
    by_hand = TwoLayers()
    head = torch.optim.SGD([by_hand.head], lr=0.05, weight_decay=0.01)
    body = torch.optim.SGD([by_hand.body], lr=0.05, weight_decay=0.01)
    for optimizer in (head, head, body):
        optimizer.zero_grad()
        by_hand.training_step(clients[0], 0).backward()
        optimizer.step()
    fit_clients(callback, module, clients)
    assert torch.allclose(module.body, by_hand.body, atol=1e-14)
    assert torch.allclose(module.head, by_hand.head, atol=1e-14)  # the mean of one client's


def test_ifca_separates_two_groups() -> None:
    clients = quadratic_clients([1.0] * 6, [5.0, -5.0, 5.0, -5.0, 5.0, -5.0])
    module = Quadratic(0.5, [0.4, -0.4])  # two weights, so that a tensor has a standard deviation
    callback = fl.IFCA(2, 1.0, spread=2.0, seed=0, executor=AutoExecutor())  # the first tasks have no steps
    fit_quadratic(callback, module, clients, rounds=12)
    chosen = callback.algorithm.schedule.chosen
    assert chosen[0] == chosen[2] == chosen[4] != chosen[1] == chosen[3] == chosen[5]
    models = callback.algorithm.schedule.models
    assert models[chosen[0]].tolist() == pytest.approx([5.0, 5.0], abs=1e-2)
    assert models[chosen[1]].tolist() == pytest.approx([-5.0, -5.0], abs=1e-2)
    assert callback.algorithm.models_sent == 12 * 6 * (2 + 1)  # rounds x clients x (both models down, one up)
    assert callback.algorithm.traffic.values_down == 12 * 6 * 2 * 2


def test_fedala_s_update_is_the_change_of_the_server_s_model() -> None:
    ends = []
    for exchange in (None, Clip(1e-9)):
        callback = fl.FedALA("*", 1.0, share_lr=2.0, exchange=exchange, seed=0)
        ends.append(float(fit_quadratic(callback, Quadratic(0.1, 0.4), quadratic_clients(A, C), rounds=4)))
    assert abs(ends[0] - 0.4) > 0.1
    assert ends[1] == pytest.approx(0.4, abs=1e-8)


def test_both_trainings_of_a_round_go_through_all_samples() -> None:
    """One step a round on one of two samples, for the server's model and for the client's own."""
    clients = [(torch.ones(2).double(), torch.tensor([1.0, 3.0]).double())]
    callback = fl.Ditto(0.0, 1.0, local_steps=1, continue_epochs=True)
    data = fl.TensorDataModule(clients, batch_size=1, shuffle=False)
    module = Quadratic(1.0)
    quiet_trainer(max_epochs=2, callbacks=[callback]).fit(module, datamodule=data)
    assert [float(module.w), own(callback, 0)] == [3.0, 3.0]  # each went to 1 first


class Normalised(L.LightningModule):
    """Layers in a row, then a linear one; what is frozen has no gradient."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


# more values than 2^14, and than twice those that are trained, so that it does not travel
FROZEN = nn.Sequential(nn.Conv2d(2, 500, 3), nn.BatchNorm2d(500), nn.Conv2d(500, 2, 3)).requires_grad_(False).eval()


def test_fedbn_finds_the_normalisation_layers() -> None:
    callback = fl.FedBN(clients_per_round=1.0)
    layers = [nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1), nn.LayerNorm(8)]
    fit_clients(callback, Normalised(*layers), [(torch.randn(6, 2, 8, 8), torch.zeros(6))] * 3)
    personal = callback.algorithm.chain.members[1].of_client(0)
    assert {name.rpartition(".")[0] for name in personal} == {"layers.1", "layers.3"}
    assert "layers.1.running_mean" in personal


@pytest.mark.parametrize(
    ("layers", "personal"),
    [
        ([nn.InstanceNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)], "layers.2"),
        ([nn.LayerNorm(8, elementwise_affine=False), nn.GroupNorm(1, 2)], "layers.1"),
        ([FROZEN, nn.BatchNorm2d(2)], "layers.1"),
        ([nn.InstanceNorm2d(2)], None),
        ([FROZEN], None),
    ],
)
def test_fedbn_passes_layers_over_of_which_nothing_travels(layers: list[nn.Module], personal: str | None) -> None:
    clients = [(torch.randn(4, 2, 8, 8), torch.zeros(4)) for _ in range(2)]
    callback = fl.FedBN(clients_per_round=1.0)
    with nullcontext() if personal else pytest.raises(ValueError, match=r"normalisation layers are: layers\.0\."):
        fit_clients(callback, Normalised(*layers), clients)
        kept = callback.algorithm.chain.members[1].of_client(0)
        assert {name.rpartition(".")[0] for name in kept} == {personal}


def test_fedrep_s_body_has_the_statistics_of_the_body_s_phase() -> None:
    class Net(Descending):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.BatchNorm1d(2)
            self.head = nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.head(self.body(batch[0])).square().mean()

    x = torch.tensor([[1.0, 2.0], [3.0, 8.0]])
    fit_clients(fl.FedRep("head", 1.0, head_epochs=5), module := Net(), [(x, x)] * 2, rounds=2, batch_size=2)
    # one batch in the body's phase of each round; the momentum of torch's statistics is 0.1
    assert int(module.body.num_batches_tracked) == 2
    assert module.body.running_mean.tolist() == pytest.approx([2.0 * 0.19, 5.0 * 0.19])


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_ifca_weighs_clients_as_asked_for(weighting: Any) -> None:
    # a client's one step goes from w to w - 0.5 (w - c); the two clients have 1 and 3 samples
    clients = quadratic_clients([1.0] * 2, [5.0, 9.0], sizes=[1, 3])
    composed = fl.Federated(1.0, schedule=Clusters(number=1), aggregation=WeightedMean(weighting))
    c = 7.0 if weighting == "uniform" else 8.0
    for callback in (fl.IFCA(1, 1.0, weighting=weighting), composed):
        end = fit_quadratic(callback, Quadratic(0.5, [1.0]), clients, rounds=1)
        assert end.tolist() == pytest.approx([1.0 - 0.5 * (1.0 - c)])


def test_ifca_is_stacked_though_clients_are_looked_at_without_a_step() -> None:
    def clients() -> list[Any]:
        sizes = (4, 7, 10, 10)  # unequal batches
        return [(x[:n], y[:n]) for n, (x, y) in zip(sizes, linear_tasks(4), strict=True)]

    models = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        callback = fl.IFCA(2, 1.0, executor=executor)
        fit_clients(callback, TwoLayers(), clients(), rounds=2, batch_size=5)
        models.append(torch.stack(callback.algorithm.schedule.models))
    assert stacks.describe() == "in stacks"
    assert torch.allclose(*models, rtol=1e-12)
