"""The base of objectives, which answer the question: what does a client minimise?"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

import torch
from torch import Tensor

from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.objectives.corrections import Correction
from fl_lightning.parts.part import Part, Place


class LocalObjective(Part):
    """The plain objective F_k, and the base of all others."""

    runs_at: ClassVar[Place | None] = "client"
    #: Vectors of the model's length that travel each way for a client: SCAFFOLD sends its control variate too.
    vectors_sent: int = 1
    #: Whether :attr:`ClientResult.summed_lr` is needed.
    needs_summed_lr: bool = False
    #: Whether :meth:`correction` looks at the client's samples, before it trains on them.
    looks_at_samples: bool = False
    #: Whether all clients of a round must start from the server's model.
    starts_from_server: bool = False
    sends_updates_alone = True
    #: Batches that a client takes for one optimizer step.
    batches_per_step: int = 1
    #: Models of a client that its optimizer steps in turn; what it holds for several is not kept from round to round.
    stepped_models: int = 1

    @property
    def numbers_down(self) -> int:
        """Numbers that the server sends to a client besides vectors of the model's length."""
        return 0

    def numbers_up(self, result: ClientResult) -> int:
        """Return how many numbers the client sends besides those and a loss; called after :meth:`on_client_end`."""
        return 0

    @property
    def proximal_weight(self) -> float | Callable[[int], float]:
        """Weight of a term ``weight/2 |w - w'|^2`` with w' the received model; a function of the round if it changes.

        FedNova's mean counts on it: the term draws steps back.
        """
        return 0.0

    @property
    def uses_gradients_alone(self) -> bool:
        """Whether what clients send depends on their data by the gradients of ``training_step`` alone.

        A subclass with a :meth:`correction` of its own may look at more, so the answer is no unless it says yes itself.
        """
        return type(self).correction is LocalObjective.correction

    @property
    def sends_numbers(self) -> bool:
        """Whether clients send such numbers."""
        return type(self).numbers_up is not LocalObjective.numbers_up

    @property
    def sends_loss(self) -> bool:
        """Whether clients send a loss; see :meth:`loss_of`."""
        return type(self).loss_of is not LocalObjective.loss_of

    def correction(self, client: LocalClient) -> Correction | None:
        """Return what is asked of the client's steps; ``None`` for nothing. Called before the client's first batch."""
        return None

    def on_client_end(self, result: ClientResult) -> ClientResult | None:
        """Called when a client is done, with its result as it leaves the client: before any exchange.

        It may return another result, which the client then sends. A client that hands back NaN or infinite values is
        left out before, without this call.
        """

    def on_arrival(self, client: int, slot: int, *, is_used: bool) -> None:
        """Called when a client's result has reached the server, after :meth:`on_client_end`.

        In rounds that is at once, on the client's process. Asynchronous clients may be trained before their results are
        due; it is called at the end of the round in which they are, on all processes.

        Args:
            client: The client.
            slot: The slot of its task.
            is_used: Whether the server merges the result.
        """

    def untrained(self, federation: Federation) -> Collection[str]:
        """Return the names of the parameters that no client trains, so that they need not travel."""
        return ()

    def loss_of(self, task: Task) -> float | None:
        """Return the loss that the client sends with its result; ``None`` for none.

        Called when it is done, before :meth:`on_client_end`.
        """
        return None

    def without_personal(self, values: Tensor) -> Tensor:
        """Return values with 0 at the places of personal parameters, shape ``(num_parameters,)``."""
        places = self.federation.traveling_places
        if places is None:
            return values
        return torch.zeros_like(values).index_copy_(0, places, values[places])
