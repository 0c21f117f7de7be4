"""Parts whose methods are given as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fl_lightning.parts import Aggregation, ClientResult, Exchange, LocalObjective, Schedule, ServerOptimizer


class Step(ServerOptimizer):
    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.function = function

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return self.function(model, aggregate)


class Merge(Aggregation):
    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.function, self.results = function, list[Tensor]()

    def update(self, result: ClientResult) -> None:
        self.results.append(result.parameters)

    def merge(self, model: Tensor) -> Tensor | None:
        results, self.results = self.results, []
        return self.function(model, torch.stack(results).mean(0)) if results else None


class Way(Exchange):
    """Each method is a function, or as in the base class."""

    def __init__(self, **functions: Callable[[Any], Any]) -> None:
        self.functions = functions

    def download(self, task: Any, model: Tensor) -> Tensor:
        return self._call("download", model)

    def upload(self, result: ClientResult) -> ClientResult:
        return self._call("upload", result)

    def merged(self, aggregate: Tensor) -> Tensor:
        return self._call("merged", aggregate)

    def published(self, model: Tensor) -> Tensor:
        return self._call("published", model)

    def _call(self, name: str, given: Any) -> Any:
        return self.functions.get(name, lambda given: given)(given)


class Plan(Schedule):
    """A synchronous schedule whose ``start`` and ``publish`` are functions of the server's model."""

    def __init__(self, **functions: Callable[[Tensor], Any]) -> None:
        self.functions = functions

    def start(self, slot: int, server: Any) -> Tensor:
        return self.functions.get("start", lambda model: model)(server.model)

    def receive(self, result: ClientResult, server: Any) -> None:
        server.take(result)

    def publish(self, server: Any, failed: Any) -> Tensor:
        server.move()
        return self.functions.get("publish", lambda model: model)(server.model)


class Given(LocalObjective):
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def correction(self, client: Any) -> Any:
        return self.function()
