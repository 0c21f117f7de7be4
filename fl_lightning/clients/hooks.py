"""The hooks of clients that callbacks may define, what they may set, and what they may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import lightning.pytorch as pl
from torch import Tensor

from fl_lightning._lightning.hooks import enter_fx
from fl_lightning.clients.batches import LocalSettings
from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import ClientResult, Task, same_values
from fl_lightning.parts.objectives import Correction
from fl_lightning.seeding import Stream, seed_global_generators

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Client = TypeVar("_Client")

#: What the hooks of clients and rounds log counts as logged in this hook of Lightning's: it is the one that logs means
#: over a round and does not run again in it, which would empty them.
_LOGS_AS = "on_train_start"
_IDLE, _OF_RESULT = "_does_nothing", "_reads_result_only"


def does_nothing(hook: _Function) -> _Function:
    """Mark a hook that does nothing and is there for subclasses to override."""
    setattr(hook, _IDLE, True)
    return hook


def reads_result_only(hook: _Function) -> _Function:
    """Mark an ``on_client_end`` that reads neither counters nor logged values nor metric objects."""
    setattr(hook, _OF_RESULT, True)
    return hook


class ClientHooks:
    """Calls ``on_client_start`` and ``on_client_end`` of the trainer's callbacks.

    What they draw depends on the client and the round alone, as everything does that is drawn for a client.

    Args:
        trainer: The trainer.
        settings: The settings of local training, for the fit's seed.
    """

    def __init__(self, trainer: pl.Trainer, settings: LocalSettings) -> None:
        self._trainer, self._settings = trainer, settings
        self.find()

    def find(self) -> None:
        """Find the hooks that the callbacks have."""
        #: The callbacks' ``on_client_start`` and ``on_client_end``.
        self.starts, self.ends = self._of("on_client_start"), self._of("on_client_end")
        #: Whether an ``on_client_end`` may read counters, logged values or metric objects.
        self.read_logged_values = not all(getattr(hook, _OF_RESULT, False) for hook in self.ends)
        #: Whether hooks may see in which order clients train.
        self.see_order = bool(self.starts) or self.read_logged_values

    def on_client_start(self, client: LocalClient) -> None:
        """Call the hooks before a client trains."""
        self._call(self.starts, 0, client)

    def on_client_end(self, result: ClientResult, model: Callable[[], Tensor]) -> None:
        """Call the hooks after a client has trained.

        Args:
            result: Its result.
            model: Returns the model that the module holds, shape ``(size,)``.

        Raises:
            RuntimeError: If they change the module's weights, which are no longer looked at.
        """
        self._call(self.ends, 1, result)
        if self.read_logged_values and not same_values(model(), result.vector):
            raise RuntimeError(
                "`on_client_end` changed the module's weights, after the client's result was taken. Change weights in "
                "`on_train_batch_end`, or write an `Exchange` whose `upload` changes the result."
            )

    def _call(self, hooks: list[Any], place: int, argument: LocalClient | ClientResult) -> None:
        if hooks:
            seed_global_generators(self._settings.run_seed, Stream.HOOKS, *argument.task.seeds, place)
        module = self._trainer.lightning_module
        previous = enter_fx(module, _LOGS_AS)
        for hook in hooks:
            hook(self._trainer, module, argument)
        enter_fx(module, previous)

    def _of(self, name: str) -> list[Any]:
        hooks = (getattr(callback, name, None) for callback in self._trainer.callbacks)
        return [hook for hook in hooks if hook is not None and not getattr(hook, _IDLE, False)]


def notify(trainer: Any, hook: str) -> None:
    """Call a hook of rounds on the callbacks that define it."""
    module = trainer.lightning_module
    previous = enter_fx(module, _LOGS_AS)
    for callback in trainer.callbacks:
        if (function := getattr(callback, hook, None)) is not None:
            function(trainer, module)
    enter_fx(module, previous)


@dataclass(frozen=True, eq=False)
class StartedClient:
    """A client that has begun.

    Attributes:
        client: The client.
        correction: The term that the local objective adds for it; ``None`` for none.
        model: The model that it has received, shape ``(size,)``.
    """

    client: LocalClient
    correction: Correction | None
    model: Tensor

    @property
    def task(self) -> Task:
        """Its task."""
        return self.client.task
