"""Training steps that do to one client's tensors, or to something shared, what a stack would do otherwise.

Weights and what is counted are those of clients that train one after the other, and the cause is told.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import lightning as L
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer as optimizers
from torch.utils.data import Dataset

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

CLIENTS, STEPS, ROUNDS = 8, 4, 2  # the first two clients of a fit are tried both ways


class Slope(L.LightningModule):
    """The loss is <w, x>: one step moves the weights by the learning rate times the mean of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.scheduler: Any = None

    def factor(self, x: Tensor) -> Any:
        return 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0]
        return self.factor(x) * (x @ self.w).mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        if self.scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "interval": "step"}}


def clients() -> list[tuple[Tensor]]:
    """Return clients whose samples are their numbers; the last client has negative ones, too."""
    rows = [torch.full((STEPS, 2), float(client), dtype=torch.float64) for client in range(CLIENTS)]
    rows[-1][1:] *= -1
    return [(x,) for x in rows]


def fit(module: L.LightningModule, executor: Any, data: L.LightningDataModule | None = None) -> tuple[list[float], Any]:
    """Return the weights, and the trainer."""
    callback = FedAvg(1.0, executor=executor, seed=1)
    trainer = quiet_trainer(max_epochs=ROUNDS, callbacks=[callback])
    data = TensorDataModule(clients(), batch_size=1, shuffle=False) if data is None else data
    trainer.fit(module, datamodule=data)
    return torch.cat([p.detach().flatten() for p in module.parameters()]).tolist(), trainer


def check(make: Callable[[], L.LightningModule], cause: str, make_data: Callable[[], Any] = lambda: None) -> None:
    """Check that stacks are not used, for that cause, and that all is as without them."""
    stacks = VectorizedExecutor()
    expected, _ = fit(make(), "sequential", make_data())
    assert fit(make(), stacks, make_data())[0] == pytest.approx(expected, abs=1e-12)
    assert stacks.cause is not None
    assert cause in stacks.cause


# ---- values of one client ----


@torch.jit.script
def doubled_if_large(loss: Tensor, x: Tensor) -> Tensor:
    if bool(x.abs().max() > 20):
        loss = loss * 2
    return loss


def test_a_function_of_torch_jit_decides_by_a_clients_values() -> None:
    class Decides(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return doubled_if_large(F.cross_entropy(self.layers(batch[0]), batch[1]), batch[0])

    rows = clients_of((2,), (8,) * CLIENTS)
    rows[-1] = (30 * rows[-1][0], rows[-1][1])
    torch.manual_seed(0)
    layers = nn.Linear(2, 3)
    check(lambda: Decides(deepcopy(layers)), "fails on stacked models", lambda: TensorDataModule(rows, batch_size=4))


def test_text_of_a_tensor_is_that_of_one_client() -> None:
    class Reads(Slope):
        def factor(self, x: Tensor) -> Any:
            return 2.0 if "-" in repr(x) else 1.0

    check(Reads, "turns a tensor into text")


# ---- counters ----


def test_counters_of_a_trainer_that_a_closure_holds() -> None:
    held: list[L.Trainer] = []

    class Counts(Slope):
        def on_fit_start(self) -> None:
            held[:] = [self.trainer]

        def factor(self, x: Tensor) -> Any:
            return 3.0 if held[0].global_step > 10 else 1.0

    check(Counts, "`training_step` reads counters that all clients share")


@pytest.mark.parametrize("late", [0, 3 * STEPS])
def test_a_schedule_with_a_state_of_its_own(late: int) -> None:
    def make() -> Slope:
        calls = 0

        def rate(step: int) -> float:
            nonlocal calls
            calls += 1
            return 0.5 if calls > late else 1.0

        module = Slope()
        module.scheduler = functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=rate)
        return module

    check(make, "a learning-rate schedule changes")


class Mapping(dict):  # type: ignore[type-arg]
    """Has attributes beside its contents."""


class Text(str):
    """The same."""


class Slotted:
    __slots__ = ("__steps", "shown")

    def __init__(self) -> None:
        self.__steps, self.shown = 0, 1

    def count(self) -> None:
        self.__steps += 1

    @property
    def steps(self) -> int:
        return self.__steps


class Counted:
    """Counts in an attribute of whatever it is given."""

    def __init__(self, held: Any) -> None:
        self.held = held
        held.steps = 0

    def count(self) -> None:
        self.held.steps += 1

    @property
    def steps(self) -> int:
        return int(self.held.steps)


@pytest.mark.parametrize(
    "make_counter",
    [
        lambda: Counted(Mapping(a=1)),
        lambda: Counted(Text("a")),
        lambda: Counted(torch.zeros(2)),
        lambda: Counted(functools.partial(print, 1)),
        Slotted,
    ],
    ids=["dict", "str", "tensor", "partial", "slots"],
)
def test_attributes_beside_contents(make_counter: Callable[[], Any]) -> None:
    made = []

    class Counts(Slope):
        def __init__(self) -> None:
            super().__init__()
            self.counter = make_counter()
            made.append(self)

        def factor(self, x: Tensor) -> Any:
            self.counter.count()
            return 1.0

    check(Counts, "changes `self.counter`")
    assert [module.counter.steps for module in made] == [CLIENTS * STEPS * ROUNDS] * 2


def test_an_attribute_of_a_trained_parameter() -> None:
    class Counts(Slope):
        def __init__(self) -> None:
            super().__init__()
            self.w.steps = 0  # type: ignore[attr-defined]

        def factor(self, x: Tensor) -> Any:
            self.w.steps += 1  # type: ignore[attr-defined]
            return 1.0

    check(Counts, "changes `self.w")


