"""Attacks: values of byzfl 0.0.11, who attacks, poisoned data, the backdoor's success, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, FedBuff, TensorDataModule
from fl_lightning.data import Backdoor, FederatedDataModule, ImageDataModule, LabelFlipping, SampleSplit, Source
from fl_lightning.diagnostics import BackdoorSuccess
from fl_lightning.partitioners import IIDPartitioner
from fl_lightning.parts import (
    ALittleIsEnough,
    Attack,
    ClientResult,
    Clip,
    Federation,
    GaussianAttack,
    InnerProductManipulation,
    Median,
    Mimic,
    NormBounding,
    SignFlipping,
    Task,
    TrimmedMean,
)

HONEST = [
    [1.0, -2.0, 0.5, 3.0],
    [1.5, -1.0, 0.0, 2.5],
    [0.5, -2.5, 1.0, 3.5],
    [1.25, -1.5, 0.25, 2.0],
    [0.75, -1.75, 0.75, 3.25],
]


def attached(attack: Attack, clients: int = 7, size: int = 4, seed: int = 0) -> Attack:
    attack.begin_fit(Federation(np.ones(clients), torch.zeros(size, dtype=torch.float64), [size], seed=seed))
    return attack


def results(rows: Sequence[Sequence[float]]) -> list[ClientResult]:
    start = torch.zeros(len(rows[0]), dtype=torch.float64)
    return [ClientResult(Task(k, k, 1), start, start + torch.tensor(row), 1) for k, row in enumerate(rows)]


# ---- what attackers send ----


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (InnerProductManipulation([5, 6], scale=2.0), [-2.0, 3.5, -1.0, -5.7]),
        # byzfl adds tau standard deviations, the paper takes z of them away
        (
            ALittleIsEnough([5, 6], z=-1.5),
            [1.5929270612815711, -0.9114745084375788, 1.0929270612815711, 3.7531195934094224],
        ),
        (Mimic([5, 6]), [1.0, -2.0, 0.5, 3.0]),
    ],
    ids=repr,
)
def test_values_of_byzfl(attack: Attack, expected: list[float]) -> None:
    everyone = attached(attack).collude(results([*HONEST, [9.0] * 4, [-9.0] * 4]))
    for result, honest in zip(everyone, HONEST, strict=False):
        assert result.delta.tolist() == honest
    for result in everyone[5:]:
        assert result.delta.tolist() == pytest.approx(expected, abs=1e-12)


def test_the_papers_own_z() -> None:
    # 50 clients, 24 of them attackers: s = 26 - 24 = 2 supporters, Phi(z) = 48 / 50, z = 1.7507 (Baruch et al. 2019)
    rows = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    attack = attached(ALittleIsEnough(list(range(26, 50))), clients=50, size=2)
    sent = attack.collude(results(rows))[-1].delta
    honest = torch.tensor(rows[:26], dtype=torch.float64)
    assert ((honest.mean(0) - sent) / honest.std(0)).tolist() == pytest.approx([1.7507, 1.7507], abs=1e-4)


def test_single_updates() -> None:
    [result, *_] = results(HONEST)
    assert attached(SignFlipping([0], scale=3.0)).upload(result).delta.tolist() == [-3.0, 6.0, -1.5, -9.0]
    assert attached(SignFlipping([1])).upload(result) is result
    noise = [attached(GaussianAttack([0], std=2.0), size=4, seed=seed).upload(result).delta for seed in range(500)]
    assert float(torch.stack(noise).std()) == pytest.approx(2.0, rel=0.06)


def test_a_share_of_the_clients_is_drawn_by_the_seed() -> None:
    drawn = {attached(SignFlipping(0.3), clients=10, seed=seed).attackers for seed in range(30)}
    assert {len(attackers) for attackers in drawn} == {3}
    assert len(drawn) > 20
    assert attached(SignFlipping(0.29), clients=100).attackers == attached(Mimic(0.29), clients=100).attackers
    assert len(attached(SignFlipping(0.29), clients=100).attackers) == 29
    assert attached(SignFlipping(0.0)).attackers == frozenset()


# ---- in fits ----

OPTIMA = [[1.0], [1.0], [1.0], [1.0], [4.0]]


@pytest.mark.parametrize(
    ("attack", "mean", "median"),
    [
        # the mean of four ones and what client 4 sends
        (SignFlipping([4]), (4 - 4) / 5, 1.0),
        (InnerProductManipulation([4], scale=6.0), (4 - 6) / 5, 1.0),
        (Mimic([4]), 1.0, 1.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "make", [lambda **k: FedAvg(1.0, **k), lambda **k: FedBuff(5, 5, **k)], ids=["FedAvg", "FedBuff"]
)
def test_what_they_do_to_a_mean_and_to_a_median(attack: Attack, mean: float, median: float, make: Any) -> None:
    clients = clients_that_reach(OPTIMA, [1] * 5)
    for options, expected in (({}, mean), ({"aggregation": Median()}, median)):
        weights = fit_quadratic(make(exchange=attack, **options), Quadratic(1.0, [0.0]), clients, 1)
        assert float(weights[0]) == pytest.approx(expected, abs=1e-12)


def test_bounds_before_and_after_an_attack() -> None:
    clients = clients_that_reach(OPTIMA, [1] * 5)
    for options, expected in (
        ({"exchange": [SignFlipping([4], scale=10.0), Clip(2.0)]}, (4 - 2) / 5),
        ({"exchange": [Clip(2.0), SignFlipping([4], scale=10.0)]}, (4 - 20) / 5),
        (
            {
                "exchange": InnerProductManipulation([4], scale=50.0),
                "aggregation": TrimmedMean(0, before=NormBounding(2.0)),
            },
            (4 - 2) / 5,
        ),
    ):
        weights = fit_quadratic(FedAvg(1.0, **options), Quadratic(1.0, [0.0]), clients, 1)
        assert float(weights[0]) == pytest.approx(expected, abs=1e-12)


# ---- poisoned data ----


class Images(FederatedDataModule):
    """Sixty images of 6 x 6 pixels and three classes, told by their mean; validated on twelve."""

    def load(self) -> Source:
        y = torch.arange(60) % 3
        x = 0.05 * torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + y[:, None, None, None] / 4
        return Source(torch.utils.data.TensorDataset(x, y), y.numpy(), test_indices=np.arange(48, 60))


def set_up(poison: Any = None) -> Images:
    data = Images(IIDPartitioner(num_clients=4, seed=0), batch_size=4, split=SampleSplit(val=0.0, test="official"))
    if poison is not None:
        data.poison_with(poison)
    data.setup()
    return data


def samples_of(data: Images, client: int) -> tuple[Tensor, Tensor]:
    x, y = zip(*data.client_dataset(client), strict=True)
    return torch.stack(x), torch.stack(y)


def test_flipped_labels_of_chosen_clients_alone() -> None:
    clean, flipped = set_up(), set_up(LabelFlipping([1, 2], 3))
    for client in range(clean.num_clients):
        (x, y), (same, other) = samples_of(clean, client), samples_of(flipped, client)
        assert torch.equal(x, same)
        assert torch.equal(other, 2 - y if client in (1, 2) else y)


def test_a_stamp_on_a_share_of_a_clients_images() -> None:
    backdoor = Backdoor([0], target=2, fraction=0.5, size=2, value=7.0)
    clean, stamped = set_up(), set_up(backdoor)
    (x, y), (marked, classes) = samples_of(clean, 0), samples_of(stamped, 0)
    changed = (marked != x).flatten(1).any(1)
    assert int(changed.sum()) == len(y) // 2
    assert bool((marked[changed][..., -2:, -2:] == 7.0).all())
    assert torch.equal(marked[changed][..., :-2, :], x[changed][..., :-2, :])
    assert bool((classes[changed] == 2).all())
    assert torch.equal(classes[~changed], y[~changed])
    assert torch.equal(samples_of(stamped, 1)[0], samples_of(clean, 1)[0])


def test_a_second_poison_adds_to_the_first_and_a_client_is_poisoned_once() -> None:
    clean, data = set_up(), Images(IIDPartitioner(4, seed=0), split=SampleSplit(val=0.0, test="official"))
    for poison in (LabelFlipping([0], 3), Backdoor([0, 1], target=2, fraction=1.0, size=2)):
        data.poison_with(poison)
    data.poison_with(LabelFlipping([1], 3))
    data.setup()
    assert samples_of(data, 0)[1].unique().tolist() == [2]  # stamped after they were flipped
    assert samples_of(data, 1)[1].unique().tolist() == [0]  # flipped after they were stamped
    assert torch.equal(samples_of(data, 2)[1], samples_of(clean, 2)[1])
    assert LabelFlipping([0, 0], 3).clients == [0]


class Bytes(ImageDataModule):
    """Black images of 6 x 6 pixels in two channels, which become -1 and -2; white becomes 1 and 3."""

    mean, std = (0.5, 0.4), (0.5, 0.2)

    def load(self) -> Source:
        y = torch.arange(12) % 3
        return Source(torch.utils.data.TensorDataset(torch.zeros(12, 2, 6, 6, dtype=torch.uint8), y), y.numpy())


def test_bytes_are_stamped_in_the_units_in_which_success_is_measured() -> None:
    data = Bytes(IIDPartitioner(2, seed=0), split=SampleSplit(val=0.0, test=0.0))
    backdoor = Backdoor([0], fraction=1.0, size=2, value=-0.6)
    data.poison_with(backdoor)
    data.setup()
    x, _ = samples_of(data, 0)
    # 255 (0.5 - 0.6 0.5) = 51, and 255 (0.4 - 0.6 0.2) = 71.4
    assert x[:, 0, -2:, -2:].unique().tolist() == [51]
    assert x[:, 1, -2:, -2:].unique().tolist() == [71]
    assert not x[..., :-2, :].any()
    served = data.preprocess(x, training=True)
    torch.testing.assert_close(backdoor.stamped(served), served, atol=0.5 / 255 / 0.2, rtol=0)


class TellsByCorner(L.LightningModule):
    """Takes an image for class 2 if its corner is bright, and for class 0 otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        bright = (x[:, 0, -1, -1] > 5).float()
        return torch.stack([1 - bright, torch.zeros_like(bright), bright], 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.w.square()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("value", "success"), [(7.0, 1.0), (2.0, 0.0)])
def test_the_share_of_stamped_images_that_are_taken_for_the_target(value: float, success: float) -> None:
    x = torch.zeros(9, 1, 6, 6)
    clients = [(x, torch.arange(9) % 3)] * 2
    data = TensorDataModule(clients=clients, val=clients[0], batch_size=4)
    watch = BackdoorSuccess(Backdoor([0], target=2, size=2, value=value))
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0), watch])
    trainer.fit(TellsByCorner(), datamodule=data)
    assert float(trainer.callback_metrics["fed/backdoor_success"]) == success
