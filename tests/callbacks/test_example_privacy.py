"""Privacy of single samples: clipped gradients by hand, noise, accounts, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import ValidatedClassifier, clients_of
from helpers.toys import BodyAndHead, Quadratic, quadratic_clients, quiet_trainer
from helpers.written import assert_as_in, messages
from torch import Tensor, nn
from torch.nn import functional

import fl_lightning as fl
from fl_lightning.data import ClientRotation
from fl_lightning.parts import LocalObjective, Term, UniformSampler
from fl_lightning.parts.exchanges.privacy.accounting import Mechanism, epsilon_of
from fl_lightning.testing import fits

NO_NOISE: dict[str, Any] = {"noise_multiplier": 0.0, "delta": 1e-5}


def fit(
    module: L.LightningModule,
    clients: Any,
    *callbacks: Any,
    rounds: int = 1,
    batch_size: int | None = None,
    ckpt_path: Path | None = None,
    **trainer: Any,
) -> L.Trainer:
    data = fl.TensorDataModule(clients=clients, batch_size=batch_size)
    fitter = quiet_trainer(max_epochs=rounds, callbacks=list(callbacks), **trainer)
    fitter.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return fitter


def mixed(*optima: float) -> list[tuple[Tensor, Tensor]]:
    """Return one client with a sample of each optimum."""
    c = torch.tensor(optima, dtype=torch.float64)
    return [(torch.ones_like(c), c)]


class Plain(Quadratic):
    """Without a list of what it saw, which would look at values."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        a, c = batch
        return (0.5 * a * (self.w - c) ** 2).sum() / len(c)


def test_each_samples_gradient_of_all_parameters_is_clipped_at_once() -> None:
    # Gradients (-1, -1), (-10, -10) and (4, 4) become (-1, -1), (-2, -2) and (2, 2), of norm 2 sqrt(2): the mean is
    # -1/3, and the learning rate 1/4.
    module = BodyAndHead()
    fit(module, mixed(1.0, 10.0, -4.0), fl.ExamplePrivacy(math.sqrt(8), **NO_NOISE), fl.FedAvg(1.0))
    assert [each.item() for each in module.parameters()] == pytest.approx([1 / 12, 1 / 12], abs=1e-15)


@pytest.mark.parametrize("first", [True, False])
def test_a_proximal_term_is_added_after_the_clipping(first: bool) -> None:
    # lr 1/2, two steps of one batch: 1 by a clipped gradient of -2, then 1 - 1/2 (-2 + 1/2) with mu = 1/2
    module = Plain(0.5)
    callbacks = [fl.ExamplePrivacy(2.0, **NO_NOISE), fl.FedProx(0.5, 1.0, local_epochs=2)]
    fit(module, mixed(10.0), *(callbacks if first else reversed(callbacks)))
    assert float(module.w.detach()) == pytest.approx(1.75, abs=1e-15)


WEIGHTS = torch.tensor([0.2, 1.0, 5.0])


