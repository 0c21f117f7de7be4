"""``check_part`` passes parts that keep the contract, and names the check that one fails which breaks it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from fl_lightning import Federated, FedProx, parts
from fl_lightning.executors import SequentialExecutor
from fl_lightning.testing import PartCheckError, check_part
from fl_lightning.testing.check_part import Check, PartChecks
from fl_lightning.testing.fits import BodyAndHead, different, distance, six_clients
from fl_lightning.testing.processes import on_ranks, on_two_processes

CHECKS = ["trains", "assigns", "draws", "fits again", "resumes", "rolls back", "reduces", "stack", "two processes"]


def test_a_part_that_keeps_the_contract_passes_all_checks() -> None:
    before = torch.get_rng_state()
    report = check_part(parts.Proximal(0.1), neutral=parts.Proximal(0.0))
    assert [check.name for check in report.checks] == CHECKS
    assert all(check.was_made for check in report.checks)
    head, *lines = repr(report).splitlines()
    assert re.fullmatch(r"Proximal\(mu=0\.1\): all 9 checks held, in \d{1,2}\.\d s", head)
    assert [line[:26] for line in lines] == [f"  {name:<14}held      " for name in CHECKS]
    assert [line[26:] for line in lines] == [check.meaning for check in report.checks]
    assert lines[0].endswith("3 rounds end with finite numbers, and the model has moved")
    assert lines[6].endswith("the neutral setting trains as Federated(clients_per_round=4)")
    assert [*re.findall(r"<td>(.*?)</td>", report._repr_html_())][:3] == ["trains", "held", report.checks[0].meaning]
    assert torch.equal(torch.get_rng_state(), before)


class CountsForEver(parts.ServerOptimizer):
    def __init__(self) -> None:
        self.count = 0

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.count += 1
        return model + (aggregate - model) / self.count


class DeclaresNothing(parts.ServerOptimizer):
    def setup(self, federation: parts.Federation) -> None:
        self.count = 0

    step = CountsForEver.step


class WritesToItsVelocity(parts.ServerOptimizer):
    def setup(self, federation: parts.Federation) -> None:
        self.add_state("held", {"mask": torch.ones(()), "velocity": [federation.zeros()]})

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.held["velocity"][0].mul_(0.9).add_(aggregate - model)
        return model + self.held["velocity"][0]


class DrawsGlobally(parts.Aggregation):
    def setup(self, federation: parts.Federation) -> None:
        self.scale = torch.rand(())

    def merge(self, model: Tensor, results: Sequence[parts.ClientResult]) -> Tensor:
        return results[0].parameters * self.scale


class CountsOnEachProcess(parts.Exchange):
    def setup(self, federation: parts.Federation) -> None:
        self.add_state("count", 0)

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        self.count += 1
        return result.with_delta(result.delta / self.count)


class HandsOn(parts.Exchange):
    stacks = True

    def setup(self, federation: parts.Federation) -> None:
        self.add_state("last", None)

    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return model if self.last is None else model + 0.1 * self.last

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        self.last = result.delta
        return result


class Stays(parts.ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model


class WrongLength(parts.ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return aggregate[:3]


APART = r"ends otherwise: weights are up to \d\.\d+ apart"


@pytest.mark.parametrize(
    ("part", "check", "shown"),
    [
        (CountsForEver(), "fits again", f"a second fit of the same object {APART}.*add_state"),
        (
            DeclaresNothing(),
            "resumes",
            "from its checkpoint ends .* callbacks/.* and 2 more differ.*add_state.*self.generator",
        ),
        (WritesToItsVelocity(), "assigns", "WritesToItsVelocity.held: "),
        (DrawsGlobally(), "draws", f"another fit with the same seed.* {APART}.*self.generator"),
        pytest.param(CountsOnEachProcess(), "two processes", f"on two processes {APART}", marks=pytest.mark.long),
        pytest.param(HandsOn(), "stack", f"vectorized.* {APART}.*stacks = True", marks=pytest.mark.long),
        (Stays(), "trains", "not moved in 3 rounds"),
        (WrongLength(), "trains", "TypeError: .*WrongLength.step.*got torch.float64 of shape"),
    ],
    ids=lambda value: ("" if value not in CHECKS else value) if isinstance(value, str) else type(value).__name__,
)
def test_the_error_names_the_check_that_failed(part: parts.Part, check: str, shown: str) -> None:
    with pytest.raises(PartCheckError, match=f"`{check}` failed: .*{shown}") as caught:
        check_part(part)
    assert caught.value.check == check


@pytest.mark.parametrize("name", CHECKS)
def test_an_error_in_a_check_names_the_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in CHECKS:
        work = Mock(side_effect=ValueError("odd")) if each == name else Mock()
        monkeypatch.setattr(PartChecks, "stacks" if each == "stack" else each.replace(" ", "_"), work)
    with pytest.raises(PartCheckError, match=f"`{name}` failed: ValueError: odd"):
        check_part(parts.Proximal(0.1), neutral=parts.Proximal(0.0))


def test_what_is_given_reaches_the_checks_and_what_is_not_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def hold(checks: PartChecks, *made: Any) -> Check:
        seen.append([checks.make_module, checks.make_data, checks.rounds, *(repr(each()) for each in made)])
        return Check("odd", "held")

    for each in CHECKS:
        monkeypatch.setattr(PartChecks, "stacks" if each == "stack" else each.replace(" ", "_"), hold)
    part, given = SequentialExecutor(), [Mock(), Mock(), 7]
    report = check_part(part, neutral=part, reduces_to=FedProx(0.5), module=given[0], datamodule=given[1], rounds=7)
    neutral = f"Federated(clients_per_round=4, executor={part!r})"
    assert seen == [given] * 6 + [[*given, neutral, repr(FedProx(0.5))]] + [given]
    assert "  stack         not made  an executor decides itself\n" in repr(report)
    assert "<td>not made</td>" in report._repr_html_()
    assert "  reduces       not made  give `neutral`" in repr(check_part(part))


STATE = {"w": torch.zeros(2)}
OTHER = {"w": torch.ones(2)}


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        (Mock(side_effect=TimeoutError("within 120 s")), "within 120 s .*on_round_end"),
        (Mock(side_effect=RuntimeError("rank 1: odd")), "a process failed. .*on_round_end.*\nrank 1: odd"),
        (lambda *given: ((STATE, [4, 8]), (OTHER, [4, 8])), "different models. .*on_round_end"),
        (lambda *given: ((OTHER, [4, 8]), (OTHER, [4, 8])), "a fit on two processes .* up to 1 apart. .*on_round_end"),
        (lambda *given: ((STATE, [4, 8]), (STATE, [4, 7])), r"\[4, 8\] and \[4, 7\] .* \[4, 8\]. .*on_round_end"),
        (lambda *given: ((STATE, [5, 8]), (STATE, [5, 8])), r"one process \[4, 8\]"),
    ],
)
def test_what_differs_on_two_processes_is_told(run: Any, shown: str, monkeypatch: Any, tmp_path: Path) -> None:
    for name, function in (("on_two_processes", run), ("_counts", lambda trainer: [4, 8])):
        monkeypatch.setitem(PartChecks.two_processes.__globals__, name, function)
    checks = PartChecks(Federated, nn.Identity, six_clients, 3, tmp_path)  # type: ignore[arg-type]
    checks.whole = SimpleNamespace(rounds=[STATE]), None  # type: ignore[assignment]
    with pytest.raises(PartCheckError, match=f"(?s)`two processes` failed: .*{shown}"):
        checks.two_processes()


def test_what_cannot_be_broken_off_is_not_checked(tmp_path: Path) -> None:
    checks = PartChecks(lambda: Federated(1, executor="sequential"), BodyAndHead, six_clients, 2, tmp_path)
    assert [each.was_made for each in (checks.trains(), checks.resumes(), checks.rolls_back())] == [True, False, False]
    meanings = {checks.resumes().meaning, checks.rolls_back().meaning}
    assert meanings == {"no two clients have trained after the first round"}


def test_what_a_broken_round_has_changed_is_told(tmp_path: Path) -> None:
    class Counts(parts.Exchange):
        def setup(self, federation: parts.Federation) -> None:
            self.count = 0
            self.add_state("counts", [0, 0])

        def upload(self, result: parts.ClientResult) -> parts.ClientResult:
            self.count += 1
            self.counts = [0, self.count]
            return result

    checks = PartChecks(lambda: Federated(4, exchange=Counts()), BodyAndHead, six_clients, 2, tmp_path)
    with pytest.raises(
        PartCheckError, match=r"`rolls back` .* the same objects ends otherwise: callbacks/[^,]*/counts/1 differ"
    ):
        checks.rolls_back()


def test_what_is_told_of_clients_that_train_together(tmp_path: Path) -> None:
    checks: Any = PartChecks(Federated, BodyAndHead, six_clients, 3, tmp_path)
    checks._fit = Mock(return_value=Mock(**{"fit_loop.executor.cause": "odd"}))
    state = BodyAndHead().state_dict()
    checks.whole = SimpleNamespace(rounds=[state]), None
    assert checks.stacks().meaning == "clients train one after the other: odd"
    assert checks._fit.call_args[0][0].executor == "vectorized"
    state["head.bias"] += 1
    with pytest.raises(PartCheckError, match=r"`stack` .*`executor=\"vectorized\"` ends .* 1 apart.*`stacks = True`"):
        checks.stacks()


def test_processes_that_fail_or_hang_are_told(tmp_path: Path) -> None:
    assert on_ranks(lambda rank: os._exit(3 + rank), 2) == [3, 4]
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        on_ranks(lambda rank: signal.pause() if rank else None, 2, 0.1)
    with pytest.raises(RuntimeError, match=r"(?s)odd.*odd"):
        on_two_processes(Mock(side_effect=ValueError("odd")), tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["rank-0.txt", "rank-1.txt"]


def test_a_neutral_setting_must_be_neutral() -> None:
    with pytest.raises(PartCheckError, match=r"`reduces` failed: `neutral` ends \d\.\d+e-05 from Federated\("):
        check_part(FedProx(0.1, 4), neutral=FedProx(0.01, 4))


@pytest.mark.parametrize(
    ("given", "shown"),
    [(parts.Proximal, r"class Proximal: call it, Proximal\("), ("FedAvg", "ServerOptimizer, Executor, got 'FedAvg'")],
)
def test_what_is_no_part_is_refused(given: Any, shown: str) -> None:
    with pytest.raises(TypeError, match=f"`part` must .*{shown}"):
        check_part(given)


def test_contents_and_states_are_compared_in_all_places() -> None:
    one, other = {"a": 1, "b": 1, "c": None, "d": 2}, {"b": 2, "d": 2, "e": None}
    assert different(one, other) == ["a", "b", "c", "e"]
    state = {"v": torch.tensor([1.0, 2.0]), "w": torch.tensor([0.0])}
    assert distance(state, {"v": torch.tensor([1.0, -1.5]), "w": torch.tensor([1.0])}) == 3.5
    assert distance(state, {**state, "v": torch.tensor([float("nan"), 9.0])}) == float("inf")
