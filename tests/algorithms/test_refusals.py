"""Combinations of parts that cannot work are refused, where an algorithm is made, by an error that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

import fl_lightning as fl
from fl_lightning import parts

UNIFORM: dict[str, Any] = {"weighting": "uniform"}
DROPS, COME_AND_GO = parts.Participation(dropout=0.5), parts.Participation(available=lambda t: [0, 5])
CLOCK = parts.VirtualClock()


def narrow(
    *before: Any, after: Any = (), make: Any = parts.HeldGradients, drawn: bool = False, **options: Any
) -> fl.Federated:
    partial = parts.SubModels([1.0, 0.5], drawn=drawn)
    held = {"objective": make(partial), "aggregation": parts.HolderMean(partial)}
    return fl.Federated(1.0, exchange=[*before, partial, *after], **held, **options)


def stacked(**options: Any) -> fl.Federated:
    messages = parts.StackMessages()
    return fl.Federated(1.0, exchange=messages, aggregation=parts.AdapterStack(messages), **options)


def private(kind: Any = parts.DifferentialPrivacy) -> Any:
    return kind(1.0, noise_multiplier=1.0, delta=1e-5)


def local() -> Any:
    return private(parts.LocalDifferentialPrivacy)


def measured(**others: Any) -> fl.Federated:
    loss = parts.MeasuredLoss()
    return fl.Federated(**{"objective": loss, "aggregation": parts.FairMean(1.0, loss), **others})


def arriving(**others: Any) -> fl.Federated:
    return fl.Federated(1, schedule=parts.Asynchronous(parts.VirtualClock()), **others)


#: What cannot be made, and a word of its error; more of one class's arguments are in the contract of arguments.
REFUSED: list[tuple[Callable[[], object], str]] = [
    # who trains
    (lambda: fl.FedAvg(1, sampler=parts.BernoulliSampler(1.0)), "clients_per_round"),
    (lambda: arriving(sampler=fl.ImportanceSampler(2)), "sampler"),
    (lambda: arriving(participation=DROPS), "participation"),
    (lambda: fl.RADFed(2, participation=DROPS), "participation"),
    (lambda: fl.RADFed(2, participation=parts.Participation(stragglers=0.5, drop_stragglers=True)), "participation"),
    (lambda: fl.RADFed(2, unequal="park", extend_cycle=True), "extend_cycle"),
    # when the server acts
    (lambda: fl.FedBuff(3, 2, aggregation=parts.CurrentMean()), "once_per_buffer"),
    (lambda: fl.FedBuff(2, staleness=lambda late: float(late == 0), average_staleness=1), "average_staleness"),
    # what a client minimises
    (lambda: fl.Federated(1.0, server=parts.DynamicServer(parts.DynamicRegularizer(0.1))), "objective"),
    (
        lambda: fl.Federated(
            1.0, objective=parts.DynamicRegularizer(0.2), server=parts.DynamicServer(parts.DynamicRegularizer(0.1))
        ),
        "objective",
    ),
    (lambda: fl.RADFed(2, local=parts.DynamicRegularizer(0.1)), "DynamicRegularizer"),
    (lambda: fl.RADFed(2, local=parts.ControlVariates()), "ControlVariates"),
    (lambda: arriving(objective=parts.ControlVariates()), "ControlVariates"),
    (
        lambda: fl.Federated(1.0, objective=parts.ControlVariates(momentum=0.5), optimizer_state="kept"),
        r"ControlVariates\(option=2, momentum=0.5.*`option=1`",
    ),
    (lambda: fl.APFL(0.5, 1.0, optimizer_state="kept"), "optimizer_state"),
    (
        lambda: fl.Federated(1.0, schedule=parts.GradientFirst(objective=parts.SharedMomentum())),
        r"LocalObjective\(\), got SharedMomentum\(",
    ),
    (lambda: measured(objective=parts.Proximal(0.1)), "measured"),
    (lambda: measured(objective=parts.MeasuredLoss()), "MeasuredLoss"),
    (lambda: measured(schedule=parts.Redistribution(2)), "FairMean"),
    # how results are merged
    (lambda: fl.RADFed(2, 2, aggregation=parts.CurrentMean()), "aggregation"),
    (lambda: fl.RADFed(2, 2, aggregation=parts.StaleMean()), "aggregation"),
    (lambda: fl.RADFed(2, aggregation=parts.NormalizedMean(0.9)), "NormalizedMean"),
    (lambda: fl.RADFed(2, 1.0, local=parts.Proximal(0.3), aggregation=parts.NormalizedMean()), "NormalizedMean"),
    (lambda: fl.Federated(1.0, aggregation=parts.NormalizedMean(mu=2.0)), "mu"),
    (lambda: fl.Federated(1.0, objective=parts.Proximal(1.0), aggregation=parts.NormalizedMean(mu=2.0)), "mu"),
    (lambda: fl.Federated(1.0, objective=parts.Proximal(0.3), aggregation=parts.NormalizedMean()), "mu"),
    (
        lambda: fl.Federated(1.0, objective=parts.Proximal(lambda r: 0.3), aggregation=parts.NormalizedMean(mu=0.3)),
        "mu",
    ),
    (lambda: fl.FedNova(momentum=0.9, aggregation=parts.Median()), "momentum"),
    (lambda: fl.QFedAvg(5.0, 1.0, aggregation=parts.Median()), "q="),
    (lambda: fl.IFCA(2, aggregation=parts.Median()), "aggregation"),
    (lambda: arriving(aggregation=parts.StaleMean()), r"StaleMean\(.*Asynchronous\("),
    (lambda: fl.Federated(1.0, aggregation=parts.NormalizedMean(0.9), optimizer_state="kept"), "NormalizedMean.*fresh"),
    (lambda: stacked(optimizer_state="kept"), '`optimizer_state` must be "fresh"'),
    (lambda: stacked(server=parts.Momentum()), r"Momentum\(.*adapters"),
    (lambda: stacked(schedule=parts.FineTuning()), r"FineTuning\(.*Synchronous\(\)"),
    # parts of the model
    (lambda: narrow(parts.TopK(0.5)), r"TopK\(.*SubModels\(.* after it in the list"),
    (lambda: narrow(after=[parts.SubModels([0.5])]), r"both SubModels\(widths=\[1.0.* and SubModels\(widths=\[0.5\]"),
    (lambda: narrow(schedule=parts.FineTuning()), r"FineTuning\(.*SubModels\("),
    (lambda: narrow(schedule=parts.Asynchronous(CLOCK), drawn=True), r"Asynchronous\(.*SubModels\(.*time"),
    (lambda: narrow(make=parts.OrderedDropout, drawn=True), r"OrderedDropout\(.*`drawn=False`"),
    # compression
    (lambda: fl.FedAvg(exchange=[parts.TopK(0.1, link="down"), parts.QSGD(4, link="down")]), "exchange"),
    (lambda: fl.FedAvg(exchange=[parts.LowRank(2), parts.QSGD(4)]), "LowRank"),
    (lambda: fl.FedAvg(exchange=[parts.TopK(0.1), parts.GaussianAttack([0])]), "TopK"),
    (lambda: fl.FedAvg(exchange=[parts.TopK(0.1), local()]), "TopK"),
    (lambda: fl.FedAvg(exchange=[parts.RandomK(0.1), parts.SignSGD()]), "SignSGD"),
    (lambda: parts.TopK(0.1, error_feedback=False, link="down"), "error_feedback"),
    # attacks
    (lambda: fl.RADFed(2, exchange=parts.Mimic([1])), "Redistribution"),
    (lambda: fl.FedAvg(exchange=[parts.Mimic([1]), private()], **UNIFORM), "DifferentialPrivacy"),
    (lambda: fl.FedAvg(1.0, evaluate="all", exchange=parts.InnerProductManipulation([0])), "InnerProduct.*evaluate"),
    # privacy
    (lambda: parts.DifferentialPrivacy(float("inf"), noise_multiplier=1.0, delta=1e-5), "clip"),
    (lambda: fl.FedAvg(exchange=private()), "weight"),
    (lambda: fl.FedAvg(exchange=private(), aggregation=parts.Median()), "Median"),
    (lambda: fl.FedAvg(exchange=private(), partial="stale", **UNIFORM), "StaleMean"),
    (lambda: fl.FedNova(exchange=private(), **UNIFORM), "NormalizedMean"),
    (lambda: fl.QFedAvg(1.0, exchange=private()), "FairMean"),
    (lambda: fl.FedAvg(exchange=[private(), parts.TopK(0.1)], **UNIFORM), "last"),
    (lambda: fl.RADFed(3, exchange=private()), "noise"),
    (lambda: fl.FedBuff(3, exchange=private()), "StalenessWeightedDeltas"),
    (lambda: fl.FedAvg(sampler=fl.ImportanceSampler(0.1), exchange=private(), **UNIFORM), "ImportanceSampler"),
    (lambda: fl.Scaffold(exchange=private()), "clients"),
    (lambda: fl.FedDyn(exchange=private()), "clients"),
    (
        lambda: fl.Federated(
            objective=parts.MeasuredLoss(), exchange=private(), aggregation=parts.WeightedMean("uniform")
        ),
        "losses",
    ),
    (lambda: fl.FedProto(exchange=private(), aggregation=parts.WeightedMean("uniform")), "Prototypes"),
    (lambda: fl.FedAvg(exchange=private(), participation=parts.Participation(stragglers=0.5), **UNIFORM), "presence"),
    (lambda: fl.FedAvg(exchange=private(), participation=DROPS, **UNIFORM), "drop-out"),
    (lambda: fl.FedAvg(exchange=private(), participation=COME_AND_GO, **UNIFORM), "availability"),
    *(
        (lambda make=make: make(exchange=local()), "LocalDifferentialPrivacy")
        for make in (fl.Scaffold, fl.FedDyn, fl.FedProto)
    ),
    (lambda: fl.QFedAvg(1.0, exchange=local()), "LocalDifferentialPrivacy"),
    (lambda: fl.FedAvg(sampler=fl.ImportanceSampler(0.1), exchange=local()), "LocalDifferentialPrivacy"),
    # sums
    (lambda: parts.SecureAggregation(1.0, 8, 9), "`precision` must be at most `bits`, 8, got 9"),
    (lambda: fl.FedAvg(exchange=parts.SecureAggregation(1.0)), "WeightedMean"),
    (lambda: fl.FedAvg(exchange=parts.SecureAggregation(1.0), aggregation=parts.Median()), "Median"),
    (lambda: fl.RADFed(2, exchange=parts.SecureAggregation(1.0)), "Redistribution"),
    (lambda: fl.FedBuff(2, exchange=parts.SecureAggregation(1.0)), "StalenessWeightedDeltas"),
    (lambda: fl.Scaffold(exchange=parts.SecureAggregation(1.0)), "clients"),
    (
        lambda: fl.FedProto(exchange=parts.SecureAggregation(1.0), aggregation=parts.WeightedMean("uniform")),
        "Prototypes",
    ),
    (lambda: fl.FedAvg(exchange=[parts.SecureAggregation(1.0), private()], **UNIFORM), "SecureAggregation"),
    (lambda: fl.FedAvg(exchange=[parts.SecureAggregation(1.0), parts.Clip(1.0)], **UNIFORM), "SecureAggregation"),
]


def test_combinations_that_cannot_work_are_refused(subtests: pytest.Subtests) -> None:
    for number, (make, word) in enumerate(REFUSED):
        with subtests.test(number=number, word=word), pytest.raises(ValueError, match=word):
            make()


def test_another_sampler_is_looked_at_too() -> None:
    callback = fl.FedAvg(sampler=parts.BernoulliSampler(0.1), exchange=private(), **UNIFORM)
    callback.sampler = parts.BernoulliSampler(0.2)
    callback.take_settings()
    callback.sampler = fl.ImportanceSampler(0.1)
    with pytest.raises(ValueError, match="ImportanceSampler"):
        callback.take_settings()
    assert callback.algorithm.sampler.probability == 0.2


def test_lists_that_look_alike_are_not_refused() -> None:
    assert fl.FedAvg(
        exchange=[parts.GaussianAttack([0]), local(), parts.TopK(0.1), parts.SignSGD(error_feedback=False)]
    ).exchange
    assert fl.FedAvg(exchange=[parts.TopK(0.1, link="down"), local(), parts.LowRank(2)]).exchange
    assert fl.FedAvg(0.5, sampler=parts.BernoulliSampler(0.5)).sampler.probability == 0.5
    assert fl.FedAvg(3, sampler=fl.ImportanceSampler(3)).sampler.clients_per_round == 3
    assert fl.FedAvg(np.int64(3), sampler=parts.UniformSampler(3)).sampler.clients_per_round == 3
    assert fl.FedAvg(1.0, sampler=parts.UniformSampler(1.0), exchange=private(), **UNIFORM).exchange
    assert fl.RADFed(2, unequal="park", participation=DROPS).participation


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: fl.FedAvg(1.0, participation=parts.Participation(stragglers=0.5)), "`local_epochs`.* least 2.*got 1"),
        (
            lambda: fl.FedAvg(1.0, participation=parts.Participation(available=lambda t: [0, 5])),
            r"`available\(0\)`.* 0 to 1, .*got \[0 5\]",
        ),
        (lambda: fl.FedAvg(sampler=parts.UniformSampler(3)), "`clients_per_round` must be at most 2, .*got 3"),
        (lambda: fl.FedAsync(1, speeds=[1, 2, 3]), "`speeds`.* each of the 2 clients, got 3"),
        (lambda: fl.FedAsync(1, concurrency=3), "`concurrency` must be at most 2, .*got 3"),
        (lambda: fl.FedBuff(3, 1, wait_for_flush=True), "`buffer_size` must be at most 2, .*got 3"),
        (lambda: fl.FedBuff(3, 1, once_per_buffer=True), "`buffer_size` must be at most 2, .*got 3"),
        (lambda: fl.FedAvg(1.0, exchange=parts.Mimic([7])), r"`clients` must be from 0 to 1, .*got \[7\]"),
        (lambda: fl.FedAsync(1, clock=fl.VirtualClock(online={2: [(0, 1)]})), "`online`.* 0 to 1, got 2"),
        (lambda: fl.FedAvg(sampler=parts.PowerOfChoice(2, 1)), r"at least the 2 clients.*PowerOfChoice\(clients_per"),
    ],
)
def test_what_does_not_suit_the_data_is_refused_before_training(make: Any, word: str) -> None:
    module = Quadratic(0.1, 1.0)
    with pytest.raises(ValueError, match=word):
        fit_quadratic(make(), module, quadratic_clients([1.0] * 2, [1.0] * 2), rounds=1)
    assert module.seen == []
