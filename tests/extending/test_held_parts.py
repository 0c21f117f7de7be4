"""A part of a user's own that holds another: its hooks are called, its state is saved, and it must be told of.

Two clients reach their optima 2 and 4 in one step, so that each round's aggregate is 3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, FedBuff, Federated, TensorDataModule
from fl_lightning.diagnostics import Communication
from fl_lightning.parts import (
    Aggregation,
    Bucketing,
    ClientResult,
    ClientSampler,
    Clip,
    ControlVariates,
    Correction,
    CurrentMean,
    DifferentialPrivacy,
    Exchange,
    Federation,
    ImportanceSampler,
    LocalClient,
    LocalObjective,
    Median,
    Momentum,
    Part,
    Participation,
    PersonalParameters,
    Proximal,
    Redistribution,
    Schedule,
    Server,
    ServerOptimizer,
    TopK,
    WeightedMean,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


def run(callback: Any, rounds: int, path: Path | None = None) -> tuple[float, Any]:
    module, trainer = Quadratic(1.0, [0.0]), quiet_trainer(max_epochs=rounds, callbacks=[callback])
    trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None), ckpt_path=path)
    return float(module.w), trainer


class Halved(ServerOptimizer):
    """Goes half of the way that another optimizer goes; counts its steps, and saves their number."""

    def __init__(self, inner: ServerOptimizer) -> None:
        self.inner, self.count = inner, 0

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.count += 1
        return model + (self.inner.step(model, aggregate) - model) / 2

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state.keys() == {"count"}  # its own state alone
        self.count = state["count"]


MAKERS: dict[str, Callable[[ServerOptimizer], Any]] = {
    "FedAvg": lambda server: Federated(1.0, server=server),
    "FedBuff": lambda server: FedBuff(2, 2, speeds=[1, 2], server=server),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_state_of_a_held_part_is_saved(name: str, tmp_path: Path) -> None:
    make = MAKERS[name]
    run(make(Halved(Momentum(0.9))), 2)[1].save_checkpoint(tmp_path / "last.ckpt")
    server = Halved(Momentum(0.9))
    assert run(make(server), 4, tmp_path / "last.ckpt")[0] == run(make(Halved(Momentum(0.9))), 4)[0]
    assert server.count == 4


def test_a_held_part_has_hooks_and_a_federation() -> None:
    calls: list[str] = []

    class Told(ServerOptimizer):
        def on_fit_start(self, federation: Federation) -> None:
            calls.append(f"fit of {self.federation.num_clients}")

        def on_round_start(self, round_index: int) -> None:
            calls.append(f"start {round_index}")

        def on_round_end(self) -> None:
            calls.append("end")

        def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
            return aggregate

    assert run(Federated(1.0, server=Halved(Told())), 2)[0] == 1.5 + 0.75
    assert calls == ["fit of 2", "start 0", "end", "start 1", "end"]


class Around(Aggregation):
    """Another aggregation, in a list."""

    def __init__(self) -> None:
        self.all = [Median()]

    @property
    def held_parts(self) -> Sequence[Part]:
        return self.all

    def update(self, result: ClientResult) -> None:
        self.all[0].update(result)

    def merge(self, model: Tensor) -> Tensor | None:
        return self.all[0].merge(model)


def test_an_aggregation_may_hold_one_in_a_list() -> None:
    assert run(FedAvg(1.0, aggregation=Around()), 1)[0] == 3.0


class AddedUp(Aggregation):
    """Moves by a quarter of the sum of all updates, over all processes."""

    reduces_over_ranks = True

    def __init__(self) -> None:
        self.sum = torch.zeros(1, dtype=torch.float64)

    def update(self, result: ClientResult) -> None:
        self.sum = self.sum + result.delta

    def merge(self, model: Tensor) -> Tensor | None:
        total, self.sum = self.federation.sum_over_ranks(self.sum), torch.zeros_like(self.sum)
        return model + total / 4


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
        return None if merged is None else model + (merged - model) / 2


class SaveWeight(L.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.save(pl_module.w.detach(), self.folder / f"{trainer.global_rank}.pt")


@pytest.mark.parametrize("inner", [AddedUp, CurrentMean])
def test_a_held_aggregation_counts_each_client_once_on_two_processes(inner: type[Aggregation], tmp_path: Path) -> None:
    callbacks = [FedAvg(1.0, aggregation=HalfOf(inner())), SaveWeight(tmp_path)]
    trainer = quiet_trainer(max_epochs=2, devices=2, strategy="ddp_fork", callbacks=callbacks)
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None))
    # the updates 2 and 4 add up to 6, so w goes from 0 to 6 / 8; then by (1.25 + 3.25) / 8. The mean of both is 3
    expected = 0.75 + 4.5 / 8 if inner is AddedUp else 1.5 + 0.75
    assert [float(torch.load(tmp_path / f"{rank}.pt", weights_only=True)) for rank in range(2)] == [expected] * 2


def attribute(name: str, value: Any) -> type:
    return type("Silent", (Exchange,), {"__init__": lambda self: setattr(self, name, value), "upload": lambda s, r: r})


@pytest.mark.parametrize("held", [Clip(1.0), [Clip(1.0)], (None, Clip(1.0)), {"clip": Clip(1.0)}])
def test_a_part_that_is_not_told_of_is_an_error(held: Any) -> None:
    with pytest.raises(TypeError, match=r"`Silent` holds a Clip in `self.inner[^`]*`, whose hooks would not be called"):
        FedAvg(1.0, exchange=attribute("inner", held)())


def test_a_part_that_is_made_when_the_fit_starts_is_told_of_too() -> None:
    class Late(Exchange):
        def on_fit_start(self, federation: Federation) -> None:
            self.inner = TopK(0.5)

        def upload(self, result: ClientResult) -> ClientResult:
            return result

    with pytest.raises(TypeError, match=r"return \[self.inner\]"):
        run(FedAvg(1.0, exchange=Late()), 1)


def test_a_part_may_know_the_other_parts() -> None:
    class Knows(LocalObjective):
        def check_beside(self, parts: Any) -> None:
            self.beside = dict(parts)

        def correction(self, client: Any) -> None:
            return None

    assert run(Federated(1.0, objective=Knows()), 1)[0] == 3.0


@pytest.mark.parametrize("base", [ServerOptimizer, Exchange, WeightedMean])
@pytest.mark.parametrize("name", ["restore", "readable_state", "client_states"])
def test_what_the_library_calls_is_not_replaced(base: type, name: str) -> None:
    with pytest.raises(TypeError, match=rf"`Mine.{name}` replaces a method of the library that no part may replace"):
        type("Mine", (base,), {name: lambda self: {}})


def test_a_state_that_nobody_would_take_is_an_error(tmp_path: Path) -> None:
    run(Federated(1.0, server=Halved(Momentum(0.9))), 1)[1].save_checkpoint(tmp_path / "last.ckpt")

    class Alone(Halved):
        @property
        def held_parts(self) -> Sequence[Part]:
            return []

        def __init__(self) -> None:
            self.count = 0

        def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
            return aggregate

    Alone.__name__ = Alone.__qualname__ = "Halved"
    with pytest.raises(ValueError, match=r"holds the state of Momentum, which Halved no longer holds"):
        run(Federated(1.0, server=Alone()), 2, tmp_path / "last.ckpt")


def test_a_robust_rule_holds_its_step(tmp_path: Path) -> None:
    run(FedAvg(1.0, aggregation=Median(Bucketing(1))), 1)[1].save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FedAvg"]["aggregation"]
    assert state == {"fl_lightning.held_parts": {"0-Bucketing": {}}}


# ---- attributes that hide methods ----


@pytest.mark.parametrize(
    ("base", "name", "value", "message"),
    [
        (
            ServerOptimizer,
            "step",
            0,
            r"sets its attribute `step` to 0, which hides the method `step` of Server",
        ),
        (Exchange, "values", [], r"sets its attribute `values` to \[\], which hides the method `values` of Exchange"),
        (Exchange, "states", {}, r"`Mine.states` must be a ClientStates or None, got \{\}"),
    ],
)
@pytest.mark.parametrize("when", ["__init__", "on_fit_start"])
def test_an_attribute_hides_no_method(base: type, name: str, value: Any, message: str, when: str) -> None:
    own: dict[str, Any] = {when: lambda self, *args: setattr(self, name, value), "upload": lambda self, result: result}
    kind = type("Mine", (base,), {**own, **({} if base is Exchange else {"step": lambda self, model, new: new})})
    option = {"exchange" if base is Exchange else "server": kind}
    if when == "__init__":
        with pytest.raises(TypeError, match=message):
            Federated(1.0, **{key: make() for key, make in option.items()})
    else:
        callback = Federated(1.0, **{key: make() for key, make in option.items()})
        with pytest.raises(TypeError, match=message):
            run(callback, 1)


class HalfAndMean(Exchange, Aggregation):
    """Halves updates on their way, and merges them: two roles."""

    def __init__(self) -> None:
        self.deltas: list[Tensor] = []

    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(result.delta / 2)

    def update(self, result: ClientResult) -> None:
        self.deltas.append(result.delta)

    def merge(self, model: Tensor) -> Tensor:
        deltas, self.deltas = self.deltas, []
        return model + sum(deltas) / len(deltas)


class MeanWith(HalfAndMean):
    """Holds other parts."""

    def __init__(self, *held: Part) -> None:
        super().__init__()
        self.held = list(held)

    @property
    def held_parts(self) -> Sequence[Part]:
        return self.held


class HoldsItself(MeanWith):
    @property
    def held_parts(self) -> Sequence[Part]:
        return [self]


class MakesLate(MeanWith):
    """Takes a part of another place when the fit begins."""

    def __init__(self, late: Part) -> None:
        super().__init__()
        self.late = [late]

    def on_fit_start(self, federation: Federation) -> None:
        self.held = self.late


def in_two_places() -> dict[str, tuple[Callable[[], Any], str]]:
    both, clip, step, late = HalfAndMean(), Clip(1.0), Momentum(0.5), Clip(2.0)
    chained, inner = Clip(3.0), Clip(4.0)
    of_another = r"in `held_parts` of {}: one object, whose hooks both places would call\. Make another one"
    return {
        "two roles": (lambda: FedAvg(1.0, exchange=both, aggregation=both), r"as `aggregation` and as `exchange`: one"),
        "held twice": (lambda: FedAvg(1.0, aggregation=MeanWith(clip, clip)), of_another.format("MeanWith")),
        "held by two": (
            lambda: FedAvg(1.0, aggregation=MeanWith(inner), exchange=MeanWith(inner)),
            f"in `held_parts` of MeanWith and {of_another.format('MeanWith')}",
        ),
        "in the chain, and held": (
            lambda: FedAvg(1.0, aggregation=MeanWith(chained), exchange=[TopK(0.5), chained]),
            r"in `held_parts` of MeanWith and as `exchange`: one object",
        ),
        "held by its role's other object": (
            lambda: Federated(1.0, server=step, aggregation=MeanWith(step)),
            r"in `held_parts` of MeanWith and as `server`: one object",
        ),
        "held by itself": (
            lambda: FedAvg(1.0, aggregation=HoldsItself()),
            f"as `aggregation` and {of_another.format('HoldsItself')}",
        ),
        "when the fit begins": (
            lambda: run(FedAvg(1.0, aggregation=MakesLate(late), exchange=late), 1),
            r"in `held_parts` of MakesLate and as `exchange`: one object",
        ),
    }


@pytest.mark.parametrize("name", in_two_places())
def test_one_object_in_two_places_is_an_error(name: str) -> None:
    make, message = in_two_places()[name]
    with pytest.raises(ValueError, match=rf"\) is given twice, .*{message}"):
        make()


def test_two_objects_of_a_class_with_two_roles_are_none() -> None:
    # the updates 2 and 4 are halved on their way; the aggregation's own `upload` is not called
    assert run(FedAvg(1.0, exchange=HalfAndMean(), aggregation=HalfAndMean()), 1)[0] == 1.5


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


def scaffold_with_prox(rounds: int, mu: float) -> float:
    """SCAFFOLD, option 2, whose clients also have a proximal term: (w - c)^2 / 2, three steps of learning rate 0.1."""
    w, variates = 0.0, [0.0, 0.0]
    for _ in range(rounds):
        mean, ends = sum(variates) / 2, []
        for client, optimum in enumerate([2.0, 4.0]):
            local = w
            for _ in range(3):
                local -= 0.1 * (local - optimum - variates[client] + mean + mu * (local - w))
            variates[client] += (w - local) / 0.3 - mean
            ends.append(local)
        w = sum(ends) / 2
    return w


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_held_objectives_are_told_of_clients_that_end(executor: Any) -> None:
    objective = Together(ControlVariates(), Proximal(0.5))
    algorithm = Federated(1.0, objective=objective, local_epochs=3, executor=executor)
    module, trainer = Quadratic(0.1, [0.0]), quiet_trainer(max_epochs=3, callbacks=[algorithm])
    trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None))
    assert float(module.w) == pytest.approx(scaffold_with_prox(3, 0.5), abs=1e-12)
    assert float(objective.inner[0].variates.mean) != 0
    # three rounds, two clients, each a model and a control variate
    assert trainer.callback_metrics["fed/models_sent"] == 3 * 2 * 2 * 2


def test_an_objective_that_only_looks_leaves_the_rest_to_the_one_that_it_holds() -> None:
    class Looks(LocalObjective):
        def __init__(self, inner: LocalObjective) -> None:
            self.inner = inner
            self.ended: list[int] = []

        @property
        def held_parts(self) -> Sequence[Part]:
            return [self.inner]

        def on_client_end(self, result: ClientResult) -> None:
            super().on_client_end(result)
            self.ended.append(result.task.client)

    def end(objective: LocalObjective) -> float:
        module = Quadratic(0.1, [0.0])
        callback = Federated(1.0, objective=objective, local_epochs=3)
        quiet_trainer(max_epochs=3, callbacks=[callback]).fit(
            module, datamodule=TensorDataModule(CLIENTS, batch_size=None)
        )
        return float(module.w)

    looks = Looks(ControlVariates())
    assert end(looks) == end(ControlVariates()) == pytest.approx(scaffold_with_prox(3, 0.0), abs=1e-12)
    assert sorted(looks.ended) == [0, 0, 0, 1, 1, 1]


def test_an_objective_must_join_the_corrections_of_several() -> None:
    class Silent(Together):
        correction = LocalObjective.correction

    with pytest.raises(TypeError, match=r"Silent holds 2 objectives and does not define `correction`"):
        run(Federated(1.0, objective=Silent(Proximal(1.0), Proximal(1.0))), 1)


def test_a_held_objective_that_starts_from_the_server_is_refused_with_redistribution() -> None:
    with pytest.raises(ValueError, match=r"Together cannot train circulating models"):
        Federated(1.0, objective=Together(ControlVariates()), schedule=Redistribution(2))


class Named(ClientSampler):
    """Draws as another sampler does."""

    def __init__(self, inner: ClientSampler) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def cohort_size(self, num_clients: int) -> int:
        return self.inner.cohort_size(num_clients)

    def draw(self, num_clients: int, rng: Any, available: Any = None) -> Any:
        return self.inner.draw(num_clients, rng, available)


def test_a_held_sampler_is_given_scores() -> None:
    # f_k = (w - c_k)^2 / 2 from 0: the squared gradient is c_k^2, and 0 at the optimum, where training ends
    inner = ImportanceSampler(1, gamma=0.5)
    run(FedAvg(sampler=Named(inner), seed=1), 1)
    assert sorted(inner.scores.tolist()) in ([2.0, 16.0], [4.0, 8.0])


class Asking(ClientSampler):
    """Draws the client with the largest score at the server's model; asks no client after its training."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.compared: list[dict[int, float]] = []

    def cohort_size(self, num_clients: int) -> int:
        return 1

    def clients_without_score(self) -> list[int]:
        return list(range(self.federation.num_clients))

    def take_scores(self, scores: Any) -> None:
        self.losses = dict(scores)

    def draw(self, num_clients: int, rng: Any, available: Any = None) -> Any:
        self.compared.append(self.losses)
        return np.array([max(self.losses, key=self.losses.__getitem__)])


