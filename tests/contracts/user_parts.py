"""Parts as users write them: with states, with vectors of clients, with draws, and around other parts."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts import (
    Aggregation,
    Asynchronous,
    ClientResult,
    ClientSampler,
    ClientVectors,
    Correction,
    Exchange,
    Federation,
    LocalClient,
    LocalObjective,
    Part,
    PreAggregation,
    Redistribution,
    Schedule,
    Server,
    ServerOptimizer,
    Synchronous,
    Task,
    Updates,
    VirtualClock,
)

# ---- states ----


class Counts:
    """Keeps and saves a count, and a list of it."""

    def __init__(self) -> None:
        self.count, self.seen = 0, list[int]()

    def go_on(self) -> int:
        self.count += 1
        self.seen.append(self.count)
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.seen = state["count"], list(state["seen"])


class InTurn(Counts, ClientSampler):
    def cohort_size(self, num_clients: int) -> int:
        return 3

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        first = self.go_on()
        return [(first + place) % num_clients for place in range(3)]


class FadingUpload(Counts, Exchange):
    """Counts rounds, and sends the less the later it is."""

    def on_round_start(self, round_index: int) -> None:
        self.go_on()

    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(result.delta / self.count)


class FadingPull(Counts, LocalObjective):
    def on_round_start(self, round_index: int) -> None:
        self.go_on()

    def correction(self, client: LocalClient) -> Correction:
        return Correction(pull=1 / self.count)


class FadingMerge(Counts, Aggregation):
    def __init__(self) -> None:
        super().__init__()
        self.deltas: list[Tensor] = []

    def update(self, result: ClientResult) -> None:
        self.deltas.append(result.delta)

    def merge(self, model: Tensor) -> Tensor | None:
        deltas, self.deltas = self.deltas, []
        return model + sum(deltas) / len(deltas) / self.go_on() if deltas else None


class FadingStep(Counts, ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model + (aggregate - model) / self.go_on()


class CountedCycle(Redistribution):
    """Has a state beside that of the library's class."""

    rounds = 0

    def on_round_end(self) -> None:
        super().on_round_end()
        self.rounds += 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rounds = state["rounds"]


# ---- vectors of clients ----


class Owing(Exchange):
    """Sends half of an update and of what the client owes, and keeps the rest."""

    def on_fit_start(self, federation: Federation) -> None:
        self.owed = [ClientVectors(federation, torch.zeros(federation.num_parameters, dtype=torch.float64))]

    def upload(self, result: ClientResult) -> ClientResult:
        half = (result.delta + self.owed[0][result.task.client]) / 2
        self.owed[0].put(result.task.client, half)
        return result.with_delta(half)


class Neighbour(Exchange):
    """Lets a client start from the vector that its neighbour had when the round began."""

    def on_fit_start(self, federation: Federation) -> None:
        self.states = ClientVectors(federation, federation.model)

    def on_round_start(self, round_index: int) -> None:
        self.known = self.states.state_dict()["clients"]  # on all processes

    def download(self, task: Task, model: Tensor) -> Tensor:
        return self.known.get((task.client + 1) % self.federation.num_clients, self.federation.model)

    def upload(self, result: ClientResult) -> ClientResult:
        self.states.put(result.task.client, result.vector)
        return result


class Slowed(ServerOptimizer):
    """Moves the less the more often a client's vector has changed, which all processes know."""

    def on_fit_start(self, federation: Federation) -> None:
        self.counts = ClientVectors(federation, torch.zeros(1, dtype=torch.float64))

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        for client in range(self.federation.num_clients):
            self.counts.put(client, self.counts[client] + client + 1)
        return model + (aggregate - model) / (1 + float(self.counts[0]))


class LeastSeen(ClientSampler):
    """Draws the clients that were scored least often."""

    def cohort_size(self, num_clients: int) -> int:
        return 3

    def on_fit_start(self, federation: Federation) -> None:
        self.seen = ClientVectors(federation, torch.zeros(1, dtype=torch.float64))

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return sorted(range(num_clients), key=lambda client: (float(self.seen[client]), client))[:3]

    def score(self, client: Any) -> float:
        self.seen.put(client.task.client, self.seen[client.task.client] + 1)
        return 1.0

    def take_scores(self, scores: Any) -> None:
        pass


class Damped(PreAggregation):
    """Halves the update of a client that was there before."""

    def on_fit_start(self, federation: Federation) -> None:
        self.seen = ClientVectors(federation, torch.ones(1, dtype=torch.float64))

    def mix(self, updates: Updates) -> Updates:
        clients = [result.task.client for result in updates.results]
        weights = torch.cat([self.seen[client] for client in clients])
        for client in clients:
            self.seen.put(client, self.seen[client] / 2)
        return updates.mixed(torch.diag(weights))


# ---- draws from the global generators ----


