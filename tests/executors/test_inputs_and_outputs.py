"""What changes from step to step is an input of a captured step; what a step keeps for later is an output of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import assert_below
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassF1Score
from zoo.fitting import ends_alike
from zoo.modules.base import Changed

from fl_lightning import FedBuff
from fl_lightning.parts import Exchange

#: The last batch of the last client has two samples, whose step is captured, too.
UNEQUAL = (8, 12, 6)
ONE_ROUND, FOUR_ROUNDS = {"max_epochs": 1}, {"max_epochs": 4}
LONG = pytest.mark.long
#: What is in them is another while a step is captured.
CHANGED_MEANWHILE = (math, random, np.random)


class Kept(Changed):
    """Keeps something of each step in attributes; a function returns its loss."""

    def prepare(self) -> None:
        self.kept: list[Any] = []
        self.layers.kept = []  # type: ignore[assignment]
        self.shown: dict[str, Any] = {}
        self.last: Any = None
        self.average, self.score = MeanMetric(), MulticlassF1Score(3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("before", torch.zeros(3))

    def on_train_epoch_start(self) -> None:
        self.factor, self.whole = 1 + 0.1 * self.current_epoch, self.current_epoch


def plain(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    return loss


# ---- outputs ----


def keeps(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Keeps a loss, a number and scores."""
    scores = m(batch[0]).detach()
    m.kept.append(loss.detach())
    m.kept.append({"loss": loss.item(), "scores": [scores, batch[1]]})
    m.layers.kept.append(batch[1])
    m.layers.last = m.last = {"scores": scores, "target": batch[1]}
    return loss


class UsesFeaturesOfAHook(Kept):
    """Normalizes a weight in one hook, and keeps features in another."""

    def prepare(self) -> None:
        super().prepare()
        nn.utils.spectral_norm(self.layers[0])
        self.layers[0].register_forward_hook(self.show)

    def show(self, layer: nn.Module, given: Any, hidden: Tensor) -> None:
        self.shown["hidden"] = hidden


