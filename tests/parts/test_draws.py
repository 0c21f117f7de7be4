"""Draws of parts for a seed stay the same from version to version, and do not depend on other draws.

``draws.txt`` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.begun import UNIFORM
from helpers.written import assert_as_in

from fl_lightning import parts

FILE = Path(__file__).with_name("draws.txt")
CLIENTS, SIZE = 6, 40
TASK = parts.Task(1, 3, 2, round=4)
LORA = parts.Layout(("lora_A", "lora_B"), (torch.Size([1, 4]), torch.Size([2, 1])), 2, (32, 32))
UPDATE = torch.arange(1.0, SIZE + 1, dtype=torch.float64) / SIZE


def begun(**options: Any) -> parts.Run:
    """Return the fit of an algorithm in its fifth round, with seed 7."""
    algorithm = parts.Algorithm(**{"sampler": parts.UniformSampler(3), **options})
    model = torch.linspace(-1.0, 1.0, SIZE, dtype=torch.float64)
    federation = parts.Federation(np.arange(1, CLIENTS + 1), model, parts.Layout.of_parameters(SIZE), seed=7)
    algorithm.run = parts.Run.begin(algorithm, federation)
    algorithm.run.begin_round(4, 5)
    return algorithm.run


def sent(exchange: parts.Exchange, **options: Any) -> list[float]:
    """Return what the server sees of an update that passes an exchange in the second place."""
    run = begun(exchange=exchange, **options)
    start = torch.zeros_like(UPDATE)
    return run.algorithm.chain.upload(parts.ClientResult(TASK, start, UPDATE, 1)).delta.tolist()


def summed(exchange: parts.Exchange) -> list[float]:
    run = begun(exchange=exchange, **UNIFORM)
    for client in range(3):
        run.algorithm.chain.upload(parts.ClientResult(parts.Task(client, client, 1, round=4), UPDATE * 0, UPDATE, 1))
    seen, divisor = exchange.on_sum(3 * UPDATE, 3.0)
    return [divisor, *seen.tolist()]


def tasks(**options: Any) -> list[float]:
    """Return the slots, clients and work of a round's tasks, and how many drop out."""
    run = begun(**options)
    run.round.draw()
    drawn = [number for task in run.round.tasks for number in (task.slot, task.client, task.work or 0)]
    return [*drawn, run.report.dropped]


def mixed(before: Any) -> list[float]:
    run = begun(aggregation=parts.Median(before=before))
    rows = [parts.ClientResult(parts.Task(k, k, 1), UPDATE * 0, UPDATE * 0 + 2.0**k, 1) for k in range(5)]
    return [float(row[0]) for row in next(iter(run.algorithm.aggregation.before.mix(parts.Updates(rows)).blocks()))]


def bound(exchange: parts.DifferentialPrivacy) -> list[float]:
    summed(exchange)
    return [exchange.clip_norm]


def width(client: int) -> float:
    partial = parts.SubModels([1.0, 0.5, 0.25], drawn=True)
    partial.federation = begun().federation
    return partial.level(parts.Task(0, client, 1, round=4))


def adapters() -> list[float]:
    """Return A and B after a round that folded them."""
    stack = parts.AdapterStack(parts.StackMessages())
    run = begun(exchange=stack.messages, aggregation=stack)
    stack.begin_fit(replace(run.federation, layout=LORA))
    merged: Any = stack.merge(UPDATE[:6], [parts.ClientResult(TASK, UPDATE[:6], UPDATE[:6], 1)])
    return merged.tolist()  # type: ignore[no-any-return]


def chance() -> list[float]:
    """Return the times of a client's tasks, and which of them are lost."""
    clock = parts.VirtualClock(lambda number, rng: rng.integers(1, 9, number), work=1, jitter=0.5, dropout=0.5)
    clock.setup(begun().federation)
    times = [clock.time(clock.duration(1, number)) for number in range(3)]
    return [*times, *(float(clock.is_lost(1, number)) for number in range(9))]


FAILING = parts.Participation(available=0.8, dropout=0.3, stragglers=0.5)
DRAWS: dict[str, Callable[[], list[float]]] = {
    "uniform": tasks,
    "uniform, failing": lambda: tasks(sampler=parts.UniformSampler(1.0), participation=FAILING),
    "bernoulli": lambda: tasks(sampler=parts.BernoulliSampler(0.5)),
    "groups": lambda: tasks(sampler=parts.GroupSampler(2, 2)),
    "importance": lambda: tasks(sampler=parts.ImportanceSampler(3, initial="uniform")),
    "power": lambda: tasks(sampler=parts.PowerOfChoice(3, 3)),
    "oort": lambda: tasks(sampler=parts.Oort(3, parts.VirtualClock([1, 2, 3, 4, 5, 6]))),
    "tiers": lambda: tasks(sampler=parts.TierSampler(1, parts.VirtualClock([1, 2, 3, 4, 5, 6]), num_tiers=3)),
    "random places": lambda: sent(parts.RandomK(0.1)),
    "levels": lambda: sent(parts.QSGD(3)),
    "an attack": lambda: sent(parts.GaussianAttack([3])),
    "attackers": lambda: sorted(begun(exchange=parts.SignFlipping(0.5)).algorithm.chain.members[1].attackers),
    "local noise": lambda: sent(parts.LocalDifferentialPrivacy(1.0, noise_multiplier=1.0, delta=0.01)),
    "noise": lambda: summed(parts.DifferentialPrivacy(1.0, noise_multiplier=1.0, delta=0.01)),
    "a bound": lambda: bound(parts.DifferentialPrivacy(1.0, noise_multiplier=0.1, delta=0.01, adaptive_quantile=0.5)),
    "rounding": lambda: summed(parts.SecureAggregation(1.0, 16, 4)),
    "buckets": lambda: mixed(parts.Bucketing(2)),
    "clusters": lambda: begun(schedule=parts.Clusters(number=2)).algorithm.schedule.models[1].tolist(),
    "widths": lambda: [width(client) for client in range(CLIENTS)],
    "new adapters": adapters,
    "a clock": chance,
    "a generator": lambda: torch.rand(2, generator=begun().algorithm.sampler.generator()).tolist(),
    "a task's generator": lambda: torch.rand(2, generator=begun().algorithm.sampler.generator(TASK, 5)).tolist(),
}


def test_draws_of_a_seed(tmp_path: Path) -> None:
    assert_as_in(FILE, lines(), tmp_path)


def lines() -> list[str]:
    """Return the first six numbers of each, and the sum of all."""
    found = {name: draw() for name, draw in DRAWS.items()}
    return [f"{name}: {[round(n, 8) for n in [*numbers[:6], sum(numbers)]]}" for name, numbers in found.items()]
