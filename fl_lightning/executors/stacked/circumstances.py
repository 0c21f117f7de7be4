"""Under which circumstances a trial was made: when they change, it is made again."""

from __future__ import annotations

from typing import Any

from torchmetrics import Metric, MetricCollection

from fl_lightning.clients.training import LocalTraining

_SKIPPED = {
    "_current_fx_name",
    "_metric_attributes",
    "log",
    "_trainer",
    "trainer",
    "_fabric",
    "_parameters",
    "_buffers",
}
_CONTAINERS = (list, tuple, dict, set)


class Circumstances:
    """What a module, its optimizer and the trainer look like at a round's start.

    Looked at are attributes, hooks, modes, frozen parameters, the optimizer's options and the trainer's settings, not
    what tensors hold: this is made in every round, and cheap.

    Args:
        clients: Trains clients.
    """

    def __init__(self, clients: LocalTraining) -> None:
        trainer: Any = clients.trainer
        seen: list[Any] = [*trainer.callbacks, trainer.accumulate_grad_batches, trainer.gradient_clip_val]
        for module in clients.vector.module.modules():
            if not isinstance(module, (Metric, MetricCollection)):
                for key, value in vars(module).items():
                    if key not in _SKIPPED:
                        _see(value, seen)
        for parameter in clients.vector.parameters:
            seen.append(parameter.requires_grad)
            _see(parameter._backward_hooks, seen)
            _see(getattr(parameter, "_post_accumulate_grad_hooks", None), seen)
        for optimizer in trainer.optimizers:
            seen += type(optimizer), optimizer.step
            for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
                _see(hooks, seen)
            for group in optimizer.param_groups:
                seen += [bool(value) if isinstance(value, (int, float)) else None for value in group.values()]
        self._seen = seen  # holds the objects, so that another one cannot come to lie where one was

    def same_as(self, other: Circumstances) -> bool:
        """Whether nothing has changed."""
        mine, others = self._seen, other._seen
        return len(mine) == len(others) and all(a is b or _equal(a, b) for a, b in zip(mine, others, strict=True))


def _see(value: Any, seen: list[Any]) -> None:
    """Look at an attribute and, if it is a container, at what it holds."""
    if not isinstance(value, _CONTAINERS):
        seen.append(value)
        return
    seen.append(type(value))
    seen += [*value.keys(), *value.values()] if isinstance(value, dict) else value


def _equal(a: Any, b: Any) -> bool:
    simple = (bool, int, float, str, bytes)
    if isinstance(a, simple) and type(a) is type(b):
        return a == b
    # methods are made anew each time they are looked up
    return (
        getattr(a, "__func__", a) is getattr(b, "__func__", b) and hasattr(a, "__self__") and a.__self__ is b.__self__
    )
