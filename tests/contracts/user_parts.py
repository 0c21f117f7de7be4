"""Parts as users write them: with states, with vectors of clients, with draws, and around other parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning import parts

# ---- states ----


class Counts(parts.Part):
    """Keeps a count, and a list of it."""

    def setup(self, federation: parts.Federation) -> None:
        self.add_state("count", 0)
        self.add_state("seen", [])

    def go_on(self) -> int:
        self.count += 1
        self.seen.append(self.count)
        return self.count


class FadingUpload(Counts, parts.Exchange):
    """Counts rounds, and sends the less the later it is."""

    def on_round_start(self, round_index: int) -> None:
        self.go_on()

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        return result.with_delta(result.delta / self.count)


class FadingMerge(Counts, parts.Aggregation):
    def merge(self, model: Tensor, results: Sequence[parts.ClientResult]) -> Tensor:
        return model + sum(result.delta for result in results) / len(results) / self.go_on()


class FadingStep(Counts, parts.ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model + (aggregate - model) / self.go_on()


class CountedCycle(parts.Redistribution):
    """Has a state beside that of the library's class, and one that is saved as another kind."""

    def setup(self, federation: parts.Federation) -> None:
        super().setup(federation)
        self.add_state("rounds", frozenset())

    def on_round_end(self) -> None:
        self.rounds |= {self.round}

    def saved(self, name: str, value: Any) -> Any:
        return sorted(value) if name == "rounds" else super().saved(name, value)

    def loaded(self, name: str, value: Any) -> Any:
        return frozenset(value) if name == "rounds" else super().loaded(name, value)


# ---- vectors of clients ----


class Neighbour(parts.Exchange):
    """Lets a client start from the vector that its neighbour had when the round began."""

    def setup(self, federation: parts.Federation) -> None:
        self.add_state("known", {})

    def on_round_start(self, round_index: int) -> None:
        self.trained: dict[int, Tensor] = {}

    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return self.known.get((task.client + 1) % self.federation.num_clients, self.federation.model)

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        self.trained[result.client] = result.vector
        return result

    def on_round_end(self) -> None:
        for trained in self.federation.gather(self.trained):
            self.known |= dict(sorted(trained.items()))


class Slowed(parts.ServerOptimizer):
    """Moves the less the more often a client's vector has changed, which all processes know."""

    def setup(self, federation: parts.Federation) -> None:
        self.add_client_vectors("counts", torch.zeros(1, dtype=torch.float64))

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        for client in range(self.federation.num_clients):
            self.counts[client] = self.counts[client] + client + 1
        return model + (aggregate - model) / (1 + float(self.counts[0]))


# ---- draws ----


class Drawn(parts.Part):
    def noisy(self, vector: Tensor, task: parts.Task | None = None, place: int = 0) -> Tensor:
        drawn = torch.randn(vector.shape, generator=self.generator(task, place), dtype=torch.float64)
        return vector + 0.01 * drawn.to(vector)


class DrawnWay(Drawn, parts.Exchange):
    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return self.noisy(model, task)

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        return result.with_delta(self.noisy(result.delta, result.task, 1))

    def on_aggregate(self, aggregate: Tensor) -> Tensor:
        return self.noisy(aggregate)

    def on_publish(self, model: Tensor) -> Tensor:
        return self.noisy(model, place=1)


class DrawnStep(Drawn, parts.ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return self.noisy(aggregate)


class DrawnCohort(parts.ClientSampler):
    """Draws the clients with the largest scores, which are at first asked of some."""

    def setup(self, federation: parts.Federation) -> None:
        self.add_state("scores", {})

    def cohort_size(self, num_clients: int) -> int:
        return 3

    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> list[int]:
        return (
            [] if self.scores else torch.randperm(self.federation.num_clients, generator=self.generator())[:4].tolist()
        )

    def score(self, client: parts.LocalClient) -> float:
        return float(torch.rand((), generator=self.generator(client.task)))

    def take_scores(self, scores: Mapping[int, float]) -> None:
        self.scores |= scores

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return sorted(range(num_clients), key=lambda client: -self.scores.get(client, rng.random()))[:3]


class Sketch(parts.Exchange):
    """Sends a projection of the update on a direction that is drawn when the fit begins."""

    def setup(self, federation: parts.Federation) -> None:
        direction = torch.randn(federation.num_parameters, generator=self.generator(), dtype=torch.float64)
        self.direction = direction / direction.norm()

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        return result.with_delta(self.direction * (self.direction @ result.delta))


# ---- around other parts ----


class Together(parts.LocalObjective):
    """The sum of several objectives, of which one sends a second vector."""

    vectors_sent = 2
    starts_from_server = True
    needs_summed_lr = True

    def __init__(self, *inner: parts.LocalObjective) -> None:
        self.inner = inner

    def correction(self, client: parts.LocalClient) -> parts.Term:
        pull = 0.0
        linear = self.federation.zeros()
        for objective in self.inner:
            term = objective.correction(client)
            if term is not None:
                assert isinstance(term, parts.Term)
                pull += term.pull
                if term.linear is not None:
                    linear = linear + term.linear
        return parts.Term(pull=pull, linear=linear)

    def on_client_end(self, result: parts.ClientResult) -> None:
        for objective in self.inner:
            objective.on_client_end(result)


class PlayedBy(parts.Schedule):
    """Leaves everything to another schedule, whose models circulate, and counts its rounds."""

    circulates = True

    def __init__(self, inner: parts.Schedule) -> None:
        self.inner, self.played = inner, 0

    @property
    def has_models_under_way(self) -> bool:
        return self.inner.has_models_under_way

    @property
    def shows_aggregate(self) -> bool:
        return self.inner.shows_aggregate

    def slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> Sequence[int]:
        return self.inner.slots(num_active, cohort_size, rng)

    def sent(self, task: parts.Task, server: parts.Server) -> Tensor:
        return self.inner.sent(task, server)

    def start(self, task: parts.Task, received: Tensor) -> Tensor:
        return self.inner.start(task, received)

    def play(self, tasks: Sequence[parts.Task], server: parts.Server) -> Any:
        self.played += 1
        return (yield from self.inner.play(tasks, server))


class Doubled(parts.Exchange):
    """Does what another exchange does, and doubles the update."""

    def __init__(self, inner: parts.Exchange) -> None:
        self.inner = inner

    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return self.inner.download(task, model)

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        result = self.inner.upload(result)
        return self.with_sent_update(result, 2 * self.sent_update(result))

    def on_publish(self, model: Tensor) -> Tensor:
        return self.inner.on_publish(model)

    def travels(self, name: str) -> bool:
        return self.inner.travels(name)


# ---- more in a result than the update ----


class Claims(parts.Exchange):
    """Tells the server other numbers of samples and a score; these travel to the aggregation."""

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        client = result.client
        return replace(result, task=replace(result.task, num_samples=client + 1), score=4.0 if client == 0 else 1.0)


class ByClaims(parts.Aggregation):
    """Moves by the mean update, weighted by claimed samples times score."""

    def merge(self, model: Tensor, results: Sequence[parts.ClientResult]) -> Tensor:
        weights = [result.num_samples * (result.score or 0.0) for result in results]
        return model + sum(w * result.delta for w, result in zip(weights, results, strict=True)) / sum(weights)
