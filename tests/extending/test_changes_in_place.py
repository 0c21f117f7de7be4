"""A part that writes to what it is given is refused, whatever it writes to and however.

Two clients reach their optima 2 and 4 in one step, so that a round of FedAvg moves the server to their mean, 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.algorithms import Net, data
from helpers.given_parts import Given, Merge, Step, Way
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import AggregationCallback, FedAvg, FedBuff, Federated, RADFed
from fl_lightning.parts import (
    Aggregation,
    ClientResult,
    ClientSampler,
    ClientStates,
    Compressor,
    Correction,
    Exchange,
    Federation,
    LocalAttack,
    RobustAggregation,
    StaleMean,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])
MAKE: dict[str, Callable[..., AggregationCallback]] = {
    "FedAvg": lambda **k: FedAvg(1.0, seed=1, **k),
    "RADFed": lambda **k: RADFed(1, 1.0, seed=1, **k),
    "FedBuff": lambda **k: FedBuff(2, 2, speeds=[1, 1], seed=1, **k),
}


def fit(callback: AggregationCallback, rounds: int = 2) -> float:
    return float(fit_quadratic(callback, Quadratic(1.0, [0.0]), CLIENTS, rounds))


@pytest.mark.parametrize("name", MAKE)
def test_a_part_must_not_change_what_it_is_given(name: str) -> None:
    make = MAKE[name]
    changing = {
        "Merge.merge": lambda: make(aggregation=Merge(lambda model, mean: model.copy_(mean))),
        "Way.download": lambda: make(exchange=Way(download=lambda model: model.mul_(0.5))),
        "Way.merged": lambda: make(exchange=Way(merged=lambda aggregate: aggregate.mul_(0.5))),
        "Way.published": lambda: make(exchange=Way(published=lambda model: model.mul_(0.5))),
        "Way.upload": lambda: make(exchange=Way(upload=lambda result: result.parameters.mul_(0.5))),
    }
    for method, callback in changing.items():
        with pytest.raises(RuntimeError, match=f"`{method}` changed a tensor in place .* `model.clone\\(\\)`"):
            fit(callback())


@pytest.mark.parametrize("place", [0, 1])
def test_a_server_optimizer_must_not_change_what_it_is_given(place: int) -> None:
    with pytest.raises(RuntimeError, match=r"`Step.step` changed a tensor in place"):
        fit(Federated(1.0, server=Step(lambda *given: given[place].mul_(0.5))))


class Shrinking(Correction):
    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        for received in start:
            received.mul_(0.5)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_model_that_a_client_received_stays_as_it_is(executor: Any) -> None:
    with pytest.raises(RuntimeError, match=r"client \d received was changed in place .* `Given.correction`"):
        fit(Federated(1.0, objective=Given(Shrinking), executor=executor))


class Reusing(Exchange):
    """Sends all clients one tensor, written anew for each."""

    def on_fit_start(self, federation: Any) -> None:
        self.kept = torch.empty_like(federation.model)

    def download(self, task: Any, model: Tensor) -> Tensor:
        return self.kept.copy_(model)


def test_clients_that_train_together_get_tensors_of_their_own() -> None:
    callback = FedAvg(4, exchange=Reusing(), executor="vectorized", seed=1)
    # in round 1 they train one after the other
    with pytest.raises(RuntimeError, match=r"client \d received was changed in place .* `Reusing.download` or a hook"):
        quiet_trainer(max_epochs=2, callbacks=[callback]).fit(Net(), datamodule=data())


# ---- a client's update ----


class Uploading(Exchange):
    """Changes the update in place, and returns the result."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        self.change = change

    def upload(self, result: ClientResult) -> ClientResult:
        self.change(result.delta)
        return result


@pytest.mark.parametrize("name", MAKE)
def test_an_update_is_not_clipped_in_place(name: str) -> None:
    # the tensor would be a new one each time, so that nothing would be clipped
    for change in (lambda delta: delta.clamp_(-1, 1), lambda delta: delta[0].zero_()):
        with pytest.raises(RuntimeError, match=r"`Uploading.upload` changed a tensor in place"):
            fit(MAKE[name](exchange=Uploading(change)))
    right = Way(upload=lambda result: result.with_delta(result.delta.clamp(-1, 1)))
    assert fit(FedAvg(1.0, exchange=right), rounds=1) == 1.0