class LargestLoss(Asking):
    needs_scores = False

    def score(self, client: Any) -> float:
        return float(client.loss())


def test_a_held_sampler_that_asks_for_scores_only_before_a_draw_is_given_them() -> None:
    # f_k = (w - c_k)^2 / 2, first at 0, then at the optimum of the client with the larger loss, 4
    inner = LargestLoss()
    assert run(FedAvg(sampler=Named(inner)), 2)[0] == 2.0
    assert inner.compared == [{0: 2.0, 1: 8.0}, {0: 2.0, 1: 0.0}]


def test_a_sampler_that_asks_before_a_draw_must_define_scores() -> None:
    with pytest.raises(NotImplementedError, match=r"Asking returns clients in `clients_without_score`, so it must def"):
        run(FedAvg(sampler=Asking()), 1)


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


class BodyAndHead(L.LightningModule):
    """f_k = (body + head - c_k)^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (0.5 * (self.body + self.head - batch[1]) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.25)


def test_a_held_exchange_keeps_personal_parameters() -> None:
    # optima 2 and 4, learning rate 1/4: body and head move by 1/2 and by 1, the body twice as far
    module, exchange = BodyAndHead(), Doubled(PersonalParameters("head"))
    communication = Communication()
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, exchange=exchange), communication])
    trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None))
    assert (float(module.body), float(module.head)) == (1.5, 0.75)  # the mean of the heads is shown
    assert communication.values["fed/bytes_up"] == 2 * 8  # the bodies


def test_a_held_exchange_that_needs_the_sum_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Doubled holds a DifferentialPrivacy, whose `summed` would not be called"):
        FedAvg(1.0, exchange=Doubled(DifferentialPrivacy(1.0, noise_multiplier=1.0, delta=0.1)))


class Logged(Schedule):
    """Another schedule, whose rounds are counted."""

    def __init__(self, inner: Schedule) -> None:
        self.inner, self.started = inner, 0

    @property
    def held_parts(self) -> Sequence[Part]:
        return [self.inner]

    def start(self, slot: int, server: Server) -> Tensor:
        self.started += 1
        return self.inner.start(slot, server)

    def receive(self, result: ClientResult, server: Server) -> None:
        self.inner.receive(result, server)

    def publish(self, server: Server, failed: Collection[int]) -> Tensor:
        return self.inner.publish(server, failed)


@pytest.mark.parametrize("unequal", ["subsample", "reduce"])
def test_a_held_schedule_chooses_slots(unequal: str) -> None:
    """Clients go half of their way, so two of them take a model from w to w/4 + 1.5, 2, 2.5 or 3: 2.25 in the mean."""
    ends = []
    for wrap in (lambda inner: inner, Logged):
        schedule = wrap(Redistribution(2, unequal=unequal))
        module = Quadratic(0.5, [0.0])
        dropout = 0.4 if unequal == "reduce" else 0.0
        options: dict[str, Any] = {"participation": Participation(dropout=dropout), "seed": 3}
        algorithm = Federated(1.0, schedule=schedule, aggregation=WeightedMean("uniform"), **options)
        trainer = quiet_trainer(max_epochs=6, callbacks=[algorithm])
        trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None))
        ends.append((float(module.w), algorithm.algorithm.models_sent))
        assert schedule.keeps_models and schedule.saves_results
    assert ends[0] == ends[1]
    if unequal == "subsample":
        assert ends[0][0] == 2.25 * (1 + 1 / 4 + 1 / 16)


def test_a_held_schedule_refuses_a_participation() -> None:
    with pytest.raises(ValueError, match='`unequal="subsample"` does not allow that'):
        run(Federated(1.0, schedule=Logged(Redistribution(2)), participation=Participation(dropout=0.5)), 1)


class Held(Around):
    def __init__(self) -> None:
        self.all = [WeightedMean()]


def test_a_held_aggregation_merges_buffers() -> None:
    class WithBuffer(Quadratic):
        def __init__(self) -> None:
            super().__init__(1.0, [0.0])
            self.register_buffer("steps", torch.zeros(1))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.steps += 1
            return super().training_step(batch, batch_idx)

    module = WithBuffer()
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, aggregation=Held())])
    trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None))
    assert (float(module.w), float(module.steps)) == (3.0, 1.0)
