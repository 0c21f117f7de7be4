"""Answers of parts to other rooms' questions, and their states: ``facts.txt`` has a line for each part.

Of vectors of clients it has the first one, and the weight of client 2 of three in their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from helpers.begun import LAYOUT, UNIFORM, begun, shown
from helpers.written import assert_as_in

from fl_lightning import parts
from fl_lightning.parts.samplers.uniform import Arrivals

FILE = Path(__file__).with_name("facts.txt")
#: 4, 2 and 1 units for a task.
CLOCK = parts.VirtualClock([1, 2, 4], work=4)
DYNAMIC, MIME, MESSAGES = parts.DynamicRegularizer(0.5), parts.SharedMomentum(), parts.StackMessages()
PRIVATE = parts.DifferentialPrivacy(2.0, noise_multiplier=1.5, delta=0.01)
LOCAL = parts.LocalDifferentialPrivacy(1.0, noise_multiplier=1.0, delta=0.01)
LOSS = parts.MeasuredLoss()
#: The options of algorithms whose parts are shown.
OPTIONS: list[dict[str, Any]] = [
    *({"sampler": each} for each in (
        parts.UniformSampler(2), parts.ImportanceSampler(1), parts.ImportanceSampler(1, initial="uniform"),
        parts.ActiveSampler(1), parts.Oort(1, CLOCK), parts.Oort(3, CLOCK, pace=7.0, window=1),
        parts.BernoulliSampler(0.5), parts.TierSampler(1, CLOCK, num_tiers=2, credits=[3, 1]),
        parts.GroupSampler([[0, 2], [1]], 1), parts.PowerOfChoice(1, 2), parts.UniformSampler(0.5),
        parts.PowerOfChoice(1, 2, candidates="uniform"),
    )),
    *({"schedule": each} for each in (
        parts.Redistribution(3), parts.Redistribution(2, "aggregate", "count", True),
        parts.Hierarchical([[0, 2], [1]], 2), parts.Hierarchical(2, 3, "aggregate"),
        parts.Asynchronous(CLOCK), parts.Asynchronous(CLOCK, concurrency=1), parts.Asynchronous(CLOCK, buffer_size=2),
        parts.Asynchronous(CLOCK, buffer_size=2, once_per_buffer=True), parts.SampledStaleness(2),
        parts.Asynchronous(CLOCK, buffer_size=2, wait_for_flush=True, flush_rounds=True),
        parts.SampledStaleness(2, buffer_size=2), parts.ClientAverage("all", "samples"), parts.ClientAverage("active"),
        parts.ProximalModels(), parts.FineTuning(), parts.FineTuning(every=2, frozen="head.bias"),
        parts.AdaptiveStart(), parts.Clusters(number=3),
    )),
    *({"objective": each} for each in (
        parts.ControlVariates(), parts.ControlVariates(option=1, momentum=0.5), parts.ModelContrast(),
        parts.Prototypes(), parts.TwoHeads("head"), parts.MoreauEnvelope(), parts.ModelMixture(alpha=0.25),
        parts.SharedMomentum(is_corrected=False), parts.Frozen("head.bias"), parts.CalibratedLogits(),
        parts.NotTrueDistillation(), parts.Decorrelation(), parts.SharpnessAware(), parts.MetaLearning(),
    )),
    *({"exchange": each} for each in (
        parts.TopK(0.5), parts.TopK(0.5, error_feedback=False), parts.QSGD(4, link="down"),
        parts.PersonalParameters("head.bias"), parts.PersonalParameters("*"), parts.StackMessages(),
        [parts.GaussianAttack([0]), parts.RandomK(0.5), parts.SignSGD(error_feedback=False)],
        [parts.SignFlipping([0]), parts.LowRank(1)], [parts.TopK(0.5, link="down"), parts.TopK(0.5, of="model")],
    )),
    *({"aggregation": each} for each in (
        parts.StaleMean(), parts.StaleMean("uniform"), parts.RememberedUpdates(), parts.RememberedUpdates("samples"),
        parts.CenteredClipping(1.0), parts.ExtrapolatedMean(), parts.AdapterMean(), parts.NormalizedMean(0.5),
        parts.Median(before=parts.Bucketing(2)), parts.CurrentMean(), parts.StalenessWeightedDeltas(),
    )),
    *({"server_optimizer": each} for each in (
        parts.TorchServer(torch.optim.Adam), parts.Momentum(), parts.Adaptive("yogi"), parts.Mixing(0.5),
    )),
    *({"exchange": each, "buffers": "server", **UNIFORM} for each in (PRIVATE, LOCAL, parts.SecureAggregation(0.5))),
    {"optimizer_state": "kept"}, {"optimizer_state": "kept", "schedule": parts.ProximalModels()}, {"buffers": "local"},
    {"exchange": [parts.Clip(1.0), parts.Mimic([0])], "buffers": "server"},
    {"objective": parts.ControlVariates(), **UNIFORM},
    {"objective": DYNAMIC, "server_optimizer": parts.DynamicServer(DYNAMIC)},
    {"objective": MIME, "schedule": parts.GradientFirst(objective=MIME)},
    {"objective": parts.Proximal(0.5), "aggregation": parts.NormalizedMean(mu=0.5)},
    {"objective": LOSS, "aggregation": parts.FairMean(1.0, LOSS)},
    {"objective": LOSS, "aggregation": parts.FairMean(1.0, LOSS, 2.0)},
    {"aggregation": parts.AdapterStack(MESSAGES), "exchange": MESSAGES},
    {"sampler": Arrivals(1), "schedule": parts.Asynchronous(CLOCK)},
    {"sampler": Arrivals(4), "schedule": parts.Asynchronous(CLOCK)},
]  # fmt: skip
#: What is asked with an argument, of three clients of which two train.
ASKED: dict[type[parts.Part], dict[str, Callable[[Any], Any]]] = {
    parts.ClientSampler: {
        "cohort_size": lambda part: part.cohort_size(3),
        "describe_round": lambda part: part.describe_round(3),
        "chance": lambda part: part.chance(3),
        "draws": lambda part: [number for number in (1, 2, 0.5) if part.draws(number)],
    },
    parts.Schedule: {
        "further_models": lambda part: part.further_models(2),
        "expected_tasks": lambda part: part.expected_tasks(),
        "rounds_under_way": lambda part: part.rounds_under_way(),
        "may_show": lambda part: [t for t in range(1, 7) if part.may_show_aggregate(t, may_skip_rounds=False)],
        "may_show_later": lambda part: [t for t in range(1, 7) if part.may_show_aggregate(t, may_skip_rounds=True)],
        "warns": lambda part: [part.unsuitable_rounds(rounds, 1) for rounds in range(1, 5)],
    },
    parts.Exchange: {
        "travels": lambda part: [name for name in LAYOUT.names if part.travels(name)],
        "keeps": lambda part: [name for name in LAYOUT.names if part.keeps(name)],
        "down": lambda part: part.payload_down(parts.Payload(8, 32, 4), parts.Task(0, 1, 2)).bits,
        "up": lambda part: part.payload_up(parts.Payload(8, 32, 4)).bits,
    },
    parts.LocalObjective: {"untrained": lambda part: part.untrained(part.federation)},
}
#: What is said by most, and not shown.
USUAL = (False, None, 0, 1, (), [], (0, 0), [None] * 4, list(LAYOUT.names), [1, 2, 3, 4, 5, 6])
#: What every part has, what is shown already, and what takes long.
LEFT_OUT = {"federation", "client_vectors", "models", "round", "place", "shapes", "spent"}


def facts_of(part: parts.Part) -> Iterator[tuple[str, Any]]:
    """Yield what a part says, by name."""
    members = {name: fact for base in reversed(type(part).__mro__) for name, fact in vars(base).items()}
    for name, fact in sorted(members.items()):
        is_fact = isinstance(fact, property | bool | int | str | float | None)
        if is_fact and not name.startswith("_") and name not in LEFT_OUT and name not in vars(part):
            yield name, getattr(part, name)
    for kind, questions in ASKED.items():
        for name, ask in questions.items():
            if isinstance(part, kind):
                yield name, ask(part)


def lines() -> list[str]:
    found: set[str] = set()
    for options in OPTIONS:
        algorithm = begun(**options)
        states = [shown(part.declared()) for part in algorithm.run.parts]
        algorithm.schedule.cohort_size = 2
        algorithm.run.begin_round(0)
        for part, kept in zip(algorithm.run.parts, states, strict=True):
            facts = [f"{name}={fact!r}" for name, fact in facts_of(part) if fact is True or fact not in USUAL]
            found.add(f"{part!r}: {', '.join(facts)}; keeps {kept}")
    return sorted(found)


def test_parts_say_of_themselves_what_is_written_down(tmp_path: Path) -> None:
    assert_as_in(FILE, lines(), tmp_path)
