"""A stack is compared once with each client alone: whatever differs is named with both values, and nothing changes."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import nn
from torch.utils import _pytree as pytree
from torchmetrics import MeanMetric

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Keeper, Listener, LogCall, Logged, MetricCall, TensorPlace
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.graph import Computed, Stacks
from fl_lightning.executors.compiler.told import Listeners
from fl_lightning.executors.compiler.traces import without_trace
from fl_lightning.executors.stack.batches import StackedBatch
from fl_lightning.executors.stack.randomness import ClientGenerators


class Model(pl.LightningModule):
    """Has the loss ``w x``, and keeps the mean of x in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("mean", torch.zeros(1))
        self.average = MeanMetric()
        self.kept: list[Any] = []
        self.count = 0
        self.print = str

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        [x] = batch
        self.mean.fill_(x.mean())
        return (self.w * x).sum()


# ---- traces ----


def call(thing: Any, method: str, *args: Any) -> MetricCall:
    return MetricCall(thing, method, *pytree.tree_flatten((list(args), {})), "training_step")


def compare(change: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Compare what a step leaves with what a stack has noted, after a change of the module or of the notes."""
    module = Model()
    usual = builtins.print
    with without_trace(module, Listeners(module, quiet_trainer(), [])) as traces:
        module.log("mean", module.average)
        module.log("loss", torch.tensor(2.0))
        module.kept.append({"scores": torch.tensor([1.0, 2.0]), "name": "a", "bytes": b"a"})
        module.average.update(3.0)
        print("batch 1: 2.01", 5.0)
        notes: dict[str, Any] = {
            "names": ["loss"],
            "keep": call(Keeper(module, "kept"), "append", {"scores": TensorPlace(1), "name": "a", "bytes": b"a"}),
            "update": call(module.average, "update", 3.0),
            "tell": call(Listener(builtins), "tell", "print", "batch 1: 2.02", 5.0),
            "tensors": [torch.tensor(2.0), torch.tensor([1.0, 2.0])],
        }
        change(module, notes)
        calls = [LogCall("training_step", "mean", {}, module.average)]
        calls += [LogCall("training_step", name, {}, place) for place, name in enumerate(notes["names"])]
        metric_calls = [notes[name] for name in ("keep", "update", "tell") if name in notes]
        traces.compare(Logged(calls, metric_calls), notes["tensors"], 1e-6)
    assert not (module.kept or module.count or "log" in vars(module)) and (builtins.print, module.print) == (usual, str)
    assert float(module.average.weight) == 0.0


def tensor(place: int, value: Any) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda module, notes: notes["tensors"].__setitem__(place, torch.as_tensor(value))


def leaf(name: str, value: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """Change the last argument but one of a call if it is a text, and the last one otherwise."""
    return lambda module, notes: notes[name].leaves.__setitem__(-2 if isinstance(value, str) else -1, value)


TRACES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "logs other names": lambda m, notes: notes.update(names=["other"]),
    "as 'loss' is 2 alone and 3 in": tensor(0, 3.0),
    "as 'loss' is 2 alone and nan in": tensor(0, float("nan")),
    "as 'loss' has 1 values alone and 2 in": tensor(0, [2.0, 2.0]),
    "as 'loss' is of another type": tensor(0, torch.tensor(2.0).double()),
    "changes `self.count`, ": lambda m, notes: setattr(m, "count", 1),
    "changes `self.kept`, ": lambda m, notes: notes.pop("keep"),
    "what `self.kept` holds is 2 alone and 4 in": tensor(1, [1.0, 4.0]),
    "what `self.kept` holds is of another form": tensor(1, [1.0, 2.0, 3.0]),
    "what `self.kept` holds differs": lambda m, notes: notes["keep"].leaves.__setitem__(1, "b"),
    "`self.kept` holds differs in": lambda m, notes: notes["keep"].leaves.__setitem__(2, b"b"),
    "object (MeanMetric) holds is 3 alone and 8 in": leaf("update", 8.0),
    "sets attributes of a metric object (MeanMetric)": lambda m, notes: setattr(m.average, "extra", 1),
    "object (MeanMetric) is given something else": lambda m, notes: setattr(m.average, "_update_count", [1, 1]),
    "prints, or tells loggers, something else": lambda m, notes: notes.pop("tell"),
    "what `print` is given is 5 alone and 6 in": leaf("tell", 6.0),
    "what `print` is given is of another form": leaf("tell", 6),
    "what `print` is given differs": leaf("tell", "round 1: 2.02"),
}


@pytest.mark.parametrize("cause", TRACES)
def test_traces_that_differ_are_named(cause: str) -> None:
    compare(lambda module, notes: None)
    with pytest.raises(CannotVectorize) as caught:
        compare(TRACES[cause])
    assert cause in str(caught.value)


# ---- loss, gradients, buffers ----

BATCH = torch.tensor([[1.0, 3.0], [2.0, 6.0]])
WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


RIGHT = Computed(torch.tensor([7.0, 30.0]), [], [BATCH], stepped=False)


@pytest.mark.parametrize(
    ("found", "mean", "cause"),
    [
        (RIGHT, 4.0, None),
        (RIGHT._replace(losses=torch.tensor([8.0, 30.0])), 4.0, "the loss is 7 alone and 8 in"),
        (RIGHT._replace(losses=torch.tensor([7.0, 31.0])), 4.0, "the loss is 30 alone and 31 in"),
        (RIGHT._replace(gradients=[BATCH + torch.tensor([[0.0], [1.0]])]), 4.0, "of 'w' is 2 alone and 3 in"),
        (RIGHT._replace(gradients=[None]), 4.0, "of 'w' is there alone or in a stack only"),
        (RIGHT, 5.0, "a buffer is 4 alone and 5 in"),
    ],
)
def test_steps_that_differ_are_named(found: Computed, mean: float, cause: str | None) -> None:
    module = Model()
    vector = StateVector(module, [torch.optim.SGD(module.parameters(), lr=0.1)])
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
    draws = ClientGenerators(1, [(0, 0), (0, 1)], vector.device).drawing([0, 1])
    stacks = Stacks([WEIGHTS.clone()], [torch.zeros(2, 1)], [BATCH.clone()], draws)
    check = Check(captured, vector, mixed=False)
    for _ in range(2):
        with nullcontext() if cause is None else pytest.raises(CannotVectorize, match=cause):
            check(step, [], stacks, StackedBatch([BATCH]), 0, [0, 1], flat=True)
    assert len(runs) == (1 if cause is None else 2)
    assert vector.read().tolist() == [1.0, 2.0, 0.0]
    assert torch.equal(stacks.batch[0], BATCH) and torch.equal(stacks.buffers[0], torch.zeros(2, 1))
