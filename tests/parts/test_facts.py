"""What parts say of themselves, which other rooms ask: ``facts.txt`` has it all, a line for each part.

A fact that is changed on purpose is written there by ``PYTHONPATH=tests python -m parts.test_facts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from parts.test_first_states import CLOCK, LAYOUT, STATES, UNIFORM, begun

from fl_lightning import parts
from fl_lightning.parts.part import Part
from fl_lightning.parts.samplers.uniform import Arrivals

FILE = Path(__file__).with_name("facts.txt")
WIDTHS, DRAWN, LOSS = parts.SubModels([1.0, 0.5]), parts.SubModels([0.5], drawn=True), parts.MeasuredLoss()
SUMS = parts.SecureAggregation(1.0)
#: Algorithms of further parts, and of the same ones with other settings.
OTHERS: list[dict[str, Any]] = [
    {"sampler": parts.UniformSampler(0.5), "schedule": parts.Redistribution(2, "aggregate", "count", True)},
    {"sampler": parts.BernoulliSampler(0.5)},
    {"sampler": parts.GroupSampler([[0, 2], [1]], 1), "schedule": parts.Hierarchical(2, 3, "aggregate")},
    {"sampler": parts.PowerOfChoice(1, 2)},
    {"sampler": parts.PowerOfChoice(1, 2, candidates="uniform")},
    {"sampler": Arrivals(1), "schedule": parts.Asynchronous(CLOCK, buffer_size=2)},
    {"sampler": Arrivals(4), "schedule": parts.Asynchronous(CLOCK)},
    {"schedule": parts.Asynchronous(CLOCK, buffer_size=2, once_per_buffer=True)},
    {"schedule": parts.Asynchronous(CLOCK, buffer_size=2, wait_for_flush=True, flush_rounds=True)},
    {"schedule": parts.SampledStaleness(2, buffer_size=2)},
    {"schedule": parts.Clusters(number=3)},
    {"schedule": parts.FineTuning(every=2, frozen="head.bias")},
    {"objective": parts.Proximal(0.5), "aggregation": parts.NormalizedMean(mu=0.5)},
    {"objective": LOSS, "aggregation": parts.FairMean(1.0, LOSS)},
    {"objective": LOSS, "aggregation": parts.FairMean(1.0, LOSS, 2.0)},
    {"objective": parts.ControlVariates(option=1, momentum=0.5)},
    {"objective": parts.SharedMomentum(is_corrected=False)},
    {"objective": parts.Frozen("head.bias")},
    *({"objective": make()} for make in (parts.CalibratedLogits, parts.NotTrueDistillation, parts.Decorrelation)),
    *({"objective": make()} for make in (parts.SharpnessAware, parts.MetaLearning)),
    {"exchange": parts.PersonalParameters("*")},
    {"exchange": [parts.Clip(1.0), parts.Mimic([0])], "buffers": "server"},
    {"exchange": [parts.GaussianAttack([0]), parts.RandomK(0.5), parts.SignSGD(error_feedback=False)]},
    {"exchange": [parts.SignFlipping([0]), parts.LowRank(1)]},
    {"exchange": [parts.TopK(0.5, link="down"), parts.TopK(0.5, of="model")]},
    {"aggregation": parts.NormalizedMean(0.5)},
    {"aggregation": parts.Median(before=parts.Bucketing(2))},
    {"aggregation": parts.CurrentMean()},
    {"aggregation": parts.StalenessWeightedDeltas()},
    {"server_optimizer": parts.Mixing(0.5)},
]
#: What is asked with an argument, of three clients of which two train.
ASKED: dict[type[Part], dict[str, Callable[[Any], Any]]] = {
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


def facts_of(part: Part) -> Iterator[tuple[str, Any]]:
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
    found: dict[str, str] = {}
    for options in [{**UNIFORM, "exchange": SUMS}, *(options for options, _ in STATES), *OTHERS]:
        algorithm = begun(**options)
        algorithm.schedule.cohort_size = 2
        algorithm.run.begin_round(0)
        for part in algorithm.run.parts:
            words = repr(part)
            if words not in found:
                facts = [f"{name}={fact!r}" for name, fact in facts_of(part) if fact is True or fact not in USUAL]
                found[words] = f"{words}: {', '.join(facts)}"
    return sorted(found.values())


def test_parts_say_of_themselves_what_is_written_down() -> None:
    assert lines() == FILE.read_text("utf-8").splitlines()


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", "utf-8")
