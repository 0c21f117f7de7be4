"""Why clients are not stacked is said with the names of what is in the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from fl_lightning import parts
from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Logged, MetricCall
from fl_lightning.executors.compiler.check import _check_metrics_draw_nothing
from fl_lightning.executors.compiler.told import Unread, _Attribute
from fl_lightning.executors.compiler.unmapped import _OF_EVERYTHING
from fl_lightning.executors.stack.corrections import StackedCorrections
from fl_lightning.executors.stack.optimizer import StackedOptimizer
from fl_lightning.executors.stack.randomness import nothing_drawn
from fl_lightning.executors.vectorized import check_parts


class HandsOn(parts.Exchange):
    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return model

    upload = parts.Exchange.upload


class Squares(parts.Term):
    def add(self, *given: Any) -> None:
        pass


class Mean(MeanMetric):
    pass


def during(act: Callable[[], Any]) -> None:
    with nothing_drawn(torch.device("cpu")):
        act()


def with_decays(kind: Any) -> Any:
    layer = nn.Linear(1, 1)
    return StackedOptimizer(kind(layer.parameters()), [*layer.parameters()]).add_weight_decay([0.1, 0.2])


def of_metric() -> Any:
    call = MetricCall(Mean(), "update", [], None, "training_step")
    return _check_metrics_draw_nothing(SimpleNamespace(logged=Logged(metric_calls=[call])))  # type: ignore[arg-type]


CAUSES: dict[str, Callable[[], Any]] = {
    "HandsOn works when a client starts": lambda: check_parts(SimpleNamespace(parts={"exchange": HandsOn()})),
    "`Squares.add` may keep": lambda: StackedCorrections([Squares()], [], None, []),
    "AdamW takes one weight decay": lambda: with_decays(torch.optim.AdamW),
    "weight decay, got Rprop": lambda: with_decays(torch.optim.Rprop),
    "draws from numpy's or Python's generator": lambda: during(np.random.rand),
    "draws from torch's generator": lambda: during(partial(torch.rand, 1)),
    "reads `own.name`, which": lambda: Unread("own").name,
    "reads `logger.own.name(...)`, which": lambda: bool(_Attribute(Mock(), "1", "own").name()),
    "the metric object Mean might": of_metric,
    "gradient of `median` of a": lambda: _OF_EVERYTHING[torch.median](torch.ones(2, requires_grad=True)),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_name_what_is_in_the_way(cause: str) -> None:
    with pytest.raises((CannotVectorize, ValueError), match=re.escape(cause)):
        CAUSES[cause]()


READS: list[Callable[[Any], Any]] = [
    *(bool, len, iter, str),
    *(lambda shown: shown[0], lambda shown: 1 in shown, lambda shown: shown == 1),
]


@pytest.mark.parametrize("read", READS)
def test_what_a_step_reads_of_what_it_is_not_shown_is_named(read: Callable[[Any], Any]) -> None:
    with pytest.raises(CannotVectorize, match="reads `own`, which"):
        read(Unread("own"))
