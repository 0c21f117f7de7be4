"""Objectives on the loss: numbers by hand, and the gradients of the papers' formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, fit_quadratic, quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning.models import add_lora
from fl_lightning.parts import (
    Asynchronous,
    ChangedLoss,
    ClientResult,
    ForwardPass,
    LocalClient,
    LocalObjective,
    PersonalParameters,
    Prototypes,
    Term,
    VirtualClock,
)
from fl_lightning.parts.part import personal_model, walk

Clients = list[tuple[Tensor, Tensor]]


class Net(L.LightningModule):
    """A body and an output layer, in float64."""

    def __init__(self, lr: float = 0.1, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body, self.head, self.lr = nn.Linear(3, width), nn.Linear(width, classes), lr
        self.double()

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Biases(Net):
    """Logits that are one vector, at first 0, whatever the input."""

    def __init__(self, lr: float = 1.0) -> None:
        super().__init__(lr)
        for parameter in (self.body.weight, self.body.bias, self.head.weight, self.head.bias):
            parameter.data.zero_()


class Losses(Callback):
    """Keeps the loss of each batch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(float(outputs["loss"]))


def clients(*sizes: int) -> Clients:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(n, 3, generator=generator).double(), torch.randint(0, 3, (n,), generator=generator)) for n in sizes
    ]


