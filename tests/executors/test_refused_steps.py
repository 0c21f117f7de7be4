"""What stacks once trained in silence to other numbers: it ends as one client after the other, or is refused."""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch import Trainer
from torch import Tensor, fx
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule, parts
from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.executors.compiler.notes import logged
from fl_lightning.executors.compiler.reader import Reader


class Scaled(MeanMetric):
    """A mean with an option whose default is in the class."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.scale = 3.0

    def factor(self) -> float:
        return self.scale


class Extra(Module):
    """Adds a term to the loss."""

    def __init__(self, term: Callable[[Any, Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__(linear())
        self.term = term
        self.mean = Scaled()
        self.collection = MetricCollection({"acc": MulticlassAccuracy(3)})
        self.weight = torch.zeros(()).double()
        self.teachers = [copy.deepcopy(self.layers).requires_grad_(False)]
        self.outside = torch.ones(()).double().requires_grad_()
        self.steps = 0

    def on_train_epoch_start(self) -> None:
        self.weight.fill_(0.5 * self.current_epoch)
        self.teachers[0].load_state_dict(self.layers.state_dict())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss + self.term(self, *batch, loss)


def ends(make: Callable[[], Any], data: Callable[[], Any] | None = None, rounds: int = 3) -> str | None:
    """Compare a fit with stacks with one without; return why clients were not stacked."""
    found = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = make()
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
        trainer.fit(module, datamodule=data() if data else TensorDataModule(clients_of((6,), (7, 5, 8)), batch_size=4))
        weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
        others = [getattr(module, "steps", 0), *map(float, module.teachers[0].parameters().__next__()[0].tolist())]
        found.append((weights, torch.tensor(others), trainer.callback_metrics))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-9)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-6)
    assert found[1][2].keys() == found[0][2].keys()
    return stacks.cause


def note(module: Any, x: Tensor, loss: Tensor) -> int:
    module.mean.update(loss.detach())
    return 0


def twice(total: Tensor) -> Tensor:
    return total * total


def gram(z: Tensor) -> Tensor:
    return torch.einsum("id,jd->ij", z, z)


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
        pytest.param(
            lambda m, x, y, loss: loss * hasattr(m.mean, "owner"), "reads `owner`", id="attribute that may come"
        ),
        pytest.param(sets, "sets `scale`", id="attribute set"),
        pytest.param(lambda m, x, y, loss: loss * (type(m.mean) is Scaled), "asks for the type", id="type"),
        pytest.param(lambda m, x, y, loss: loss * len(m.collection), "reads `__len__`", id="length of a collection"),
        pytest.param(
            lambda m, x, y, loss: loss * (type(m.trainer) is Trainer), "asks for the type", id="type of the trainer"
        ),
        pytest.param(
            lambda m, x, y, loss: loss * hasattr(m.trainer, "owner"), "trainer.owner", id="attribute of the trainer"
        ),
        pytest.param(lambda m, x, y, loss: m.outside * loss, "requires gradients", id="gradient outside"),
        pytest.param(counts, "asks whether it is compiled", id="is compiling"),
        pytest.param(follows, "writes clients' values into a tensor", id="teacher that is written"),
        pytest.param(
            lambda m, x, y, loss: loss * (1 if torch.func.jvp(rrelu, (x,), (x,)) else 2),
            "`rrelu_with_noise` computes one model at a time",
            id="operation in a transform",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_step_that_a_stack_would_change_is_refused(term: Any, cause: str) -> None:
    found = ends(lambda: Extra(term))
    assert found is not None
    assert cause in found


def opens_a_file(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
    with open(__file__):
        return 0


def seeds(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
    torch.manual_seed(0)
    return 0


def draws(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return loss * random.choice([0.5, 2.0])


def warns(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
    warnings.warn("a step", stacklevel=1)
    return 0


def makes_a_layer(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return loss + torch.nn.Linear(6, 1)(x.float()).sum()


def reads_its_state(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return loss + sum(value.sum() for value in m.layers.state_dict().values())


@pytest.mark.parametrize(
    ("term", "cause"),
    [
        pytest.param(opens_a_file, "`training_step` opens a file", id="open"),
        pytest.param(draws, "`training_step` draws by `random.choice`", id="random", marks=pytest.mark.long),
        pytest.param(warns, "`training_step` calls `_warnings.warn`", id="warning", marks=pytest.mark.long),
        pytest.param(makes_a_layer, "`training_step` makes a module", id="layer", marks=pytest.mark.long),
        pytest.param(reads_its_state, "`training_step` calls `state_dict()`", id="state", marks=pytest.mark.long),
        pytest.param(seeds, "`training_step` seeds a generator", id="seed", marks=pytest.mark.long),
    ],
)
def test_a_cause_is_said_in_the_words_of_a_user_with_the_line(term: Any, cause: str) -> None:
    stacks = VectorizedExecutor()
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=stacks, seed=1)])
    trainer.fit(Extra(term), datamodule=TensorDataModule(clients_of((6,), (8, 8)), batch_size=4))
    line = term.__code__.co_firstlineno + 1
    assert cause in str(stacks.cause)
    assert str(stacks.cause).endswith(f"({Path(__file__).name}, line {line})")


def with_another_zero_grad(parameters: Any) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.zero_grad = partial(torch.optim.SGD.zero_grad, optimizer)  # type: ignore[method-assign]
    return optimizer


@pytest.mark.parametrize(
    ("make", "named"), [(with_another_zero_grad, "`zero_grad`"), (torch.optim.Adafactor, "the optimizer Adafactor may")]
)
def test_what_cannot_be_stacked_of_an_optimizer_is_named(make: Any, named: str) -> None:
    stacks = VectorizedExecutor()
    data = TensorDataModule(clients_of((6,), (8, 8)), batch_size=4)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=stacks)])
    trainer.fit(Module(linear(), make), datamodule=data)
    assert named in str(stacks.cause)


def finds_out(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    kinds = isinstance(m.mean, MeanMetric) + 2 * isinstance(m.trainer, Trainer)
    return loss * (kinds + m.trainer.current_epoch)


def test_what_a_step_finds_out_is_true() -> None:
    assert ends(lambda: Extra(finds_out)) is None


@pytest.mark.parametrize(
    "term",
    [
        pytest.param(lambda z, t, w: w * (z.softmax(0) * z).mean(), id="softmax"),
        pytest.param(lambda z, t, w: w * (z - z.roll(1, 0)).square().mean(), id="roll", marks=pytest.mark.long),
        pytest.param(lambda z, t, w: w * (z.cumsum(0) * z).mean(), id="cumsum", marks=pytest.mark.long),
        pytest.param(lambda z, t, w: w * z.sort(0)[0].square()[:, 0].mean(), id="sort", marks=pytest.mark.long),
        pytest.param(lambda z, t, w: w * F.mse_loss(z[:, 0], t[:, :1]), id="broadcast", marks=pytest.mark.long),
        pytest.param(lambda z, t, w: w * z.square().sum(), id="sum", marks=pytest.mark.long),
        pytest.param(lambda z, t, w: F.mse_loss(gram(z), gram(t)), id="products of samples", marks=pytest.mark.long),
        pytest.param(lambda z, t, w: w * F.linear(z, z).square().mean(), id="layer of samples", marks=pytest.mark.long),
        pytest.param(lambda z, t, w: w * z.square().mean() * (3.0 if len(z) < 4 else 1.0), id="few count more"),
        pytest.param(lambda z, t, w: w * twice(z.square().sum()) / len(z), id="square of a sum"),
        pytest.param(lambda z, t, w: w * torch.mean(input=z[()]), id="mean by name", marks=pytest.mark.long),
        pytest.param(
            lambda z, t, w: torch.matmul(z, other=w * torch.ones(3, 3).double()).mean(),
            id="product by name",
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda z, t, w: F.smooth_l1_loss(torch.cdist(z, z), torch.cdist(t, t)),
            id="distances",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_mixes_samples_and_is_nothing_at_first_is_right_later(term: Any) -> None:
    """Its weight, or its gradient, is zero in the first round, when the student is its teacher."""

    def of_module(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
        found: Tensor = term(m.layers(x), m.teachers[0](x), m.weight)
        return found

    assert ends(lambda: Extra(of_module)) is None


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"reduce_fx": ""}, "'loss', ...)` has a user-defined `reduce_fx`"),
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


class Positional(Module):
    """Logs with all arguments by position, of which the last but one is the batch's size."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("one", loss, False, True, False, True, "mean", False, False, None, True, 1)
        return loss


