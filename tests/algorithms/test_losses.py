"""Objectives on the loss: numbers by hand, and the gradients of the papers' formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Descending, fit_clients, own_model, quiet_trainer
from helpers.watching import Results
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.models import add_lora

Clients = list[tuple[Tensor, Tensor]]


class Net(Descending):
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


@pytest.mark.parametrize("make", [lambda: fl.FedSAM(0.1, 1.0), lambda: fl.PerFedAvg(0.1, 1.0)])
def test_going_uphill_is_no_step(make: Callable[[], fl.AggregationCallback]) -> None:
    fit_clients(make(), Net(), clients(12), 1, results := Results(), batch_size=3)
    # Per-FedAvg takes two batches for a step.
    assert results.seen[0].num_steps == (4 if isinstance(make(), fl.FedSAM) else 2)


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
    bias = own_model(callback, 1)[9:12]  # one step along -1.5 * 2/6 (z - prototype), summed over the samples
    assert bias.tolist() == pytest.approx([0.5 * 4 / 3, 0.5 * (1 / 3 - 1), 0])
    traffic = callback.algorithm.traffic
    assert traffic.bits_up == 2 * 64 * (2 + 2) * (3 + 1)  # two classes each, with their counts
    assert traffic.bits_down == 2 * 64 * 9  # three prototypes, in the second round


def asynchronous_prototypes(lookahead: int | None, lam: float, exchange: Any = None) -> fl.Federated:
    schedule = parts.Asynchronous(parts.VirtualClock([100, 60, 12]), buffer_size=2, lookahead=lookahead)
    return fl.Federated(4, schedule=schedule, objective=parts.Prototypes(lam), exchange=exchange)


@pytest.mark.parametrize("lookahead", [1, None])
def test_each_result_that_arrives_in_a_round_brings_its_prototypes(lookahead: int | None) -> None:
    """Client 0 arrives more often than once; features are the inputs, as nothing is learnt."""
    values = [1.0, 5.0, 11.0]
    data = [(torch.tensor([[value, 0, 0]]).double(), torch.tensor([0])) for value in values]
    callback = asynchronous_prototypes(lookahead, 0.1, parts.PersonalParameters("*"))
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


# ---- with what Lightning does ----

ALL = [
    lambda: fl.MOON(1.0, 1.0),
    lambda: fl.FedLC(0.7, 1.0),
    lambda: fl.FedNTD(0.5, 1.0, tau=2.0),
    lambda: fl.FedDecorr(0.3, 1.0),
    lambda: fl.FedRoD("head", 1.0),
    lambda: fl.FedProto(1.0, 1.0),
]


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


def test_the_output_layer_may_have_an_adapter() -> None:
    adapted, merged = add_lora(Net(), "head", rank=2), Net()
    nn.init.ones_(adapted.head.lora_B)
    merged.head.weight.data += (adapted.head.lora_B @ adapted.head.lora_A).detach()
    losses = [fit(fl.FedLC(1.0, 1.0), net, clients(9)) for net in (adapted, merged)]
    assert losses[0] == pytest.approx(losses[1])


def test_a_changed_loss_with_a_term_is_what_the_closure_returns() -> None:
    class Half(parts.LocalObjective):
        def correction(self, client: parts.LocalClient) -> parts.ChangedLoss:
            return parts.ChangedLoss(self.half, term=parts.Term(pull=0.5))

        def half(self, loss: Tensor, forward: parts.ForwardPass) -> Tensor:
            return loss / 2

    [whole], [half] = (fit(each, Net(), clients(6)) for each in (fl.FedAvg(1.0), fl.Federated(1.0, objective=Half())))
    assert half == whole / 2
