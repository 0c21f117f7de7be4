"""Where Python decides by a tensor's value, clients who decide alike are stacked together, to the same result."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, linear
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

CLIENTS, SAMPLES, BATCH = 8, 12, 4


def clients(rare: tuple[int, ...] = (1, 5, 7), late: int = 0, short: tuple[int, ...] = ()) -> TensorDataModule:
    """Return clients whose first feature is 1 for the rare ones from their batch ``late`` on, 0 elsewhere.

    The last batches of the short ones have three samples instead of four.
    """
    generator = torch.Generator().manual_seed(0)
    data = []
    for client in range(CLIENTS):
        x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        x[:, 0] = 0.0
        if client in rare:
            x[late * BATCH :, 0] = 1.0
        targets, size = torch.randint(0, 3, (SAMPLES,), generator=generator), SAMPLES - (client in short)
        data.append((x[:size], targets[:size]))
    return TensorDataModule(data, batch_size=BATCH, shuffle=False)


class Decides(Module):
    """Its loss is weighed by what a function of the batch decides."""

    def __init__(self, layers: nn.Module | None = None, make_optimizer: Any = None) -> None:
        super().__init__(linear() if layers is None else layers, make_optimizer)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.weighed(F.cross_entropy(self.layers(batch[0]), batch[1]), batch[0])
        if loss is not None:
            self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def weighed(self, loss: Tensor, x: Tensor) -> Any:
        return 2 * loss if x[0, 0] > 0.5 else loss


def fit(module: Module, executor: Any, data: TensorDataModule, rounds: int = 2, **trainer: Any) -> Any:
    """Return the trained weights and buffers, the trainer, and the executor."""
    fitter = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, executor=executor, seed=0)], **trainer)
    fitter.fit(module, datamodule=data)
    state = [value.double().flatten() for value in module.state_dict().values()]
    return torch.cat(state), fitter


def compare(make: Callable[[], Module], data: Callable[[], TensorDataModule] = clients, **trainer: Any) -> Any:
    """Check that stacks give the results of clients that train one after the other; return the stacks' executor."""
    stacks = VectorizedExecutor()
    modules = make(), make()
    alone, expected = fit(modules[0], "sequential", data(), **trainer)
    at_once, found = fit(modules[1], stacks, data(), **trainer)
    attributes = [{key: vars(module)[key] for key in ("count", "depth") if key in vars(module)} for module in modules]
    assert attributes[0] == attributes[1]
    assert torch.allclose(alone, at_once, rtol=1e-9, atol=1e-12)
    values = {name: float(value) for name, value in expected.callback_metrics.items()}
    assert values == pytest.approx({name: float(value) for name, value in found.callback_metrics.items()}, rel=1e-6)
    assert found.global_step == expected.global_step
    return stacks


# ---- stacked ----


def test_clients_that_decide_otherwise_take_steps_apart() -> None:
    """The loss is w or 3 w, for five and three clients, so that a step of all moves w by (5 + 3 * 3) / 8."""

    class Slope(Decides):
        def __init__(self) -> None:
            super().__init__(nn.Linear(1, 1, bias=False), lambda p: torch.optim.SGD(p, lr=1.0))
            nn.init.zeros_(self.layers.weight)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = self.layers(torch.ones_like(batch[0][:, :1])).mean()
            return 3 * loss if batch[0][0, 0] > 0.5 else loss

    stacks = VectorizedExecutor()
    weights, _ = fit(Slope(), stacks, clients(), rounds=2)
    batches, rounds = SAMPLES // BATCH, 2
    assert weights.tolist() == pytest.approx([-(5 + 3 * 3) / 8 * batches * rounds], abs=1e-12)
    assert stacks.cause is None
    # in each step of the second round: one that is broken off, and one for each decision
    assert stacks.clients_of_step == pytest.approx(8 / 3)


