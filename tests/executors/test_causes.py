"""Why clients are not stacked is said with the names of what is in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import torch
from helpers.written import assert_as_in, messages
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from fl_lightning import parts
from fl_lightning._lightning.stacks.recording import Keeper, Logged, MetricCall
from fl_lightning.executors.compiler import causes
from fl_lightning.executors.compiler.capture import _OPTIONS, CapturedStep, Step
from fl_lightning.executors.compiler.check import _check_metrics_draw_nothing
from fl_lightning.executors.compiler.dependence import Dependence
from fl_lightning.executors.compiler.gradient_hooks import GradientHooks
from fl_lightning.executors.compiler.graph import Place, StackedGraph, Stacks
from fl_lightning.executors.compiler.kept import _WatchedDict
from fl_lightning.executors.compiler.nested import own_gradient
from fl_lightning.executors.compiler.told import Unread, _Attribute
from fl_lightning.executors.compiler.unmapped import _OF_EVERYTHING, mapped_function
from fl_lightning.executors.stack.batches import stack_batches
from fl_lightning.executors.stack.corrections import StackedCorrections
from fl_lightning.executors.stack.optimizer import StackedOptimizer, check_elementwise
from fl_lightning.executors.stack.randomness import ClientGenerators, nothing_drawn
from fl_lightning.executors.stack.sources import DrawnBatches
from fl_lightning.executors.vectorized import check_parts


class Downloads(parts.Exchange):
    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return model


class HandsOn(Downloads):
    upload = parts.Exchange.upload


class Squares(parts.Term):
    def add(self, *given: Any) -> None:
        pass


class Mean(MeanMetric):
    pass


def during(act: Callable[[], Any]) -> None:
    with nothing_drawn(torch.device("cpu")):
        act()


def drawing(act: Callable[[], Any]) -> None:
    with ClientGenerators(1, [(0,), (1,)], torch.device("cpu")).drawing([0, 1]):
        act()


def with_decays(kind: Any) -> Any:
    layer = nn.Linear(1, 1)
    return StackedOptimizer(kind(layer.parameters()), [*layer.parameters()]).add_weight_decay([0.1, 0.2])


def takes(step: Callable[..., Any], *inputs: Any) -> None:
    stacks = Stacks([torch.ones(2, 3, requires_grad=True)], [], [], Mock())
    StackedGraph(None, fx.symbolic_trace(step).graph, torch.enable_grad).run(stacks, inputs, flat=False)


def step_of(kept: str, read: str) -> Step:
    """Return a step that keeps something in one attribute and reads another one."""
    call = MetricCall(Keeper(nn.Module(), kept), "assign", [], None, "training_step")
    return Step(fx.Graph(), Mock(), Logged([], [call]), [], Dependence(frozenset({(f"self.{read}", "")})))


def torch_says(msg: str) -> None:
    with causes.errors_of_step():
        raise RuntimeError(msg)


@patch("torch._dynamo.graph_break", torch_says)
def at_kept(look: Callable[[Any], Any]) -> None:
    look(_WatchedDict(1, "own"))


def of_cache(name: str) -> Any:
    guard = SimpleNamespace(create_fn=None, user_stack=None)
    return SimpleNamespace(name=f"{name}.__wrapped__", has_value=False, guard_type="ID_MATCH", orig_guard=guard)


@dataclass
class ListedRecord(list[Any]):
    x: int


def compared_hook(weights: list[float], gradients: list[float]) -> Any:
    """Compare what a hook has left of the last of two clients."""
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    vector = SimpleNamespace(tensors=lambda: [weight], names=["w"], parameters=[weight])
    stacks = Mock(parameters=[torch.tensor([[0.0, 0.0], weights])], gradients=[torch.tensor([[0.0, 0.0], gradients])])
    stacks.buffers = []
    return GradientHooks._compare(Mock(_vector=vector), "a_hook", stacks, 1, 1e-6)


def recurring(*options: Any) -> Callable[[], Any]:
    return lambda: mapped_function(torch.gru)(Mock(), [], [], *options, True, False, False)


ALGORITHM: Any = SimpleNamespace(parts={"sampler": parts.UniformSampler(1), "exchange": HandsOn()})
CACHES = [of_cache("G['torch'].table"), of_cache("G['my'].table")]
UPDATE = MetricCall(Mean(), "update", [], None, "training_step")
WEIGHT = Place("parameters", 0)
HOOK, STEP, BOTH = step_of("own", "last"), step_of("last", "other"), step_of("last", "last")
PLACES = f'File "{torch.__file__}", line 3, in f; File "{causes.__file__}", line 4, in g'
READING: Any = SimpleNamespace(_read_by_data={"of_data", "other"}, _read_by_hooks={"of_hook"})

READS: list[Callable[[Any], Any]] = [
    *(bool, len, iter, str),
    *(lambda shown: shown[0], lambda shown: 1 in shown, lambda shown: shown == 1, lambda shown: shown.name),
]
READS_OF_KEPT = (*READS, lambda shown: shown.__add__([]), lambda shown: shown.__iadd__([]))
#: What is in the way, by what it is.
CAUSES: dict[str, Callable[[], Any]] = {
    "an old torch": patch("torch.__version__", "1")(patch.dict(_OPTIONS, x=1)(lambda: CapturedStep(Mock(), Mock()))),
    "a part at both ends": lambda: check_parts(ALGORITHM),
    "a term": lambda: StackedCorrections([None, Squares()], [], None, []),
    "a frozen parameter": lambda: StackedCorrections([None, parts.Term(frozen=frozenset([0]))], [], None, []),
    "another loss": lambda: StackedCorrections([None, parts.ChangedLoss()], [], None, []),
    "a walk": lambda: StackedCorrections([None, Mock(spec=parts.Walk, why_alone="it walks")], [], None, []),
    "an optimizer": lambda: check_elementwise(torch.optim.Adafactor(nn.Linear(1, 1).parameters())),
    "a decay of each client": lambda: with_decays(torch.optim.AdamW),
    "a decoupled decay": lambda: with_decays(partial(torch.optim.Adam, decoupled_weight_decay=True)),
    "a decay": lambda: with_decays(torch.optim.Rprop),
    "draws of numpy": lambda: during(np.random.rand),
    "draws of torch": lambda: during(partial(torch.rand, 1)),
    "a seed": lambda: during(partial(torch.manual_seed, 1)),
    "draws of a generator": lambda: drawing(partial(torch.rand, 2, generator=torch.Generator())),
    "draws of a tensor for two": lambda: drawing(partial(torch.bernoulli, torch.ones(3))),
    **{f"a look of kind {kind}": partial(look, Unread("own")) for kind, look in enumerate(READS)},
    **{f"a look of kind {kind} at what is kept": partial(at_kept, look) for kind, look in enumerate(READS_OF_KEPT)},
    "a method of a logger": lambda: bool(_Attribute(Mock(), "1", "own").name()),
    "a metric object": lambda: _check_metrics_draw_nothing(Mock(logged=Logged([], [UPDATE]))),
    "a median": lambda: _OF_EVERYTHING[torch.median](torch.ones(2, requires_grad=True)),
    "a median without numbers": lambda: _OF_EVERYTHING[Tensor.nanmedian](torch.ones(2, requires_grad=True)),
    "an embedding with a norm": lambda: mapped_function(F.embedding)(Mock(), Mock(), max_norm=1.0),
    "an embedding by counts": lambda: mapped_function(torch.embedding)(Mock(), Mock(), scale_grad_by_freq=True),
    "columns by the largest value": lambda: mapped_function(F.one_hot)(Mock()),
    "data of another shape": lambda: mapped_function(torch.ops.aten.shallow_copy_data_)(torch.ones(2), torch.ones(1)),
    "a packed sequence": recurring([], 2, 0.0),
    "values dropped between layers": recurring(True, 2, 0.5),
    "weights that project states": recurring(True, 1, 0.5),
    "a weight after a hook": lambda: compared_hook([1.0, 3.0], [1.0, 2.0]),
    "a gradient after a hook": lambda: compared_hook([1.0, 1.0], [1.0, 2.0]),
    "a cache": lambda: CapturedStep.read(Mock(), fx.Graph(), Dependence.of(CACHES, ())),
    "what a step keeps and a hook reads": lambda: CapturedStep._check_kept_is_unread(Mock(_steps={0: STEP}), HOOK),
    "what a hook reads and a step keeps": lambda: CapturedStep._check_kept_is_unread(Mock(_steps={0: HOOK}), STEP),
    "what both keep": lambda: CapturedStep._check_kept_is_unread(Mock(_steps={0: BOTH}), BOTH),
    "what is shared and written": lambda: takes(lambda w, s: ((s.add_(1) * w).sum(),), WEIGHT, torch.ones(3)),
    "neither weights nor a batch": lambda: takes(lambda s: (s.sum(),), torch.ones(3)),
    "a function that writes": lambda: own_gradient(Mock(), Mock(), dirty_idx=[0]),
    "two effects": lambda: torch_says(f"side effects happened: double check: {['my.table', 'a']}"),
    "what PyTorch explains": lambda: torch_says(f"Explanation: None known. \nfrom user code: {PLACES}"),
    "what data read": lambda: DrawnBatches.check_reads(READING, {"of_data", "of_hook"}),
    "what a hook of the data reads": lambda: DrawnBatches.check_reads(READING, {"of_hook"}),
    "a record and list": lambda: stack_batches([ListedRecord(1)]),
}


def test_causes_name_what_is_in_the_way(tmp_path: Path) -> None:
    calls = {name: lambda _, act=act: act() for name, act in CAUSES.items()}
    assert_as_in(Path(__file__).with_suffix(".txt"), messages(calls, tmp_path), tmp_path)
