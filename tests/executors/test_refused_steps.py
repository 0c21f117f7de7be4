"""What stacks once trained in silence to other numbers: it ends as one client after the other, or is refused."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, fx
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from zoo.entry import vectors
from zoo.fitting import ends_alike
from zoo.modules.base import Classifier
from zoo.modules.optimizers import RateByHook, WithOptimizer, exponential, scheduled

from fl_lightning import ClientDatasetsModule, parts
from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.notes import logged
from fl_lightning.executors.compiler.reader import Reader

LONG = pytest.mark.long
SIZES = (7, 5, 8)
compare = partial(ends_alike, sizes=SIZES)


class Scaled(MeanMetric):
    """A mean with an option whose default is in the class."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.scale = 3.0

    def factor(self) -> float:
        return self.scale


class Extra(Classifier):
    """Adds a term to the loss."""

    def __init__(self, term: Callable[[Any, Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.term = term
        self.mean = Scaled()
        self.collection = MetricCollection({"acc": MulticlassAccuracy(3)})
        self.weight = torch.zeros(()).double()
        self.teachers = [copy.deepcopy(self.layers).double().requires_grad_(False)]
        self.held = [*self.teachers[0].parameters()]
        self.outside = torch.ones(()).double().requires_grad_()
        self.steps = 0

    def on_train_epoch_start(self) -> None:
        self.weight.fill_(0.5 * self.current_epoch)
        self.teachers[0].load_state_dict(self.layers.state_dict())

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return loss + self.term(self, *batch, loss)


def ends(term: Callable[[Any, Tensor, Tensor, Tensor], Any]) -> str | None:
    return compare(lambda: Extra(term), trainer={"max_epochs": 3})


def note(module: Any, x: Tensor, loss: Tensor) -> int:
    module.mean.update(loss.detach())
    return 0


def rrelu(x: Tensor) -> Tensor:
    return F.rrelu(x, training=True)


def sets(module: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
    module.mean.scale = 1.0 + module.current_epoch
    return note(module, x, loss)


def follows(module: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
    for teacher, student in zip(module.teachers[0].parameters(), module.layers.parameters(), strict=True):
        teacher.mul_(0.5).add_(student.detach(), alpha=0.5)
    return 0


def counts(module: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
    if not torch.compiler.is_compiling() and module.current_epoch > 0:
        module.steps += 1
    return 0


@pytest.mark.parametrize(
    ("term", "cause"),
    [
        pytest.param(lambda m, x, y, loss: loss * m.mean.scale, "reads `scale`", id="attribute of a metric object"),
        pytest.param(lambda m, x, y, loss: loss * m.mean.factor(), "reads `factor`", id="method of a metric object"),
        pytest.param(lambda m, x, y, loss: loss * hasattr(m.mean, "owner"), "reads `owner`", id="attribute to come"),
        pytest.param(sets, "sets `scale`", id="attribute set"),
        pytest.param(lambda m, x, y, loss: loss * (type(m.mean) is Scaled), "asks for the type", id="type"),
        pytest.param(lambda m, x, y, loss: loss * len(m.collection), "reads `__len__`", id="length of a collection"),
        pytest.param(
            lambda m, x, y, loss: loss * (type(m.trainer) is Trainer), "asks for the type", id="type of the trainer"
        ),
        pytest.param(lambda m, x, y, loss: loss * hasattr(m.trainer, "owner"), "trainer.owner", id="of the trainer"),
        pytest.param(lambda m, x, y, loss: m.outside * loss, "requires gradients", id="gradient outside"),
        pytest.param(counts, "asks whether it is compiled", id="is compiling"),
        pytest.param(follows, "writes clients' values into a tensor", id="teacher that is written"),
        pytest.param(
            lambda m, x, y, loss: loss * (1 if torch.func.jvp(rrelu, (x,), (x,)) else 2),
            "`rrelu_with_noise` computes one model at a time",
            id="operation in a transform",
            marks=LONG,
        ),
    ],
)
def test_a_step_that_a_stack_would_change_is_refused(term: Any, cause: str) -> None:
    assert cause in str(ends(term))


def opens_a_file(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
    with open(__file__):
        return 0


def test_a_cause_is_said_in_the_words_of_a_user_with_the_line() -> None:
    cause = str(compare(lambda: Extra(opens_a_file), trainer={"max_epochs": 1}))
    told = "`training_step` opens a file, which a stack would do once for all clients"
    assert cause == f"{told} ({Path(__file__).name}, line {opens_a_file.__code__.co_firstlineno + 1})"


def with_another_zero_grad(module: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.zero_grad = partial(torch.optim.SGD.zero_grad, optimizer)  # type: ignore[method-assign]
    return optimizer


class Counts(torch.optim.lr_scheduler.LRScheduler):
    """Falls with the number of its calls."""

    calls = 0

    def get_lr(self) -> list[float | Tensor]:
        self.calls += 1
        return [0.1 / self.calls for _ in self.base_lrs]


def every_second_batch(module: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedules = torch.optim.lr_scheduler.StepLR(optimizer, 3), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return [optimizer], [{"scheduler": own, "interval": "step", "frequency": n} for n, own in enumerate(schedules, 1)]


@pytest.mark.parametrize(("sizes", "cause"), [((16, 20, 16), "None"), ((16, 12, 16), "clients count unequally")])
def test_schedules_at_some_batches_follow_clients_that_count_alike(sizes: tuple[int, ...], cause: str) -> None:
    trainer = {"accumulate_grad_batches": 2}
    assert cause in str(ends_alike(lambda: WithOptimizer(every_second_batch), sizes=sizes, trainer=trainer))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: WithOptimizer(with_another_zero_grad), "`zero_grad`"),
        (lambda: WithOptimizer(lambda m: torch.optim.Adafactor(m.parameters())), "the optimizer Adafactor may"),
        (scheduled(exponential, "step", RateByHook), "RateByHook overrides `lr_scheduler_step`"),
        (scheduled(lambda optimizer, m: Counts(optimizer), "step"), "Counts is no schedule of torch's"),
    ],
)
def test_what_cannot_be_stacked_of_optimizers_and_schedules_is_named(make: Any, named: str) -> None:
    assert named in str(compare(make))


def finds_out(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    kinds = isinstance(m.mean, MeanMetric) + 2 * isinstance(m.trainer, Trainer)
    return loss * (kinds + m.trainer.current_epoch)


def test_what_a_step_finds_out_is_true() -> None:
    assert ends(finds_out) is None


@pytest.mark.parametrize(
    "term",
    [
        pytest.param(lambda z, t, w: w * (z.softmax(0) * z).mean(), id="softmax"),
        pytest.param(lambda z, t, w: w * z.square().mean() * (3.0 if len(z) < 4 else 1.0), id="few count more"),
    ],
)
def test_what_mixes_samples_and_is_nothing_at_first_is_right_later(term: Any) -> None:
    """Its weight, or its gradient, is zero in the first round, when the student is its teacher."""

    def of_module(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
        found: Tensor = term(m.layers(x), m.teachers[0](x), m.weight)
        return found

    assert ends(of_module) is None


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"reduce_fx": ""}, "'loss', ...)` has a user-defined `reduce_fx`"),
        ({"enable_graph": True}, "'loss', ...)` has a user-defined `reduce_fx` or keeps the graph"),
        ({"on_epoch": "a number that changes"}, "'loss', ...)` has another `on_epoch` from step to step"),
        ({}, "'loss', ...)` is given a tensor of several values"),
    ],
)
def test_what_a_stack_cannot_log_is_named(options: Any, cause: str) -> None:
    graph = fx.Graph()
    graph.placeholder("x").meta["example_value"] = torch.ones(2)
    [x] = graph.nodes
    graph.call_function(
        logged, ("loss", x, {key: x if key == "on_epoch" else own for key, own in options.items()}, False)
    )
    graph.output((x,))
    with pytest.raises(CannotVectorize, match=re.escape(cause)):
        Reader(graph, [], 0, {}, "training_step")


class Positional(Classifier):
    """Logs with all arguments by position, of which the last but one is the batch's size, and with a function."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        self.log("one", loss, False, True, False, True, "mean", False, False, None, True, 1)
        self.log_dict({"sum": loss}, on_step=False, on_epoch=True, reduce_fx=torch.sum)
        return loss


def test_arguments_of_logs_count_by_position() -> None:
    assert compare(Positional) is None


class Own(Dataset[Any]):
    """Counts how often its samples are read."""

    reads = 0

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> Any:
        Own.reads += 1
        return self.x[place], self.y[place]


def in_one_memory(samples: list[Any]) -> Any:
    memory = COLLATED[: len(samples)]
    memory.copy_(torch.stack([x for x, _ in samples]))
    return memory, torch.stack([y for _, y in samples])


COLLATED = torch.zeros(4, 6).double()


class Hard(Own):
    """Samples that are scaled by a weight of the module."""

    module: Any = None

    def __getitem__(self, place: int) -> Any:
        return self.x[place] * (1 + self.module.layers[0].weight.detach()[0, 0]), self.y[place]


class Late(Hard):
    """Samples that are larger in the round's last batch."""

    def __getitem__(self, place: int) -> Any:
        return self.x[place] * (1 + self.module.trainer.is_last_batch), self.y[place]


class Counted(Hard):
    """Samples that are scaled by the steps of all clients."""

    def __getitem__(self, place: int) -> Any:
        return self.x[place] * (1 + 0.01 * self.module.global_step), self.y[place]


def of_datasets(kind: Any) -> Callable[[], Any]:
    clients = vectors(SIZES, torch.float64).clients
    return lambda: ClientDatasetsModule([kind(*own) for own in clients], batch_size=4, collate_fn=in_one_memory)


def decides(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return loss if loss > 0 else 2 * loss


COUNTERS = "counters that all clients share"


@pytest.mark.parametrize(("kind", "cause"), [(Hard, "read the module"), (Late, COUNTERS), (Counted, COUNTERS)])
def test_data_that_read_the_module_are_not_stacked(kind: type[Hard], cause: str) -> None:
    def make() -> Classifier:
        Hard.module = Classifier()
        return Hard.module

    assert cause in str(compare(make, datamodule=of_datasets(kind), trainer={"max_epochs": 1}))


@pytest.mark.parametrize(("term", "is_stacked"), [(lambda m, x, y, loss: 0, True), (decides, False)])
def test_data_are_read_once_and_may_use_one_memory(term: Any, is_stacked: bool) -> None:
    """Also where the step is refused after its batches have been drawn."""
    Own.reads = 0
    assert (compare(lambda: Extra(term), datamodule=of_datasets(Own)) is None) == is_stacked
    assert Own.reads == 2 * 2 * (7 + 5 + 8)


def test_a_fit_without_dynamo_takes_each_step_once() -> None:
    with torch._dynamo.config.patch(disable=True):
        assert "switched off" in str(ends(lambda m, *_: setattr(m, "steps", m.steps + 1) or 0))


def test_where_a_stack_fails_clients_start_with_what_they_have_of_their_own() -> None:
    # In the first round there is no stack, and client 0 gets values of its own.
    participation = parts.Participation(available=lambda index: [0] if index == 0 else [0, 1, 2])
    federated = {"participation": participation, "exchange": parts.PersonalParameters("layers.2.*")}
    assert "Python decides" in str(compare(lambda: Extra(decides), federated=federated))
