"""A stack is compared once with each client alone: whatever differs is named with both values, and nothing changes."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import CatMetric, MeanMetric

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Keeper, Listener, LogCall, Logged, MetricCall, TensorPlace
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.gradient_hooks import GradientHooks
from fl_lightning.executors.compiler.graph import Computed, Stacks
from fl_lightning.executors.compiler.told import Listeners
from fl_lightning.executors.compiler.traces import same, without_trace
from fl_lightning.executors.stack.batches import StackedBatch
from fl_lightning.executors.stack.randomness import ClientGenerators


class Values(CatMetric):
    """Keeps each value by itself."""

    def update(self, value: Tensor) -> None:
        self.value += list(value)  # type: ignore[operator]


class Model(pl.LightningModule):
    """Has the loss ``w x``, and keeps the mean of x in a buffer; a hook doubles the gradient and halves the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("mean", torch.zeros(1))
        self.average = MeanMetric()
        self.cat = Values()
        self.kept: list[Any] = []
        self.count = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        [x] = batch
        self.mean.fill_(x.mean())
        return (self.w * x).sum()

    def on_after_backward(self) -> None:
        assert self.w.grad is not None
        self.w.grad.mul_(2)
        self.w.data.mul_(0.5)


# ---- traces ----


def call(thing: Any, method: str, *args: Any) -> MetricCall:
    return MetricCall(thing, method, *pytree.tree_flatten((list(args), {})), "training_step")


def leaves_traces(module: Any) -> None:
    module.log("loss", torch.tensor(2.0))
    module.log("number", 4)
    module.kept.append({"scores": torch.tensor([1.0, 2.0]), "name": "a"})
    module.average.update(3.0)
    module.cat.update(torch.ones(2))
    print("batch 1: 2.01", 5.0)


def compare(change: Callable[[Any, dict[str, Any]], None]) -> None:
    """Compare what a step leaves with what a stack has noted, after a change of the module or of the notes."""
    module = Model()
    listeners = Listeners(module, quiet_trainer(), [])
    usual = builtins.print
    with without_trace(module, listeners) as traces:
        leaves_traces(module)
        notes: dict[str, Any] = {
            "log": LogCall("training_step", "loss", {}, 0),
            "number": LogCall("training_step", "number", {}, 1),
            "keep": call(Keeper(module, "kept"), "append", {"scores": TensorPlace(2), "name": "a"}),
            "update": call(module.average, "update", 3.0),
            "collect": call(module.cat, "update", TensorPlace(3)),
            "tell": call(Listener(builtins), "tell", "print", "batch 1: 2.02", 5.0),
            "tensors": [torch.tensor(2.0), torch.tensor(4.0), torch.tensor([1.0, 2.0]), torch.ones(2)],
        }
        change(module, notes)
        calls = [notes[name] for name in ("keep", "update", "collect", "tell") if name in notes]
        try:
            traces.compare(Logged([notes["log"], notes["number"]], calls), notes["tensors"], 1e-6)
        finally:
            assert builtins.print is not usual
    assert (module.kept, module.count, builtins.print) == ([], 0, usual)
    assert "log" not in vars(module)
    assert (float(module.average.weight), module.cat.value) == (0.0, [])


def test_equal_traces_agree() -> None:
    compare(lambda module, notes: None)


def puts(name: str, value: Callable[[Any, dict[str, Any]], Any]) -> Callable[[Any, dict[str, Any]], None]:
    return lambda module, notes: notes.update({name: value(module, notes)})


def tensor(place: int, value: Tensor) -> Callable[[Any, dict[str, Any]], None]:
    return lambda module, notes: notes["tensors"].__setitem__(place, value)


TRACES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "logs other names": lambda m, notes: setattr(notes["log"], "name", "other"),
    "as 'loss' is 2 alone and 3 in": tensor(0, torch.tensor(3.0)),
    "as 'number' is 4 alone and 4.5 in": tensor(1, torch.tensor(4.5)),
    "as 'loss' has 1 values alone and 2 in": tensor(0, torch.ones(2)),
    "as 'loss' is of another type": tensor(0, torch.tensor(2.0).double()),
    "changes `self.count`, ": lambda m, notes: setattr(m, "count", 1),
    "changes `self.kept`, ": lambda m, notes: notes.pop("keep"),
    "what `self.kept` holds is 2 alone and 4 in": tensor(2, torch.tensor([1.0, 4.0])),
    "what `self.kept` holds is of another form": tensor(2, torch.ones(3)),
    "what `self.kept` holds differs": puts(
        "keep", lambda m, notes: call(Keeper(m, "kept"), "append", {"scores": TensorPlace(2), "name": "b"})
    ),
    "object (MeanMetric) holds is 3 alone and 8 in": puts("update", lambda m, notes: call(m.average, "update", 8.0)),
    "sets attributes of a metric object (MeanMetric)": lambda m, notes: setattr(m.average, "extra", 1),
    "a metric object (Values) is given something else": tensor(3, torch.ones(3)),
    "object (Values) holds is 1 alone and 7 in": tensor(3, torch.tensor([1.0, 7.0])),
    "prints, or tells loggers, something else": lambda m, notes: notes.pop("tell"),
    "what `print` is given is 5 alone and 6 in": puts(
        "tell", lambda m, notes: call(Listener(builtins), "tell", "print", "batch 1: 2.02", 6.0)
    ),
    "what `print` is given differs": puts(
        "tell", lambda m, notes: call(Listener(builtins), "tell", "print", "round 1: 2.02", 5.0)
    ),
}


@pytest.mark.parametrize("cause", TRACES)
def test_traces_that_differ_are_named(cause: str) -> None:
    with pytest.raises(CannotVectorize) as caught:
        compare(TRACES[cause])
    assert cause in str(caught.value)


