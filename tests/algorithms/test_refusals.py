"""Combinations that cannot work raise an error that names them: ``refusals.txt`` has the messages.

Those of one class's arguments are in the contract of arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, quadratic_clients
from helpers.written import assert_as_in, told
from torch import nn
from torch.utils.data import DataLoader

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.diagnostics import VirtualTime

FILE = Path(__file__).with_name("refusals.txt")
UNIFORM: dict[str, Any] = {"weighting": "uniform"}
MEAN: dict[str, Any] = {"aggregation": parts.WeightedMean("uniform")}
DROPS, COME_AND_GO = parts.Participation(dropout=0.5), parts.Participation(available=[[0, 2]].__getitem__)
LEAVES = parts.Participation(available=[[0, 1], [1]].__getitem__)
AWAY: Any = {0: [(0, 2)], 1: [(0, 1.5)]}
CLOCK, LINKED = parts.VirtualClock(), parts.VirtualClock(shared_links=[parts.SharedLink(9)])
DYNAMIC, KEPT = parts.DynamicServer(parts.DynamicRegularizer(0.1)), parts.PersonalParameters("w")
NET, PUBLIC = nn.Linear(1, 1), DataLoader([1.0])
TWO = quadratic_clients([1.0] * 2, [1.0] * 2)


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


def secure() -> parts.SecureAggregation:
    return parts.SecureAggregation(1.0)


def measured(**others: Any) -> fl.Federated:
    loss = parts.MeasuredLoss()
    return fl.Federated(**{"objective": loss, "aggregation": parts.FairMean(1.0, loss), **others})


def composed(**options: Any) -> fl.Federated:
    return fl.Federated(1.0, **options)


def normalized(pull: Any = None, mu: float = 0.0) -> fl.Federated:
    local = {} if pull is None else {"objective": parts.Proximal(pull)}
    return composed(aggregation=parts.NormalizedMean(mu=mu), **local)


def arriving(**others: Any) -> fl.Federated:
    return fl.Federated(1, schedule=parts.Asynchronous(parts.VirtualClock()), **others)


def fit(*callbacks: Any, rounds: int = 1, module: Any = None, **options: Any) -> None:
    """Train clients of one sample each."""
    fit_clients(callbacks[0], module or Quadratic(0.1, 1.0), TWO, rounds, *callbacks[1:], **options)


def train(*callbacks: Any, **options: Any) -> None:
    """Train clients of one sample each, which the error must come before."""
    module = Quadratic(0.1, 1.0)
    try:
        fit(*callbacks, module=module, **options)
    finally:
        assert module.seen == []


def returning(value: Any, method: str, **options: Any) -> None:
    """Train with a part of which a method returns another value."""
    [part] = options.values()
    setattr(part, method, lambda *arguments: value)
    fit(composed(**options))


class Writes(parts.Median):
    """Moves the server's model in its place."""

    def merge(self, model: torch.Tensor, results: Any) -> torch.Tensor:
        return model.add_(1.0)


