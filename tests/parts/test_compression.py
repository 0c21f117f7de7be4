"""Compression: values and bits by hand, unbiasedness, error bounds, error feedback, both ways, refusals."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import Net
from helpers.algorithms import data as six_clients
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from fl_lightning import FedAvg, FedBuff, RADFed, TensorDataModule
from fl_lightning.diagnostics import Communication
from fl_lightning.parts import (
    QSGD,
    ClientResult,
    Clip,
    Compressor,
    Exchange,
    Federation,
    GaussianAttack,
    LocalDifferentialPrivacy,
    LowRank,
    Payload,
    PersonalParameters,
    RandomK,
    SignFlipping,
    SignSGD,
    Task,
    TopK,
)
from fl_lightning.parts.exchange import Chain


def attached(exchange: Exchange, size: int, *, shape: tuple[int, ...] | None = None, seed: int = 0) -> Exchange:
    """Return an exchange in a federation of ten clients and a model of one tensor that is 0."""
    shapes = [torch.Size(shape or (size,))]
    model = torch.zeros(size, dtype=torch.float64)
    sizes = torch.ones(10).numpy()
    Chain([exchange]).attach(Federation(sizes, model, [size], seed, names=["w"], shapes=shapes, bits_per_value=64))
    return exchange


def sent(exchange: Exchange, update: Tensor, client: int = 0, round_index: int = 0) -> tuple[Tensor, Payload]:
    """Return what the server sees of an update, and what that takes."""
    start = torch.zeros_like(update)
    task = Task(0, client, 1, round=round_index)
    result = exchange.upload(ClientResult(task, start, update, 1, payload=Payload(len(update), 64)))
    return result.delta, result.payload


# ---- values and bits ----


def test_the_largest_values_and_what_is_left() -> None:
    exchange = attached(TopK(0.5), 4)
    values, payload = sent(exchange, torch.tensor([3.0, -1.0, 0.5, -4.0], dtype=torch.float64))
    assert values.tolist() == [3.0, 0.0, 0.0, -4.0]
    assert payload.bits == 2 * (64 + 2)  # a position among four takes two bits
    exchange.on_round_end()
    # -1 and .5 are owed: 0 - 1, 1 + .5, ...
    values, _ = sent(exchange, torch.tensor([0.0, 0.0, 1.0, 1.25], dtype=torch.float64), round_index=1)
    assert values.tolist() == [0.0, 0.0, 1.5, 1.25]
    assert exchange.states is not None
    assert exchange.states[0].tolist() == [0.0, -1.0, 0.0, 0.0]
    assert exchange.states[1].tolist() == [0.0] * 4


def test_nobody_owes_anything_at_first_whatever_the_model_is() -> None:
    model = torch.tensor([5.0, 5.0], dtype=torch.float64)
    exchange = TopK(0.5)
    Chain([exchange]).attach(Federation(torch.ones(2).numpy(), model, [2], names=["w"], shapes=[torch.Size([2])]))
    trained = model + torch.tensor([1.0, 2.0], dtype=torch.float64)
    result = exchange.upload(ClientResult(Task(0, 0, 1), model, trained, 1, payload=Payload(2, 64)))
    assert result.delta.tolist() == [0.0, 2.0]
    assert exchange.states is not None
    assert exchange.states[0].tolist() == [1.0, 0.0]


def test_who_keeps_what_was_not_sent() -> None:
    # up: those whose message is not right on average; down: all, as clients must know what the server thinks they know
    makers: list[Any] = [lambda **k: TopK(0.1, **k), lambda **k: RandomK(0.1, **k), lambda **k: QSGD(4, **k)]
    assert [make().error_feedback for make in makers] == [True, False, False]
    assert [make(link="down").error_feedback for make in makers] == [True, True, True]


@pytest.mark.parametrize(
    ("exchange", "bits"),
    [
        # a thousand values of 64 bits; a position among them takes 10
        (TopK(0.01), 10 * (64 + 10)),
        (TopK(0.29), 290 * (64 + 10)),
        (TopK(1e-9), 1 * (64 + 10)),
        (RandomK(0.01), 10 * 64),
        (QSGD(4), 1000 * 4 + 2 * 64),
        (QSGD(2, bucket_size=100), 1000 * 2 + 10 * 64),
        (SignSGD(), 1000 + 64),
        # 20 x 50 as 20 x 3 and 50 x 3; as it is where that is no more
        (LowRank(3), 64 * 3 * 70),
        (LowRank(15), 64 * 1000),
    ],
    ids=repr,
)
def test_bits_by_hand(exchange: Compressor, bits: int) -> None:
    update = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, payload = sent(attached(exchange, 1000, shape=(20, 50)), update)
    assert payload.bits == bits


def test_a_list_sends_the_rounded_values_of_the_largest() -> None:
    chain = Chain([TopK(0.01), QSGD(4)])
    model = torch.zeros(1000, dtype=torch.float64)
    chain.attach(Federation(torch.ones(1).numpy(), model, [1000], names=["w"], shapes=[torch.Size([1000])]))
    update = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, payload = sent(chain, update)
    assert payload.bits == 10 * (4 + 10) + 64  # ten values of four bits with positions of ten, one norm
    largest = update.abs().topk(10).indices
    assert set(values.nonzero().flatten().tolist()) <= set(largest.tolist())
    assert float((values - update)[largest].norm()) <= float(update[largest].norm()) * (10**0.5 / 7) ** 0.5


def test_signs_with_their_mean_magnitude() -> None:
    values, _ = sent(attached(SignSGD(), 4), torch.tensor([3.0, -1.0, 0.0, -4.0], dtype=torch.float64))
    assert values.tolist() == [2.0, -2.0, 2.0, -2.0]


def test_a_matrix_of_the_rank_is_sent_exactly_and_another_almost_as_well_as_can_be() -> None:
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (20, 50))
    exact = (left @ right.T).flatten()
    values, _ = sent(attached(LowRank(3), 1000, shape=(20, 50)), exact)
    assert torch.allclose(values, exact, rtol=0, atol=1e-9)
    noisy = exact + 0.1 * torch.randn(1000, generator=generator, dtype=torch.float64)
    values, _ = sent(attached(LowRank(3, iterations=4), 1000, shape=(20, 50)), noisy)
    best = torch.linalg.svdvals(noisy.view(20, 50))[3:].norm()
    assert float(best) <= float((values - noisy).norm()) <= 1.05 * float(best)


# ---- many seeds ----


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda: RandomK(0.25), 3.0),  # n / k - 1
        (lambda: QSGD(4, bucket_size=64), 8 / 7),  # min(d / s^2, sqrt(d) / s) with d = 64, s = 7
        (lambda: QSGD(6, bucket_size=64), 64 / 31**2),
    ],
    ids=["random", "4 bits", "6 bits"],
)
def test_random_compression_is_unbiased_with_a_bounded_error(make: Any, bound: float) -> None:
    update = torch.randn(64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    exchange, rounds = attached(make(), 64), 4000
    draws = torch.stack([sent(exchange, update, round_index=t)[0] for t in range(rounds)])
    errors = (draws - update).square().sum(1)
    assert float(errors.mean()) <= bound * float(update.square().sum()) * 1.05
    # each value's mean is within five standard errors
    limit = 5 * draws.std(0) / rounds**0.5 + 1e-12
    assert bool(((draws.mean(0) - update).abs() <= limit).all())
    if isinstance(exchange, RandomK):  # the error is known, not only its bound
        assert float(errors.mean()) == pytest.approx(3 * float(update.square().sum()), rel=0.05)


def test_rounding_with_error_feedback_is_shortened_so_that_it_owes_less_than_the_update() -> None:
    # 64 values and s = 1: min(64, 8) = 8, so the rounded values are divided by 9, and on average 8 / 9 of |v|^2 is owed
    update = torch.randn(64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    exchange, rounds = attached(QSGD(2, error_feedback=True), 64), 2000
    draws = torch.empty(rounds, 64, dtype=torch.float64)
    for t in range(rounds):
        draws[t] = sent(exchange, update, round_index=t)[0]
        assert exchange.states is not None
        exchange.states.on_round_abort()  # nothing is owed
    assert set((draws.abs() * 9 / update.norm()).flatten().round(decimals=9).tolist()) == {0.0, 1.0}
    assert float((draws - update).square().sum(1).mean()) <= 8 / 9 * float(update.square().sum())
    limit = 5 * draws.std(0) / rounds**0.5 + 1e-12
    assert bool(((draws.mean(0) - update / 9).abs() <= limit).all())


@pytest.mark.parametrize("exchange", [QSGD(2, error_feedback=True), QSGD(2, link="down")], ids=repr)
def test_few_bits_with_error_feedback_do_not_diverge(exchange: Compressor) -> None:
    # 100 values of two bits, all clients' optima 1: the distance to them is 10 at first
    clients = clients_that_reach([[1.0] * 100] * 2, [1, 1])
    weights = fit_quadratic(FedAvg(1.0, exchange=exchange, seed=1), Quadratic(0.2, [0.0] * 100), clients, 150)
    assert float((weights - 1).norm()) < 1.0


def test_clients_and_rounds_draw_differently_and_a_seed_again_the_same() -> None:
    update = torch.randn(64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    one, other = attached(RandomK(0.1), 64), attached(RandomK(0.1), 64, seed=1)
    assert torch.equal(sent(one, update)[0], sent(one, update)[0])
    for different in (sent(one, update, client=1), sent(one, update, round_index=1), sent(other, update)):
        assert not torch.equal(sent(one, update)[0], different[0])


# ---- error feedback in fits ----


class Tap(Exchange):
    """Adds up the updates of each client that pass."""

    def __init__(self) -> None:
        self.total: dict[int, Tensor] = {}

    def upload(self, result: ClientResult) -> ClientResult:
        self.total[result.task.client] = self.total.get(result.task.client, 0) + result.delta
        return result

    def state_dict(self) -> dict[str, Any]:
        return {str(client): total for client, total in self.total.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = {int(client): total for client, total in state.items()}


@pytest.mark.parametrize("make", [lambda: TopK(0.1), SignSGD, lambda: QSGD(2, error_feedback=True)])
def test_what_was_sent_and_what_is_owed_is_what_was_to_be_sent(make: Any, tmp_path: Path) -> None:
    # four of six clients in a round, killed in the middle of round 5 and resumed from the fourth round's end
    def fit(rounds: int, killed: bool = False, ckpt: Path | None = None) -> tuple[Tap, Compressor, Tap]:
        before, exchange, after = Tap(), make(), Tap()
        callback = FedAvg(4, exchange=[before, exchange, after], seed=3)
        save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, save], enable_checkpointing=True)
        module = Dying() if killed else Net()
        trainer.fit(module, datamodule=six_clients(), ckpt_path=ckpt)
        return before, exchange, after

    whole = fit(8)
    child = os.fork()
    if not child:
        fit(8, killed=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before, exchange, after = fit(8, ckpt=tmp_path / "last.ckpt")
    assert exchange.states is not None
    assert whole[1].states is not None
    assert len(before.total) == 6
    for client, total in before.total.items():
        assert torch.allclose(after.total[client] + exchange.states[client], total, rtol=0, atol=1e-9)
        assert torch.equal(exchange.states[client], whole[1].states[client])


class Dying(Net):
    """Dies in the middle of round 4."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.current_epoch == 4 and batch_idx == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


