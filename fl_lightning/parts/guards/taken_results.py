"""The results that a user's own schedule gives the server: each once, and such as clients hand in."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fl_lightning.arguments import got, is_whole
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.guards.checked_numbers import with_checked_numbers
from fl_lightning.parts.guards.contracts import are_finite


class TakenResults:
    """Checks what a schedule gives the server; a schedule of the library gives what clients handed in.

    Args:
        schedule: The schedule; ``None`` checks nothing.
    """

    def __init__(self, schedule: Any = None) -> None:
        self._checks = schedule is not None and not schedule.is_of_library
        self._who = f"`{type(schedule).__name__}` gave `server.take`"
        self._seen: set[tuple[int, int, int]] = set()

    def checked(self, result: Any, model: Tensor, federation: Federation) -> ClientResult:
        """Return a result, with plain numbers.

        Args:
            result: What the server is given.
            model: The server's model, shape ``(size,)``.
            federation: The run.

        Raises:
            TypeError: If it is no :class:`ClientResult`, or a model no floating-point tensor.
            ValueError: If a model has another shape or lies on another device, the client or the slot does not exist, a
                number is none, or the server has the result already.
            FloatingPointError: If the client's model has NaN or infinite values.
        """
        if not self._checks:
            return result  # type: ignore[no-any-return]
        if not isinstance(result, ClientResult):
            raise TypeError(f"{self._who} {got(result)}; it must be a ClientResult, such as `receive` is given.")
        for name in ("vector", "start"):
            self._check_model(name, getattr(result, name), model)
        checked = with_checked_numbers(self._who, result)
        self._check_place(checked, federation.num_clients)
        if not are_finite(checked):
            raise FloatingPointError(
                f"{self._who} a result of client {checked.task.client} with NaN or infinite values, and those of "
                "clients are finite. Check the arithmetic of the schedule. The round is discarded."
            )
        return checked

    def _check_model(self, name: str, given: Any, model: Tensor) -> None:
        if not isinstance(given, Tensor) or not given.is_floating_point():
            raise TypeError(f"{self._who} a result whose `{name}` is {got(given)}; it must be a floating-point tensor.")
        if given.shape != model.shape or given.device != model.device:
            raise ValueError(
                f"{self._who} a result whose `{name}` has shape {tuple(given.shape)} and lies on {given.device}; it "
                f"must have shape {tuple(model.shape)} and lie on {model.device}, as the server's model does."
            )

    def _check_place(self, result: ClientResult, num_clients: int) -> None:
        task = result.task
        if not is_whole(task.client) or not -1 <= task.client < num_clients:
            raise ValueError(
                f"{self._who} a result whose `task.client` is {got(task.client)}; it must be a whole number from 0 to "
                f"{num_clients - 1}, or -1 for a model of no single client."
            )
        if not is_whole(task.slot) or task.slot < 0:
            raise ValueError(f"{self._who} a result whose `task.slot` is {got(task.slot)}; it must be at least 0.")
        place = task.round, task.slot, task.repetition
        if place in self._seen:
            raise ValueError(
                f"{self._who} two results of round {task.round + 1} and slot {task.slot}, client {task.client}, for "
                "one move: it would count twice. Give each once; for another weight change `task.num_samples`. A "
                "result that the schedule makes itself, such as a mean of clients, needs a `task.slot` of its own."
            )
        self._seen.add(place)

    def forget(self) -> None:
        """Begin anew, since the server moves or the round breaks off."""
        self._seen = set()
