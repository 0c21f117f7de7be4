"""What a module asks Lightning for, by hand: ``self.log``, counters and loggers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics import Metric

from zoo.outcome import CallRecorder


class StandIn(SimpleNamespace):
    """What modules and callbacks read from a trainer."""

    def __init__(self, **given: Any) -> None:
        logger = CallRecorder()
        super().__init__(
            current_epoch=0,
            global_step=0,
            callback_metrics={},
            should_stop=False,
            logger=logger,
            loggers=[logger],
            training=True,
            sanity_checking=False,
            fast_dev_run=False,
            state=SimpleNamespace(fn=TrainerFn.FITTING),
            strategy=SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision),
            **given,
        )


@dataclass
class _Kept:
    """A logged name: its options, its running sum and its last value."""

    on_step: bool
    on_epoch: bool
    reduce: str
    total: Any = None
    weight: float = 0.0
    last: Any = None
    metric: Metric | None = None
    values: list[float] = field(default_factory=list)

    def add(self, value: Any, weight: float) -> None:
        if isinstance(value, Metric):
            self.metric, self.last = value, value._forward_cache
            return
        self.last = float(value.detach() if isinstance(value, Tensor) else value)
        self.values.append(self.last)
        self.weight += weight
        self.total = (self.total or 0.0) + self.last * (weight if self.reduce == "mean" else 1.0)

    def over_the_round(self) -> float:
        if self.metric is not None:
            return float(self.metric.compute())
        if self.reduce in ("max", "min"):
            return max(self.values) if self.reduce == "max" else min(self.values)
        return self.total / self.weight if self.reduce == "mean" else self.total


class Log:
    """Stands in for ``module.log`` and hands values on as Lightning does.

    Args:
        trainer: Whose logger and ``callback_metrics`` get the values.
    """

    def __init__(self, trainer: StandIn) -> None:
        self._trainer = trainer
        self.kept: dict[str, _Kept] = {}
        #: Batches after which an optimizer stepped: what loggers get as their step.
        self.stepped = 0
        self.in_step = True
        self.batch_size = 1

    def __call__(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **rest: Any,
    ) -> None:
        """Keep a value; same arguments as ``LightningModule.log``."""
        on_step = self.in_step if on_step is None else on_step
        on_epoch = not self.in_step if on_epoch is None else on_epoch
        reduce = reduce_fx if isinstance(reduce_fx, str) else reduce_fx.__name__
        kept = self.kept.setdefault(name, _Kept(on_step, on_epoch, reduce))
        kept.add(value, self.batch_size if batch_size is None else batch_size)

    def end_batch(self, steps: bool, is_last: bool) -> None:
        """Hand the values of a batch on, if an optimizer stepped after it."""
        both = {name: kept for name, kept in self.kept.items() if kept.on_step and kept.last is not None}
        values = {f"{name}_step" if kept.on_epoch else name: float(kept.last) for name, kept in both.items()}
        if steps:
            self._tell(values, self.stepped)
            self.stepped += 1
        if is_last:
            self._show(values)
            self._show({name: float(kept.last) for name, kept in both.items()})

    def show_round(self) -> dict[str, float]:
        """Let monitors see the values over the round, and return them as loggers get them."""
        values: dict[str, float] = {}
        for name, kept in self.kept.items():
            if kept.on_epoch:
                number = kept.over_the_round()
                values[f"{name}_epoch" if kept.on_step else name] = number
                self._show({name: number, f"{name}_epoch" if kept.on_step else name: number})
        return values

    def end_round(self) -> None:
        """Hand the values over the round on, with the round's number from 1 as their step, and forget them."""
        number = self._trainer.current_epoch + 1
        if values := self.show_round():
            self._tell({**values, "round": number}, number)
        for kept in self.kept.values():
            if kept.metric is not None:
                kept.metric.reset()
        self.kept.clear()

    def _show(self, values: Mapping[str, float]) -> None:
        """Let callbacks monitor the values, which are tensors to them."""
        shown = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
        self._trainer.callback_metrics.update(shown)

    def _tell(self, values: Mapping[str, float], step: int) -> None:
        if values:
            self._trainer.logger.log_metrics({**values, "epoch": self._trainer.current_epoch}, step=step)


def attach(module: L.LightningModule, trainer: StandIn) -> Log:
    """Give a module the stand-in for its trainer."""
    log = Log(trainer)
    module.__dict__["_trainer"] = trainer
    module.__dict__["log"] = log
    return log
