"""Client-level differential privacy: accounting, noise, clipping, what is logged and kept, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import Net, data
from helpers.begun import UNIFORM, begun, federation_of
from helpers.rounds import begin_round
from helpers.toys import Quadratic, clients_that_reach, fit_clients, fit_quadratic, quadratic_clients
from helpers.watching import Watch
from lightning.pytorch.callbacks import Callback
from scipy.stats import norm
from torch import Tensor

from fl_lightning import FedAvg, parts
from fl_lightning.parts.exchanges.privacy.accounting import Mechanism, check_one_kind, epsilon_of, noise_for
from fl_lightning.testing.fits import fit

NOISELESS = {"noise_multiplier": 0.0, "delta": 1e-5}


# ---- accounting ----


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (5.0, 1, 1e-3), (0.3, 1, 1e-5), (10.0, 30, 1e-5), (2.0, 30, 1e-3)]
)
def test_full_participation_is_the_gaussian_mechanism(noise: float, rounds: int, delta: float) -> None:
    # T rounds are one with noise z / sqrt(T): epsilon is never too small, and delta right to a thousandth of itself
    epsilon = epsilon_of([(Mechanism(noise, 1.0), rounds)], delta)
    exact = delta_of_the_gaussian_mechanism(epsilon, noise / math.sqrt(rounds))
    assert (1 - 1e-3) * delta < exact <= delta
    # so is epsilon, which a closed form of delta brackets
    assert delta_of_the_gaussian_mechanism(epsilon - 1e-4, noise / math.sqrt(rounds)) > delta


def delta_of_the_gaussian_mechanism(epsilon: float, z: float) -> float:
    """Theorem 8 of Balle and Wang 2018, for a sum that one client changes by 1 at most."""
    return float(norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z))


@pytest.mark.parametrize("rounds", [1_000, *(pytest.param(n, marks=pytest.mark.long) for n in (3_000, 10_000))])
def test_the_textbook_setting_by_opacus(rounds: int) -> None:
    # q = 0.01, sigma = 1.1, delta = 1e-5
    from opacus.accountants import PRVAccountant
    from opacus.accountants import RDPAccountant as OpacusRDP

    ours = epsilon_of([(Mechanism(1.1, 0.01), rounds)], 1e-5)
    numerical, renyi = PRVAccountant(), OpacusRDP()
    numerical.history = renyi.history = [(1.1, 0.01, rounds)]
    assert ours == pytest.approx(numerical.get_epsilon(delta=1e-5), abs=0.02)
    assert ours < renyi.get_epsilon(delta=1e-5) < 1.2 * ours
    assert ours == pytest.approx({1_000: 1.516, 3_000: 2.686, 10_000: 5.193}[rounds], abs=0.01)


def test_rounds_of_several_kinds_compose() -> None:
    first, second = Mechanism(1.0, 0.1), Mechanism(2.0, 0.3)
    apart = [epsilon_of([(mechanism, 20)], 1e-5) for mechanism in (first, second)]
    both = epsilon_of([(first, 20), (second, 20)], 1e-5)
    assert max(apart) < both < sum(apart)
    assert both == pytest.approx(epsilon_of([(second, 20), (first, 10), (first, 10)], 1e-5), abs=5e-3)
    assert epsilon_of([], 1e-5) == 0.0
    assert epsilon_of([(first, 20), (Mechanism(0.0, 0.1), 1)], 1e-5) == math.inf
    # without noise it is infinite for both kinds of sampling
    check_one_kind([first, Mechanism(0.0, 0.1, 10, 100)])
    with pytest.raises(ValueError, match="epsilon"):
        epsilon_of([(first, 20), (Mechanism(1.0, 0.1, 10, 100), 1)], 1e-5)


def test_a_fixed_number_of_clients_has_an_accounting_of_its_own() -> None:
    # one client's other data change the sum by 2: more than one client more does, less than without sampling
    fixed = epsilon_of([(Mechanism(2.0, 0.1, 10, 100), 50)], 1e-5)
    assert epsilon_of([(Mechanism(2.0, 0.1), 50)], 1e-5) < fixed < epsilon_of([(Mechanism(1.0, 1.0), 50)], 1e-5)
    assert epsilon_of([(Mechanism(2.0, 0.1, 10, 100), rounds) for rounds in (20, 30)], 1e-5) == pytest.approx(fixed)


def test_the_least_noise_for_an_epsilon() -> None:
    mechanism = Mechanism(0.0, 0.1)
    noise = noise_for(4.0, 1e-5, mechanism, 100)
    spent = [epsilon_of([(Mechanism(z, 0.1), 100)], 1e-5) for z in (noise, 0.995 * noise)]
    assert spent[0] <= 4.0 < spent[1]
    # Without rounds it is the least that is of use, 0.05; halving finds it to a thousandth.
    assert noise_for(4.0, 1e-5, mechanism, 0) == 1639 / 2**15


# ---- clipping and noise ----


def attached(exchange: parts.DifferentialPrivacy, size: int, clients: int = 10, seed: int = 0, q: float = 1.0) -> Any:
    """Return the exchange in a federation whose model of ``size`` parameters is 0."""
    algorithm = FedAvg(sampler=parts.BernoulliSampler(q), weighting="uniform", exchange=exchange).algorithm
    algorithm.run = parts.Run.begin(algorithm, federation_of([1] * clients, size, seed=seed))
    begin_round(algorithm, 0)
    return exchange


def uploaded(exchange: parts.DifferentialPrivacy, update: Tensor, client: int = 0) -> Tensor:
    start = torch.zeros_like(update)
    return exchange.upload(parts.ClientResult(parts.Task(client, client, 1), start, update, 1)).delta


def test_an_update_is_as_long_as_the_clip_at_most() -> None:
    updates = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exchange = attached(parts.DifferentialPrivacy(1.5, noise_multiplier=1.0, delta=1e-5), 6)
    for whole in updates:
        short = uploaded(exchange, whole)
        assert float(short.norm()) == pytest.approx(min(1.5, float(whole.norm())), abs=1e-12)
        assert torch.allclose(short / short.norm(), whole / whole.norm())


def test_the_noise_has_the_deviation_that_is_accounted_for() -> None:
    size, rounds, total = 200, 300, torch.zeros(200, dtype=torch.float64)
    exchange = attached(parts.DifferentialPrivacy(0.5, noise_multiplier=1.2, delta=1e-5), size, clients=40, q=0.25)
    noise = []
    for t in range(rounds):
        exchange.begin_round(t)
        seen, divisor = exchange.on_sum(total, 7.0)
        exchange.keep()
        assert divisor == 10.0  # the expected number, whatever the true one is
        noise.append(seen)
    drawn = torch.stack(noise)
    # 60,000 numbers: their deviation is known to 0.3 per cent
    assert float(drawn.std()) == pytest.approx(1.2 * 0.5, rel=0.015)
    assert abs(float(drawn.mean())) < 5 * 0.6 / math.sqrt(size * rounds)
    correlation = float((drawn[:-1] * drawn[1:]).mean() / drawn.square().mean())
    assert abs(correlation) < 5 / math.sqrt(size * (rounds - 1))
    assert exchange.spent == pytest.approx(epsilon_of([(Mechanism(1.2, 0.25), rounds)], 1e-5))


def test_an_adaptive_bound_finds_the_quantile() -> None:
    # 60 of 100 clients answer, with norms of 0.04, 0.08, ... 2.40; the bound starts far below. Of the clients whose
    # updates are not clipped it finds 50: (50 - 60 / 2) / 100 + 1 / 2 = 0.7
    norms = torch.arange(1, 61, dtype=torch.float64) / 25
    exchange = parts.DifferentialPrivacy(0.1, noise_multiplier=1.0, delta=1e-5, adaptive_quantile=0.7)
    attached(exchange, 1, clients=100)
    for t in range(150):
        exchange.begin_round(t)
        for client, length in enumerate(norms):
            uploaded(exchange, length[None], client)
        exchange.on_sum(torch.zeros(1, dtype=torch.float64), 60.0)
        exchange.keep()
    assert exchange.clip_norm == pytest.approx(50 / 25, rel=0.08)
    assert exchange.values()["fed/clip_norm"] == exchange.clip_norm
    # z pays for the count too
    assert exchange.spent == pytest.approx(epsilon_of([(Mechanism(1.0, 1.0), 150)], 1e-5))


def test_the_count_takes_its_share_of_the_noise() -> None:
    # 1 / z^2 = 1 / z_updates^2 + 1 / (2 sigma_b)^2 with sigma_b = 10 / 20
    exchange = parts.DifferentialPrivacy(1.0, noise_multiplier=0.8, delta=1e-5, adaptive_quantile=0.5)
    seen, _ = attached(exchange, 20_000).on_sum(torch.zeros(20_000, dtype=torch.float64), 10.0)
    assert float(seen.std()) == pytest.approx((0.8**-2 - 1.0) ** -0.5, rel=0.03)
    # a cohort of 20: sigma_b = 1, and half the noise
    large = parts.DifferentialPrivacy(1.0, noise_multiplier=0.8, delta=1e-5, adaptive_quantile=0.5, noise_cohort=20)
    seen, _ = attached(large, 20_000).on_sum(torch.zeros(20_000, dtype=torch.float64), 10.0)
    assert float(seen.std()) == pytest.approx((0.8**-2 - 0.25) ** -0.5 / 2, rel=0.03)
    few = parts.DifferentialPrivacy(1.0, noise_multiplier=1.0, delta=1e-5, adaptive_quantile=0.5)
    with pytest.raises(ValueError, match="more than 10 clients in a round, or a smaller `noise_multiplier` than 1:"):
        attached(few, 4)


# ---- in fits ----


def test_a_client_that_knows_another_model_than_the_server_moves_it_by_the_clip_at_most() -> None:
    # clip 1/4. Two clients are sent 1 of 2 values. Round 1: both start at (0, 0) and move by 1/4 along their updates
    # (8, 6) and (0, 0) - so the server goes to (.1, .075). Round 2: they are sent .1 alone and start at (.1, 0); their
    # updates (7.9, 6) and (-.1, 0) become 1/4 (7.9, 6) / |(7.9, 6)| and (-.1, 0), and the server moves by their mean
    clients = clients_that_reach([[8.0, 6.0], [0.0, 0.0]], [1, 1])
    exchange = [parts.TopK(0.5, link="down"), parts.DifferentialPrivacy(0.25, **NOISELESS)]
    callback = FedAvg(1.0, weighting="uniform", exchange=exchange)
    weights = fit_quadratic(callback, Quadratic(1.0, [0.0, 0.0]), clients, 2)
    length = math.hypot(7.9, 6.0)
    moved = [(0.25 * 7.9 / length - 0.1) / 2, 0.25 * 6.0 / length / 2]
    assert weights.tolist() == pytest.approx([0.1 + moved[0], 0.075 + moved[1]], abs=1e-12)


def test_the_sum_is_divided_by_the_expected_number() -> None:
    # ten clients at 2 and clip 1, drawn with chance 1/2: the server moves by m / 5
    clients = clients_that_reach([[2.0]] * 10, [1] * 10)
    exchange = parts.DifferentialPrivacy(1.0, **NOISELESS)
    callback = FedAvg(sampler=parts.BernoulliSampler(0.5), weighting="uniform", exchange=exchange, seed=2)
    weights = fit_quadratic(callback, Quadratic(1.0, [0.0]), clients, 1)
    assert float(weights[0]) == pytest.approx(len(callback.algorithm.report.reported) / 5, abs=1e-12)
    assert len(callback.algorithm.report.reported) != 5


def test_an_empty_round_adds_its_noise() -> None:
    def fit(noise: float) -> tuple[Tensor, int]:
        exchange = parts.DifferentialPrivacy(1.0, noise_multiplier=noise, delta=1e-5)
        callback = FedAvg(sampler=parts.BernoulliSampler(1e-9), weighting="uniform", exchange=exchange)
        weights = fit_quadratic(callback, Quadratic(1.0, [0.0] * 3), clients_that_reach([[1.0] * 3], [1]), 2)
        return weights, callback.algorithm.server.moves

    weights, moves = fit(1.0)
    assert moves == 2
    assert float(weights.abs().min()) > 1e6  # the noise over the expected number, 1e-9
    assert fit(0.0)[0].tolist() == [0.0] * 3


def half_of_six(exchange: Any, rounds: int, *others: Callback, ckpt_path: Path | None = None) -> Any:
    """Train on clients that are drawn with chance 1/2; return the trainer."""
    clients = quadratic_clients([1.0] * 6, [1.0, 2.0, 3.0] * 2)
    callback = FedAvg(sampler=parts.BernoulliSampler(0.5), weighting="uniform", exchange=exchange, seed=1)
    return fit_clients(callback, Quadratic(0.3), clients, rounds, *others, ckpt_path=ckpt_path)


def test_epsilon_is_logged_shown_and_kept(tmp_path: Path) -> None:
    def exchange() -> parts.DifferentialPrivacy:
        options: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-5, "noise_cohort": 60}
        return parts.DifferentialPrivacy(0.5, adaptive_quantile=0.5, **options)

    trainer = half_of_six(whole := exchange(), 6, watching := Watch())
    # three clients are expected, and a twentieth of the noise that the figure counts: 1 * 3 / 60
    seen = [values["fed/epsilon"] for values in watching.values]
    assert seen == pytest.approx([epsilon_of([(Mechanism(3 / 60, 0.5), t)], 1e-5) for t in range(1, 7)])
    for shown in (trainer.callback_metrics, trainer.progress_bar_metrics):
        assert float(shown["fed/epsilon"]) == pytest.approx(seen[-1], rel=1e-6)
    half_of_six(exchange(), 3).save_checkpoint(tmp_path / "last.ckpt")
    half_of_six(again := exchange(), 6, ckpt_path=tmp_path / "last.ckpt")
    assert again.spent == whole.spent


def resumed(tmp_path: Path, first: Any, second: Any, q: float = 1.0) -> tuple[Quadratic, Any]:
    """Fit two rounds with one exchange and two more with another one; all four clients are at 8, or q of them."""
    clients, path = clients_that_reach([[8.0]] * 4, [1] * 4), tmp_path / "after_two.ckpt"
    module = Quadratic(1.0, [0.0])
    for rounds, exchange, chance in ((2, first, 1.0), (4, second, q)):
        callback = FedAvg(sampler=parts.BernoulliSampler(chance), weighting="uniform", exchange=exchange, seed=1)
        trainer = fit_clients(callback, module, clients, rounds, ckpt_path=path if rounds == 4 else None)
        trainer.save_checkpoint(path)
    return module, second


def test_local_noise_may_change_in_a_resumed_run(tmp_path: Path) -> None:
    noises = [parts.LocalDifferentialPrivacy(5.0, noise_multiplier=z, delta=1e-5) for z in (8.0, 4.0)]
    resumed(tmp_path, *noises)
    # two updates with noise z / 2 = 4 and two with 2: together one mechanism with 1 / z^2 = 2 / 16 + 2 / 4
    both = epsilon_of([(Mechanism((2 / 16 + 2 / 4) ** -0.5, 1.0), 1)], 1e-5)
    assert noises[1].spent == pytest.approx(both, rel=0.01)


def test_sampling_that_changes_during_a_fit_is_refused_where_epsilon_would_be_wrong() -> None:
    def fit(sampler: Any, after: Any, **noise: Any) -> parts.DifferentialPrivacy:
        exchange = parts.DifferentialPrivacy(1.0, delta=1e-3, **noise)
        callback = FedAvg(sampler=sampler, weighting="uniform", exchange=exchange)

        class Redraws(Quadratic):
            def on_train_epoch_end(self) -> None:
                callback.sampler = after

        fit_quadratic(callback, Redraws(0.1), clients_that_reach([[1.0]] * 4, [1] * 4), 2)
        return exchange

    some, more = parts.BernoulliSampler(0.1), parts.BernoulliSampler(0.5)
    with pytest.raises(ValueError, match=r"`epsilon=1.0` is spent by 2 rounds .*rate=0.1.*got round 2, .*rate=0.5"):
        fit(some, more, epsilon=1.0)
    with pytest.raises(ValueError, match="sampling"):
        fit(parts.UniformSampler(2), parts.UniformSampler(4), noise_multiplier=1.0)
    spent = fit(some, more, noise_multiplier=2.0).spent
    assert spent == pytest.approx(epsilon_of([(Mechanism(2.0, 0.1), 1), (Mechanism(2.0, 0.5), 1)], 1e-3))


@pytest.mark.parametrize("kind", [parts.DifferentialPrivacy, parts.LocalDifferentialPrivacy])
def test_the_accountant_must_be_there_and_begins_with_nothing(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(exchange=(part := kind(1.0, **NOISELESS)), **UNIFORM).run.begin_round(0)
    part.on_round_end()
    assert (part.spent, part.check_another_fit()) == (0.0, None)
    monkeypatch.setattr("fl_lightning.parts.exchanges.privacy.accounting.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"Install it by `pip install .dp-accounting"):
        kind(1.0, **NOISELESS)


@pytest.mark.parametrize("kind", [parts.DifferentialPrivacy, parts.LocalDifferentialPrivacy])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batch_statistics_are_refused(kind: Any, buffers: Any) -> None:
    callback = FedAvg(4, weighting="uniform", buffers=buffers, exchange=kind(1.0, **NOISELESS))
    with pytest.raises(ValueError, match=rf"`buffers` .* and {kind.__name__}\(clip=1.0, noise"):
        fit(callback, Net(), data(), 1)


def moved_bound(length: float, seed: int = 0) -> float:
    """Return the bound, 1 before, after a round of 100 clients with updates of this length."""
    exchange = parts.DifferentialPrivacy(1.0, noise_multiplier=1.0, delta=1e-5, adaptive_quantile=0.5)
    attached(exchange, 1, clients=100, seed=seed)
    for client in range(100):
        uploaded(exchange, torch.tensor([length], dtype=torch.float64), client)
    exchange.on_sum(torch.zeros(1, dtype=torch.float64), 100.0)
    exchange.keep()
    return exchange.clip_norm


def test_an_update_as_long_as_the_bound_is_not_clipped() -> None:
    # all of 100 clients are at the bound or just above it, a share of 1 or of 0; the noise of one seed is the same
    assert moved_bound(1.0) / moved_bound(1.0 + 1e-9) == pytest.approx(math.exp(-0.2))


@pytest.mark.parametrize("cohort", [None, 60])
def test_noise_for_an_epsilon_lasts_for_the_planned_rounds(cohort: int | None, tmp_path: Path) -> None:
    def exchange() -> parts.DifferentialPrivacy:
        return parts.DifferentialPrivacy(0.5, epsilon=3.0, delta=1e-3, noise_cohort=cohort)

    half_of_six(planned := exchange(), 5).save_checkpoint(tmp_path / "last.ckpt")
    assert 2.97 < planned.spent <= 3.0
    with pytest.raises(ValueError, match=r"`epsilon=3.0` is spent by 5 rounds like .*got round 6, like"):
        half_of_six(exchange(), 6, ckpt_path=tmp_path / "last.ckpt")


def test_a_resumed_run_takes_the_noise_and_the_bound_that_it_is_given(tmp_path: Path) -> None:
    module, _ = resumed(
        tmp_path, parts.DifferentialPrivacy(1.0, **NOISELESS), parts.DifferentialPrivacy(0.25, **NOISELESS)
    )
    assert module.w.tolist() == pytest.approx([1 + 1 + 0.25 + 0.25], abs=1e-12)
    first, second = (parts.DifferentialPrivacy(1.0, noise_multiplier=z, delta=1e-5) for z in (4.0, 2.0))
    _, exchange = resumed(tmp_path, first, second)
    # 2 / 16 + 2 / 4 = 10 / 16: all four rounds are one with noise sqrt(1.6)
    exact = delta_of_the_gaussian_mechanism(exchange.spent, math.sqrt(1.6))
    assert exact == pytest.approx(1e-5, rel=0.05)


def test_an_epsilon_is_not_overspent_when_a_resumed_run_asks_for_another_one(tmp_path: Path) -> None:
    def asked(epsilon: float, **options: Any) -> parts.DifferentialPrivacy:
        return parts.DifferentialPrivacy(1.0, epsilon=epsilon, delta=1e-3, **options)

    noisy = parts.DifferentialPrivacy(1.0, noise_multiplier=5.0, delta=1e-3)
    with pytest.raises(ValueError, match="epsilon"):
        resumed(tmp_path, asked(1.0), asked(2.0))
    with pytest.raises(ValueError, match=r"epsilon.* checkpoint's, \[None, 0.001\], got \[2.0, 0.001\]"):
        resumed(tmp_path, noisy, asked(2.0))
    for options, q in (({"noise_cohort": 8}, 1.0), ({}, 0.5)):
        with pytest.raises(ValueError, match="epsilon"):
            resumed(tmp_path, asked(1.0), asked(1.0, **options), q)
    assert resumed(tmp_path, asked(1.0), noisy)[1].spent > 1.0
