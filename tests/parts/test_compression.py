"""Compression: values and bits by hand, unbiasedness, error bounds, error feedback, both ways, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.rounds import begin_round
from helpers.toys import BodyAndHead, Quadratic, clients_that_reach, fit_clients, fit_quadratic, quadratic_clients
from torch import Tensor, nn

from fl_lightning import FedAvg, parts
from fl_lightning.diagnostics import Communication


def attached(exchange: parts.Exchange, size: int, *, shape: tuple[int, ...] | None = None) -> parts.Exchange:
    """Return an exchange in a first round of ten clients, with a model of one tensor that is 0."""
    layout = parts.Layout(("w",), (torch.Size(shape or (size,)),), 1, (64,))
    model = torch.zeros(size, dtype=torch.float64)
    sizes = torch.ones(10).numpy()
    algorithm = parts.Algorithm(exchange=exchange)
    algorithm.run = parts.Run.begin(algorithm, parts.Federation(sizes, model, layout))
    begin_round(algorithm, 0)
    return exchange


def sent(
    exchange: parts.Exchange, update: Tensor, client: int = 0, round_index: int = 0
) -> tuple[Tensor, parts.Payload]:
    """Return what the server sees of an update, and what that takes."""
    start = torch.zeros_like(update)
    task = parts.Task(0, client, 1, round=round_index)
    result = exchange.upload(parts.ClientResult(task, start, update, 1, payload=parts.Payload(len(update), 64)))
    return result.delta, result.payload


# ---- values and bits ----


def test_the_largest_values_and_what_is_left() -> None:
    exchange = attached(parts.TopK(0.5), 4)
    values, payload = sent(exchange, torch.tensor([3.0, -1.0, 0.5, -4.0], dtype=torch.float64))
    assert values.tolist() == [3.0, 0.0, 0.0, -4.0]
    assert payload.bits == 2 * (64 + 2)  # a position among four takes two bits
    exchange.kept.commit()
    exchange.keep()
    # -1 and .5 are owed: 0 - 1, 1 + .5, ...
    values, _ = sent(exchange, torch.tensor([0.0, 0.0, 1.0, 1.25], dtype=torch.float64), round_index=1)
    assert values.tolist() == [0.0, 0.0, 1.5, 1.25]
    assert exchange.kept[0].tolist() == [0.0, -1.0, 0.0, 0.0]
    assert exchange.kept[1].tolist() == [0.0] * 4


def test_a_model_is_compressed_in_place_of_its_update() -> None:
    exchange = attached(parts.TopK(0.5, of="model"), 4)
    start = torch.tensor([5.0, 1.0, -2.0, 0.5], dtype=torch.float64)
    update = torch.tensor([-1.0, 0.5, -1.0, 4.0], dtype=torch.float64)
    result = exchange.upload(
        parts.ClientResult(parts.Task(0, 0, 1), start, start + update, 1, payload=parts.Payload(4, 64))
    )
    # The model is 4, 1.5, -3, 4.5; its two largest values are sent, and the others are 0.
    assert result.parameters.tolist() == [4.0, 0.0, 0.0, 4.5]
    assert result.payload.bits == 2 * (64 + 2)


def test_low_rank_products_are_of_all_tensors_that_travel() -> None:
    # The gradients of both weights are -4, the learning rate is 1/4, and one number is its own product of rank 1.
    module = BodyAndHead()
    exchange: list[parts.Exchange] = [parts.PersonalParameters("body.weight"), parts.LowRank(1, error_feedback=False)]
    fit_clients(FedAvg(1.0, exchange=exchange), module, quadratic_clients([1.0], [4.0]))
    assert float(module.head.weight.detach()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("exchange", "bits"),
    [
        # a thousand values of 64 bits; a position among them takes 10
        (parts.TopK(0.01), 10 * (64 + 10)),
        (parts.TopK(0.29), 290 * (64 + 10)),
        (parts.TopK(1e-9), 1 * (64 + 10)),
        (parts.RandomK(0.01), 10 * 64),
        (parts.QSGD(4), 1000 * 4 + 2 * 64),
        (parts.QSGD(2, bucket_size=100), 1000 * 2 + 10 * 64),
        (parts.SignSGD(), 1000 + 64),
        # 20 x 50 as 20 x 3 and 50 x 3; as it is where that is no more
        (parts.LowRank(3), 64 * 3 * 70),
        (parts.LowRank(15), 64 * 1000),
    ],
    ids=repr,
)
def test_bits_by_hand(exchange: parts.Compressor, bits: int) -> None:
    update = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, payload = sent(attached(exchange, 1000, shape=(20, 50)), update)
    assert payload.bits == bits


def test_signs_with_their_mean_magnitude() -> None:
    values, _ = sent(attached(parts.SignSGD(), 4), torch.tensor([3.0, -1.0, 0.0, -4.0], dtype=torch.float64))
    assert values.tolist() == [2.0, -2.0, 2.0, -2.0]


def test_a_matrix_of_the_rank_is_sent_exactly_and_another_almost_as_well_as_can_be() -> None:
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (20, 50))
    exact = (left @ right.T).flatten()
    values, _ = sent(attached(parts.LowRank(3), 1000, shape=(20, 50)), exact)
    assert torch.allclose(values, exact, rtol=0, atol=1e-9)
    noisy = exact + 0.1 * torch.randn(1000, generator=generator, dtype=torch.float64)
    values, _ = sent(attached(parts.LowRank(3, iterations=4), 1000, shape=(20, 50)), noisy)
    # factors of as many numbers are no smaller
    assert torch.equal(sent(attached(parts.LowRank(2), 16, shape=(4, 4)), exact[:16])[0], exact[:16])
    best = torch.linalg.svdvals(noisy.view(20, 50))[3:].norm()
    assert float(best) - 1e-12 <= float((values - noisy).norm()) <= 1.05 * float(best)


# ---- many seeds ----


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda: parts.RandomK(0.25), 3.0),  # n / k - 1
        (lambda: parts.QSGD(4, bucket_size=64), 8 / 7),  # min(d / s^2, sqrt(d) / s) with d = 64, s = 7
        (lambda: parts.QSGD(6, bucket_size=64), 64 / 31**2),
        # A rounding error has a variance of at most a quarter of a squared level, which is less than 1 / (4 s^2).
        (lambda: parts.QSGD(3, bucket_size=64, norm="max"), 64 / (4 * 3**2)),
    ],
    ids=["random", "4 bits", "6 bits", "3 bits of the largest"],
)
def test_random_compression_is_unbiased_with_a_bounded_error(make: Any, bound: float) -> None:
    update = torch.randn(64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    exchange, rounds = attached(make(), 64), 1000
    draws = torch.stack([sent(exchange, update, round_index=t)[0] for t in range(rounds)])
    errors = (draws - update).square().sum(1)
    assert float(errors.mean()) <= bound * float(update.square().sum()) * 1.05
    # each value's mean is within five standard errors
    limit = 5 * draws.std(0) / rounds**0.5 + 1e-12
    assert bool(((draws.mean(0) - update).abs() <= limit).all())
    if isinstance(exchange, parts.RandomK):  # the error is known, not only its bound
        assert float(errors.mean()) == pytest.approx(3 * float(update.square().sum()), rel=0.1)


def test_levels_reach_up_to_the_largest_magnitude() -> None:
    update = torch.tensor([3.0, -1.0, 2.0, 0.0, -3.0], dtype=torch.float64)
    # Three levels of 1: every value is one of them.
    values, payload = sent(attached(parts.QSGD(3, norm="max"), 5), update)
    assert values.tolist() == update.tolist()
    assert payload.bits == 5 * 3 + 64


@pytest.mark.parametrize(("size", "scale"), [(5, 1 + 5 / 3**2), (16, 1 + 4 / 3), (40, 1 + 4 / 3)])
def test_levels_whose_error_is_owed_are_sent_smaller_by_their_variance(size: int, scale: float) -> None:
    # The only value is the norm, the third of three levels. Their variance is at most min(d / 3^2, sqrt(d) / 3), and
    # d at most the 16 values of a bucket.
    update = torch.tensor([3.0] + [0.0] * (size - 1), dtype=torch.float64)
    values, _ = sent(attached(parts.QSGD(3, bucket_size=16, error_feedback=True), size), update)
    assert values.tolist() == pytest.approx([3.0 / scale] + [0.0] * (size - 1), abs=1e-15)


def test_values_at_drawn_places_are_sent_as_they_are_where_the_others_are_owed() -> None:
    update = torch.arange(1.0, 5.0, dtype=torch.float64)
    values, _ = sent(attached(parts.RandomK(0.5, error_feedback=True), 4), update)
    assert (values == update).sum() == (values == 0).sum() == 2


# ---- down ----


def test_clients_start_from_what_they_know_and_a_compressed_difference() -> None:
    # one client. It knows (0, 0) and goes to (3, 1). Round 2: it is sent 3 of (3, 1), starts from (3, 0), and goes to
    # (3, 1) again; round 3: it knows (3, 0) and is sent the 1
    clients, seen = clients_that_reach([[3.0, 1.0]], [1]), []

    class Watch(Quadratic):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            seen.append(self.w.detach().tolist())

    communication = Communication()
    callback = FedAvg(1.0, exchange=parts.TopK(0.5, link="down"), executor="sequential")
    fit_quadratic(callback, Watch(1.0, [0.0, 0.0]), clients, 3, communication)
    assert seen == [[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]]
    assert communication.values["fed/bytes_up"] == 3 * 16
    assert communication.values["fed/bytes_down"] == 3 * 65 / 8


# ---- with personal parameters ----


class Wide(Quadratic):
    """f_k = |body + head - c|^2 / 2 over three parameters and five."""

    def __init__(self) -> None:
        super().__init__(lr=0.25)
        del self.w
        self.body = nn.Parameter(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
        self.head = nn.Parameter(torch.zeros(5, dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (0.5 * (self.body.sum() + self.head.sum() - batch[1]) ** 2).mean() + 0.1 * self.body.square().sum()


@pytest.mark.parametrize(
    ("make", "bits"),
    [
        # of three values of 64 bits; a position among them takes 2
        (lambda: parts.TopK(0.34), 64 + 2),
        (parts.SignSGD, 3 + 64),
        (lambda: parts.QSGD(4), 3 * 4 + 64),
        (lambda: parts.RandomK(0.34), 64),
        (lambda: parts.Clip(0.5), 3 * 64),
    ],
)
def test_personal_values_are_neither_compressed_nor_counted_in_either_order(make: Any, bits: int) -> None:
    ends = []
    for exchange in ([make(), parts.PersonalParameters("head")], [parts.PersonalParameters("head"), make()]):
        clients, module, communication = quadratic_clients([1.0, 1.0], [4.0, 8.0]), Wide(), Communication()
        fit_clients(FedAvg(1.0, exchange=exchange, seed=2), module, clients, 3, communication)
        personal = next(each for each in exchange if isinstance(each, parts.PersonalParameters))
        heads = [personal.of_client(client)["head"].tolist() for client in (0, 1)]
        ends.append((module.body.tolist(), heads, communication.values["fed/bytes_up"]))
        assert all(len(set(head)) == 1 and head[0] != 0 for head in heads)  # all five move alike
    body, heads, bytes_up = zip(*ends, strict=True)
    if not isinstance(make(), (parts.QSGD, parts.RandomK)):  # these draw by their place in the list
        assert body[0] == pytest.approx(body[1], abs=1e-14)
        assert heads[0][0] == pytest.approx(heads[1][0], abs=1e-14)
    assert bytes_up[0] == bytes_up[1] == 3 * 2 * bits / 8
