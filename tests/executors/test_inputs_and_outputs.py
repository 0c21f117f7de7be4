"""What changes from step to step is an input of a captured step; what a step keeps for later is an output of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.stacked import Module, assert_below, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassF1Score

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.parts import Exchange

#: All batches of four samples: PyTorch captures one step.
SIZES = (8, 12, 8)
#: The last batch of the last client has two samples, whose step is captured, too.
UNEQUAL = (8, 12, 6)


class Kept(Module):
    """Keeps something of each step in attributes."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.kept: list[Any] = []
        self.shown: dict[str, Any] = {}
        self.last: Any = None
        self.factor = 1.0

    def on_train_epoch_start(self) -> None:
        self.factor = 1 + 0.1 * self.current_epoch

    def scores(self, batch: Any) -> Tensor:
        scores: Tensor = self.layers(batch[0])
        return scores


def fit(kind: type[Kept], executor: Any, rounds: int = 2, sizes: tuple[int, ...] = SIZES) -> Kept:
    module = kind()
    trainer = quiet_trainer(max_epochs=rounds, precision="64-true", callbacks=[FedAvg(1.0, executor=executor, seed=1)])
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), sizes), batch_size=4))
    return module


def ends_alike(kind: type[Kept], rounds: int = 2, sizes: tuple[int, ...] = SIZES) -> str | None:
    """Compare what a fit leaves with stacks and without; return why clients were not stacked."""
    stacks = VectorizedExecutor()
    alone = fit(kind, "sequential", rounds, sizes)
    stacked = fit(kind, stacks, rounds, sizes)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(stacked.state_dict()[name], value, rtol=1e-9, atol=1e-9)
    for name in ("kept", "shown", "last"):
        torch.testing.assert_close(getattr(stacked, name), getattr(alone, name), rtol=1e-9, atol=1e-9)
    return stacks.cause


# ---- outputs ----