class NoNumber(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        assert torch.isfinite(loss)
        return loss


class Checks(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        if torch.isnan(loss).any() or torch.equal(x, torch.zeros_like(x)):
            raise ValueError("no data")
        return loss


class ByItem(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        first = x[0, 0].item()
        return loss if first in [0.0, 3.0] else 2 * loss


class Nested(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        if x[0, 0] > 0.5:
            self.log("rare", 1.0, on_step=False, on_epoch=True)
            return loss * (3 if loss > 1 else 2)
        while loss > 1.5:
            loss = loss / 2
        return loss


class Holds(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        zeros = torch.zeros_like(x[0, 0])
        return 2 * loss if 1.0 in x or not torch.allclose(zeros, x[0, 0]) else loss


class IsTrue(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        first = x[0, 0]
        if (first > 0.5).item() is True:
            loss = 2 * loss
        if (first.item() > 0.5) is True:
            loss = 2 * loss
        match first.isnan().logical_not().item() and first.bool().item():
            case True:
                return 2 * loss
            case _:
                return loss


class Largest(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        return max(loss, x[0, 0] * loss.detach() + 0.1 * sum(p.square().sum() for p in self.layers.parameters()))


class DrawsAndDecides(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        noise = torch.randn_like(loss)
        return loss * (2 + 0.1 * noise) if noise > 0 else loss + 0.01 * torch.rand(()).double() * loss


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("kind", [Decides, NoNumber, Checks, ByItem, Nested, Holds, Largest, DrawsAndDecides])
@pytest.mark.parametrize("layers", [linear, normed])
def test_what_clients_decide_by_is_stacked(kind: type[Decides], layers: Callable[[], nn.Module]) -> None:
    assert compare(lambda: kind(layers())).cause is None


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_optimizers_with_state_clipping_and_accumulation(optimizer: Any) -> None:
    def make() -> Decides:
        return Nested(linear(), optimizer)

    assert compare(make, gradient_clip_val=0.5, accumulate_grad_batches=2).cause is None


def test_a_truth_value_is_decided_on_before_it_is_compared_with_true() -> None:
    """Of the trial's clients none has found True."""
    assert compare(IsTrue, lambda: clients((5, 6), late=1)).cause is None


def test_a_way_that_no_trial_has_seen_is_tried_out_on_a_copy() -> None:
    """The first clients, who have the trial, decide alike; the sixth one otherwise, from its second batch on."""
    assert compare(Decides, lambda: clients((5,), late=1)).cause is None


@pytest.mark.auto_decides
def test_auto_leaves_stacks_that_fall_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fit(Decides(), "auto", clients(), rounds=3)
    assert "stacks have 2.7 clients on average" in caplog.text


class LaterAndLater(Nested):
    """In each round the loss is measured otherwise, so that ways come that were never taken before."""

    def __init__(self) -> None:
        super().__init__(normed())
        self.accuracy = MeanMetric()
        self.register_buffer("round", torch.zeros(()))

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        self.accuracy.update(loss)
        for limit in (0.5, 1.5, 2.5):
            if self.round > limit:
                loss = loss * 1.1
        return super().weighed(loss, x)

    def on_train_epoch_end(self) -> None:
        self.round += 1
        self.log("accuracy", self.accuracy.compute())
        self.accuracy.reset()


def test_a_resumed_run_knows_what_was_tried_out(tmp_path: Path) -> None:
    """Bit for bit: the resumed part goes on with stacks as the whole run did."""
    stacks = VectorizedExecutor()
    whole, _ = fit(LaterAndLater(), stacks, clients(), rounds=4)
    assert stacks.cause is None
    options = {"default_root_dir": tmp_path, "enable_checkpointing": True}
    module = LaterAndLater()
    fitter = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor="vectorized", seed=0)], **options)
    fitter.fit(module, datamodule=clients())
    fitter.save_checkpoint(tmp_path / "half.ckpt")
    resumed, stacks = LaterAndLater(), VectorizedExecutor()
    fitter = quiet_trainer(max_epochs=4, callbacks=[FedAvg(1.0, executor=stacks, seed=0)], **options)
    fitter.fit(resumed, datamodule=clients(), ckpt_path=tmp_path / "half.ckpt")
    assert stacks.cause is None
    assert torch.equal(torch.cat([value.double().flatten() for value in resumed.state_dict().values()]), whole)


# ---- not stacked ----


class Counts(Decides):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        if x[0, 0] > 0.5:
            self.count += 1
            loss = 2 * loss
        return loss


class LeavesDepth(Decides):
    """Counts up and down again, without ``try``: what is broken off halfway leaves the number changed."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        self.depth += 1
        weight = 2 if x[0, 0] > 0.5 else 1
        self.depth -= 1
        return weight * loss


class Skips(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Any:
        return None if x[0, 0] > 0.5 else loss


class UsesOtherParameters(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        return self.layers[0](x).square().mean() if x[0, 0] > 0.5 else loss


class DrawsRarely(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        return loss * (1 + torch.rand_like(loss)) if x[0, 0] > 0.5 else loss


class KeepsReference(Decides):
    def __init__(self) -> None:
        super().__init__()
        self.held = [self.layers[0].weight]

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        return loss + self.held[0].square().sum() if x[0, 0] > 0.5 else loss


class MeasuresRarely(Decides):
    def __init__(self) -> None:
        super().__init__()
        self.rare = MeanMetric()

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        if x[0, 0] > 0.5:
            self.rare.update(loss)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("rare", self.rare.compute())
        self.rare.reset()


class ReadsRound(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        return (1 + self.current_epoch) * loss if x[0, 0] > 0.5 else loss


class Catches(Decides):
    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        try:
            return 2 * loss if x[0, 0] > 0.5 else loss
        except Exception:
            return 0 * loss


class CountsWays(Decides):
    """Each client decides in a way of its own in each batch."""

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        for value in x.flatten():
            loss = loss * (1.01 if value > 0 else 1)
        return loss


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (Counts, "changes `self.count`"),
        (LeavesDepth, "changes `self.depth`"),
        (Skips, "returned NoneType, not a loss"),
        (UsesOtherParameters, "some clients' batches use a parameter that others of the same step do not use"),
        (DrawsRarely, "random"),
        (KeepsReference, "differs in a stack"),
        (MeasuresRarely, "gives batches to a metric object only for some values of tensors"),
        (ReadsRound, "reads something of the trainer for some values of tensors"),
        (CountsWays, "more ways through `training_step` than are tried out"),
    ],
)
def test_a_rare_way_that_cannot_be_stacked(make: Callable[[], Module], cause: str) -> None:
    """The trial's clients, the first two, do not take it, except that of ``LeavesDepth`` and ``CountsWays``."""
    executor = compare(make, lambda: clients((5,), late=1))
    assert executor.cause is not None
    assert cause in executor.cause


class CountsInThirdBatch(Decides):
    """Decides the same in all batches; only what it does then depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if batch[0][0, 0] > 0.5 and isinstance(batch_idx, int) and batch_idx == 2:
            self.count += 1
        return loss


class OtherDecisions(Decides):
    """What is decided in the first batch comes out as what is decided in the third, of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        if batch_idx < 2:
            return loss * 1.1 if loss > 0 else loss
        if batch[0][0, 0] > 0.5:
            self.count += 1
        return loss


class KeepsIndices(Decides):
    def __init__(self) -> None:
        super().__init__()
        self.count: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch[0][0, 0] > 0.5:
            self.count.append(batch_idx)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("make", [CountsInThirdBatch, OtherDecisions, KeepsIndices])
def test_a_way_that_does_another_thing_in_a_later_batch(make: Callable[[], Module]) -> None:
    """Several clients take it, none of them in the trial; in earlier batches it may only compute."""
    executor = compare(make, lambda: clients((3, 5, 6), late=1))
    assert executor.cause is not None
    assert "changes `self.count`" in executor.cause


class Settings:
    """Seen by a training step."""

    seen = 0


COUNTS, LISTED, LAST, NUMBERS, TENSOR = {"rare": 0}, [0], deque([0]), np.zeros(()), torch.zeros(())
COUNTER = 0


def count_in_global() -> None:
    global COUNTER
    COUNTER += 1


def count_in_class() -> None:
    Settings.seen += 1


def count_in_dictionary() -> None:
    COUNTS["rare"] += 1


def count_in_deque() -> None:
    LAST.append(1)


def count_in_array() -> None:
    NUMBERS[()] += 1


def count_in_tensor() -> None:
    TENSOR.add_(1)


def count_in_list() -> None:
    LISTED.append(1)


def count_in_function() -> None:
    count_in_global.calls = vars(count_in_global).get("calls", 0) + 1  # type: ignore[attr-defined]


def counted() -> float:
    calls = vars(count_in_global).get("calls", 0)
    parts = [*COUNTS.values(), *LAST, *LISTED, float(NUMBERS), float(TENSOR), calls]
    return COUNTER + Settings.seen + sum(parts)


@pytest.mark.parametrize("form", [False, True], ids=["way", "form"])
@pytest.mark.parametrize(
    "count",
    [
        *(count_in_global, count_in_class, count_in_dictionary, count_in_deque),
        *(count_in_array, count_in_tensor, count_in_list, count_in_function),
    ],
)
def test_what_is_counted_outside_of_the_module_is_counted_once(count: Callable[[], None], form: bool) -> None:
    """What is tried on a copy first, a rare way or a batch of another form, leaves nothing behind."""

    class CountsOutside(Decides):
        def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
            if (len(x) == 3) if form else (x[0, 0] > 0.5):
                self.count()
                loss = 2 * loss
            return loss

        def count(self) -> None:
            count()

    times = []
    for executor in ("sequential", VectorizedExecutor()):
        before = counted()
        fit(CountsOutside(), executor, clients((5,), late=1, short=(5,)))
        times.append(counted() - before)
    assert executor.cause is not None
    assert times[0] == times[1] > 0


class Bare:
    """Has no attributes at first."""


class ReadOnly:
    """Keeps its total where a property of the same name hides it."""

    def __init__(self) -> None:
        vars(self).update(first=0, total=0)

    @property
    def total(self) -> int:
        return int(vars(self)["total"])

    def add(self) -> None:
        vars(self)["total"] += 1


EMPTY, EMPTY_BY_NAME, BARE, READ_ONLY = list[int](), dict[str, int](), Bare(), ReadOnly()
DRAWN = np.random.default_rng(0)


def fill_list() -> int:
    EMPTY.append(1)
    return len(EMPTY)


def fill_dictionary() -> int:
    EMPTY_BY_NAME["rare"] = EMPTY_BY_NAME.get("rare", 0) + 1
    return EMPTY_BY_NAME["rare"]


def fill_object() -> int:
    vars(BARE)["calls"] = vars(BARE).get("calls", 0) + 1
    return int(vars(BARE)["calls"])


def add_behind_a_property() -> int:
    READ_ONLY.add()
    return READ_ONLY.total


def draw_by_numpy() -> int:
    return int(DRAWN.integers(1000))


@pytest.mark.parametrize("act", [fill_list, fill_dictionary, fill_object, add_behind_a_property, draw_by_numpy])
def test_what_holds_nothing_at_first_is_put_back(act: Callable[[], int]) -> None:
    """A rare client's batches are of another form, which is tried on a copy first."""

    class ActsRarely(Decides):
        def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
            return loss * self.act() if len(x) == 3 else loss

        def act(self) -> int:
            return act()

    ends = []
    for executor in ("sequential", VectorizedExecutor()):
        EMPTY.clear()
        EMPTY_BY_NAME.clear()
        vars(BARE).clear()
        vars(READ_ONLY)["total"] = 0
        DRAWN.bit_generator.state = np.random.default_rng(0).bit_generator.state
        weights, _ = fit(ActsRarely(), executor, clients((), short=(5,)))
        ends.append((weights, len(EMPTY), dict(EMPTY_BY_NAME), dict(vars(BARE)), READ_ONLY.total, DRAWN.integers(1000)))
    assert ends[0][1:] == ends[1][1:]
    assert torch.allclose(ends[0][0], ends[1][0], rtol=1e-9, atol=1e-12)


class CountsInClass(Decides):
    """Counts its rare steps in its class, whose name it does not need for that."""

    seen = 0

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        if len(x) == 3 or x[0, 0] > 0.5:
            type(self).seen += 1
            loss = 2 * loss
        return loss


class CountsInMethod(Decides):
    """Counts its rare steps in an attribute of its method."""

    def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
        if len(x) == 3 or x[0, 0] > 0.5:
            vars(type(self).weighed)["seen"] = vars(type(self).weighed).get("seen", 0) + 1
            loss = 2 * loss
        return loss


@pytest.mark.parametrize("form", [False, True], ids=["way", "form"])
@pytest.mark.parametrize("kind", [CountsInClass, CountsInMethod])
def test_what_is_counted_in_the_modules_class_is_counted_once(kind: type[Decides], form: bool) -> None:
    holder: Any = kind if kind is CountsInClass else kind.weighed
    times = []
    for executor in ("sequential", VectorizedExecutor()):
        holder.seen = 0
        fit(kind(), executor, clients(() if form else (5,), late=1, short=(5,) if form else ()))
        times.append(holder.seen)
    assert times[0] == times[1] > 0


def test_what_catches_exceptions_is_stacked_all_the_same() -> None:
    assert compare(Catches).cause is None


def test_an_assertion_that_fails_is_raised() -> None:
    class Asserts(Decides):
        def weighed(self, loss: Tensor, x: Tensor) -> Tensor:
            assert x[0, 0] < 0.5, "a rare client"
            return loss

    with pytest.raises(AssertionError, match="a rare client"):
        fit(Asserts(), "vectorized", clients((5,)))
