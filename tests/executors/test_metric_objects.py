"""Metric objects in stacks: the values that clients one after the other give them, or not stacked, with the cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers.stacked import Module
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric, SumMetric
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy, MulticlassAUROC
from torchmetrics.wrappers import BootStrapper
from zoo.outcome import CallRecorder

from fl_lightning import FedAvg, TensorDataModule

Use = Callable[[Any, Tensor, Tensor, int], None]
EXECUTORS = pytest.mark.parametrize("executor", ["sequential", "vectorized"])


class Observed(Module):
    """Gives a metric object the one feature of a batch and its classes, and logs it by the name ``m``."""

    def __init__(self, metric: nn.Module, use: Use, computes: bool) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 3)))
        self.metric, self.use, self.computes = metric, use, computes

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.use(self, x[:, 0], y, batch_idx)
        return F.cross_entropy(self.layers(x), y)

    def on_train_epoch_end(self) -> None:
        if self.computes:
            self.log("m", self.metric.compute())  # type: ignore[operator]
            self.metric.reset()  # type: ignore[operator]


def updates(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
    module.metric.update(y)


def logs(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
    module.metric(y)
    module.log("m", module.metric, on_step=True, on_epoch=True)


def fit(
    executor: Any,
    metric: nn.Module,
    use: Use,
    classes: Sequence[Sequence[int]],
    features: Sequence[Sequence[float]] | None = None,
    rounds: int = 1,
) -> tuple[float, list[float], str | None]:
    """Train clients of some classes on batches of two samples, in their order.

    Returns:
        The value of the last epoch, those of all steps, and why clients are not stacked.
    """
    labels = [torch.tensor(own) for own in classes]
    inputs = [torch.ones(len(own)) for own in classes] if features is None else list(map(torch.tensor, features))
    clients = [(x.double().unsqueeze(1), y) for x, y in zip(inputs, labels, strict=True)]
    logger = CallRecorder()
    trainer = quiet_trainer(
        max_epochs=rounds, callbacks=[FedAvg(1.0, executor=executor)], logger=logger, log_every_n_steps=1
    )
    module = Observed(metric, use, computes=use is not logs)
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=2, shuffle=False))
    steps = [values["m_step"] for _, values in logger.calls if "m_step" in values]
    last = trainer.callback_metrics.get("m_epoch", trainer.callback_metrics.get("m"))
    assert last is not None
    return float(last), steps, getattr(trainer.fit_loop.executor, "cause", None)


class Summed(Metric):
    """A sum over batches; what is summed is written in ``of_batch``."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), "sum")
        self.calls = 0

    def update(self, y: Any) -> None:
        self.calls += 1
        self.total += self.of_batch(y)

    def of_batch(self, y: Any) -> Any:
        raise NotImplementedError

    def compute(self) -> Any:
        return self.total


# ---- updates that treat a batch as a whole ----


class WithZero(Summed):
    """Samples of the batches that have one of class 0."""

    def of_batch(self, y: Tensor) -> Any:
        return len(y) if (y == 0).any() else 0


class Capped(Summed):
    """Samples of class 1, one of a batch at most."""

    def of_batch(self, y: Tensor) -> Any:
        return (y == 1).sum().clamp(max=1)


@EXECUTORS
@pytest.mark.parametrize(
    ("kind", "classes", "expected"),
    [
        # 4 samples each of the first two clients, which a trial sees, none of the third, 2 of the fourth
        (WithZero, [[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 2, 2], [1, 0, 1, 1]], 10),
        # none of the first two clients, then one of each batch
        (Capped, [[0, 0, 0, 0], [2, 2, 0, 0], [1, 1, 1, 1], [1, 1, 0, 1]], 4),
    ],
)
def test_batches_of_several_clients_are_not_joined(
    executor: str, kind: Any, classes: list[list[int]], expected: int
) -> None:
    value, _, cause = fit(executor, kind(), updates, classes)
    assert cause is None
    assert value == expected