#: What sends more than updates.
SENDING: list[Callable[..., object]] = [
    lambda **k: fl.FedAvg(sampler=parts.PowerOfChoice(2, 3), **k),
    lambda **k: fl.FedAvg(sampler=parts.ActiveSampler(2), **k),
    lambda **k: fl.FedAvg(sampler=fl.ImportanceSampler(2), **k),
    lambda **k: fl.Federated(objective=parts.MeasuredLoss(), **k),
    lambda **k: fl.FedProto(**k),
    lambda **k: fl.Scaffold(**k),
    lambda **k: fl.FedDyn(0.1, **k),
]
SPENT = parts.DifferentialPrivacy(1.0, epsilon=2.0, delta=1e-5)
LOST, NAN = torch.zeros(2, dtype=torch.float64), torch.full((1,), torch.nan, dtype=torch.float64)
#: What cannot be made, or cannot train two clients, by what it is about.
REFUSED: dict[str, list[Callable[[], object]]] = {
    "who trains": [
        lambda: fl.FedAvg(1, sampler=parts.BernoulliSampler(1.0)),
        lambda: arriving(sampler=fl.ImportanceSampler(2)),
        lambda: arriving(participation=DROPS),
        lambda: fl.RADFed(2, participation=DROPS),
        lambda: fl.RADFed(2, participation=parts.Participation(stragglers=0.5, drop_stragglers=True)),
        lambda: fl.RADFed(2, unequal="park", extend_cycle=True),
        lambda: train(fl.FedAvg(1.0, participation=parts.Participation(stragglers=0.5))),
        lambda: train(fl.FedAvg(1.0, participation=COME_AND_GO)),
        lambda: train(fl.FedAvg(1.0, participation=parts.Participation(available=[[-1, 1]].__getitem__))),
        lambda: train(fl.FedAvg(sampler=parts.UniformSampler(3))),
        lambda: train(fl.FedAvg(sampler=parts.PowerOfChoice(2, 1))),
        lambda: fit(fl.RADFed(2, 2, participation=LEAVES), rounds=2),
    ],
    "when the server acts": [
        lambda: fl.FedBuff(3, 2, aggregation=parts.CurrentMean()),
        lambda: fl.FedBuff(2, staleness=lambda late: float(late == 0), average_staleness=1),
        lambda: fl.FedBuff(2, 4, buffers="local", speeds=[1, 2], lookahead=2),
        lambda: fl.FedAsync(1, mixing=0.6, staleness=lambda late: 2.0),
        lambda: train(fl.FedAsync(1, speeds=[1, 2, 3])),
        lambda: train(fl.FedAsync(1, speeds=lambda number, rng: [1, 0])),
        lambda: train(fl.FedAsync(1, clock=fl.VirtualClock(delay=[1, 2, 3]))),
        lambda: train(fl.FedAsync(1, concurrency=3)),
        lambda: train(fl.FedBuff(3, 1, wait_for_flush=True)),
        lambda: train(fl.FedBuff(3, 1, once_per_buffer=True)),
        lambda: train(fl.FedAsync(1, clock=fl.VirtualClock(online={2: [(0, 1)], 0: [(0, 1)]}))),
        lambda: fit(fl.FedAsync(4, clock=parts.VirtualClock(100, online=AWAY)), rounds=2),
        lambda: fit(fl.FedAsync(4, concurrency=1, clock=parts.VirtualClock(online=AWAY)), rounds=2),
        lambda: fl.FedAsync(history=3, concurrency=2),
        lambda: fl.FedAsync(speeds=3, clock=CLOCK),
        lambda: fl.FedBuff(server=parts.Momentum(), server_lr=0.5),
        lambda: parts.VirtualClock(1, upload_bandwidth=3),
        lambda: train(fl.FedAsync(2, clock=parts.VirtualClock(1, bandwidth=[1, 2, 3]))),
        lambda: train(fl.FedAsync(2, clock=parts.VirtualClock(1, bandwidth=1, upload_bandwidth=[1, 2, 3]))),
        lambda: parts.SharedLink(9, clients=[]),
        lambda: parts.SharedLink(9, clients=[1, 1]),
        lambda: train(fl.FedAvg(), VirtualTime(parts.VirtualClock(shared_links=[parts.SharedLink(9, clients=[2])]))),
        lambda: train(fl.FedAsync(2, clock=LINKED)),
        lambda: train(fl.FedAvg(sampler=parts.Oort(2, LINKED))),
    ],
    "regions": [
        lambda: fl.HierFAVG(2, 2, aggregation=parts.CurrentMean()),
        lambda: fl.HierFAVG(2, 2, aggregation=parts.StaleMean()),
        lambda: fl.HierFAVG(2, 2, aggregation=parts.RememberedUpdates()),
        lambda: fl.HierFAVG(2, 2, aggregation=parts.NormalizedMean()),
        lambda: fl.HierFAVG(2, 2, exchange=parts.ALittleIsEnough([0], z=1.0)),
        lambda: fl.HierFAVG(2, 2, exchange=secure(), **MEAN),
        lambda: fl.HierFAVG(2, 2, local=parts.ControlVariates()),
        lambda: train(fl.HierFAVG(3, 2, 1)),
        lambda: train(fl.HierFAVG([[0], [2]], 2, 1)),
        lambda: train(fl.HierFAVG([[0, 1], [1]], 2, 1)),
        lambda: train(fl.HierFAVG([[0, 1], []], 2, 1)),
    ],
    "what a client minimises": [
        lambda: composed(server=DYNAMIC),
        lambda: composed(objective=parts.DynamicRegularizer(0.2), server=DYNAMIC),
        lambda: fl.RADFed(2, local=parts.DynamicRegularizer(0.1)),
        lambda: fl.RADFed(2, local=parts.ControlVariates()),
        lambda: arriving(objective=parts.ControlVariates()),
        lambda: composed(objective=parts.ControlVariates(momentum=0.5), optimizer_state="kept"),
        lambda: fl.APFL(0.5, 1.0, optimizer_state="kept"),
        lambda: composed(schedule=parts.GradientFirst(objective=parts.SharedMomentum())),
        lambda: measured(objective=parts.Proximal(0.1)),
        lambda: measured(objective=parts.MeasuredLoss()),
        lambda: measured(schedule=parts.Redistribution(2)),
        lambda: measured(schedule=parts.Hierarchical(2, 2)),
        lambda: train(fl.FedSAM(0.1, 1.0), accumulate_grad_batches=2),
        lambda: train(fl.APFL(0.5, 1.0), accumulate_grad_batches=2),
        lambda: train(fl.PFedMe(1.0, 1.0), accumulate_grad_batches=2),
        lambda: train(fl.PerFedAvg(0.1, 1.0), accumulate_grad_batches=2),
    ],
    "how results are merged": [
        lambda: fl.RADFed(2, 2, aggregation=parts.CurrentMean()),
        lambda: fl.RADFed(2, 2, aggregation=parts.StaleMean()),
        lambda: fl.RADFed(2, aggregation=parts.RememberedUpdates()),
        lambda: fl.FedAsync(aggregation=parts.RememberedUpdates()),
        lambda: fl.RADFed(2, aggregation=parts.NormalizedMean(0.9)),
        lambda: fl.RADFed(2, 1.0, local=parts.Proximal(0.3), aggregation=parts.NormalizedMean()),
        lambda: normalized(mu=2.0),
        lambda: normalized(pull=1.0, mu=2.0),
        lambda: normalized(pull=0.3),
        lambda: normalized(pull=abs, mu=0.3),
        lambda: fl.FedNova(momentum=0.9, aggregation=parts.Median()),
        lambda: fl.QFedAvg(5.0, 1.0, aggregation=parts.Median()),
        lambda: arriving(aggregation=parts.StaleMean()),
        lambda: composed(aggregation=parts.NormalizedMean(0.9), optimizer_state="kept"),
        lambda: stacked(optimizer_state="kept"),
        lambda: stacked(server=parts.Momentum()),
        lambda: stacked(schedule=parts.FineTuning()),
        lambda: stacked(schedule=parts.Asynchronous(CLOCK)),
        lambda: parts.TorchServer(torch.optim.SGD, nesterow=True),
        lambda: parts.TorchServer(torch.optim.AdamW, weight_decay=-1.0),
        lambda: fit(composed(aggregation=parts.Krum(1))),
        lambda: fit(composed(aggregation=parts.TrimmedMean(1))),
        lambda: fit(composed(aggregation=parts.Median(before=parts.NearestNeighborMixing(2)))),
        lambda: fl.FedLoRA("stack", 1.0, exchange=parts.TopK(0.5)),
        lambda: fl.FedLoRA("stack", 1.0, aggregation=parts.AdapterMean()),
        lambda: fl.FedLoRA("svd", ranks=[2], padding="counts"),
    ],
    "models of clients and of clusters": [
        lambda: train(fl.FedPer("w")),
        lambda: train(fl.Local(exchange=KEPT)),
        lambda: composed(schedule=parts.PersonalFirst(personal_parameters=KEPT), objective=parts.Frozen("w")),
        lambda: train(fl.FedBN()),
        lambda: train(fl.FedRep("v")),
        lambda: train(fl.FedBABU("v")),
        lambda: train(fl.FedALA("v")),
        lambda: train(composed(schedule=parts.FineTuning(frozen="v"))),
        lambda: train(fl.FedRoD("v")),
        lambda: train(fl.FedRoD("w")),
        lambda: train(fl.Mime(1.0, exchange=parts.PersonalParameters("*"))),
        lambda: fl.IFCA(2, aggregation=parts.Median()),
        lambda: fl.IFCA(2, exchange=parts.TopK(0.5)),
        lambda: fl.IFCA(2, exchange=parts.TopK(0.5, link="down")),
        lambda: composed(schedule=parts.Clusters(number=2), server=parts.Momentum(0.9)),
        lambda: composed(schedule=parts.Clusters(number=2), aggregation=parts.Median()),
        lambda: composed(schedule=parts.Clusters(number=2), objective=parts.DynamicRegularizer(0.1)),
    ],
    "public data": [
        lambda: fl.FedDF(NET, DataLoader([1.0], shuffle=True, generator=torch.Generator())),
        lambda: fl.FedDF(NET, DataLoader([1.0], 4, drop_last=True)),
        lambda: fl.FedDF(NET, PUBLIC, exchange=KEPT),
        lambda: fl.FedDF(NET, PUBLIC, buffers="local"),
        lambda: fl.FedDF(NET, PUBLIC, exchange=secure(), buffers="server"),
        lambda: train(fl.FedDF(NET, PUBLIC)),
        lambda: composed(schedule=parts.PublicConsensus(NET, PUBLIC, KEPT), exchange=parts.PersonalParameters("*")),
        lambda: composed(schedule=parts.PublicConsensus(NET, PUBLIC, parts.PersonalParameters("*")), exchange=KEPT),
    ],
    "parts of the model": [
        lambda: narrow(parts.TopK(0.5)),
        lambda: narrow(after=[parts.SubModels([0.5])]),
        lambda: narrow(schedule=parts.FineTuning()),
        lambda: narrow(schedule=parts.Asynchronous(CLOCK), drawn=True),
        lambda: narrow(make=parts.OrderedDropout, drawn=True),
        lambda: fl.FedAvg(exchange=parts.SubModels([0.5])),
        lambda: fl.HeteroFL([0.5], aggregation=parts.Median()),
        lambda: fl.HeteroFL([0.5], exchange=parts.LowRank(2)),
        lambda: fl.HeteroFL([0.5], drawn=True, exchange=parts.TopK(0.5)),
        lambda: fl.HeteroFL([0.5], exchange=parts.TopK(0.5, link="down")),
        lambda: fl.HeteroFL([0.5], exchange=parts.TopK(0.5, of="model")),
        lambda: fl.HeteroFL([0.5], drawn=True, optimizer_state="kept"),
        lambda: fl.HeteroFL([0.5], exchange=parts.SecureAggregation(0.1, bits=8, precision=4)),
    ],
    "compression": [
        lambda: fl.FedAvg(exchange=[parts.TopK(0.1, link="down"), parts.QSGD(4, link="down")]),
        lambda: fl.FedAvg(exchange=[parts.QSGD(4), parts.LowRank(2)]),
        lambda: fl.FedAvg(exchange=[parts.TopK(0.5, of="model"), parts.QSGD(4)]),
        lambda: fl.FedAvg(exchange=[parts.TopK(0.1), parts.Clip(1.0), parts.GaussianAttack([0])]),
        lambda: fl.FedAvg(exchange=[parts.TopK(0.1), local()]),
        lambda: fl.FedAvg(exchange=[parts.RandomK(0.1), parts.SignSGD()]),
        lambda: parts.TopK(0.1, error_feedback=False, link="down"),
        lambda: parts.TopK(0.5, of="model", link="down"),
        lambda: parts.TopK(0.5, of="model", error_feedback=True),
    ],
    "attacks": [
        lambda: fl.RADFed(2, exchange=parts.Mimic([1])),
        lambda: fl.FedAvg(exchange=[parts.Mimic([1]), private()], **UNIFORM),
        lambda: fl.FedAvg(1.0, evaluate="all", exchange=parts.InnerProductManipulation([0])),
        lambda: train(fl.FedAvg(1.0, exchange=parts.Mimic([2]))),
    ],
    "privacy": [
        lambda: parts.DifferentialPrivacy(1.0, noise_multiplier=1.0, epsilon=2.0, delta=1e-5),
        lambda: train(fl.FedAvg(1.0, exchange=SPENT, **UNIFORM), rounds=-1, max_steps=9),
        lambda: fl.FedAvg(exchange=private()),
        lambda: fl.FedAvg(1.0, evaluate="all", exchange=private(), **UNIFORM),
        lambda: fl.FedAvg(exchange=private(), aggregation=parts.Median()),
        lambda: fl.FedAvg(exchange=private(), partial="stale", **UNIFORM),
        lambda: fl.FedNova(exchange=private(), **UNIFORM),
        lambda: fl.QFedAvg(1.0, exchange=private()),
        lambda: fl.FedAvg(exchange=[private(), parts.TopK(0.1)], **UNIFORM),
        lambda: fl.RADFed(3, exchange=private()),
        lambda: fl.FedBuff(3, exchange=private()),
        lambda: fl.FedLoRA("svd", exchange=private(), **UNIFORM),
        lambda: fl.FedAvg(exchange=private(), participation=parts.Participation(stragglers=0.5), **UNIFORM),
        lambda: fl.FedAvg(exchange=private(), participation=DROPS, **UNIFORM),
        lambda: fl.FedAvg(exchange=private(), participation=COME_AND_GO, **UNIFORM),
        lambda: fl.IFCA(2, exchange=local(), **UNIFORM),
        *(lambda make=make: make(exchange=private(), **MEAN) for make in SENDING),
        *(lambda make=make: make(exchange=local(), **MEAN) for make in SENDING),
    ],
    "sums": [
        lambda: parts.SecureAggregation(1.0, 8, 9),
        lambda: fl.FedAvg(exchange=secure()),
        lambda: fl.FedAvg(exchange=secure(), aggregation=parts.Median()),
        lambda: fl.RADFed(2, exchange=secure()),
        lambda: arriving(exchange=secure(), **MEAN),
        lambda: fl.FedAvg(exchange=[secure(), private()], **UNIFORM),
        lambda: fl.FedAvg(exchange=[secure(), parts.Clip(1.0)], **UNIFORM),
        lambda: fl.IFCA(2, exchange=secure(), **UNIFORM),
        *(lambda make=make: make(exchange=secure(), **MEAN) for make in SENDING),
    ],
    "what parts return": [
        lambda: returning([0, 0], "draw", sampler=parts.UniformSampler(1.0)),
        lambda: returning(None, "download", exchange=parts.Exchange()),
        lambda: returning(None, "on_aggregate", exchange=parts.Exchange()),
        lambda: returning(NAN, "on_aggregate", exchange=parts.Exchange()),
        lambda: returning(LOST, "on_publish", exchange=parts.Exchange()),
        lambda: returning(NAN, "on_publish", exchange=parts.Exchange()),
        lambda: returning(LOST, "compress", exchange=parts.TopK(0.5, link="down")),
        lambda: returning(LOST, "compress", exchange=parts.TopK(0.5)),
        lambda: returning(LOST, "forge", exchange=parts.SignFlipping([0])),
        lambda: returning(LOST, "forge", exchange=parts.ALittleIsEnough([0], z=1.0)),
        lambda: returning(LOST, "rule", aggregation=parts.Median()),
        lambda: returning(NAN, "merge", aggregation=parts.Median()),
        lambda: returning(LOST, "finish", aggregation=parts.WeightedMean()),
        lambda: returning(NAN, "finish", aggregation=parts.WeightedMean()),
        lambda: returning(LOST, "step", server=parts.Mixing()),
        lambda: returning(NAN, "step", server=parts.Mixing()),
        lambda: returning(LOST, "sent", schedule=parts.Synchronous()),
        lambda: returning(LOST, "start", schedule=parts.Synchronous()),
        lambda: returning((each for each in ()), "play", schedule=parts.Synchronous()),
        lambda: fit(composed(aggregation=Writes())),
    ],
}


def test_combinations_that_cannot_work_are_refused(tmp_path: Path) -> None:
    lines = []
    for title, makers in REFUSED.items():
        lines += [f"# {title}", *(told(make, tmp_path) for make in makers)]
    assert_as_in(FILE, lines, tmp_path)


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
    assert fl.HeteroFL([0.5], exchange=parts.TopK(0.5)).exchange
    assert fl.HeteroFL([0.5], drawn=True, exchange=parts.QSGD(4)).exchange
    assert fl.FedAvg(0.5, sampler=parts.BernoulliSampler(0.5)).sampler.probability == 0.5
    assert fl.FedAvg(3, sampler=fl.ImportanceSampler(3)).sampler.clients_per_round == 3
    assert fl.FedAvg(np.int64(3), sampler=parts.UniformSampler(3)).sampler.clients_per_round == 3
    assert fl.FedAvg(1.0, sampler=parts.UniformSampler(1.0), exchange=private(), **UNIFORM).exchange
    assert fl.RADFed(2, unequal="park", participation=DROPS).participation