class Lossy(ValidatedClassifier):
    """Minimises another loss of its scores; its step takes no ``batch_idx``."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.of = loss
        # The first parameter has gradients of 0, whatever the loss is.
        self.scale = nn.Parameter(torch.ones(1))

    def training_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        return self.of(self.layers(batch[0]), batch[1]) + 0 * self.scale.sum()  # type: ignore[no-any-return]


def focal(scores: Tensor, y: Tensor) -> Tensor:
    each = functional.cross_entropy(scores, y, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def end_of(loss: Any, *privacy: fl.ExamplePrivacy) -> Tensor:
    torch.manual_seed(0)
    module = Lossy(loss)
    fit(module, clients_of(9, 14), *privacy, fl.FedAvg(1.0, local_epochs=2, seed=1), rounds=2, batch_size=4)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    "loss",
    [
        functional.cross_entropy,
        focal,
        lambda scores, y: functional.cross_entropy(scores, y, label_smoothing=0.1),
        lambda scores, y: (WEIGHTS[y] * functional.cross_entropy(scores, y, reduction="none")).mean(),
    ],
)
def test_any_mean_of_losses_of_single_samples_trains_as_it_does(loss: Any) -> None:
    assert torch.allclose(end_of(loss), end_of(loss, fl.ExamplePrivacy(1e9, **NO_NOISE)), rtol=0, atol=1e-6)


class Ended(L.Callback):
    """Counts the batches that came to their end."""

    number = 0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        assert all(part.training for part in pl_module.modules())
        self.number += 1


def test_a_first_batch_of_one_class_does_not_hide_class_weights() -> None:
    module, ended = Lossy(lambda scores, y: functional.cross_entropy(scores, y, weight=WEIGHTS)), Ended()
    y = torch.tensor([1] * 4 + [0, 1, 2, 2])
    data = fl.TensorDataModule([(torch.randn(8, 4), y)], batch_size=4, shuffle=False)
    trainer = quiet_trainer(max_epochs=1, callbacks=[fl.ExamplePrivacy(1e9, **NO_NOISE), ended, fl.FedAvg(1.0)])
    with pytest.raises(ValueError, match="Class weights"):
        trainer.fit(module, datamodule=data)
    assert ended.number == 1


def test_dropout_is_no_other_share() -> None:
    class Dropping(ValidatedClassifier):
        def build(self) -> nn.Module:
            return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step((batch[0] + torch.randn_like(batch[0]), batch[1]), batch_idx)

    module = Dropping()
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    privacy, ended = fl.ExamplePrivacy(1.0, **NO_NOISE), Ended()
    fit(module, clients_of(9, 14), privacy, ended, fl.FedAvg(1.0), batch_size=4)
    assert ended.number == 3 + 4
    assert not torch.equal(before, torch.cat([p.detach().flatten() for p in module.parameters()]))


def test_noise_is_of_the_sum_and_divided_by_the_batch() -> None:
    class Many(Plain):
        def __init__(self) -> None:
            super().__init__(1.0, [0.0] * 20_000)
            self.frozen = nn.Parameter(torch.zeros(1).double(), requires_grad=False)

    clients = [(torch.ones(4, 1, dtype=torch.float64), torch.zeros(4, 20_000, dtype=torch.float64))]
    module = Many()
    fit(module, clients, fl.ExamplePrivacy(0.5, noise_multiplier=1.2, delta=1e-5), fl.FedAvg(1.0))
    assert float(module.w.std()) == pytest.approx(1.2 * 0.5 / 4, rel=0.03)
    assert float(module.frozen) == 0


def test_epsilon_counts_local_epochs_of_the_busiest_client(tmp_path: Path) -> None:
    def run(rounds: int, ckpt_path: Path | None = None, noise: float = 8.0) -> tuple[float, L.Trainer]:
        clients = quadratic_clients([1.0] * 3, [1.0, 2.0, 3.0], [4, 4, 4])
        privacy = fl.ExamplePrivacy(1.0, noise_multiplier=noise, delta=1e-5)
        options = {"rounds": rounds, "ckpt_path": ckpt_path, "batch_size": 2}
        trainer = fit(Plain(0.1), clients, privacy, fl.FedAvg(1.0, local_epochs=3), **options)
        return privacy.spent, trainer

    spent, trainer = run(4)
    state = trainer.callbacks[0].state_dict()  # type: ignore[attr-defined]
    assert state == {"epochs": {8.0: {0: 12, 1: 12, 2: 12}}, "rounds": 4, "epsilon": spent, "delta": 1e-5}
    # four rounds of three epochs: one Gaussian mechanism each, which together are one with z / sqrt(12)
    assert spent == pytest.approx(epsilon_of([(Mechanism(8.0 / math.sqrt(12), 1.0), 1)], 1e-5), rel=0.01)
    assert float(trainer.progress_bar_metrics["fed/example_epsilon"]) == pytest.approx(spent)
    assert float(trainer.callback_metrics["fed/example_delta"]) == pytest.approx(1e-5)
    kept = tmp_path / "after_two.ckpt"
    run(2)[1].save_checkpoint(kept)
    assert run(4, kept)[0] == spent
    run(3, kept, noise=4.0)[1].save_checkpoint(tmp_path / "after_three.ckpt")
    # six epochs with 8, three with 4, three with 2: one Gaussian mechanism with 1 / z^2 = 6 / 64 + 3 / 16 + 3 / 4
    all_three = epsilon_of([(Mechanism((6 / 64 + 3 / 16 + 3 / 4) ** -0.5, 1.0), 1)], 1e-5)
    assert run(4, tmp_path / "after_three.ckpt", noise=2.0)[0] == pytest.approx(all_three, rel=0.01)


def test_steps_count_as_the_epochs_that_they_begin() -> None:
    # 3 steps of 2 batches begin 2 epochs in each of two rounds
    privacy, clients = fl.ExamplePrivacy(1.0, noise_multiplier=8.0, delta=1e-5), quadratic_clients([1.0], [1.0], [4])
    fit(Plain(0.1), clients, privacy, fl.FedAvg(1.0, local_steps=3), rounds=2, batch_size=2)
    assert privacy.state_dict()["epochs"] == {8.0: {0: 4}}
    # one of two epochs in each round
    late = fl.FedAvg(1.0, local_epochs=2, participation=fl.Participation(stragglers=1.0))
    fit(Plain(0.1), clients, privacy, late, rounds=2, batch_size=2)
    assert privacy.state_dict()["epochs"] == {8.0: {0: 2}}


class Normed(ValidatedClassifier):
    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


class ReadingData(LocalObjective):
    """Adds the gradient of the first batch, which is neither clipped nor noised, to every step."""

    def correction(self, client: Any) -> Term:
        gradients, _ = next(client.gradients())
        return Term(linear=torch.cat([gradient.flatten() for gradient in gradients.values()]))


SendingNumbers: Any = type("SendingNumbers", (LocalObjective,), {"numbers_up": lambda self, result: 1})


ByHand: Any = type("ByHand", (ValidatedClassifier,), {"automatic_optimization": False})


class Asking(UniformSampler):
    """Asks a client for its loss before each draw, and no client after its training."""

    scored_at = None

    def clients_to_score(self, rng: Any, available: Any) -> list[int]:
        return [0]

    def score(self, client: Any) -> float:
        return float(client.loss())


class SteppingTwice(ValidatedClassifier):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        optimizer.step(closure=optimizer_closure)


class KeepingMeans(ValidatedClassifier):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.mean.copy_(batch[0].mean(0))


def test_buffers_that_stay_with_the_server_may_change() -> None:
    module = KeepingMeans()
    fit(module, clients_of(4, 4), fl.ExamplePrivacy(1.0, **NO_NOISE), fl.FedAvg(1.0, buffers="server"), batch_size=2)
    assert torch.equal(module.mean, torch.zeros(4))


def test_a_sample_without_a_finite_gradient_leaves_its_client_in() -> None:
    # gradients (-1, -1) and (-3, -3), the latter clipped to (-2, -2); that of NaN counts as 0: (1 + 2 + 0) / 3 / 4
    module = BodyAndHead()
    fit(module, mixed(1.0, 3.0, math.nan), fl.ExamplePrivacy(math.sqrt(8), **NO_NOISE), fl.FedAvg(1.0))
    assert [each.item() for each in module.parameters()] == pytest.approx([0.25, 0.25])


def of_losses(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Path], Any]:
    return lambda _: end_of(loss, fl.ExamplePrivacy(1e9, **NO_NOISE))


def private(*callbacks: Any, module: Any = ValidatedClassifier, **trainer: Any) -> Callable[[Path], Any]:
    privacy = fl.ExamplePrivacy(1.0, **NO_NOISE)
    return lambda _: fit(module(), clients_of(4, 4), privacy, *callbacks, batch_size=2, **trainer)


def on(**data: Any) -> Callable[[Path], Any]:
    datamodule = fl.TensorDataModule(clients_of(4, 4), batch_size=2, **data)
    privacy = fl.ExamplePrivacy(1.0, **NO_NOISE)
    return lambda _: fits.fit(fl.FedAvg(1.0), ValidatedClassifier(), datamodule, 1, privacy)


class Other(fl.ExamplePrivacy):
    """Of a class of a user's own."""


