"""What a step prints, and tells loggers, is told after a stack, client by client, as if each had trained alone."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from zoo.fitting import ends_alike
from zoo.modules.base import Changed
from zoo.outcome import CallRecorder


class Telling(Changed):
    """Tells its logger of gradients, too."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradient = self.layers[0].weight.grad
        self.logger.experiment.add_histogram("gradient", gradient)  # type: ignore[union-attr]


def tells(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    if index % 2 == 1:
        print(f"round {m.current_epoch}, batch {index}: {loss:.3f}", end=";\n")
        print("sizes", batch[0].shape, loss.item(), loss.detach())
        m.log("of class 1", (batch[1] == 1).sum(), on_step=True)
    m.print("loss {:.2f} of {shape} in {index}".format(loss, shape=batch[0].shape, index=index))  # noqa: UP032
    m.log("shown", loss[None], on_step=True)
    m.logger.experiment.add_scalar("loss", loss, m.global_step, walltime=index)
    m.logger.experiment.add_histogram("scores", m(batch[0]))
    for place, logger in enumerate(m.loggers):
        if isinstance(logger, CallRecorder):
            logger.log_metrics({f"loss {place}": loss.item()}, step=index)
    return loss


def logs_by_a_name_with_a_number(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    m.log(f"loss of batch {index}", loss)
    print(f"batch {index}")
    return loss


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        (tells, (8, 12, 6, 9)),
        pytest.param(tells, (8, 8, 8), marks=pytest.mark.long),
        pytest.param(logs_by_a_name_with_a_number, (8, 12, 6), marks=pytest.mark.long),
    ],
)
def test_others_are_told_the_same(change: Any, sizes: tuple[int, ...]) -> None:
    options: Any = {"trainer": {"precision": "64-true"}, "federated": {"clients_at_once": 2}}
    assert ends_alike(lambda: Telling(change), sizes=sizes, loggers=2, **options) is None


def asks_its_logger(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    print("a step")
    return loss * m.logger.version


def uses_what_a_logger_returns(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    m.logger.experiment.calls.append((index, {"own": 1}))
    return loss * (1 if m.logger.experiment.calls.count(3) else 2)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (asks_its_logger, "object that is no tensor"),
        (uses_what_a_logger_returns, "reads `logger.experiment.calls.count(...)`, "),
    ],
)
def test_steps_that_ask_loggers_train_one_after_the_other(change: Any, cause: str) -> None:
    assert cause in str(ends_alike(lambda: Changed(change)))