class Drawn(Dataset[Any]):
    """Samples that depend on how many were read before, by a counter in shared memory."""

    def __init__(self, client: int, counter: Any) -> None:
        self.client, self.counter = client, counter

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, place: int) -> tuple[Tensor]:
        self.counter.value += 1
        return (torch.full((2,), float(self.client * self.counter.value % 7), dtype=torch.float64),)


@pytest.mark.parametrize("make_counter", [lambda: multiprocessing.Value("i", 0), lambda: ctypes.c_int(0)])
def test_a_counter_of_the_data_outside_of_python(make_counter: Callable[[], Any]) -> None:
    def data() -> ClientDatasetsModule:
        counter = make_counter()
        return ClientDatasetsModule([Drawn(client, counter) for client in range(CLIENTS)], batch_size=1)

    check(Slope, "reading the data, or `training_step`, changes", data)


# ---- batches, hooks, copies ----


def test_a_batch_that_holds_the_same_memory_twice_and_is_changed() -> None:
    class Twice(Slope):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0], batch[0]]

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            noised, clean = batch
            noised.add_(1.0)
            return (clean @ self.w).mean()

    check(Twice, "`training_step` changes its batch in place")


@pytest.fixture
def everywhere() -> Iterator[list[str]]:
    called: list[str] = []
    handle = optimizers.register_optimizer_step_post_hook(lambda *_: called.append("step"))
    yield called
    handle.remove()


def test_a_hook_of_all_optimizers(everywhere: list[str]) -> None:
    check(Slope, "step hooks of optimizers are registered for the whole process")
    assert len(everywhere) == 2 * CLIENTS * STEPS * ROUNDS


def test_a_layer_whose_copy_is_itself() -> None:
    class Shared(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    torch.manual_seed(0)
    teacher = Shared(2, 2)
    before = deepcopy(teacher.state_dict())

    class Distilled(Slope):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = teacher.requires_grad_(False)

        def factor(self, x: Tensor) -> Any:
            return self.teacher(x.float()).sum().double()

    stacks = VectorizedExecutor()
    alone, at_once = Distilled(), Distilled()
    fit(alone, "sequential")
    fit(at_once, stacks)
    assert torch.equal(at_once.w, alone.w)
    assert all(torch.equal(teacher.state_dict()[name], value) for name, value in before.items())
    assert stacks.cause is not None
    assert "a copy shares parameters or buffers with it" in stacks.cause


def test_infinite_values_may_be_logged() -> None:
    class Logs(Slope):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log("bound", batch[0].sum() * float("inf"), batch_size=1)
            return super().training_step(batch, batch_idx)

    stacks = VectorizedExecutor()
    rows = [(torch.full((STEPS, 2), 1.0 + client, dtype=torch.float64),) for client in range(CLIENTS)]
    _, trainer = fit(Logs(), stacks, TensorDataModule(rows, batch_size=1))
    assert stacks.cause is None
    assert float(trainer.callback_metrics["bound"]) == float("inf")


def test_a_number_of_item_is_logged_in_the_default_type() -> None:
    class Logs(Slope):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss.item(), batch_size=1)
            return loss

    stacks = VectorizedExecutor()
    _, trainer = fit(Logs(), stacks)
    assert stacks.cause is None
    assert trainer.callback_metrics["loss"].dtype == fit(Logs(), "sequential")[1].callback_metrics["loss"].dtype


def test_a_global_of_the_same_name_as_an_attribute_is_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.layers(batch[0]), batch[1])

    # `self.layers` is no read of the global `layers`, which here is the module itself
    module, stacks = Plain(nn.Linear(2, 3)), VectorizedExecutor()
    monkeypatch.setitem(globals(), "layers", module)
    callback = FedAvg(4, executor=stacks, seed=1)
    data = TensorDataModule(clients_of((2,), tuple(range(5, 25))), batch_size=8)
    quiet_trainer(max_epochs=4, callbacks=[callback]).fit(module, datamodule=data)  # new sizes of batches in each round
    assert stacks.cause is None


STEPS_DONE: list[int] = []


def count_step() -> float:
    STEPS_DONE.append(1)
    return 1.0


class Shared:
    """Holds a function that changes a global, and a number of its own."""

    def __init__(self) -> None:
        self.count, self.steps = count_step, 0

    def own_step(self) -> float:
        self.steps += 1
        return 1.0


class CountsItself(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()  # which reaches the class, and so all that its methods reach
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        STEPS_DONE.append(1)
        return (batch[0] @ self.w).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class CountsInAFunction(Slope):
    def factor(self, x: Tensor) -> Any:
        return count_step()


class CountsInAnObject(Slope):
    def __init__(self) -> None:
        super().__init__()
        self.shared = Shared()

    def factor(self, x: Tensor) -> Any:
        return self.shared.count()


class ChangesAnObject(CountsInAnObject):
    def factor(self, x: Tensor) -> Any:
        return self.shared.own_step()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (CountsItself, "STEPS_DONE"),
        (CountsInAFunction, "STEPS_DONE"),
        (CountsInAnObject, "STEPS_DONE"),
        (ChangesAnObject, "self.shared"),
    ],
)
def test_the_cause_is_what_changes_not_the_code_that_reaches_it(kind: type[L.LightningModule], name: str) -> None:
    stacks = VectorizedExecutor()
    fit(kind(), stacks)
    assert stacks.cause == f"`training_step` changes `{name}`, of which there is one for all clients"