def of_classes(*classes: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(len(classes), 3).double(), torch.tensor(classes)


def fit(callback: fl.AggregationCallback, module: Any, data: Clients, rounds: int = 1, **options: Any) -> list[float]:
    """Train on all of a client's samples at once; return the losses, sorted."""
    fit_clients(callback, module, data, rounds, losses := Losses(), **options)
    return sorted(losses.seen)


def own(callback: Any, client: int) -> Tensor:
    algorithm = callback.algorithm
    return personal_model(walk(*algorithm.parts.values()), client, algorithm.server.model)


# ---- gradients ----


def contrast(net: Net, x: Tensor, y: Tensor, received: Net, former: Net) -> Tensor:
    total = torch.zeros(())
    for z, near, far in zip(net.features(x), received.features(x), former.features(x), strict=True):
        a, b = (torch.exp(z @ other / z.norm() / other.norm() / 0.5) for other in (near, far))
        total = total - torch.log(a / (a + b))
    return total / len(x)


def calibrated(net: Net, x: Tensor, y: Tensor, *models: Net) -> Tensor:
    shifts = torch.tensor([0.7 * int((y == c).sum()) ** -0.25 for c in range(3)]).double()
    return F.nll_loss((net(x) - shifts).log_softmax(1), y) - F.nll_loss(net(x).log_softmax(1), y)


def not_true(net: Net, x: Tensor, y: Tensor, received: Net, former: Net) -> Tensor:
    total = torch.zeros(())
    for row, other, true in zip(net(x), received(x), y.tolist(), strict=True):
        rest = [c for c in range(3) if c != true]
        q, known = (torch.softmax(each[rest] / 2.0, 0) for each in (row, other))
        total = total + 4 * (known * (known / q).log()).sum()
    return 0.5 * total / len(x)


def decorrelated(net: Net, x: Tensor, y: Tensor, *models: Net) -> Tensor:
    return 0.3 / 16 * torch.corrcoef(net.features(x).T).square().sum()


def balanced(net: Net, x: Tensor, y: Tensor, *models: Net) -> Tensor:
    counts = torch.tensor([int((y == c).sum()) for c in range(3)]).double()
    scores = net(x).exp() * counts
    return (scores.sum(1) / scores[range(len(x)), y]).log().mean() - F.cross_entropy(net(x), y)


TERMS: dict[str, tuple[Callable[[], fl.AggregationCallback], Callable[..., Tensor]]] = {
    "MOON": (lambda: fl.MOON(1.0, 1.0), contrast),
    "FedLC": (lambda: fl.FedLC(0.7, 1.0), calibrated),
    "FedNTD": (lambda: fl.FedNTD(0.5, 1.0, tau=2.0), not_true),
    "FedDecorr": (lambda: fl.FedDecorr(0.3, 1.0), decorrelated),
    "FedRoD": (lambda: fl.FedRoD("head", 1.0), balanced),
}


@pytest.mark.parametrize("name", TERMS)
def test_the_gradient_of_the_added_term(name: str) -> None:
    """Two rounds of one full-batch step: in the second the received model, and the former one, are others."""
    make, term = TERMS[name]
    data, net = clients(12, 9), Net()
    w, formers, values = Net(), [Net(), Net()], []
    for round_index in range(2):
        ends, now, received = [], [Net(), Net()], Net()
        received.load_state_dict(w.state_dict())
        for k, (x, y) in enumerate(data):
            now[k].load_state_dict(w.state_dict())
            plain = name == "MOON" and round_index == 0

            loss = now[k].training_step((x, y), 0)
            loss = loss if plain else loss + term(now[k], x, y, received, formers[k])
            values.append(float(loss.detach()))
            gradients = torch.autograd.grad(loss, list(now[k].parameters()))
            for parameter, gradient in zip(now[k].parameters(), gradients, strict=True):
                parameter.data -= 0.1 * gradient
            ends.append(now[k].state_dict())
        formers = now
        w.load_state_dict({key: (12 * ends[0][key] + 9 * ends[1][key]) / 21 for key in ends[0]})
    assert fit(make(), net, data, rounds=2) == pytest.approx(sorted(values), abs=1e-7)
    for key, value_of_key in w.state_dict().items():
        assert torch.allclose(net.state_dict()[key], value_of_key, rtol=0, atol=1e-7)


# ---- numbers by hand ----


def test_fedlc_shifts_logits_by_the_counts_of_classes() -> None:
    """Of 16 samples and 1: the softmax of (-0.5, -1), and no third class."""
    net = Biases()
    [loss] = fit(fl.FedLC(1.0, 1.0), net, [of_classes(*[0] * 16, 1)])
    p = 1 / (1 + math.exp(-0.5))
    assert net.head.bias.tolist() == pytest.approx([16 / 17 - p, 1 / 17 - (1 - p), 0.0], abs=1e-15)
    assert loss == pytest.approx(-(16 * math.log(p) + math.log(1 - p)) / 17)


def test_feddecorr_of_equal_and_of_unrelated_features() -> None:
    class Inputs(Net):
        def features(self, x: Tensor) -> Tensor:
            return x[:, :2]

    def term(*rows: tuple[float, float]) -> float:
        x, y = torch.tensor([(*row, 0.0) for row in rows]).double(), torch.zeros(len(rows), dtype=torch.long)
        with_term, without = (
            fit(each, Inputs(width=2), [(x, y)])[0] for each in (fl.FedDecorr(3.0, 1.0), fl.FedAvg(1.0))
        )
        return with_term - without

    assert term((1, 2), (2, 4), (5, 10)) == pytest.approx(3)  # K is all ones
    assert term((1, 1), (1, -1), (-1, 1), (-1, -1)) == pytest.approx(1.5)  # K is the identity
    assert term((1, 1)) == 0  # one sample has no correlations


def test_fedsam_has_the_gradient_uphill() -> None:
    rho, lr, w = 0.3, 0.1, [2.0, 0.5]
    a, c = torch.tensor([[1.0, 4.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    expected = list(w)
    for _ in range(3):
        g = [1.0 * expected[0], 4.0 * (expected[1] - 1.0)]
        up = [expected[i] + rho * g[i] / math.hypot(*g) for i in (0, 1)]
        expected = [expected[0] - lr * up[0], expected[1] - lr * 4.0 * (up[1] - 1.0)]
    end = fit_quadratic(fl.FedSAM(rho, 1.0, local_epochs=3), Quadratic(lr, w), [(a, c)], rounds=1)
    assert end.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("make", [lambda: fl.FedSAM(0.1, 1.0), lambda: fl.PerFedAvg(0.1, 1.0)])
def test_going_uphill_is_no_step(make: Callable[[], fl.AggregationCallback]) -> None:
    steps: list[int] = []

    class Counts(Callback):
        def on_client_end(self, trainer: Any, pl_module: Any, result: ClientResult) -> None:
            steps.append(result.num_steps)

    fit_clients(make(), Net(), clients(12), 1, Counts(), batch_size=3)
    assert steps[0] == (4 if isinstance(make(), fl.FedSAM) else 2)  # Per-FedAvg takes two batches for a step


class Still(Net):
    """Features are the inputs; the head stays as it is."""

    def __init__(self, lr: float = 1.0) -> None:
        super().__init__(lr, width=3)
        self.body.weight.data.copy_(torch.eye(3))
        self.body.bias.data.zero_()

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return 0 * self(batch[0]).sum()


def test_fedproto_s_prototypes_are_means_over_the_clients_samples() -> None:
    x = torch.tensor([[1.0, 0, 0], [3.0, 0, 0], [0, 1.0, 0], [0, 7.0, 2.0]]).double()
    data = [(x[:3], torch.tensor([0, 0, 1])), (x[2:], torch.tensor([0, 2]))]
    callback, net = fl.FedProto(1.5, 1.0), Still()
    losses = fit(callback, net, data, rounds=2)
    means = [[4 / 3, 1 / 3, 0], [0, 1, 0], [0, 7, 2]]  # class 0: (1, 0, 0), (3, 0, 0), (0, 1, 0)
    # the second round's features are those of the first, as nothing pulled in it
    apart = [(1 / 9 + 1 / 9) + (25 / 9 + 1 / 9) + 0, (16 / 9 + 4 / 9) + 0]
    assert losses == pytest.approx([0, 0, 1.5 * apart[0] / 9, 1.5 * apart[1] / 6])
    prototypes = callback.algorithm.objective.means
    assert prototypes[1:].tolist() == [pytest.approx(each) for each in means[1:]]
    assert prototypes[0].tolist() == pytest.approx(means[0])
    bias = own(callback, 1)[9:12]  # one step along -1.5 * 2/6 (z - prototype), summed over the samples
    assert bias.tolist() == pytest.approx([0.5 * 4 / 3, 0.5 * (1 / 3 - 1), 0])
    traffic = callback.algorithm.traffic
    assert traffic.bits_up == 2 * 64 * (2 + 2) * (3 + 1)  # two classes each, with their counts
    assert traffic.bits_down == 2 * 64 * 9  # three prototypes, in the second round


def asynchronous_prototypes(lookahead: int | None, lam: float, exchange: Any = None) -> fl.Federated:
    schedule = Asynchronous(VirtualClock([100, 60, 45]), buffer_size=2, lookahead=lookahead)
    return fl.Federated(4, schedule=schedule, objective=Prototypes(lam), exchange=exchange)


@pytest.mark.parametrize("lookahead", [1, None])
def test_each_result_that_arrives_in_a_round_brings_its_prototypes(lookahead: int | None) -> None:
    """Client 0 arrives more often than once; features are the inputs, as nothing is learnt."""
    values = [1.0, 5.0, 11.0]
    data = [(torch.tensor([[value, 0, 0]]).double(), torch.tensor([0])) for value in values]
    callback = asynchronous_prototypes(lookahead, 0.1, PersonalParameters("*"))
    for rounds in (1, 2):
        fit(callback, Still(0.0), data, rounds=rounds)
        arrived = [record.client for record in callback.algorithm.report.arrivals]
        mean = sum(values[client] for client in arrived) / len(arrived)
        assert len(set(arrived)) < len(arrived) == 4
        assert callback.algorithm.objective.means[0].tolist() == [pytest.approx(mean), 0, 0]
        assert callback.algorithm.traffic.bits_up == 64 * 4 * rounds * (3 + 1)


def test_asynchronous_prototypes_do_not_depend_on_what_is_trained_ahead(tmp_path: Path) -> None:
    data, ends = [(x, torch.arange(len(x)) % 3) for x, _ in clients(9, 6, 7)], []
    for lookahead in (1, 4):
        callback, folder = asynchronous_prototypes(lookahead, lam=1.0), tmp_path / str(lookahead)
        fit_clients(callback, Net(), data, 5, fl.FederatedCheckpoint(folder), enable_checkpointing=True)
        ends.append((callback.algorithm.objective.means, callback.algorithm.traffic))
        again = asynchronous_prototypes(lookahead, lam=1.0)
        fit(again, Net(), data, 7, ckpt_path=folder / "last.ckpt")
        whole = asynchronous_prototypes(lookahead, lam=1.0)
        fit(whole, Net(), data, 7)
        assert torch.equal(again.algorithm.objective.means, whole.algorithm.objective.means)
        assert again.algorithm.traffic == whole.algorithm.traffic
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_fedproto_keeps_prototypes_of_classes_that_did_not_come() -> None:
    x = torch.tensor([[1.0, 0, 0], [0, 5.0, 0]]).double()
    callback = fl.FedProto(0.1, 1, seed=0)
    fit(callback, Still(0.0), [(x[:1], torch.tensor([0])), (x[1:], torch.tensor([2]))], rounds=6)
    means = callback.algorithm.objective.means
    assert means[0].tolist() == [1, 0, 0] and means[2].tolist() == [0, 5, 0] and bool(means[1].isnan().all())


def test_fedrod_learns_a_balanced_head_and_what_a_client_adds() -> None:
    """At logits 0 the balanced softmax is the share of each class, so the bias has no gradient; the client's has."""
    net, callback = Biases(), fl.FedRoD("head", 1.0, head_lr=0.5)
    [loss] = fit(callback, net, [of_classes(0, 0, 0, 1)])
    assert net.head.bias.tolist() == pytest.approx([0, 0, 0], abs=1e-15)
    assert loss == pytest.approx(-(3 * math.log(3 / 4) + math.log(1 / 4)) / 4)
    head = callback.algorithm.objective.heads[0]
    assert head[-3:].tolist() == pytest.approx([0.5 * (3 / 4 - 1 / 3), 0.5 * (1 / 4 - 1 / 3), -0.5 / 3])


def test_fedrod_is_fedavg_for_balanced_classes_and_evaluates_the_sum_of_heads() -> None:
    data = [(x, torch.arange(len(x)) % 3) for x, _ in clients(9, 6)]
    one, other, callback = Net(), Net(), fl.FedRoD("head", 1.0)
    fit(callback, one, data, rounds=3)
    fit(fl.FedAvg(1.0), other, data, rounds=3)
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, its, rtol=0, atol=1e-14)
    federation, head = callback.algorithm.federation, callback.algorithm.objective.heads[1]
    values, x = federation.tensors(own(callback, 1)), data[1][0]
    with torch.no_grad():
        both = one(x) + F.linear(one.features(x), head[:12].view(3, 4), head[12:])
        assert torch.allclose(torch.func.functional_call(one, values, (x,)), both, atol=1e-12)
    assert float(head.abs().max()) > 0.01


def test_clients_are_evaluated_with_their_own_heads_from_a_checkpoint_too(tmp_path: Path) -> None:
    class Tested(Biases):
        def test_step(self, batch: Any, batch_idx: int) -> None: ...

    sets = [of_classes(0, 0, 0, 1), of_classes(1, 2)]
    data = fl.TensorDataModule(sets, test=sets, batch_size=None)
    trainer = quiet_trainer(max_epochs=1, callbacks=[fl.FedRoD("head", 1.0, head_lr=1.0)])
    trainer.fit(Tested(), datamodule=data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    metrics = fl.ClientMetrics(lambda preds, target: preds[:, 0].mean(), "first")
    again = quiet_trainer(callbacks=[fl.FedRoD("head"), metrics])
    again.test(Tested(), datamodule=data, ckpt_path=tmp_path / "a.ckpt", verbose=False)
    assert metrics.values["test"] == pytest.approx({0: 3 / 4 - 1 / 3, 1: -1 / 3})
    assert metrics.shared_values["test"] == pytest.approx({0: 0, 1: 0}, abs=1e-15)


def test_fedrod_wants_one_linear_layer() -> None:
    with pytest.raises(ValueError, match="`pattern`"):
        fit(fl.FedRoD("*", 1.0), Net(), clients(6))


# ---- with what Lightning does ----

ALL = [*(make for make, _ in TERMS.values()), lambda: fl.FedProto(1.0, 1.0)]


@pytest.mark.parametrize("make", ALL)
def test_a_step_may_return_a_dict_and_accumulate(make: Callable[[], fl.AggregationCallback]) -> None:
    class Dict(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": super().training_step(batch, batch_idx), "more": 1}

    data, ends = clients(12, 8), []
    for net in (Net(), Dict()):
        fit(make(), net, data, rounds=2, batch_size=4, accumulate_grad_batches=2)
        ends.append(nn.utils.parameters_to_vector(net.parameters()))
    assert torch.equal(*ends)


def test_accumulated_batches_count_as_their_mean() -> None:
    x, y = clients(8)[0]
    ends = []
    for options in ({"batch_size": 4, "accumulate_grad_batches": 2}, {"batch_size": None}):
        fit(fl.FedNTD(0.5, 1.0, local_epochs=3), net := Net(), [(x, y)], **options)
        ends.append(nn.utils.parameters_to_vector(net.parameters()))
    assert torch.allclose(*ends, rtol=0, atol=1e-14)


def test_other_models_are_looked_at_in_eval_mode_and_leave_no_trace() -> None:
    class Normed(Net):
        def __init__(self) -> None:
            super().__init__(lr=0.0)
            self.norm, self.drop = nn.BatchNorm1d(4).double(), nn.Dropout(0.5)
            self.draws: list[float] = []

        def features(self, x: Tensor) -> Tensor:
            return self.drop(self.norm(self.body(x)))

        def on_train_batch_end(self, *args: Any) -> None:
            self.draws.append(float(torch.rand(())))
            assert self.drop.training

    ends = []
    for callback in (fl.MOON(1.0, 1.0, seed=1), fl.FedNTD(1.0, 1.0, seed=1), fl.FedAvg(1.0, seed=1)):
        fit(callback, net := Normed(), clients(12, 8), rounds=3)
        ends.append([*net.draws, *net.norm.running_var.tolist()])
    assert ends[0] == ends[1] == ends[2]


def test_the_output_layer_may_have_an_adapter() -> None:
    adapted, merged = add_lora(Net(), "head", rank=2), Net()
    nn.init.ones_(adapted.head.lora_B)
    merged.head.weight.data += (adapted.head.lora_B @ adapted.head.lora_A).detach()
    losses = [fit(fl.FedLC(1.0, 1.0), net, clients(9)) for net in (adapted, merged)]
    assert losses[0] == pytest.approx(losses[1])


def test_a_changed_loss_with_a_term_is_what_the_closure_returns() -> None:
    class Half(LocalObjective):
        def correction(self, client: LocalClient) -> ChangedLoss:
            return ChangedLoss(self.half, term=Term(pull=0.5))

        def half(self, loss: Tensor, forward: ForwardPass) -> Tensor:
            return loss / 2

    [whole], [half] = (fit(each, Net(), clients(6)) for each in (fl.FedAvg(1.0), fl.Federated(1.0, objective=Half())))
    assert half == whole / 2


def test_modules_that_cannot_be_changed_are_refused() -> None:
    class Manual(Net):
        automatic_optimization = False

    with pytest.raises(
        ValueError, match="objective changes the loss of `training_step`, so it needs `automatic_optimization=True`"
    ):
        fit(fl.FedLC(1.0, 1.0), Manual(), clients(6))
    with pytest.raises(TypeError, match=r"`in_features` .*the loss of Quadratic"):
        fit(fl.FedDecorr(1.0, 1.0), Quadratic(0.1), [(torch.ones(3).double(), torch.ones(3).double())])
