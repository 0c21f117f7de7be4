"""Parts whose methods are given as functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts import (
    Aggregation,
    ClientResult,
    Exchange,
    LocalObjective,
    Schedule,
    Server,
    ServerOptimizer,
    Task,
)


class Step(ServerOptimizer):
    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.function = function

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return self.function(model, aggregate)


class Merge(Aggregation):
    """A function of the server's parameters and the clients' mean."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.function = function

    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        return self.function(model, torch.stack([result.parameters for result in results]).mean(0))


class Way(Exchange):
    """Each method is a function, or as in the base class."""

    def __init__(self, **functions: Callable[[Any], Any]) -> None:
        self.functions = functions

    def download(self, task: Any, model: Tensor) -> Tensor:
        return self._call("download", model)

    def upload(self, result: ClientResult) -> ClientResult:
        return self._call("upload", result)

    def on_aggregate(self, aggregate: Tensor) -> Tensor:
        return self._call("on_aggregate", aggregate)

    def on_publish(self, model: Tensor) -> Tensor:
        return self._call("on_publish", model)

    def _call(self, name: str, given: Any) -> Any:
        return self.functions.get(name, lambda given: given)(given)


class Plan(Schedule):
    """A synchronous schedule; where clients start and what is shown are functions of the server's model."""

    def __init__(self, **functions: Callable[[Tensor], Any]) -> None:
        self.functions = functions

    def start(self, task: Task, server: Server) -> Tensor:
        return self.functions.get("start", lambda model: model)(server.model)

    def play(self, tasks: Sequence[Task], server: Server) -> Any:
        for result in (yield tasks):
            server.take(result)
        server.move()
        return self.functions.get("play", lambda model: model)(server.model)


class PlayedBy(Schedule):
    """Leaves everything to another schedule, whose models circulate, and counts its rounds."""

    circulates = True

    def __init__(self, inner: Schedule) -> None:
        self.inner, self.played = inner, 0

    @property
    def has_models_under_way(self) -> bool:
        return self.inner.has_models_under_way

    @property
    def shows_aggregate(self) -> bool:
        return self.inner.shows_aggregate

    def slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> Sequence[int]:
        return self.inner.slots(num_active, cohort_size, rng)

    def start(self, task: Task, server: Server) -> Tensor:
        return self.inner.start(task, server)

    def play(self, tasks: Sequence[Task], server: Server) -> Any:
        self.played += 1
        return (yield from self.inner.play(tasks, server))


class Given(LocalObjective):
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def correction(self, client: Any) -> Any:
        return self.function()