class MergingInPlace(Aggregation):
    """Halves the updates of a round in place, when they arrive or when they are merged."""

    def __init__(self, when: str) -> None:
        self.when, self.results = when, list[ClientResult]()

    def update(self, result: ClientResult) -> None:
        self.results.append(result)
        if self.when == "update":
            result.delta.mul_(0.5)

    def merge(self, model: Tensor) -> Tensor | None:
        results, self.results = self.results, []
        for result in results if self.when == "merge" else []:
            result.delta.mul_(0.5)
        return model + torch.stack([result.delta for result in results]).mean(0) if results else None


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("when", ["update", "merge"])
def test_updates_that_an_aggregation_keeps_are_not_changed_in_place(name: str, when: str) -> None:
    with pytest.raises(RuntimeError, match=f"`MergingInPlace.{when}` changed a tensor in place"):
        fit(MAKE[name](aggregation=MergingInPlace(when)))
    assert fit(FedAvg(1.0, aggregation=MergingInPlace("never")), rounds=1) == 3.0


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result.vector.numpy().fill(1.0),
        lambda result: result.parameters.data.fill_(1.0),
        lambda result: result.start.numpy().fill(1.0),
        lambda result: result.delta.numpy().fill(1.0),
        lambda result: result.delta.data.fill_(1.0),
    ],
)
def test_writes_that_tensors_do_not_count_are_seen_in_the_first_rounds(change: Callable[[ClientResult], Any]) -> None:
    def upload(result: ClientResult) -> ClientResult:
        change(result)
        return result

    with pytest.raises(RuntimeError, match=r"`Way.upload` changed a tensor in place"):
        fit(FedAvg(1.0, exchange=Way(upload=upload)))


# ---- methods of the library's own bases ----


class Halving(Compressor):
    """Sends half of each value; writes it into what it was given, or not."""

    feeds_back = True

    def __init__(self, link: Any, *, in_place: bool) -> None:
        super().__init__(link)
        self.in_place = in_place

    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        return values.mul_(0.5) if self.in_place else values * 0.5

    def encoded(self, payload: Any) -> Any:
        return payload


@pytest.mark.parametrize("link", ["up", "down"])
def test_a_compression_that_writes_to_its_values_is_refused(link: str) -> None:
    # in place, nothing would be left over for error feedback
    with pytest.raises(RuntimeError, match=r"`Halving.compress` changed a tensor in place"):
        fit(FedAvg(1.0, exchange=Halving(link, in_place=True)))


def test_error_feedback_of_a_compression_of_ones_own() -> None:
    # round 1: half of 2 and of 4 is sent, the server is at 1.5, and 1 and 2 are owed;
    # round 2: the updates 0.5 and 2.5 with what is owed are 1.5 and 4.5, of which half moves the server by 1.5
    assert fit(FedAvg(1.0, exchange=Halving("up", in_place=False)), rounds=2) == 3.0


class Forging(LocalAttack):
    def forged(self, update: Tensor, generator: torch.Generator) -> Tensor:
        return update.neg_()


class Ruling(RobustAggregation):
    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def rule(self, updates: Any) -> Any:
        return self.returned


def test_attacks_and_robust_rules_of_ones_own_are_checked() -> None:
    with pytest.raises(RuntimeError, match=r"`Forging.forged` changed a tensor in place"):
        fit(FedAvg(1.0, exchange=Forging([0])))
    with pytest.raises(TypeError, match=r"`Ruling.rule` returned None; .* \(1,\), the server's step.* Is a `return`"):
        fit(FedAvg(1.0, aggregation=Ruling(None)))
    with pytest.raises(ValueError, match=r"`Ruling.rule` returned a tensor of shape \(2,\)"):
        fit(FedAvg(1.0, aggregation=Ruling(torch.zeros(2, dtype=torch.float64))))


# ---- vectors of clients ----


