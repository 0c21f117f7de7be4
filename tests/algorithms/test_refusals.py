"""Combinations of parts that cannot work are refused, where an algorithm is made, by an error that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

from fl_lightning import (
    IFCA,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDyn,
    Federated,
    FedNova,
    FedProto,
    ImportanceSampler,
    QFedAvg,
    RADFed,
    Scaffold,
)
from fl_lightning.parts import (
    QSGD,
    Asynchronous,
    BernoulliSampler,
    Clip,
    ControlVariates,
    CurrentMean,
    DifferentialPrivacy,
    DynamicRegularizer,
    DynamicServer,
    FairMean,
    GaussianAttack,
    InnerProductManipulation,
    LocalDifferentialPrivacy,
    LowRank,
    MeasuredLoss,
    Median,
    Mimic,
    Mixing,
    NormalizedMean,
    Participation,
    Proximal,
    RandomK,
    Redistribution,
    SecureAggregation,
    SignSGD,
    StaleMean,
    TopK,
    UniformSampler,
    VirtualClock,
    WeightedMean,
)

UNIFORM: dict[str, Any] = {"weighting": "uniform"}
DROPS = Participation(dropout=0.5)


def private(kind: Any = DifferentialPrivacy) -> Any:
    return kind(1.0, noise_multiplier=1.0, delta=1e-5)


def local() -> Any:
    return private(LocalDifferentialPrivacy)


def measured(**parts: Any) -> Federated:
    loss = MeasuredLoss()
    return Federated(**{"objective": loss, "aggregation": FairMean(1.0, loss), **parts})


def arriving(**parts: Any) -> Federated:
    return Federated(1, schedule=Asynchronous(VirtualClock()), **parts)


#: What cannot be made, and a word of its error.
REFUSED: list[tuple[Callable[[], object], str]] = [
    # who trains
    (lambda: FedAvg(0.5, sampler=UniformSampler(2)), "clients_per_round"),
    (lambda: FedAvg(1, sampler=BernoulliSampler(1.0)), "clients_per_round"),
    (lambda: arriving(sampler=ImportanceSampler(2)), "sampler"),
    (lambda: arriving(participation=DROPS), "participation"),
    (lambda: RADFed(2, participation=DROPS), "participation"),
    (lambda: RADFed(2, participation=Participation(stragglers=0.5, drop_stragglers=True)), "participation"),
    (lambda: RADFed(2, unequal="park", extend_cycle=True), "extend_cycle"),
    # when the server acts
    (lambda: FedAsync(1, speeds=[1], clock=VirtualClock()), "speeds"),
    (lambda: FedAsync(1, history=3, speeds=[1]), "history"),
    (lambda: FedBuff(2, server_lr=1.0, server=Mixing()), "server_lr"),
    (lambda: FedBuff(3, 2, aggregation=CurrentMean()), "once_per_buffer"),
    (lambda: FedBuff(2, staleness=lambda late: float(late == 0), average_staleness=1), "average_staleness"),
    (lambda: VirtualClock(online={2: [(3, 1)]}), "online"),
    # what a client minimises
    (lambda: Federated(1.0, server=DynamicServer(DynamicRegularizer(0.1))), "objective"),
    (
        lambda: Federated(1.0, objective=DynamicRegularizer(0.2), server=DynamicServer(DynamicRegularizer(0.1))),
        "objective",
    ),
    (lambda: RADFed(2, local=DynamicRegularizer(0.1)), "DynamicRegularizer"),
    (lambda: RADFed(2, local=ControlVariates()), "ControlVariates"),
    (lambda: arriving(objective=ControlVariates()), "ControlVariates"),
    (lambda: measured(objective=Proximal(0.1)), "measured"),
    (lambda: measured(objective=MeasuredLoss()), "MeasuredLoss"),
    (lambda: measured(schedule=Redistribution(2)), "FairMean"),
    # how results are merged
    (lambda: RADFed(2, 2, aggregation=CurrentMean()), "aggregation"),
    (lambda: RADFed(2, 2, aggregation=StaleMean()), "aggregation"),
    (lambda: RADFed(2, aggregation=NormalizedMean(0.9)), "NormalizedMean"),
    (lambda: RADFed(2, 1.0, local=Proximal(0.3), aggregation=NormalizedMean()), "NormalizedMean"),
    (lambda: Federated(1.0, aggregation=NormalizedMean(mu=2.0)), "mu"),
    (lambda: Federated(1.0, objective=Proximal(1.0), aggregation=NormalizedMean(mu=2.0)), "mu"),
    (lambda: Federated(1.0, objective=Proximal(0.3), aggregation=NormalizedMean()), "mu"),
    (lambda: Federated(1.0, objective=Proximal(lambda r: 0.3), aggregation=NormalizedMean(mu=0.3)), "mu"),
    (lambda: FedNova(momentum=0.9, aggregation=Median()), "momentum"),
    (lambda: QFedAvg(5.0, 1.0, aggregation=Median()), "q="),
    (lambda: IFCA(2, aggregation=Median()), "aggregation"),
    (lambda: IFCA(2, aggregation=WeightedMean("uniform")), "aggregation"),
    # compression
    (lambda: FedAvg(exchange=[TopK(0.1, link="down"), QSGD(4, link="down")]), "exchange"),
    (lambda: FedAvg(exchange=[LowRank(2), QSGD(4)]), "LowRank"),
    (lambda: FedAvg(exchange=[TopK(0.1), GaussianAttack([0])]), "TopK"),
    (lambda: FedAvg(exchange=[TopK(0.1), local()]), "TopK"),
    (lambda: FedAvg(exchange=[RandomK(0.1), SignSGD()]), "SignSGD"),
    (lambda: TopK(0.1, error_feedback=False, link="down"), "error_feedback"),
    # attacks
    (lambda: RADFed(2, exchange=Mimic([1])), "Redistribution"),
    (lambda: FedAvg(exchange=[Mimic([1]), private()], **UNIFORM), "DifferentialPrivacy"),
    (lambda: FedAvg(1.0, evaluate="all", exchange=InnerProductManipulation([0])), "evaluate"),
    # privacy
    (lambda: DifferentialPrivacy(float("inf"), noise_multiplier=1.0, delta=1e-5), "clip"),
    (lambda: FedAvg(exchange=private()), "weight"),
    (lambda: FedAvg(exchange=private(), aggregation=Median()), "Median"),
    (lambda: FedAvg(exchange=private(), partial="stale", **UNIFORM), "StaleMean"),
    (lambda: FedNova(exchange=private(), **UNIFORM), "NormalizedMean"),
    (lambda: QFedAvg(1.0, exchange=private()), "FairMean"),
    (lambda: FedAvg(exchange=[private(), TopK(0.1)], **UNIFORM), "last"),
    (lambda: RADFed(3, exchange=private()), "noise"),
    (lambda: FedBuff(3, exchange=private()), "StalenessWeightedDeltas"),
    (lambda: FedAvg(sampler=ImportanceSampler(0.1), exchange=private(), **UNIFORM), "ImportanceSampler"),
    (lambda: Scaffold(exchange=private()), "clients"),
    (lambda: FedDyn(exchange=private()), "clients"),
    (lambda: Federated(objective=MeasuredLoss(), exchange=private(), aggregation=WeightedMean("uniform")), "losses"),
    (lambda: FedProto(exchange=private(), aggregation=WeightedMean("uniform")), "Prototypes"),
    (lambda: FedAvg(exchange=private(), participation=Participation(stragglers=0.5), **UNIFORM), "presence"),
    (lambda: FedAvg(exchange=private(), participation=DROPS, **UNIFORM), "drop-out"),
    *((lambda make=make: make(exchange=local()), "LocalDifferentialPrivacy") for make in (Scaffold, FedDyn, FedProto)),
    (lambda: QFedAvg(1.0, exchange=local()), "LocalDifferentialPrivacy"),
    (lambda: FedAvg(sampler=ImportanceSampler(0.1), exchange=local()), "LocalDifferentialPrivacy"),
    # sums
    (lambda: SecureAggregation(1.0, bits=8, precision=9), "precision"),
    (lambda: FedAvg(exchange=SecureAggregation(1.0)), "WeightedMean"),
    (lambda: FedAvg(exchange=SecureAggregation(1.0), aggregation=Median()), "Median"),
    (lambda: RADFed(2, exchange=SecureAggregation(1.0)), "Redistribution"),
    (lambda: FedBuff(2, exchange=SecureAggregation(1.0)), "StalenessWeightedDeltas"),
    (lambda: Scaffold(exchange=SecureAggregation(1.0)), "clients"),
    (lambda: FedProto(exchange=SecureAggregation(1.0), aggregation=WeightedMean("uniform")), "Prototypes"),
    (lambda: FedAvg(exchange=[SecureAggregation(1.0), private()], **UNIFORM), "SecureAggregation"),
    (lambda: FedAvg(exchange=[SecureAggregation(1.0), Clip(1.0)], **UNIFORM), "SecureAggregation"),
]


def test_combinations_that_cannot_work_are_refused(subtests: pytest.Subtests) -> None:
    for number, (make, word) in enumerate(REFUSED):
        with subtests.test(number=number, word=word), pytest.raises(ValueError, match=word):
            make()


def test_another_sampler_is_looked_at_too() -> None:
    callback = FedAvg(sampler=BernoulliSampler(0.1), exchange=private(), **UNIFORM)
    callback.sampler = BernoulliSampler(0.2)
    callback.take_settings()
    callback.sampler = ImportanceSampler(0.1)
    with pytest.raises(ValueError, match="ImportanceSampler"):
        callback.take_settings()
    assert callback.algorithm.sampler.probability == 0.2


def test_lists_that_look_alike_are_not_refused() -> None:
    assert FedAvg(exchange=[GaussianAttack([0]), local(), TopK(0.1), SignSGD(error_feedback=False)]).exchange
    assert FedAvg(exchange=[TopK(0.1, link="down"), local(), LowRank(2)]).exchange
    assert FedAvg(0.5, sampler=BernoulliSampler(0.5)).sampler.probability == 0.5
    assert FedAvg(1.0, sampler=UniformSampler(1.0), exchange=private(), **UNIFORM).exchange
    assert RADFed(2, unequal="park", participation=DROPS).participation


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: FedAvg(1.0, participation=Participation(stragglers=0.5)), "local_epochs"),
        (lambda: FedAvg(1.0, participation=Participation(available=lambda t: [0, 5])), "available"),
        (lambda: FedAvg(sampler=UniformSampler(3)), "clients_per_round"),
        (lambda: FedAsync(1, speeds=[1, 2, 3]), "speeds"),
        (lambda: FedAsync(1, concurrency=3), "concurrency"),
        (lambda: FedBuff(3, 1, wait_for_flush=True), "buffer_size"),
        (lambda: FedBuff(3, 1, once_per_buffer=True), "buffer_size"),
        (lambda: FedAvg(1.0, exchange=Mimic([7])), "clients"),
    ],
)
def test_what_does_not_suit_the_data_is_refused_before_training(make: Any, word: str) -> None:
    module = Quadratic(0.1, 1.0)
    with pytest.raises(ValueError, match=word):
        fit_quadratic(make(), module, quadratic_clients([1.0] * 2, [1.0] * 2), rounds=1)
    assert module.seen == []