# ---- down ----


def test_clients_start_from_what_they_know_and_a_compressed_difference() -> None:
    # one client. It knows (0, 0) and goes to (3, 1). Round 2: it is sent 3 of (3, 1), starts from (3, 0), and goes to
    # (3, 1) again; round 3: it knows (3, 0) and is sent the 1
    clients, seen = clients_that_reach([[3.0, 1.0]], [1]), []

    class Watch(Quadratic):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            seen.append(self.w.detach().tolist())

    communication = Communication()
    callback = FedAvg(1.0, exchange=TopK(0.5, link="down"), executor="sequential")
    data = TensorDataModule(clients=clients, batch_size=None, shuffle=False)
    quiet_trainer(max_epochs=3, callbacks=[callback, communication]).fit(Watch(1.0, [0.0, 0.0]), datamodule=data)
    assert seen == [[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]]
    assert communication.values["fed/bytes_up"] == 3 * 16
    assert communication.values["fed/bytes_down"] == 3 * 65 / 8


@pytest.mark.parametrize(
    "make", [lambda **k: FedAvg(2, **k), lambda **k: RADFed(2, 2, **k), lambda **k: FedBuff(2, 3, **k)]
)
@pytest.mark.parametrize("down", [QSGD(8, link="down"), TopK(0.5, link="down")], ids=repr)
def test_both_ways_under_every_schedule(make: Any, down: Compressor) -> None:
    # equal optima, so that every algorithm ends there whatever is left out on the way
    clients = clients_that_reach([[3.0, 1.0]] * 3, [1] * 3)
    weights = fit_quadratic(make(exchange=[TopK(0.5), down], seed=1), Quadratic(0.5, [0.0, 0.0]), clients, 60)
    assert weights.tolist() == pytest.approx([3.0, 1.0], abs=1e-3)