class Summing(Exchange):
    """Sends half of the sum of a client's updates; ``add`` gives the new sum of the old one and the update."""

    def __init__(self, add: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.add = add

    def on_fit_start(self, federation: Any) -> None:
        self.states = ClientStates(federation, torch.zeros(1, dtype=torch.float64))

    def upload(self, result: ClientResult) -> ClientResult:
        client = result.task.client
        total = self.add(self.states[client], result.delta)
        self.states.put(client, total)
        return result.with_delta(0.5 * total)


def test_vectors_of_clients_are_not_changed_in_place() -> None:
    # all clients without a vector of their own share the first one
    with pytest.raises(RuntimeError, match=r"client \d was changed in place after `ClientStates` had handed it out"):
        fit(FedAvg(1.0, exchange=Summing(lambda total, update: total.add_(update))))
    # round 1: sums 2 and 4, the server moves by 1.5; round 2: sums 2.5 and 6.5, it moves by 2.25
    assert fit(FedAvg(1.0, exchange=Summing(lambda total, update: total + update))) == 3.75


def test_vectors_of_clients_are_not_changed_after_they_were_handed_in() -> None:
    shared = torch.zeros(1, dtype=torch.float64)
    exchange = Summing(lambda total, update: shared.copy_(total + update))
    with pytest.raises(RuntimeError, match=r"client \d was changed in place after `ClientStates` had taken it"):
        fit(FedAvg(1.0, exchange=exchange))


@pytest.mark.parametrize(
    ("vector", "error", "text"),
    [
        (None, TypeError, r"`states.put\(\d, vector\)` needs a floating-point tensor of shape \(1,\), got None"),
        (torch.zeros(1, dtype=torch.int64), TypeError, "needs a floating-point tensor"),
        (torch.zeros(2), ValueError, r"needs a tensor of shape \(1,\), .* got shape \(2,\)"),
    ],
)
def test_what_is_no_vector_of_a_client_is_refused(vector: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fit(FedAvg(1.0, exchange=Summing(lambda total, update: vector)))


class Overwrites(Exchange):
    """Keeps what it is given when the fit begins, and writes to it then or when a round ends."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_fit_start(self, federation: Federation) -> None:
        self.average, self.sizes = federation.model, federation.sizes
        self.write("on_fit_start")

    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(result.delta)

    def on_round_end(self) -> None:
        super().on_round_end()
        self.write("on_round_end")

    def write(self, when: str) -> None:
        if when == self.when:
            self.average.mul_(0.5).add_(100.0)
            self.sizes[0] = 100

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]


class Holds(Aggregation):
    """A mean, with another part in it; it notes the first model that it finds."""

    def __init__(self, held: Exchange) -> None:
        self.held, self.results, self.first = held, list[ClientResult](), list[float]()

    @property
    def held_parts(self) -> list[Exchange]:
        return [self.held]

    def update(self, result: ClientResult) -> None:
        self.results.append(result)

    def merge(self, model: Tensor) -> Tensor:
        self.first.append(float(self.federation.model))
        results, self.results = self.results, []
        total = sum(result.num_samples for result in results)
        return model + sum(result.num_samples * result.delta for result in results) / total

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("when", ["on_fit_start", "on_round_end"])
@pytest.mark.parametrize("held", [False, True])
def test_a_part_may_write_to_its_federation(when: str, held: bool) -> None:
    aggregation = Holds(Overwrites(when if held else "never"))
    exchange = Overwrites("never" if held else when)
    callback = FedAvg(1.0, server_lr=0.5, aggregation=aggregation, exchange=exchange)
    # both clients have one sample: the server moves half of the way to 3, from 0 to 1.5, 2.25 and 2.625
    assert fit(callback, 3) == 2.625
    assert aggregation.first == [0.0] * 3
    written = aggregation.held if held else exchange
    assert float(written.average) == (100.0 if when == "on_fit_start" else 175.0)
    assert float(callback.algorithm.state_dict()["first"]) == 0.0


class Wraps(Aggregation):
    """Leaves everything to the aggregation that it holds, and writes to the model that it is given."""

    def __init__(self, inner: Aggregation) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> list[Aggregation]:
        return [self.inner]

    def on_fit_start(self, federation: Federation) -> None:
        federation.model.fill_(100.0)

    def update(self, result: ClientResult) -> None:
        self.inner.update(result)

    def merge(self, model: Tensor) -> Tensor | None:
        return self.inner.merge(model)


def test_what_a_part_writes_to_its_federation_is_not_seen_by_the_parts_that_it_holds() -> None:
    # one client reaches its optimum, the other one still has the first model, 0
    moved = fit(FedAvg(1, seed=1, aggregation=Wraps(StaleMean())), 1)
    assert moved in (1.0, 2.0)


class Corrects(Exchange):
    """Keeps clients' vectors, of which the first one and the weights change later."""

    def on_fit_start(self, federation: Federation) -> None:
        self.common, self.weights = torch.zeros(1, dtype=torch.float64), np.array([1.0, 3.0])
        self.states = ClientStates(federation, self.common, self.weights)
        self.seen: list[float] = []

    def upload(self, result: ClientResult) -> ClientResult:
        client = result.task.client
        self.seen.append(float(self.states[client]))
        self.states.put(client, self.states[client] + client + 1)
        return result

    def on_round_end(self) -> None:
        super().on_round_end()
        self.common += 50.0
        self.weights[:] = 7.0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_the_first_vector_of_clients_may_change_later() -> None:
    exchange = Corrects()
    fit(FedAvg(sampler=InTurn(), exchange=exchange), 3)  # clients 0, 1, 0
    assert exchange.seen == [0.0, 0.0, 1.0]
    assert float(exchange.states.mean) == (1 * 2.0 + 3 * 2.0) / 4


class InTurn(ClientSampler):
    """One client after the other."""

    def cohort_size(self, num_clients: int) -> int:
        return 1

    def on_round_start(self, round_index: int) -> None:
        self.next = round_index

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> list[int]:
        return [self.next % num_clients]