class DrawnCohort(ClientSampler):
    """Draws the clients with the largest scores, which are at first asked of some."""

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}

    def cohort_size(self, num_clients: int) -> int:
        return 3

    def clients_without_score(self) -> list[int]:
        return [] if self.scores else np.random.permutation(self.federation.num_clients)[:4].tolist()

    def score(self, client: Any) -> float:
        return float(np.random.random())

    def take_scores(self, scores: Any) -> None:
        self.scores |= {client: score + random.random() for client, score in scores.items()}

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return sorted(range(num_clients), key=lambda client: -self.scores.get(client, float(torch.rand(()))))[:3]

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self.scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores = state["scores"]


class DrawnLoss(LocalObjective):
    def loss_of(self, task: Task) -> float:
        return 1 + random.random()


class ByLoss(FadingMerge):
    """Weighs updates by the losses that clients send; stays where it is now and then."""

    def update(self, result: ClientResult) -> None:
        self.deltas.append(result.loss * result.delta)

    def merge(self, model: Tensor) -> Tensor | None:
        merged = super().merge(model)
        return merged if torch.rand(()) < 0.7 else None


class Sketch(Exchange):
    """Sends a projection of the update on a direction that is drawn when the fit begins."""

    def on_fit_start(self, federation: Federation) -> None:
        direction = torch.randn(federation.num_parameters).double()
        self.direction = direction / direction.norm()

    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(self.direction * (self.direction @ result.delta))


class DrawnSlots(Synchronous):
    """Draws the slots, a part of each result and what is shown."""

    def choose_slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> list[int]:
        return [int(slot) for slot in torch.randperm(num_active)]

    def receive(self, result: ClientResult, server: Server) -> None:
        super().receive(result.with_delta(result.delta * random.random()), server)

    def publish(self, server: Server, failed: Collection[int]) -> Tensor:
        shown = super().publish(server, failed)
        return shown + 0.01 * torch.randn_like(shown)


class DrawnClock(VirtualClock):
    def duration(self, client: int, number: int, share: Any = 1) -> int:
        return random.randrange(1, 100)


class DrawnArrivals(Asynchronous):
    """Draws how many clients are trained ahead, which part of a result arrives and whether it is used."""

    def to_train(self, arrivals: int) -> list[Task]:
        return super().to_train(random.randrange(1, arrivals + 1))

    def receive(self, result: ClientResult) -> None:
        super().receive(result.with_delta(result.delta * random.random()))

    def admits(self, result: ClientResult) -> bool:
        return float(torch.rand(())) < 0.7


# ---- around other parts ----


class HalfStep(ServerOptimizer):
    """Goes half of the way of another optimizer."""

    def __init__(self, inner: ServerOptimizer) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model + (self.inner.step(model, aggregate) - model) / 2


class Together(LocalObjective):
    """The sum of several objectives."""

    def __init__(self, *inner: LocalObjective) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> Sequence[Part]:
        return self.inner

    def correction(self, client: LocalClient) -> Correction:
        terms = [term for objective in self.inner if (term := objective.correction(client)) is not None]
        linear = [term.linear for term in terms if term.linear is not None]
        return Correction(pull=sum(term.pull for term in terms), linear=sum(linear, torch.zeros_like(client.start)))


class HalfOf(Aggregation):
    """Goes half of the way of another aggregation."""

    def __init__(self, inner: Aggregation) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def update(self, result: ClientResult) -> None:
        self.inner.update(result)

    def merge(self, model: Tensor) -> Tensor | None:
        merged = self.inner.merge(model)
        return None if merged is None else model + (merged - model[: len(merged)]) / 2


class DrawsAs(ClientSampler):
    """Draws as another sampler does."""

    def __init__(self, inner: ClientSampler) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def cohort_size(self, num_clients: int) -> int:
        return self.inner.cohort_size(num_clients)

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return self.inner.draw(num_clients, rng, available)


class Doubled(Exchange):
    """Does what another exchange does, and doubles the update."""

    def __init__(self, inner: Exchange) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def upload(self, result: ClientResult) -> ClientResult:
        result = self.inner.upload(result)
        return self.with_sent_update(result, 2 * self.sent_update(result))


class PlayedBy(Schedule):
    """Leaves everything to another schedule."""

    def __init__(self, inner: Schedule) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def start(self, slot: int, server: Server) -> Tensor:
        return self.inner.start(slot, server)

    def receive(self, result: ClientResult, server: Server) -> None:
        self.inner.receive(result, server)

    def publish(self, server: Server, failed: Collection[int]) -> Tensor:
        return self.inner.publish(server, failed)


# ---- more in a result than the update ----


class Claims(Exchange):
    """Tells the server other numbers of samples and a score; these travel to the aggregation."""

    def upload(self, result: ClientResult) -> ClientResult:
        client = result.task.client
        return replace(result, task=replace(result.task, num_samples=client + 1), score=4.0 if client == 0 else 1.0)


class ByClaims(Aggregation):
    """Moves by the mean update, weighted by claimed samples times score."""

    def __init__(self) -> None:
        self.results: list[ClientResult] = []

    def update(self, result: ClientResult) -> None:
        self.results.append(result)

    def merge(self, model: Tensor) -> Tensor | None:
        results, self.results = self.results, []
        weights = [result.num_samples * (result.score or 0.0) for result in results]
        moved = sum(weight * result.delta for weight, result in zip(weights, results, strict=True))
        return model + moved / sum(weights) if results else None