def resumed(folder: Path) -> None:
    path, clients = folder / "without.ckpt", mixed(1.0, 2.0)
    fit(Plain(0.1), clients, fl.FedAvg(1.0), rounds=2).save_checkpoint(path)
    fit(Plain(0.1), clients, fl.ExamplePrivacy(1.0, **NO_NOISE), fl.FedAvg(1.0), rounds=3, ckpt_path=path)


def fit_twice(_: Path) -> None:
    privacy, module = fl.ExamplePrivacy(1.0, noise_multiplier=8.0, delta=1e-5), Plain(0.1)
    for _ in range(2):
        fit(module, mixed(1.0, 2.0), privacy, fl.FedAvg(1.0))


#: What gives away more than is counted is refused: the text file has the errors.
REFUSED: dict[str, Callable[[Path], Any]] = {
    "class weights": of_losses(lambda scores, y: functional.cross_entropy(scores, y, weight=WEIGHTS)),
    "a sum": of_losses(lambda scores, y: functional.cross_entropy(scores, y, reduction="sum")),
    "ignored samples": of_losses(lambda scores, y: functional.cross_entropy(scores, torch.where(y == 0, -100, y))),
    "a step of values": lambda _: fit(Quadratic(0.1), mixed(1.0), fl.ExamplePrivacy(1.0, **NO_NOISE), fl.FedAvg(1.0)),
    "control variates": private(fl.Scaffold(1.0)),
    "losses": private(fl.QFedAvg(1.0, 1.0)),
    "scores": private(fl.FedAvg(sampler=fl.ImportanceSampler(1.0))),
    "losses before the draw": private(fl.FedAvg(sampler=Asking(1))),
    "other gradients": private(fl.Federated(1.0, objective=ReadingData())),
    "numbers beside the model": private(fl.Federated(1.0, objective=SendingNumbers())),
    "BatchNorm": private(fl.FedAvg(1.0), module=Normed),
    "two batches a step": private(fl.FedAvg(1.0), accumulate_grad_batches=2),
    "manual optimisation": private(fl.FedAvg(1.0), module=ByHand),
    "one batch of each client": private(fl.FedAvg(1.0), limit_train_batches=1),
    "half of the batches": private(fl.FedAvg(1.0), limit_train_batches=0.5),
    "samples that change": on(changes=ClientRotation(1)),
    "a sampler of samples": on(sampler=lambda client, dataset, generator: range(2)),
    "two steps a batch": private(fl.FedAvg(1.0), module=SteppingTwice),
    "buffers": private(fl.FedAvg(1.0), module=KeepingMeans),
    "no algorithm": private(),
    "two of them": private(Other(2.0, **NO_NOISE), fl.FedAvg(1.0)),
    "rounds without it": resumed,
    "another fit of the model": fit_twice,
    "a delta that protects nobody": lambda _: fit(
        Plain(0.3), mixed(1.0, 10.0), fl.ExamplePrivacy(2.0, noise_multiplier=1.0, delta=0.5), fl.FedAvg(1.0)
    ),
}


def test_what_is_refused(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_suffix(".txt"), messages(REFUSED, tmp_path), tmp_path)
