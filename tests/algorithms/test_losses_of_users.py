"""Objectives on the loss take the loss of the user's own step, and the inputs that it gives its model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Descending, fit_clients, quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import fl_lightning as fl

Loss = Callable[[Tensor, Tensor], Tensor]


def focal(logits: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(logits, y, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


LOSSES: dict[str, Loss] = {
    "plain": F.cross_entropy,
    "class weights": partial(F.cross_entropy, weight=torch.tensor([0.2, 1.0, 5.0]).double()),
    "focal": focal,
    "sum": lambda logits, y: 0.1 * F.cross_entropy(logits, y, reduction="sum"),
    "temperature": lambda logits, y: F.cross_entropy(logits / 0.5, y),
    "smoothed": partial(F.cross_entropy, label_smoothing=0.1),
}


class Net(Descending):
    """A body and an output layer, which the step calls one after the other, in float64."""

    def __init__(self, loss: Loss = F.cross_entropy) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.loss = loss
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 3)
        self.double()

    def seen(self, x: Tensor) -> Tensor:
        return x

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(self.seen(x)))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(self.head(self.features(batch[0])), batch[1])


class Scaled(Net):
    """Scales its inputs, and writes to them."""

    def seen(self, x: Tensor) -> Tensor:
        return x.mul_(0.25)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step([batch[0].clone(), batch[1]], batch_idx)


class Penalised(Net):
    """Its loss depends on its first layer, too, and it looks at other logits first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3).double()

    def seen(self, x: Tensor) -> Tensor:
        return self.first(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.no_grad():
            self.head(self.features(batch[0]).flip(0))
        return super().training_step(batch, batch_idx) + 0.1 * self.first(batch[0]).square().mean()


class Maximised(Net):
    """Maximises minus its loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return -super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, maximize=True)


class Masked(Net):
    """Its ``forward`` gets a mask."""

    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        return self.head(self.features(x * mask))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return self.loss(self(x, mask=x > 0), y)


class InParts(Net):
    """Its output layer is called for a third of the samples, and then for the others."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.features(batch[0]).tensor_split([len(batch[0]) // 3])
        return self.loss(torch.cat([self.head(first), self.head(second)]), batch[1])


class OfPlaces(Net):
    """Its samples have two places each, with logits and a class for each."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.head(self.features(batch[0].view(-1, 2, 3)))
        return self.loss(logits.flatten(0, 1), batch[1])


def masked(net: Net, x: Tensor) -> Tensor:
    return x * (x > 0) if isinstance(net, Masked) else x


KINDS = {name: partial(Net, loss) for name, loss in LOSSES.items()}
KINDS |= {"scaled": Scaled, "penalised": Penalised, "masked": Masked, "maximised": Maximised, "places": OfPlaces}
KINDS["parts"] = InParts


def client(n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 3, generator=generator).double(), torch.tensor([0, 0, 0, 1, 1, 2] * (n // 6))


def fit(callback: fl.AggregationCallback, module: Any, x: Tensor, y: Tensor, *more: Any, rounds: int = 2) -> None:
    fit_clients(callback, module, [(x, y)], rounds, *more)


def trained_by_hand(net: Net, loss: Callable[[Net], Tensor], rounds: int = 2) -> None:
    """Take a step of SGD a round along a loss."""
    for _ in range(rounds):
        gradients = torch.autograd.grad(loss(net), list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, its, rtol=0, atol=1e-12)


def step_with(net: Net, x: Tensor, y: Tensor, shift: Tensor) -> Tensor:
    """Return the step's loss for shifted logits."""
    z = net.features(masked(net, x.clone()))
    penalty = 0.1 * net.first(x).square().mean() if isinstance(net, Penalised) else 0.0
    return net.loss(net.head(z) + shift, y) + penalty


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_fedlc_shifts_the_logits_of_any_loss(kind: Callable[[], Net]) -> None:
    (x, y), net, hand = client(), kind(), kind()
    fit(fl.FedLC(0.7, 1.0), net, x, y)
    shift = -0.7 * torch.tensor([15, 10, 5]).double() ** -0.25
    trained_by_hand(hand, lambda net: step_with(net, x, y, shift))
    assert_same(net, hand)
    assert not any(part._forward_hooks for part in net.modules())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_both_heads_of_fedrod_learn_by_the_user_s_loss(kind: Callable[[], Net]) -> None:
    (x, y), net, hand = client(), kind(), kind()
    callback = fl.FedRoD("head", 1.0, head_lr=0.3)
    fit(callback, net, x, y)
    weight, bias = torch.zeros(3, 4).double(), torch.zeros(3).double()
    for _ in range(2):
        weight.requires_grad_(), bias.requires_grad_()
        with torch.no_grad():
            z = hand.features(masked(hand, x.clone()))
            logits = hand.head(z)
        to_weight, to_bias = torch.autograd.grad(hand.loss(logits + F.linear(z, weight, bias), y), [weight, bias])
        weight, bias = (weight - 0.3 * to_weight).detach(), (bias - 0.3 * to_bias).detach()
        trained_by_hand(hand, lambda net: step_with(net, x, y, torch.tensor([15, 10, 5]).double().log()), rounds=1)
    assert_same(net, hand)
    own = callback.algorithm.objective.heads[0]
    assert torch.allclose(own, torch.cat([weight.flatten(), bias]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Scaled, Masked, Penalised, InParts])
def test_the_other_models_see_what_the_step_gives_its_own(kind: type[Net]) -> None:
    (x, y), net, hand = client(), kind(), kind()

    def distilled(net: Net, received: Net) -> Tensor:
        own, known = (each.head(each.features(masked(each, x.clone()))) for each in (net, received))
        total = torch.zeros(()).double()
        for row, other, true in zip(own, known.detach(), y.tolist(), strict=True):
            rest = [c for c in range(3) if c != true]
            q, p = torch.softmax(row[rest], 0), torch.softmax(other[rest], 0)
            total = total + (p * (p / q).log()).sum()
        return step_with(net, x, y, torch.zeros(3)) + 0.5 * total / len(x)

    fit_clients(fl.FedNTD(0.5, 1.0, local_epochs=3), net, [(x, y)], 1)
    received = kind()
    trained_by_hand(hand, lambda net: distilled(net, received), rounds=3)
    assert_same(net, hand)


def test_the_contrast_is_of_features_of_what_the_step_saw() -> None:
    """Of two clients in two rounds, so that the received model is not the former one."""
    (x, y), net, received = client(), Masked(), Masked()
    data = [(x[:18], y[:18]), (x[18:], y[18:])]
    fit_clients(fl.MOON(1.0, 1.0), net, data, 2)
    formers: list[Net] = []
    for round_index in range(2):
        now = [Masked(), Masked()]
        for k, (own, target) in enumerate(data):
            now[k].load_state_dict(received.state_dict())
            others = [received, formers[k]] if round_index else []

            def loss(net: Net, own: Tensor = own, target: Tensor = target, others: list[Net] = others) -> Tensor:
                total = step_with(net, own, target, torch.zeros(3))
                z = net.features(own * (own > 0))
                cosines = [F.cosine_similarity(z, other.features(own * (own > 0)).detach()) for other in others]
                if cosines:
                    a, b = (torch.exp(cosine / 0.5) for cosine in cosines)
                    total = total - torch.log(a / (a + b)).mean()
                return total

            trained_by_hand(now[k], loss, rounds=1)
        formers = now
        ends = [each.state_dict() for each in now]
        received.load_state_dict({key: (18 * ends[0][key] + 12 * ends[1][key]) / 30 for key in ends[0]})
    assert_same(net, received)


class Augmented(Net):
    """Adds noise to its inputs, counts, and keeps what it saw and lost."""

    def __init__(self) -> None:
        super().__init__()
        # Without a bias, so that a client's own head has none either.
        self.head = nn.Linear(4, 3, bias=False).double()
        self.norm, self.drop = nn.BatchNorm1d(3).double(), nn.Dropout(0.5)
        self.own = torch.Generator().manual_seed(3)
        self.steps, self.saw = 0, list[Tensor]()
        self.register_buffer("queue", torch.zeros(3).double())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        noise = torch.randn_like(batch[0]) + torch.randn(batch[0].shape, generator=self.own, dtype=torch.double)
        x = batch[0] / self.steps + noise
        self.saw.append(x)
        self.queue += x.detach().mean(0)
        loss = super().training_step([self.norm(self.drop(x)), batch[1]], batch_idx)
        self.log("sum", 1.0, on_step=False, on_epoch=True, reduce_fx="sum")
        return loss


class Draws(L.Callback):
    """Keeps a random number after each step, and what was logged."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.drawn.append(float(torch.rand(())))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.drawn.append(float(trainer.callback_metrics["sum"]))


def test_a_second_run_of_the_step_leaves_no_trace() -> None:
    makers = [
        lambda: fl.FedAvg(1.0, seed=1),
        lambda: fl.MOON(1.0, 1.0, seed=1),
        lambda: fl.FedNTD(1.0, 1.0, seed=1),
        lambda: fl.FedRoD("head", 1.0, seed=1),
        lambda: fl.FedLC(1.0, 1.0, seed=1),
    ]
    ends = []
    for make in makers:
        net, draws = Augmented(), Draws()
        fit(make(), net, *client(), draws)
        saw = [float(x.sum()) for x in net.saw]
        buffers = [*net.queue.tolist(), *net.norm.running_var.tolist()]
        ends.append([net.steps, *saw, *draws.drawn, *buffers, float(torch.rand((), generator=net.own))])
    assert all(end == ends[0] for end in ends)
    assert ends[0][0] == 2


def test_the_other_model_sees_the_same_random_numbers() -> None:
    """With the received model as its own, the distillation is 0, so its gradient is, too."""

    class Noisy(Net):
        def seen(self, x: Tensor) -> Tensor:
            return x + torch.randn_like(x)

    one, other = Noisy(), Noisy()
    fit_clients(fl.FedNTD(9.0, 1.0, seed=1), one, [client()], 1)
    fit_clients(fl.FedAvg(1.0, seed=1), other, [client()], 1)
    assert_same(one, other)


class TwoOutputs(Net):
    """Has a second output, which is computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 7).double()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        z = self.features(batch[0])
        return self.loss(self.head(z), batch[1]) + 0.1 * self.other(z).square().mean()


