"""Parts declare the state that rounds change: checkpoints hold it, and rounds that break off return to it.

A fit on two processes, which are threads here, breaks off in each round, within it or when it has been played. It goes
on or is resumed, and ends as one does on one process to which nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from io import BytesIO
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.begun import LAYOUT, UNIFORM, begun, shown
from parts.test_facts import CLOCK, OPTIONS
from torch import Tensor

from fl_lightning import parts
from fl_lightning.parts.samplers.uniform import Arrivals

ADAPTS = parts.DifferentialPrivacy(1.0, noise_multiplier=0.1, delta=0.01, adaptive_quantile=0.5)
MORE: list[dict[str, Any]] = [
    # One process has no result.
    {"sampler": parts.UniformSampler(1), "objective": parts.ControlVariates(), "aggregation": parts.NormalizedMean()},
    {"sampler": parts.BernoulliSampler(0.2), "aggregation": parts.Median()},
    {"sampler": parts.UniformSampler(3), "aggregation": parts.Median(before=parts.Bucketing(2))},
    {"exchange": ADAPTS, "buffers": "server", **UNIFORM},
    {"exchange": parts.Mimic([0]), "aggregation": parts.CurrentMean("uniform")},
    {"sampler": Arrivals(4), "schedule": parts.Asynchronous(CLOCK), "aggregation": parts.StalenessMixing()},
    {"sampler": Arrivals(1), "schedule": parts.Asynchronous(CLOCK, lookahead=3), "objective": parts.Prototypes()},
]


def at_work(task: parts.Task, received: Tensor, start: Tensor, way: Tensor) -> Any:
    """Return a client whose loss is half of the squared way, and a forward pass of two rows and two classes."""
    loss, target = float(way.square().sum() / 2), torch.tensor([0, 1])
    rows = way[:2] * target[:, None]
    return SimpleNamespace(
        task=task, received=received, start=start, score=None, loss=lambda: loss, losses=lambda: [(loss, 1)],
        gradients=lambda batch_size=None: [(LAYOUT.named(way[:3]), 1)], targets=lambda: target, target=target,
        features=rows, logits=rows, of=lambda model: (rows, rows), loss_of=torch.sum,
    )  # fmt: skip


def trained(run: parts.Run, fails: bool, tasks: Any) -> Iterator[parts.ClientResult]:
    """Yield the results of this process's clients, whose models go a part of the way to their numbers; then fail."""
    algorithm, federation = run.algorithm, run.federation
    for task in tasks:
        owner = run.owner(task, federation.num_ranks)
        if (task.slot if owner is None else owner) % federation.num_ranks != federation.rank:
            continue
        received = run.round.received(task)
        start = algorithm.schedule.start(task, received)
        way = start - task.client - task.phase
        correction = algorithm.correction(client := at_work(task, received, start, way))
        if isinstance(correction, parts.ChangedLoss) and correction.loss is not None:
            correction.loss(way.sum(), client)
        score = algorithm.sampler.score(client) if algorithm.sampler.scored_at else None
        if (held := algorithm.optimizers.of(task)) is not None:
            held = replace(held, tensors=held.tensors + task.client, numbers=held.numbers + 1.0)
        yield parts.ClientResult(task, received, start - way / 4, 2, [0.2, 0.2], score, 3, optimizer=held)
    if fails:
        raise InterruptedError


def fit(options: Any, **processes: Any) -> Any:
    """Return the state after three rounds, each of which breaks off first where there are several processes."""
    run = begun(**deepcopy(options)).run
    run = run.algorithm.run = parts.Run.begin(run.algorithm, replace(run.federation, **processes))
    for index in range(3):
        for breaks in (True, False) if processes else (False,):
            now = run.begin_round(index, 2)
            now.draw(lambda tasks: {task.client: float(task.client) for task in tasks})
            with suppress(InterruptedError):
                now.play(partial(trained, run, breaks and index != 1))
            if breaks and index == 0:
                run.put_back()
            elif breaks:
                torch.save(run.state_dict(), file := BytesIO())
                state = torch.load(BytesIO(file.getvalue()), weights_only=True)
                algorithm = begun(**deepcopy(options))
                run = algorithm.run = parts.Run.resume(algorithm, run.federation, state)
        run.end_round(now.published)
    return shown(run.state_dict())


@pytest.mark.parametrize("options", [*OPTIONS, *MORE])
def test_two_processes_that_break_off_and_resume_end_as_one(options: Any) -> None:
    barrier, shares = Barrier(2, timeout=20), [None, None]

    def gather(rank: int, mine: Any) -> list[Any]:
        shares[rank] = mine
        barrier.wait()
        found = [*shares]
        barrier.wait()
        return found

    def work(rank: int) -> Any:
        joins = {"gather": partial(gather, rank), "sum_over_ranks": lambda mine: sum(gather(rank, mine))}
        try:
            return fit(options, rank=rank, num_ranks=2, **joins)
        except BaseException:
            barrier.abort()
            raise

    expected = fit(options)
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(work, range(2)):
            np.testing.assert_equal(found, expected)
