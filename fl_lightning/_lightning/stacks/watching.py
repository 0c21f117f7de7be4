"""Objects that a training step may ask for a few things only, while PyTorch captures the step.

The object itself stays in its place: it is made an instance of a subclass of its own class, whose members end the
capture where they are not among what may be read. So whatever a step finds out about the object's identity or kind is
true, and everything else is refused, also what a step sets::

    loss * self.trainer.current_epoch       # is read, and guarded
    loss * self.trainer.fit_loop.epoch      # ends the capture: "`training_step` reads `trainer.fit_loop`"
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import lightning.pytorch as pl
import torch

_MARK = "_is_watched"
#: The attribute by which a step reads ``trainer.global_step``, which each client has its own of.
STEPS_SO_FAR = "_steps_so_far"

#: What a step may see of the trainer: it is the same for all clients.
_SHARED = {
    "accelerator",
    "accumulate_grad_batches",
    "barebones",
    "check_val_every_n_epoch",
    "ckpt_path",
    "current_epoch",
    "datamodule",
    "default_root_dir",
    "device_ids",
    "enable_validation",
    "evaluating",
    "fast_dev_run",
    "global_rank",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "is_global_zero",
    "limit_test_batches",
    "limit_train_batches",
    "limit_val_batches",
    "local_rank",
    "log_dir",
    "log_every_n_steps",
    "logger",
    "loggers",
    "lr_scheduler_configs",
    "max_epochs",
    "max_steps",
    "max_time",
    "min_epochs",
    "min_steps",
    "node_rank",
    "num_devices",
    "num_nodes",
    "num_sanity_val_steps",
    "num_training_batches",
    "num_val_batches",
    "optimizers",
    "overfit_batches",
    "precision",
    "predicting",
    "reload_dataloaders_every_n_epochs",
    "sanity_checking",
    "scaler",
    "should_stop",
    "state",
    "strategy",
    "testing",
    "training",
    "use_distributed_sampler",
    "val_check_interval",
    "val_dataloaders",
    "validating",
    "world_size",
}


def become(thing: Any, kind: type, attributes: dict[str, Any]) -> None:
    """Give an object another class and other attributes, past what its class does when attributes are set."""
    object.__setattr__(thing, "__class__", kind)
    held: dict[str, Any] = vars(thing)
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

    def read_unless_special(self: Any, name: str) -> Any:
        # Python looks for a special method in the class alone; Dynamo of PyTorch 2.11 asks here, too.
        if name.startswith("__"):
            raise AttributeError(name)
        return read(self, name)

    attributes: dict[str, Any] = {}
    for name in dir(kind):
        if not name.startswith("__") and name not in leave:
            attributes[name] = through(name)
    attributes["__getattr__"] = read_unless_special
    attributes.update(members)
    attributes[_MARK] = True
    return type(kind.__name__, (kind,), attributes)


def is_watched(value: Any) -> bool:
    """Whether something is one of these subclasses."""
    return isinstance(value, type) and _MARK in vars(value)


@contextmanager
def noting_reads(thing: Any, names: set[str]) -> Iterator[None]:
    """Note the names of an object's attributes that are read.

    Args:
        thing: The object.
        names: Gets the names.
    """
    kind: Any = type(thing)

    def read(self: Any, name: str) -> Any:
        names.add(name)
        return kind.__getattribute__(self, name)

    watched = type(kind.__name__, (kind,), {"__getattribute__": read})
    object.__setattr__(thing, "__class__", watched)
    try:
        yield
    finally:
        object.__setattr__(thing, "__class__", kind)


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
    def watched(self, steps_so_far: int) -> Iterator[None]:
        """Watch what a step that is captured reads of it.

        Args:
            steps_so_far: What it reads as ``global_step``.
        """
        kind: Any = type(self._trainer)
        attributes = dict(vars(self._trainer))
        self._twin.__dict__ = attributes
        become(self._trainer, _watched_trainer(kind), {"_read_by_step": self._twin, STEPS_SO_FAR: steps_so_far})
        try:
            yield
        finally:
            become(self._trainer, kind, attributes)


@cache
def _watched_trainer(kind: Any) -> type:
    return watched_class(kind, _read_trainer, {})


def _read_trainer(self: Any, name: str) -> Any:
    if name == "global_step":
        return self._steps_so_far
    if name not in _SHARED:
        # It is no exception, which code of the user's own could catch.
        torch._dynamo.graph_break(msg=f"`training_step` reads `trainer.{name}`, which all clients share")
    return getattr(self._read_by_step, name)