def test_one_of_two_outputs_is_asked_for() -> None:
    (x, y), net, hand = client(), TwoOutputs(), TwoOutputs()
    with pytest.raises(ValueError, match=r"loss of TwoOutputs .*'head', 'other'.*`output_layer='head'`"):
        fit(fl.FedLC(0.7, 1.0), net, x, y)
    assert_same(net, hand)  # before any training
    fit(fl.FedLC(0.7, 1.0, output_layer="head"), net, x, y)
    shift = -0.7 * torch.tensor([15, 10, 5]).double() ** -0.25
    trained_by_hand(
        hand,
        lambda net: step_with(net, x, y, shift) + 0.1 * net.other(net.features(x)).square().mean(),  # type: ignore[operator]
    )
    assert_same(net, hand)


@pytest.mark.parametrize("make", [fl.MOON, fl.FedNTD, fl.FedDecorr, fl.FedProto, fl.FedLC])
def test_a_layer_that_does_not_exist_is_named(make: Any) -> None:
    with pytest.raises(ValueError, match=r"`output_layer`.* of Net, got 'haed'.*'body', 'head'"):
        fit(make(1.0, 1.0, output_layer="haed"), Net(), *client())


def test_an_output_on_which_the_loss_does_not_depend_is_none() -> None:
    class Probed(TwoOutputs):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            z = self.features(batch[0])
            self.log("probe", self.other(z).mean())
            return self.loss(self.head(z), batch[1])

    (x, y), net, hand = client(), Probed(), Probed()
    fit(fl.FedLC(0.7, 1.0), net, x, y)
    hand.other.requires_grad_(False)
    shift = -0.7 * torch.tensor([15, 10, 5]).double() ** -0.25
    for _ in range(2):
        trained = [*hand.body.parameters(), *hand.head.parameters()]
        gradients = torch.autograd.grad(step_with(hand, x, y, shift), trained)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.data -= 0.1 * gradient
    assert_same(net, hand)


