"""Fits that are watched round by round and result by result, asynchronous ones whose clients' models are known."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from fl_lightning import AggregationCallback
from fl_lightning.parts import ArrivalRecord, ClientResult
from helpers.toys import Quadratic, fit_clients, quadratic_clients


class Watch(Callback):
    """Keeps every round's arrivals and the server's weight after it."""

    def __init__(self) -> None:
        self.arrivals: list[ArrivalRecord] = []
        self.weights: list[float] = []
        self.values: list[dict[str, float]] = []

    def on_round_end(self, trainer: Any, module: Any) -> None:
        algorithm = trainer.callbacks[0].algorithm
        self.arrivals += algorithm.report.arrivals
        self.weights.append(float(module.w.detach()))
        self.values.append(algorithm.run.values())


class Results(Callback):
    """Keeps the clients' results."""

    def __init__(self) -> None:
        self.seen: list[ClientResult] = []

    def on_client_end(self, trainer: Any, module: Any, result: ClientResult) -> None:
        self.seen.append(result)


def watch(callback: AggregationCallback, rounds: int, targets: list[float], sizes: list[int] | None = None) -> Watch:
    """Train clients whose every local training ends at their own target."""
    clients = quadratic_clients([1.0] * len(targets), targets, sizes)
    fit_clients(callback, Quadratic(lr=1.0), clients, rounds, watching := Watch())
    return watching


def of_ten(callback: AggregationCallback, rounds: int) -> Watch:
    return watch(callback, rounds, [float(client) for client in range(10)])