# ---- with personal parameters ----


class BodyAndHead(Quadratic):
    """f_k = |body + head - c|^2 / 2 over three parameters each."""

    def __init__(self) -> None:
        super().__init__(lr=0.25)
        del self.w
        self.body = nn.Parameter(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
        self.head = nn.Parameter(torch.zeros(5, dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (0.5 * (self.body.sum() + self.head.sum() - batch[1]) ** 2).mean() + 0.1 * self.body.square().sum()


@pytest.mark.parametrize(
    "make", [lambda: TopK(0.34), SignSGD, lambda: QSGD(4), lambda: RandomK(0.34), lambda: Clip(0.5)]
)
def test_personal_values_are_neither_compressed_nor_counted_in_either_order(make: Any) -> None:
    ends = []
    for exchange in ([make(), PersonalParameters("head")], [PersonalParameters("head"), make()]):
        data = TensorDataModule(clients=quadratic_clients([1.0, 1.0], [4.0, 8.0]), batch_size=None)
        module, communication = BodyAndHead(), Communication()
        quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, exchange=exchange, seed=2), communication]).fit(
            module, datamodule=data
        )
        personal = next(each for each in exchange if isinstance(each, PersonalParameters))
        heads = [personal.of_client(client)["head"].tolist() for client in (0, 1)]
        ends.append((module.body.tolist(), heads, communication.values["fed/bytes_up"]))
        assert all(len(set(head)) == 1 and head[0] != 0 for head in heads)  # all five move alike
    body, heads, bytes_up = zip(*ends, strict=True)
    if not isinstance(make(), (QSGD, RandomK)):  # these draw by their place in the list
        assert body[0] == pytest.approx(body[1], abs=1e-14)
        assert heads[0][0] == pytest.approx(heads[1][0], abs=1e-14)
    assert bytes_up[0] == bytes_up[1] <= 3 * 2 * 3 * 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), r"`fraction` must be a number in \(0, 1\], got 0\. 0\.01 sends"),
        (lambda: RandomK(1.5), r"`fraction` must be a number in \(0, 1\], got 1\.5"),
        (lambda: QSGD(1), r"`bits` must be a whole number of at least 2, got 1.*SignSGD\(\) sends signs alone"),
        (lambda: QSGD(17), r"`bits` must be at most 16, got 17"),
        (lambda: LowRank(0), r"`rank` must be a whole number of at least 1, got 0"),
        (lambda: SignSGD(link="sideways"), r"`link` must be one of 'up', 'down', got 'sideways'"),  # type: ignore[arg-type]
        (lambda: TopK(0.1, error_feedback=False, link="down"), r"`error_feedback=False` is not possible with `link="),
        (
            lambda: FedAvg(exchange=[TopK(0.1, link="down"), QSGD(4, link="down")]),
            r"`exchange` has 2 compressions on the way down, TopK\(.*\) and QSGD\(.*\).* Keep one of them",
        ),
        *(
            (lambda pair=pair: FedAvg(exchange=pair), r"has .*LowRank\(rank=2\).* on the same way.* Keep one of them")
            for pair in ([LowRank(2), TopK(0.1)], [LowRank(2), QSGD(4)], [SignSGD(), LowRank(2)])
        ),
        *(
            (lambda last=last: FedAvg(exchange=[TopK(0.1), Clip(1.0), last]), r"after TopK\(fr.*\): it changes values")
            for last in (GaussianAttack([0]), LocalDifferentialPrivacy(1.0, noise_multiplier=1.0, delta=1e-5))
        ),
        (lambda: FedAvg(exchange=[RandomK(0.1), SignSGD()]), r"SignSGD\(\) after RandomK\(.*`error_feedback=False`"),
    ],
)
def test_values_that_cannot_work(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_lists_whose_bits_are_counted() -> None:
    local = LocalDifferentialPrivacy(1.0, noise_multiplier=1.0, delta=1e-5)
    for exchange in (
        [GaussianAttack([0]), local, TopK(0.1), SignFlipping([1]), SignSGD(error_feedback=False)],
        [TopK(0.1, link="down"), local, LowRank(2)],
    ):
        assert FedAvg(exchange=exchange).exchange is not None


def test_an_update_too_large_to_be_rounded_is_told_as_such() -> None:
    clients = clients_that_reach([[1.0], [1e200]], [1, 1])
    told = r"The update of client 1 is too large for QSGD\(bits=4, .*its largest value is 1e\+200, .*of torch.float64"
    with pytest.raises(FloatingPointError, match=rf"{told}\. Lower the learning rate or clip gradients, or put Clip"):
        fit_quadratic(FedAvg(1.0, exchange=QSGD(4)), Quadratic(1.0, [0.0]), clients, rounds=1)


def test_low_rank_comes_first() -> None:
    chain = Chain([TopK(0.1), LowRank(2)])
    model = torch.zeros(100, dtype=torch.float64)
    chain.attach(Federation(torch.ones(1).numpy(), model, [100], names=["w"], shapes=[torch.Size([10, 10])]))
    with pytest.raises(ValueError, match=r"LowRank\(rank=2\) needs whole tensors.*Put it first in `exchange`"):
        sent(chain, torch.randn(100, dtype=torch.float64))