class Growing(Dataset[Any]):
    """Its labels change with the round."""

    def __init__(self) -> None:
        self.x, self.y = client()
        self.round = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], int(self.y[index]) if self.round == 0 else index % 2


class NextRound(L.Callback):
    def __init__(self, data: Growing) -> None:
        self.data = data

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.data.round = trainer.current_epoch


def test_classes_are_counted_in_each_round() -> None:
    data, net, hand = Growing(), Net(), Net()
    trainer = quiet_trainer(max_epochs=2, callbacks=[fl.FedLC(1.0, 1.0), NextRound(data)])
    trainer.fit(net, datamodule=fl.ClientDatasetsModule([data], batch_size=None))
    shifts = [-(torch.tensor(counts).double() ** -0.25) for counts in ([15, 10, 5], [15, 15, 0])]
    labels = [data.y, torch.arange(30) % 2]
    for shift, y in zip(shifts, labels, strict=True):
        trained_by_hand(hand, lambda net, shift=shift, y=y: step_with(net, data.x, y, shift), rounds=1)
    assert_same(net, hand)


def test_labels_that_change_in_their_tensor_are_counted_again() -> None:
    (x, y), net, hand = client(), Net(), Net()
    changing = y.clone()

    class Change(L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            changing.copy_(y if trainer.current_epoch == 0 else torch.arange(30) % 3)

    fit(fl.FedLC(1.0, 1.0), net, x, changing, Change())
    for shift, target in (([15, 10, 5], y), ([10, 10, 10], torch.arange(30) % 3)):
        moved = -(torch.tensor(shift).double() ** -0.25)
        trained_by_hand(hand, lambda net, moved=moved, target=target: step_with(net, x, target, moved), rounds=1)
    assert_same(net, hand)


def test_a_look_without_gradients_sees_the_logits_as_they_are() -> None:
    class Looking(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with torch.no_grad():
                self.log("plain", F.cross_entropy(self.head(self.features(batch[0])), batch[1]))
            loss = super().training_step(batch, batch_idx)
            self.log("shifted", loss)
            return loss

    x, y = client()
    logged: dict[str, float] = {}

    class Keep(L.Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            logged.update({key: float(trainer.callback_metrics[key]) for key in ("plain", "shifted")})

    fit(fl.FedLC(1.0, 1.0), Looking(), x, y, Keep(), rounds=1)
    shift = -(torch.tensor([15, 10, 5]).double() ** -0.25)
    assert logged["plain"] == pytest.approx(float(Net().training_step((x, y), 0)), rel=1e-6)
    assert logged["shifted"] == pytest.approx(float(step_with(Net(), x, y, shift)), rel=1e-6)


def test_steps_without_a_loss_are_none() -> None:
    class Seldom(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) if batch_idx == 1 else None

    (x, y), net, hand = client(), Seldom(), Net()
    fit_clients(fl.FedLC(0.7, 1.0), net, [(x, y)], 2, batch_size=10)
    shift = -0.7 * torch.tensor([15, 10, 5]).double() ** -0.25
    trained_by_hand(hand, lambda net: step_with(net, x[10:20], y[10:20], shift))
    assert_same(net, hand)


def test_targets_without_a_class_are_refused_before_training() -> None:
    x, y = client()
    targets = {
        r"int64 and shape \(30,\) from -100 to 1": torch.where(y == 2, -100, y),
        r"float64 and shape \((30, 3|90,)\) from 0 to 1": F.one_hot(y, 3).double(),
        r"bool and shape \(30,\) from 0 to 1": y == 2,
        rf"float64 and shape \(30,\) from {x[:, 0].min():g} to {x[:, 0].max():g}": x[:, 0],
    }
    methods = {"FedLC": fl.FedLC, "FedNTD": fl.FedNTD, "FedProto": fl.FedProto, "Fed-RoD": partial(fl.FedRoD, "head")}
    for got, target in targets.items():
        for method, make in methods.items():
            net = Net(lambda logits, y: logits.square().mean())
            with pytest.raises(ValueError, match=rf"{method} needs one class for each row of logits: .* torch.{got}\."):
                fit(make(1.0), net, x, target)
            assert_same(net, Net())


def test_classes_beyond_the_outputs_are_refused() -> None:
    (x, y), net = client(), Net(lambda logits, y: logits.square().mean())
    for method, make in (("FedNTD", fl.FedNTD), ("FedProto", fl.FedProto)):
        for target, got in ((y + 1, "30 targets up to 3"), (torch.stack([y, y], 1), "60 targets up to 2")):
            with pytest.raises(ValueError, match=rf"^{method} .* got {got} for logits of shape \(30, 3\)\."):
                fit(make(1.0), net, x, target)


BINARY = F.binary_cross_entropy_with_logits


@pytest.mark.parametrize(
    ("loss", "change", "match"),
    [
        (LOSSES["smoothed"], lambda y: y.clamp(max=1), "lacks some classes.* of Net .* is inf"),
        (lambda logits, y: F.cross_entropy(logits, y.clamp(max=2)), lambda y: y + 2, "class 4,.* Net has 3 outputs"),
        (lambda logits, y: BINARY(logits, y.double()), lambda y: F.one_hot(y, 3), "got 30 rows and 90 targets"),
    ],
)
def test_classes_that_a_client_or_the_model_lacks_are_refused(loss: Loss, change: Any, match: str) -> None:
    (x, y), net = client(), Net(loss)
    with pytest.raises(ValueError, match=match):
        fit(fl.FedLC(1.0, 1.0), net, x, change(y))
    assert_same(net, Net())
