"""Things that the clients of a stack share, and things that are each client's own."""

from __future__ import annotations

import decimal
import random
import sys
from collections.abc import Callable
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import pytest
import torch
from helpers.stacked import clients_of
from helpers.toys import quiet_trainer
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchmetrics import Accuracy
from torchmetrics.aggregation import RunningSum

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule

SIZES = (16, 16, 16, 16, 16, 16, 16, 16)


class Base(LightningModule):
    def __init__(self, width: int = 5, *more: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3), *more)

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def arrays(dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    return [(x.to(dtype), y) for x, y in clients_of((6,), SIZES)]


def fit(make: Callable[[], Base], data: Any, executor: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """Return the module, the weights, and why clients were not stacked."""
    module = make().to(dtype)
    callbacks = [FedAvg(1.0, seed=2, executor=executor), *options.pop("callbacks", [])]
    trainer = quiet_trainer(max_epochs=3, callbacks=callbacks, **options)
    trainer.fit(module, datamodule=data())
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    return module, weights, getattr(trainer.fit_loop.executor, "cause", None)


def assert_same(make: Callable[[], Base], data: Any = None, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """Assert that a stacked fit ends as one without stacks; return why it was not stacked."""
    data = data or (lambda: TensorDataModule(arrays(dtype), batch_size=4))
    _, alone, _ = fit(make, data, "sequential", dtype, **options)
    _, at_once, cause = fit(make, data, "vectorized", dtype, **options)
    assert torch.allclose(alone, at_once, rtol=0, atol=1e-10 if dtype is torch.float64 else 1e-6)
    return cause


# ---- batches ----


class Marked(Dataset[Any]):
    """A client's samples, with what the client is."""

    def __init__(self, x: Tensor, y: Tensor, mark: Any) -> None:
        self.x, self.y, self.mark = x, y, mark

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> Any:
        return self.x[place], self.y[place], self.mark


def marked(collate: Any) -> Any:
    """Return clients of whom the sixth and the eighth are weak."""
    marks = ["weak" if client in (5, 7) else "strong" for client in range(len(SIZES))]
    return lambda: ClientDatasetsModule(
        [Marked(*own, mark) for own, mark in zip(arrays(), marks, strict=True)], batch_size=4, collate_fn=collate
    )


def by_key(samples: Any) -> Any:
    x, y, marks = zip(*samples, strict=True)
    return {"x": torch.stack(x), "weak" if marks[0] == "weak" else "y": torch.stack(y)}


def by_text(samples: Any) -> Any:
    x, y, marks = zip(*samples, strict=True)
    return {"x": torch.stack(x), "y": torch.stack(y), "mark": marks[0]}


def by_number(samples: Any) -> Any:
    x, y, marks = zip(*samples, strict=True)
    return torch.stack(x), torch.stack(y), 0.5 if marks[0] == "weak" else 1.0


def by_nothing(samples: Any) -> Any:
    x, y, marks = zip(*samples, strict=True)
    return {"x": torch.stack(x), "y": torch.stack(y), "mark": None if marks[0] == "weak" else "strong"}


class ByKey(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if "weak" in batch:
            return 0.5 * self.loss((batch["x"], batch["weak"]))
        return self.loss((batch["x"], batch["y"]))


class ByText(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss((batch["x"], batch["y"])) * (0.5 if batch["mark"] == "weak" else 1.0)


class ByNumber(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch[:2]) * (1.0 if batch[2] == 1 else 0.5)


class ByNothing(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss((batch["x"], batch["y"])) * (0.5 if batch["mark"] is None else 1.0)


class LeavesMarks(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss((batch["x"], batch["y"]))


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize(
    ("kind", "collate"), [(ByKey, by_key), (ByText, by_text), (ByNumber, by_number), (ByNothing, by_nothing)]
)
def test_keys_and_values_of_batches_are_each_clients_own(kind: Any, collate: Any, is_mapped: bool) -> None:
    assert_same(lambda: kind(5, *[nn.LayerNorm(3)] * is_mapped), marked(collate))


@pytest.mark.parametrize("is_mapped", [False, True])
def test_texts_that_are_not_read_are_stacked(is_mapped: bool) -> None:
    assert assert_same(lambda: LeavesMarks(5, *[nn.LayerNorm(3)] * is_mapped), marked(by_text)) is None


# ---- numbers ----


class Rare(Base):
    """Weighs clients by a number that only two of them have."""

    weight: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) * type(self).weight(batch[0][0, 0].item())


def rare() -> TensorDataModule:
    clients = arrays()
    for client, (x, _) in enumerate(clients):
        x[:, 0] = 2.0 if client in (5, 7) else 0.0
    return TensorDataModule(clients, batch_size=4)


@pytest.mark.parametrize(
    ("weight", "stacks"),
    [
        (lambda number: 3.0 if number in {2.0} else 1.0, False),
        (lambda number: {2.0: 3.0}.get(number, 1.0), False),
        (lambda number: 3.0 if str(number) == "2.0" else 1.0, False),
        (lambda number: 3.0 if number in [2.0] else 1.0, True),
        (lambda number: 1.0 if isinstance(number, float) else 3.0, True),
        (lambda number: abs(-(2 * number) + 1) / 2 - number // 3 + number**2 - (number + 1) % 2, True),
    ],
    ids=["set", "dictionary", "text", "list", "type", "arithmetic"],
)
def test_a_number_of_a_tensor_is_each_clients_own(weight: Any, stacks: bool) -> None:
    kind = type("Rare", (Rare,), {"weight": staticmethod(weight)})
    assert (assert_same(kind, rare) is None) == stacks


# ---- weights by other ways, counters ----


class PseudoLabels(Base):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0], self.layers(batch[0]).argmax(1)


class ScalesByStep(Base):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] * (1 + 0.01 * self.global_step), batch[1]


class AsksForDevice(Base):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        weight = next(self.parameters())
        return batch[0].to(weight.device, weight.dtype) / len(weight), batch[1]


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (PseudoLabels, "use the module's weights"),
        (ScalesByStep, "reads counters that all clients share"),
        (AsksForDevice, None),
    ],
)
def test_hooks_of_the_transfer_see_one_clients_model(kind: Any, cause: str | None) -> None:
    found = assert_same(kind)
    assert found is None if cause is None else cause in found


class OfModule(Dataset[Any]):
    """Samples that are scaled by what a trainer counts, or by a module's weights."""

    def __init__(self, x: Tensor, y: Tensor, held: dict[str, Any]) -> None:
        self.x, self.y, self.held = x, y, held

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> Any:
        module = self.held["module"]
        scale = 0.01 * module.global_step if self.held["counts"] else float(module.layers[0].bias.detach()[0])
        return self.x[place] * (1 + scale), self.y[place]


@pytest.mark.parametrize("counts", [True, False])
def test_data_that_look_at_the_run_are_not_stacked(counts: bool) -> None:
    held: dict[str, Any] = {"counts": counts}

    def make() -> Base:
        held["module"] = Base()
        return held["module"]  # type: ignore[no-any-return]

    data = lambda: ClientDatasetsModule([OfModule(*own, held) for own in arrays()], batch_size=4)  # noqa: E731
    assert assert_same(make, data) is not None


class Penalised(Base):
    """Has a small penalty on the weights that the optimizer holds."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        optimizer: Any = self.optimizers()
        return self.loss(batch) + 2e-5 * sum(p.square().sum() for p in optimizer.param_groups[0]["params"])


def test_weights_that_the_optimizer_holds() -> None:
    cause = assert_same(Penalised, dtype=torch.float32)
    assert "by another way than as attributes of the module" in cause


class Odd(Base):
    """Uses a parameter on every second batch."""

    def __init__(self) -> None:
        super().__init__(5, nn.LayerNorm(3))
        self.offset = nn.Parameter(torch.ones(3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        return F.cross_entropy(scores + self.offset if batch_idx % 2 else scores, batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (16, 16, 12, 20, 28, 4), (28, 32, 32, 32)])
def test_a_parameter_that_some_accumulated_batches_use(sizes: tuple[int, ...]) -> None:
    # of three batches, accumulated by twos, the last step has one, which does not use the parameter
    data = lambda: TensorDataModule(clients_of((6,), sizes), batch_size=4)  # noqa: E731
    cause = assert_same(Odd, data, accumulate_grad_batches=2)
    assert (cause is None) == (len(set(sizes)) == 1)


# ---- metric objects, anomalies, layers, sizes ----


class NewMetric(Base):
    """Has a new metric object in each round."""

    def on_train_epoch_start(self) -> None:
        self.accuracy = Accuracy("multiclass", num_classes=3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        self.accuracy(scores, batch[1])
        return F.cross_entropy(scores, batch[1])


def test_a_metric_object_of_each_round() -> None:
    ends = [
        fit(NewMetric, lambda: TensorDataModule(arrays(), batch_size=4), name) for name in ("sequential", "vectorized")
    ]
    assert ends[1][2] is None
    assert [int(module.accuracy.tp.sum() + module.accuracy.fn.sum()) for module, _, _ in ends] == [128, 128]
    assert torch.equal(ends[0][0].accuracy.tp, ends[1][0].accuracy.tp)


def test_anomalies_are_detected_in_a_stack() -> None:
    clients = arrays()
    clients[6][0][3, 2] = float("nan")
    with pytest.raises(RuntimeError, match="returned nan values"):
        fit(Base, lambda: TensorDataModule(clients, batch_size=4), "vectorized", detect_anomaly=True)


@pytest.mark.parametrize("last", [nn.Tanh(), nn.ReLU(), nn.Dropout(0.5)])
@pytest.mark.parametrize("width", [5, 40])
def test_a_layer_after_the_last_linear_one(last: nn.Module, width: int) -> None:
    assert assert_same(lambda: Base(width, last)) is None


def test_a_callback_whose_second_module_has_another_size() -> None:
    callback = FedAvg(1.0, seed=2)
    for width in (5, 7):
        module = Base(width).double()
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(
            module, datamodule=TensorDataModule(arrays(), batch_size=4)
        )
        assert module.layers[0].weight.shape == (width, 6)


# ---- reading the data ----


class Counting(Dataset[Any]):
    reads = 0

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> Any:
        Counting.reads += 1
        return self.x[place] * (1 + 0.01 * (Counting.reads % 5)), self.y[place]


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_no_sample_is_read_twice(executor: str) -> None:
    Counting.reads = 0
    data = lambda: ClientDatasetsModule([Counting(*own) for own in arrays()], batch_size=4)  # noqa: E731
    fit(Base, data, executor)
    assert Counting.reads == 3 * sum(SIZES)


# ---- state out of sight ----


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of a user's own, with a module that counts."""
    (tmp_path / "of_a_user").mkdir()
    (tmp_path / "of_a_user" / "__init__.py").write_text("from of_a_user import stats\n")
    (tmp_path / "of_a_user" / "stats.py").write_text("CALLS = 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import of_a_user  # type: ignore[import-not-found]

    globals()["of_a_user"] = of_a_user
    yield of_a_user
    del globals()["of_a_user"]
    for name in ("of_a_user", "of_a_user.stats"):
        del sys.modules[name]


class CountsInPackage(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        of_a_user.stats.CALLS += 1  # type: ignore[name-defined] # noqa: F821
        return self.loss(batch)


class CountsInImport(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        from of_a_user import stats

        stats.CALLS += 1
        return self.loss(batch)


@pytest.mark.parametrize("kind", [CountsInPackage, CountsInImport])
def test_modules_of_a_users_package_are_seen(kind: Any, package: Any) -> None:
    cause = assert_same(kind)
    assert "CALLS` " in cause or "CALLS`," in cause
    calls = 2 * 3 * 4 * len(SIZES)  # both fits, three rounds, four batches each
    assert calls == package.stats.CALLS


class Counter(type(LightningModule)):  # type: ignore[misc]
    calls = 0


class CountsInMetaclass(Base, metaclass=Counter):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        Counter.calls += 1
        return self.loss(batch)


class CountsByMethod(Base):
    def __init__(self) -> None:
        super().__init__()
        self.note = [].append

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.note(batch_idx)
        return self.loss(batch)


class CountsInCallback(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.trainer.callbacks[-1].calls += 1
        return self.loss(batch)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (CountsInMetaclass, "changes `Counter.calls`"),
        (CountsByMethod, "changes `self.note`"),
        (CountsInCallback, "reads `trainer.callbacks`"),
    ],
)
def test_counters_out_of_sight_are_seen(kind: Any, cause: str) -> None:
    class Calls(Callback):
        calls = 0

    callbacks = [Calls()]
    assert cause in assert_same(kind, callbacks=callbacks)


class InClass:
    """Keeps its number in the class."""

    calls = 0

    def add(self) -> None:
        type(self).calls += 1

    def number(self) -> int:
        return type(self).calls


class InBase(InClass):
    def add(self) -> None:
        InClass.calls += 1

    def number(self) -> int:
        return InClass.calls


class Kept:
    """Keeps what is set of an object beside it."""

    def __init__(self) -> None:
        self.held: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.held.get(owner, 0)

    def __set__(self, owner: Any, value: int) -> None:
        self.held[owner] = value


class InDescriptor(InClass):
    calls: Any = Kept()

    def add(self) -> None:
        self.calls += 1

    def number(self) -> int:
        return int(self.calls)


class InArray(InClass):
    def __init__(self) -> None:
        self.lists = np.array([[], None], dtype=object)

    def add(self) -> None:
        self.lists[0].append(1)

    def number(self) -> int:
        return len(self.lists[0])


METER = InClass()


class InReference(InClass):
    def __init__(self) -> None:
        METER.calls = 0  # type: ignore[misc]
        self.meter = ref(METER)

    def add(self) -> None:
        self.meter().calls += 1  # type: ignore[union-attr]

    def number(self) -> int:
        return METER.calls


class InSparse(InClass):
    def __init__(self) -> None:
        self.total, self.one = torch.zeros(2, 2).to_sparse(), torch.eye(2).to_sparse()

    def add(self) -> None:
        self.total.add_(self.one)

    def number(self) -> int:
        return int(self.total.to_dense()[0, 0])


class InGlobals(InClass):
    def __init__(self) -> None:
        globals()["CALLS"] = 0

    def add(self) -> None:
        globals()["CALLS"] += 1

    def number(self) -> int:
        return int(globals()["CALLS"])


class InPackage(InClass):
    """Holds a generator of a package that is made with Cython."""

    def __init__(self) -> None:
        self.drawn, self.raw = 0, np.random.PCG64(1)

    def add(self) -> None:
        self.raw.random_raw()

    def number(self) -> int:
        state = self.raw.state["state"]["state"]
        other = np.random.PCG64(1)
        while other.state["state"]["state"] != state:
            other.random_raw()
            self.drawn += 1
        return self.drawn


class HoldsCounter(Base):
    def __init__(self, kind: type[InClass]) -> None:
        super().__init__()
        self.counter = kind()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.counter.add()
        return self.loss(batch)


@pytest.mark.parametrize("kind", [*InClass.__subclasses__(), InClass])
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_objects_that_hold_their_state_elsewhere(
    executor: str, kind: type[InClass], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InClass, "calls", 0)
    module, _, cause = fit(
        lambda: HoldsCounter(kind), lambda: TensorDataModule(arrays(), batch_size=4), executor=executor
    )
    assert module.counter.number() == 3 * 4 * len(SIZES)
    assert executor == "sequential" or "`training_step` changes `" in cause


def counted(method: Any) -> Any:
    """Give a method the number of its calls."""
    calls = [0]

    @wraps(method)
    def wrapper(self: Any, *given: Any) -> Any:
        calls[0] += 1
        return method(self, calls[0], *given)

    return wrapper


def one_decorator_for_two_methods() -> type[Base]:
    class Decorated(Base):
        @counted
        def training_step(self, number: int, batch: Any, batch_idx: int) -> Tensor:
            return self.loss(batch) / number

        @counted
        def predict_step(self, number: int, batch: Any, batch_idx: int) -> int:
            return number

    return Decorated


def a_global_of_one_name_in_two_files() -> type[Base]:
    space = {"__name__": "another_file", "Base": Base, "CALLED": ["another's"]}
    exec("class Names(Base):\n    def names(self):\n        return CALLED\n", space)
    CALLED[:] = [0]

    class Derived(space["Names"]):  # type: ignore[misc,name-defined]
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            CALLED[0] += 1
            return self.loss(batch) / CALLED[0]

    return Derived


def an_attribute_with_the_name_of_a_variable() -> type[Base]:
    class Decorated(Base):
        @counted
        def training_step(self, number: int, batch: Any, batch_idx: int) -> Tensor:
            return self.loss(batch) / number

    Decorated.training_step.calls = "a note"  # type: ignore[attr-defined]
    return Decorated


CALLED = [0]


@pytest.mark.parametrize(
    "kind",
    [one_decorator_for_two_methods, a_global_of_one_name_in_two_files, an_attribute_with_the_name_of_a_variable],
)
def test_state_of_one_name_in_two_places_is_told_apart(kind: Callable[[], type[Base]]) -> None:
    ends = {}
    for executor in ("sequential", "vectorized"):
        made = kind()  # with its own count
        module, _, cause = fit(made, lambda: TensorDataModule(arrays(), batch_size=4), executor=executor)
        ends[executor] = [parameter.detach().clone() for parameter in module.parameters()]
    assert all(map(torch.equal, *ends.values()))
    assert "`training_step` changes `" in cause


@lru_cache
def table(size: int) -> Tensor:
    return torch.linspace(0.5, 1.5, size, dtype=torch.float64)


class MadeBefore(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table = table(6)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss((batch[0] * self.table, batch[1]))


class MadeByFunction(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss((batch[0] * table(batch[0].shape[1]), batch[1]))


class MadeByFirstStep(MadeByFunction):
    @cached_property
    def table(self) -> Tensor:
        return torch.linspace(0.5, 1.5, 6, dtype=torch.float64)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss((batch[0] * self.table, batch[1]))


class MadeOfFirstBatch(Base):
    """Keeps the first mean that it sees, as layers do that initialise themselves by data."""

    mean: Tensor | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.mean is None:
            self.mean = batch[0].mean(0)
        return self.loss((batch[0] - self.mean, batch[1]))


@pytest.mark.parametrize("kind", [MadeBefore, MadeByFunction, MadeByFirstStep, MadeOfFirstBatch])
def test_tables_that_are_kept(kind: Any) -> None:
    table.cache_clear()
    assert assert_same(kind) is None


class MadeForEachSize(Base):
    """Keeps the mean of the first batch after one of another size."""

    mean: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.mean is None or len(self.mean) != len(batch[0]):
            self.mean = batch[0].mean(0).expand_as(batch[0])
        return self.loss((batch[0] - self.mean, batch[1]))


def test_a_table_that_is_made_again_is_not_stacked() -> None:
    sizes = (6, 9, 6, 13, 7, 9, 10, 6)
    cause = assert_same(MadeForEachSize, lambda: TensorDataModule(clients_of((6,), sizes), batch_size=4))
    assert "changes `self.mean`" in cause


class CountsInACache(MadeByFunction):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1 + 0.01 * table.cache_info().hits)


class CountsInTheContextOfDecimal(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        decimal.getcontext().prec += 1
        return self.loss(batch) * (1 + 0.01 * decimal.getcontext().prec)


class CountsInSysModules(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        steps = sum(name.startswith("step_of_mine_") for name in sys.modules)
        sys.modules[f"step_of_mine_{steps}"] = decimal
        return self.loss(batch) * (1 + 0.01 * steps)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (CountsInACache, "changes `table.cache_info()`"),
        (CountsInTheContextOfDecimal, "changes the context of `decimal`"),
        (CountsInSysModules, "changes `sys.modules`"),
    ],
)
def test_counters_of_the_process_are_seen(kind: Any, cause: str) -> None:
    def made() -> Base:
        table.cache_clear()
        decimal.setcontext(decimal.Context())
        for name in [name for name in sys.modules if name.startswith("step_of_mine_")]:
            del sys.modules[name]
        return kind()  # type: ignore[no-any-return]

    with decimal.localcontext():
        assert cause in assert_same(made)
        made()


class ImportsLate(Base):
    """Imports a module of the standard library, and sets the same precision, in each step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        import colorsys

        decimal.getcontext().prec = 30
        return self.loss(batch) * colorsys.rgb_to_hsv(1.0, 0.5, 0.5)[2]


def test_what_is_the_same_in_each_step_is_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with decimal.localcontext():
        assert assert_same(ImportsLate) is None


class Listing(Accuracy.__new__(Accuracy, "multiclass", num_classes=3).__class__):  # type: ignore[misc, name-defined]
    """A metric object with a list beside its states."""

    def __init__(self) -> None:
        super().__init__(num_classes=3)
        self.sizes: list[int] = []

    def update(self, scores: Tensor, target: Tensor) -> None:
        self.sizes.append(len(target))
        super().update(scores, target)


class WithListing(Base):
    def __init__(self) -> None:
        super().__init__()
        self.accuracy = Listing()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        self.accuracy.update(scores, batch[1])
        return F.cross_entropy(scores, batch[1])


def test_what_a_metric_object_keeps_beside_its_states() -> None:
    module, _, cause = fit(WithListing, lambda: TensorDataModule(arrays(), batch_size=4), "vectorized")
    assert cause is None
    assert module.accuracy.sizes == [4] * (3 * 4 * len(SIZES))


class LogsSum(Base):
    """Logs a metric object that leaves no value of a single step."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = RunningSum(window=3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.sum(loss.detach())
        self.log("sum", self.sum, on_step=True, on_epoch=True)
        return loss


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_metric_object_without_values_of_steps(executor: str, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    data = lambda: TensorDataModule(arrays(), batch_size=4)  # noqa: E731
    _, _, cause = fit(LogsSum, data, executor, logger=logger, log_every_n_steps=1)
    assert cause is None
    header = Path(logger.log_dir, "metrics.csv").read_text().splitlines()[0].split(",")
    assert [name for name in header if name.startswith("sum")] == ["sum_epoch"]


# ---- what "auto" weighs ----


class ByRound(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) * (1 + 0.1 * self.current_epoch)


@pytest.mark.auto_decides
def test_trials_of_every_round_are_weighed() -> None:
    few = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor="auto")])
    few.fit(ByRound(), datamodule=TensorDataModule(arrays(torch.float32), batch_size=4))
    many = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor="auto")])
    many.fit(ByRound(), datamodule=TensorDataModule(arrays(torch.float32) * 10, batch_size=4))
    causes = [trainer.fit_loop.executor.state_dict()["vectorized"]["cause"] for trainer in (few, many)]
    assert "rounds are too short to check it each time" in causes[0]
    assert causes[1] is None


# ---- what the trainer gives ----


class CountsInTheTrainer(Base):
    """Counts its steps, or those of small batches, in an object that it gets from the trainer."""

    def __init__(self, name: str, rarely: bool) -> None:
        super().__init__()
        self.name, self.rarely = name, rarely

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.rarely and len(batch[1]) == 4:
            return loss
        holder = getattr(self.trainer, self.name)
        holder = holder[0] if isinstance(holder, list) else holder
        holder.count = getattr(holder, "count", 0) + 1
        return loss * min(2.0, 1 + holder.count / 100)


@pytest.mark.parametrize("rarely", [False, True])
@pytest.mark.parametrize("name", ["datamodule", "state", "strategy", "accelerator", "optimizers"])
def test_objects_of_the_trainer_are_counted_in_once(name: str, rarely: bool) -> None:
    """A step on a copy gets the trainer's own objects; the fit counts as clients alone do."""
    samples = [(x[:15], y[:15]) if place == 5 else (x, y) for place, (x, y) in enumerate(arrays())]
    found = []
    for executor in ("sequential", "vectorized"):
        module, weights, cause = fit(
            lambda: CountsInTheTrainer(name, rarely), lambda: TensorDataModule(samples, batch_size=4), executor
        )
        holder = getattr(module.trainer, name)
        found.append(((holder[0] if isinstance(holder, list) else holder).count, weights))
    assert found[0][0] == found[1][0] == (3 if rarely else 3 * 4 * len(SIZES))
    assert torch.allclose(found[0][1], found[1][1], rtol=0, atol=1e-10)
    assert cause is None or f"trainer.{name}" in cause or "`TensorDataModule.count`" in cause


class CurriculumInData(Base):
    """Notes losses in a list that the data module holds."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.trainer.datamodule.losses.append(1)
        return loss


def test_a_list_that_the_data_module_holds_is_appended_to_once() -> None:
    lengths = []
    for executor in ("sequential", "vectorized"):
        data = TensorDataModule(arrays(), batch_size=4)
        data.losses = []  # type: ignore[attr-defined]
        fit(CurriculumInData, lambda data=data: data, executor)
        lengths.append(len(data.losses))  # type: ignore[attr-defined]
    assert lengths == [3 * 4 * len(SIZES)] * 2


class CountsInLongList(Base):
    """Counts in a list of which a brief look would see the length alone."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.trainer.datamodule.counts[137] += 1
        return self.loss(batch)


@pytest.mark.parametrize("counts", [[0] * 2_000, np.zeros(5_000), torch.zeros(5_000)], ids=["list", "array", "tensor"])
def test_a_count_in_a_long_list_of_the_data_module_is_found(counts: Any) -> None:
    data = TensorDataModule(arrays(), batch_size=4)
    data.counts = counts  # type: ignore[attr-defined]
    *_, cause = fit(CountsInLongList, lambda: data, "vectorized")
    assert data.counts[137] == 3 * 4 * len(SIZES)  # type: ignore[attr-defined]
    assert cause is not None and "trainer.datamodule" in cause


class NotesRarely(Base):
    """Notes small batches in a list that it finds by way of the trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        module: Any = self.trainer.lightning_module
        if len(batch[1]) == 3:
            module.history.append(1)
        return self.loss(batch)


def test_the_trainers_module_is_the_module_on_a_copy_too() -> None:
    samples = [(x[:15], y[:15]) if place == 5 else (x, y) for place, (x, y) in enumerate(arrays())]
    for executor in ("sequential", "vectorized"):
        module, *_ = fit(NotesRarely, lambda: TensorDataModule(samples, batch_size=4), executor)
        assert len(module.history) == 3


def test_a_data_module_that_holds_what_cannot_be_looked_at_is_no_reason_not_to_stack() -> None:
    def data() -> TensorDataModule:
        module = TensorDataModule(arrays(), batch_size=4)
        module.dice = random.SystemRandom()  # type: ignore[attr-defined]
        return module

    class Reads(Base):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.loss(batch) * len(self.trainer.datamodule.client_sizes)

    assert assert_same(Reads, data) is None


def test_reading_the_data_module_and_the_strategy_is_no_reason_not_to_stack() -> None:
    class Reads(Base):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            trainer: Any = self.trainer
            size = trainer.strategy.world_size + len(trainer.datamodule.client_sizes)
            return self.loss(batch) * size if trainer.lightning_module is self else None

    assert assert_same(Reads) is None