@EXECUTORS
def test_scores_that_are_probabilities_in_some_batches_only(executor: str) -> None:
    """Scores outside of 0 to 1 make torchmetrics take the sigmoid of all scores of the batch."""

    def use(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        module.metric.update(x, y)

    # all of class 1: as probabilities they are found for none of three clients, after a sigmoid for both of the last
    value, _, cause = fit(executor, BinaryAccuracy(), use, [[1, 1]] * 4, [[0.2, 0.4]] * 3 + [[2.0, 0.2]])
    assert cause is None
    assert value == 2 / 8


@EXECUTORS
def test_a_joined_update_that_fails_is_made_call_by_call(executor: str) -> None:
    """There may be two classes in a batch, whichever they are; there are three in all batches together."""

    def use(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        module.metric.update(torch.zeros_like(y), y)

    metric = MulticlassAccuracy(2, average="micro")
    value, _, cause = fit(executor, metric, use, [[0, 1, 0, 2]] * 4)
    assert cause is None
    assert value == 0.5


# ---- values of single steps ----


class Numbered(Summed):
    """The numbers of its calls, which go on after a reset."""

    def of_batch(self, y: Tensor) -> Any:
        return self.calls


@EXECUTORS
def test_each_steps_value_is_that_of_the_call(executor: str) -> None:
    value, steps, cause = fit(executor, Numbered(), logs, [[0, 0, 1, 1]] * 4)
    assert cause is None
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]
    assert value == 36


@EXECUTORS
def test_a_value_that_is_logged_before_the_call_is_that_of_the_batch_before(executor: str) -> None:
    def use(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        if batch_idx:
            module.log("m", module.metric, on_step=True, on_epoch=True)
        module.metric(y.float())

    # sums of batches: 2, 4 and 0; the values of a client's last log stay until the next one's
    _, steps, cause = fit(executor, SumMetric(), use, [[1, 1, 2, 2, 0, 0]] * 3)
    assert cause is None
    assert steps == [2, 4, 4, 2, 4, 4, 2, 4]


# ---- what a metric object holds beside its states ----


class Box:
    value: Any = 0.0


class Moving(Metric):
    """Half of what was before, and the batch's mean."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.held = Box()
        self.mean = start

    def update(self, y: Tensor) -> None:
        value: Any = y.float().mean() if isinstance(self.mean, Tensor) else y.float().mean().item()
        self.mean = 0.5 * self.mean + value
        self.held.value = 0.5 * self.held.value + value

    def compute(self) -> Tensor:
        assert float(self.held.value) == float(self.mean)
        return torch.tensor(float(self.mean))


@EXECUTORS
@pytest.mark.parametrize("start", [torch.tensor(0.0), np.zeros(()), 0.0], ids=["tensor", "array", "number"])
def test_a_moving_mean_goes_through_the_clients_in_order(executor: str, start: Any) -> None:
    value, _, cause = fit(executor, Moving(start), updates, [[1, 1, 2, 2]] * 3)
    assert cause is None
    expected = 0.0
    for mean in (1, 2, 1, 2, 1, 2):
        expected = expected / 2 + mean
    assert value == expected == 3.28125


class KeepsNumbers(Summed):
    def update(self, y: Any) -> None:
        assert type(y) is float
        super().update(y)

    def of_batch(self, y: Any) -> Any:
        return y


@EXECUTORS
def test_a_number_of_a_tensor_is_given_as_a_number(executor: str) -> None:
    def use(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        module.metric.update(y.double().mean().item())

    value, _, cause = fit(executor, KeepsNumbers(), use, [[1, 1], [2, 1], [0, 0], [1, 0]])
    assert cause is None
    assert value == 1 + 1.5 + 0 + 0.5


@EXECUTORS
def test_a_sum_of_single_numbers(executor: str) -> None:
    """As torchmetrics' introduction writes it: a tensor without dimensions is added in place."""

    def use(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        module.metric.update(y.float().mean())

    value, _, cause = fit(executor, type("Plain", (Summed,), {"of_batch": lambda self, y: y})(), use, [[1, 2]] * 4)
    assert cause is None
    assert value == 6


@EXECUTORS
def test_batches_are_counted(executor: str) -> None:
    classes = [[0, 1, 2], [0], [1, 1], [2, 2, 2, 2, 2]]
    value, _, cause = fit(executor, SumMetric(), lambda module, *_: module.metric.update(1), classes)
    assert cause is None
    assert value == 2 + 1 + 1 + 3


@EXECUTORS
def test_what_becomes_of_a_tensor_afterwards_does_not_matter(executor: str) -> None:
    def use(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        own = y.clone()
        module.metric.update(own)
        own += (own == 2).long()

    value, _, cause = fit(executor, SumMetric(), use, [[0, 0], [1, 1], [1, 0], [2, 2]])
    assert cause is None
    assert value == 0 + 2 + 1 + 4


def test_thresholds_are_no_part_of_what_clients_change() -> None:
    def use(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
        module.metric.update(F.one_hot(y, 3).double(), y)

    value, _, cause = fit("vectorized", MulticlassAUROC(3, thresholds=5), use, [[0, 1, 2, 0]] * 4)
    assert cause is None
    assert value == 1.0


# ---- not stacked ----


class Draws(Summed):
    """Draws from the third call on."""

    def of_batch(self, y: Tensor) -> Any:
        return torch.rand(()) if self.calls > 2 else 0


class DrawsBySomeName(Summed):
    def of_batch(self, y: Tensor) -> Any:
        return getattr(torch, "ran" + "d")(()) if self.calls > 2 else 0


class OfClass(Summed):
    counted: ClassVar[dict[str, int]] = {}

    def of_batch(self, y: Tensor) -> Any:
        self.counted["calls"] = self.counted.get("calls", 0) + 1
        return self.counted["calls"]


def update_with_net(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
    module.metric.update(module.layers)


class OfWeights(Summed):
    def of_batch(self, y: Any) -> Any:
        return y[0].weight.detach().square().sum()


def reads_state(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
    module.metric.update(y)
    module.log("seen", module.metric.total)


def counts_updates(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
    module.metric.update(y)
    if module.metric.update_count == 7:
        module.log("seventh", 1.0)


def update_scores(module: Any, x: Tensor, y: Tensor, batch_idx: int) -> None:
    module.metric.update(F.one_hot(y, 3).double(), y)


def hooked() -> Metric:
    metric = SumMetric()
    metric.register_forward_hook(lambda *arguments: None)
    return metric


class OnlyMean(BootStrapper):
    def compute(self) -> Any:
        return super().compute()["mean"]


@pytest.mark.parametrize(
    ("metric", "use", "cause"),
    [
        (Draws, updates, "a metric object (Draws, by `rand`) draws random numbers"),
        (lambda: OnlyMean(MulticlassAccuracy(3), 2), update_scores, "draws random numbers"),
        (OfClass, updates, "changes `OfClass"),
        (OfWeights, update_with_net, "the metric object `self.metric` (its `total`) holds something else in a stack"),
        (WithZero, reads_state, "reads the state of a metric object"),
        (WithZero, counts_updates, "reads the state of a metric object"),
        (hooked, logs, "a metric object has forward hooks"),
    ],
    ids=["draws", "bootstraps", "class", "weights", "state", "count", "hook"],
)
def test_what_is_not_stacked_names_the_metric_object(metric: Callable[[], Metric], use: Use, cause: str) -> None:
    OfClass.counted.clear()
    _, _, found = fit("vectorized", metric(), use, [[0, 1, 1, 2]] * 4)
    assert found is not None
    assert cause in found


def test_random_numbers_that_no_trial_has_seen_stop_the_fit() -> None:
    with pytest.raises(RuntimeError, match=r"DrawsBySomeName.*draws random numbers.*executor=\"sequential\""):
        fit("vectorized", DrawsBySomeName(), updates, [[0, 1]] * 6)
