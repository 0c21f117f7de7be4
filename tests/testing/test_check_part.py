"""``check_part`` passes parts that keep the contract, and names the check that one fails which breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.examples import example
from torch import Tensor

from fl_lightning import FedProx, parts
from fl_lightning.testing import PartCheckError, check_part

CHECKS = ["trains", "assigns", "draws", "fits again", "resumes", "rolls back", "reduces", "stack", "two processes"]


def test_a_part_that_keeps_the_contract_passes_all_checks() -> None:
    before = torch.get_rng_state()
    report = check_part(parts.Proximal(0.1), neutral=parts.Proximal(0.0))
    assert [check.name for check in report.checks] == CHECKS
    assert all(check.was_made for check in report.checks)
    assert report.checks[0].meaning.startswith("3 rounds end ")
    assert "Proximal(mu=0.1): all 9 checks held" in repr(report)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.long
def test_the_report_says_why_clients_are_not_stacked() -> None:
    checks = {check.name: check for check in check_part(example("huber_anchor").HuberAnchor(0.1)).checks}
    assert "stacks = True" in checks["stack"].meaning
    assert not checks["reduces"].was_made


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
        self.add_state("held", {"mask": torch.ones(()), "velocity": federation.zeros()})

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.held["velocity"].mul_(0.9).add_(aggregate - model)
        return model + self.held["velocity"]


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


@pytest.mark.parametrize(
    ("part", "check"),
    [
        (CountsForEver(), "fits again"),
        (DeclaresNothing(), "resumes"),
        (WritesToItsVelocity(), "assigns"),
        (DrawsGlobally(), "draws"),
        pytest.param(CountsOnEachProcess(), "two processes", marks=pytest.mark.long),
        pytest.param(HandsOn(), "stack", marks=pytest.mark.long),
        (Stays(), "trains"),
        (WrongLength(), "trains"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_error_names_the_check_that_failed(part: parts.Part, check: str) -> None:
    with pytest.raises(PartCheckError, match=f"`{check}` failed") as caught:
        check_part(part)
    assert caught.value.check == check


def test_a_neutral_setting_must_be_neutral() -> None:
    with pytest.raises(PartCheckError, match="reduces"):
        check_part(FedProx(0.1, 4), neutral=FedProx(0.01, 4))


@pytest.mark.parametrize("given", [parts.Proximal, "FedAvg", None])
def test_what_is_no_part_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="`part`"):
        check_part(given)
