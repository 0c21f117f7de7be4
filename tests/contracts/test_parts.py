"""Every part, the library's and a user's, keeps one contract; a new one is a line in ``PARTS``.

The checks are those of ``fl_lightning.testing.check_part``. A part of an algorithm of ``test_algorithms.py`` keeps that
one's contract, and has no line here; nor has one that differs from a part that is here by a formula alone. An aspect
that fails is reported beside the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from contracts import user_parts as users
from helpers.algorithms import one_in
from helpers.examples import example

from fl_lightning import Federated, parts
from fl_lightning.testing.check_part import PartChecks
from fl_lightning.testing.fits import BodyAndHead, distance, six_clients

ROUNDS = 3
SPEEDS = [6, 5, 4, 3, 2, 1]
VALUES = 6 * 4 + 4 + 4 * 3 + 3  # of the model, all of 64 bits
WHOLE = 64 * VALUES
Options = dict[str, Any]


def buffered(**options: Any) -> parts.Asynchronous:
    return parts.Asynchronous(parts.VirtualClock(SPEEDS), buffer_size=2, **options)


def last_move() -> Options:
    server = example("last_move").Remembers()
    return {"server": server, "objective": example("last_move").LastMove(server, weight=0.5, reach=0.5)}


#: The options of :class:`Federated`, and the bits of one upload; ``None`` where scores are sent without one.
PARTS: dict[str, tuple[Callable[[], Options], int | None]] = {
    # who trains
    "ImportanceSampler, means": (
        lambda: {"sampler": parts.ImportanceSampler(3, score="sample", initial="uniform", gamma=None)}, WHOLE + 64,
    ),
    "PowerOfChoice": (lambda: {"sampler": parts.PowerOfChoice(3, 5)}, None),
    "ActiveSampler": (lambda: {"sampler": parts.ActiveSampler(3, alpha1=0.3, alpha2=1.0, alpha3=0.4)}, None),
    "Oort": (lambda: {"sampler": parts.Oort(3, parts.VirtualClock(SPEEDS), window=1)}, WHOLE + 64),
    "TierSampler": (
        lambda: {"sampler": parts.TierSampler(2, parts.VirtualClock(SPEEDS), num_tiers=2, interval=2)}, None,
    ),
    # when the server acts
    "Redistribution, parks": (
        lambda: {
            "schedule": parts.Redistribution(3, unequal="park"), "participation": parts.Participation(dropout=0.3),
        },
        WHOLE,
    ),
    "Asynchronous, waits": (lambda: {"schedule": buffered(wait_for_flush=True, once_per_buffer=True)}, WHOLE),
    "SampledStaleness": (lambda: {"schedule": parts.SampledStaleness(3)}, WHOLE),
    # what travels
    "TopK": (lambda: {"exchange": parts.TopK(0.3)}, 12 * (64 + 6)),  # a position among 43 takes 6 bits
    "RandomK": (lambda: {"exchange": parts.RandomK(0.3)}, 12 * 64),
    "QSGD": (lambda: {"exchange": parts.QSGD(4)}, 4 * VALUES + 64),
    "SignSGD": (lambda: {"exchange": parts.SignSGD()}, VALUES + 64),
    "LowRank": (lambda: {"exchange": parts.LowRank(1)}, 64 * (6 + 4 + 4 + 4 + 3 + 3)),
    "TopK, down": (lambda: {"exchange": parts.TopK(0.3, link="down")}, WHOLE),
    "TopK and QSGD": (
        lambda: {"exchange": [parts.TopK(0.3), parts.QSGD(4), parts.QSGD(8, link="down")]}, 12 * (4 + 6) + 64,
    ),
    "LocalDifferentialPrivacy": (
        lambda: {"exchange": parts.LocalDifferentialPrivacy(0.5, noise_multiplier=1.0, delta=1e-3)}, WHOLE,
    ),
    "SignFlipping": (lambda: {"exchange": parts.SignFlipping(0.4)}, WHOLE),
    "GaussianAttack": (lambda: {"exchange": parts.GaussianAttack([0, 2])}, WHOLE),
    "InnerProductManipulation": (lambda: {"exchange": parts.InnerProductManipulation([0, 2])}, WHOLE),
    # how results are merged
    "StaleMean": (lambda: {"aggregation": parts.StaleMean("uniform")}, WHOLE),
    "Median": (lambda: {"aggregation": parts.Median(before=parts.NearestNeighborMixing(1))}, WHOLE),
    "TrimmedMean": (lambda: {"aggregation": parts.TrimmedMean(0.25, before=parts.NormBounding(0.1))}, WHOLE),
    "CenteredClipping": (lambda: {"aggregation": parts.CenteredClipping(0.1, before=parts.Bucketing())}, WHOLE),
    "DynamicWeightMean": (
        lambda: {"schedule": buffered(stamp="upload"), "aggregation": parts.DynamicWeightMean(frequency="arrival")},
        WHOLE,
    ),
    # how the server moves
    "TorchServer": (lambda: {"server": parts.TorchServer(torch.optim.AdamW, lambda t: 0.1 / (1 + t))}, WHOLE),
    # the documentation's examples
    "RoundRobin": (lambda: {"sampler": example("round_robin").RoundRobin(3)}, WHOLE),
    "Quorum": (
        lambda: {"schedule": example("quorum").Quorum(3), "participation": parts.Participation(dropout=0.4)}, WHOLE,
    ),
    "HuberAnchor": (lambda: {"objective": example("huber_anchor").HuberAnchor(0.1)}, WHOLE),
    "KeptFeatures": (lambda: {"objective": example("kept_features").KeptFeatures(0.1)}, WHOLE),
    "LastMove": (last_move, WHOLE),
    "TopK of the docs": (lambda: {"exchange": example("top_k").TopK(10)}, 10 * (64 + 6)),
    "PersonalHead": (lambda: {"exchange": example("personal_head").PersonalHead()}, 64 * 28),
    "NormalizedMean of the docs": (lambda: {"aggregation": example("normalized_mean").NormalizedMean()}, WHOLE),
    "CoordinateMedian": (lambda: {"aggregation": example("coordinate_median").CoordinateMedian()}, WHOLE),
    "SignDescent": (lambda: {"server": example("sign_descent").SignDescent(0.01)}, WHOLE),
    "ReversedOrder": (lambda: {"executor": example("reversed_order").ReversedOrder()}, WHOLE),
    # a user's, with a state
    "state of an exchange": (lambda: {"exchange": users.FadingUpload()}, WHOLE),
    "state of a schedule": (lambda: {"schedule": users.CountedCycle(2)}, WHOLE),
    "states of a buffer's parts": (
        lambda: {"schedule": buffered(), "aggregation": users.FadingMerge(), "server": users.FadingStep()}, WHOLE,
    ),
    # with vectors of clients
    "a neighbour's vector, circulating": (
        lambda: {"exchange": users.Neighbour(), "schedule": parts.Redistribution(2)}, WHOLE,
    ),
    "vectors of a server": (lambda: {"server": users.Slowed()}, WHOLE),
    # with draws
    "draws of a sampler": (lambda: {"sampler": users.DrawnCohort()}, None),
    "draws of an exchange": (lambda: {"exchange": users.DrawnWay()}, WHOLE),
    "draws of a fit's start": (lambda: {"exchange": users.Sketch()}, WHOLE),
    "draws of asynchronous parts": (
        lambda: {"schedule": buffered(), "exchange": users.DrawnWay(), "server": users.DrawnStep()}, WHOLE,
    ),
    # around other parts, and with more in a result
    "a schedule in another": (lambda: {"schedule": users.PlayedBy(parts.Redistribution(2))}, WHOLE),
    "objectives in another": (
        lambda: {"objective": users.Together(parts.ControlVariates(), parts.Proximal(0.5)), "local_steps": 5}, WHOLE,
    ),
    "an exchange in another": (lambda: {"exchange": users.Doubled(parts.PersonalParameters("head"))}, 64 * 28),
    "claims, circulating": (
        lambda: {"exchange": users.Claims(), "aggregation": users.ByClaims(), "schedule": parts.Redistribution(2)},
        WHOLE,
    ),
}  # fmt: skip


def make(name: str) -> Federated:
    options = PARTS[name][0]()
    clients = {} if "sampler" in options else {"clients_per_round": 4}
    return Federated(**{"seed": 1, "executor": "sequential", **clients, **options})


@pytest.fixture(scope="module")
def checks_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PartChecks]:
    """Return the checks of a part, whose tests share a fit to which nothing happens."""

    def checks(name: str) -> PartChecks:
        return PartChecks(lambda: make(name), BodyAndHead, six_clients, ROUNDS, tmp_path_factory.mktemp("checks"))

    return cache(checks)


@pytest.mark.parametrize("name", PARTS)
def test_a_part(name: str, checks_of: Callable[[str], PartChecks], subtests: pytest.Subtests) -> None:
    checks = checks_of(name)
    with subtests.test("its results are numbers, which have left the first model"):
        checks.trains()
        assert distance(checks.whole[0].rounds[-1], BodyAndHead().state_dict()) > 1e-4
    with subtests.test("its bits are counted"):
        traffic, bits = checks.whole[1].callbacks[0].algorithm.traffic, PARTS[name][1]
        assert traffic.models_down >= traffic.models_up > 0
        assert traffic.bits_up == traffic.models_up * bits if bits else traffic.bits_up > traffic.models_up * WHOLE
    with subtests.test("broken off in mid-round and resumed, it ends with the same bits"):
        assert checks.resumes().was_made


@pytest.mark.parametrize("name", one_in(16, PARTS))
def test_other_fits_of_a_part(name: str, checks_of: Callable[[str], PartChecks], subtests: pytest.Subtests) -> None:
    checks = checks_of(name)
    with subtests.test("broken off in mid-round, it goes on as if nothing had happened"):
        assert checks.rolls_back().was_made
    with subtests.test("a second fit of its callback is as the first"):
        checks.fits_again()
    with subtests.test("declared tensors are not written to"):
        checks.assigns()
    with subtests.test("stacked clients train as one after the other"):
        checks.stacks()


@pytest.mark.parametrize("name", one_in(11, PARTS))
def test_two_processes_end_as_one_does(name: str, checks_of: Callable[[str], PartChecks]) -> None:
    assert checks_of(name).two_processes().was_made