class KeepsLosses(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.kept.append(loss.detach())
        return loss


class KeepsNumbersAndScores(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.kept.append({"loss": loss.item(), "scores": [self.scores(batch).detach(), batch[1]]})
        return loss


class SetsAnAttribute(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.last = {"scores": self.scores(batch).detach(), "target": batch[1]}
        return loss


class UsesFeaturesOfAHook(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.layers[0].register_forward_hook(self.show)

    def show(self, layer: nn.Module, given: Any, hidden: Tensor) -> None:
        self.shown["hidden"] = hidden

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        penalty = self.shown["hidden"].square().mean()
        self.shown["hidden"] = self.shown["hidden"].detach()
        return loss + penalty


class NormalizesItsWeight(Kept):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        nn.utils.spectral_norm(self.layers[0])


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (KeepsLosses, SIZES),
        (KeepsNumbersAndScores, UNEQUAL),
        (SetsAnAttribute, UNEQUAL),
        (UsesFeaturesOfAHook, SIZES),
        (NormalizesItsWeight, SIZES),
    ],
)
def test_what_a_step_keeps_is_there_after_a_stack(kind: type[Kept], sizes: tuple[int, ...]) -> None:
    assert ends_alike(kind, sizes=sizes) is None


def test_losses_are_kept_in_the_order_of_clients() -> None:
    kept = fit(KeepsLosses, "vectorized", rounds=1).kept
    start = linear().double()
    firsts = [F.cross_entropy(start(x[:4]), y[:4]) for x, y in clients_of((6,), SIZES)]
    # Clients of 8, 12 and 8 samples take 2, 3 and 2 steps; samples of a batch are drawn, and their losses are near.
    assert len(kept) == 7
    assert [float(kept[place]) for place in (0, 2, 5)] == pytest.approx([float(loss) for loss in firsts], abs=0.5)


class ReadsWhatItKeeps(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.kept.append(loss.detach())
        return loss * torch.stack(self.kept).mean()


class CountsWhatItKeeps(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.kept.append(loss.detach())
        return loss * len(self.kept)


class ReadsItByAnotherName(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.same = self.kept

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.kept.append(loss.detach())
        return loss * (1 + sum(self.same[:2]))


class ReadsTheStepBefore(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        before = self.last
        self.last = loss.detach()
        return loss if before is None else loss + 0.1 * before * loss


class ReadsFeaturesOfTheStepBefore(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        factor = self.shown.get("loss", 1.0)
        self.shown["loss"] = loss.detach()
        return loss * factor


class ReadsItInAHook(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.last = loss.detach()
        return loss

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(self.last)


class ReadsWhatAHookKeeps(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss if self.last is None else loss / (1 + self.last)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.last = self.layers[0].weight.detach().norm()


class ReadsItInEverySecondStep(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if batch_idx % 2 == 1:
            return loss * self.last
        self.last = loss.detach()
        return loss


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (ReadsWhatItKeeps, "object that is no tensor"),
        (CountsWhatItKeeps, "`training_step` reads `self.kept`, "),
        (ReadsItByAnotherName, "`training_step` reads `self.same`, "),
        (ReadsTheStepBefore, "`training_step` changes `self.last`, of which"),
        (ReadsFeaturesOfTheStepBefore, "`training_step` reads `self.shown`, "),
        (ReadsItInAHook, "line "),
        pytest.param(ReadsWhatAHookKeeps, "sets `self.last`, and another one reads it", marks=pytest.mark.long),
        pytest.param(ReadsItInEverySecondStep, "raises TypeError: ", marks=pytest.mark.long),
    ],
)
def test_steps_that_read_what_earlier_ones_keep_train_one_after_the_other(kind: type[Kept], cause: str) -> None:
    assert cause in str(ends_alike(kind))


class ScalesByTheLoss(Exchange):
    """Scales a client's update by what the module holds when the client ends."""

    module: Any = None

    def upload(self, result: Any) -> Any:
        return result.with_delta(result.delta * self.module.last)


def test_what_a_part_may_read_when_a_client_ends_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = ReadsItInEverySecondStep()
        monkeypatch.setattr(ScalesByTheLoss, "module", module)
        # No client has a second batch.
        data = TensorDataModule(clients_of((6,), (4, 4, 4)), batch_size=4)
        callback = FedAvg(1.0, executor=executor, seed=1, exchange=ScalesByTheLoss())
        quiet_trainer(max_epochs=1, precision="64-true", callbacks=[callback]).fit(module, datamodule=data)
        ends.append(module.state_dict())
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-9, atol=1e-9)
    assert "sets `self.last`, which ScalesByTheLoss may read" in str(stacks.cause)


# ---- inputs ----


class TakesNumbers(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        self.log("rate", rate)
        anneal = min(1.0, self.current_epoch / 3) + self.factor + 0.01 * batch_idx
        return loss + anneal * self.scores(batch).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class LogsTheRate(TakesNumbers):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("rate", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return Module.training_step(self, batch, batch_idx)


def test_numbers_that_change_are_inputs() -> None:
    assert ends_alike(TakesNumbers, rounds=3) is None


class TakesTheRound(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1 + self.current_epoch / 3)


class TakesNumbersOfHooks(Kept):
    def on_train_epoch_start(self) -> None:
        self.factor = 1 + 0.1 * self.current_epoch
        self.whole = self.current_epoch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.factor + self.whole


@pytest.mark.parametrize(
    ("kind", "captures"),
    [(LogsTheRate, 2), (TakesTheRound, 2), (TakesNumbersOfHooks, 4), (TakesNumbers, 4)],
)
def test_numbers_that_change_cost_captures_once(kind: type[Kept], captures: int) -> None:
    counts = torch._dynamo.utils.counters["stats"]
    before = counts["unique_graphs"]
    assert ends_alike(kind, rounds=4, sizes=UNEQUAL) is None
    # Batches of four samples and of two have a step each. That hooks set other numbers shows in the second round.
    assert counts["unique_graphs"] - before == captures


class Anneals(Kept):
    """Weighs a penalty by the optimizer steps of all clients so far."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.kept.append((self.global_step, loss.detach()))
        penalty = self.scores(batch).square().mean()
        return loss + (1 - math.exp(-self.global_step / 5)) * penalty + min(1.0, self.trainer.global_step / 10) * loss


class LogsEachThirdStep(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.trainer.global_step % 3 == 0:
            self.log("third", loss)
            self.kept.append(self.global_step + 0 * loss.detach())
        return loss


@pytest.mark.parametrize("kind", [Anneals, LogsEachThirdStep])
def test_each_client_of_a_stack_has_its_own_global_step(kind: type[Kept]) -> None:
    assert ends_alike(kind, rounds=2) is None


def test_steps_are_counted_client_by_client() -> None:
    counted = [int(steps) for steps, _ in fit(Anneals, "vectorized", rounds=2).kept]
    # Clients of 8, 12 and 8 samples take 2, 3 and 2 steps in each of two rounds.
    assert counted == list(range(14))


class AsLargeAsCounted(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) + torch.zeros(self.global_step + 1).sum()


def test_a_size_that_is_another_for_each_client_is_not_stacked() -> None:
    assert "global_step" in str(ends_alike(AsLargeAsCounted, rounds=1))


class ComputesInTheStep(Kept):
    """Logs the running value of a metric object in each step, and begins anew after a client's first."""

    def __init__(self) -> None:
        super().__init__()
        self.average = MeanMetric()
        self.score = MulticlassF1Score(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        # A score has the precision of the step.
        self.score(self.scores(batch), batch[1])
        self.average.update(loss.detach(), len(batch[1]))
        self.log("running", self.average.compute(), on_step=True, on_epoch=True)
        if batch_idx == 0:
            self.average.reset()
        return loss

    def on_train_epoch_end(self) -> None:
        self.kept.append(self.trainer.callback_metrics["running_step"])
        self.kept.append(self.average.compute())


def test_metric_objects_are_computed_and_reset_client_by_client() -> None:
    assert ends_alike(ComputesInTheStep, sizes=UNEQUAL) is None


class SetsAMode(Kept):
    """Keeps a layer in eval mode, and assigns a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(6), linear())
        self.register_buffer("mean", torch.zeros(3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.layers[0].eval()
        self.mean = 0.9 * self.mean + 0.1 * self.scores(batch).detach().mean(0)
        return super().training_step(batch, batch_idx)


def test_a_step_may_set_a_mode_and_assign_a_buffer() -> None:
    assert ends_alike(SetsAMode, rounds=1) is None


class DecidesByTheRound(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if self.current_epoch >= 2 else loss


def test_a_decision_by_the_round_is_taken_in_each_round() -> None:
    assert ends_alike(DecidesByTheRound, rounds=4) is None


# ---- functions that cannot be mapped ----


class Reverse(torch.autograd.Function):
    """Reverses gradients, by a factor and by what it was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return -ctx.factor * gradients[0] * x.cos(), None


class ReversesGradients(Kept):
    def scores(self, batch: Any) -> Tensor:
        hidden = self.layers[0](batch[0])
        scores: Tensor = self.layers[2](Reverse.apply(hidden, 0.5))
        return scores

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.scores(batch), batch[1])


class Checkpoints(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = checkpoint(self.layers[:2], F.dropout(batch[0], 0.1), use_reentrant=False)
        return F.cross_entropy(self.layers[2](hidden), batch[1])


class CountsClasses(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        counts = torch.bincount(batch[1], minlength=3)
        weight = counts.sum() / (3 * counts.clamp(min=1))
        return F.cross_entropy(self.layers(batch[0]), batch[1], weight=weight.double())


class Asserts(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert_below(batch[0], 100.0)
        return super().training_step(batch, batch_idx)


class Adapts(Kept):
    """Has the loss of weights after a step of its own, as MAML does."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        def loss(weights: Any) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(self.layers, weights, (batch[0],)), batch[1])

        weights = dict(self.layers.named_parameters())
        gradients = torch.func.grad(loss)(weights)
        return loss({name: weight - 0.1 * gradients[name] for name, weight in weights.items()})


class Lstm(Kept):
    kind: Any = nn.LSTM

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.recurrent = self.kind(2, 4, num_layers=2, bidirectional=True, batch_first=True).double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden, last = self.recurrent(batch[0].view(-1, 3, 2))
        # An LSTM has two last states.
        if isinstance(last, tuple):
            last = last[0] * last[1]
        return F.cross_entropy(hidden[:, -1, :3] + last[1, :, :3] + self.layers(batch[0]), batch[1])


class Gru(Lstm):
    kind = nn.GRU


class Rnn(Lstm):
    kind = nn.RNN


@pytest.mark.parametrize(
    "kind",
    [
        *(ReversesGradients, Checkpoints, CountsClasses, Asserts, Lstm),
        pytest.param(Adapts, marks=pytest.mark.long),
        pytest.param(Gru, marks=pytest.mark.long),
        pytest.param(Rnn, marks=pytest.mark.long),
    ],
)
def test_these_functions_are_stacked(kind: type[Kept]) -> None:
    assert ends_alike(kind, rounds=1) is None


class AssertsOfOneClient(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert_below(batch[0], 2.2)
        return super().training_step(batch, batch_idx)


def test_an_assertion_of_one_client_is_raised_as_alone() -> None:
    assert max(float(x.max()) for x, _ in clients_of((6,), SIZES)) > 2.2
    with pytest.raises(AssertionError, match="too large"):
        fit(AssertsOfOneClient, "vectorized")


class RaisesForNan(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if torch.isnan(loss):
            print(f"batch {batch_idx}")
            raise ValueError("the loss is NaN")
        if not math.isfinite(loss.item()):
            raise ValueError("the loss is infinite")
        if loss.isinf().item() or loss > 1e6:
            raise ValueError("the loss is large")
        return loss


class ReturnsNothingForSome(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        if batch[0].max() > 2.2:
            return None
        return loss


class RaisesForOneClient(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if (batch[0] > 2.2).any():
            raise ValueError("too large")
        return super().training_step(batch, batch_idx)


def test_a_step_that_raises_for_bad_values_is_stacked() -> None:
    assert ends_alike(RaisesForNan) is None


class ReturnsNothingAtFirst(Kept):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        if batch[0].max() < 2.2:
            return None
        return loss


@pytest.mark.parametrize("kind", [ReturnsNothingForSome, pytest.param(ReturnsNothingAtFirst, marks=pytest.mark.long)])
def test_a_step_that_returns_nothing_for_some_batches_trains_one_after_the_other(kind: type[Kept]) -> None:
    assert "returns nothing" in str(ends_alike(kind))


class LetsAModuleInItLog(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Module(linear())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.inner.log("loss", loss)
        return loss


def test_a_module_in_the_module_logs_as_little_as_alone() -> None:
    with pytest.raises(MisconfigurationException, match="not managed"):
        fit(LetsAModuleInItLog, "vectorized")


def test_an_error_of_one_client_is_raised_as_alone() -> None:
    with pytest.raises(ValueError, match="too large"):
        fit(RaisesForOneClient, "vectorized")
