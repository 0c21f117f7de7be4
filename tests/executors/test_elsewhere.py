"""Clients that are other machines, as far as rounds know of them: uploads, silence, and what the server follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import fit_clients
from torch import nn

from fl_lightning import AggregationCallback, FedAvg, FedDyn, FedPer
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors import Executor
from fl_lightning.parts import Algorithm, LocalDifferentialPrivacy, Task, Upload


class Elsewhere(Executor):
    """Trains here what stands for other machines, whose results have passed no exchange that changes them."""

    def __init__(self, silent: Sequence[int] = (), invalid: Sequence[int] = ()) -> None:
        self.silent = silent
        self.invalid = invalid

    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[Upload]:
        for task in tasks:
            if task.client in self.silent:
                continue
            result = training.train(task, algorithm.received(task))
            sent = replace(result, payload=algorithm.run.books.payload)
            yield Upload(task, None if task.client in self.invalid else sent)


def fit(algorithm: AggregationCallback, rounds: int = 2) -> AggregationCallback:
    torch.manual_seed(0)
    fit_clients(algorithm, Module(nn.Linear(2, 3)), clients_of((2,), (3, 4, 5)), rounds, batch_size=2)
    return algorithm


def test_uploads_from_elsewhere_count_as_results_from_here_do() -> None:
    here = fit(FedAvg(1.0, executor="sequential", seed=2)).algorithm
    elsewhere = fit(FedAvg(1.0, executor=Elsewhere(), seed=2)).algorithm
    assert torch.equal(here.server.model, elsewhere.server.model)
    assert here.traffic == elsewhere.traffic
    assert here.report == elsewhere.report


def test_a_client_without_an_answer_has_dropped_out_and_one_without_a_result_is_left_out() -> None:
    report = fit(FedAvg(1.0, executor=Elsewhere(silent=[0], invalid=[2]), seed=2), rounds=1).algorithm.report
    assert (report.reported, report.left_out, report.dropped, report.num_sent) == ([1], [2], 1, 3)


def test_an_objective_that_runs_on_both_sides_learns_from_uploads() -> None:
    here = fit(FedDyn(0.5, clients_per_round=1.0, executor="sequential", seed=2), rounds=1).algorithm
    elsewhere = fit(FedDyn(0.5, clients_per_round=1.0, executor=Elsewhere(), seed=2), rounds=1).algorithm
    for client in range(3):
        dual = elsewhere.objective.duals[client]  # type: ignore[attr-defined]
        assert torch.equal(dual, here.objective.duals[client])  # type: ignore[attr-defined]
        assert dual.abs().sum() > 0


def test_releases_of_clients_elsewhere_are_counted() -> None:
    pytest.importorskip("dp_accounting")
    noise = LocalDifferentialPrivacy(1.0, noise_multiplier=2.0, delta=1e-3)
    fit(FedAvg(1.0, exchange=noise, executor=Elsewhere(silent=[1]), seed=2), rounds=2)
    assert noise.releases == {1.0: {0: 2, 2: 2}}


def test_the_server_knows_a_model_without_what_a_client_keeps() -> None:
    chain = fit(FedPer("layers.bias", clients_per_round=1.0, executor="sequential", seed=2)).algorithm.chain
    torch.manual_seed(0)
    first = nn.Linear(2, 3).bias.tolist()
    known = chain.without_kept(torch.arange(9.0, dtype=torch.float64))
    assert known.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, *first]