def uses_features(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    penalty = m.shown["hidden"].square().mean()
    m.shown["hidden"] = [m.shown["hidden"].detach(), penalty.detach()]
    return loss + penalty


def computes_in_the_step(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Logs the running value of a metric object in each step, and begins again after a client's first."""
    m.score(m(batch[0]), batch[1])
    m.average.update(loss.detach(), len(batch[1]))
    m.log("running", m.average.compute(), on_step=True, on_epoch=True)
    if index == 0:
        m.average.reset()
    return loss


class SetsAMode(Kept):
    """Keeps a layer in eval mode, and assigns two buffers."""

    def prepare(self) -> None:
        super().prepare()
        self.layers.insert(0, nn.BatchNorm1d(6))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.layers[0].eval()
        self.before = self.mean + self.before / 2
        self.mean = 0.9 * self.mean + 0.1 * self(batch[0]).detach().mean(0)
        return super().loss(batch, batch_idx) * (1 + self.mean.norm())


class SetsAModeAfterwards(SetsAMode):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = Kept.loss(self, batch, batch_idx)
        self.layers[0].eval()
        return loss


# ---- inputs ----


class OneCycle(Kept):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def takes_the_round(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    m.log("rate", m.optimizers().param_groups[0]["lr"])
    return loss * (1 + m.current_epoch / 3)


def takes_numbers(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    loss = takes_the_round(m, loss, batch, index) * m.factor + m.whole
    anneal = min(1.0, m.current_epoch / 3) + m.factor + 0.01 * index
    return loss + anneal * m(batch[0]).square().mean()


@pytest.mark.parametrize(("change", "captures"), [(takes_the_round, 2), (takes_numbers, 4)])
def test_numbers_that_change_cost_captures_once(change: Callable[..., Any], captures: int) -> None:
    counts = torch._dynamo.utils.counters["stats"]
    before = counts["unique_graphs"]
    assert ends_alike(lambda: OneCycle(change), sizes=UNEQUAL, trainer=FOUR_ROUNDS) is None
    # Batches of four samples and of two have a step each. That hooks set other numbers shows in the second round.
    assert counts["unique_graphs"] - before == captures


def anneals(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Weighs a penalty by the optimizer steps of all clients so far."""
    m.kept.append((m.global_step, loss.detach()))
    penalty = m(batch[0]).square().mean()
    return (
        loss
        + (math.log(2 + m.global_step) - math.exp(-m.global_step / 5)) * penalty
        + min(1.0, m.trainer.global_step / 10) * loss
    )


def logs_each_third_step(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    if m.trainer.global_step % 3 == 0:
        m.log("third", loss)
        m.kept.append(m.global_step + 0 * loss.detach())
    return loss


# ---- functions that cannot be mapped ----


class Reverse(torch.autograd.Function):
    """Reverses gradients, by a factor and by what it was given, whose signs have none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        signs = x.sign()
        ctx.save_for_backward(x, signs)
        ctx.factor = factor
        ctx.mark_non_differentiable(signs)
        return x.clone(), signs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, signs = ctx.saved_tensors
        return -ctx.factor * gradients[0] * x.cos() * signs + gradients[1], None


def weighs_and_reverses(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Weighs classes by their counts, reverses gradients, checkpoints activations, and asserts."""
    x, y = batch
    assert_below(x, 100.0)
    counts = torch.bincount(y, minlength=3)
    weight = counts.sum() / (3 * counts.clamp(min=1))
    torch.rand(2)
    hidden, signs = Reverse.apply(checkpoint(m.layers[:2], F.dropout(x, 0.1), use_reentrant=False), 0.5)
    return F.cross_entropy(m.layers[2](hidden + signs), y, weight=weight.double())


def recurs(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    hidden, last = m.recurrent(batch[0].view(-1, 2, 3))
    # An LSTM has two last states.
    if isinstance(last, tuple):
        last = last[0] * last[1]
    return F.cross_entropy(hidden[:, -1, :3] + last[1, :, :3] + m(batch[0]), batch[1])


def recurrent(kind: Any) -> Kept:
    module = Kept(recurs)
    module.recurrent = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    return module


def raises_for_nan(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    if torch.isnan(loss):
        print(f"batch {index}")
        raise ValueError("the loss is NaN")
    if not math.isfinite(loss.item()):
        raise ValueError("the loss is infinite")
    if loss.isinf().item() or loss > 1e6:
        raise ValueError("the loss is large")
    return loss


def decides_by_the_round(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    return loss * 2 if m.current_epoch >= 2 else loss


STACKED: dict[str, Any] = {
    "keeps values": (lambda: Kept(keeps), {"sizes": UNEQUAL}),
    "keeps features": (lambda: UsesFeaturesOfAHook(uses_features), {}),
    "computes metrics": (lambda: Kept(computes_in_the_step), {"sizes": UNEQUAL}),
    "sets a mode and a buffer": (lambda: SetsAMode(plain), {"trainer": ONE_ROUND}),
    "global step in the loss": (lambda: Kept(anneals), {}),
    "global step decides": (lambda: Kept(logs_each_third_step), {}),
    # Clients of several rounds are at work.
    "rounds": (lambda: OneCycle(decides_by_the_round), {"algorithm": partial(FedBuff, 1, 3), "trainer": FOUR_ROUNDS}),
    "raises for bad values": (lambda: Kept(raises_for_nan), {}),
    "weighs, reverses, checkpoints, asserts": (lambda: Kept(weighs_and_reverses), {"trainer": ONE_ROUND}),
    "LSTM": (lambda: recurrent(nn.LSTM), {"trainer": ONE_ROUND}),
}


@pytest.mark.parametrize("name", STACKED)
def test_stacked(name: str) -> None:
    make, options = STACKED[name]
    before = [dict(vars(module)) for module in CHANGED_MEANWHILE]
    assert ends_alike(make, **options) is None
    assert [dict(vars(module)) for module in CHANGED_MEANWHILE] == before


# ---- what is refused ----


def reads_it_by_another_name(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    m.kept.append(loss.detach())
    return loss * (1 + sum(m.same[:2]))


class KeptTwice(Kept):
    def prepare(self) -> None:
        super().prepare()
        self.same = self.kept


def reads_the_step_before(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    before = m.last
    m.last = loss.detach()
    return loss if before is None else loss + 0.1 * before * loss


class ReadsItInAHook(Kept):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad.mul_(self.last)  # type: ignore[union-attr]


def divides_by_the_last(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    return loss if m.last is None else loss / (1 + m.last)


class ReadsWhatAHookKeeps(Kept):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.last = self.layers[0].weight.detach().norm()


def reads_it_in_every_second_step(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    if index % 2 == 1:
        return loss * m.last
    m.last = loss.detach()
    return loss


def as_large_as_counted(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    return loss + torch.zeros(m.global_step + 1).sum()


class ReturnsNothingForSome(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if batch[0].max() > 2.2:
            return None
        return self.loss(batch, batch_idx)


@pytest.mark.parametrize(
    ("change", "cause", "kind"),
    [
        (lambda m, loss, _, index: setattr(m, "last", (loss.detach(), index)) or loss, "changes `self.last`, ", Kept),
        (lambda m, loss, *_: setattr(m, "before", m.mean) or loss, "changes the module, of which there is", Kept),
        (lambda m, loss, *_: m.kept.append(loss.detach()) or loss * torch.stack(m.kept).sum(), "no tensor", Kept),
        (reads_it_by_another_name, "`training_step` reads `self.same`, ", KeptTwice),
        (reads_the_step_before, "`training_step` changes `self.last`, of which", Kept),
        (lambda m, loss, *_: setattr(m, "last", loss.detach()) or loss, "line ", ReadsItInAHook),
        (as_large_as_counted, "global_step", Kept),
        (plain, "returns nothing", ReturnsNothingForSome),
        (plain, "mode of a layer", SetsAModeAfterwards),
        (lambda m, loss, *_: m.layers.train(not m.layers.training) and loss, "mode of a layer", Kept),
        pytest.param(divides_by_the_last, "`self.last`, and another one reads it", ReadsWhatAHookKeeps, marks=LONG),
        pytest.param(reads_it_in_every_second_step, "raises TypeError: ", Kept, marks=LONG),
    ],
)
def test_other_steps_train_one_after_the_other(change: Any, cause: str, kind: type[Kept]) -> None:
    assert cause in str(ends_alike(lambda: kind(change)))


class Idle(Exchange):
    module: Any = None


class ScalesByTheLoss(Idle):
    """Scales a client's update by what the module holds when the client ends: its loss, or a weight."""

    def upload(self, result: Any) -> Any:
        loss = self.module.last
        return result.with_delta(result.delta * (self.module.layers[2].bias.detach()[0] if loss is None else loss))


@pytest.mark.parametrize("change", [reads_it_in_every_second_step, plain])
def test_what_a_part_may_read_when_a_client_ends_is_the_clients_own(change: Any) -> None:
    # A part that does nothing comes before it.
    exchange = [Idle(), ScalesByTheLoss()]

    def make() -> Kept:
        exchange[1].module = Kept(change)
        return exchange[1].module

    # No client has a second batch.
    cause = ends_alike(make, sizes=(4, 4, 4), federated={"exchange": exchange}, trainer=ONE_ROUND)
    assert ("sets `self.last`, which ScalesByTheLoss may read" in str(cause)) == (change is not plain)
