"""User-defined parts of an algorithm: those that hand something from one client or step to the next, and others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from torchmetrics import MeanMetric

from fl_lightning import Federated
from fl_lightning.parts import Correction, Exchange, LocalObjective, Schedule
from zoo.entry import Entry, alike
from zoo.modules.base import Classifier
from zoo.modules.hooks_of_clients import KeepsHeads


class Chain(Schedule):
    """Cyclic training: a client starts where the one before has ended."""

    last: Any = None

    def start(self, slot: int, server: Any) -> Tensor:
        return server.model if self.last is None else self.last.vector

    def play(self, tasks: Any, server: Any) -> Any:
        self.last = None
        for self.last in (yield tasks):
            pass
        server.take(self.last)
        server.move()
        return server.model


class PassesOn(Exchange):
    """A client receives what the one before has sent."""

    def __init__(self) -> None:
        self.last: Tensor | None = None

    def on_round_start(self, round_index: int) -> None:
        self.last = None

    def download(self, task: Any, model: Tensor) -> Tensor:
        return model if self.last is None else self.last

    def upload(self, result: Any) -> Any:
        self.last = result.vector.clone()
        return result


class Grows(LocalObjective):
    """The pull grows with the clients that have ended."""

    def on_round_start(self, round_index: int) -> None:
        self.ended = 0

    def correction(self, client: Any) -> Correction:
        return Correction(pull=0.1 * self.ended)

    def on_client_end(self, result: Any) -> None:
        self.ended += 1


class Received(Exchange):
    """Half of the way back to the model that the client has received, as the last ``download`` left it."""

    def download(self, task: Any, model: Tensor) -> Tensor:
        self.received = model * (1 + 0.01 * task.client)
        return self.received

    def upload(self, result: Any) -> Any:
        return result.with_delta((result.vector - self.received) / 2)


class Norms(Exchange):
    """Shrinks a model by the norms that other clients have sent before."""

    def __init__(self) -> None:
        self.norms: dict[int, float] = {}

    def download(self, task: Any, model: Tensor) -> Tensor:
        return model / (1 + 0.01 * sum(self.norms.values()))

    def upload(self, result: Any) -> Any:
        self.norms[result.task.client] = float(result.delta.norm())
        return result


class OfRound(Exchange):
    """What is the same for all clients of a round is made once, when the first of them starts."""

    def __init__(self) -> None:
        self.round, self.factor = -1, 1.0
        self.own: dict[int, Tensor] = {}

    def download(self, task: Any, model: Tensor) -> Tensor:
        if task.round != self.round:
            self.round, self.factor = task.round, 1 / (1 + task.round)
        self.own[task.client] = model * (1 + 0.01 * task.client)
        return self.own[task.client]

    def upload(self, result: Any) -> Any:
        return result.with_delta((result.vector - self.own[result.task.client]) * self.factor)


class PullByLoss(LocalObjective):
    """The pull is the client's loss, before it trains."""

    def correction(self, client: Any) -> Correction:
        return Correction(pull=client.loss())


class Pull(Correction):
    """Pulls back to the start."""

    strength = 0.05

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        for parameter, received in zip(parameters, start, strict=True):
            parameter.grad.add_(parameter.detach() - received, alpha=self.strength)


class Stacking(Pull):
    """Says that a stack may add it, row by row."""

    stacks = True


class Warm(Pull):
    """Pulls harder with each step."""

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        object.__setattr__(self, "strength", self.strength + 0.05)
        super().add(parameters, start, linear)


class Memory(Correction):
    """Adds to each parameter's gradient the drifts of earlier steps."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "drifts", {})

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        drifts: dict[int, Tensor] = self.drifts  # type: ignore[attr-defined]
        for place, (parameter, received) in enumerate(zip(parameters, start, strict=True)):
            drifts[place] = 0.5 * drifts.get(place, 0.0) + parameter.detach() - received
            parameter.grad.add_(drifts[place])


class OfClass(Pull):
    """Pulls harder with each step of any client."""

    strengths: ClassVar[list[float]] = []

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        self.strengths.append(0.01)
        object.__setattr__(self, "strength", sum(self.strengths))
        super().add(parameters, start, linear)


class Kept(LocalObjective):
    """Returns for each client what a function of the client says it has returned before, or a new correction."""

    def __init__(self, make: Callable[[], Correction], key: Callable[[int], Any]) -> None:
        self.make, self.key, self.known = make, key, dict[Any, Correction]()
        OfClass.strengths.clear()

    def correction(self, client: Any) -> Correction:
        key = self.key(client.task.client)
        return self.make() if key is None else self.known.setdefault(key, self.make())


class Measured(Classifier):
    """Has a metric object of losses."""

    def prepare(self) -> None:
        self.losses = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.update(loss.detach())
        return loss  # type: ignore[no-any-return]


def of(part: str, make: Callable[[], Any]) -> Callable[..., Federated]:
    """Return what makes an algorithm with a part of that name."""
    return lambda **options: Federated(1.0, **{part: make()}, **options)


def with_part(name: str, part: str, make: Callable[[], Any], alone: str = "", **options: Any) -> Entry:
    trainer = {"max_epochs": 3}
    return Entry(name, Measured, algorithm=of(part, make), trainer=trainer, by_hand=False, alone=alone, **options)


def corrected(name: str, make: Callable[[], Correction], key: Callable[[int], Any], alone: str = "") -> Entry:
    return with_part(name, "objective", partial(Kept, make, key), alone)


ONE, EACH, NEW = (lambda client: 0), (lambda client: client), (lambda client: None)
ENTRIES = [
    with_part("schedule starts where the last client ended", "schedule", Chain, "a client hands on"),
    with_part("exchange made once a round", "exchange", OfRound, "it could hand on", long=True),
    with_part("pull by the client's loss", "objective", PullByLoss, callbacks=lambda: [KeepsHeads()]),
    *alike(
        with_part("exchange passes models on", "exchange", PassesOn, "a client hands on"),
        with_part("pull grows with ended clients", "objective", Grows, "a client hands on"),
        with_part("exchange keeps what it received last", "exchange", Received, "a client hands on"),
        with_part("exchange reads others' norms", "exchange", Norms, "a client hands on"),
    ),
    corrected("correction of each client in a stack", Stacking, EACH),
    *alike(
        corrected("correction of each client", Pull, EACH),
        corrected("new correction each time", Pull, NEW),
        corrected("one correction for all clients", Pull, ONE, "a correction is shared"),
    ),
    *alike(
        corrected("correction grows warm", Warm, NEW, "a correction keeps something"),
        corrected("correction grows warm, kept", Warm, EACH, "a correction keeps something"),
        corrected("correction of all clients grows warm", Warm, ONE, "a correction keeps something"),
        corrected("correction with a memory", Memory, NEW, "a correction keeps something"),
        corrected("correction with a memory, kept", Memory, EACH, "a correction keeps something"),
        corrected("correction counts in its class", OfClass, NEW, "a correction keeps something"),
    ),
]
