"""Refuses classes of callbacks and data modules, as in ``callbacks=[FedAvg]``, and data modules not fully made."""

from __future__ import annotations

import inspect

import lightning as L


def refuse_classes(trainer: L.Trainer | None) -> None:
    """Raise ``TypeError`` if a trainer's ``callbacks`` have a class, or its ``datamodule`` is one.

    Lightning calls ``on_exception`` of each callback before it passes an error on, and would fail with a class. So the
    class gives way to a callback that refuses every stage of this trainer.
    """
    callbacks = getattr(trainer, "callbacks", [])
    for place, callback in enumerate(callbacks):
        if inspect.isclass(callback) and issubclass(callback, L.Callback):
            callbacks[place] = _Uncalled(callback.__name__)
    for callback in callbacks:
        if isinstance(callback, _Uncalled):
            callback.refuse()
    data = getattr(trainer, "datamodule", None)
    if inspect.isclass(data):
        raise TypeError(f"`datamodule` has the class {data.__name__}. Call it: {data.__name__}(...).")


def refuse_unmade(data: object, trainer: L.Trainer | None) -> None:
    """Raise ``RuntimeError`` if a trainer gets a data module whose constructor has not called that of its base class.

    Lightning's own constructor sets the trainer to ``None``.
    """
    if trainer is not None and "_federation" not in vars(data):
        name = type(data).__name__
        raise RuntimeError(
            f"`{name}.__init__` must call `super().__init__(partitioner, ...)`, which takes the partitioner, the batch "
            "size and the split."
        )


class _Uncalled(L.Callback):
    def __init__(self, name: str) -> None:
        self.name = name

    def refuse(self) -> None:
        raise TypeError(f"`callbacks` has the class {self.name}. Call it: {self.name}(...), and make a new Trainer.")

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.refuse()