def test_arguments_of_logs_count_by_position() -> None:
    values = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
        trainer.fit(Positional(linear()), datamodule=TensorDataModule(clients_of((6,), (7, 5, 8)), batch_size=4))
        values.append(float(trainer.callback_metrics["one"]))
    assert stacks.cause is None
    assert values[1] == pytest.approx(values[0], rel=1e-6)


class Scheduled(Extra):
    """Steps a schedule after each step."""

    def __init__(self, schedule: Callable[[Any], Any]) -> None:
        super().__init__(lambda module, x, y, loss: 0)
        self.schedule = schedule

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule(optimizer), "interval": "step"}}


class EverySecond(Scheduled):
    """Steps it at every second call."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.steps += 1
        if self.steps % 2 == 0:
            scheduler.step()


class Counts(torch.optim.lr_scheduler.LRScheduler):
    """Falls with the number of its calls."""

    calls = 0

    def get_lr(self) -> list[float | Tensor]:
        self.calls += 1
        return [0.1 / self.calls]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (
            lambda: EverySecond(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1)),
            "EverySecond overrides `lr_scheduler_step`",
        ),
        (lambda: Scheduled(Counts), "Counts is no schedule of torch's"),
    ],
)
def test_a_schedule_of_the_users_own_sees_one_client_at_a_time(make: Any, cause: str) -> None:
    assert cause in str(ends(make))


class Own(Dataset[Any]):
    """Samples that are handed out in one memory."""

    reads = 0

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.memory = torch.zeros(4, 6).double()

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


def of_datasets(kind: Any) -> Callable[[], Any]:
    return lambda: ClientDatasetsModule(
        [kind(*own) for own in clients_of((6,), (7, 5, 8))], batch_size=4, collate_fn=in_one_memory
    )


def decides(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return loss if loss > 0 else 2 * loss


@pytest.mark.parametrize(("kind", "cause"), [(Hard, "read the module"), (Late, "counters that all clients share")])
def test_data_that_read_the_module_are_not_stacked(kind: type[Hard], cause: str) -> None:
    def make() -> Extra:
        Hard.module = Extra(lambda m, x, y, loss: 0)
        return Hard.module

    assert cause in str(ends(make, of_datasets(kind), rounds=1))


@pytest.mark.parametrize(("term", "is_stacked"), [(lambda m, x, y, loss: 0, True), (decides, False)])
def test_data_are_read_once_and_may_use_one_memory(term: Any, is_stacked: bool) -> None:
    """Also where the step is refused after its batches have been drawn."""
    Own.reads = 0
    cause = ends(lambda: Extra(term), of_datasets(Own), rounds=2)
    assert (cause is None) == is_stacked
    assert Own.reads == 2 * 2 * (7 + 5 + 8)


def test_a_fit_without_dynamo_takes_each_step_once() -> None:
    def counting(m: Any, x: Tensor, y: Tensor, loss: Tensor) -> int:
        m.steps += 1
        return 0

    with torch._dynamo.config.patch(disable=True):
        assert "switched off" in str(ends(lambda: Extra(counting)))


class Decides(Module):
    def __init__(self) -> None:
        super().__init__(linear())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return 2 * loss if loss > 0 else loss


def test_where_a_stack_fails_clients_start_with_what_they_have_of_their_own() -> None:
    found: list[Tensor] = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = Decides()
        # In the first round there is no stack, and client 0 gets values of its own.
        participation = parts.Participation(available=lambda index: [0] if index == 0 else [0, 1, 2])
        exchange = parts.PersonalParameters("layers.2.*")
        callback = FedAvg(1.0, executor=executor, participation=participation, exchange=exchange, seed=1)
        trainer = quiet_trainer(max_epochs=2, callbacks=[callback])
        trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), (7, 5, 8)), batch_size=8))
        found.append(module.layers[0].weight.detach())
    assert "Python decides" in str(stacks.cause)
    assert torch.equal(*found)
