"""Refuses a trainer that was given the class of a callback, as in ``callbacks=[FedAvg]``."""

from __future__ import annotations

import inspect

import lightning as L


def refuse_uncalled(trainer: L.Trainer | None) -> None:
    """Raise ``TypeError`` if a trainer's ``callbacks`` have a class.

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


class _Uncalled(L.Callback):
    def __init__(self, name: str) -> None:
        self.name = name

    def refuse(self) -> None:
        raise TypeError(f"`callbacks` has the class {self.name}. Call it: {self.name}(...), and make a new Trainer.")

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.refuse()
