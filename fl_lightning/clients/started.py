"""The start and the end of a client that is not trained from one to the other at a stretch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from fl_lightning._lightning.local_optimizers import OptimizerProgress, Options
from fl_lightning.parts.messages import LocalClient, Task
from fl_lightning.parts.objectives import Correction

_Client = TypeVar("_Client")


@dataclass(frozen=True, eq=False)
class StartedClient:
    """A client that has begun.

    Attributes:
        client: The client.
        correction: The term that the local objective adds for it; ``None`` for none.
        model: The model from which it trains, shape ``(size,)``: the received one, as hooks have left it.
        options: The options of its optimizers' parameter groups, where hooks have set them; ``None`` for the round's.
        progress: The state of its optimizers and schedules, where hooks have changed it; ``None`` where they have not.
            A client with such a state has to be trained alone.
    """

    client: LocalClient
    correction: Correction | None
    model: Tensor
    options: Options | None = None
    progress: OptimizerProgress | None = None

    @property
    def task(self) -> Task:
        """Its task."""
        return self.client.task

    @property
    def is_prepared(self) -> bool:
        """Whether hooks have set weights, options, or the state of optimizers or schedules."""
        return self.model is not self.client.start or self.options is not None or self.progress is not None


@dataclass(frozen=True, eq=False)
class FinalState:
    """The state, beside its model, in which hooks find a client that has been trained.

    Attributes:
        gradients: The gradients of its last step, one for each trained parameter; ``None`` where there is none.
        progress: The state of its optimizer and its schedules.
        options: The options of the optimizer's parameter groups, where a schedule has set them.
    """

    gradients: Sequence[Tensor | None]
    progress: OptimizerProgress
    options: Options | None = None


def alike(clients: Sequence[_Client], begun: Callable[[_Client], StartedClient]) -> list[list[_Client]]:
    """Return clients whose optimizers have the same options together; those that have to be trained alone apart.

    Args:
        clients: The clients.
        begun: Returns how a client has begun.
    """
    groups: list[list[_Client]] = []
    for client in clients:
        own = begun(client)
        for group in groups:
            first = begun(group[0])
            if first.options == own.options and first.progress is own.progress is None:
                group.append(client)
                break
        else:
            groups.append([client])
    return groups
