"""Objects that a training step may ask for a few things only, while PyTorch captures the step.

The object itself stays in its place: it is made an instance of a subclass of its own class, whose members end the
capture where they are not among what may be read. So whatever a step finds out about the object's identity or kind is
true, and everything else is refused, also what a step sets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import lightning.pytorch as pl
import torch

_MARK = "_is_watched"

#: What a step may see of the trainer: it is the same for all clients.
_SHARED = {
    *("current_epoch", "num_training_batches", "should_stop", "datamodule", "val_dataloaders"),
    *("num_val_batches", "optimizers", "lr_scheduler_configs", "strategy", "max_epochs", "min_epochs"),
    *("max_steps", "min_steps", "max_time", "accumulate_grad_batches", "gradient_clip_val", "precision"),
    *("gradient_clip_algorithm", "accelerator", "world_size", "num_nodes", "node_rank", "local_rank"),
    *("global_rank", "is_global_zero", "num_devices", "device_ids", "training", "validating", "testing"),
    *("predicting", "evaluating", "sanity_checking", "barebones", "log_every_n_steps", "val_check_interval"),
    *("check_val_every_n_epoch", "limit_train_batches", "limit_val_batches", "limit_test_batches"),
    *("default_root_dir", "log_dir", "estimated_stepping_batches", "state", "ckpt_path", "enable_validation"),
    *("fast_dev_run", "overfit_batches", "reload_dataloaders_every_n_epochs", "num_sanity_val_steps"),
    *("scaler", "use_distributed_sampler"),
}


def become(thing: Any, kind: type, attributes: dict[str, Any]) -> None:
    """Give an object another class and other attributes, past what its class does when attributes are set."""
    object.__setattr__(thing, "__class__", kind)
    held = vars(thing)
    held.clear()
    held.update(attributes)


def watched_class(
    kind: type, read: Callable[[Any, str], Any], members: dict[str, Any], leave: Collection[str] = ()
) -> type:
    """Return a subclass whose attributes are read by a function.

    Args:
        kind: The class.
        read: Returns the attribute of a name, or ends the capture.
        members: Members of the subclass that are read as they are.
        leave: Names of members that stay as they are.
    """

    def through(name: str) -> property:
        return property(lambda self: read(self, name))

    names = [name for name in dir(kind) if not name.startswith("__") and name not in leave]
    seen = {name: through(name) for name in names}
    return type(kind.__name__, (kind,), {**seen, "__getattr__": read, **members, _MARK: True})


def is_watched(value: Any) -> bool:
    """Whether something is one of these subclasses."""
    return isinstance(value, type) and _MARK in vars(value)


class WatchedTrainer:
    """A trainer of which a step may read what all clients share, and nothing else.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        # It reads what may be read, by the class's own properties.
        self._twin = object.__new__(type(trainer))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch what a step that is captured reads of it."""
        kind: Any = type(self._trainer)
        attributes = dict(vars(self._trainer))
        self._twin.__dict__ = attributes
        become(self._trainer, _watched_trainer(kind), {"_read_by_step": self._twin})
        try:
            yield
        finally:
            become(self._trainer, kind, attributes)


@cache
def _watched_trainer(kind: Any) -> type:
    return watched_class(kind, _read_trainer, {})


def _read_trainer(self: Any, name: str) -> Any:
    if name not in _SHARED:
        # It is no exception, which code of the user's own could catch.
        torch._dynamo.graph_break(msg=f"`training_step` reads `trainer.{name}`, which all clients share")
    return getattr(self._read_by_step, name)