NAN, INFINITE = torch.tensor([float("nan")]), torch.tensor([float("inf")])


@pytest.mark.parametrize(
    ("one", "other", "size", "is_same"),
    [
        (torch.tensor([1.0, 100.0]), torch.tensor([2.0, 100.0]), 0.0, True),  # 1 of 100
        (torch.tensor([1.0, 100.0]), torch.tensor([1.0, 98.9]), 0.0, False),
        (torch.tensor([1.0, 100.0]), torch.tensor([1.0, 98.9]), 10.0, True),  # 1.1 of 110
        (torch.tensor([1.0, 100.0]), torch.tensor([1.0, 98.9]), float("nan"), False),
        (NAN, NAN, 0.0, True),
        (NAN, torch.ones(1), 0.0, False),
        (INFINITE, INFINITE, 0.0, True),
        (INFINITE, -INFINITE, 0.0, False),
        (torch.zeros(0), torch.zeros(0), 0.0, True),
        (torch.ones(2, 1), torch.ones(2), 0.0, True),
    ],
)
def test_values_are_the_same_up_to_a_bound(one: Tensor, other: Tensor, size: float, is_same: bool) -> None:
    with nullcontext() if is_same else pytest.raises(CannotVectorize, match="a sum"):
        same("a sum", one, other, 0.01, size)


# ---- loss, gradients, buffers ----

BATCH = torch.tensor([[1.0, 3.0], [2.0, 6.0]])
WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def stack_of_two(vector: StateVector) -> Stacks:
    draws = ClientGenerators(1, [(0, 0), (0, 1)], vector.device).drawing([0, 1])
    return Stacks([WEIGHTS.clone()], [torch.zeros(2, 1)], [BATCH.clone()], draws)


RIGHT = Computed(torch.tensor([7.0, 30.0]), [], [BATCH], stepped=False)


@pytest.mark.parametrize(
    ("found", "mean", "cause"),
    [
        (RIGHT, 4.0, None),
        (RIGHT._replace(losses=torch.tensor([7.0, 31.0])), 4.0, "the loss is 30 alone and 31 in"),
        (RIGHT._replace(gradients=[BATCH + torch.tensor([[0.0], [1.0]])]), 4.0, "of 'w' is 2 alone and 3 in"),
        (RIGHT._replace(gradients=[None]), 4.0, "of 'w' is there alone or in a stack only"),
        (RIGHT, 5.0, "a buffer is 4 alone and 5 in"),
    ],
)
def test_steps_that_differ_are_named(found: Computed, mean: float, cause: str | None) -> None:
    module = Model()
    vector = StateVector(module, [torch.optim.SGD(module.parameters(), lr=0.1)])
    held = vector.read().clone()
    runs: list[Stacks] = []

    def run(stacks: Stacks, inputs: Any, flat: bool) -> Computed:
        runs.append(stacks)
        stacks.buffers[0].copy_(torch.tensor([[2.0], [mean]]))
        stacks.batch[0].zero_()
        return found

    captured: Any = SimpleNamespace(
        alone=lambda batch, index, steps: module.training_step(batch, index),
        listeners=Listeners(module, quiet_trainer(), []),
        context_of_steps=nullcontext,
    )
    step: Any = SimpleNamespace(graph=SimpleNamespace(checked=False, run=run), logged=Logged(), tensors=lambda kept: [])
    stacks = stack_of_two(vector)
    check = Check(captured, vector, mixed=False)
    for _ in range(2):
        with nullcontext() if cause is None else pytest.raises(CannotVectorize, match=cause):
            check(step, [], stacks, StackedBatch([BATCH]), 0, [0, 1], flat=True)
    assert len(runs) == (1 if cause is None else 2)
    assert torch.equal(vector.read(), held)
    assert torch.equal(stacks.batch[0], BATCH) and torch.equal(stacks.buffers[0], torch.zeros(2, 1))


@pytest.mark.parametrize(
    ("factor", "added", "cause"),
    [
        (2.0, 0.0, None),
        (3.0, 0.0, "the gradient of 'w' after `on_after_backward` is 4 alone and 6 in"),
        (2.0, 1.0, "a weight after `on_after_backward` is 1.5 alone and 2.5 in"),
    ],
)
def test_hooks_that_differ_are_named(factor: float, added: float, cause: str | None) -> None:
    module = Model()
    vector = StateVector(module, [torch.optim.SGD(module.parameters(), lr=0.1)])
    stacks = replace(stack_of_two(vector), gradients=[BATCH.clone()])

    def run_hook(own: Stacks, inputs: Any) -> list[Tensor]:
        own.gradients[0].mul_(torch.tensor([[2.0], [factor]]))  # type: ignore[union-attr]
        own.parameters[0].mul_(0.5).add_(torch.tensor([[0.0], [added]]))
        return []

    step: Any = SimpleNamespace(
        graph=SimpleNamespace(checked=False, run_hook=run_hook), logged=Logged(), tensors=lambda kept: kept
    )
    listeners = Listeners(module, quiet_trainer(), [])
    captured: Any = SimpleNamespace(listeners=listeners, of_hook=lambda *given: [([0, 1], step, [])])
    stacked: Any = SimpleNamespace(counting=lambda steps: nullcontext())
    with nullcontext() if cause is None else pytest.raises(CannotVectorize, match=cause):
        GradientHooks(captured, stacked, vector).run("on_after_backward", stacks, 0, [0, 0], [])
    if cause is None:
        assert torch.equal(stacks.gradients[0], 2 * BATCH)  # type: ignore[arg-type]
        assert torch.equal(stacks.parameters[0], WEIGHTS / 2)
    assert module.w.grad is None
    assert module.w.tolist() == [1.0, 2.0]
